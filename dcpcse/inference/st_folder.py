"""Give an encoder the modules of a sentence-transformers folder, so that its vectors are those of that library."""

from pathlib import Path
from typing import Any

from tokenizers import normalizers
from torch import nn
from transformers import PreTrainedTokenizerBase

from dcpcse.encoders.heads import DenseLayers
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import hub
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import CONFIG, MODULES, PICKLE, WEIGHTS
from dcpcse.encoders.storage.st_modules import (
    MODEL_CONFIG,
    SENTENCE_CONFIGS,
    DenseSettings,
    PoolingSettings,
    TextSettings,
    encoder_folder,
    read_modules,
    read_pooling_settings,
    read_text_settings,
)
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.pickled_tensors import load_pickle
from dcpcse.utils.safetensors_io import load_tensors, require_same_tensors


def modules_folder(name: str, options: LoadOptions) -> Path | None:
    """Return the folder of a sentence-transformers model, with all its settings; None for other encoders."""
    if not hub.is_hub_id(name):
        return Path(name) if (Path(name) / MODULES).is_file() else None
    if (found := hub.download_first(name, [MODULES], options)) is None:
        return None
    paths = [module.path for module in read_modules(found.parent)[1:]]
    own = [f"{path}/{file}" for path in paths for file in (CONFIG, WEIGHTS, PICKLE)]
    return hub.download_files(name, [MODULES, MODEL_CONFIG, *SENTENCE_CONFIGS, *own], options)


def is_sentence_encoder(name: str, options: LoadOptions) -> bool:
    """Return whether an encoder was trained for sentences already, by the files of sentence-transformers beside it."""
    files = (MODULES, MODEL_CONFIG)
    if not hub.is_hub_id(name):
        return any((Path(name) / file).is_file() for file in files)
    return hub.download_first(name, files, options) is not None


def read_representation(name: str, options: LoadOptions) -> PoolingSettings | None:
    """Return how a sentence-transformers model represents a sentence; None for other encoders.

    Raises UserError if its modules cannot be reproduced.
    """
    if (folder := modules_folder(name, options)) is None:
        return None
    modules = read_modules(folder)
    texts = read_text_settings(folder, encoder_folder(folder, modules))
    return read_pooling_settings(folder, modules, texts.prefix)


def prepare_texts(model: SentenceEncoder, texts: TextSettings, *, templated: bool) -> None:
    """Prepare texts as sentence-transformers does: lower case, default prompt, maximum length."""
    if texts.lower_case:
        _add_lower_case(model.tokenizer)
    if not templated:
        model.text_prefix = texts.prefix
    positions = getattr(model.encoder.backbone.config, "max_position_embeddings", -1)
    limits = [model.tokenizer.model_max_length, *([positions] if positions != -1 else [])]
    length = min(limits) if texts.max_length is None else texts.max_length
    if length < model.encoder.max_tokens:
        model.require_length(length)
        model.max_length = length


def _add_lower_case(tokenizer: PreTrainedTokenizerBase) -> None:
    """Convert texts to lower case before the rules of the tokenizer, unless one of them is `Lowercase`."""
    rules: Any = tokenizer.backend_tokenizer.normalizer
    each: list[Any] = [*rules] if type(rules) is normalizers.Sequence else [rules]  # type: ignore[misc]
    if not any(isinstance(rule, normalizers.Lowercase) for rule in each):
        present = [rule for rule in each if rule is not None]
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *present])


def settle_modules(model: SentenceEncoder, after: PoolingSettings) -> None:
    """Apply the modules after the pooling, and log the representation."""
    if after.dense:
        layers = [_dense_layer(settings) for settings in after.dense]
        sizes = [model.dimension, *(layer.out_features for layer in layers)]
        for layer, size, settings in zip(layers, sizes, after.dense, strict=False):
            if layer.in_features != size:
                raise UserError(
                    f"{settings.folder}: its weights take {layer.in_features} values, but there are {size}"
                )
        model.head, model.head_at_inference = DenseLayers(layers, [one.activation for one in after.dense]), True
        model.requires_grad_(False).eval()
    model.normalize = after.normalize
    parts = [str(after), f"at most {model.max_tokens} tokens"]
    parts += [f"after the text {model.text_prefix!r}"] if model.text_prefix else []
    notify(f"representation: {', '.join(parts)}, as {MODULES} says")


def _dense_layer(settings: DenseSettings) -> nn.Linear:
    safe, pickled = settings.folder / WEIGHTS, settings.folder / PICKLE
    weights = load_pickle(pickled) if pickled.is_file() and not safe.is_file() else load_tensors(safe)
    shape = weights["linear.weight"].shape if "linear.weight" in weights else ()
    if len(shape) != 2:
        raise UserError(f"{settings.folder} has no matrix linear.weight; copy the folder again")
    layer = nn.Linear(shape[1], shape[0], bias=settings.bias)
    found = {name.removeprefix("linear."): tensor for name, tensor in weights.items()}
    require_same_tensors(f"{settings.folder}: the dense layer", layer.state_dict(), found)
    layer.load_state_dict(found)
    return layer
