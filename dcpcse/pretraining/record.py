"""The folder of a pretrained encoder: its record, its card, its weights and its tokenizer."""

import copy
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.dataclasses import strict
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dcpcse.encoders.backbones import quiet
from dcpcse.pretraining.vocabulary import save_tokenizer
from dcpcse.utils import schema
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import fsync, json_text, staging_folder

RECORD = "pretraining.json"
"""The file with the record of a pretraining; it is written at the start, and with the figures at the end."""

DROPOUT = 0.1
"""Dropout in config.json: contrastive training needs it as noise, even if pretraining uses none."""

LOADED_FIRST = "config.json"
"""The file without which the folder cannot be loaded."""

FORMAT = 2
"""The entry `format` of records. Records of earlier versions lack it, and their trainings cannot be resumed."""

Picture = Callable[[Mapping[str, Any]], bytes | None]
"""A function that draws the curve of a record as PNG, or returns None if it cannot."""

CARD = "README.md"
CURVE = "curve.png"
TEMPLATE = Path(__file__).with_name("encoder_card.md.j2")

NEXT, MASKED, BOTH = "next tokens", "masked tokens", "next tokens, then masked tokens"
"""What the model predicts in the steps of a training loss."""

CURVE_ROWS = 12
"""Maximum number of rows of the card's table of figures over steps."""


@strict
@dataclass(kw_only=True)
class _File(schema.Open):
    file: str = schema.text()
    sha256: str = schema.sha256()


@strict
@dataclass(kw_only=True)
class PretrainingRecord(schema.Open):
    """The content of `pretraining.json`; docs/pretraining.md describes its keys."""

    format: int = schema.count(default=1)
    finished: bool
    options: dict
    text: _File
    validation_text: _File | None = None
    tokenizer: dict[str, str] = schema.sha256()
    base: dict | None = None
    curve: list[dict] = field(default_factory=list)
    figures: dict[str, int | float] = schema.finite(default_factory=dict)
    seconds: int | float | None = schema.finite(default=None)

    def validate_figures(self) -> None:
        """Raise ValueError if the pretraining is finished, but the fields `figures` or `curve` are empty."""
        if self.finished and not (self.figures and self.curve):
            raise ValueError(
                "the pretraining is finished, but its scores or its loss curve are missing; copy the folder again"
            )


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record in the folder of a pretraining; raise UserError if it is missing or damaged."""
    return schema.read(PretrainingRecord, folder / RECORD)


def logged(history: Sequence[Mapping[str, Any]], causal_steps: int) -> dict[str, list[dict[str, Any]]]:
    """Return the entries `curve` and `training_log` of the record, made from the log of transformers' Trainer.

    Each loss is the mean over the steps since the previous entry of the log.

    Args:
        causal_steps: Number of steps of next-token prediction.
    """
    names = ("tokens_seen", "loss", "masked_accuracy", "bits_per_character")
    curve = [
        {"step": line["step"], **{name: line[f"eval_{name}"] for name in names}}
        for line in history
        if "eval_loss" in line
    ]
    training, before = [], 0
    for line in (line for line in history if "loss" in line):
        predicts = NEXT if line["step"] <= causal_steps else BOTH if before < causal_steps else MASKED
        facts = {name: line[name] for name in ("step", "loss", "learning_rate", "grad_norm") if name in line}
        training.append({**facts, "predicts": predicts})
        before = line["step"]
    return {"curve": curve, "training_log": training}


def write_card(record: Mapping[str, Any], name: str, *, picture: bool) -> str:
    """Return the text of the model card (README.md) of a pretrained encoder.

    Args:
        picture: Whether the folder contains a picture of the learning curve.
    """
    options, kind = record["options"], record["architecture"]["model_type"]
    metadata = ModelCardData(
        library_name="transformers", pipeline_tag="fill-mask", tags=[kind, "masked-language-model"]
    )
    curve = record["curve"]
    every = -(-len(curve) // CURVE_ROWS)
    card = ModelCard.from_template(
        metadata,
        template_path=str(TEMPLATE),
        name=name,
        record=record,
        options=options,
        rows=[point for i, point in enumerate(curve) if i % every == 0 or i == len(curve) - 1],
        all_options=yaml.safe_dump(dict(options), sort_keys=True, allow_unicode=True),
        picture=CURVE if picture else None,
        dropout=DROPOUT,
        mask="[MASK]" if kind == "bert" else "<mask>",
    )
    return f"{card}\n"


def write_encoder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    record: Mapping[str, Any],
    picture: Picture,
) -> None:
    """Write all files of a pretrained encoder to a folder, which may contain other files.

    The options in the record set the data type of the weights. The files are first written to a temporary folder and
    then moved. config.json and the record are moved last, so a folder with these two files contains a complete
    encoder.

    Args:
        picture: The function that draws the curve.

    Raises:
        UserError: If a weight is not finite in the data type of the saved weights.
    """
    with staging_folder(folder / "encoder") as part:
        _save_model(part, model, record["options"])
        save_tokenizer(tokenizer, part)
        drawn = picture(record)
        if drawn is not None:
            (part / CURVE).write_bytes(drawn)
        text = write_card(record, folder.resolve().name, picture=drawn is not None)
        (part / CARD).write_text(text, encoding="utf-8")
        (part / RECORD).write_text(json_text(record), encoding="utf-8")
        last = [LOADED_FIRST, RECORD]
        names = sorted((path.name for path in part.iterdir()), key=lambda name: (name in last, name))
        for name in names:
            fsync(part / name)
            shutil.copymode(part / CARD, part / name)  # transformers makes weights readable only for their owner
        for name in names:
            os.replace(part / name, folder / name)
    fsync(folder)


def _save_model(folder: Path, model: PreTrainedModel, options: Mapping[str, Any]) -> None:
    """Save the weights in the data type of the options. config.json makes transformers compute in float32."""
    config = copy.deepcopy(model.config)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = DROPOUT
    stored = copy.deepcopy(model).to("cpu", getattr(torch, options["export_dtype"]))
    if odd := [name for name, weight in stored.named_parameters() if not weight.isfinite().all()]:
        raise UserError(
            f"{odd[0]} has values that are not finite in {options['export_dtype']}; give "
            f"{spell('export_dtype', 'float32')} or, if the loss is not finite, a lower {spell('learning_rate')}"
        )
    stored.config = config
    with quiet():
        stored.save_pretrained(folder)
    config.dtype = (
        torch.float32
    )  # save_pretrained has written the type of the file, in which transformers would compute
    config.save_pretrained(folder)
