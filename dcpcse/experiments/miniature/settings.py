"""What the miniature trains and measures: the variants, the sizes that they share, and the learning rates tried."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

SEEDS, STARRED_SEEDS = (0, 1, 2), (0, 1, 2, 3, 4)
"""The seeds of a trained variant, and of a starred one."""

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
    "untouched-sqrt-mean": "mean_sqrt_len",
    "untouched-weighted-mean": "weighted_mean",
    "untouched-last-token": "last_token",
    "untouched-static": "static",
}
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
        yield Variant(name, None, evaluation={"pooler_type": pooler}, starred=True)
    for end, kinds in REMOVALS.items():
        evaluation = {"pooler_type": "static", "remove": kinds}
        yield Variant(f"untouched-static-without-{end}", None, evaluation=evaluation, starred=True)
    for name, template in TEMPLATES.items():
        evaluation = {"pooler_type": "mask", "template": template, "final_period": True}
        yield Variant(name, None, evaluation=evaluation, starred=True)
    template = {"template": MANUAL_TEMPLATE, "final_period": True}
    yield Variant("untouched-template-denoised", None, evaluation={"pooler_type": "mask", **template, "denoise": True})
    yield Variant("untouched-top-k", None, evaluation={"pooler_type": "top_k", **template})


def _dcpcse() -> Iterable[Variant]:
    single = {"train_file": UNSUPERVISED, "mlp_only_train": True}
    deep = {"pre_seq_len": 16}
    yield Variant("dcpcse", "dcpcse", {**single, **deep}, starred=True)
    yield Variant("simcse", "simcse", single, starred=True)
    yield Variant("scpcse", "scpcse", {"train_file": UNSUPERVISED}, starred=True)
    for length in (1, 4, 10):
        yield Variant(f"dcpcse-length-{length}", "dcpcse", {**single, "pre_seq_len": length}, search="dcpcse")
    yield Variant("dcpcse-mlm", "dcpcse", {**single, **deep, "do_mlm": True}, search="dcpcse")
    supervised = {"train_file": TRIPLETS, **deep}
    yield Variant("dcpcse-supervised", "dcpcse", supervised)
    pairs = {**supervised, "train_file": PAIRS}
    yield Variant("dcpcse-supervised-without-negatives", "dcpcse", pairs, search="dcpcse-supervised")
    hinge = {**supervised, "do_eh_loss": True}
    yield Variant("dcpcse-supervised-hinge", "dcpcse", hinge, search="dcpcse-supervised")


def _d2cse() -> Iterable[Variant]:
    # The generator is the encoder itself with its LM head, since there is no smaller one with this vocabulary.
    shared = {"pre_seq_len": 16, "generator_name": BASE}
    single = {"train_file": UNSUPERVISED, **shared, "cls_prompt": False}
    yield Variant("d2cse", "d2cse", single, starred=True)
    yield Variant("d2cse-unconditional", "d2cse", {**single, "crtd_condition": False}, search="d2cse")
    yield Variant("d2cse-frozen-discriminator", "d2cse", {**single, "discriminator": "frozen"}, search="d2cse")
    # The rate of prompts would destroy a trained encoder; this one is in the middle of those tried for all methods.
    trained = {"discriminator": "trained", "discriminator_learning_rate": 1e-4}
    yield Variant("d2cse-trained-discriminator", "d2cse", {**single, **trained}, search="d2cse")
    yield Variant("d2cse-cls-prompt", "d2cse", {**single, "cls_prompt": True}, search="d2cse")
    supervised = {"train_file": TRIPLETS, **shared}
    yield Variant("d2cse-supervised", "d2cse", {**supervised, "cls_prompt": False})
    cls_prompt = {**supervised, "cls_prompt": True}
    yield Variant("d2cse-supervised-cls-prompt", "d2cse", cls_prompt, search="d2cse-supervised")


FIRST_TEMPLATE, SECOND_TEMPLATE = 'This sentence of "{sentence}" means [MASK] .', MANUAL_TEMPLATE
"""The two templates of PromptBERT (Table 14)."""


def _promptbert() -> Iterable[Variant]:
    one = {"train_file": UNSUPERVISED, "template": FIRST_TEMPLATE, "final_period": True}
    two = {**one, "second_template": SECOND_TEMPLATE}
    yield Variant("promptbert", "promptbert", {**two, "denoise": True})
    yield Variant("promptbert-without-denoising", "promptbert", {**two, "denoise": False}, search="promptbert")
    yield Variant("promptbert-one-template", "promptbert", {**one, "denoise": True}, search="promptbert")
    plain = {**one, "denoise": False}
    yield Variant("promptbert-one-template-without-denoising", "promptbert", plain, search="promptbert")


def _conpvp() -> Iterable[Variant]:
    single = {"train_file": UNSUPERVISED}
    yield Variant("conpvp", "conpvp", single, starred=True)
    none = {**single, "prototypes": "none"}
    yield Variant("conpvp-without-prototypes", "conpvp", none, search="conpvp", starred=True)
    positive = {**single, "prototypes": "positive"}
    yield Variant("conpvp-without-negated", "conpvp", positive, search="conpvp")
    yield Variant("conpvp-without-debias", "conpvp", {**single, "denoise": False}, search="conpvp")


def _others() -> Iterable[Variant]:
    augmented = {"augmentation_1": "feature_cutoff", "augmentation_2": "shuffle", "temp": 0.1}
    yield Variant("consert", "consert", {"train_file": UNSUPERVISED, **augmented})
    repeated = {"mlp_only_train": True, "dup_rate": 0.32, "neg_size": 160}
    yield Variant("esimcse", "esimcse", {"train_file": UNSUPERVISED, **repeated})
    yield Variant("sbert", "sbert", {"train_file": TRIPLETS})


def _small_encoders() -> Iterable[Variant]:
    for base in SMALL_ENCODERS:
        yield Variant(f"{base}-static", None, evaluation={"pooler_type": "static"}, base=base)
        for end, kinds in REMOVALS.items():
            evaluation = {"pooler_type": "static", "remove": kinds}
            yield Variant(f"{base}-static-without-{end}", None, evaluation=evaluation, base=base)
    yield Variant("untied-lm-head", None, evaluation={"pooler_type": "static_lm_head"}, base="untied")


_GROUPS = (_untouched, _dcpcse, _d2cse, _promptbert, _conpvp, _others, _small_encoders)
VARIANTS: Mapping[str, Variant] = MappingProxyType({one.name: one for group in _GROUPS for one in group()})
"""All variants by name. They run in this order, the starred ones first."""
