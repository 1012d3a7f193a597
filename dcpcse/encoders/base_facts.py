"""The facts that identify an encoder and its tokenizer: the values of its configuration, and its special tokens.

`dcpcse.json` records them, so that an error can name the one that differs. The weights are identified by digests
(`dcpcse.encoders.backbones`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from dcpcse.encoders.positions import positions_of

IN_TRAINING_ONLY = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "activation_dropout"),
    *("embedding_dropout", "mlp_dropout", "layerdrop", "tie_word_embeddings"),
)
"""Fields of a configuration that change training but no vector: dropout, and whether the masked-LM head is tied."""

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
    # Outputs beside the last hidden state, which are requested where they are needed.
    *("output_hidden_states", "output_attentions"),
    # Ids of tokens, since the tokenizer inserts them. `configuration` adds the padding id of RoBERTa's positions.
    *("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"),
    # It fills `layer_types` of ModernBERT, which is compared.
    "global_attn_every_n_layers",
)
"""Fields of a configuration that change neither vectors nor training. All fields in neither list are compared."""

OF_HEADS = ("classifier_activation", "classifier_bias", "decoder_bias")
"""Fields that change the vectors of a masked-LM head only."""


def configuration(model: PreTrainedModel, head: bool = False) -> dict[str, Any]:
    """Return the fields of an encoder's configuration that may change vectors, in a form that can be written to JSON.

    Fields with the default value of their class are left out, so that a field that a later version of transformers
    adds or removes makes no difference.

    Args:
        model: The encoder.
        head: Also return the fields of a masked-LM head.
    """
    values, defaults = plain_values(model.config), plain_values(type(model.config)())
    ignored = {*WITHOUT_EFFECT, *IN_TRAINING_ONLY, *(() if head else OF_HEADS)}
    config = {name: value for name, value in values.items() if name not in ignored and value != defaults.get(name)}
    if (padding := positions_of(model).padding_idx) is not None:
        config["pad_token_id"] = padding
    return {"model_type": model.config.model_type, **config}


def training_configuration(config: PretrainedConfig) -> dict[str, Any]:
    """Return the fields of a configuration that change training but no vector."""
    return {name: value for name, value in plain_values(config).items() if name in IN_TRAINING_ONLY}


def plain_values(config: PretrainedConfig) -> dict[str, Any]:
    """Return all fields of a configuration as plain JSON values."""
    return json.loads(config.to_json_string(use_diff=False))


def configuration_differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield a description of each field in which two results of `configuration` differ.

    Args:
        recorded: The earlier one.
        current: The present one.
    """
    if recorded.get("model_type") != current.get("model_type"):
        yield _difference("model_type", recorded, current)
    elif recorded != current:
        defaults = plain_values(AutoConfig.for_model(current["model_type"]))
        for name in sorted({*recorded, *current}):
            if recorded.get(name, defaults.get(name)) != current.get(name, defaults.get(name)):
                yield _difference(name, defaults | recorded, defaults | current)


def tokenizer_facts(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return all facts about a tokenizer that determine the ids of a text, in a form that can be written to JSON.

    backend: the sha256 of its rules and vocabulary, as this version of tokenizers writes them. Other entries: each
    special token as text and id, and settings. Truncation and padding are left out: they are those of the last call.
    """
    special = {
        role: [[str(token), tokenizer.convert_tokens_to_ids(str(token))] for token in _listed(tokens)]
        for role, tokens in tokenizer.special_tokens_map.items()
    }
    return {
        "tokenizers": tokenizers.__version__,
        "backend": backend_digest(tokenizer),
        **special,
        "truncation_side": tokenizer.truncation_side,
        "split_special_tokens": tokenizer.split_special_tokens,
    }


def backend_digest(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the sha256 of a tokenizer's rules and vocabulary; None for tokenizers written in Python."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    content = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def tokenizer_differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield a description of each fact in which two results of `tokenizer_facts` differ.

    The backend is compared only within one version of tokenizers, since another version may write it differently.

    Args:
        recorded: The earlier one.
        current: The present one.
    """
    ignored = {"tokenizers"} if recorded.get("tokenizers") == current["tokenizers"] else {"tokenizers", "backend"}
    for name in sorted({*recorded, *current} - ignored):
        if recorded.get(name) != current.get(name):
            yield "its rules or vocabulary differ" if name == "backend" else _difference(name, recorded, current)


def _listed(tokens: Any) -> list[Any]:
    return list(tokens) if isinstance(tokens, list | tuple) else [tokens]


def _difference(name: str, recorded: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    return f"{name} is {current.get(name)!r:.80}, and was {recorded.get(name)!r:.80} in training"
