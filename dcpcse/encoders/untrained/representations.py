"""Sentence embeddings of a pretrained encoder without training: the poolers, and PromptBERT's baselines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.pooling import POOLERS
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.encoders.templates import Template
from dcpcse.encoders.untrained.static import static_encoder
from dcpcse.encoders.untrained.top_k import TopKAverage
from dcpcse.utils.errors import UserError, no_effect, spell


@dataclass(frozen=True)
class Choice:
    """The settings of a representation, without its name.

    Args:
        template: As in `plain_encoder`.
        denoise: As in `plain_encoder`.
        final_period: As in `plain_encoder`.
        remove: Names of biases that are removed from static embeddings (`static.static_encoder`).
        top_k: Number of tokens to average.
    """

    template: Template | None = None
    denoise: bool = False
    final_period: bool = False
    remove: tuple[str, ...] = ()
    top_k: int = 200


@dataclass(frozen=True)
class Representation:
    """How a representation is built.

    Args:
        build: Function that builds it.
        takes: Names of the settings that it takes.
        needs_lm_head: Whether it needs a masked-LM head.
    """

    build: Callable[[Backbone, Choice], SentenceEncoder]
    takes: tuple[str, ...] = ()
    needs_lm_head: bool = False


def _pooled(name: str) -> Representation:
    def build(backbone: Backbone, choice: Choice) -> SentenceEncoder:
        return plain_encoder(backbone, name, choice.template, choice.denoise, choice.final_period)

    takes = ("template", "final_period", *(("denoise",) if POOLERS[name].needs_template else ()))
    return Representation(build, takes)


def _top_k(backbone: Backbone, choice: Choice) -> SentenceEncoder:
    model = plain_encoder(backbone, "mask", choice.template, choice.denoise, choice.final_period)
    embeddings = backbone.model.get_input_embeddings().weight.detach()
    model.head, model.head_at_inference = TopKAverage(backbone.lm_head, embeddings, choice.top_k), True
    return model.requires_grad_(False).eval()


def _static(backbone: Backbone, choice: Choice) -> SentenceEncoder:
    return static_encoder(backbone, backbone.model.get_input_embeddings(), choice.remove)


def _static_lm_head(backbone: Backbone, choice: Choice) -> SentenceEncoder:
    return static_encoder(backbone, backbone.lm_head.masked_lm.get_output_embeddings(), choice.remove)


REPRESENTATIONS: Mapping[str, Representation] = {
    **{name: _pooled(name) for name in POOLERS},
    "top_k": Representation(_top_k, ("template", "denoise", "final_period", "top_k"), needs_lm_head=True),
    "static": Representation(_static, ("remove",)),
    "static_lm_head": Representation(_static_lm_head, ("remove",), needs_lm_head=True),
}


def build_representation(name: str, backbone: Backbone, choice: Choice) -> SentenceEncoder:
    """Build a representation.

    Args:
        name: Its name.
        backbone: The pretrained encoder.
        choice: Its settings.

    Raises:
        UserError: If the name is unknown or a setting has no effect.
    """
    if name not in REPRESENTATIONS:
        raise UserError(f"unknown pooling {name!r}; choose from: {', '.join(sorted(REPRESENTATIONS))}")
    representation, unset = REPRESENTATIONS[name], Choice()
    for option in vars(choice):
        if option not in representation.takes and getattr(choice, option) != getattr(unset, option):
            raise no_effect(option, f"on {spell('pooler', name)}")
    return representation.build(backbone, choice)
