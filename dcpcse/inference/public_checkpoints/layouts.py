"""The table of public formats: the tensor names that identify a format, and the dcpcse name of each tensor.

A rule either renames a tensor, or leaves the tensor out for a reason. A tensor that matches no rule is an error. To
add a format, add a `Layout` to `LAYOUTS`. This module does not import torch.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcpcse.utils.errors import UserError, invalid_choice

PARTS = {"encoder": "encoder", "prompt": "prompts", "shallow": "vectors of the template's tokens", "head": "head"}
"""A dict from parts of a model to their names in messages."""


@dataclass(frozen=True)
class Rule:
    """A rule for importing tensors whose complete names match a pattern.

    Args:
        pattern: The pattern, a regular expression.
        target: The name of the tensors in dcpcse, `<part>.<name in the part>`, expanded by `re.Match.expand`. The
            parts are encoder, prompt, shallow and head. None: the tensors are left out.
        why: The reason for leaving the tensors out.
    """

    pattern: str
    target: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Layout:
    """A format in which the public code of a paper saves checkpoints.

    Args:
        title: The name of the format in messages.
        marks: Patterns. The format is recognised if each pattern matches the name of a tensor.
        rules: The rules for importing tensors.
        frozen: Whether the encoder was frozen during training. A frozen encoder is loaded from --base.
        method: The training method of checkpoints in this format.
        preset: Name of the published run that sets the defaults, with placeholders for supervision (`unsup` or `sup`)
            and encoder (`bert` or `roberta`).
        templated: Whether sentences are inserted into a template.
        adapter: Whether the files belong to a PEFT adapter.
        ambiguous: Whether other kinds of encoders have the same tensor names.
    """

    title: str
    marks: tuple[str, ...]
    rules: tuple[Rule, ...]
    frozen: bool
    method: str | None = None
    preset: str | None = None
    templated: bool = False
    adapter: bool = False
    ambiguous: bool = False

    def matches(self, names: Collection[str]) -> bool:
        """Return whether tensors with these names are in this format."""
        return all(any(re.fullmatch(mark, name) for name in names) for mark in self.marks)

    def sort(self, names: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return two dicts: used tensor to dcpcse name, and unused tensor to reason. Raises UserError for a name that
        matches no rule.
        """
        used: dict[str, str] = {}
        left_out: dict[str, str] = {}
        for name in sorted(names):
            rule, match = self._rule_of(name)
            if rule.target is None:
                left_out[name] = rule.why
                continue
            target = match.expand(rule.target)
            if target in used.values():
                other = next(first for first, taken in used.items() if taken == target)
                raise UserError(f"'{other}' and '{name}' are the same part of a {self.title} checkpoint; keep one")
            used[name] = target
        return used, left_out

    def parts(self, names: Collection[str]) -> tuple[str, ...]:
        """Return, in words, the parts of a model that tensors with these names contain. Unknown names are ignored."""
        matches = [
            (rule, match) for rule in self.rules for name in names if (match := re.fullmatch(rule.pattern, name))
        ]
        present = {match.expand(rule.target).split(".")[0] for rule, match in matches if rule.target is not None}
        return tuple(words for part, words in PARTS.items() if part in present)

    def _rule_of(self, name: str) -> tuple[Rule, re.Match]:
        for rule in self.rules:
            if match := re.fullmatch(rule.pattern, name):
                return rule, match
        raise UserError(
            f"'{name}' is not a tensor of a {self.title} checkpoint; for a different format, give dcpcse import "
            f"--layout: {', '.join(LAYOUTS)}"
        )


@dataclass(frozen=True)
class Imported:
    """A report on the import of a checkpoint.

    Args:
        layout: The format.
        file: The file of the tensors.
        used: A dict from imported tensors to their names in dcpcse.
        left_out: A dict from tensors that were left out to the reasons.
        assumed: A dict from options to values, for settings that the checkpoint does not contain.
    """

    layout: str
    file: Path
    used: Mapping[str, str]
    left_out: Mapping[str, str]
    assumed: Mapping[str, object]


def recognise_layout(names: Collection[str], *, adapter: bool = False) -> str | None:
    """Return the name of the format with these tensor names (a key of `LAYOUTS`), or None.

    Args:
        names: The names of the tensors.
        adapter: Whether PEFT wrote the tensors.
    """
    return next((n for n, layout in LAYOUTS.items() if layout.adapter == adapter and layout.matches(names)), None)


_ROOT = r"(?:(?:bert|roberta)\.)?"
"""Optional prefix of the tensor names of an encoder. The script simcse_to_huggingface removes this prefix."""
_LINEAR = r"(weight|bias)"
_MLP = r"(?:mlp|pooler)"
"""Prefix of the tensor names of the head. The script simcse_to_huggingface renames mlp to pooler."""

_COUNTED = Rule(_ROOT + r"embeddings\.(?:position_ids|token_type_ids)", why="position or type indices, computed again")
_ENCODER = Rule(_ROOT + r"((?:embeddings|encoder)\..+)", r"encoder.\1")
_LM_HEAD = Rule(r"(?:lm_head|cls\.predictions)\..+", why="masked-LM head, used in training only")
_TANH = Rule(_MLP + r"\.(dense\.(?:weight|bias))", r"head.\1")
_TRANSFORM = Rule(_MLP + rf"\.LayerNorm\.{_LINEAR}", r"head.norm.\1")
_BATCHNORM = Rule(_MLP + r"\.net\.(\d+\.\w+)", r"head.layers.\1")
_OWN_POOLER = Rule(
    rf"(?:bert|roberta)\.pooler\.dense\.{_LINEAR}", why="the pretrained pooler, which the method does not use"
)
_PREFIX = (
    Rule(r"prefix_encoder\.embedding\.weight", "prompt.embedding"),
    Rule(rf"prefix_encoder\.(trans\.[02])\.{_LINEAR}", r"prompt.\1.\2"),
)
_DISCRIMINATION = Rule(
    r"(?:aux_|discriminator\.|generator\.|electra_head\.).+", why="replaced-token detection, used in training only"
)
_CLASSIFIER = "classifier of a different task"

_FULL = (_COUNTED, _ENCODER, _LM_HEAD)

LAYOUTS: Mapping[str, Layout] = {
    "p-tuning-v2": Layout(
        "P-tuning v2",
        marks=(r"prefix_encoder\..+", r"(?:classifier|qa_outputs)\..+"),
        rules=(
            *_PREFIX,
            Rule(r"(?:classifier|qa_outputs)\..+", why=_CLASSIFIER),
            Rule(rf"(?:bert|roberta)\.pooler\.(dense\.{_LINEAR})", r"head.\1"),
            *_FULL,
        ),
        frozen=True,
    ),
    "dcpcse": Layout(
        "DCPCSE or PromCSE",
        marks=(r"prefix_encoder\..+",),
        rules=(*_PREFIX, _TANH, *_FULL),
        frozen=True,
        method="dcpcse",
        preset="dcpcse/{supervision}-{encoder}-base",
    ),
    "diffcse": Layout(
        "DiffCSE",
        marks=(r"(?:mlp|pooler)\.net\..+|electra_head\..+",),
        rules=(_DISCRIMINATION, _BATCHNORM, _TANH, *_FULL),
        frozen=False,
        method="diffcse",
        preset="diffcse/unsup-bert-base",
    ),
    "optiprompt": Layout(
        "PromptBERT (OptiPrompt)",
        marks=(r"p_mbv",),
        rules=(Rule(r"p_mbv", "shallow.weight"), _OWN_POOLER, _TANH, _TRANSFORM, *_FULL),
        frozen=True,
        method="promptbert",
        preset="promptbert/unsup-optiprompt-bert-base",
        templated=True,
    ),
    "promptbert": Layout(
        "PromptBERT",
        marks=(rf"mlp\.dense\.{_LINEAR}|pooler\.LayerNorm\..+", r"(?:bert|roberta)\.pooler\..+|pooler\.LayerNorm\..+"),
        rules=(_OWN_POOLER, _TANH, _TRANSFORM, *_FULL),
        frozen=False,
        method="promptbert",
        preset="promptbert/{supervision}-{encoder}-base",
        templated=True,
    ),
    "simcse": Layout(
        "SimCSE",
        marks=(_ROOT + r"encoder\..+", _ROOT + r"embeddings\..+"),
        rules=(_TANH, *_FULL),
        frozen=False,
        method="simcse",
        preset="simcse/{supervision}-{encoder}-base",
        ambiguous=True,
    ),
    "peft": Layout(
        "PEFT prefix tuning",
        marks=(r"prompt_embeddings",),
        rules=(
            Rule(r"prompt_embeddings", "prompt.embedding"),
            Rule(rf"base_model\.pooler\.(dense\.{_LINEAR})", r"head.\1"),
            Rule(r"base_model\.(?:classifier|score|qa_outputs)\..+", why=_CLASSIFIER),
        ),
        frozen=True,
        adapter=True,
    ),
}
"""Formats by name, in the order in which they are tried: more specific formats come first."""


def find_layout(names: Sequence[str], asked: str | None, *, adapter: bool, where: Path) -> str:
    """Return the requested format or, without a request, the recognised format. Raises UserError if there is none.

    Args:
        names: The names of the tensors.
        asked: The requested format. None: recognise the format.
        adapter: Whether PEFT wrote the tensors.
        where: The file of the tensors, for messages.
    """
    if asked is not None and asked not in LAYOUTS:
        raise invalid_choice("layout", asked, LAYOUTS)
    key = asked or recognise_layout(names, adapter=adapter)
    if key is None or LAYOUTS[key].adapter != adapter:
        known = ", ".join(name for name, layout in LAYOUTS.items() if layout.adapter == adapter)
        what = "has an unknown format" if asked is None else f"does not have the format {asked}"
        raise UserError(f"{where} {what}: it contains {', '.join(names[:3])}, …; supported formats: {known}")
    return key
