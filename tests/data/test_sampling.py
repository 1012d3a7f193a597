"""The order of training examples is that of transformers and accelerate, at a tenth of the memory."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, SeedableRandomSampler, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import BatchSampler, DataLoader

from dcpcse.data.sampling import CHUNK_ROWS, CompactRandomSampler, make_compact
from dcpcse.utils.distributed import DistributedBatchSampler


@pytest.mark.parametrize("rows", [1, 7, CHUNK_ROWS, 2 * CHUNK_ROWS + 1])
@pytest.mark.parametrize("seed", [0, 42, 2**40])
def test_the_order_of_every_epoch_is_that_of_accelerate(rows, seed):
    ours = CompactRandomSampler(range(rows), data_seed=seed)
    theirs = SeedableRandomSampler(range(rows), data_seed=seed)
    for _ in range(3):
        order = list(ours)
        assert order == list(theirs)
        assert all(type(row) is int for row in order[:3])
    assert ours.epoch == theirs.epoch == 3


def prepared(**options):
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=7)
    return Accelerator(cpu=True, dataloader_config=config).prepare(DataLoader(torch.arange(50), 4, **options))


def batches(loader):
    return [batch.tolist() for batch in loader]


def test_a_loader_gives_the_same_batches_in_all_epochs_and_after_a_resume():
    theirs, ours = prepared(shuffle=True), prepared(shuffle=True)
    make_compact(ours)
    assert type(ours.get_sampler()) is CompactRandomSampler
    state = torch.get_rng_state()
    first = batches(theirs)
    drawn = torch.get_rng_state()
    torch.set_rng_state(state)
    assert batches(ours) == first
    assert torch.equal(torch.get_rng_state(), drawn)  # dropout masks depend on it
    assert batches(ours) == batches(theirs)  # the second epoch
    for loader in (theirs, ours):
        loader.set_epoch(5)
    assert batches(skip_first_batches(ours, 3)) == batches(skip_first_batches(theirs, 3))


def test_a_loader_in_order_keeps_its_sampler():
    loader = prepared(shuffle=False)
    sampler = loader.get_sampler()
    make_compact(loader)
    assert loader.get_sampler() is sampler


def test_processes_share_the_order_of_one():
    shards = []
    for rank in range(2):  # as accelerate prepares the loader of each process
        sampler = SeedableRandomSampler(range(50), data_seed=7)
        loader = DataLoaderShard(
            torch.arange(50), batch_sampler=BatchSamplerShard(BatchSampler(sampler, 4, False), 2, rank)
        )
        loader.set_sampler(sampler)
        make_compact(loader)
        shard = loader.batch_sampler
        shard.batch_sampler, shard.batch_size = DistributedBatchSampler(shard.batch_sampler, 2), None
        loader.set_epoch(3)
        shards.append(list(shard))
    theirs = SeedableRandomSampler(range(50), data_seed=7)
    theirs.set_epoch(3)
    order = list(theirs)
    assert shards[0][0] + shards[1][0] == order[:8]
    assert sorted(row for shard in shards for rows in shard for row in rows) == list(range(50))
