"""Load the encoder of a model folder: its frozen base, or the trained encoder that the folder contains."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dcpcse.encoders.backbones import Backbone, EncoderSource, load_backbone
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import backbone_path
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import BASE


class _OtherEncoderError(UserError):
    """Raised if the loaded encoder is not the one that the prompts were trained on."""


def load_recorded(
    folder: str | Path, record: Mapping[str, Any], base: str | None, options: LoadOptions | None
) -> Backbone:
    """Load the encoder of a model folder, and compare its fingerprint with the recorded one.

    base: current location of the frozen encoder. Raises UserError if the loaded encoder is a different one, or if a
    base is given for a folder that contains its own encoder.
    """
    if record["backbone"] is None:
        return _load_base(folder, record["base"], base, options)
    if base is not None:
        raise UserError(f"{folder} contains its own trained encoder; leave out {BASE}")
    encoder_folder = backbone_path(Path(folder), record["backbone"])

    def require_same(source: EncoderSource) -> None:
        if source.fingerprint != record["backbone"]["fingerprint"]:
            raise UserError(f"the encoder in {encoder_folder} is not the trained one; copy the folder again")

    return load_backbone(str(encoder_folder), tokenizer=str(folder), options=options, require=require_same)


def require_recorded(
    folder: str | Path, recorded: Mapping[str, Any], source: EncoderSource, where: str, remedy: str
) -> None:
    """Raise UserError unless the encoder loaded from `where` is the recorded base of the folder.

    remedy: the last part of the error message.
    """
    if source.fingerprint != recorded["fingerprint"]:
        raise _OtherEncoderError(
            f"{where} ({source.model_type}, hidden size {source.hidden_size}) is not the encoder that {folder} "
            f"was trained on ({recorded['model_type']}, hidden size {recorded['hidden_size']}, "
            f"{recorded['name_or_path']}): the fingerprints of the weights differ; {remedy}"
        )


def _load_base(
    folder: str | Path, recorded: Mapping[str, Any], base: str | None, options: LoadOptions | None
) -> Backbone:
    where = base or recorded["name_or_path"]
    options = options or LoadOptions()
    if base is None and options.revision is None:
        options = replace(options, revision=recorded["revision"])

    def require_same(source: EncoderSource) -> None:
        require_recorded(folder, recorded, source, where, f"give the recorded one with {BASE}")

    try:
        return load_backbone(where, tokenizer=str(folder), options=options, require=require_same)
    except UserError as error:
        if base is not None or isinstance(error, _OtherEncoderError):
            raise
        raise UserError(
            f"cannot load the frozen encoder of {folder} from {where!r} ({error}); give its location now with {BASE}"
        ) from error
