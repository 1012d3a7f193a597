"""The identity of an encoder and of a model: what determines it, how it is recorded, and how loading checks it.

`dcpcse.json` records digests of the frozen encoder's weights (`EncoderSource`), and facts about the encoder's
configuration and tokenizer. An error can therefore name the fact that differs. `identity` returns all facts that
determine the embeddings of a model.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tokenizers
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from dcpcse.encoders.positions import positions_of
from dcpcse.encoders.storage import model_folder
from dcpcse.encoders.storage.manifest import MODEL_FOLDER_FILE
from dcpcse.utils.errors import UserError
from dcpcse.utils.private.models import version_of

logger = logging.getLogger(__name__)

IN_TRAINING_ONLY = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "activation_dropout"),
    *("embedding_dropout", "mlp_dropout", "layerdrop", "tie_word_embeddings"),
)
"""Fields of a configuration that change training but no vectors: dropout, and whether the masked-LM head is tied."""

WITHOUT_EFFECT = (
    # The origin of the checkpoint, and how it is loaded: dcpcse chooses the class, the dtype and the attention itself.
    *("transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype", "gradient_checkpointing"),
    # Initial values of new weights; all weights come from the checkpoint.
    *("initializer_range", "initializer_cutoff_factor", "sinusoidal_pos_embds"),
    # Classifiers, other heads and decoders, which are not part of the encoder.
    *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params"),
    *("classifier_dropout", "classifier_pooling", "seq_classif_dropout"),
    *("qa_dropout", "summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
    *("sparse_prediction", "sparse_pred_ignore_index", "use_cache", "deterministic_flash_attn"),
    # Outputs besides the last hidden state, which are requested where they are needed.
    *("output_hidden_states", "output_attentions"),
    # Ids of tokens, since the tokenizer inserts them. `configuration` adds the padding id of RoBERTa's positions.
    *("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"),
    # It fills `layer_types` of ModernBERT, which is compared.
    "global_attn_every_n_layers",
)
"""Fields of a configuration that change neither vectors nor training. They are not compared."""

OF_HEADS = ("classifier_activation", "classifier_bias", "decoder_bias")
"""Fields that only change the vectors of a masked-LM head."""


ROUNDING_ONLY_KEYS = ("device", "torch", "transformers")
"""Names of the facts that change embeddings only by rounding."""

LATER_KEYS = ("weights", "configuration", "special_tokens")
"""Names of the facts that earlier versions did not record. They are compared if both identities have them."""

_CACHE: WeakKeyDictionary[nn.Module, tuple[Any, dict[str, Any]]] = WeakKeyDictionary()
"""Maps a model to its last computed identity and to the state of the model at that time."""


class OtherEncoderError(UserError):
    """Raised if the loaded encoder is not the encoder with which the prompts were trained."""


@dataclass(frozen=True)
class EncoderSource:
    """The origin and the identity of a frozen encoder.

    `weights`, `configuration` and `weights_file` are None if an earlier version of dcpcse recorded the source.
    `weights_file` is not part of the identity.

    Args:
        name_or_path: Folder or hub id.
        revision: Commit on the hub. None for a folder.
        model_type: The model type in the configuration.
        hidden_size: The dimension H of the hidden states.
        fingerprint: Digest of the weights without their names. Earlier versions identified an encoder by this digest
            only.
        weights: Digest of the weights with their names.
        configuration: The result of the function `configuration`.
        weights_file: Name of the file with the weights, such as "pytorch_model.bin". For several files, the name of
            their index.
    """

    name_or_path: str
    revision: str | None
    model_type: str
    hidden_size: int
    fingerprint: str
    weights: str | None = None
    configuration: Mapping[str, Any] | None = None
    weights_file: str | None = None

    @classmethod
    def of(
        cls, model: PreTrainedModel, name_or_path: str, revision: str | None, weights_file: str | None
    ) -> "EncoderSource":
        """Return the source of a loaded encoder without heads.

        Args:
            model: The encoder.
            name_or_path, revision, weights_file: As in `EncoderSource`.
        """
        kind, size = model.config.model_type, model.config.hidden_size
        return cls(name_or_path, revision, kind, size, *fingerprints(model), configuration(model), weights_file)


def configuration(model: PreTrainedModel, head: bool = False) -> dict[str, Any]:
    """Return the fields of an encoder's configuration that may change vectors, as JSON values.

    Fields with the default value of their class are left out. The result therefore stays the same if a later version
    of transformers adds or removes fields.

    Args:
        model: The encoder.
        head: Whether to include the fields that only change a masked-LM head.
    """
    values, defaults = plain_values(model.config), plain_values(type(model.config)())
    ignored = {*WITHOUT_EFFECT, *IN_TRAINING_ONLY, *(() if head else OF_HEADS)}
    config = {name: value for name, value in values.items() if name not in ignored and value != defaults.get(name)}
    if (padding := positions_of(model).padding_idx) is not None:
        config["pad_token_id"] = padding
    return {"model_type": model.config.model_type, **config}


def training_configuration(config: PretrainedConfig) -> dict[str, Any]:
    """Return the fields of a configuration that affect training, but not the vectors of a trained model."""
    return {name: value for name, value in plain_values(config).items() if name in IN_TRAINING_ONLY}


def plain_values(config: PretrainedConfig) -> dict[str, Any]:
    """Return all fields of a configuration as plain JSON values."""
    return json.loads(config.to_json_string(use_diff=False))


def tokenizer_facts(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return all facts about a tokenizer that determine the token ids of a text, as JSON values.

    The entry `backend` is the sha256 of the rules and the vocabulary, as the installed version of tokenizers writes
    them. It is None for tokenizers written in Python. The other entries are settings, and the text and id of each
    special token. Truncation and padding are left out, since every call of the tokenizer sets them.
    """
    special = {
        role: [
            [str(token), tokenizer.convert_tokens_to_ids(str(token))]
            for token in (tokens if isinstance(tokens, list | tuple) else [tokens])
        ]
        for role, tokens in tokenizer.special_tokens_map.items()
    }
    rules = getattr(tokenizer, "backend_tokenizer", None)
    content = None if rules is None else json.loads(rules.to_str()) | {"truncation": None, "padding": None}
    return {
        "tokenizers": tokenizers.__version__,
        "backend": None if content is None else hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        **special,
        "truncation_side": tokenizer.truncation_side,
        "split_special_tokens": tokenizer.split_special_tokens,
    }


def fingerprint(model: nn.Module) -> str:
    """Return the sha256 of a model's weights that does not depend on their names (see `fingerprints`)."""
    return fingerprints(model)[0]


def fingerprints(model: nn.Module) -> tuple[str, str]:
    """Return two sha256 of the shapes and float32 bytes of all weights: without and with the names of the weights.

    The first sha256 does not change if layers are swapped. Earlier versions recorded only this sha256. Poolers are
    excluded, so an encoder has the same fingerprints with and without its pooler.
    """
    state = {name: weight for name, weight in model.state_dict().items() if not name.startswith("pooler.")}
    digests = {name: weight_digest(weight) for name, weight in state.items()}
    parameters = [digests[name] for name, _ in model.named_parameters() if name in digests]
    return combined_digest(parameters), named_digest(digests)


def combined_digest(digests: Iterable[bytes]) -> str:
    """Return a sha256 of the digests of weights that depends neither on their names nor on their order."""
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def named_digest(digests: Mapping[str, bytes], settings: Any = None) -> str:
    """Return a sha256 of the digests of weights by their names, and of settings.

    Args:
        digests: The digest of each weight by the name of the weight.
        settings: Any value that can be written to JSON.
    """
    named = {name: digest.hex() for name, digest in digests.items()}
    return hashlib.sha256(json.dumps([named, settings], sort_keys=True).encode()).hexdigest()


def weight_digest(weight: Tensor) -> bytes:
    """Return the sha256 of the shape and float32 bytes of a weight."""
    data = weight.detach().to("cpu", torch.float32).contiguous()
    digest = hashlib.sha256(repr(tuple(data.shape)).encode())
    digest.update(data.flatten().numpy())
    return digest.digest()


def vocabulary_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the sha256 of all tokens and their ids."""
    return hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def tokenizer_record(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the entries of `dcpcse.json` that identify a tokenizer."""
    return {"vocabulary": vocabulary_fingerprint(tokenizer), "tokenizer": tokenizer_facts(tokenizer)}


def require_recorded(
    folder: str | Path, recorded: Mapping[str, Any], source: EncoderSource, where: str, remedy: str
) -> None:
    """Raise UserError if a loaded encoder is not the recorded base of a folder.

    Args:
        folder: The model folder.
        recorded: The entry `base` of its manifest.
        source: The loaded encoder.
        where: The location of the loaded encoder, for the message.
        remedy: The advice at the end of the message.
    """
    if (difference := next(base_differences(recorded, source), None)) is not None:
        raise OtherEncoderError(
            f"{where} ({source.model_type}, hidden size {source.hidden_size}) is not the encoder that {folder} "
            f"was trained on ({recorded['model_type']}, hidden size {recorded['hidden_size']}, "
            f"{recorded['name_or_path']}): {difference}; {remedy}"
        )


def base_differences(recorded: Mapping[str, Any], source: EncoderSource) -> Iterator[str]:
    """Yield a description of each difference between a recorded base and a loaded encoder.

    Args:
        recorded: The entry `base` of a manifest. If an earlier version wrote the entry, weights are compared without
            their names.
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


def tokenizer_differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield a description of each difference between the tokenizer of a manifest and a loaded tokenizer.

    For a manifest of an earlier version, only the vocabularies are compared. The digests of the tokenizer's rules
    (`backend`) are compared only if the same version of tokenizers computed both, since versions may give different
    digests of the same rules.

    Args:
        recorded: The manifest (`dcpcse.json`) of a model folder.
        current: The `tokenizer_record` of the loaded tokenizer.
    """
    if recorded["vocabulary"] != current["vocabulary"]:
        yield "the vocabularies differ"
    if (earlier := recorded.get("tokenizer")) is not None:
        now = current["tokenizer"]
        ignored = {"tokenizers"} if earlier.get("tokenizers") == now["tokenizers"] else {"tokenizers", "backend"}
        for name in sorted({*earlier, *now} - ignored):
            if earlier.get(name) != now.get(name):
                yield "its rules or vocabulary differ" if name == "backend" else _difference(name, earlier, now)


def tell_unrecorded(folder: str | Path, record: Mapping[str, Any]) -> None:
    """Log a warning that lists the facts about encoder and tokenizer that an earlier version did not record.

    Args:
        folder: The model folder.
        record: The manifest of the folder.
    """
    frozen = record["backbone"] is None  # the sha256 of its files identify a trained encoder
    facts = {
        "the names of the encoder's weights": frozen and record["base"].get("weights"),
        "the encoder's configuration": frozen and record["base"].get("configuration"),
        "the tokenizer's rules and special tokens": record.get("tokenizer"),
        f"the fields of {MODEL_FOLDER_FILE}": record.get("record_sha256"),
    }
    if missing := [name for name, fact in facts.items() if fact is None]:
        logger.warning(
            "%s was saved by an earlier version of dcpcse: %s could not be checked; load and save it again to record "
            "them",
            folder,
            ", ".join(missing),
        )


def configuration_differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield a description of each field in which two results of `configuration` differ.

    Args:
        recorded: The recorded configuration.
        current: The current configuration.
    """
    if recorded.get("model_type") != current.get("model_type"):
        yield _difference("model_type", recorded, current)
    elif recorded != current:
        defaults = plain_values(AutoConfig.for_model(current["model_type"]))
        for name in sorted({*recorded, *current}):
            if recorded.get(name, defaults.get(name)) != current.get(name, defaults.get(name)):
                yield _difference(name, defaults | recorded, defaults | current)


def identity(model: nn.Module) -> dict[str, Any]:
    """Return all facts that determine the embeddings of a model, as JSON values.

    Models with equal facts compute equal embeddings.

    Args:
        model: A `SentenceEncoder`. This module cannot import the class, which imports this module.
    """
    # The weights of a frozen backbone are identified by its source.
    parts = model.encoder.parts() | ({} if model.head is None else {"head": model.head.state_dict()})
    trained = {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}
    special = tokenizer_facts(model.tokenizer)
    backend, _ = special.pop("backend"), special.pop("tokenizers")
    return {
        "base": model.source.fingerprint,
        "weights": model.source.weights,
        "configuration": _configurations(model),
        "dtype": str(model.encoder.backbone.dtype),
        "pooling": model.pooling,
        "head_at_inference": model.head_at_inference,
        "position_offset": model.encoder.position_offset,
        "reading": model.preprocessing_record(),
        "trained": _digest(trained),
        "tokenizer": backend,
        "special_tokens": special,
        "max_tokens": model.max_tokens,
        **_later_settings(model),
        "device": model.device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def current_identity(model: nn.Module) -> dict[str, Any]:
    """Return the `identity` of a model as JSON stores it, with lists in place of tuples.

    The identity is computed again only if the model may have changed since the last call.
    """
    state = _state(model)
    if model not in _CACHE or _CACHE[model][0] != state:
        _CACHE[model] = (state, json.loads(json.dumps(identity(model))))
    return _CACHE[model][1]


def trained_digest(folder: str | Path) -> str:
    """Return the digest of the trained tensors in a folder (`identity(model)["trained"]`). No encoder is loaded."""
    contents = model_folder.read_contents(folder)
    tensors = {
        # In the file, the names of a projection's tensors lack the part "table".
        f"prompt.table.{rest}" if part == "prompt" else f"{part}.{rest}": tensor
        for name, tensor in contents.trained.items()
        for part, _, rest in [name.partition(".")]
    }
    if contents.prompts is not None and not any(name.startswith("prompt.") for name in tensors):
        tensors["prompt.table.weight"] = contents.prompts
    tensors |= {f"lora.{name}": tensor for name, tensor in contents.lora.items()}
    if contents.record["backbone"] is not None:
        weights = model_folder.read_backbone(Path(folder), contents.record["backbone"])
        tensors |= {f"backbone.{name}": tensor for name, tensor in weights.items()}
    return _digest(tensors)


def differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that differ between two identities and change embeddings by more than rounding.

    Facts that are missing in an identity of an earlier version are not compared. `unrecorded` returns their names.

    Args:
        first: An identity.
        other: Another identity.
    """
    compared = {*first, *other} - {*ROUNDING_ONLY_KEYS, *unrecorded(first), *unrecorded(other)}
    return [name for name in sorted(compared) if first.get(name) != other.get(name)]


def unrecorded(recorded: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that are missing in an identity because an earlier version recorded it.

    The earlier version recorded none of the facts in `LATER_KEYS`. If only some of them are missing, the identity is
    damaged, and the result is empty.
    """
    return [] if any(name in recorded for name in LATER_KEYS) else list(LATER_KEYS)


def _state(model: Any) -> Any:
    """Return a value that changes with the weights, preprocessing, pooling and tokenizer, and is fast to compute.

    Changes of weights through `.data` do not change the value.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        return object()  # inference tensors have no version counter; a new object differs from every earlier state
    versions = [(tensor.data_ptr(), version_of(tensor)) for tensor in tensors]
    words = model.tokenizer
    tokenizer = id(words), words.special_tokens_map, words.truncation_side, words.split_special_tokens, len(words)
    reading = model.preprocessing_record(), model.max_tokens, _later_settings(model)
    return versions, model.pooling, model.head_at_inference, reading, tokenizer


def _later_settings(model: Any) -> dict[str, Any]:
    """Return the settings that earlier versions did not have, if they are set; otherwise, identities stay the same."""
    activations = getattr(model.head, "activations", None) if model.head_at_inference else None
    settings = {"normalize": model.normalize, "text_prefix": model.text_prefix, "activations": activations}
    settings |= {"lora": model.encoder.lora and model.encoder.lora.effect, "bf16": model.bf16}
    return {name: value for name, value in settings.items() if value}


def _configurations(model: nn.Module) -> Any:
    """Return the configuration of the encoder, and of a masked-LM head if inference uses a head of this kind."""
    modules = () if model.head is None else model.head.modules()
    heads = [
        configuration(module, head=True) for module in modules if isinstance(module, transformers.PreTrainedModel)
    ]
    return {**model.source.configuration, "heads": heads} if heads else model.source.configuration


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        data = tensor.detach().to("cpu", torch.float32).contiguous()
        digest.update(repr((name, tuple(data.shape))).encode() + data.numpy().tobytes())
    return digest.hexdigest()


def _difference(name: str, recorded: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    return f"{name} is {current.get(name)!r:.80}, and was {recorded.get(name)!r:.80} in training"
