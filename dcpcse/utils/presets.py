"""Presets: the published settings of every method, one YAML file each, selected by `--preset method/setting`.

A file contains `source` (paper and table), `published` (the STS average of the paper, or null), `notes` (differences
between paper, README and scripts) and `options` of train.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from dcpcse.utils.errors import invalid_choice, spell
from dcpcse.utils.option_fields import needs_of
from dcpcse.utils.parsing import read_text

_ROOT = Path(__file__).parent.parent / "presets"


@dataclass(frozen=True)
class Preset:
    """The options of train.py with which a paper or its code trained a model.

    Args:
        name: Name of the preset, such as "dcpcse/unsup-bert-base".
        source: The paper or code from which the options come.
        published: The STS average × 100 of the paper's test table, or None.
        notes: Differences between paper, README and scripts.
        options: Name of an option → value.
    """

    name: str
    source: str
    published: float | None
    notes: tuple[str, ...]
    options: Mapping[str, Any]

    def describe(self) -> str:
        """Return a text with the source, the published score and the notes, one line each."""
        score = "none" if self.published is None else f"{self.published:.2f} (not reproduced here)"
        lines = [f"preset {self.name}: {self.source}; published STS average: {score}"]
        return "\n".join([*lines, *(f"preset {self.name}: {note}" for note in self.notes)])


def names() -> list[str]:
    """Return the names of all presets, as `method/setting`."""
    return sorted(str(path.relative_to(_ROOT).with_suffix("")) for path in _ROOT.glob("*/*.yaml"))


def drop_unused(
    preset: Mapping[str, Any],
    overrides: Mapping[str, Any],
    metadata: Mapping[str, Mapping[str, Any]],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Return the options of a preset, except those that the given options replace or make ineffective.

    Args:
        preset: The options of the preset.
        overrides: The options that the user has given.
        metadata: The metadata of each option, which declare the conditions that the option needs and the options that
            the option replaces.
        warn: A function that is called with a line for each option that is left out.
    """
    result = dict(preset)
    options = SimpleNamespace(**{**dict.fromkeys(metadata), **overrides})
    for name in (name for name in metadata if name in overrides):
        replaced = () if overrides[name] is True else metadata[name].get("replaces", ())
        for other in sorted(set(result) - set(overrides)):
            void = any(need.voids == name and not need.holds(options) for need in needs_of(metadata[other]))
            if void or other in replaced:
                unused = f"the preset's {spell(other, result.pop(other))} does not go with it and is left out"
                warn(f"{spell(name, overrides[name])}: {unused}")
    return result


def load_preset(name: str) -> Preset:
    """Load a preset. Raises UserError, with a suggestion and all names, if the preset does not exist."""
    if name not in names():
        raise invalid_choice("preset", name, names())
    content = yaml.safe_load(read_text(_ROOT / f"{name}.yaml"))
    return Preset(
        name, content["source"], content["published"], tuple(content.get("notes", ())), dict(content["options"])
    )
