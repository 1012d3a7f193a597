"""Training with positives that are made of plain text or drawn from several, from train.py on."""

from itertools import pairwise
from pathlib import Path

import pandas
import pytest
import torch
from runs import assert_same_weights

import dcpcse
from dcpcse.cli.commands.train import train_command
from dcpcse.data.examples import OneOfSeveralPositives
from dcpcse.utils.errors import UserError

DOCUMENTS = 5
LETTERS = "abcdefghijklmnopqrstuvwx"


@pytest.fixture(scope="module")
def documents(tmp_path_factory, sentences) -> str:
    """Five documents of six lines, with a blank line between them."""
    path = tmp_path_factory.mktemp("documents") / "documents.txt"
    parts = ["\n".join(f"{s} {d}" for s in sentences[d : d + 6]) for d in range(DOCUMENTS)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def several_csv(tmp_path_factory, sentences) -> str:
    """24 rows with three positives and a hard negative; each text ends in a letter for its row and its column."""
    names = ("anchor", "positive_1", "positive_2", "positive_3", "negative")
    rows = [{name: f"{sentences[i % 12]} {LETTERS[i]} {place}" for place, name in enumerate(names)} for i in range(24)]
    path = tmp_path_factory.mktemp("several") / "several.csv"
    pandas.DataFrame(rows).to_csv(path, index=False)
    return str(path)


def texts_of(run) -> list[list[tuple[str, ...]]]:
    """The texts of the views of every row of every batch."""
    decode = run.trainer.sentence_encoder.tokenizer.decode
    return [
        [tuple(decode(ids, skip_special_tokens=True) for ids in row) for row in batch["input_ids"]]
        for batch in run.batches
    ]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("documents", {"positive": "crop", "crop_share": 0.6, "gradient_cache_chunk": 2}),
        ("documents", {"positive": "next"}),
        ("several_csv", {"do_eh_loss": True, "batch_sampler": "no_duplicates"}),
    ],
    ids=str,
)
def test_a_resumed_run_ends_bit_for_bit(data, options, tiny, train, request):
    file = request.getfixturevalue(data)
    options = {**options, "max_steps": 9, "save_strategy": "steps", "save_steps": 8}
    whole = train(tiny("bert"), file, **options)
    folder = train.interrupted(8, tiny("bert"), file, **options)
    train(tiny("bert"), file, folder=folder, resume=True, **options)
    assert_same_weights(whole.folder, folder)


def test_an_epoch_of_several_positives_is_one_of_the_drawn_pairs(tiny, train, several_csv, tmp_path):
    frame, epochs = pandas.read_csv(several_csv), 3
    run = train(tiny("bert"), several_csv, max_steps=None, num_train_epochs=epochs, save_strategy="no")
    ends = [[text.split()[-2:] for text in row] for batch in texts_of(run) for row in batch]
    found = []  # of each epoch: row → column of its positive
    for rows in (ends[start : start + 24] for start in range(0, 24 * epochs, 24)):
        for anchor, positive, negative in rows:
            assert anchor[0] == positive[0] == negative[0]
            assert (anchor[1], negative[1]) == ("0", "4")
        found.append({letter: place for _, (letter, place), _ in rows})
    assert all(sorted(one) == [*LETTERS] and set(one.values()) == {"1", "2", "3"} for one in found)
    assert found[0] != found[1] != found[2] != found[0]
    expanded = frame[["anchor", "negative"]].copy()
    expanded.insert(1, "positive", [frame[f"positive_{found[0][letter]}"][i] for i, letter in enumerate(LETTERS)])
    options = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 0.03, "save_strategy": "no"}
    options |= {"use_cpu": True, "disable_tqdm": True, "cache_dir": train.cache_dir}
    pairs, several = (
        dcpcse.train(tiny("bert"), data, output_dir=tmp_path / name, **options)
        for name, data in (("pairs", expanded), ("several", frame))
    )
    assert_same_weights(pairs.folder, several.folder)
    assert isinstance(run.trainer.train_dataset, OneOfSeveralPositives)


@pytest.mark.parametrize("method", ["simcse", "promptbert", "conpvp", "esimcse", "sbert", "consert"])
def test_the_methods_of_triplets_take_several_positives(method, tiny, train, several_csv):
    run = train(tiny("bert"), several_csv, method=method, max_steps=1, learning_rate=1e-3)
    assert torch.isfinite(torch.tensor(run.logged("loss"))).all()


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


def test_blank_lines_that_separate_documents_are_not_said_to_be_dropped(tiny, train, tool, documents, tmp_path):
    for positive, blanks in (("next", 0), ("dropout", 1)):
        words = train.argv(tiny("bert"), documents, tmp_path / positive, positive=positive, max_steps=1)
        said = tool(train_command, words).said
        assert said.count("dropped 4 rows with blank cells") == blanks
        assert said.count("25 of 30 lines are followed by another one of the same document") == 1 - blanks


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            ["a", None, "b", None, "c"],
            "no row of .* is followed by another row of its document .3 rows in 3 documents., and at least 2 must be;",
        ),
        (["a", "b"], "only one row of .* is followed by another row of its document .2 rows in 1 document., and at l"),
    ],
)
def test_lines_that_are_followed_by_no_other_ones_are_refused(lines, found, tiny, tmp_path):
    options = {"positive": "next", "max_steps": 1, "use_cpu": True, "cache_dir": str(tmp_path)}
    with pytest.raises(UserError, match=f'positive="next": {found}.* blank rows only between documents, or leave'):
        dcpcse.train(tiny("bert"), lines, output_dir=tmp_path / "out", **options)


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
