"""Write a pretrained encoder as a Hugging Face folder, with its record, its card and the picture of its curve."""

import copy
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dcpcse.encoders.backbones import quiet
from dcpcse.pretraining.record import CARD, CURVE, RECORD, write_card
from dcpcse.pretraining.vocabulary import save_tokenizer
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import fsync, json_text, staging_folder

Picture = Callable[[Mapping[str, Any]], bytes | None]
"""A function that draws the curve of a record as PNG, or returns None if it cannot."""

LOADED_FIRST = "config.json"
"""The file without which nothing loads the folder."""


def write_encoder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    record: Mapping[str, Any],
    picture: Picture,
    *,
    name: str | None = None,
    license_file: str | None = None,
    **card: str,
) -> None:
    """Write all files of a pretrained encoder to a folder, which may contain others.

    The options of the record set the dropout in config.json and the data type of the weights. The files are written
    elsewhere first and then moved, config.json and the record last: whoever finds them finds a complete encoder.
    picture: draws the curve. name: name of the encoder in its card; default: that of the folder. license_file: content
    of a file LICENSE. card: other arguments of `write_card`. Raises UserError if a weight is not finite in the data
    type.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with staging_folder(folder / "encoder") as part:
        _save_model(part, model, record["options"])
        save_tokenizer(tokenizer, part)
        drawn = picture(record)
        if drawn is not None:
            (part / CURVE).write_bytes(drawn)
        if license_file is not None:
            (part / "LICENSE").write_text(license_file, encoding="utf-8")
        text = write_card(record, name or folder.resolve().name, picture=drawn is not None, **card)
        (part / CARD).write_text(text, encoding="utf-8")
        (part / RECORD).write_text(json_text(record), encoding="utf-8")
        last = [LOADED_FIRST, RECORD]
        names = sorted((path.name for path in part.iterdir()), key=lambda name: (name in last, name))
        for name in names:
            fsync(part / name)
            shutil.copymode(part / CARD, part / name)  # transformers writes weights for their owner only
        for name in names:
            os.replace(part / name, folder / name)
    fsync(folder)


def _save_model(folder: Path, model: PreTrainedModel, options: Mapping[str, Any]) -> None:
    """Save the weights in the data type of the options, and a config.json by which they are computed in float32."""
    config = copy.deepcopy(model.config)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = options["final_dropout"]
    stored = copy.deepcopy(model).to("cpu", getattr(torch, options["export_dtype"]))
    if odd := [name for name, weight in stored.named_parameters() if not weight.isfinite().all()]:
        raise UserError(
            f"{odd[0]} has values that are not finite in {options['export_dtype']}; give "
            f"{spell('export_dtype', 'float32')}, or if the loss is not finite, a lower {spell('learning_rate')}"
        )
    stored.config = config
    with quiet():
        stored.save_pretrained(folder)
    config.dtype = torch.float32  # save_pretrained has set the type of the file, in which transformers would compute
    config.save_pretrained(folder)
