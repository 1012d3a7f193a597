"""Add the modules of a sentence-transformers folder to an encoder, so that the encoder returns the same vectors."""

from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import normalizers
from torch import nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

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
    encoder_folder,
    read_modules,
    read_pooling_settings,
    read_text_settings,
)
from dcpcse.utils.console import notify, warn
from dcpcse.utils.errors import UserError
from dcpcse.utils.tensor_files import load_pickle, load_tensors, require_same_tensors


def modules_folder(name: str, options: LoadOptions) -> Path | None:
    """Return the local folder with all settings of a sentence-transformers model, or None for other encoders.

    Args:
        name: Folder or hub id of the model.
        options: Revision, cache and access token for the Hub.
    """
    if not hub.is_hub_id(name):
        return Path(name) if (Path(name) / MODULES).is_file() else None
    if (modules_file := hub.download_first(name, [MODULES], options)) is None:
        return None
    paths = [module.path for module in read_modules(modules_file.parent)[1:]]
    files = [f"{path}/{file}" for path in paths for file in (CONFIG, WEIGHTS, PICKLE)]
    return hub.download_files(name, [MODULES, MODEL_CONFIG, *SENTENCE_CONFIGS, *files], options)


def is_sentence_encoder(name: str, options: LoadOptions) -> bool:
    """Return whether an encoder is a sentence encoder: whether its folder has files of sentence-transformers.

    Args:
        name: Folder or hub id of the encoder.
        options: Revision, cache and access token for the Hub.
    """
    files = (MODULES, MODEL_CONFIG)
    if not hub.is_hub_id(name):
        return any((Path(name) / file).is_file() for file in files)
    return hub.download_first(name, files, options) is not None


class SentenceFolder:
    """The settings of a sentence-transformers folder.

    Attributes:
        folder: The folder.
        modules: The modules that the folder lists.
        encoder: The folder of the encoder.
        texts: Settings for the preparation of texts.

    Raises:
        UserError: If a module is unknown.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules = read_modules(folder)
        self.encoder = encoder_folder(folder, self.modules)
        self.texts = read_text_settings(folder, self.encoder)

    @classmethod
    def find(cls, name: str, options: LoadOptions) -> "SentenceFolder | None":
        """Return the sentence-transformers settings of an encoder, or None if the encoder has no such settings.

        Args:
            name: Folder or hub id of the encoder.
            options: Revision, cache and access token for the Hub.
        """
        folder = modules_folder(name, options)
        return None if folder is None else cls(folder)

    @cached_property
    def pooling(self) -> PoolingSettings:
        """Settings of the modules after the encoder. Raises UserError if a setting cannot be reproduced."""
        return read_pooling_settings(self.folder, self.modules, self.texts.prefix)

    @cached_property
    def prompts(self) -> dict[str, str]:
        """The prompts by name. {}, with a warning, if the pooling excludes the tokens of prompts (not supported)."""
        if self.texts.prompts and not self.pooling.include_prompt:
            warn(
                f"{self.folder}: its prompts are not used, since its pooling leaves out their tokens (include_prompt)"
            )
            return {}
        return dict(self.texts.prompts)

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Make a tokenizer convert texts to lower case if the folder has this setting."""
        if self.texts.lower_case:
            _add_lower_case(tokenizer)

    def limit_length(self, model: SentenceEncoder) -> None:
        """Set the maximum number of tokens of a model to the maximum that sentence-transformers uses."""
        positions = getattr(model.encoder.backbone.config, "max_position_embeddings", -1)
        limits = [model.tokenizer.model_max_length, *([positions] if positions != -1 else [])]
        length = min(limits) if self.texts.max_length is None else self.texts.max_length
        if length < model.encoder.max_tokens:
            model.require_length(length)
            model.max_length = length


def _add_lower_case(tokenizer: PreTrainedTokenizerBase) -> None:
    """Add conversion to lower case before the other rules of a tokenizer, unless the tokenizer has such a rule."""
    rules: Any = tokenizer.backend_tokenizer.normalizer
    each: list[Any] = [*rules] if type(rules) is normalizers.Sequence else [rules]  # type: ignore[misc]
    if any(isinstance(rule, normalizers.Lowercase) or getattr(rule, "lowercase", False) for rule in each):
        return
    present = [rule for rule in each if rule is not None]
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *present])
    # When the tokenizer is loaded, a class for one kind of model, such as BertTokenizer, builds its rules from
    # settings.
    tokenizer.__class__ = PreTrainedTokenizerFast


def settle_modules(model: SentenceEncoder, after: PoolingSettings) -> None:
    """Add the dense layers and the normalisation of a sentence-transformers folder to a model.

    The resulting representation is logged.

    Args:
        model: The model that is changed.
        after: Settings of the modules after the encoder.
    """
    if after.dense:
        layers = [_dense_layer(settings) for settings in after.dense]
        sizes = [model.dimension, *(layer.out_features for layer in layers)]
        for layer, size, settings in zip(layers, sizes, after.dense, strict=False):
            if layer.in_features != size:
                raise UserError(
                    f"{settings.folder}: its weights need input vectors of {layer.in_features} values, but the "
                    f"vectors have {size}; copy the folder again"
                )
        model.head, model.head_at_inference = DenseLayers(layers, [dense.activation for dense in after.dense]), True
        model.requires_grad_(False).eval()
    model.normalize = after.normalize
    parts = [str(after), f"at most {model.max_tokens} tokens"]
    parts += [f"after the text {model.text_prefix!r}"] if model.text_prefix else []
    parts += [f"prompts {', '.join(model.prompts)}"] if model.prompts else []
    notify(f"representation: {', '.join(parts)}, as {MODULES} says")


def _dense_layer(settings: DenseSettings) -> nn.Linear:
    safe, pickled = settings.folder / WEIGHTS, settings.folder / PICKLE
    weights = load_pickle(pickled) if pickled.is_file() and not safe.is_file() else load_tensors(safe)
    shape = weights["linear.weight"].shape if "linear.weight" in weights else ()
    if len(shape) != 2:
        raise UserError(f"{settings.folder} has no matrix linear.weight; copy the folder again")
    layer = nn.Linear(shape[1], shape[0], bias=settings.bias)
    state_dict = {name.removeprefix("linear."): tensor for name, tensor in weights.items()}
    require_same_tensors(f"{settings.folder}: the dense layer", layer.state_dict(), state_dict)
    layer.load_state_dict(state_dict)
    return layer
