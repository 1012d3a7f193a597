"""Checkpoints of other code, made here with the names that it gives its tensors, against forwards written by hand."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_folders import refused
from public_checkpoints import INNER, LENGTH, Checkpoint, published
from safetensors.torch import save_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import dcpcse
from dcpcse.cli.commands.import_ import import_command
from dcpcse.cli.runner import run
from dcpcse.encoders.backbones import load_backbone
from dcpcse.interop.convert import Choices, import_checkpoint
from dcpcse.methods import build_method, model_arguments

KINDS = ["bert", "roberta"]
PLAIN = Choices(pooler_type="cls", mlp_only_train=True)


@pytest.fixture
def checkpoint(tiny):
    def make(kind: str = "bert", *, trained: bool = False) -> Checkpoint:
        return Checkpoint(tiny(kind, masked_lm=False), trained=trained)

    return make


def imported(folder: Path, tmp_path: Path, base: str | None = None, **options):
    """What `dcpcse.load` makes of the imported folder."""
    import_checkpoint(folder, tmp_path / "imported", base, **options)
    return dcpcse.load(tmp_path / "imported", device="cpu")


def assert_same(found: np.ndarray, expected: torch.Tensor) -> None:
    assert np.abs(expected.numpy()).max() > 1e-2
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize(("kind", "converted", "pickled"), [("bert", False, True), ("roberta", True, False)])
def test_simcse_before_and_after_conversion(kind, converted, pickled, checkpoint, tmp_path, sentences):
    made = checkpoint(kind, trained=True)
    made.with_mlp()
    made.with_lm_head()
    expected = made.firsts(sentences)
    with_head = made.mlp(expected)
    if converted:
        made.converted()
    folder = made.write(tmp_path / "sup-simcse", pickled)
    model = imported(folder, tmp_path)
    assert_same(model.encode(sentences), with_head)
    assert (model.method, model.encoder.tuned, model.head_at_inference) == ("simcse", True, True)
    raw = import_checkpoint(folder, tmp_path / "raw", choices=PLAIN)
    assert_same(dcpcse.load(tmp_path / "raw", device="cpu").encode(sentences), expected)
    assert raw.layout == "simcse"
    head = {"lm_head.bias", "lm_head.dense.weight", "lm_head.decoder.weight"}
    assert {name for name in raw.left_out if "position_ids" not in name} == head
    assert set(raw.used) | set(raw.left_out) == set(made.tensors)
    import_checkpoint(folder, tmp_path / "avg", choices=Choices(pooler_type="avg"))
    averaging = dcpcse.load(tmp_path / "avg", device="cpu")
    rows = [made.hidden_states(row).mean(0) for row in model.tokenizer(sentences)["input_ids"]]
    assert_same(averaging.encode(sentences), torch.stack(rows))
    assert not averaging.head_at_inference


@pytest.mark.parametrize(
    ("kind", "projection", "head"),
    [("bert", False, "sup"), ("roberta", True, "sup"), ("bert", True, "unsup"), ("bert", False, None)],
)
def test_dcpcse_and_promcse(kind, projection, head, checkpoint, tmp_path, sentences):
    """ "unsup" in the name means that the head was used in training only."""
    made = checkpoint(kind)
    made.with_prefix(projection)
    if head:
        made.with_mlp()
    made.with_lm_head()
    folder = made.write(tmp_path / f"my-{head}-promcse", pickled=projection)
    model = imported(folder, tmp_path, made.base)
    expected, texts = made.firsts(sentences, made.table()), model.tokenizer(sentences)["input_ids"]
    assert_same(model.encode(sentences), made.mlp(expected) if head == "sup" else expected)
    assert (made.firsts(sentences) - expected).abs().max() > 1e-2
    assert model.head_at_inference == (head == "sup") and (model.head is None) == (head is None)
    prompt = model.encoder.prompt
    assert (prompt.shape.length, prompt.projection) == (LENGTH, INNER if projection else None)
    assert (model.encoder.position_offset, model.arguments) == (LENGTH, {"imported_from": "DCPCSE or PromCSE"})
    assert prompt.dropout.p == model.encoder.backbone.config.hidden_dropout_prob
    size = sum(path.stat().st_size for path in (tmp_path / "imported").glob("*.safetensors"))
    assert size < 60_000, "the frozen encoder is not written again"
    if head == "unsup":
        said = import_checkpoint(folder, tmp_path / "b", made.base, choices=Choices(mlp_only_train=False))
        assert_same(dcpcse.load(tmp_path / "b", device="cpu").encode(sentences), made.mlp(expected))
        assert said.assumed == {"pooler_type": "cls", "position_offset": LENGTH}
        options = {"pre_seq_len": LENGTH, "prefix_projection": True, "prefix_hidden_size": INNER}
        args = model_arguments(method="dcpcse", mlp_only_train=True, init_from=str(tmp_path / "imported"), **options)
        again = build_method(load_backbone(made.base), args, ["anchor"]).model.eval()
        assert np.array_equal(again.encode(sentences), model.encode(sentences))
    if head is None:
        import_checkpoint(folder, tmp_path / "zero", made.base, choices=Choices(position_offset=0))
        place = [torch.arange(len(row))[None] for row in texts]
        rows = [made.hidden_states(r, made.table(), position_ids=p)[0] for r, p in zip(texts, place, strict=True)]
        assert_same(dcpcse.load(tmp_path / "zero", device="cpu").encode(sentences), torch.stack(rows))


def test_a_checkpoint_in_half_precision_is_of_the_encoder_that_it_was_rounded_from(checkpoint, tmp_path, sentences):
    made = checkpoint()
    made.with_prefix(False)
    made.tensors = {n: t.half() if t.is_floating_point() else t for n, t in made.tensors.items()}
    model = imported(made.write(tmp_path / "half"), tmp_path, made.base)
    assert_same(model.encode(sentences), made.firsts(sentences, made.table().float()))


@pytest.mark.parametrize(("kind", "converted"), [("bert", False), ("roberta", True)])
def test_diffcse_with_its_batch_normalised_head(kind, converted, checkpoint, tmp_path, sentences):
    made = checkpoint(kind, trained=True)
    made.with_batch_normalised_mlp()
    made.with_lm_head()
    made.put("generator.distilbert.embeddings.word_embeddings.weight", 4, 4)
    made.put("aux_bert.embeddings.word_embeddings.weight", 4, 4)
    net = {name.removeprefix("mlp.net."): tensor for name, tensor in made.tensors.items() if "mlp.net." in name}
    raw = made.firsts(sentences)
    if converted:
        made.converted()
    made.write(tmp_path / "diffcse")
    result = import_checkpoint(tmp_path / "diffcse", tmp_path / "raw")
    assert_same(dcpcse.load(tmp_path / "raw", device="cpu").encode(sentences), raw)
    assert len(result.left_out) == 3 + 4 + 1
    model = imported(tmp_path / "diffcse", tmp_path, choices=Choices(mlp_only_train=False))
    normal = (raw @ net["0.weight"].T - net["1.running_mean"]) / (net["1.running_var"] + 1e-5).sqrt()
    inner = (normal * net["1.weight"] + net["1.bias"]).relu() @ net["3.weight"].T
    assert_same(model.encode(sentences), (inner - net["4.running_mean"]) / (net["4.running_var"] + 1e-5).sqrt())
    assert model.method == "diffcse"


TEMPLATES = {
    "bert": ('This sentence of "{}" means[MASK].', 'This sentence of "', '" means[MASK].'),
    "roberta": ("This sentence : ' {} ' means<mask>.", "This sentence : '", " ' means<mask>."),
}


def prompted_vectors(
    made: Checkpoint, sentences: list[str], transform=None, head=None, denoise=False, from_zero=False
) -> torch.Tensor:
    """[MASK] of every sentence in the published template, as the public evaluation writes it out; denoised or not."""
    kind, words = made.root, AutoTokenizer.from_pretrained(made.base)
    whole, before, after = TEMPLATES[kind]
    transform = transform or (lambda vector: vector)
    first = 0 if kind == "bert" or from_zero else made.config.pad_token_id + 1
    rows = []
    for text in sentences:
        text = text if text[-1] in ".?\"'" else text + "."
        ids = words(whole.format(text))["input_ids"]
        vector = transform(made.hidden_states(ids)[ids.index(words.mask_token_id)])
        if denoise:
            start = words(before, add_special_tokens=False)["input_ids"]
            end = words(after, add_special_tokens=False)["input_ids"]
            alone = [words.cls_token_id, *start, *end, words.sep_token_id]
            place = torch.arange(len(alone)) + first
            place[len(start) + 1 :] += len(ids) - len(alone)
            bias = made.hidden_states(alone, position_ids=place[None])[alone.index(words.mask_token_id)]
            vector = vector - transform(bias)
        rows.append(vector if head is None else head(vector))
    return torch.stack(rows)


@pytest.mark.usefixtures("on_command_line")
@pytest.mark.parametrize("supervision", ["unsup", "sup"])
@pytest.mark.parametrize("kind", KINDS)
def test_promptbert_with_its_published_template(kind, supervision, checkpoint, tmp_path, sentences):
    """Its code denoises from position 0 on RoBERTa, which a choice changes."""
    made = checkpoint(kind, trained=True)
    made.with_pooler()
    made.with_mlp()
    folder = made.write(tmp_path / f"{supervision}-promptbert")
    texts, supervised = [*sentences, "no full stop", 'He said "x"'], supervision == "sup"
    for choice in (None, True, False) if supervised and kind == "roberta" else (None,):
        from_zero = kind == "roberta" if choice is None else choice
        head = made.mlp if supervised else None
        expected = prompted_vectors(made, texts, head=head, denoise=supervised, from_zero=from_zero)
        model = imported(folder, tmp_path / str(choice), choices=Choices(denoise_from_zero=choice))
        assert_same(model.encode(texts), expected)
        assert (model.method, model.pooling) == ("promptbert", "mask")
    if supervised:
        message = "it needs --denoise_at_inference" if kind == "roberta" else "positions of bert begin at 0 anyway"
        choices = Choices(denoise_from_zero=True, denoise_at_inference=kind != "roberta")
        leaves_nothing(message, folder, tmp_path, choices=choices)


def test_promptbert_with_the_transform_of_its_lm_head_and_with_another_template(checkpoint, tmp_path, sentences):
    made = checkpoint("bert", trained=True)
    made.with_pooler()
    made.with_mlp()
    gain, bias = made.put("mlp.LayerNorm.weight", made.hidden), made.put("mlp.LayerNorm.bias", made.hidden)
    weights = dict(made.tensors)

    def transform(vector):
        dense = F.gelu(vector @ weights["mlp.dense.weight"].T + weights["mlp.dense.bias"])
        return F.layer_norm(dense, dense.shape[-1:], gain, bias, 1e-12)

    expected = prompted_vectors(made, sentences, transform, denoise=True)
    made.converted()  # the later of two names that become one wins, as in the public script
    folder = made.write(tmp_path / "sup-bert")
    assert_same(imported(folder, tmp_path).encode(sentences), expected)
    choices = Choices(template='The dog : "{sentence}" is [MASK]', final_period=False, denoise_at_inference=False)
    import_checkpoint(folder, tmp_path / "own", layout="promptbert", choices=choices)
    model, rows = dcpcse.load(tmp_path / "own", device="cpu"), []
    for text in sentences:
        ids = model.tokenizer(f'The dog : "{text}" is [MASK]')["input_ids"]
        rows.append(transform(made.hidden_states(ids)[ids.index(model.tokenizer.mask_token_id)]))
    assert_same(model.encode(sentences), torch.stack(rows))


def test_optiprompt_as_the_public_code_finds_its_places(checkpoint, tmp_path, sentences, caplog):
    made = checkpoint("bert")
    template = 'bridge storm , "{sentence}" key , [MASK] spoon'
    words = AutoTokenizer.from_pretrained(made.base)
    ids = words(template.replace("{sentence}", ""))["input_ids"][1:-1]
    ids.remove(words.mask_token_id)
    made.with_pooler()
    made.with_mlp()
    made.put("p_mbv", len(ids), made.hidden)
    made.write(tmp_path / "optiprompt")
    choices = Choices(template=template, final_period=False)
    with caplog.at_level("INFO"):
        model = imported(tmp_path / "optiprompt", tmp_path, made.base, choices=choices)
    texts = [text for text in sentences if not set(words(text)["input_ids"]) & set(ids)]
    assert len(texts) > 4
    rows = []
    for text in texts:
        row = words(template.replace("{sentence}", text))["input_ids"]
        embedded = made.encoder.get_input_embeddings()(torch.tensor([row]))
        for token, vector in zip(ids, made.tensors["p_mbv"], strict=True):
            embedded[0, len(row) - 1 - row[::-1].index(token)] = vector
        states = made.hidden_states(row, input_ids=None, inputs_embeds=embedded)
        rows.append(states[row.index(words.mask_token_id)])
    assert_same(model.encode(texts), torch.stack(rows))
    assert not model.encoder.tuned
    assert "is not used, as in the public code" in caplog.text


@pytest.mark.parametrize(("kind", "projection", "own_pooler"), [("bert", False, True), ("roberta", True, False)])
def test_p_tuning_v2(kind, projection, own_pooler, checkpoint, tmp_path, sentences):
    made = checkpoint(kind)
    made.with_prefix(projection)
    made.put("classifier.weight", 2, made.hidden)
    if own_pooler:
        made.with_pooler()
    made.write(tmp_path / "p-tuned")
    result = import_checkpoint(tmp_path / "p-tuned", tmp_path / "imported", made.base)
    expected = made.firsts(sentences, made.table())
    if own_pooler:
        expected = torch.tanh(expected @ made.pooler["pooler.dense.weight"].T + made.pooler["pooler.dense.bias"])
    assert_same(dcpcse.load(tmp_path / "imported", device="cpu").encode(sentences), expected)
    assert "classifier.weight" in result.left_out and result.layout == "p-tuning-v2"


@pytest.mark.parametrize(("kind", "case"), [("bert", "pooler"), ("roberta", "projected"), ("bert", "classifier")])
def test_peft_prefix_tuning(kind, case, tiny, tmp_path, sentences):
    peft = pytest.importorskip("peft")
    base, classifier = tiny(kind, masked_lm=False), case == "classifier"
    auto = AutoModelForSequenceClassification if classifier else AutoModel
    config = peft.PrefixTuningConfig(
        task_type="SEQ_CLS" if classifier else "FEATURE_EXTRACTION",
        num_virtual_tokens=LENGTH,
        modules_to_save=["pooler"] if case == "pooler" else None,
        **({"prefix_projection": True, "encoder_hidden_size": INNER} if case == "projected" else {}),
    )
    theirs = peft.get_peft_model(auto.from_pretrained(base, dtype=torch.float32), config).eval()
    torch.manual_seed(4)
    for parameter in theirs.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.5)
    theirs.save_pretrained(tmp_path / "adapter")
    model = imported(tmp_path / "adapter", tmp_path)
    batch = AutoTokenizer.from_pretrained(base)(sentences, padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    if classifier:  # its forward shows no hidden states
        batch["past_key_values"] = theirs.get_prompt(batch_size=len(sentences))
        batch["attention_mask"] = F.pad(batch["attention_mask"], (LENGTH, 0), value=1)
        theirs = theirs.get_base_model().base_model
    with torch.no_grad():
        output = theirs(**batch)
    assert_same(model.encode(sentences), output.pooler_output if case == "pooler" else output.last_hidden_state[:, 0])


def test_code_that_a_configuration_names_is_not_run(checkpoint, tmp_path, sentences):
    made = checkpoint(trained=True)
    folder = made.write(tmp_path / "simcse")
    (folder / "attack.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'attacked')!r})\n", encoding="utf-8")
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        content["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "attack.Kind")
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    assert_same(imported(folder, tmp_path).encode(sentences), made.firsts(sentences))
    assert not (tmp_path / "attacked").exists()


def drop(name: str):
    return lambda made: made.tensors.pop(name)


def put(name: str, *shape: int):
    return lambda made: made.put(name, *shape)


BIAS = "encoder.layer.0.output.dense.bias"
TRAINED = [
    (lambda made: made.tensors["mlp.dense.bias"].fill_(float("nan")), "NaN or infinite values in 'mlp.dense.bias'"),
    (drop(f"bert.{BIAS}"), "the encoder lacks"),
    (drop("mlp.dense.bias"), "match no supported head"),
    (put(f"bert.{BIAS}", 5), "with shape (32,) but found (5,)"),
    (put("mlp.dense.bias", 5), "the head: expected 'dense.bias' with shape"),
    (put("cls.seq_relationship.weight", 2, 2), "'cls.seq_relationship.weight' is not a tensor of a SimCSE"),
    (put("bert.encoder.layer.3.output.dense.bias", 32), "which this model does not have"),
    (put(f"roberta.{BIAS}", 32), "are the same part"),
    (put("pooler.dense.bias", 32), "'mlp.dense.bias' and 'pooler.dense.bias' are the same part"),
]
PROMPTED = [
    (lambda made: made.tensors[f"bert.{BIAS}"].add_(0.25), f"is not {{base}}: '{BIAS}' differs by up to 0.25; give"),
    (drop(f"bert.{BIAS}"), "the encoder inside lacks"),
    (put("prefix_encoder.embedding.weight", 3, 128), "each prompt has 128 values"),
    (put("prefix_encoder.embedding.weight", 192), "with two dimensions"),
    (put("prefix_encoder.trans.0.weight", 6, 32), "the prompt encoder lacks"),
    (put("prefix_encoder.weight", 3, 32), "'prefix_encoder.weight' is not a tensor of"),
]


@pytest.mark.parametrize("trained", [True, False])
def test_what_is_wrong_with_the_tensors_of_a_checkpoint_is_one_line(trained, checkpoint, tmp_path):
    for number, (change, message) in enumerate(TRAINED if trained else PROMPTED):
        made = checkpoint(trained=trained)
        made.with_mlp() if trained else made.with_prefix(False)
        change(made)
        folder, base = made.write(tmp_path / str(number)), None if trained else made.base
        leaves_nothing(message.format(base=made.base), folder, tmp_path, base)


def leaves_nothing(message: str, folder: Path, tmp_path: Path, base: str | None = None, **options) -> None:
    """Importing is a user error of one line with this in it, and leaves nothing behind."""
    before = sorted(tmp_path.iterdir())
    refused(re.escape(message), import_checkpoint, folder, tmp_path / "out", base, **options)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("on_command_line")
def test_choices_without_an_effect_are_refused(tiny, tmp_path):
    made = published("simcse", tiny("bert", masked_lm=False))
    folder = made.write(tmp_path / "simcse")
    for choices, message in (
        (Choices(template="{sentence} [MASK]"), "SimCSE has no template; for a PromptBERT checkpoint, give --layout"),
        (Choices(denoise_from_zero=True), "has no template"),
        (Choices(position_offset=3), "it has no deep prompts"),
        (Choices(pooler_type="avg", mlp_only_train=False), "requires --pooler_type cls or mask, not avg"),
        (Choices(pooler_type="mask"), "needs a template"),
    ):
        leaves_nothing(message, folder, tmp_path, choices=choices)
    leaves_nothing("with its own encoder; leave --base out", folder, tmp_path, made.base)
    leaves_nothing("does not have the format peft", folder, tmp_path, layout="peft")
    (folder / "modules.json").write_text("[]", encoding="utf-8")
    leaves_nothing("is a sentence-transformers folder", folder, tmp_path)
    assert import_checkpoint(folder, tmp_path / "out", layout="simcse").layout == "simcse"


@pytest.mark.usefixtures("on_command_line")
def test_a_frozen_encoder_must_be_given_and_the_right_one(checkpoint, tiny, tmp_path):
    made = checkpoint()
    made.with_prefix(False)
    folder = made.write(tmp_path / "dcpcse")
    for message, base in (
        ("give that encoder with --base; config.json names 'bert-base-uncased'", None),
        ("differs by up to", tiny("bert", masked_lm=False, seed=9)),
        ("with model_type bert", tiny("roberta", masked_lm=False)),
        ("with num_attention_heads 4", tiny("bert", num_attention_heads=2)),
        ("the folder does not exist", str(tmp_path / "nowhere")),
    ):
        leaves_nothing(message, folder, tmp_path, base)


def test_folders_without_a_checkpoint_are_refused(tiny, tmp_path):
    made = published("simcse", tiny("bert", masked_lm=False))
    folder = made.write(tmp_path / "simcse")
    weights = folder / "pytorch_model.bin"
    leaves_nothing("nowhere does not exist", tmp_path / "nowhere", tmp_path)
    for content, message in (
        (weights.read_bytes()[:1000], "pytorch_model.bin is damaged"),
        ([torch.ones(2)], "contains a list; expected a state dict"),
        ({"epoch": 3, "state_dict": made.tensors}, "contains 'epoch', a int"),
        ({"lstm.weight": torch.ones(2)}, "has an unknown format: it contains lstm.weight"),
    ):
        weights.write_bytes(content) if isinstance(content, bytes) else torch.save(content, weights)
        leaves_nothing(message, folder, tmp_path)
    weights.rename(folder / "model.ckpt")
    leaves_nothing("other formats are not read; it contains model.ckpt", folder, tmp_path)
    (folder / "model.safetensors").write_bytes(b"short")
    leaves_nothing("model.safetensors is damaged", folder, tmp_path)


def test_a_trained_encoder_needs_its_configuration_and_a_tokenizer(checkpoint, tmp_path, sentences):
    made = checkpoint(trained=True)
    folder = made.write(tmp_path / "simcse")
    (folder / "tokenizer.json").unlink()
    leaves_nothing("has no tokenizer; copy the tokenizer of its encoder there, or give it", folder, tmp_path)
    model = imported(folder, tmp_path, tokenizer=made.base)
    assert_same(model.encode(sentences), made.firsts(sentences))
    assert model.head is None
    config = json.loads((folder / "config.json").read_text())
    for content, message in (
        (config | {"model_type": "gpt2"}, "model_type 'gpt2'"),
        (config | {"model_type": "roberta"}, "the tensors are of a bert encoder"),
    ):
        (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
        leaves_nothing(message, folder, tmp_path, tokenizer=made.base)
    (folder / "config.json").unlink()
    leaves_nothing("has no config.json", folder, tmp_path, tokenizer=made.base)


@pytest.mark.usefixtures("on_command_line")
def test_other_adapters_of_peft_are_refused(tmp_path, tiny):
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file({"prompt_embeddings": torch.ones(3, 192)}, folder / "adapter_model.safetensors")
    config = {"peft_type": "PREFIX_TUNING", "num_transformer_submodules": 1, "base_model_name_or_path": tiny("bert")}
    for change, message in (
        ({"peft_type": "PROMPT_TUNING"}, "has peft_type 'PROMPT_TUNING'; only 'PREFIX_TUNING'"),
        ({"num_transformer_submodules": 2}, "has num_transformer_submodules 2"),
        ({"num_attention_heads": 8}, "with num_attention_heads 8"),
        ({"base_model_name_or_path": None}, "give that encoder with --base"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps(config | change), encoding="utf-8")
        leaves_nothing(message, folder, tmp_path)


@pytest.mark.usefixtures("on_command_line")
def test_nothing_is_overwritten_unasked(tiny, tmp_path, sentences):
    made = published("simcse", tiny("bert", masked_lm=False))
    folder, out = made.write(tmp_path / "sup-simcse"), tmp_path / "out"
    import_checkpoint(folder, out)
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    refused("is not empty; give another folder, or --overwrite", import_checkpoint, folder, out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept
    (out / "run.yaml").write_text("method: simcse\n", encoding="utf-8")
    import_checkpoint(folder, out, choices=PLAIN, overwrite=True)
    assert_same(dcpcse.load(out, device="cpu").encode(sentences), made.firsts(sentences))
    assert not (out / "run.yaml").exists()
    refused("is the folder of the checkpoint", import_checkpoint, folder, folder, overwrite=True)
    refused("contains no model that", import_checkpoint, folder, tmp_path, overwrite=True)
    refused("is already a model folder", import_checkpoint, out, tmp_path / "again")


def test_the_command_prints_assumed_settings_and_tensors_left_out(checkpoint, tmp_path, caplog, sentences):
    made = checkpoint("roberta")
    made.with_prefix(False)
    made.with_mlp()
    made.with_lm_head()
    folder, out = made.write(tmp_path / "unsup-promcse"), tmp_path / "out"
    words = [str(folder), "--output", str(out), "--base", made.base, "--mlp_only_train", "False"]
    with caplog.at_level("INFO"):
        assert run(import_command, words) == 0
    for piece in (
        "tensors left out (masked-LM head, used in training only): ['lm_head.bias', 'lm_head.decoder.weight', ",
        "--pooler_type cls: not in the checkpoint; taken from preset dcpcse/unsup-roberta-base; ",
    ):
        assert piece in caplog.text
    expected = made.mlp(made.firsts(sentences, made.table()))
    assert_same(dcpcse.load(out, device="cpu").encode(sentences), expected)
