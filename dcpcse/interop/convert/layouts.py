"""The table of public formats: how each is known by its tensors' names, and what each tensor is here. No torch.

A tensor is used, under the name that its rule gives, or left out for the reason that its rule gives; one that no rule
knows is an error. To add a format, add a `Layout` to `LAYOUTS`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcpcse.utils.errors import UserError


@dataclass(frozen=True)
class Rule:
    """What tensors are whose whole name matches `pattern`.

    target: their name here, as `<part>.<name in the part>` (parts: encoder, prompt, shallow, head), in the manner of
    `re.Match.expand`; None leaves them out. why: the reason for that.
    """

    pattern: str
    target: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Layout:
    """A public format.

    marks: patterns, each of which some tensor's name must match for the format to be recognised. frozen: the encoder
    was not trained, so that it is taken from its own place. preset: of which published runs the defaults are, with
    slots for supervision (`unsup` or `sup`) and encoder (`bert` or `roberta`). templated: sentences stand in a
    template. adapter: the files are those of peft. ambiguous: encoders of other kinds have such tensors too.
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
        """Whether tensors of these names are of this format."""
        return all(any(re.fullmatch(mark, name) for name in names) for mark in self.marks)

    def sort(self, names: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Tensor → its name here, and tensor left out → why; UserError for tensors that the format does not have."""
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
                raise UserError(f"'{other}' and '{name}' are the same part of a {self.title} checkpoint; which one?")
            used[name] = target
        return used, left_out

    def _rule_of(self, name: str) -> tuple[Rule, re.Match]:
        for rule in self.rules:
            if match := re.fullmatch(rule.pattern, name):
                return rule, match
        raise UserError(
            f"'{name}' is no tensor of a {self.title} checkpoint; if it is one of another kind, --layout names it: "
            f"{', '.join(LAYOUTS)}"
        )


@dataclass(frozen=True)
class Imported:
    """What became of a checkpoint: its format, the tensors that were used and left out, and what had to be assumed.

    used: tensor → name here. left_out: tensor → why. assumed: option → value, where the checkpoint does not say.
    """

    layout: str
    file: Path
    used: Mapping[str, str]
    left_out: Mapping[str, str]
    assumed: Mapping[str, object]


def recognise_layout(names: Collection[str], *, adapter: bool = False) -> str | None:
    """The format of tensors of these names, as a name of `LAYOUTS`; adapter: they lie in a folder of peft's."""
    return next((n for n, one in LAYOUTS.items() if one.adapter == adapter and one.matches(names)), None)


_ROOT = r"(?:(?:bert|roberta)\.)?"
"""Before the names of an encoder; simcse_to_huggingface takes it away."""
_LINEAR = r"(weight|bias)"
_MLP = r"(?:mlp|pooler)"
"""The head; simcse_to_huggingface calls it pooler."""

_COUNTED = Rule(_ROOT + r"embeddings\.(?:position_ids|token_type_ids)", why="a count, made anew")
_ENCODER = Rule(_ROOT + r"((?:embeddings|encoder)\..+)", r"encoder.\1")
_LM_HEAD = Rule(r"(?:lm_head|cls\.predictions)\..+", why="masked-LM head, of training only")
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
    r"(?:aux_|discriminator\.|generator\.|electra_head\.).+", why="replaced-token detection, of training only"
)
_CLASSIFIER = "classifier of another task"

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
        "peft prefix tuning",
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
"""Formats by name; the first that recognises the tensors is taken, so the narrower ones stand first."""


def find_layout(names: Sequence[str], asked: str | None, *, adapter: bool, where: Path) -> str:
    """The format that is asked for, or else recognised; UserError where there is none."""
    found = asked or recognise_layout(names, adapter=adapter)
    if found is None or LAYOUTS[found].adapter != adapter:
        known = ", ".join(name for name, layout in LAYOUTS.items() if layout.adapter == adapter)
        what = "is of another kind" if asked is None else f"is not of the kind {asked}"
        raise UserError(f"{where} {what}: it holds {', '.join(names[:3])}, …; what can be imported here: {known}")
    return found
