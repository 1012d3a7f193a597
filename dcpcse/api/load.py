"""`dcpcse.load`: one function for every kind of encoder."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dcpcse.api.words import python_words
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import hub
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.inference.arguments import EncoderArguments, PublishedEvaluationArguments
from dcpcse.inference.loading import load_model
from dcpcse.interop.convert import Choices
from dcpcse.interop.convert.build import EncoderPlace, load_checkpoint
from dcpcse.interop.convert.read import WEIGHT_FILES, read_checkpoint, recognise_checkpoint
from dcpcse.utils.arguments import known_arguments, path, string, truth_value, whole_number
from dcpcse.utils.console import notify
from dcpcse.utils.devices import pick_device
from dcpcse.utils.errors import UserError


@known_arguments
@python_words(pooler_type="pooler", denoise_at_inference="denoise", model_revision="revision")
def load(
    name: str | os.PathLike[str],
    base: str | None = None,
    *,
    pooler: str | None = None,
    template: str | None = None,
    prompt: str | None = None,
    final_period: bool | None = None,
    denoise: bool | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    bf16: bool | None = None,
    device: str | torch.device | None = None,
    revision: str | None = None,
    cache_dir: str | None = None,
    token: str | bool | None = None,
    mlp_only_train: bool | None = None,
    top_k: int | None = None,
    remove: Sequence[str] | None = None,
    lm_head: str | None = None,
    layout: str | None = None,
    tokenizer: str | None = None,
    denoise_from_zero: bool | None = None,
    position_offset: int | None = None,
) -> SentenceEncoder:
    """Load an encoder from disk or from the Hugging Face Hub, in eval mode.

    The kind of `name` is recognised, in this order:

    - a file of word vectors (GloVe, word2vec as text), which are averaged;
    - an output folder of training or one of its checkpoints: everything comes from the folder;
    - a checkpoint of other code that `dcpcse.import_checkpoint` knows: it is converted in memory;
    - a sentence-transformers folder: pooling, dense layers, normalisation, maximum length, lower case and default
      prompt are those of its `modules.json`;
    - any other encoder: a Hugging Face folder or id, with `pooler` ("cls", after its own pooler, by default).

    A log line (logger `dcpcse`, level INFO) names the representation. Weights in pickles (`.bin`) are read without
    running code.

    base: location of the frozen encoder of an output folder, if it has moved (its weights are checked), or of a
    checkpoint of other code that has none. pooler: another representation, a name of `--pooler` of evaluation.py; for
    a sentence-transformers folder it replaces its modules after the encoder. template, final_period, denoise: the
    sentence's template, whether a full stop is added, and whether the template's own vector is subtracted. normalize:
    whether vectors are scaled to unit length. prompt: text before each sentence, "" for none. max_length: number of
    tokens to which texts are truncated. bf16: compute
    matrix products in bfloat16, which is meant for GPUs. device: CUDA by default if available. revision: branch, tag
    or commit on the Hub; for an output folder on disk, that of its base. cache_dir, token: as in transformers.
    mlp_only_train: use the vector before the head. top_k, remove, lm_head: of the poolers "top_k", "static" and
    "static_lm_head". layout: the format of a checkpoint of other code, if it is not recognised; tokenizer,
    denoise_from_zero, position_offset: its settings (see docs/import.md).

    Raises UserError in one line if `name` is none of these, if files are damaged or contain code, if the base is a
    different encoder, if a setting of a sentence-transformers folder cannot be reproduced, or if an argument has no
    effect on this encoder.
    """
    name = _name(name)
    flags = {"denoise": denoise, "final_period": final_period, "mlp_only_train": mlp_only_train}
    flags |= {"normalize": normalize, "denoise_from_zero": denoise_from_zero, "bf16": bf16}
    for argument, value in flags.items():
        if value is not None:
            truth_value(argument, value)
    if max_length is not None:
        whole_number("max_length", max_length, 1)
    options = LoadOptions(revision, cache_dir, token)
    of_checkpoint: dict[str, Any] = {"tokenizer": tokenizer, "denoise_from_zero": denoise_from_zero}
    of_checkpoint["position_offset"] = position_offset
    of_encoder = {"top_k": top_k, "remove": remove, "lm_head": lm_head}
    checkpoint = find_checkpoint(name, layout, options)
    if checkpoint is not None:
        _refuse(of_encoder, f"applies only to plain encoders; {name} is a checkpoint of other code")
        choices = Choices(
            pooler_type=pooler,
            mlp_only_train=mlp_only_train,
            template=template,
            final_period=final_period,
            denoise_at_inference=denoise,
            denoise_from_zero=denoise_from_zero,
            position_offset=position_offset,
        )
        model, _ = load_checkpoint(
            read_checkpoint(checkpoint), EncoderPlace(base, tokenizer, options), layout, choices
        )
        model.to(pick_device(device)).bf16 = bool(bf16)
    else:
        _refuse(of_checkpoint, f"applies only to checkpoints of other code; {name} is none")
        settings: dict[str, Any] = {argument: value for argument, value in of_encoder.items() if value is not None}
        arguments = EncoderArguments(
            pooler_type=pooler,
            template=template,
            denoise=denoise,
            final_period=bool(final_period),
            base=base,
            bf16=bool(bf16),
            device=None if device is None else str(device),
            **settings,
        )
        published = PublishedEvaluationArguments(mlp_only_train=bool(mlp_only_train))
        model = load_model(name, arguments, published, options=options)
    if prompt is not None:
        model.text_prefix = string("prompt", prompt)
    if max_length is not None:
        model.require_length(max_length)
        model.max_length = max_length
    if normalize is not None and normalize != model.normalize:
        notify(f"vectors are {'' if normalize else 'not '}scaled to unit length (normalize={normalize})")
        model.normalize = normalize
    return model


def _name(name: Any) -> str:
    if callable(getattr(name, "encode", None)) and not isinstance(name, str):
        raise UserError(
            f"name of type {type(name).__name__}: it is a model already, so it needs no loading; give it to "
            "dcpcse.evaluate or dcpcse.train as it is"
        )
    return os.fspath(path("name", name))


def find_checkpoint(name: str, layout: str | None, options: LoadOptions) -> Path | None:
    """Return the local folder of a checkpoint of other code; None if the name is anything else.

    layout: the format, if the caller knows it; then the name must be that of a checkpoint.
    """
    if hub.is_hub_id(name):
        if layout is None and hub.find_model_folder(name, options) is not None:
            return None
        folder = hub.download_checkpoint(name, (*WEIGHT_FILES[False], *WEIGHT_FILES[True]), options)
    else:
        folder = Path(name)
    if layout is not None:
        return folder
    known = os.path.isdir(folder) and not is_model_folder(folder) and recognise_checkpoint(folder) is not None
    return folder if known else None


def _refuse(given: dict[str, Any], why: str) -> None:
    for argument, value in given.items():
        if value is not None:
            raise UserError(f"{argument} {why}; leave it out")
