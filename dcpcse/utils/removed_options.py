"""Options that earlier versions had: the error for naming one of them, and records of earlier versions."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dcpcse.utils.errors import OptionError

REMOVED: Mapping[str, tuple[str, str]] = {
    "compile_layers": ("0.2.0", "training was slower with it on a CPU and on an H100"),
    "final_dropout": ("0.2.0", "the config.json of an encoder sets a dropout of 0.1"),
    "flex_attention": ("0.2.0", "on a GPU, the Triton kernels compute attention over packed sentences"),
    "initializer_range": ("0.2.0", "the weights of a new encoder are drawn with standard deviation 0.04"),
    "intermediate_size": ("0.2.0", "the inner layers of a new encoder are four times as wide as its hidden states"),
    "max_position_embeddings": ("0.2.0", "a new encoder has the positions that it is trained on (max_seq_length)"),
    "num_attention_heads": ("0.2.0", "a head of a new encoder has 64 units"),
    "shard_encoder": ("0.2.0", "frozen encoders larger than one GPU are not supported"),
    "url": ("0.2.0", "dcpcse encode loads the model itself, so give the folder of the model as MODEL"),
}
"""Removed option → the version without it, and the reason."""


def refuse_removed(names: Iterable[str]) -> None:
    """Raise OptionError for the first of these names that is a removed option.

    Args:
        names: Names of options that do not exist, with underscores and without dashes in front.
    """
    for name in names:
        if name in REMOVED:
            version, reason = REMOVED[name]
            raise OptionError(name, reason=f"was removed in {version}: {reason}", remedy="leave it out")


def without_removed_defaults(options: Mapping[str, Any], existing: Collection[str] = ()) -> dict[str, Any]:
    """Return the options of a file without removed options that are False or None, since this is what runs do now.

    Args:
        options: Option name to value.
        existing: Names of options that exist, such as one of a plugin that has the name of a removed option.
    """
    removed = REMOVED.keys() - set(existing)
    return {name: value for name, value in options.items() if name not in removed or value not in (False, None)}
