"""Conditional replaced-token detection as a part of a method: what D2CSE and DiffCSE share."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ..arguments import ModelArguments
from ..backbones import Backbone, LoadOptions
from ..errors import UserError
from ..generator import Corruption, load_generator
from ..masking import TokenMasking
from ..models import Encoder
from ..objectives import ReplacedTokenDetection, Term
from ..presets import OF_GENERATOR
from ..views import View
from .parts import initial_std, instance_wise
from .registry import HEADED, Method

OPTIONS = (
    *("generator_name", "masking_ratio", "generation", "generate_at", "generator_train_mode", "corrupted_corpus"),
    *("lambda_weight", "crtd_reduction", "discriminator", "crtd_condition", "before_mlp"),
)
"""Options of replaced-token detection."""

GENERATORS = {"bert": "distilbert-base-uncased", "roberta": "distilroberta-base"}
"""Generators by the encoder's model type (DiffCSE)."""


def crtd_defaults(args: ModelArguments) -> dict[str, Any]:
    """What both methods take; UserError for a generator beside a corpus that was corrupted before."""
    if args.tuning == "shallow" or args.template is not None:
        raise UserError(
            f"--method {args.method} puts the condition of its discriminator in [CLS] and takes no template, so no "
            "--tuning shallow either; leave it out"
        )
    headed = args.pooler_type in (None, *HEADED)
    both: dict[str, Any] = {"pooler_type": "cls", "mlp_only_train": headed, "batchnorm": headed}
    both |= {"lambda_weight": 0.005, "crtd_reduction": "sum", "crtd_condition": True, "before_mlp": False}
    if args.corrupted_corpus is None:
        return {**both, "masking_ratio": 0.3, "generation": "sample", "generate_at": "masked"}
    for name in OF_GENERATOR:
        if getattr(args, name) is not None:
            raise UserError(f"--{name}: the tokens of --corrupted_corpus are replaced already; leave it out")
    return both


def with_crtd(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """A contrastive method with replaced-token detection beside it."""
    method = instance_wise(backbone, args, columns)
    return Method(method.model, method.views, {**method.terms, **_crtd_term(backbone, args, method.views)})


def _crtd_term(backbone: Backbone, args: ModelArguments, views: Sequence[View]) -> Mapping[str, Term]:
    """The replaced-token detection of D2CSE and DiffCSE, weighted by lambda (D2CSE, eq. 3)."""
    objective = ReplacedTokenDetection(
        backbone.source.hidden_size,
        None if args.corrupted_corpus else _corruption(backbone, args),
        discriminator=_discriminator(backbone, args),
        conditional=args.crtd_condition,
        before_mlp=bool(args.before_mlp),
        reduction=args.crtd_reduction,
        copies=len(views) // len({view.column for view in views}),
        std=initial_std(backbone),
    )
    return {"crtd": Term(objective, args.lambda_weight)}


def _corruption(backbone: Backbone, args: ModelArguments) -> Corruption:
    name = args.generator_name or GENERATORS.get(backbone.source.model_type)
    if name is None:
        raise UserError(
            f"--generator_name is missing: a masked language model of this vocabulary; {backbone.source.model_type} "
            "encoders have no usual one"
        )
    options = LoadOptions.asked(args.cache_dir, args.use_auth_token)
    generator = load_generator(name, backbone.tokenizer, options, train_mode=bool(args.generator_train_mode))
    masking = TokenMasking(backbone.tokenizer, args.masking_ratio)
    return Corruption(masking, generator, args.generation, args.generate_at)


def _discriminator(backbone: Backbone, args: ModelArguments) -> Encoder | None:
    """None where the encoder is its own discriminator."""
    if args.discriminator == "trained":
        return Encoder(copy.deepcopy(backbone.model).requires_grad_(True))
    return Encoder(backbone.model) if args.discriminator == "frozen" else None
