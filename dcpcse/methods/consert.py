"""ConSERT (Yan et al. 2021): two changed copies of a sentence are told from all others, alone or beside NLI labels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.augmentations import Augmentation, ElementDropout, FeatureCutoff, TokenCutoff, TokenShuffling
from dcpcse.data.labels import LABEL, Columns
from dcpcse.data.views import View, require_anchor
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import set_dropout
from dcpcse.losses import Classification, Term
from dcpcse.losses.nt_xent import NTXent
from dcpcse.losses.pair_classification import classified_pairs
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import mlm_terms, own_templates, sentence_encoder
from dcpcse.methods.registry import DEFAULTS, Adversary, Method, register
from dcpcse.methods.shared.prototypes import PROTOTYPES, PrototypeOptions, prototypes_of
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import Need, flag, option, require


@dataclass(frozen=True)
class Kind:
    """An augmentation: the option with its number, if it has one, the paper's value, and what it does to a view."""

    option: str | None = None
    default: float | None = None
    make: Callable[..., Augmentation] | None = None


KINDS: Mapping[str, Kind] = {
    "none": Kind(),
    "shuffle": Kind(make=TokenShuffling),
    "token_cutoff": Kind("token_cutoff_rate", 0.15, TokenCutoff),
    "feature_cutoff": Kind("feature_cutoff_rate", 0.2, FeatureCutoff),
    "dropout": Kind("embedding_dropout_rate", 0.2, ElementDropout),
    "adversarial": Kind("noise_norm", 1.0),
}
"""The paper's numbers; the length of the adversarial step is the default of its public code."""


def _copy(kind: str) -> Need:
    return Need(f"an augmentation {kind}", lambda args: kind in (args.augmentation_1, args.augmentation_2))


@dataclass
class ConSERTOptions:
    """Options of ConSERT alone."""

    _argument_group_name = "ConSERT"

    augmentation_1: str | None = option(
        None,
        "ConSERT: what is changed in the first copy of a sentence: none, shuffle (the order of its tokens), "
        "token_cutoff, feature_cutoff or dropout (of its embeddings), adversarial (with NLI data). Default: shuffle.",
        choices=list(KINDS),
    )
    augmentation_2: str | None = option(
        None, "ConSERT: the same of the second copy. Default: feature_cutoff.", choices=list(KINDS)
    )
    token_cutoff_rate: float | None = option(
        None, "ConSERT: share of the tokens that are cut off. Default: 0.15.", needs=_copy("token_cutoff")
    )
    feature_cutoff_rate: float | None = option(
        None, "ConSERT: share of the features that are cut off. Default: 0.2.", needs=_copy("feature_cutoff")
    )
    embedding_dropout_rate: float | None = option(
        None, "ConSERT: share of the elements that augmentation dropout takes. Default: 0.2.", needs=_copy("dropout")
    )
    noise_norm: float | None = option(
        None, "ConSERT: length of the adversarial step at each token. Default: 1.", needs=_copy("adversarial")
    )
    contrastive_weight: float | None = option(
        None, "ConSERT: weight of its contrastive loss. Default: 1; beside NLI classification 0.15."
    )
    no_dropout: bool | None = flag(
        "ConSERT: train without the dropout of encoder and prompts. Default: on; False for ordinary dropout."
    )
    max_square: bool | None = flag("ConSERT: classify by max(u, v)² as well (its public code).")

    def __post_init__(self) -> None:
        for name in ("token_cutoff_rate", "feature_cutoff_rate", "embedding_dropout_rate"):
            rate = getattr(self, name)
            require(rate is None or 0 < rate < 1, f"--{name}", rate, "in (0, 1)")
        for name in ("noise_norm", "contrastive_weight"):
            number = getattr(self, name)
            require(number is None or 0 < number < math.inf, f"--{name}", number, "above 0, and finite")

    def defaults(self, columns: Sequence[str]) -> dict[str, Any]:
        """What stands for numbers that are left out; UserError for two copies that would be the same."""
        kinds = (self.augmentation_1, self.augmentation_2)
        used = {KINDS[kind].option: KINDS[kind].default for kind in kinds if KINDS[kind].option}
        if kinds == ("adversarial", "adversarial") or (kinds == ("none", "none") and self._is_still):
            remedy = "; or leave dropout on" if kinds[0] == "none" else ""
            raise UserError(
                f"--augmentation_1 {kinds[0]} --augmentation_2 {kinds[0]}: both copies would be the same; choose "
                f"another one{remedy}"
            )
        still = {"prompt_dropout": 0.0} if self.no_dropout and self.tuning == "deep" else {}
        return {**used, **still, "contrastive_weight": 0.15 if "positive" in columns else 1.0}

    @property
    def _is_still(self) -> bool:
        """Whether nothing is dropped out in training, as far as the options tell."""
        return not self.prompt_dropout and bool(self.no_dropout or self.encoder_dropout == 0)


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    if args.second_template is not None:
        raise UserError("--second_template: the copies of --method consert stand in one template; leave it out")
    if args.hard_negative_weight != DEFAULTS["hard_negative_weight"] and not PROTOTYPES.holds(args):
        raise UserError("--hard_negative_weight: --method consert classifies hard negatives; leave it out")
    for name in ("encoder_dropout", "prompt_dropout"):
        if args.no_dropout and getattr(args, name):
            raise UserError(f"--no_dropout and --{name} {getattr(args, name)} contradict each other; leave one out")
    return {"no_dropout": not args.encoder_dropout}


CITATION = (
    "Yan, Li, Wang, Zhang, Wu and Xu, *ConSERT: A Contrastive Framework for Self-Supervised Sentence Representation "
    "Transfer*, ACL 2021."
)


@register(
    "consert",
    citation=CITATION,
    options=(ConSERTOptions, PrototypeOptions),
    defaults=_defaults,
    labels=(LABEL,),
    tuning="full",
    pooler_type="avg",
    augmentation_1="shuffle",
    augmentation_2="feature_cutoff",
)
def consert(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Sentences alone, or classified pairs beside them, whose sentences are contrasted each with its own kind.

    The mean over tokens is the representation (section 3.2). Classification sees sentences unchanged.
    """
    require_anchor(columns)
    if args.no_dropout:
        set_dropout(backbone.model, 0.0)
    kinds, columns = (args.augmentation_1, args.augmentation_2), Columns.of(columns)
    classification = _classification(backbone.source.hidden_size, args, columns)
    templates = own_templates(args)
    more = prototypes_of(args, "positive" if "negative" in columns else "anchor")
    model = sentence_encoder(backbone, args, [*templates, *more.templates])
    views = [view for column in columns.sentences for view in _copies(args, column, templates, classification)]
    pairs = [(column, f"{column}_copy") for column in columns.sentences]
    contrastive = Term(NTXent(pairs, args.temp, args.gather_gradient), args.contrastive_weight)
    terms = {"contrastive": contrastive, **classification, **more.terms, **mlm_terms(backbone, args)}
    steep = {pair[kinds.index("adversarial")]: _whole(kinds, pair[0]) for pair in pairs if "adversarial" in kinds}
    adversary = Adversary("classification", args.noise_norm, steep) if steep else None
    return Method(model, (*views, *more.views_after(len(templates))), terms, adversary)


def _copies(
    args: ModelArguments, column: str, templates: Sequence[Any], classification: Mapping[str, Term]
) -> Sequence[View]:
    """The views of a column: two copies, and the sentence as it is where that is classified and no copy is it."""
    kinds, template = (args.augmentation_1, args.augmentation_2), (0,) if templates else ()
    named = zip((column, f"{column}_copy"), kinds, strict=True)
    views = [View(name, column, template, _augmentation(kind, args)) for name, kind in named]
    whole = [View(_whole(kinds, column), column, template)] if classification and "none" not in kinds else []
    return [*views, *whole]


def _augmentation(kind: str, args: ModelArguments) -> Augmentation | None:
    entry = KINDS[kind]
    numbers = [getattr(args, entry.option)] if entry.option else []
    return None if entry.make is None else entry.make(*numbers)


def _whole(kinds: Sequence[str], column: str) -> str:
    """The view in which the sentence of a column is as it is."""
    names = (column, f"{column}_copy")
    return names[kinds.index("none")] if "none" in kinds else f"{column}_whole"


def _classification(hidden_size: int, args: ModelArguments, columns: Columns) -> Mapping[str, Term]:
    """The supervised term, nothing for sentences alone; UserError for data that it cannot be of."""
    kinds = (args.augmentation_1, args.augmentation_2)
    if "positive" not in columns:
        asked = {"--max_square": args.max_square, "an adversarial augmentation": "adversarial" in kinds}
        for what, there in asked.items():
            if there:
                raise UserError(
                    f"{what} needs a supervised loss, and sentences alone have none; leave it out, or give a training "
                    "file of pairs with a third column: label, or hard negatives"
                )
        return {}
    classes, pairs = classified_pairs("consert", columns, lambda column: _whole(kinds, column))
    return {"classification": Term(Classification(hidden_size, classes, pairs, max_square=bool(args.max_square)))}
