"""Options that follow the papers' public code, against what that code computed (public_code/)."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from dcpcse.data.collator import ViewCollator
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.methods import build_method, model_arguments
from dcpcse.methods.shared.prototypes import CODE
from dcpcse.training.step import TrainingStep

RECORDED = Path(__file__).parent / "public_code"
ANCHOR = "{sentence} [PROMPT] [PROMPT] [PROMPT] [PROMPT] [MASK] ."


@functools.cache
def recorded(name):
    with np.load(RECORDED / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """encoder(kind) → folder with the recorded encoder of that kind."""

    @functools.cache
    def write(kind):
        folder, file = tmp_path_factory.mktemp(kind), recorded("encoders")
        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**json.loads(str(file[f"{kind}/config"]))))
        start = f"{kind}/weights/"
        weights = {k.removeprefix(start): torch.from_numpy(v) for k, v in file.items() if k.startswith(start)}
        assert not model.load_state_dict(weights, strict=False).unexpected_keys
        model.tie_weights()
        model.save_pretrained(folder)
        for name in (k for k in file if k.startswith(f"{kind}/") and k.count("/") == 1 and not k.endswith("/config")):
            (folder / name.removeprefix(f"{kind}/")).write_text(str(file[name]), encoding="utf-8")
        return str(folder)

    return write


# Templates of prototypes


@pytest.fixture(params=["bert", "roberta"])
def tokenizer(request, encoder):
    tokenizer = load_backbone(encoder(request.param)).tokenizer
    tokenizer.kind = request.param
    return tokenizer


def test_prototype_templates_code_gives_the_token_ids_of_the_public_words(tokenizer):
    """Every recorded row is one of our templates around a sentence, and the sentence has the recorded tokens."""
    file = recorded("conpvp")
    case = f"{tokenizer.kind}-1-column-s-their-words"
    ids, mask, content = (file[f"{case}/given/{name}"] for name in ("input_ids", "attention_mask", "slots_content"))
    views = [[ANCHOR], CODE["positive"], CODE["negative"]]
    views = [[TokenTemplate(Template.parse(text), tokenizer) for text in texts] for texts in views]
    seen = set()
    for n, v in np.ndindex(*ids.shape[:2]):
        row = ids[n, v][mask[n, v] == 1].tolist()
        first = len(tokenizer("")["input_ids"]) // 2  # the anchor's template begins with the sentence
        sentence = tokenizer.decode(ids[n, 0][first : first + content[n, 0]])
        found = []
        for template in views[v]:
            ((words,), _) = template.contents([sentence], int(content[n, v]))
            if template.wrap(words).ids == row:
                found.append(str(template.template))
        assert len(found) == 1, (n, v, tokenizer.convert_ids_to_tokens(row))
        seen.add(found[0])
    assert len(seen) == 13


def test_one_token_follows_the_mask_in_every_template_of_the_public_code(tokenizer):
    """The public code finds [MASK] as the third token from the end."""
    for text in (*CODE["positive"], *CODE["negative"], ANCHOR):
        row = TokenTemplate(Template.parse(text), tokenizer).wrap([7, 8])
        assert row.masks == (len(row.ids) - 3,)


# Positions of denoising


RELEASE = "roberta-unsup-two-templates-denoised"
TRANSFORMERS = "roberta-unsup-two-templates-denoised-their-positions-2"


def promptbert_step(encoder, case, **options):
    """The recorded model of a PromptBERT case, in float64 and train mode, and the recorded batch."""
    file = recorded("promptbert")
    known = json.loads(str(file[f"{case}/meta"]))["our_options"]
    known.pop("lm_head")
    method = build_method(load_backbone(encoder("roberta")), model_arguments(**known, **options), ["anchor"])
    step = TrainingStep(method).double()
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(method.model.head.dense, name).copy_(torch.from_numpy(file[f"{case}/weights/mlp.dense.{name}"]))
    start = f"{case}/given/"
    batch = {k.removeprefix(start): torch.from_numpy(v).long() for k, v in file.items() if k.startswith(start)}
    return step.train(), batch


def dev_embeddings(model, case):
    """Denoised vectors of the recorded sentences, whose tokens have no blank before the first word."""
    file = recorded("promptbert")
    pairs = zip(file[f"{case}/texts/input_ids"], file[f"{case}/texts/attention_mask"], strict=True)
    rows = [model.template.wrap(ids[1 : mask.sum() - 1].tolist()) for ids, mask in pairs]
    ids, mask, slots = TokenizedTexts([r.ids for r in rows], 0, rows).batch(range(len(rows)), 1)
    with model.denoised(True), torch.no_grad():
        return model.eval()(ids, mask, slots).numpy()


@pytest.mark.parametrize(("case", "from_zero"), [(RELEASE, True), (TRANSFORMERS, False)])
def test_denoise_from_zero_is_the_release_and_its_absence_the_positions_of_transformers(case, from_zero, encoder):
    step, batch = promptbert_step(encoder, case, denoise_from_zero=from_zero)
    loss = step(**batch)["contrastive"].item()
    assert loss == pytest.approx(float(recorded("promptbert")[f"{case}/public/loss"]), rel=1e-9)
    public = recorded("promptbert")[f"{case}/public/embeddings_dev"]
    np.testing.assert_allclose(dev_embeddings(step.model, case), public, rtol=0, atol=1e-9 * abs(public).max())


# The blank before the sentence


@pytest.mark.parametrize("left_out", [True, False])
def test_no_blank_in_training_gives_the_token_ids_of_the_public_training(left_out, encoder):
    """The public code joins the recorded ids of the template's parts with those of the bare sentence."""
    file, case = recorded("promptbert"), RELEASE
    meta = json.loads(str(file[f"{case}/meta"]))
    options = {name: meta["our_options"][name] for name in ("method", "template", "second_template")}
    args = model_arguments(**options, no_blank_in_training=left_out)
    method = build_method(load_backbone(encoder("roberta")), args, ["anchor"])
    sentences = file[f"{case}/texts/sentences"].tolist()
    rows = [{"anchor": sentence} for sentence in sentences]
    batch = ViewCollator(method.model.tokenizer, method.views, 32, templates=method.model.templates)(rows)
    before, after = (meta["denoising_template_ids"][part] for part in ("bs", "es"))
    for n, (ids, mask) in enumerate(
        zip(file[f"{case}/texts/input_ids"], file[f"{case}/texts/attention_mask"], strict=True)
    ):
        bare = ids[1 : mask.sum() - 1][:32].tolist()
        ours = batch["input_ids"][n, 0][batch["attention_mask"][n, 0] == 1].tolist()
        assert (ours == [0, *before, *bare, *after, 2]) == left_out
    whole = method.model.tokenize(sentences, None, ()).ids
    with_template = file[f"{case}/texts/with_template/input_ids"]
    for sentence, ours, public in zip(sentences, whole, with_template, strict=True):
        if sentence.endswith("."):  # the recorded test texts have a full stop in any case
            assert ours == public[public != 1].tolist()


def test_the_blank_is_left_out_in_all_views_and_its_absence_is_said_to_change_nothing_for_bert(encoder, caplog):
    for kind, number in {"roberta": 0, "bert": 1}.items():
        caplog.clear()
        args = model_arguments(method="conpvp", no_blank_in_training=True, prototype_templates="code")
        method = build_method(load_backbone(encoder(kind)), args, ["anchor", "positive", "negative"])
        assert caplog.text.count("--no_blank_in_training has no effect: the tokenizer of bert ignores") == number
        assert "--no_blank_in_training" not in caplog.text or number
        rows = [{"anchor": "It rained.", "positive": "A cat slept.", "negative": "Nobody sang."}]
        collate = ViewCollator(method.model.tokenizer, method.views, 32, templates=method.model.templates)
        batch = collate(rows)
        for v, view in enumerate(method.views):
            template = method.model.templates[batch["slots_template"][0, v]]
            start, count = len(template.before), batch["slots_content"][0, v]
            bare = method.model.tokenizer(rows[0][view.column], add_special_tokens=False)["input_ids"]
            assert batch["input_ids"][0, v, start : start + count].tolist() == bare
