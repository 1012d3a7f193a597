"""Load the encoder of a model folder: its frozen base, or the trained encoder that the folder contains."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dcpcse.encoders.backbones import Backbone, EncoderSource, load_backbone
from dcpcse.encoders.base_facts import configuration_differences, tokenizer_differences
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import WEIGHTS, backbone_path, unrecorded
from dcpcse.utils.errors import UserError, spell

logger = logging.getLogger(__name__)


class _OtherEncoderError(UserError):
    """Raised if the loaded encoder is not the one that the prompts were trained on."""


def load_recorded(
    folder: str | Path, record: Mapping[str, Any], base: str | None, options: LoadOptions | None
) -> Backbone:
    """Load the encoder of a model folder, and compare its fingerprint with the recorded one.

    Args:
        folder: The model folder.
        record: Its manifest.
        base: Current location of the frozen encoder. None: the recorded one.
        options: Revision, cache and token for the Hub.

    Raises:
        UserError: If the loaded encoder is a different one, or if a base is given for a folder that contains its own
            encoder.
    """
    if record["backbone"] is None:
        return _load_base(folder, record["base"], base, options)
    if base is not None:
        raise UserError(f"{folder} contains its own trained encoder; leave out {spell('base')}")
    encoder_folder = backbone_path(Path(folder), record["backbone"])
    if not (encoder_folder / WEIGHTS).is_file():  # a model folder contains no pickles, and none is read in its place
        raise UserError(f"{encoder_folder / WEIGHTS} is missing; the model folder is not complete: copy it again")

    def require_same(source: EncoderSource) -> None:
        if source.fingerprint != record["backbone"]["fingerprint"]:
            raise UserError(f"the encoder in {encoder_folder} is not the trained one; copy the folder again")

    return load_backbone(str(encoder_folder), tokenizer=str(folder), options=options, require=require_same)


def require_recorded(
    folder: str | Path, recorded: Mapping[str, Any], source: EncoderSource, where: str, remedy: str
) -> None:
    """Raise UserError unless a loaded encoder is the recorded base of a folder.

    Args:
        folder: The model folder.
        recorded: The entry `base` of its manifest.
        source: The loaded encoder.
        where: Where it was loaded from, for the message.
        remedy: The last part of the message.
    """
    if (difference := next(base_differences(recorded, source), None)) is not None:
        raise _OtherEncoderError(
            f"{where} ({source.model_type}, hidden size {source.hidden_size}) is not the encoder that {folder} "
            f"was trained on ({recorded['model_type']}, hidden size {recorded['hidden_size']}, "
            f"{recorded['name_or_path']}): {difference}; {remedy}"
        )


def base_differences(recorded: Mapping[str, Any], source: EncoderSource) -> Iterator[str]:
    """Yield a description of each difference between a recorded base and a loaded encoder.

    Args:
        recorded: The entry `base` of a manifest. One of an earlier version is compared by the weights without their
            names.
        source: The loaded encoder.
    """
    current = asdict(source)
    key = "fingerprint" if recorded.get("weights") is None else "weights"
    if recorded["fingerprint"] != current["fingerprint"]:
        yield "the fingerprints of the weights differ"
    elif recorded[key] != current[key]:
        yield "the weights are the same, but under other names"
    if recorded.get("configuration") is not None:
        yield from configuration_differences(recorded["configuration"], current["configuration"])


def recorded_tokenizer_differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield a description of each difference between the tokenizer of a manifest and a loaded tokenizer.

    A manifest of an earlier version is compared by the vocabulary only.

    Args:
        recorded: The manifest.
        current: The `tokenizer_record` of the loaded tokenizer.
    """
    if recorded["vocabulary"] != current["vocabulary"]:
        yield "the vocabularies differ"
    if recorded.get("tokenizer") is not None:
        yield from tokenizer_differences(recorded["tokenizer"], current["tokenizer"])


def tell_unrecorded(folder: str | Path, record: Mapping[str, Any]) -> None:
    """Log what could not be checked in a folder of an earlier version, if anything.

    Args:
        folder: The model folder.
        record: Its manifest.
    """
    if missing := unrecorded(record):
        logger.warning(
            "%s was saved by an earlier version of dcpcse: %s could not be checked; load and save it again to record "
            "them",
            folder,
            ", ".join(missing),
        )


def _load_base(
    folder: str | Path, recorded: Mapping[str, Any], base: str | None, options: LoadOptions | None
) -> Backbone:
    where = base or recorded["name_or_path"]
    options = options or LoadOptions()
    if base is None and options.revision is None:
        options = replace(options, revision=recorded["revision"])

    def require_same(source: EncoderSource) -> None:
        require_recorded(folder, recorded, source, where, f"give the recorded one with {spell('base')}")

    try:
        return load_backbone(where, tokenizer=str(folder), options=options, require=require_same)
    except UserError as error:
        if base is not None or isinstance(error, _OtherEncoderError):
            raise
        raise UserError(
            f"cannot load the frozen encoder of {folder} from {where!r} ({error}); give its location now with "
            f"{spell('base')}"
        ) from error
