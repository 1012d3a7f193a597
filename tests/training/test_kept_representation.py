"""A training keeps the representation of a sentence encoder unless another one is chosen, and says which it has."""

import numpy as np
import pytest
import torch
from method_models import rows_of, with_encoder
from sentence_folders import write_sentence_folder
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BertTokenizer

import dcpcse
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
        return dcpcse.train(encoder, data or sentences, output_dir=tmp_path / "run", **{**QUICK, **options})

    return run


def reported(caplog) -> list[tuple[str, str]]:
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, line.partition("; ")[2]) for level, line in lines if "is a sentence encoder" in line]


@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("bert", {}),
        ("bert", {"mode": "cls", "prompt": PROMPT, "max_seq_length": 9}),
        ("roberta", {"prompt": PROMPT, "normalize": False}),
        ("modernbert", {"prompt": PROMPT}),
        ("bert", {"prompt": PROMPT, "do_lower_case": True}),
    ],
)
def test_unchanged_weights_give_the_vectors_of_sentence_transformers(
    kind, settings, tuning, sentence_folder, train, sentences, tmp_path
):
    """Of the encoder and of the trained folder, which sentence-transformers opens without this package."""
    encoder = sentence_folder(kind, **settings)
    texts = [*sentences, f"  {sentences[0].upper()} and much more than fits into nine tokens"]
    expected = SentenceTransformer(encoder, device="cpu").encode(texts)
    train(encoder, method="simcse", tuning=tuning, **UNCHANGED)
    trained = dcpcse.load(tmp_path / "run", device="cpu")
    np.testing.assert_allclose(trained.encode(texts), expected, atol=1e-5)
    opened = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    for encode in (opened.encode, opened.encode_query, opened.encode_document):
        np.testing.assert_allclose(encode(texts), expected, atol=1e-5)


@pytest.mark.parametrize("lower_case", [True, False], ids=["uncased", "cased"])
def test_lower_case_is_kept_with_a_tokenizer_that_makes_its_own_rules(
    lower_case, sentence_folder, train, sentences, tmp_path
):
    """When it is loaded, `BertTokenizer` takes its rules from its settings, and not from tokenizer.json."""
    encoder = sentence_folder(do_lower_case=True)
    vocabulary = AutoTokenizer.from_pretrained(encoder).get_vocab()
    BertTokenizer(vocab=vocabulary, do_lower_case=lower_case).save_pretrained(encoder)
    texts = [text.upper() for text in sentences]
    expected = SentenceTransformer(encoder, device="cpu").encode(texts)
    train(encoder, method="simcse", tuning="full", **UNCHANGED)
    for trained in (dcpcse.load(tmp_path / "run", device="cpu"), SentenceTransformer(str(tmp_path / "run"))):
        np.testing.assert_allclose(trained.encode(texts), expected, atol=1e-5)


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
        assert (level, words) == ("INFO", "the trained model keeps this representation after the text 'query: '")
        assert model.encoder.position_offset == 0 and not model.head_at_inference


PAIRED = ("sbert", "cosent", "angle")

OTHERS = {
    "another pooler": (
        {"pooler_type": "cls"},
        ["the pooler cls", "not scaled to unit length"],
    ),
    "a head": ({"mlp_only_train": True}, ["the pooler cls", "not scaled to unit length"]),
    "positions": ({"position_offset": 3}, ["texts that begin at position 3"]),
    "no prompt": ({"prompt": ""}, ["no prompt instead of 'query: '"]),
    "another prompt": ({"prompt": "Text: "}, ["the prompt 'Text: ' instead of 'query: '"]),
    "no unit length": ({"normalize": False}, ["vectors that are not scaled to unit length"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_chosen_is_used_and_a_warning_names_it(name, sentence_folder, train, caplog):
    options, expected = OTHERS[name]
    model = train(sentence_folder(prompt=PROMPT), method="dcpcse", pre_seq_len=2, **options).model
    ((level, words),) = reported(caplog)
    assert level == "WARNING" and all(part in words for part in expected), words
    assert model.text_prefix == options.get("prompt", PROMPT)


def test_settings_that_cannot_be_reproduced_are_a_warning(sentence_folder, train, caplog):
    train(sentence_folder(mode="median"))
    assert any("is not kept" in line and "median" in line for line in caplog.messages)


def test_an_encoder_that_does_not_exist_is_an_error_before_anything_is_said_of_it(train, caplog):
    with pytest.raises(UserError, match="nowhere/encoder is not a folder"):
        train("nowhere/encoder")
    assert not caplog.records


def test_a_dense_layer_is_left_out_with_a_warning(sentence_folder, train, caplog):
    assert train(sentence_folder(dense=True)).model.head is None
    ((level, words),) = reported(caplog)
    assert (level, words) == ("WARNING", "the trained model has another representation: no dense layer")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_batches_contain_the_prompt_as_the_tokenizer_splits_it(kind, sentence_folder, sentences, tmp_path):
    args = dcpcse.TrainingArguments(str(tmp_path / "run"), **QUICK)
    trainer = dcpcse.Trainer(sentence_folder(kind, prompt=PROMPT), args=args, train_dataset=sentences)
    tokenizer = trainer.sentence_encoder.tokenizer
    expected = {tuple(tokenizer(PROMPT + text, truncation=True, max_length=32)["input_ids"]) for text in sentences}
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(sentences))])
    rows = zip(batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1).bool(), strict=True)
    assert {tuple(ids[mask].tolist()) for ids, mask in rows} == expected


def test_the_recorded_options_repeat_the_run(sentence_folder, train, sentences, tmp_path):
    encoder = sentence_folder(prompt=PROMPT)
    first = train(encoder, pre_seq_len=2, learning_rate=0.1).model.encode(sentences)
    from dcpcse.cli.main import main

    file = tmp_path / "again.yaml"
    recorded = (tmp_path / "run/run.yaml").read_text(encoding="utf-8")
    (tmp_path / "train.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    lines = [line for line in recorded.splitlines() if not line.startswith(("output_dir", "train_file"))]
    file.write_text("\n".join([*lines, f"train_file: {tmp_path / 'train.txt'}", f"output_dir: {tmp_path / 'again'}"]))
    options = ["--use_cpu", "--report_to", "none", "--save_strategy", "no"]
    assert main(["train", str(file), *options]) == 0
    np.testing.assert_array_equal(dcpcse.load(tmp_path / "again", device="cpu").encode(sentences), first)


AUGMENTED = {
    "crops": {"method": "dcpcse", "positive": "crop"},
    "repeated words": {"method": "esimcse"},
    "shuffled tokens and cut-off features": {"method": "consert"},
}


@pytest.mark.parametrize("name", AUGMENTED)
def test_augmentations_leave_the_prompt_as_it_is(name, sentence_folder, sentences, tmp_path):
    args = dcpcse.TrainingArguments(str(tmp_path / "run"), **QUICK)
    encoder, data = sentence_folder("roberta", prompt=PROMPT), [f"{text} {text}" for text in sentences]
    trainer = dcpcse.Trainer(encoder, args=args, train_dataset=data, max_seq_length=16, **AUGMENTED[name])
    before = trainer.sentence_encoder.tokenizer("query:")["input_ids"][:-1]
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(data))])
    rows = batch["input_ids"].flatten(0, 1)
    assert (rows[:, : len(before)] == torch.tensor(before)).all()
    assert len({tuple(row.tolist()) for row in rows}) > len(data)  # the views of most sentences differ
    assert (batch["attention_mask"].sum(-1) <= 16).all() or name == "repeated words"
    if "altered_zeroed" in batch:
        assert not batch["altered_zeroed"][..., : len(before), :].any() and batch["altered_zeroed"].any()


FORMS = {
    "sentence-transformers": {"tuning": "deep", "pre_seq_len": 2},
    "onnx": {"tuning": "deep", "pre_seq_len": 2},
    "huggingface": {"tuning": "full"},
    "peft": {"tuning": "lora"},
}


@pytest.mark.parametrize("form", FORMS)
def test_exports_have_prompt_and_unit_length(form, sentence_folder, train, sentences, tmp_path):
    """`export` compares the exported vectors with those of the model, and raises an error if they differ."""
    if form == "onnx":
        pytest.importorskip("onnx")
    encoder = sentence_folder(prompt=PROMPT)
    model = train(encoder, method="simcse", learning_rate=0.01, **FORMS[form]).model
    dcpcse.export(tmp_path / "run", form, tmp_path / "exported")
    if form == "sentence-transformers":
        opened = SentenceTransformer(str(tmp_path / "exported"), device="cpu", trust_remote_code=True)
        assert opened.prompts[opened.default_prompt_name] == PROMPT
        for encode in (opened.encode, opened.encode_query, opened.encode_document):
            np.testing.assert_allclose(encode(sentences), model.encode(sentences), atol=1e-5)


REFUSED = {
    "no room": ({"max_seq_length": 4}, "leaves no room for a sentence after the prompt 'query: '"),
    "a template": ({"method": "promptbert", "prompt": PROMPT}, "prompt has no effect without sentences outside"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_prompt_without_effect_or_that_fills_the_text_is_refused(name, sentence_folder, train):
    options, message = REFUSED[name]
    with pytest.raises(UserError, match=message):
        train(sentence_folder(prompt=PROMPT), **options)


def test_loading_takes_another_prompt_or_none(sentence_folder, sentences):
    encoder = sentence_folder(prompt=PROMPT)
    without = dcpcse.load(encoder, prompt="", device="cpu")
    with_prompt = dcpcse.load(encoder, device="cpu").encode(sentences)
    np.testing.assert_array_equal(without.encode([PROMPT + text for text in sentences]), with_prompt)
    assert not np.allclose(without.encode(sentences), with_prompt, atol=1e-3)
