"""Read the settings of a sentence-transformers folder: modules, pooling, and the preparation of texts.

Only settings that dcpcse can reproduce exactly are read. Any other setting raises an error. torch is not imported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpcse.encoders.encode_options import PROMPT_ROLES, prompt_of
from dcpcse.encoders.storage.manifest import CONFIG, DAMAGED, MODEL_CONFIG, MODULES, SENTENCE_CONFIG, read_object
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import require_inside
from dcpcse.utils.parsing import read_json

SENTENCE_CONFIGS = (
    SENTENCE_CONFIG,
    *(f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")),
)
"""Files with the settings of the module Transformer. The first file that exists is read."""

POOLINGS = {
    "cls": "cls_before_pooler",
    "mean": "avg",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last_token",
}
"""For each pooling mode of sentence-transformers, the name of the same pooler in `POOLERS`."""
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
"""Classes of torch.nn that a Dense module may name as its activation."""

_OWN = "sentence_transformers."
_SENTENCE_EMBEDDING = "sentence_embedding"
_NEUTRAL = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
    **{name: {} for name in ("model_args", "tokenizer_args", "config_args", "processing_kwargs")},
    **{name: {} for name in ("model_kwargs", "processor_kwargs", "config_kwargs")},
}
"""For each setting of the module Transformer, the only supported value. A missing setting has the same value."""
_WITHOUT_EFFECT = ("unpad_inputs",)


@dataclass(frozen=True)
class Module:
    """A module that is listed in the modules.json of a sentence-transformers folder.

    Args:
        kind: Name of the module's class, such as "Pooling".
        path: Relative path of the module's folder.
    """

    kind: str
    path: str


@dataclass(frozen=True)
class TextSettings:
    """Settings with which a sentence-transformers folder prepares texts before they are encoded.

    Args:
        max_length: Maximum number of tokens. None: the tokenizer's maximum.
        lower_case: Whether texts are converted to lower case.
        prefix: Text before each sentence.
        prompts: All prompts by name; {} if none has a text. If the folder has prompts, but none for queries or
            documents, their prompt is empty, as in sentence-transformers.
    """

    max_length: int | None
    lower_case: bool
    prefix: str
    prompts: Mapping[str, str]


@dataclass(frozen=True)
class DenseSettings:
    """The settings of a sentence-transformers module Dense.

    Args:
        folder: Folder that contains the weights.
        activation: Name of the activation, such as "Tanh".
        bias: Whether the layer has a bias.
    """

    folder: Path
    activation: str
    bias: bool


@dataclass(frozen=True)
class PoolingSettings:
    """The settings of the modules that sentence-transformers applies after the encoder.

    Args:
        pooling: Name of the pooler, such as "avg".
        title: Name of the same pooler in sentence-transformers, such as "mean".
        dense: The settings of the modules Dense, in order.
        normalize: Whether embeddings are scaled to unit length.
        include_prompt: Whether the tokens of a prompt are pooled.
    """

    pooling: str
    title: str
    dense: tuple[DenseSettings, ...]
    normalize: bool
    include_prompt: bool

    def __str__(self) -> str:
        parts = [f"{self.title} pooling", *(f"dense layer ({layer.activation})" for layer in self.dense)]
        return ", ".join([*parts, *(["normalised"] if self.normalize else [])])


def read_modules(folder: Path) -> list[Module]:
    """Return the modules of a sentence-transformers folder.

    Raises UserError if modules.json is damaged or names a class that does not belong to sentence-transformers.
    """
    path = folder / MODULES
    entries = read_json(path, DAMAGED)
    fits = isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("type"), str) and isinstance(entry.get("path"), str)
        for entry in entries
    )
    if not fits or not entries:
        raise UserError(f"{path} is not a list of modules with type and path; copy the folder again")
    for entry in entries:
        require_inside(folder, entry["path"])
        if not entry["type"].startswith(_OWN):
            raise _foreign(path, f"the module {entry['type']!r}")
        if entry.get("kwargs"):
            raise _foreign(path, f"arguments of the module {entry['type']!r}")
    return [Module(entry["type"].rpartition(".")[2], entry["path"]) for entry in entries]


def encoder_folder(folder: Path, modules: Sequence[Module]) -> Path:
    """Return the folder of the encoder, which is the first module.

    Args:
        folder: The folder of the model.
        modules: The entries of the folder's modules.json.
    """
    if modules[0].kind != "Transformer":
        raise _foreign(folder / MODULES, f"the module {modules[0].kind} in the first place")
    return folder / modules[0].path


def read_text_settings(folder: Path, encoder: Path) -> TextSettings:
    """Return the settings for the preparation of texts.

    Args:
        folder: The folder of the model.
        encoder: The folder of the model's encoder.

    Raises:
        UserError: If a setting is unknown or cannot be reproduced.
    """
    path = next((encoder / name for name in SENTENCE_CONFIGS if (encoder / name).is_file()), None)
    config = {} if path is None else read_object(path)
    for name, value in config.items():
        neutral = _NEUTRAL.get(name, config)
        if name not in ("max_seq_length", "do_lower_case", *_WITHOUT_EFFECT) and value not in (None, neutral):
            raise _foreign(path, f"{name} {value!r:.60}")
    length, lower = config.get("max_seq_length"), config.get("do_lower_case", False)
    if not (length is None or (type(length) is int and length > 0)) or not isinstance(lower, bool):
        raise UserError(
            f"{path}: expected a whole number above 0 or null as max_seq_length, and true or false as do_lower_case, "
            f"but found {length!r:.40} and {lower!r:.40}; correct the file, or copy the folder again"
        )
    return TextSettings(length, lower, *_prompts(folder / MODEL_CONFIG))


def read_size(folder: Path) -> int | None:
    """Return the number of values to which sentence-transformers shortens embeddings.

    None: embeddings are not shortened.
    """
    path = folder / MODEL_CONFIG
    size = read_object(path).get("truncate_dim") if path.is_file() else None
    if size is not None and not (type(size) is int and size > 0):
        raise UserError(
            f"{path} is damaged: expected a number of values as truncate_dim, found {size!r:.40}; copy the folder "
            "again"
        )
    return size


def read_pooling_settings(folder: Path, modules: Sequence[Module], prefix: str) -> PoolingSettings:
    """Return the settings of the modules after the encoder.

    Args:
        folder: The folder of the model.
        modules: The entries of the folder's modules.json.
        prefix: Text before each sentence.

    Raises:
        UserError: If a module or a setting cannot be reproduced.
    """
    kinds = [module for module in modules[1:] if module.kind != "Dropout"]  # it has no effect at inference
    normalize = bool(kinds) and kinds[-1].kind == "Normalize"
    between = kinds[1:-1] if normalize else kinds[1:]
    if not kinds or kinds[0].kind != "Pooling" or any(module.kind != "Dense" for module in between):
        order = ", ".join(module.kind for module in modules)
        raise _foreign(folder / MODULES, f"the modules {order} instead of Transformer, Pooling, Dense, Normalize")
    title, include_prompt = _pooling_mode(folder / kinds[0].path / CONFIG, prefix)
    if normalize:
        _require_sentence_embedding(folder / kinds[-1].path / CONFIG, optional=True)
    dense = tuple(_dense(folder / layer.path) for layer in between)
    return PoolingSettings(POOLINGS[title], title, dense, normalize, include_prompt)


def _pooling_mode(path: Path, prefix: str) -> tuple[str, bool]:
    config = read_object(path)
    old = {name: value for name, value in config.items() if name.startswith("pooling_mode_")}
    known = ("pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension", *old)
    for name in config:
        if name not in known:
            raise _foreign(path, f"{name} {config[name]!r:.60}")
    modes = config.get("pooling_mode") or [
        name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for name, value in old.items()
        if value
    ]
    modes = (modes or ["mean"]) if isinstance(modes, list) else [modes]
    modes = ["mean_sqrt_len_tokens" if mode == "mean_sqrt_len" else mode for mode in modes]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise _foreign(path, f"the pooling {' and '.join(map(str, modes))!r:.60}")
    include_prompt = config.get("include_prompt", True) is True
    if prefix and not include_prompt:
        raise _foreign(path, "a default prompt that the pooling leaves out (include_prompt)")
    return modes[0], include_prompt


def _dense(folder: Path) -> DenseSettings:
    path = folder / CONFIG
    config = _require_sentence_embedding(path)
    known = ("in_features", "out_features", "bias", "activation_function", "module_input_name", "module_output_name")
    for name, value in config.items():
        if name not in known and value not in (None, False):
            raise _foreign(path, f"{name} {value!r:.60}")
    activation = str(config.get("activation_function", "torch.nn.Tanh"))
    kind = activation.rpartition(".")[2]
    if not activation.startswith("torch.nn.") or kind not in ACTIVATIONS:
        raise _foreign(path, f"the activation {activation!r:.60}")
    return DenseSettings(folder, kind, config.get("bias", True) is True)


def _require_sentence_embedding(path: Path, *, optional: bool = False) -> Mapping[str, Any]:
    config = {} if optional and not path.is_file() else read_object(path)
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, _SENTENCE_EMBEDDING):
            raise _foreign(path, f"{name} {config[name]!r:.60}")
    return config


def _prompts(path: Path) -> tuple[str, dict[str, str]]:
    """Return the text of the default prompt, and all prompts."""
    config = read_object(path) if path.is_file() else {}
    if config.get("model_type") not in (None, "SentenceTransformer"):
        raise _foreign(path, f"model_type {config['model_type']!r:.60}")
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    texts = prompts if isinstance(prompts, dict) else {}
    if name is not None and not (isinstance(name, str) and name in texts and isinstance(texts[name], str | None)):
        raise UserError(
            f"{path} is damaged: default_prompt_name {name!r:.60} names no text in prompts; copy the folder again"
        )
    named = {key: text for key, text in texts.items() if isinstance(text, str)}
    roles = {role: prompt_of(named, "", role) for role in PROMPT_ROLES}
    return texts.get(name) or "", {**named, **roles} if any(named.values()) else {}


def _foreign(path: Path, what: str) -> UserError:
    return UserError(
        f"{path} has {what}, which is not supported here; load the folder with SentenceTransformer and give that "
        f"object to dcpcse.evaluate, or use the encoder without its modules by {spell('pooler')}"
    )
