"""Conditional replaced-token detection (CRTD): the options and the loss term that D2CSE and DiffCSE share."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcpcse.data.columns import Columns
from dcpcse.data.views import View
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.losses import ReplacedTokenDetection, Term
from dcpcse.losses.functional import REDUCTIONS
from dcpcse.losses.generator import Corruption, load_generator
from dcpcse.losses.masked_lm import exponential_decay
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.methods.arguments import HAS_HEAD, ModelArguments, refuse_contrastive_options
from dcpcse.methods.building import initial_std, instance_wise, pair_method
from dcpcse.methods.registry import Method, ParameterGroup
from dcpcse.methods.shared.hinge import with_hinge
from dcpcse.methods.shared.labelled_pairs import LABELS, labelled_pairs_loss
from dcpcse.utils.errors import OptionError, UserError, no_effect, spell
from dcpcse.utils.option_fields import (
    GENERATE_AT_CHOICES,
    GENERATION_CHOICES,
    POOLERS_WITH_HEAD,
    RATE,
    Need,
    Options,
    flag,
    needs_above_zero,
    needs_value,
    option,
)

DETECTED_VIEWS = ("all", "anchor")
DISCRIMINATORS = ("self", "frozen", "trained")

GENERATOR_OPTIONS = ("generator_name", "masking_ratio", "generation", "generate_at", "generator_train_mode")
"""Names of the options of the generator. They have no effect with --corrupted_corpus."""

TRAINED = needs_value("discriminator", "trained", voids=True)
WEIGHT = needs_above_zero("lambda_weight")
DECAY = Need(lambda: f"{spell('lambda_decay_rate')} below 1", lambda args: args.lambda_decay_rate not in (None, 1))
CONDITION = needs_value("crtd_condition", True)


@dataclass
class CrtdOptions(Options):
    """Options of replaced-token detection."""

    _argument_group_name = "replaced-token detection (D2CSE, DiffCSE)"

    generator_name: str | None = option(
        None,
        "CRTD: the generator, a masked language model with the encoder's vocabulary. Default: distilbert-base-uncased "
        "for BERT, distilroberta-base for RoBERTa.",
    )
    masking_ratio: float | None = option(
        None, "CRTD: share of the tokens that are masked for the generator. Default: 0.3.", **RATE
    )
    generation: str | None = option(
        None,
        "CRTD: replace tokens by a sample from the generator (default) or by its argmax (DiffCSE's code).",
        choices=list(GENERATION_CHOICES),
    )
    generate_at: str | None = option(
        None,
        "CRTD: replace the masked tokens (default), or all tokens (DiffCSE's code).",
        choices=list(GENERATE_AT_CHOICES),
    )
    generator_train_mode: bool | None = flag("CRTD: keep the generator's dropout active (DiffCSE's code).")
    corrupted_corpus: str | None = option(
        None,
        "CRTD: output folder of dcpcse pretrain corrupt with corrupted sentences; no generator is loaded then.",
        replaces=GENERATOR_OPTIONS,
    )
    lambda_weight: float | None = option(None, "CRTD: weight of the CRTD loss. Default: 0.005.", at_least=0)
    lambda_decay_rate: float | None = option(
        None,
        "CRTD: factor by which the weight falls every --lambda_decay_steps steps. Default: 1, no decay.",
        needs=WEIGHT,
        above=0,
        at_most=1,
    )
    lambda_decay_steps: float | None = option(
        None, "CRTD: steps in which the weight falls by --lambda_decay_rate. Default: 100.", needs=DECAY, above=0
    )
    crtd_views: str | None = option(
        None,
        "CRTD: the sentences whose replaced tokens are detected: all (default, the paper's), or only the anchors, so "
        "that the discriminator need not process the other sentences.",
        choices=list(DETECTED_VIEWS),
    )
    crtd_reduction: str | None = option(
        None,
        "CRTD: reduction of the loss: sum over a sentence's tokens (default, the paper's), mean_tokens, or mean_all "
        "including padding and first positions (DiffCSE's code). They differ by a factor of the sentence length, so "
        "adjust --lambda_weight.",
        choices=list(REDUCTIONS),
    )
    discriminator: str | None = option(
        None,
        "CRTD: the discriminator: self (the prompted encoder; D2CSE), frozen (the encoder without prompts; D2CSE, "
        "Table 6, a) or trained (a trained copy of the encoder; Table 6, b, and DiffCSE).",
        choices=list(DISCRIMINATORS),
    )
    discriminator_learning_rate: float | None = option(
        None,
        "CRTD: learning rate of a trained discriminator and its detection head. Default: --learning_rate.",
        needs=(TRAINED, WEIGHT),
        above=0,
    )
    discriminator_warmup_steps: float | None = option(
        None,
        "CRTD: steps of the linear warm-up of a trained discriminator (below 1: their share of the run), after which "
        "it follows the schedule of the run. Default: --warmup_steps.",
        needs=(TRAINED, WEIGHT),
        at_least=0,
    )
    crtd_condition: bool | None = flag(
        "CRTD: give the discriminator the sentence embedding instead of [CLS]. False: D2CSE, Table 6, c."
    )
    before_mlp: bool | None = flag(
        "CRTD: use the vector before the head as the condition.", needs=(CONDITION, HAS_HEAD)
    )


GENERATORS = {"bert": "distilbert-base-uncased", "roberta": "distilroberta-base"}
"""The default generator for each model type of the encoder (DiffCSE)."""


def crtd_defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    """Return the default values that D2CSE and DiffCSE share.

    Args:
        args: Options of the method.
        columns: The columns of the training data.

    Raises:
        UserError: If a template is given, if generator options are combined with --corrupted_corpus, or if options of
            the contrastive loss are given for data with another loss.
    """
    if (label := Columns.of(columns).label) in LABELS:
        refuse_contrastive_options(args, data=f" with a column {label} in {spell('train_file')}")
    if args.tuning == "shallow" or args.template is not None:
        option_name = spell("tuning", "shallow") if args.template is None else spell("template")
        raise UserError(
            f"{option_name}: {spell('method', args.method)} takes no template, because its discriminator is given the "
            "sentence embedding as [CLS]; leave it out"
        )
    has_head = args.pooler_type in (None, *POOLERS_WITH_HEAD)
    defaults: dict[str, Any] = {"pooler_type": "cls", "mlp_only_train": has_head, "batchnorm": has_head}
    defaults |= {"lambda_weight": 0.005, "crtd_reduction": "sum", "crtd_condition": True, "before_mlp": False}
    defaults |= {"crtd_views": "all", **({"lambda_decay_steps": 100.0} if DECAY.holds(args) else {})}
    if args.corrupted_corpus is None:
        return {**defaults, "masking_ratio": 0.3, "generation": "sample", "generate_at": "masked"}
    for name in GENERATOR_OPTIONS:
        if getattr(args, name) is not None:
            raise no_effect(name, f"with {spell('corrupted_corpus')}, which is already corrupted")
    return defaults


def with_crtd(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build a method with two losses: replaced-token detection, and a loss of the embeddings.

    For labelled and scored pairs, the loss of the embeddings is SBERT's loss. Otherwise, it is the contrastive loss.
    The hinge loss is added if --do_eh_loss is set.

    Args:
        backbone: The loaded encoder.
        args: Options of the method.
        columns: The columns of the training data.
    """
    method = with_hinge(_of_embeddings(backbone, args, Columns.of(columns)), args)
    loss_fn = _detection(backbone, args, method.views)
    decay = exponential_decay(args.lambda_decay_rate, args.lambda_decay_steps) if DECAY.holds(args) else None
    terms = {**method.terms, "crtd": Term(loss_fn, args.lambda_weight, decay)}  # D2CSE, eq. 3
    return replace(method, terms=terms, groups=_own_group(loss_fn, args))


def _of_embeddings(backbone: Backbone, args: ModelArguments, columns: Columns) -> Method:
    """Build the method without replaced-token detection."""
    if columns.label not in LABELS:
        return instance_wise(backbone, args, columns)
    name, loss_fn = labelled_pairs_loss(backbone.source.hidden_size, args, columns)
    return pair_method(backbone, args, columns, {name: Term(loss_fn)})


def _own_group(loss_fn: ReplacedTokenDetection, args: ModelArguments) -> tuple[ParameterGroup, ...]:
    """Return a parameter group for a trained discriminator with its own learning rate or warm-up; otherwise ()."""
    rate, warmup = args.discriminator_learning_rate, args.discriminator_warmup_steps
    if rate is None and warmup is None:
        return ()
    parameters = tuple(parameter for parameter in loss_fn.parameters() if parameter.requires_grad)
    return (ParameterGroup("discriminator", parameters, rate, warmup),)


def _detection(backbone: Backbone, args: ModelArguments, views: Sequence[View]) -> ReplacedTokenDetection:
    """Return the loss of replaced-token detection."""
    view = "anchor" if args.crtd_views == "anchor" else None
    columns = [item.column for item in views if view in (None, item.name)]
    return ReplacedTokenDetection(
        backbone.source.hidden_size,
        None if args.corrupted_corpus else _corruption(backbone, args),
        discriminator=_discriminator(backbone, args),
        conditional=args.crtd_condition,
        before_mlp=bool(args.before_mlp),
        reduction=args.crtd_reduction,
        copies=len(columns) // len(set(columns)),
        view=view,
        std=initial_std(backbone),
    )


def _corruption(backbone: Backbone, args: ModelArguments) -> Corruption:
    name = args.generator_name or GENERATORS.get(backbone.source.model_type)
    if name is None:
        raise OptionError(
            "generator_name",
            reason=f"is missing: there is no default for {backbone.source.model_type} encoders",
            remedy="give a masked language model with the encoder's vocabulary",
        )
    options = LoadOptions.from_args(args.cache_dir, args.use_auth_token)
    generator = load_generator(name, backbone.tokenizer, options, train_mode=bool(args.generator_train_mode))
    masking = TokenMasking(backbone.tokenizer, args.masking_ratio)
    return Corruption(masking, generator, args.generation, args.generate_at)


def _discriminator(backbone: Backbone, args: ModelArguments) -> Encoder | None:
    """Return the discriminator, or None if the encoder itself is the discriminator."""
    if args.discriminator == "trained":
        return Encoder(copy.deepcopy(backbone.model).requires_grad_(True))
    return Encoder(backbone.model) if args.discriminator == "frozen" else None
