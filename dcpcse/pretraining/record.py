"""The record and the card of a pretrained encoder."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.dataclasses import strict

from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.utils import schema

RECORD = "pretraining.json"
"""The file with the record of a pretraining; it is written at the start, and with the figures at the end."""

CARD = "README.md"
CURVE = "curve.png"
TEMPLATE = Path(__file__).with_name("encoder_card.md.j2")

NEXT, MASKED, BOTH = "next tokens", "masked tokens", "next tokens, then masked tokens"
"""What the model predicts in the steps of a training loss."""

CURVE_ROWS = 12
"""Maximum number of rows of the card's table of figures over steps."""


@strict
@dataclass(kw_only=True)
class _Point(schema.Open):
    step: int = schema.count()
    tokens_seen: int = schema.count()
    loss: int | float = schema.finite()
    masked_accuracy: int | float = schema.finite()
    bits_per_character: int | float = schema.finite()


@strict
@dataclass(kw_only=True)
class _File(schema.Open):
    file: str = schema.text()
    sha256: str = schema.sha256()
    lines: int = schema.count()


@strict
@dataclass(kw_only=True)
class _Base(schema.Open):
    name_or_path: str = schema.text()
    weights: str = schema.sha256()


@strict
@dataclass(kw_only=True)
class _Unigram(schema.Open):
    masked_accuracy: int | float = schema.finite()
    bits_per_character: int | float = schema.finite()


@strict
@dataclass(kw_only=True)
class PretrainingRecord(schema.Open):
    """The content of `pretraining.json`; docs/pretraining.md describes its keys."""

    finished: bool
    options: dict
    text: _File
    validation_text: _File | None = None
    tokenizer: dict[str, str] = schema.sha256()
    base: _Base | None = None
    curve: list[_Point] = field(default_factory=list)
    training_log: list[dict] = field(default_factory=list)
    unigram: _Unigram
    figures: dict[str, int | float] = schema.finite(default_factory=dict)
    steps: int | None = schema.count(default=None)
    tokens_seen: int | None = schema.count(default=None)
    seconds: int | float | None = schema.finite(default=None)

    def validate_figures(self) -> None:
        """Raise ValueError if the figures of a finished pretraining are missing."""
        if self.finished and not (self.figures and self.curve):
            raise ValueError("is the record of a finished pretraining, but lacks its figures")


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record in the folder of a pretraining; raise UserError if it is missing or damaged."""
    return schema.read(PretrainingRecord, folder / RECORD)


def logged(history: Sequence[Mapping[str, Any]], causal_steps: int) -> dict[str, list[dict[str, Any]]]:
    """Return `curve` and `training_log` of the record from the log of transformers' Trainer.

    A resumed run measures the model again at the step that it resumes from; the last entry of a step counts. Each
    loss is the mean over the steps since the entry before. causal_steps: number of steps of next-token prediction.
    """
    curve = {line["step"]: _point(line) for line in history if "eval_loss" in line}
    training = {line["step"]: _training_line(line) for line in history if "loss" in line}
    before = 0
    for step, line in training.items():
        line["predicts"] = NEXT if step <= causal_steps else BOTH if before < causal_steps else MASKED
        before = step
    return {"curve": list(curve.values()), "training_log": list(training.values())}


def _command(record: Mapping[str, Any]) -> str:
    args = PretrainingArguments(output_dir="FOLDER", **record["options"])
    return shlex.join(["dcpcse", "pretrain", record["text"]["file"], *args.words()])


def _point(line: Mapping[str, Any]) -> dict[str, Any]:
    names = ("loss", "masked_accuracy", "bits_per_character")
    figures = {name: line[f"eval_{name}"] for name in names}
    return {"step": line["step"], "tokens_seen": line["num_input_tokens_seen"], **figures}


def _training_line(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("step", "loss", "learning_rate", "grad_norm") if name in line}


def write_card(
    record: Mapping[str, Any],
    name: str,
    *,
    picture: bool,
    about_text: str | None = None,
    license: str | None = None,
    license_text: str | None = None,
) -> str:
    """Return the text of the card of a pretrained encoder.

    picture: whether the folder contains the picture of the curve. about_text: the origin of the text, in Markdown.
    license: the identifier of the licence on the Hub. license_text: the section about the licence.
    """
    options, kind = record["options"], record["architecture"]["model_type"]
    metadata = ModelCardData(
        license=license,
        library_name="transformers",
        pipeline_tag="fill-mask",
        tags=[kind, "masked-language-model"],
    )
    curve = record["curve"]
    every = -(-len(curve) // CURVE_ROWS)
    card = ModelCard.from_template(
        metadata,
        template_path=str(TEMPLATE),
        name=name,
        record=record,
        options=options,
        rows=[point for i, point in enumerate(curve) if i % every == 0 or i == len(curve) - 1] if curve else [],
        command=_command(record),
        all_options=yaml.safe_dump(dict(options), sort_keys=True, allow_unicode=True),
        picture=CURVE if picture else None,
        about_text=about_text,
        license_text=license_text,
        mask="[MASK]" if kind == "bert" else "<mask>",
    )
    return f"{card}\n"
