"""Training on plain text with other positives than dropout, from train.py on."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from runs import assert_same_weights

DOCUMENTS = 5


@pytest.fixture(scope="module")
def documents(tmp_path_factory, sentences) -> str:
    """Five documents of six lines, with a blank line between them."""
    path = tmp_path_factory.mktemp("documents") / "documents.txt"
    parts = ["\n".join(f"{s} {d}" for s in sentences[d : d + 6]) for d in range(DOCUMENTS)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return str(path)


def texts_of(run) -> list[list[tuple[str, ...]]]:
    """The texts of the views of every row of every batch."""
    decode = run.trainer.sentence_encoder.tokenizer.decode
    return [
        [tuple(decode(ids, skip_special_tokens=True) for ids in row) for row in batch["input_ids"]]
        for batch in run.batches
    ]


@pytest.mark.parametrize(
    "options", [{"positive": "crop", "crop_share": 0.6, "gradient_cache_chunk": 2}, {"positive": "next"}], ids=str
)
def test_a_resumed_run_ends_bit_for_bit(options, tiny, train, documents):
    options = {**options, "max_steps": 9, "save_strategy": "steps", "save_steps": 8}
    whole = train(tiny("bert"), documents, **options)
    folder = train.interrupted(8, tiny("bert"), documents, **options)
    train(tiny("bert"), documents, folder=folder, resume=True, **options)
    assert_same_weights(whole.folder, folder)


def test_the_following_line_is_the_positive_and_no_batch_need_have_it_as_a_negative(tiny, train, documents):
    options = {"positive": "next", "batch_sampler": "no_duplicates", "max_steps": None, "num_train_epochs": 2}
    run = train(tiny("bert"), documents, **options)
    lines = [line.lower() for line in Path(documents).read_text(encoding="utf-8").split("\n")]
    wanted = {pair for pair in pairwise(lines) if all(pair)}
    assert len(wanted) == 5 * DOCUMENTS
    found = texts_of(run)
    flat = [tuple(text.replace(" .", ".").replace(" ,", ",") for text in pair) for batch in found for pair in batch]
    assert set(flat) == wanted and len(flat) == 2 * len(wanted)
    for batch in found:
        assert len({text for pair in batch for text in pair}) == 2 * len(batch)


def test_crops_are_spans_of_the_line(tiny, train, documents):
    run = train(tiny("bert"), documents, positive="crop", max_steps=4)
    whole = [batch["input_ids"] for batch in train(tiny("bert"), documents, max_steps=4).batches]
    for cropped, plain in zip((batch["input_ids"] for batch in run.batches), whole, strict=True):
        for spans, text in zip(cropped, plain[:, 0], strict=True):
            text = text[text > 0][1:-1].tolist()
            for span in (row[row > 0][1:-1].tolist() for row in spans):
                assert len(span) == -(-len(text) // 2)  # half of the tokens by default
                assert any(text[i : i + len(span)] == span for i in range(len(text)))
    assert any(not torch.equal(row[0], row[1]) for batch in run.batches for row in batch["input_ids"])


@pytest.mark.parametrize("method", ["simcse", "scpcse", "promptbert", "d2cse", "esimcse", "conpvp"])
@pytest.mark.parametrize("positive", ["crop", "next"])
def test_the_methods_of_pairs_take_other_positives(method, positive, tiny, train, documents):
    options = {"generator_name": tiny("bert", seed=3)} if method == "d2cse" else {}
    if positive == "crop":
        options |= {"esimcse": {"dup_rate": 0.0}, "conpvp": {"prototypes": "none"}}.get(method, {})
    run = train(tiny("bert"), documents, method=method, positive=positive, max_steps=1, learning_rate=1e-3, **options)
    assert torch.isfinite(torch.tensor(run.logged("loss"))).all()
