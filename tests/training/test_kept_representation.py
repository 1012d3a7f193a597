"""A training keeps the representation of a sentence encoder unless another one is chosen, and says which it has."""

import numpy as np
import pytest
import torch
from method_models import rows_of, with_encoder
from sentence_folders import write_sentence_folder
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BertTokenizer

import dcpcse
from dcpcse.cli.commands.train import train_command
from dcpcse.cli.parse import parse_training
from dcpcse.methods import METHODS, fill_defaults, model_arguments
from dcpcse.utils.errors import UserError

QUICK = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "max_steps": 1, "save_strategy": "no"}
QUICK |= {"per_device_train_batch_size": 6}
PROMPT = "query: "
UNCHANGED = {"learning_rate": 1e-30}
"""A learning rate that changes no weight, so that the vectors must be those of the encoder."""


@pytest.fixture
def sentence_folder(tiny, tmp_path):
    """sentence_folder(kind, **settings) → an encoder with the settings of sentence-transformers."""
    return lambda kind="bert", **settings: write_sentence_folder(tmp_path / "encoder", tiny(kind), **settings)


@pytest.fixture
def train(sentences, tmp_path):
    def run(encoder, data=None, **options):
        return dcpcse.train(encoder, data or sentences, **{**QUICK, "output_dir": tmp_path / "run", **options})

    return run


def reported(caplog) -> list[tuple[str, str]]:
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, line.partition("; ")[2]) for level, line in lines if "is a sentence encoder" in line]


@pytest.mark.parametrize(
    ("kind", "tuning", "settings"),
    [
        ("bert", "full", {"mode": "cls", "prompt": PROMPT, "max_seq_length": 9}),
        ("roberta", "lora", {"prompt": PROMPT, "normalize": False}),
        ("modernbert", "full", {"prompt": PROMPT}),
        ("cased", "full", {"do_lower_case": True}),
    ],
)
def test_unchanged_weights_give_the_vectors_of_sentence_transformers(
    kind, settings, tuning, sentence_folder, train, sentences, tmp_path
):
    """Of the encoder and of the trained folder, which sentence-transformers opens without this package."""
    encoder = sentence_folder("bert" if kind == "cased" else kind, **settings)
    if kind == "cased":  # `BertTokenizer` takes its rules from its settings, and not from tokenizer.json
        vocabulary = AutoTokenizer.from_pretrained(encoder).get_vocab()
        BertTokenizer(vocab=vocabulary, do_lower_case=False).save_pretrained(encoder)
    texts = [*sentences, f"  {sentences[0].upper()} and much more than fits into nine tokens"]
    original = SentenceTransformer(encoder, device="cpu")
    expected = original.encode(texts)
    train(encoder, method="simcse", tuning=tuning, **UNCHANGED)
    opened = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    trained = dcpcse.load(tmp_path / "run", device="cpu")
    for encode in (trained.encode, opened.encode):
        np.testing.assert_allclose(encode(texts), expected, atol=1e-5)
    for encode, lead in ((opened.encode_query, PROMPT), (opened.encode_document, "passage: ")):
        wanted = original.encode(texts, prompt=lead if "prompt" in settings else "")
        np.testing.assert_allclose(encode(texts), wanted, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_it_or_warns_of_what_differs(method, sentence_folder, tiny, sentences, tmp_path, caplog):
    encoder = sentence_folder(prompt=PROMPT)
    options = with_encoder({"method": method}, tiny("bert"))
    rows = [tuple(row.values()) for row in rows_of(sentences, method, 12)]
    with caplog.at_level("INFO", logger="dcpcse"):
        args = dcpcse.TrainingArguments(str(tmp_path / "run"), **QUICK)
        templated = fill_defaults(model_arguments(**options), ("anchor",)).template if method not in PAIRED else None
        model = dcpcse.Trainer(encoder, args=args, train_dataset=rows, **options).sentence_encoder
    ((level, words),) = reported(caplog)
    if templated:
        assert (level, model.text_prefix, model.normalize) == ("WARNING", "", False)
        assert "the pooler mask" in words and "no prompt instead of 'query: '" in words
    else:
        assert (model.pooling, model.normalize, model.text_prefix) == ("avg", True, PROMPT)
        kept = "the trained model keeps this representation, with the text 'query: ' before each sentence"
        assert (level, words) == ("INFO", kept)
        assert model.encoder.position_offset == 0 and not model.head_at_inference


PAIRED = ("sbert", "cosent", "angle")

OTHERS = (
    ({"mlp_only_train": True}, ["the pooler cls", "not scaled to unit length"]),
    ({"position_offset": 3}, ["texts that begin at position 3"]),
    ({"prompt": ""}, ["no prompt instead of 'query: '"]),
    ({"prompt": "Text: "}, ["the prompt 'Text: ' instead of 'query: '"]),
)


def test_what_is_chosen_is_used_and_a_warning_names_it(sentence_folder, sentences, tmp_path, caplog):
    encoder, args = sentence_folder(prompt=PROMPT), dcpcse.TrainingArguments(str(tmp_path / "run"), **QUICK)
    for options, expected in OTHERS:
        caplog.clear()
        model = dcpcse.Trainer(encoder, "dcpcse", args, sentences, pre_seq_len=2, **options).sentence_encoder
        ((level, words),) = reported(caplog)
        assert level == "WARNING" and all(part in words for part in expected), words
        assert model.text_prefix == options.get("prompt", PROMPT)


def test_settings_that_cannot_be_reproduced_are_a_warning(tiny, sentences, tmp_path, caplog):
    args = dcpcse.TrainingArguments(str(tmp_path / "run"), **QUICK)
    with pytest.raises(UserError, match="nowhere/encoder is not a folder"):
        dcpcse.Trainer("nowhere/encoder", "dcpcse", args, sentences)
    assert not caplog.records
    dcpcse.Trainer(write_sentence_folder(tmp_path / "a", tiny("bert"), mode="median"), "dcpcse", args, sentences)
    assert any("does not keep" in line and "median" in line for line in caplog.messages)
    caplog.clear()
    dense = write_sentence_folder(tmp_path / "b", tiny("bert"), dense=True)
    assert dcpcse.Trainer(dense, "dcpcse", args, sentences).sentence_encoder.head is None
    assert reported(caplog) == [("WARNING", "the trained model represents sentences differently, with no dense layer")]


def test_batches_contain_the_prompt_as_the_tokenizer_splits_it(sentence_folder, sentences, tmp_path):
    args = dcpcse.TrainingArguments(str(tmp_path / "run"), **QUICK)
    trainer = dcpcse.Trainer(sentence_folder("roberta", prompt=PROMPT), args=args, train_dataset=sentences)
    tokenizer = trainer.sentence_encoder.tokenizer
    expected = {tuple(tokenizer(PROMPT + text, truncation=True, max_length=32)["input_ids"]) for text in sentences}
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(sentences))])
    rows = zip(batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1).bool(), strict=True)
    assert {tuple(ids[mask].tolist()) for ids, mask in rows} == expected


ROLES = {"anchor": "query: ", "positive": "passage: "}


def test_prompts_of_columns_train_as_texts_that_begin_with_them(sentence_folder, train, sentences, tmp_path):
    """The folder records them, and sentence-transformers computes the same vectors after the export."""
    rows = [(sentences[i], sentences[i - 1], sentences[i - 2]) for i in range(12)]
    encoder, settings = sentence_folder(), {"method": "dcpcse", "pre_seq_len": 2, "learning_rate": 0.1}
    complete = [("query: " + a, "passage: " + b, "passage: " + c) for a, b, c in rows]
    expected = train(encoder, complete, **settings).model
    (tmp_path / "run").rename(tmp_path / "complete")
    found = train(encoder, rows, prompts=ROLES, **settings).model
    weights = found.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in expected.state_dict().items())
    options = tmp_path / "options.yaml"
    options.write_text(f"prompts: {ROLES}\n", encoding="utf-8")
    for file in (tmp_path / "run/run.yaml", options):
        assert parse_training([str(file)])[0][0].prompts == ["anchor=query: ", "positive=passage: "]
    dcpcse.export(tmp_path / "run", "sentence-transformers", tmp_path / "st")
    theirs = SentenceTransformer(str(tmp_path / "st"), device="cpu", trust_remote_code=True)
    trained = dcpcse.load(tmp_path / "run", device="cpu")
    encoders = {"": (None, theirs.encode), "query: ": ("query", theirs.encode_query)}
    for lead, (name, of_theirs) in {**encoders, "passage: ": ("document", theirs.encode_document)}.items():
        vectors = expected.encode([lead + text for text in sentences])
        np.testing.assert_allclose(of_theirs(sentences), vectors, atol=1e-5)
        np.testing.assert_allclose(trained.encode(sentences, prompt_name=name), vectors, atol=1e-6)


def test_prompts_of_the_encoder_are_kept_and_a_warning_says_that_they_are_not_trained(
    sentence_folder, train, tmp_path, caplog
):
    model = train(sentence_folder(prompt=PROMPT), pre_seq_len=2).model
    assert model.prompts == {"query": PROMPT, "passage": "passage: ", "document": "passage: "}
    assert "the encoder has the prompts query, passage, document, which the training does not put" in caplog.text
    for prompts, data, message in (
        ({"query": "query: "}, None, 'prompts="query": unknown; .*anchor'),
        (ROLES, None, "prompts has no effect without pairs of sentences"),
        (
            {"negative": "x"},
            [("a", "b"), ("c", "d")],
            'prompts="negative": the training uses no such column of sentences',
        ),
    ):
        with pytest.raises(UserError, match=message):
            train(str(tmp_path / "encoder"), data, output_dir=tmp_path / "other", prompts=prompts)


def test_the_recorded_options_repeat_the_run(sentence_folder, train, sentences, tmp_path):
    first = train(sentence_folder(prompt=PROMPT), pre_seq_len=2, learning_rate=0.1).model.encode(sentences)
    (tmp_path / "train.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    options = ["--train_file", str(tmp_path / "train.txt"), "--output_dir", str(tmp_path / "again")]
    train_command([str(tmp_path / "run/run.yaml"), *options, "--use_cpu", "--save_strategy", "no"])
    np.testing.assert_array_equal(dcpcse.load(tmp_path / "again", device="cpu").encode(sentences), first)


AUGMENTED = ({"method": "dcpcse", "positive": "crop"}, {"method": "esimcse"}, {"method": "consert"})


@pytest.mark.parametrize("options", AUGMENTED, ids=str)
def test_augmentations_leave_the_prompt_as_it_is(options, sentence_folder, sentences, tmp_path):
    args = dcpcse.TrainingArguments(str(tmp_path / "run"), **QUICK)
    encoder, data = sentence_folder("roberta", prompt=PROMPT), [f"{text} {text}" for text in sentences]
    trainer = dcpcse.Trainer(encoder, args=args, train_dataset=data, max_seq_length=16, **options)
    before = trainer.sentence_encoder.tokenizer("query:")["input_ids"][:-1]
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(data))])
    rows = batch["input_ids"].flatten(0, 1)
    assert (rows[:, : len(before)] == torch.tensor(before)).all()
    assert len({tuple(row.tolist()) for row in rows}) > len(data)  # the views of most sentences differ
    assert (batch["attention_mask"].sum(-1) <= 16).all() or options["method"] == "esimcse"  # which repeats words
    if "altered_zeroed" in batch:
        assert not batch["altered_zeroed"][..., : len(before), :].any() and batch["altered_zeroed"].any()


def test_exports_have_prompt_and_unit_length(sentence_folder, train, sentences, tmp_path):
    """Of deep prompts; tests/interop has the other forms."""
    model = train(sentence_folder(prompt=PROMPT), method="simcse", learning_rate=0.01, tuning="deep").model
    dcpcse.export(tmp_path / "run", "sentence-transformers", tmp_path / "exported")
    opened = SentenceTransformer(str(tmp_path / "exported"), device="cpu", trust_remote_code=True)
    assert opened.prompts[opened.default_prompt_name] == PROMPT
    for name, encode in {
        None: opened.encode,
        "query": opened.encode_query,
        "document": opened.encode_document,
    }.items():
        np.testing.assert_allclose(encode(sentences), model.encode(sentences, prompt_name=name), atol=1e-5)


def test_a_prompt_without_effect_or_that_fills_the_text_is_refused(sentence_folder, train):
    encoder = sentence_folder(prompt=PROMPT)
    with pytest.raises(UserError, match="leaves no room for a sentence after the prompt 'query: '"):
        train(encoder, max_seq_length=4)
    with pytest.raises(UserError, match="prompt has no effect without sentences outside"):
        train(encoder, method="promptbert", prompt=PROMPT)


def test_loading_takes_another_prompt_or_none(sentence_folder, sentences):
    encoder = sentence_folder(prompt=PROMPT)
    without = dcpcse.load(encoder, prompt="", device="cpu")
    with_prompt = dcpcse.load(encoder, device="cpu").encode(sentences)
    np.testing.assert_array_equal(without.encode([PROMPT + text for text in sentences]), with_prompt)
    assert not np.allclose(without.encode(sentences), with_prompt, atol=1e-3)
