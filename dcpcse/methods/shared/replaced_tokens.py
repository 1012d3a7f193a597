"""Conditional replaced-token detection as a part of a method: what D2CSE and DiffCSE share."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.views import View
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.losses import ReplacedTokenDetection, Term
from dcpcse.losses.functional import REDUCTIONS
from dcpcse.losses.generator import Corruption, load_generator
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import initial_std, instance_wise
from dcpcse.methods.registry import Method
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import (
    GENERATE_AT_CHOICES,
    GENERATION_CHOICES,
    POOLERS_WITH_HEAD,
    Need,
    flag,
    option,
    require,
)

DISCRIMINATORS = ("self", "frozen", "trained")

GENERATOR_OPTIONS = ("generator_name", "masking_ratio", "generation", "generate_at", "generator_train_mode")
"""Options of a generator that replaces tokens in training."""

CONDITION = Need("--crtd_condition", lambda args: args.crtd_condition)


@dataclass
class CrtdOptions:
    """Options of replaced-token detection."""

    _argument_group_name = "replaced-token detection (D2CSE, DiffCSE)"

    generator_name: str | None = option(
        None,
        "CRTD: masked language model that replaces tokens, of the encoder's vocabulary. Default: "
        "distilbert-base-uncased for BERT, distilroberta-base for RoBERTa.",
    )
    masking_ratio: float | None = option(None, "CRTD: share of the tokens that are masked for it. Default: 0.3.")
    generation: str | None = option(
        None,
        "CRTD: the generator's choice is a sample (default) or the argmax (DiffCSE's code).",
        choices=list(GENERATION_CHOICES),
    )
    generate_at: str | None = option(
        None,
        "CRTD: tokens that are replaced: masked (default), or all by the generator's choice (DiffCSE's code).",
        choices=list(GENERATE_AT_CHOICES),
    )
    generator_train_mode: bool | None = flag("CRTD: the generator's dropout is active (DiffCSE's code).")
    corrupted_corpus: str | None = option(
        None, "CRTD: folder that dcpcse corrupt wrote; no generator is loaded then.", replaces=GENERATOR_OPTIONS
    )
    lambda_weight: float | None = option(None, "CRTD: weight of its loss. Default: 0.005.")
    crtd_reduction: str | None = option(
        None,
        "CRTD: sum over a sentence's tokens (default, the paper's), mean_tokens, or mean_all with pads and first "
        "positions (DiffCSE's code). They differ by the length of a sentence: so must --lambda_weight.",
        choices=list(REDUCTIONS),
    )
    discriminator: str | None = option(
        None,
        "CRTD: self (the prompted encoder; D2CSE), frozen (the encoder without prompts; Table 6, a) or trained (a "
        "copy of it; Table 6, b, and DiffCSE).",
        choices=list(DISCRIMINATORS),
    )
    crtd_condition: bool | None = flag("CRTD: the sentence vector stands in the place of [CLS]. False: Table 6, c.")
    before_mlp: bool | None = flag("CRTD: the condition is the vector before the head.", needs=CONDITION)

    def __post_init__(self) -> None:
        ratio, weight = self.masking_ratio, self.lambda_weight
        require(ratio is None or 0 < ratio < 1, "--masking_ratio", ratio, "in (0, 1)")
        require((weight or 0) >= 0, "--lambda_weight", weight, "0 or more")


GENERATORS = {"bert": "distilbert-base-uncased", "roberta": "distilroberta-base"}
"""Generators by the encoder's model type (DiffCSE)."""


def crtd_defaults(args: ModelArguments) -> dict[str, Any]:
    """What both methods take; UserError for a generator beside a corpus that was corrupted before."""
    if args.tuning == "shallow" or args.template is not None:
        raise UserError(
            f"--method {args.method} puts the condition of its discriminator in [CLS] and takes no template, so no "
            "--tuning shallow either; leave it out"
        )
    headed = args.pooler_type in (None, *POOLERS_WITH_HEAD)
    both: dict[str, Any] = {"pooler_type": "cls", "mlp_only_train": headed, "batchnorm": headed}
    both |= {"lambda_weight": 0.005, "crtd_reduction": "sum", "crtd_condition": True, "before_mlp": False}
    if args.corrupted_corpus is None:
        return {**both, "masking_ratio": 0.3, "generation": "sample", "generate_at": "masked"}
    for name in GENERATOR_OPTIONS:
        if getattr(args, name) is not None:
            raise UserError(f"--{name}: the tokens of --corrupted_corpus are replaced already; leave it out")
    return both


def with_crtd(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """A contrastive method with replaced-token detection beside it."""
    method = instance_wise(backbone, args, columns)
    return Method(method.model, method.views, {**method.terms, **_crtd_term(backbone, args, method.views)})


def _crtd_term(backbone: Backbone, args: ModelArguments, views: Sequence[View]) -> Mapping[str, Term]:
    """The replaced-token detection of D2CSE and DiffCSE, weighted by lambda (D2CSE, eq. 3)."""
    loss_fn = ReplacedTokenDetection(
        backbone.source.hidden_size,
        None if args.corrupted_corpus else _corruption(backbone, args),
        discriminator=_discriminator(backbone, args),
        conditional=args.crtd_condition,
        before_mlp=bool(args.before_mlp),
        reduction=args.crtd_reduction,
        copies=len(views) // len({view.column for view in views}),
        std=initial_std(backbone),
    )
    return {"crtd": Term(loss_fn, args.lambda_weight)}


def _corruption(backbone: Backbone, args: ModelArguments) -> Corruption:
    name = args.generator_name or GENERATORS.get(backbone.source.model_type)
    if name is None:
        raise UserError(
            f"--generator_name is missing: a masked language model of this vocabulary; {backbone.source.model_type} "
            "encoders have no usual one"
        )
    options = LoadOptions.from_args(args.cache_dir, args.use_auth_token)
    generator = load_generator(name, backbone.tokenizer, options, train_mode=bool(args.generator_train_mode))
    masking = TokenMasking(backbone.tokenizer, args.masking_ratio)
    return Corruption(masking, generator, args.generation, args.generate_at)


def _discriminator(backbone: Backbone, args: ModelArguments) -> Encoder | None:
    """None where the encoder is its own discriminator."""
    if args.discriminator == "trained":
        return Encoder(copy.deepcopy(backbone.model).requires_grad_(True))
    return Encoder(backbone.model) if args.discriminator == "frozen" else None
