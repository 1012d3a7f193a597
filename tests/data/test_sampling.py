"""The order of training examples is that of transformers and accelerate, at a tenth of the memory.

Batches without duplicates are compared with the texts of their rows.
"""

import logging
import random

import datasets
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, SeedableRandomSampler, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import BatchSampler, DataLoader

from dcpcse.data.examples import ClassPairs, IndexedDataset, ListedExamples, OneOfSeveralPositives, stack_indices
from dcpcse.data.sampling import CHUNK_ROWS, CompactRandomSampler, NoDuplicatesSampler, distinct_rows, set_order
from dcpcse.utils.distributed import DistributedBatchSampler, step_sizes
from dcpcse.utils.errors import UserError


@pytest.mark.parametrize(("rows", "seed"), [(1, 0), (7, 2**40), (CHUNK_ROWS, 0), (2 * CHUNK_ROWS + 1, 42)])
def test_the_order_of_every_epoch_is_that_of_accelerate(rows, seed):
    ours = CompactRandomSampler(range(rows), data_seed=seed)
    theirs = SeedableRandomSampler(range(rows), data_seed=seed)
    for _ in range(3):
        order = list(ours)
        assert order == list(theirs)
        assert all(type(row) is int for row in order[:3])
    assert ours.epoch == theirs.epoch == 3


def prepared(dataset=None, **options):
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=7)
    loader = DataLoader(torch.arange(50) if dataset is None else dataset, 4, **options)
    return Accelerator(cpu=True, dataloader_config=config).prepare(loader)


def batches(loader):
    return [batch.tolist() for batch in loader]


def test_a_loader_gives_the_same_batches_in_all_epochs_and_after_a_resume():
    theirs, ours = prepared(shuffle=True), prepared(shuffle=True)
    set_order(ours)
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
    loader = prepared(shuffle=False)
    with pytest.raises(UserError, match="cannot be combined with your own sampler"):
        set_order(loader, [[4]], distinct=True)


@pytest.mark.parametrize(("rows", "workers"), [(32, 0), (41, 1)])
def test_processes_share_the_order_of_one_and_a_batch_knows_their_numbers_of_rows(rows, workers):
    dataset, loaders = IndexedDataset(table([(f"text {i}",) for i in range(rows)], ("anchor",))), []
    for rank in range(3):  # as accelerate prepares the loader of each process
        sampler = SeedableRandomSampler(range(rows), data_seed=7)
        shard = BatchSamplerShard(BatchSampler(sampler, 4, False), 3, rank)
        collate = {"collate_fn": lambda batch: stack_indices(ListedExamples(batch))}
        loader = DataLoaderShard(dataset, batch_sampler=shard, num_workers=workers, **collate)
        loader.set_sampler(sampler)
        set_order(loader)
        shard = loader.batch_sampler
        shard.batch_sampler, shard.batch_size = DistributedBatchSampler(shard.batch_sampler, 3), None
        loaders.append(loader)
    steps = list(zip(*loaders, strict=True))
    theirs = SeedableRandomSampler(range(rows), data_seed=7)
    assert [row for step in steps for batch in step for row in batch["rows"]] == list(theirs)
    for step in steps:
        for batch in step:
            assert batch["counts"] == tuple(len(other["rows"]) for other in step)
    for loader in loaders:
        loader.set_epoch(0)
    resumed = list(zip(*(skip_first_batches(loader, 2) for loader in loaders), strict=True))
    assert resumed == steps[2:] != []


# Batches without duplicates


def table(texts: list[tuple[str, ...]], columns=("anchor", "positive", "negative")) -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        {name: [row[i] for row in texts] for i, name in enumerate(columns[: len(texts[0])])}
    )


def texts_of(dataset: IndexedDataset, row: int, epoch: int) -> set[str]:
    """All that a row must not share with another one of its batch."""
    dataset.begin_epoch(epoch)
    return {f"{name}: {cell}" if name == "class" else cell for name, cell in dataset[row].items() if name not in KEYS}


KEYS = ("row", "epoch")


def cut(order: list[int], sizes: list[int]) -> list[list[int]]:
    assert len(order) == sum(sizes)
    starts = np.cumsum([0, *sizes])
    return [order[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def require_no_duplicates(dataset, order, sizes, epoch=0):
    for batch in cut(order, sizes):
        seen = [texts_of(dataset, row, epoch) for row in batch]
        assert len(set().union(*seen)) == sum(map(len, seen)), batch


PLAIN, SEVERAL = ("anchor", "positive", "negative"), ("anchor", "positive_1", "positive_2", "negative")


@pytest.mark.parametrize("columns", [PLAIN[:1], PLAIN[:2], PLAIN, SEVERAL])
@pytest.mark.parametrize("processes", [1, 3])
def test_no_batch_has_a_text_twice_and_every_row_is_in_one_batch(columns, processes):
    random.seed(len(columns))
    rows = [tuple(f"text {random.randrange(150)}" for _ in columns) for _ in range(203)]
    data, sizes = table(rows, columns), step_sizes(203, 4, processes, False)
    dataset = OneOfSeveralPositives(data, 5) if columns == SEVERAL else IndexedDataset(data)
    sampler = NoDuplicatesSampler(dataset, sizes, data_seed=7)
    seen = []
    for epoch in range(3):
        assert sampler.epoch == epoch
        seen.append(list(sampler))
        require_no_duplicates(IndexedDataset(data), seen[-1], sizes)  # all positives, not the drawn one
        left_out = set(range(203)) - set(seen[-1])
        assert len(left_out) < max(sizes)  # at the end of the epoch
        assert len(seen[-1]) == 203
    assert seen[0] != seen[1]
    again = NoDuplicatesSampler(dataset, sizes, data_seed=7)
    again.set_epoch(2)
    assert list(again) == seen[2]


def test_without_duplicates_the_order_is_the_plain_one():
    dataset = IndexedDataset(table([(f"a {i}", f"b {i}") for i in range(50)]))
    ours = NoDuplicatesSampler(dataset, step_sizes(50, 8, 1, False), data_seed=3)
    plain = CompactRandomSampler(dataset, data_seed=3)
    assert [list(ours), list(ours)] == [list(plain), list(plain)]


def test_a_row_that_does_not_fit_waits_for_the_next_batch():
    dataset, sizes = IndexedDataset(table([("a",), ("b",), ("a",), ("c",), ("d",), ("e",)])), [2, 2, 2]
    orders = {seed: cut(list(CompactRandomSampler(dataset, data_seed=seed)), sizes) for seed in range(30)}
    seed, (first, second, _) = next((seed, order) for seed, order in orders.items() if set(order[0]) == {0, 2})
    ours = cut(list(NoDuplicatesSampler(dataset, sizes, data_seed=seed)), sizes)
    assert ours[:2] == [[first[0], second[0]], [first[1], second[1]]]


@pytest.mark.usefixtures("on_command_line")
@pytest.mark.parametrize(("share", "lost"), [(0.3, 6), (0.9, 0)])
def test_of_a_frequent_class_a_batch_has_one_row_and_the_others_are_left_out(share, lost, caplog):
    random.seed(1)
    kinds = [0 if random.random() < share else random.randrange(1, 6) for _ in range(120)]
    data = table([(f"text {i}", str(kind)) for i, kind in enumerate(kinds)], ("anchor", "class"))
    dataset, sizes = ClassPairs(data, 5), step_sizes(120, 4, 1, False)
    sampler = NoDuplicatesSampler(dataset, sizes, data_seed=2)
    with caplog.at_level(logging.WARNING):
        orders = [list(sampler), list(sampler)]
    most = sum(min(kinds.count(kind), len(sizes)) for kind in set(kinds))  # that any order could have
    for epoch, order in enumerate(orders):
        require_no_duplicates(dataset, order, sizes, epoch)
        assert most - lost <= len(set(order)) <= most
    (record,) = caplog.records
    left_out = 120 - len(set(orders[0]))
    assert f"no_duplicates: {left_out} of 120 rows did not fit into a batch of epoch 1" in record.getMessage()


def test_a_text_in_two_classes_is_not_twice_in_a_batch_as_anchor_and_drawn_positive():
    random.seed(3)
    data = table([(f"text {random.randrange(40)}", str(i % 9)) for i in range(90)], ("anchor", "class"))
    dataset, sizes = ClassPairs(data, 5), step_sizes(90, 6, 1, False)
    sampler = NoDuplicatesSampler(dataset, sizes, data_seed=2)
    for epoch in range(4):
        require_no_duplicates(dataset, list(sampler), sizes, epoch)


def test_a_batch_that_no_row_fits_to_is_replaced_and_rare_keys_are_found_first():
    """A row with a text of every other row ends its batch at once; it is used when a batch has one row."""
    leaves = [(f"leaf {i}", f"p {i}", f"n {i}") for i in range(3)]
    data = table([("leaf 0", "leaf 1", "leaf 2"), *leaves])
    dataset = IndexedDataset(data)
    assert len(distinct_rows(dataset, 3)) == 3
    for seed in range(5):
        order = list(NoDuplicatesSampler(dataset, [3], data_seed=seed))
        assert sorted(order) == [1, 2, 3]
    assert len(distinct_rows(dataset, 4)) == 3
    rows = [("common",)] * 50 + [(f"rare {i}",) for i in range(5)]
    assert [row for row, _ in distinct_rows(IndexedDataset(table(rows)), 10)] == [50, 51, 52, 53, 54, 0]


def test_a_loader_gives_the_same_batches_after_a_resume_and_processes_share_them():
    random.seed(4)
    dataset = IndexedDataset(table([(f"text {random.randrange(40)}", f"p {i}") for i in range(50)]))

    def anchors(rows):
        return [dataset[row]["anchor"] for row in rows]

    one = prepared(dataset, shuffle=True, collate_fn=lambda batch: torch.tensor([example["row"] for example in batch]))
    set_order(one, [step_sizes(50, 4, 1, False)], distinct=True)
    for epoch in (0, 3):
        one.set_epoch(epoch)
        whole = batches(one)
        assert list(map(len, whole)) == [4] * 12 + [2]
        assert all(len(set(anchors(batch))) == len(batch) for batch in whole)
        one.set_epoch(epoch)
        assert batches(skip_first_batches(one, 5)) == whole[5:]
    sampler = NoDuplicatesSampler(dataset, step_sizes(50, 4, 2, False), data_seed=7)
    lists = list(DistributedBatchSampler(BatchSampler(sampler, 4, False), 2))
    for first, second in zip(lists[::2], lists[1::2], strict=True):
        assert len(set(anchors([*first, *second]))) == len([*first, *second])
