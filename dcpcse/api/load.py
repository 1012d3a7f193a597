"""`dcpcse.load`, which loads every kind of encoder."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.inference.arguments import EncoderArguments, PublishedEvaluationArguments
from dcpcse.inference.loading import CheckpointArguments, load_model
from dcpcse.utils.arguments import known_arguments, named_texts, path, string, truth_value, whole_number
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, parameter_names


@known_arguments
@parameter_names(
    model_name_or_path="name", pooler_type="pooler", denoise_at_inference="denoise", model_revision="revision"
)
def load(
    name: str | os.PathLike[str],
    base: str | None = None,
    *,
    pooler: str | None = None,
    template: str | None = None,
    prompt: str | None = None,
    prompts: Mapping[str, str] | None = None,
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

    The kind of the encoder is recognised from `name`, in this order:

    - A file of word vectors (GloVe, or word2vec as text): the word vectors of a sentence are averaged.
    - An output folder of training or one of its checkpoints: all settings come from the folder.
    - A checkpoint of other code that `dcpcse.import_checkpoint` supports: the checkpoint is converted in memory.
    - A sentence-transformers folder: pooling, dense layers, normalisation, maximum length, lower case and default
      prompt come from its `modules.json` and the files that belong to it.
    - Any other encoder, a Hugging Face folder or id: `pooler` selects the sentence representation. The default is
      "cls", the vector of [CLS] after the pooler of the encoder.

    A log line (logger `dcpcse`, level INFO) describes the representation. Weights in pickles (`.bin`) are read without
    running code.

    Args:
        name: Folder, file or hub id of the encoder.
        base: Folder or hub id of the frozen encoder. Needed if the frozen encoder of an output folder has moved (the
            weights must be the same as in training), or if a checkpoint of other code does not contain an encoder.
        pooler: A value of the option `--pooler` of evaluation.py, which replaces the representation recorded in the
            folder. For a sentence-transformers folder, it replaces all modules after the encoder.
        template: The template into which sentences are inserted. None: the template of the folder, if there is one.
        prompt: Text before each sentence, or "" for no text. None: as recorded in the folder.
        prompts: Prompts by name, for `encode(..., prompt_name=...)`, in addition to the named prompts of the folder.
        final_period: Whether a full stop is added to sentences. None: as recorded in the folder.
        denoise: Whether the vector of the empty template is subtracted. None: as recorded in the folder.
        normalize: Whether vectors are scaled to unit length. None: as recorded in the folder.
        max_length: Number of tokens to which texts are truncated. None: the maximum of the folder or the encoder.
        bf16: Whether to compute matrix products in bfloat16, which is meant for GPUs.
        device: Device of the model. None: CUDA if it is available.
        revision: Branch, tag or commit on the Hub. For an output folder on disk, the revision of its frozen encoder.
        cache_dir: As in transformers.
        token: As in transformers.
        mlp_only_train: Whether to return the vector before the MLP head.
        top_k: Number of tokens that the pooler "top_k" averages.
        remove: Kinds of tokens that the static poolers leave out (see `--remove` of evaluation.py).
        lm_head: Masked-LM head of the poolers "top_k" and "static_lm_head": "checkpoint", or a folder or hub id.
        layout: Name of the format of a checkpoint of other code (see docs/formats.md). None: recognise the format.
        tokenizer: Folder or hub id of the tokenizer of a checkpoint of other code.
        denoise_from_zero: Whether the positions of the empty template start at 0, for a checkpoint of other code.
        position_offset: Position of the first text token of a checkpoint of other code. None: the prompt length, as in
            the public code.

    Raises:
        UserError: If `name` is not an encoder of these kinds, if files are damaged or contain code, if `base` is a
            different encoder, if a setting of a sentence-transformers folder cannot be reproduced, or if an argument
            has no effect on this encoder. The message has one line.
    """
    name = _name(name)
    flags = {"denoise": denoise, "final_period": final_period, "mlp_only_train": mlp_only_train}
    flags |= {"normalize": normalize, "denoise_from_zero": denoise_from_zero, "bf16": bf16}
    for argument, value in flags.items():
        if value is not None:
            truth_value(argument, value)
    if max_length is not None:
        whole_number("max_length", max_length, 1)
    settings: dict[str, Any] = {"top_k": top_k, "remove": remove, "lm_head": lm_head}
    arguments = EncoderArguments(
        pooler_type=pooler,
        template=template,
        prompts=None if prompts is None else named_texts("prompts", prompts),
        denoise=denoise,
        final_period=final_period,
        base=base,
        bf16=bool(bf16),
        device=None if device is None else str(device),
        **{argument: value for argument, value in settings.items() if value is not None},
    )
    model = load_model(
        name,
        arguments,
        PublishedEvaluationArguments(mlp_only_train=mlp_only_train),
        options=LoadOptions(revision, cache_dir, token),
        of_checkpoint=CheckpointArguments(layout, tokenizer, denoise_from_zero, position_offset),
    )
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
            f"name of type {type(name).__name__}: it is already a model; give it to dcpcse.evaluate or dcpcse.train "
            "without dcpcse.load"
        )
    return os.fspath(path("name", name))
