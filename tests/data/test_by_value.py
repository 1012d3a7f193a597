"""Batches that are sent by value arrive as they were, and without files in shared memory."""

from functools import partial
from multiprocessing.reduction import ForkingPickler

import torch
from torch.utils.data import DataLoader

from dcpcse.data.collator import ByValue
from dcpcse.encoders.packing import Packing


def batch_of(rows, dtype=torch.float32):
    mask = (torch.arange(7) < torch.tensor(rows).unsqueeze(1)).long()
    numbers = torch.arange(6).to(dtype).view(2, 3)
    return {"mask": mask, "packing": Packing.of(mask), "numbers": numbers, "transposed": numbers.t(), "name": "a"}


def test_a_batch_of_another_process_has_the_same_values_and_types():
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        collate = partial(batch_of, dtype=dtype)
        loader = DataLoader([3, 1, 7, 2], batch_size=2, num_workers=1, collate_fn=ByValue(collate))
        for rows, found in zip(([3, 1], [7, 2]), loader, strict=True):
            wanted = batch_of(rows, dtype)
            assert type(found) is dict and found.keys() == wanted.keys()
            for name in ("mask", "numbers", "transposed"):
                assert found[name].dtype == wanted[name].dtype
                assert torch.equal(found[name], wanted[name])
            assert found["packing"].sizes == wanted["packing"].sizes
            assert torch.equal(found["packing"].place, wanted["packing"].place)
            found["mask"] += 1  # the memory may be written


def test_no_tensor_is_sent_through_shared_memory():
    assert b"rebuild_storage" in bytes(ForkingPickler.dumps(batch_of([2, 3])))
    assert b"rebuild_storage" not in bytes(ForkingPickler.dumps(ByValue(batch_of)([2, 3])))
