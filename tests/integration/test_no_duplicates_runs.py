"""Batches without duplicates in whole runs: exact in every batch, after a resume and over two processes."""

import pytest
import torch
from runs import NO_DROPOUT, assert_same_weights, weights

SAMPLED = {"batch_sampler": "no_duplicates"}


@pytest.fixture(scope="session")
def repeated_csv(tmp_path_factory, sentences) -> str:
    """30 pairs, of which any sentence of 20 is in several rows and in both columns."""
    texts = [f"{sentence} {i}" for i in range(2) for sentence in sentences[:10]]
    rows = [f'"{texts[i % 20]}","{texts[(i * 7 + 1) % 20]}"' for i in range(30)]
    path = tmp_path_factory.mktemp("repeated") / "pairs.csv"
    path.write_text("\n".join(["first,second", *rows]) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def class_csv(tmp_path_factory, sentences) -> str:
    """33 sentences of 7 classes of different sizes, some of them twice."""
    rows = [f'"{sentences[i % 12]} {i % 30}",class {i * i % 7 if i % 3 else i % 7}' for i in range(33)]
    path = tmp_path_factory.mktemp("classes") / "classes.csv"
    path.write_text("\n".join(["text,class", *rows]) + "\n", encoding="utf-8")
    return str(path)


def require_no_duplicates(run) -> None:
    """No two rows of a batch of the run have a view with the same tokens, or one class."""
    assert run.batches
    for batch in run.batches:
        texts = [{tuple(row) for row in ids.tolist()} for ids in batch["input_ids"]]
        assert len(set().union(*texts)) == sum(map(len, texts))
        numbers = batch["classes"].tolist() if "classes" in batch else []
        assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("data", ["repeated_csv", "class_csv"])
def test_a_resumed_run_has_the_same_batches_and_ends_bit_for_bit(data, request, tiny, train):
    """The epoch has 8 or 9 batches, two of which are accumulated; the run resumes in the second epoch."""
    file = request.getfixturevalue(data)
    options = {**SAMPLED, "gradient_accumulation_steps": 2, "max_steps": 8, "save_strategy": "steps", "save_steps": 6}
    whole = train(tiny("bert"), file, **options)
    folder = train.interrupted(6, tiny("bert"), file, **options)
    again = train(tiny("bert"), file, folder=folder, resume=True, **options)
    assert len(again.gradients) == 2
    assert_same_weights(whole.folder, folder)
    require_no_duplicates(whole)
    for first, second in zip(whole.batches[-len(again.batches) :], again.batches, strict=True):
        assert torch.equal(first["input_ids"], second["input_ids"])


def test_two_processes_train_on_the_batches_of_one(class_csv, tiny, train, tmp_path, pairs):
    encoder = tiny("bert", **NO_DROPOUT)
    options = {**SAMPLED, "max_steps": 7, "optim": "sgd", "temp": 0.5, "max_grad_norm": 0, "save_strategy": "no"}
    single = train(encoder, class_csv, **options, per_device_train_batch_size=6)
    require_no_duplicates(single)
    argv = train.argv(encoder, class_csv, tmp_path / "out", **options, per_device_train_batch_size=3)
    done = pairs("train.py", *argv)
    assert done.codes == [0, 0], done.stderr
    name = "model.encoder.prompt.table.weight"
    way = weights(single.folder)["prompt_embeddings"] - single.initial[name]
    assert way.abs().max() > 0
    other_way = weights(tmp_path / "out")["prompt_embeddings"] - single.initial[name]
    torch.testing.assert_close(other_way, way, rtol=0, atol=0.02 * way.abs().max().item())


def test_the_run_without_the_option_is_unchanged(repeated_csv, tiny, train):
    plain, given = train(tiny("bert"), repeated_csv), train(tiny("bert"), repeated_csv, batch_sampler="random")
    assert_same_weights(plain.folder, given.folder)
    with pytest.raises(AssertionError):
        require_no_duplicates(plain)
    run = train(tiny("bert"), repeated_csv, gradient_cache_chunk=2, **SAMPLED)
    assert len(run.gradients) == 4
