"""Sentences that are tokenised once, against the tokenizer itself, and batches of them against batches of texts."""

import pickle

import numpy as np
import pytest
import torch

import dcpcse
from dcpcse.data import token_table
from dcpcse.data.collator import ViewCollator
from dcpcse.data.examples import make_examples
from dcpcse.data.token_table import Tokenization, open_token_tables
from dcpcse.data.views import Crop, View, sentence_pair_views
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.encoders.tokenization import TokenIds

ROWS = 11
WAYS = [Tokenization(*way) for way in (("", False, 30), ("query: ", False, 9), (" ", True, 30), ("", True, 3))]


@pytest.fixture
def data_of(load, sentences):
    """data_of(columns) → training data with these columns of sentences and labels."""

    def data_of(*columns):
        texts = {c: [f" {sentences[(i + 3 * k) % 12]} {i}" for i in range(ROWS)] for k, c in enumerate(columns)}
        others = {"label": [("entailment", "contradiction")[i % 2] for i in range(ROWS)]}
        others |= {"score": [i / 2 for i in range(ROWS)], "class": [f"class {i % 3}" for i in range(ROWS)]}
        return load({column: others.get(column, cells) for column, cells in texts.items()})

    return data_of


def test_a_table_has_the_ids_of_the_tokenizer_also_of_texts_without_tokens(tokenizer, data_of, monkeypatch):
    data = data_of("anchor", "positive", "negative").dataset
    tables = open_token_tables(data, tokenizer, WAYS)
    cells = np.random.default_rng(0).integers(0, 3 * ROWS, 50)
    for way, table in tables.items():
        found = table.take(cells)
        for cell, ids in zip(cells.tolist(), found.lists(), strict=True):
            text = data[cell % ROWS][data.column_names[cell // ROWS]]
            text = way.lead + (text.strip() if way.strip else text)
            assert ids == tokenizer(text, add_special_tokens=False)["input_ids"][: way.limit]
        assert found.lengths.sum() == len(found.values)
    assert TokenIds.of([[], [3, 4], []]).lists() == [[], [3, 4], []]
    monkeypatch.setattr(Tokenization, "ids", lambda self, tokenizer, sentences: [[] for _ in sentences])
    (table,) = open_token_tables(data_of("positive").dataset, tokenizer, WAYS[:1]).values()
    assert table.take(np.array([1, 0, 1])).lists() == [[], [], []]


def written(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "cache").iterdir() if path.suffix != ".arrow"}


def test_a_table_is_written_once_and_again_if_it_is_damaged(tokenizer, data_of, tmp_path):
    data = data_of("anchor").dataset
    (first,) = open_token_tables(data, tokenizer, WAYS[:1]).values()
    files = written(tmp_path)
    assert len(files) == 2
    open_token_tables(data, tokenizer, WAYS[:1])
    assert written(tmp_path) == files
    open_token_tables(data, tokenizer, WAYS[:1], refresh=True)
    assert all(written(tmp_path)[name] != time for name, time in files.items())
    every = np.arange(ROWS)
    for path in [tmp_path / "cache" / name for name in files]:
        whole = path.read_bytes()
        for damage in (whole[:-1], b"", whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
            path.unlink()  # the mapping that is open keeps the file that it maps
            path.write_bytes(damage)
            (again,) = open_token_tables(data, tokenizer, WAYS[:1]).values()
            assert again.take(every).lists() == first.take(every).lists()
    (other := pickle.loads(pickle.dumps(tokenizer))).truncation_side = "left"
    left, right = (open_token_tables(data, each, WAYS[1:2])[WAYS[1]] for each in (other, tokenizer))
    assert left.take(every).lists() != right.take(every).lists()
    pickled = pickle.dumps(first)  # a worker gets its name, and no copy of it
    assert len(pickled) < 1000
    assert pickle.loads(pickled).take(every).lists() == first.take(every).lists()


SEVERAL = ("anchor", "positive_1", "positive_2", "negative_1", "negative_2")
DATA = {
    "sentences": ("anchor",),
    "triples": ("anchor", "positive", "negative"),
    "labels": ("anchor", "positive", "label"),
    "scores": ("anchor", "positive", "score"),
    "classes": ("anchor", "class"),
    "several positives": SEVERAL,
    "next": ("anchor",),
}


@pytest.mark.grid
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("views", ["plain", "templates", "several templates", "crop"])
def test_batches_are_those_of_the_texts(kind, views, tokenizer, data_of):
    columns, dataset = make_examples(data_of(*DATA[kind]), 5, "next" if kind == "next" else "dropout")
    texts = ["{sentence} [MASK].", 'The text "{sentence}" means [PROMPT] [MASK] today.', "{sentence}[MASK]"]
    templates = [] if views in ("plain", "crop") else [TokenTemplate(Template.parse(t), tokenizer) for t in texts]
    names = list(columns.sentences)
    made = {
        "plain": sentence_pair_views(columns.sentences),
        "templates": [View(name, name, (i % 3,), blank=i != 1) for i, name in enumerate(names)],
        "several templates": [View(name, name, (0, 1, 2)) for name in names],
        "crop": [View(name, name, augmentation=Crop(0.5)) for name in names],
    }[views]
    collator = ViewCollator(tokenizer, made, 12, templates=templates, width=8)
    batches = {}
    for way in ("texts", "tokens"):
        if way == "tokens":
            dataset.tables = open_token_tables(dataset.rows, tokenizer, collator.tokenizations)
        batches[way] = []
        for epoch in (0, 3):
            dataset.begin_epoch(epoch)
            batches[way] += [collator(dataset.__getitems__(rows)) for rows in ([4, 1, 1, 8], [0])]
    for one, other in zip(*batches.values(), strict=True):
        assert one.keys() == other.keys()
        assert one["rows"] == other["rows"]
        for name, value in one.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, other[name]), name
        assert all(torch.equal(one["packing"].__dict__[f], other["packing"].__dict__[f]) for f in ("source", "place"))


def losses(encoder, sentences, folder, **given) -> list[float]:
    """The losses of a training, step by step."""
    args = dcpcse.TrainingArguments(
        **{"output_dir": str(folder / "out"), "overwrite_output_dir": True, "save_strategy": "no", "use_cpu": True},
        **{"disable_tqdm": True, "report_to": "none", "logging_steps": 1, "learning_rate": 1e-3},
        **{"per_device_train_batch_size": 4, **given},
    )
    trainer = dcpcse.Trainer(encoder, "dcpcse", args, sentences, pre_seq_len=2, cache_dir=str(folder))
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_run_that_reads_all_rows_tokenises_them_once(tiny, sentences, tmp_path, monkeypatch, caplog):
    """The losses are those of a run that tokenises in each batch, which a shorter run and a read-only cache do."""
    encoder, texts = tiny("bert"), [f"{sentence} {i}" for i in range(2) for sentence in sentences][:12]
    asked = []
    ids = Tokenization.ids
    monkeypatch.setattr(Tokenization, "ids", lambda self, *given: asked.append(len(given[1])) or ids(self, *given))
    once = losses(encoder, texts, tmp_path, num_train_epochs=2)
    assert asked == [12]
    assert losses(encoder, texts, tmp_path, num_train_epochs=2, dataloader_num_workers=1) == once
    assert asked == [12]  # the table is found
    asked.clear()
    monkeypatch.setattr(token_table, "staging_folder", _refuse)
    with caplog.at_level("INFO", logger="dcpcse"):
        assert losses(encoder, texts, tmp_path / "b", num_train_epochs=2) == once
    assert sum(asked) == 24
    assert "Read-only file system; sentences are therefore tokenised again in each epoch" in caplog.text
    losses(encoder, texts, tmp_path / "c", max_steps=1)
    assert not list((tmp_path / "c").rglob("*.ids"))


def _refuse(path):
    raise OSError(30, "Read-only file system")
