"""What the miniature trains and measures: its sizes, the learning rates that are tried, and the variants."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

SEEDS, STARRED_SEEDS = (0, 1, 2), (0, 1, 2, 3, 4)
"""The seeds of a trained variant, and of a starred one."""

SEARCH_SEED = 100
"""The seed of the trainings that choose a learning rate; no claim uses it."""

COARSE_RATES = (1e-4, 1e-3, 1e-2, 1e-1)
FIRST_RATES = (1e-3, 1e-2)
FINE_RATES = (3e-5, 3e-4, 3e-3, 3e-2, 3e-1)
TRIALS = 4
"""The learning rates: the first ones are tried, then the coarse one beyond the better of them, then one fine one
(`search.fine_rate`), which makes four trials. Those of the papers are 5e-7 to 5e-5 for encoders of 110 million
weights, and 1e-3 to 9e-2 for prompts. A small encoder that is trained for 150 steps needs higher rates."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that all variants share. The starred claims take some four hours on two cores, or minutes on a GPU.

    steps, search_steps, pretraining_steps: optimiser steps of a training, of a training that chooses a learning rate,
    and of the pretraining of a small encoder. eval_steps: steps between two evaluations on STS-B dev; the best
    checkpoint is kept. batch, length: sentences per batch, and tokens of a sentence.
    """

    steps: int = 150
    search_steps: int = 50
    pretraining_steps: int = 1600
    eval_steps: int = 25
    batch: int = 64
    length: int = 32

    def at_most(self, limit: int) -> "Sizes":
        """Return the sizes with at most this number of optimiser steps."""
        names = ("steps", "search_steps", "pretraining_steps", "eval_steps")
        return replace(self, **{name: min(limit, getattr(self, name)) for name in names})


BASE, UNSUPERVISED, TRIPLETS, PAIRS = "{base}", "{unsup}", "{sup}", "{pairs}"
"""Values of options that stand for a file of the user: the encoder, the sentences, the NLI triplets, and the same
triplets without their hard negatives."""


@dataclass(frozen=True)
class Variant:
    """One way to train (or not to train) an encoder.

    name: unique name. method: method that trains it; None for an encoder that is measured as it is. options: options
    of train.py besides those of `COMMON`. evaluation: options of evaluation.py that choose the representation; empty
    for the representation that the model folder records. search: name of the variant whose learning rate it uses; None
    if a learning rate is searched for the variant itself, and for encoders that are not trained. starred: whether a
    headline claim needs it. base: the encoder: `embedded` (or the user's), or a key of `SMALL_ENCODERS`.
    """

    name: str
    method: str | None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    evaluation: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    search: str | None = None
    starred: bool = False
    base: str = "embedded"

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The seeds of its units; an encoder that is not trained has one unit and no seed."""
        if self.method is None:
            return (None,)
        return STARRED_SEEDS if self.starred else SEEDS

    @property
    def family(self) -> str | None:
        """The name of the variant for which its learning rate is searched; None if it is not trained."""
        return None if self.method is None else self.search or self.name


MANUAL_TEMPLATE = 'This sentence : "{sentence}" means [MASK] .'
TEMPLATES = {
    "untouched-template-nothing": "{sentence} [MASK] .",
    "untouched-template-is": "{sentence} is [MASK] .",
    "untouched-template-mean": "{sentence} mean [MASK] .",
    "untouched-template-means": "{sentence} means [MASK] .",
    "untouched-template-this": "This {sentence} means [MASK] .",
    "untouched-template-of": "This sentence of {sentence} means [MASK] .",
    "untouched-template-of-quotes": 'This sentence of "{sentence}" means [MASK] .',
    "untouched-template": MANUAL_TEMPLATE,
}
"""The templates of PromptBERT, Table 4, from the worst to the best of BERT-base."""

POOLER_VARIANTS = {
    "untouched-cls": "cls_before_pooler",
    "untouched-mean": "avg",
    "untouched-top2": "avg_top2",
    "untouched-first-last": "avg_first_last",
    "untouched-layer1-last": "avg_layer1_last",
    "untouched-max": "max",
    "untouched-weighted-mean": "weighted_mean",
    "untouched-last-token": "last_token",
    "untouched-static": "static",
}
"""Untouched variant → its pooler. The mean over the root of the length has the same cosines as the mean."""

STARRED_UNTOUCHED = (
    *("untouched-cls", "untouched-mean", "untouched-first-last", "untouched-static", "untouched-template"),
)
REMOVALS = {
    "frequency": ["frequency"],
    "frequency-subword": ["frequency", "subword"],
    "frequency-subword-case": ["frequency", "subword", "case"],
    "all": ["frequency", "subword", "case", "punctuation"],
    "subword": ["subword"],
    "case": ["case"],
    "punctuation": ["punctuation"],
}
"""End of a variant's name → the kinds of tokens it leaves out: one after another (PromptBERT, Table 3), and alone."""

SMALL_ENCODERS = {"tied": True, "untied": False}
"""Encoders that are pretrained for PromptBERT's appendix A.2 → whether their input embeddings are those of the head.

Their vocabulary is cased, so that tokens with capitals exist.
"""


def _untouched() -> Iterable[Variant]:
    for name, pooler in POOLER_VARIANTS.items():
        yield Variant(name, None, evaluation={"pooler_type": pooler}, starred=name in STARRED_UNTOUCHED)
    for end, kinds in REMOVALS.items():
        evaluation = {"pooler_type": "static", "remove": kinds}
        yield Variant(f"untouched-static-without-{end}", None, evaluation=evaluation, starred=True)
    for name, template in TEMPLATES.items():
        evaluation = {"pooler_type": "mask", "template": template, "final_period": True}
        yield Variant(name, None, evaluation=evaluation, starred=name in STARRED_UNTOUCHED)
    template = {"template": MANUAL_TEMPLATE, "final_period": True}
    yield Variant("untouched-template-denoised", None, evaluation={"pooler_type": "mask", **template, "denoise": True})
    yield Variant("untouched-top-k", None, evaluation={"pooler_type": "top_k", **template})
    yield Variant("untouched-top-k-denoised", None, evaluation={"pooler_type": "top_k", **template, "denoise": True})


_DEEP = {"pre_seq_len": 16, "position_offset": 0}
"""Options of deep prompts. The text keeps the positions of pretraining, in which [CLS] was at the first one only."""


def _dcpcse() -> Iterable[Variant]:
    single = {"train_file": UNSUPERVISED, "mlp_only_train": True}
    deep = _DEEP
    yield Variant("dcpcse", "dcpcse", {**single, **deep}, starred=True)
    yield Variant("simcse", "simcse", single, starred=True)
    yield Variant("scpcse", "scpcse", {"train_file": UNSUPERVISED}, starred=True)
    for length in (1, 4, 10):
        yield Variant(f"dcpcse-length-{length}", "dcpcse", {**single, **deep, "pre_seq_len": length}, search="dcpcse")
    yield Variant("dcpcse-mlm", "dcpcse", {**single, **deep, "do_mlm": True}, search="dcpcse")
    supervised = {"train_file": TRIPLETS, **deep}
    yield Variant("dcpcse-supervised", "dcpcse", supervised)
    pairs = {**supervised, "train_file": PAIRS}
    yield Variant("dcpcse-supervised-without-negatives", "dcpcse", pairs, search="dcpcse-supervised")
    hinge = {**supervised, "do_eh_loss": True}
    yield Variant("dcpcse-supervised-hinge", "dcpcse", hinge, search="dcpcse-supervised")


def _d2cse() -> Iterable[Variant]:
    # The generator is the encoder itself with its LM head, since there is no smaller one with this vocabulary.
    shared = {**_DEEP, "generator_name": BASE}
    single = {"train_file": UNSUPERVISED, **shared, "cls_prompt": False}
    yield Variant("d2cse", "d2cse", single, starred=True)
    yield Variant("d2cse-unconditional", "d2cse", {**single, "crtd_condition": False}, search="d2cse")
    yield Variant("d2cse-frozen-discriminator", "d2cse", {**single, "discriminator": "frozen"}, search="d2cse")
    # The rate of prompts would destroy a trained encoder; this is one of the rates that are tried for encoders.
    trained = {"discriminator": "trained", "discriminator_learning_rate": 1e-4}
    yield Variant("d2cse-trained-discriminator", "d2cse", {**single, **trained}, search="d2cse")
    yield Variant("d2cse-cls-prompt", "d2cse", {**single, "cls_prompt": True}, search="d2cse")
    supervised = {"train_file": TRIPLETS, **shared}
    static = {**supervised, "cls_prompt": False}
    yield Variant("d2cse-supervised", "d2cse", static)
    anchor_only = {**static, "crtd_views": "anchor"}
    yield Variant("d2cse-supervised-anchor-only", "d2cse", anchor_only, search="d2cse-supervised")
    # The weight of detection ends at about a sixteenth after the 150 steps of `Sizes`.
    decayed = {**static, "lambda_decay_rate": 0.5, "lambda_decay_steps": 37}
    yield Variant("d2cse-supervised-decayed", "d2cse", decayed, search="d2cse-supervised")
    cls_prompt = {**supervised, "cls_prompt": True}
    yield Variant("d2cse-supervised-cls-prompt", "d2cse", cls_prompt, search="d2cse-supervised")


FIRST_TEMPLATE, SECOND_TEMPLATE = 'This sentence of "{sentence}" means [MASK] .', MANUAL_TEMPLATE
"""The two templates of PromptBERT (Table 14)."""


def _promptbert() -> Iterable[Variant]:
    base = {"train_file": UNSUPERVISED, "template": FIRST_TEMPLATE, "final_period": True}
    two = {**base, "second_template": SECOND_TEMPLATE}
    yield Variant("promptbert", "promptbert", {**two, "denoise": True})
    three = {**two, "denoise": True, "further_templates": [TEMPLATES["untouched-template-means"]]}
    yield Variant("promptbert-three-templates", "promptbert", three, search="promptbert")
    yield Variant("promptbert-without-denoising", "promptbert", {**two, "denoise": False}, search="promptbert")
    yield Variant("promptbert-one-template", "promptbert", {**base, "denoise": True}, search="promptbert")
    plain = {**base, "denoise": False}
    yield Variant("promptbert-one-template-without-denoising", "promptbert", plain, search="promptbert")


def _conpvp() -> Iterable[Variant]:
    single = {"train_file": UNSUPERVISED}
    yield Variant("conpvp", "conpvp", single, starred=True)
    # A headline claim is about this one, so it has a learning rate of its own.
    yield Variant("conpvp-without-prototypes", "conpvp", {**single, "prototypes": "none"}, starred=True)
    positive = {**single, "prototypes": "positive"}
    yield Variant("conpvp-without-negated", "conpvp", positive, search="conpvp")
    yield Variant("conpvp-without-debias", "conpvp", {**single, "denoise": False}, search="conpvp")


def _others() -> Iterable[Variant]:
    augmented = {"augmentation_1": "feature_cutoff", "augmentation_2": "shuffle", "temp": 0.1}
    yield Variant("consert", "consert", {"train_file": UNSUPERVISED, **augmented})
    repeated = {"mlp_only_train": True, "dup_rate": 0.32, "neg_size": 160}
    yield Variant("esimcse", "esimcse", {"train_file": UNSUPERVISED, **repeated})
    yield Variant("sbert", "sbert", {"train_file": TRIPLETS})
    # The published figure is that of the public code, which differs from D2CSE's formula.
    code = {"generation": "argmax", "generate_at": "all", "generator_train_mode": True, "crtd_reduction": "mean_all"}
    yield Variant("diffcse", "diffcse", {"train_file": UNSUPERVISED, "generator_name": BASE, **code})


def _later() -> Iterable[Variant]:
    """Return the methods of after 2022, with all weights and with prompts.

    Their learning rates are those of the methods that train the same weights on the same data.
    """
    prompts = {"tuning": "deep", **_DEEP}
    # The papers' teachers are trained sentence encoders; here it is the untouched mean, which is better than SimCSE.
    taught = {"train_file": UNSUPERVISED, "mlp_only_train": True, "teacher": [BASE], "teacher_pooler": "avg"}
    yield Variant("rankcse", "rankcse", taught, search="simcse")
    yield Variant("rankcse-deep", "rankcse", {**taught, **prompts}, search="dcpcse")
    for method in ("cosent", "angle"):
        yield Variant(method, method, {"train_file": TRIPLETS}, search="sbert")
        yield Variant(f"{method}-deep", method, {"train_file": TRIPLETS, **prompts}, search="dcpcse")
    shortened = {"train_file": UNSUPERVISED, "mlp_only_train": True, "matryoshka_dims": [256, 128, 64, 32]}
    yield Variant("simcse-matryoshka", "simcse", shortened, search="simcse")
    yield Variant("dcpcse-matryoshka", "dcpcse", {**shortened, **_DEEP}, search="dcpcse")


def _small_encoders() -> Iterable[Variant]:
    for base in SMALL_ENCODERS:
        yield Variant(f"{base}-static", None, evaluation={"pooler_type": "static"}, base=base)
        for end, kinds in REMOVALS.items():
            evaluation = {"pooler_type": "static", "remove": kinds}
            yield Variant(f"{base}-static-without-{end}", None, evaluation=evaluation, base=base)
    yield Variant("untied-lm-head", None, evaluation={"pooler_type": "static_lm_head"}, base="untied")


_GROUPS = (_untouched, _dcpcse, _d2cse, _promptbert, _conpvp, _others, _later, _small_encoders)
VARIANTS: Mapping[str, Variant] = MappingProxyType({one.name: one for group in _GROUPS for one in group()})
"""All variants by name. They run in this order, the starred ones first."""

_STEP_SECONDS = {
    **{"dcpcse": 3.0, "scpcse": 3.5, "simcse": 4.2, "d2cse": 7.0, "conpvp": 9.0, "conpvp-without-prototypes": 4.8},
    **{"promptbert": 7.0, "consert": 4.5, "esimcse": 5.6, "sbert": 4.2, "diffcse": 11.2},
    **{"rankcse": 5.6, "cosent": 6.2, "angle": 6.2},
}
"""Variant or method → seconds per step of `Sizes` on one core of an AMD EPYC: estimates, 2.8 times those of an encoder
of 4 layers of 256 units."""

_PRETRAINING_STEP_SECONDS = 1.3
_START_SECONDS, _DEV_SECONDS, _STATIC_SECONDS, _TEST_SECONDS, _TEMPLATE_SECONDS = 9, 15, 5, 150, 220
"""Seconds to start a process and load its data, and to measure STS-B dev, static embeddings, other poolers, and
templates, which lengthen the sentences."""


def training_seconds(variant: Variant, sizes: Sizes, steps: int) -> float:
    """Return about how long a training takes on one core, with its evaluations."""
    trained = _STEP_SECONDS.get(variant.name, _STEP_SECONDS[variant.method]) * steps
    return trained + _DEV_SECONDS * (steps // sizes.eval_steps)


def unit_seconds(variant: Variant, sizes: Sizes) -> float:
    """Return about how long a unit of a variant takes on one core: it is started, trained and measured."""
    pooler = variant.evaluation.get("pooler_type")
    has_template = pooler in ("mask", "top_k") or variant.method in ("scpcse", "promptbert", "conpvp")
    static = str(pooler).startswith("static")
    measured = _STATIC_SECONDS if static else _TEMPLATE_SECONDS if has_template else _TEST_SECONDS
    trained = 0.0 if variant.method is None else training_seconds(variant, sizes, sizes.steps)
    return _START_SECONDS + trained + measured


def trial_seconds(variant: Variant, sizes: Sizes) -> float:
    """Return about how long it takes on one core to try a learning rate."""
    return _START_SECONDS + training_seconds(variant, sizes, sizes.search_steps) + _DEV_SECONDS


def pretraining_seconds(sizes: Sizes) -> float:
    """Return about how long the pretraining of a small encoder takes on one core."""
    return _START_SECONDS + _PRETRAINING_STEP_SECONDS * sizes.pretraining_steps
