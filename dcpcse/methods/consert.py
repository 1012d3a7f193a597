"""ConSERT (Yan et al. 2021), which contrasts two augmented copies of each sentence and can classify NLI pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.columns import LABEL, Columns
from dcpcse.data.views import (
    Augmentation,
    ElementDropout,
    FeatureCutoff,
    TokenCutoff,
    TokenShuffling,
    View,
    require_anchor,
)
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import set_dropout
from dcpcse.losses import Classification, Term
from dcpcse.losses.nt_xent import NTXent
from dcpcse.losses.pair_classification import classified_pairs
from dcpcse.methods.arguments import DEFAULTS, ModelArguments
from dcpcse.methods.building import mlm_terms, own_templates, sentence_encoder
from dcpcse.methods.registry import Adversary, Method, register
from dcpcse.methods.shared.prototypes import PROTOTYPES, PrototypeOptions, prototypes_of
from dcpcse.methods.tunings import DROPOUT_OPTIONS, TUNINGS
from dcpcse.utils.errors import UserError, no_effect, spell
from dcpcse.utils.option_fields import RATE, Need, Options, flag, option


@dataclass(frozen=True)
class _Kind:
    """A kind of augmentation.

    Args:
        option: Name of the option for the strength.
        default: Default strength.
        make: The function that creates the augmentation.
    """

    option: str | None = None
    default: float | None = None
    make: Callable[[Any], Augmentation | None] = lambda args: None


KINDS: Mapping[str, _Kind] = {
    "none": _Kind(),
    "shuffle": _Kind(make=lambda args: TokenShuffling()),
    "token_cutoff": _Kind("token_cutoff_rate", 0.15, lambda args: TokenCutoff(args.token_cutoff_rate)),
    "feature_cutoff": _Kind("feature_cutoff_rate", 0.2, lambda args: FeatureCutoff(args.feature_cutoff_rate)),
    "dropout": _Kind("embedding_dropout_rate", 0.2, lambda args: ElementDropout(args.embedding_dropout_rate)),
    "adversarial": _Kind("noise_norm", 1.0),
}
"""The values of --augmentation_1 and --augmentation_2. The default strengths come from the paper. Only the default of
noise_norm comes from the public code."""


def _used(kind: str) -> Need:
    return Need(
        lambda: f"{spell('augmentation_1')} or _2 {kind}",
        lambda args: kind in (args.augmentation_1, args.augmentation_2),
    )


@dataclass
class ConSERTOptions(Options):
    """Options of ConSERT, which contrasts two augmented copies of each sentence."""

    _argument_group_name = "ConSERT"

    augmentation_1: str | None = option(
        None,
        "ConSERT: augmentation of the first copy of a sentence: none, shuffle (of the tokens), token_cutoff, "
        "feature_cutoff or dropout (of the token embeddings), or adversarial (with NLI data). Default: shuffle.",
        choices=list(KINDS),
    )
    augmentation_2: str | None = option(
        None, "ConSERT: augmentation of the second copy. Default: feature_cutoff.", choices=list(KINDS)
    )
    token_cutoff_rate: float | None = option(
        None, "ConSERT: share of the tokens that are set to zero. Default: 0.15.", needs=_used("token_cutoff"), **RATE
    )
    feature_cutoff_rate: float | None = option(
        None,
        "ConSERT: share of the features that are set to zero. Default: 0.2.",
        needs=_used("feature_cutoff"),
        **RATE,
    )
    embedding_dropout_rate: float | None = option(
        None, "ConSERT: rate of the augmentation dropout. Default: 0.2.", needs=_used("dropout"), **RATE
    )
    noise_norm: float | None = option(
        None, "ConSERT: length of the adversarial step at each token. Default: 1.", needs=_used("adversarial"), above=0
    )
    contrastive_weight: float | None = option(
        None, "ConSERT: weight of the contrastive loss. Default: 1; with NLI classification 0.15.", above=0
    )
    no_dropout: bool | None = flag(
        "ConSERT: train without dropout of encoder, prompts and LoRA adapter. Default: True, unless the rate of one "
        "of these is set."
    )
    max_square: bool | None = flag("ConSERT: max(u, v)² as a further feature for classification (its public code).")

    def defaults(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return values for options that were left out.

        Raises UserError if both copies of a sentence would be identical.
        """
        kinds = (self.augmentation_1, self.augmentation_2)
        rates = {KINDS[kind].option: KINDS[kind].default for kind in kinds if KINDS[kind].option}
        dropout = TUNINGS[self.tuning].dropout
        dropout_off = not (dropout and getattr(self, dropout)) and (self.no_dropout or self.encoder_dropout == 0)
        if kinds == ("adversarial", "adversarial") or (kinds == ("none", "none") and dropout_off):
            remedy = ", or train with dropout" if kinds[0] == "none" else ""
            raise UserError(
                f"{spell('augmentation_1', kinds[0])} {spell('augmentation_2', kinds[0])}: both copies of a "
                f"sentence would be identical; choose a different augmentation for one of them{remedy}"
            )
        weight = {"contrastive_weight": 0.15 if "positive" in columns else 1.0}
        return {**rates, **weight, **({dropout: 0.0} if dropout and self.no_dropout else {})}


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    if args.second_template is not None:
        raise UserError(
            f"{spell('second_template')}: {spell('method', 'consert')} puts both copies of a sentence into one "
            "template; leave it out"
        )
    for name in ("hard_negative_weight", "guide"):
        if getattr(args, name) != DEFAULTS[name] and not PROTOTYPES.holds(args):
            raise no_effect(name, f"with {spell('method', 'consert')}")
    options = [f"{spell(name)} {rate}" for name in DROPOUT_OPTIONS if (rate := getattr(args, name))]
    if args.no_dropout and options:
        raise UserError(f"{spell('no_dropout', True)} and {options[0]} contradict each other; leave one out")
    return {"no_dropout": not options}


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
    """Build ConSERT, which contrasts two augmented copies of each sentence, separately for each column of sentences.

    For labelled pairs and triplets, a classification of the unchanged sentences is added. The representation is the
    mean of the token vectors (section 3.2 of the paper).
    """
    require_anchor(columns)
    if args.no_dropout:
        set_dropout(backbone.model, 0.0)
    kinds, columns = (args.augmentation_1, args.augmentation_2), Columns.of(columns)
    classification = _classification(backbone.source.hidden_size, args, columns)
    templates = own_templates(args)
    prototypes = prototypes_of(args, "positive" if columns.negatives else "anchor")
    model = sentence_encoder(backbone, args, [*templates, *prototypes.templates])
    views = [view for column in columns.sentences for view in _copies(args, column, templates, classification)]
    pairs = [(column, f"{column}_copy") for column in columns.sentences]
    contrastive = Term(NTXent(pairs, args.temp, args.gather_gradient), args.contrastive_weight)
    terms = {"contrastive": contrastive, **classification, **prototypes.terms, **mlm_terms(backbone, args)}
    adversary = None
    if "adversarial" in kinds:
        adversarial = {pair[kinds.index("adversarial")]: _unchanged_view(kinds, pair[0]) for pair in pairs}
        adversary = Adversary("classification", args.noise_norm, adversarial)
    return Method(model, (*views, *prototypes.views_after(len(templates))), terms, adversary)


def _copies(
    args: ModelArguments, column: str, templates: Sequence[Any], classification: Mapping[str, Term]
) -> Sequence[View]:
    """Return the views of a column: two copies and, if classification needs it, the unchanged sentence."""
    kinds, template = (args.augmentation_1, args.augmentation_2), (0,) if templates else ()
    named = zip((column, f"{column}_copy"), kinds, strict=True)
    views = [View(name, column, template, KINDS[kind].make(args)) for name, kind in named]
    if classification and "none" not in kinds:
        views.append(View(_unchanged_view(kinds, column), column, template))
    return views


def _unchanged_view(kinds: Sequence[str], column: str) -> str:
    """Return the name of the view that contains the unchanged sentences of a column."""
    return (column, f"{column}_copy")[kinds.index("none")] if "none" in kinds else f"{column}_whole"


def _classification(hidden_size: int, args: ModelArguments, columns: Columns) -> Mapping[str, Term]:
    """Return the classification term. Without a column of positives, return {}.

    Raises UserError if an option needs the classification and the data do not allow it.
    """
    kinds = (args.augmentation_1, args.augmentation_2)
    if "positive" not in columns:
        if args.max_square or "adversarial" in kinds:
            cause = spell("max_square", True) if args.max_square else "the augmentation adversarial"
            raise UserError(
                f"{cause} needs the classification loss, but {spell('train_file')} has one column of sentences; "
                "leave it out, or give pairs with a third column (label, or hard negatives)"
            )
        return {}
    classes, pairs = classified_pairs("consert", columns, lambda column: _unchanged_view(kinds, column))
    return {"classification": Term(Classification(hidden_size, classes, pairs, max_square=bool(args.max_square)))}
