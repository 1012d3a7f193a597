"""What the papers' public code computed (public_code/), and the same numbers of this project's methods.

A case holds a batch, the weights of the trained parts and what the public code made of them. `run` builds our method
for it as train.py does, puts the weights in, feeds the batch in float64 and returns our numbers by their public names.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerBase

from dcpcse.data.collator import slots_of
from dcpcse.encoders.backbones import load_backbone, load_tokenizer
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.template_denoising import template_tokens
from dcpcse.encoders.templates import MASK, SENTENCE
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.methods import build_method, model_arguments
from dcpcse.methods.shared.prototypes import TEMPLATE_SETS
from dcpcse.training.step import TrainingStep

FOLDER = Path(__file__).parent / "public_code"
FILES = ("simcse", "dcpcse", "promptbert", "conpvp", "diffcse", "consert", "esimcse", "sbert")
KINDS = ("bert", "roberta", "distilbert")
FLOOR = 1e-4
"""Gradients are compared in relation to their own norm, but at least to this share of the largest norm of all: some
are zero but for rounding, such as those of key biases."""

Numbers = dict[str, np.ndarray]


@functools.cache
def arrays(file: str) -> Mapping[str, np.ndarray]:
    with np.load(FOLDER / f"{file}.npz", allow_pickle=False) as opened:
        return {name: opened[name] for name in opened.files}


@dataclass(frozen=True)
class Case:
    """A case of a file; what it holds is read by its name there."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}-{self.name}"

    def __getitem__(self, name: str) -> np.ndarray:
        return arrays(self.file)[f"{self.name}/{name}"]

    def __contains__(self, name: str) -> bool:
        return f"{self.name}/{name}" in arrays(self.file)

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        return json.loads(str(self["meta"]))

    @property
    def encoder(self) -> str:
        return self.meta["encoder"]

    def group(self, start: str) -> Numbers:
        """What lies under a name, by the rest of the name."""
        whole = f"{self.name}/{start}/"
        return {name.removeprefix(whole): value for name, value in arrays(self.file).items() if name.startswith(whole)}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that training data of such a batch have."""
        words = set(self.name.split("-"))
        if {"labels", "joint"} & words:
            return ("anchor", "positive", "label")
        if "scores" in words:
            return ("anchor", "positive", "score")
        if {"sup", "triples", "3"} & words:
            return ("anchor", "positive", "negative")
        return ("anchor", "positive") if "pairs" in words else ("anchor",)

    @property
    def supervised(self) -> bool:
        return len(self.columns) > 1

    @property
    def public(self) -> Numbers:
        """What the public code computed; positions and logits, which are no results of ours, are left out."""
        return {n: v for n, v in self.group("public").items() if n not in ("position_ids", "logits")}


def cases(*files: str) -> list[Case]:
    return [
        Case(file, name) for file in files or FILES for name in dict.fromkeys(n.split("/")[0] for n in arrays(file))
    ]


# Our side


def write_encoders(folder: Path) -> dict[str, str]:
    """Kind → a Hugging Face folder with the recorded encoder of that kind and its tokenizer."""
    recorded = arrays("encoders")
    for kind in KINDS:
        place = folder / kind
        config = AutoConfig.for_model(**json.loads(str(recorded[f"{kind}/config"])))
        model, start = AutoModelForMaskedLM.from_config(config), f"{kind}/weights/"
        weights = {n.removeprefix(start): torch.from_numpy(v) for n, v in recorded.items() if n.startswith(start)}
        lacking, unknown = model.load_state_dict(weights, strict=False)
        assert not unknown and all(n.rsplit(".", 1)[0].endswith(("decoder", "vocab_projector")) for n in lacking)
        model.tie_weights()
        model.save_pretrained(place)
        for name in (n.removeprefix(f"{kind}/") for n in recorded if n.startswith(f"{kind}/")):
            if "/" not in name and name != "config":
                (place / name).write_text(str(recorded[f"{kind}/{name}"]), encoding="utf-8")
    return {kind: str(folder / kind) for kind in KINDS}


@dataclass(frozen=True)
class Bench:
    """Where models are built. folders: kind → encoder. desk: a folder for files of templates."""

    folders: Mapping[str, str]
    desk: Path

    def tokenizer(self, kind: str) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.folders[kind], LoadOptions())

    def build(self, case: Case, *, weights: bool = True, **changes: Any) -> TrainingStep:
        """Our method with the recorded weights, in float64 and train mode. changes: of the recorded options."""
        options = {**case.meta["our_options"], **changes}
        lm_head = options.pop("lm_head", None)
        if "generator_name" in options:
            options["generator_name"] = self.folders[options["generator_name"].removeprefix("tiny ")]
        if "prototype_templates" in options and "prototype_templates" not in changes:
            options["prototype_templates"] = self.write(str(case), self.sets_of(case))
        backbone = load_backbone(self.folders[case.encoder], lm_head=lm_head)
        method = build_method(backbone, model_arguments(**options), case.columns)
        step = TrainingStep(method).double()
        step.views = method.views  # for a collator
        if weights:
            load_weights(step, case)
        return step.train()

    def sets_of(self, case: Case) -> dict[str, list[str]]:
        """Sets of prototype templates that make the tokens of a ConPVP case."""
        sets = {kind: list(texts) for kind, texts in TEMPLATE_SETS["code"].items()}
        places = [(kind, place) for kind, texts in sets.items() for place in range(len(texts))]
        for index, text in templates_of(case, self.tokenizer(case.encoder)).items():
            if index:
                kind, place = places[index - 1]
                sets[kind][place] = text
        return sets

    def write(self, name: str, sets: Mapping[str, list[str]]) -> str:
        """Write a file for --prototype_templates; return its path."""
        path = self.desk / f"{name}.yaml"
        path.write_text(yaml.safe_dump(dict(sets)), encoding="utf-8")
        return str(path)


def templates_of(case: Case, tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Index → text of the templates that a ConPVP case draws, read off their tokens; 0 is the anchor's own."""
    found: dict[int, str] = {}
    masks, indices = case["given/prompt_mask"], case["given/slots_template"].flatten()
    rows = zip(case["given/input_ids"], case["given/attention_mask"], masks, strict=True)
    flat = [row for example in rows for row in zip(*example, strict=True)]
    for (ids, mask, kept), index in zip(flat, indices, strict=True):
        length = int(mask.sum())
        sentence = [i for i in range(1, length - 1) if not kept[i]]
        assert sentence == list(range(sentence[0], sentence[-1] + 1))
        tokens = tokenizer.convert_ids_to_tokens(ids[:length].tolist())
        before, after = tokens[1 : sentence[0]], tokens[sentence[-1] + 1 : -1]
        lead = " " if tokens[sentence[0]].startswith("Ġ") else ""
        before, after = (tokenizer.convert_tokens_to_string(part) for part in (before, after))
        between = " " if case.encoder == "bert" else ""  # WordPiece drops blanks
        found[int(index)] = f"{before}{lead}{SENTENCE}{between}{after}".replace(tokenizer.mask_token, MASK)
    return found


PREFIXES = {"bert": "cls.predictions", "roberta": "lm_head"}
OURS: tuple[tuple[str, str], ...] = (
    (r"(?:bert|roberta)\.(.+)|((?:embeddings|encoder)\..+)", r"model.encoder.backbone.{}"),
    (r"mlp\.net\.(.+)", "model.head.layers.{}"),
    (r"mlp\.LayerNorm\.(.+)", "model.head.norm.{}"),
    (r"mlp\.(.+)", "model.head.{}"),
    (r"prefix_encoder\.(trans\..+)", "model.encoder.prompt.table.{}"),
    (r"(p_mbv|endp)", "model.encoder.shallow.weight"),
    (r"discriminator\.(.+)", "losses.crtd.discriminator.backbone.{}"),
    (r"electra_head\.(.+)", "losses.crtd.head.{}"),
    (r"(?:classifier\.)?(weight|bias)", "losses.classification.head.{}"),
)
"""Public names of weights, and ours."""


def our_name(step: TrainingStep, public: str) -> str:
    if public == "prefix_encoder.embedding.weight":
        projected = step.model.encoder.prompt.projection is not None
        return f"model.encoder.prompt.table.{'embedding' if projected else 'weight'}"
    if public.startswith("lm_head."):
        kind = step.model.encoder.backbone.config.model_type
        return f"losses.mlm.lm_head.masked_lm.{PREFIXES[kind]}.{public.removeprefix('lm_head.')}"
    pattern, ours = next(pair for pair in OURS if re.fullmatch(pair[0], public))
    return ours.format(next(filter(None, re.fullmatch(pattern, public).groups())))


def parameter_of(step: TrainingStep, public: str) -> nn.Parameter:
    name = our_name(step, public)
    if name.endswith("masked_lm.cls.predictions.decoder.weight") or name.endswith("masked_lm.lm_head.decoder.weight"):
        return step.losses["mlm"].lm_head.masked_lm.get_output_embeddings().weight
    return step.get_parameter(name)


def trained(step: TrainingStep) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, weight) for name, weight in step.named_parameters() if weight.requires_grad)


@torch.no_grad()
def load_weights(step: TrainingStep, case: Case) -> None:
    """Put the recorded weights into the trained parts outside the encoder."""
    for name, value in case.group("weights").items():
        parameter_of(step, name).copy_(torch.from_numpy(value))


class Given(nn.Module):
    """In the place of what draws masks: what was drawn is given."""

    def __init__(self, ids: Tensor, chosen: Tensor | None) -> None:
        super().__init__()
        self.drawn = (ids, chosen)

    def forward(self, *args: Any) -> tuple[Tensor, Tensor | None]:
        return self.drawn


def batch_of(case: Case, start: str = "given") -> dict[str, Tensor]:
    """The batch as our collator would make it."""
    if case.file == "consert":
        start = "given/our_batch"
    names = ("input_ids", "attention_mask", "slots_", "altered_", "labels", "scores")
    found = {n: torch.from_numpy(v) for n, v in case.group(start).items() if n.startswith(names)}
    if case.file == "consert" and "label" in case.columns:
        found["labels"] = torch.from_numpy(case["given/labels"])
    return {n: v.long() if v.dtype == torch.int32 else v for n, v in found.items()}


def give_draws(step: TrainingStep, case: Case) -> None:
    if "given/mlm_input_ids" not in case:
        return
    ids = torch.from_numpy(case["given/mlm_input_ids"]).long().flatten(0, 1)
    if case.file == "diffcse":
        step.losses["crtd"].corruption.masking = Given(ids, None)
        return
    labels = torch.from_numpy(case["given/mlm_labels"]).long().flatten(0, 1)
    chosen = labels != -100
    assert torch.equal(labels[chosen], torch.from_numpy(case["given/input_ids"]).long().flatten(0, 1)[chosen])
    step.losses["mlm"].masking = Given(ids, chosen)


def total_of(step: TrainingStep, terms: Mapping[str, Tensor], at: int) -> Tensor:
    """The loss that is trained, after `at` finished steps."""
    return sum(step.terms[name].weight_at(at) * term for name, term in terms.items())


OUR_TERMS = {"hinge": "energy_hinge", "detection": "crtd"}
"""Public names of loss terms, where ours differ."""


def number(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy().copy()


def gradients_of(step: TrainingStep, case: Case, group: str) -> Numbers:
    """Our gradients by their public names; what we train and the public code does not must have none."""
    public = case.group(f"public/{group}")
    found = {name: parameter_of(step, name).grad for name in public}
    if public:
        known = {id(parameter_of(step, name)) for name in public}
        others = [(name, weight.grad) for name, weight in trained(step) if id(weight) not in known]
        assert not [name for name, gradient in others if gradient is not None and gradient.any()], "only ours"
    return {f"{group}/{name}": number(gradient) for name, gradient in found.items()}


def loss_and_gradients(step: TrainingStep, case: Case) -> Numbers:
    if case.file == "esimcse":
        return steps_of_sgd(step, case)
    give_draws(step, case)
    terms = step(**batch_of(case))
    total = total_of(step, terms, case.meta.get("global_step", 0))
    total.backward()
    found = {"loss": number(total)}
    for name in (n.removeprefix("loss.") for n in case.public if n.startswith("loss.")):
        # The public term of ConSERT is a sum over both directions, ours their mean.
        times = 2 if (case.file, name) == ("consert", "contrastive") else 1
        found[f"loss.{name}"] = number(times * terms[OUR_TERMS.get(name, name)])
    return found | gradients_of(step, case, "gradients")


def steps_of_sgd(step: TrainingStep, case: Case) -> Numbers:
    """Losses of five steps, gradients of the first and the last, the queue after each."""
    losses, found = [], {}
    for i in range(len(case["public/loss"])):
        step.zero_grad()
        total = total_of(step, step(**batch_of(case, f"given/step{i}")), i)
        total.backward()
        losses.append(number(total))
        found |= gradients_of(step, case, f"gradients.step{i}")
        with torch.no_grad():
            for _, weight in trained(step):
                weight -= case.meta["learning_rate"] * weight.grad
            for loss_fn in step.losses.values():
                loss_fn.after_step(step.model)
        if f"public/queue/step{i}" in case:
            (queue,) = step.losses["contrastive"].extra_negatives()
            found[f"queue/step{i}"] = number(queue)
    return {"loss": np.stack(losses), **found}


def tokens_of(step: TrainingStep, case: Case) -> TokenizedTexts:
    return step.model.tokenize(case["texts/sentences"].tolist(), EncodeOptions())


def embed(step: TrainingStep, texts: TokenizedTexts) -> np.ndarray:
    """Embeddings as `encode` computes them, in float64."""
    step.model.eval()
    ids, mask, slots = texts.batch(range(len(texts)), step.model.tokenizer.pad_token_id)
    with torch.no_grad():
        return number(step.model(ids, mask, slots))


def in_dev(step: TrainingStep, case: Case, room: int | None = None) -> TokenizedTexts:
    """The texts as the public PromptBERT tokenises them outside the test: template and sentence apart, no full stop.

    room: the largest number of a sentence's tokens, as in training.
    """
    template, rows = step.model.template, zip(case["texts/input_ids"], case["texts/attention_mask"], strict=True)
    rendered = [template.wrap(ids[1 : mask.sum() - 1].tolist()[:room]) for ids, mask in rows]
    return TokenizedTexts([row.ids for row in rendered], 0, rendered)


def run(step: TrainingStep, case: Case) -> Numbers:
    """Our numbers of a case, by their public names."""
    found = loss_and_gradients(step, case) | {"embeddings": embed(step, tokens_of(step, case))}
    if "public/embeddings_dev" in case:
        with step.model.denoised(step.model.denoising.training):
            found["embeddings_dev"] = embed(step, in_dev(step, case))
    return found


# Comparison


def differences(ours: Numbers, public: Numbers) -> dict[str, float]:
    """The norm of the difference of every tensor in relation to the norm of the public one (see FLOOR)."""
    assert ours.keys() == public.keys(), sorted(ours.keys() ^ public.keys())
    norms = {name: float(np.linalg.norm(value)) for name, value in public.items()}
    largest = max((norm for name, norm in norms.items() if name.startswith("gradients")), default=0.0)
    found = {}
    for name, value in public.items():
        assert ours[name].shape == value.shape, name
        norm = max(norms[name], FLOOR * largest) if name.startswith("gradients") else norms[name]
        found[name] = float(np.linalg.norm(ours[name] - value)) / norm
    return found


def public_ids(case: Case) -> list[list[int]]:
    """Token ids of the sentences, in the template where the method has one."""
    start = "texts/with_template" if "texts/with_template/input_ids" in case else "texts"
    ids, mask = case[f"{start}/input_ids"], case[f"{start}/attention_mask"]
    return [row[: part.sum()].tolist() for row, part in zip(ids, mask, strict=True)]


def attended(step: TrainingStep, batch: Mapping[str, Tensor]) -> Tensor:
    """Where our debiasing pass of ConPVP attends, (N, views, L)."""
    mask = batch["attention_mask"]
    return template_tokens(step.model.templates, slots_of(batch), mask.shape[-1]).view_as(mask)
