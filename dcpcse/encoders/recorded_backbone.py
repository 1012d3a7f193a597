"""The encoder of a model folder: the frozen one that it was trained on, or the trained one that lies in it."""

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
    """There is an encoder, but not the one that the prompts were trained on."""


def load_recorded(
    folder: str | Path, record: Mapping[str, Any], base: str | None, options: LoadOptions | None
) -> Backbone:
    """The encoder that the record of a folder speaks of, known by its fingerprint.

    base: where the frozen encoder is now. UserError for another encoder, and for a base where the folder holds its
    own.
    """
    if record["backbone"] is None:
        return _load_base(folder, record["base"], base, options)
    if base is not None:
        raise UserError(f"{folder} holds its own encoder, which was trained; leave {BASE} out")
    place = backbone_path(Path(folder), record["backbone"])

    def require_same(source: EncoderSource) -> None:
        if source.fingerprint != record["backbone"]["fingerprint"]:
            raise UserError(f"the encoder in {place} is not the one that was trained; copy the folder again")

    return load_backbone(str(place), tokenizer=str(folder), options=options, require=require_same)


def require_recorded(
    folder: str | Path, recorded: Mapping[str, Any], source: EncoderSource, where: str, remedy: str
) -> None:
    """UserError, with what to do, unless the encoder that lies at `where` is the one recorded as the folder's base."""
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
        require_recorded(folder, recorded, source, where, f"give that one with {BASE}")

    try:
        return load_backbone(where, tokenizer=str(folder), options=options, require=require_same)
    except UserError as error:
        if base is not None or isinstance(error, _OtherEncoderError):
            raise
        raise UserError(
            f"the frozen encoder of {folder} cannot be loaded from {where!r}; give its place now with {BASE}. {error}"
        ) from error
