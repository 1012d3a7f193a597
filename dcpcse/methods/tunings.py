"""The tunings: which parameters of an encoder are trained, with the usual learning rate and batch size of each.

`dcpcse.methods.building` builds the encoder of each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tuning:
    """The choice of the parameters that are trained.

    Args:
        trains: The trained weights, for `--help`.
        frozen: Whether the encoder's own weights are frozen.
        dropout: The option for the dropout rate of the added parameters, or None.
        needs_template: Whether the trained weights belong to a template.
        package: The optional package that the tuning requires, or None.
        defaults: Function that returns values for the options of this tuning that were left out, given the options.
    """

    trains: str
    frozen: bool = True
    dropout: str | None = None
    needs_template: bool = False
    package: str | None = None
    defaults: Callable[[Any], Mapping[str, Any]] = lambda args: {}


def _of_deep(args: Any) -> Mapping[str, Any]:
    projection = {"prefix_hidden_size": 512} if args.prefix_projection else {}
    return {"pre_seq_len": 10, "prefix_projection": False, **projection}


def _of_lora(args: Any) -> Mapping[str, Any]:
    # With a constant alpha / r, a learning rate remains suitable if the rank is changed.
    return {"lora_r": 8, "lora_alpha": 2 * (args.lora_r or 8), "lora_dropout": 0.0}


TUNINGS: Mapping[str, Tuning] = {
    "full": Tuning("the encoder", frozen=False),
    "deep": Tuning(
        "prompts, which are keys and values in every layer of the frozen encoder",
        dropout="prompt_dropout",
        defaults=_of_deep,
    ),
    "shallow": Tuning(
        "input vectors that replace the token embeddings of a template; the encoder is frozen", needs_template=True
    ),
    "lora": Tuning(
        "a LoRA adapter, which adds low-rank updates to linear layers of the frozen encoder (requires peft)",
        dropout="lora_dropout",
        package="peft",
        defaults=_of_lora,
    ),
}
"""Value of `--tuning` → the tuning."""

DROPOUT_OPTIONS = ("encoder_dropout", *(one.dropout for one in TUNINGS.values() if one.dropout))
"""The options for dropout rates, of the encoder and of the parameters that a tuning adds."""


@dataclass(frozen=True)
class Recipe:
    """The learning rate and the batch size of a training.

    Args:
        learning_rate: The learning rate for an encoder that was not trained for sentences.
        batch_size: Number of examples per device.
        on_sentence_encoder: The learning rate for an encoder that was trained for sentences before; None for the same
            one.
    """

    learning_rate: float
    batch_size: int = 64
    on_sentence_encoder: float | None = None

    def rate(self, *, sentence_encoder: bool) -> float:
        """Return the learning rate; sentence_encoder: whether the encoder was trained for sentences before."""
        rate = self.on_sentence_encoder if sentence_encoder else None
        return self.learning_rate if rate is None else rate


RECIPES: Mapping[str, Recipe] = {
    # DCPCSE, Table 3: 3e-2 for three of its four encoders, with batches of 64 and 256.
    "deep": Recipe(3e-2, on_sentence_encoder=1e-2),  # see docs/when-prompts-help.md
    "shallow": Recipe(1e-3),  # SCPCSE (DCPCSE, appendix A)
    "lora": Recipe(1e-3),  # the best of five rates on a small encoder, docs/methods.md
    "full": Recipe(3e-5),  # SimCSE's README, BERT-base
}
"""Tuning → recipe of all methods that define no other recipe for it (`register(..., recipes=...)`)."""
