"""Parts that several methods are built from."""

import logging

from ..arguments import ModelArguments
from ..backbones import Backbone
from ..models import Encoder
from ..positions import positions_of
from ..prompts import DeepPrompt, PromptShape

logger = logging.getLogger(__name__)


def prompted_encoder(backbone: Backbone, args: ModelArguments) -> Encoder:
    """The frozen encoder with trainable deep prompts."""
    backbone.model.requires_grad_(False)
    config = backbone.model.config
    prompt = DeepPrompt(
        PromptShape.fit(config, args.pre_seq_len),
        dropout=_hidden_dropout(backbone) if args.prompt_dropout is None else args.prompt_dropout,
        projection=args.prefix_hidden_size if args.prefix_projection else None,
        std=initial_std(backbone),
    )
    return Encoder(backbone.model, prompt, _position_offset(backbone, args))


def _position_offset(backbone: Backbone, args: ModelArguments) -> int:
    if not positions_of(backbone.model).rotary:
        return args.pre_seq_len if args.position_offset is None else args.position_offset
    if args.position_offset:
        logger.warning(
            "--position_offset %d has no effect on %s: its positions are rotary, only distances count",
            args.position_offset,
            backbone.source.model_type,
        )
    return 0


def initial_std(backbone: Backbone) -> float:
    """The published code draws prompts and MLP like any new weight of the backbone: N(0, initializer_range)."""
    return getattr(backbone.model.config, "initializer_range", 0.02)


def _hidden_dropout(backbone: Backbone) -> float:
    """The dropout of the backbone's hidden states (ModernBERT: of its MLPs), which the published prompts share."""
    config = backbone.model.config
    return getattr(config, "hidden_dropout_prob", getattr(config, "mlp_dropout", 0.0))
