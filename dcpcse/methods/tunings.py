"""The tunings: for each tuning, the trained parameters of an encoder, and the default learning rate and batch size.

`dcpcse.methods.building` builds the encoder for a tuning.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tuning:
    """The choice of the parameters that are trained.

    Args:
        trains: Description of the trained weights, for `--help`.
        frozen: Whether the encoder's own weights are frozen.
        dropout: Name of the option for the dropout rate of the added parameters. None: there is no such option.
        needs_template: Whether the trained weights belong to a template.
        package: Name of the optional package that the tuning requires. None: no package.
        defaults: Function of the options that returns values for options of this tuning that were left out.
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
"""The tunings by the value of `--tuning`."""

DROPOUT_OPTIONS = ("encoder_dropout", *(one.dropout for one in TUNINGS.values() if one.dropout))
"""The options for dropout rates: of the encoder, and of the parameters that a tuning adds."""


@dataclass(frozen=True)
class Recipe:
    """The learning rate and the batch size of a training.

    Args:
        learning_rate: The learning rate for an encoder that was not trained for sentences.
        batch_size: Number of examples per device.
        on_sentence_encoder: The learning rate for an encoder that was already trained for sentences. None:
            `learning_rate`.
    """

    learning_rate: float
    batch_size: int = 64
    on_sentence_encoder: float | None = None

    def rate(self, *, sentence_encoder: bool) -> float:
        """Return the learning rate. `sentence_encoder`: whether the encoder was already trained for sentences."""
        rate = self.on_sentence_encoder if sentence_encoder else None
        return self.learning_rate if rate is None else rate


RECIPES: Mapping[str, Recipe] = {
    # DCPCSE, Table 3: 3e-2 for three of its four encoders, with batches of 64 and 256.
    "deep": Recipe(3e-2, on_sentence_encoder=1e-2),  # see docs/when-prompts-help.md
    "shallow": Recipe(1e-3),  # SCPCSE (DCPCSE, appendix A)
    "lora": Recipe(1e-3),  # the best of five rates on a small encoder, docs/methods.md
    "full": Recipe(3e-5),  # SimCSE's README, BERT-base
}
"""The recipes by tuning. A method can define different recipes with `register(..., recipes=...)`."""
