"""Build and initialise a masked language model, or load a model to continue its pretraining."""

import math
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from dcpcse.encoders.backbones import load_masked_lm, quiet
from dcpcse.encoders.identity import fingerprints
from dcpcse.encoders.positions import positions_of
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.pretraining.arguments import HEAD_SIZE, PretrainingArguments
from dcpcse.pretraining.vocabulary import prepared, require_masking
from dcpcse.utils.errors import UserError, spell

WORD_DEVIATION = 0.02
"""Standard deviation of the initial word embeddings, as in BERT.

The word embeddings are also the output layer, and their sum with the positions is normalised. Larger ones would hide
both the unigram probabilities of the output bias and the positions.
"""

POSITION_DEVIATION = 0.03
"""Standard deviation of the initial position embeddings.

It is larger than for the words, so that attention can recognise near tokens from the first step on.
"""

INITIALIZER_RANGE = 0.04
"""Standard deviation of the initial weights other than embeddings.

The outputs of a linear layer grow with this number times the square root of the number of units: 0.04 with 256 units
(0.64) gives about the same outputs as 0.02 with BERT's 768 units (0.55).
"""

LONGEST_WAVE = 10_000
"""The wavelengths of the sinusoids rise from 2 pi to this number times 2 pi (Vaswani et al., 2017, section 3.5)."""


def load_base(args: PretrainingArguments) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, dict[str, str]]:
    """Load the model that --model_name_or_path names, in float32, with the dropout of the pretraining.

    Returns the model, its tokenizer, and the entries about the model for the record of the pretraining. Raises
    UserError if the model is not a BERT or RoBERTa, if the masked-LM head or a special token is missing, or if the
    model has fewer positions than --max_seq_length.
    """
    name = args.model_name_or_path
    model, tokenizer = load_masked_lm(name, LoadOptions())
    if model.config.model_type not in ("bert", "roberta"):
        raise UserError(
            f"{spell('model_name_or_path', name)} is a {model.config.model_type} model; give a BERT or RoBERTa model"
        )
    require_masking(tokenizer, spell("model_name_or_path", name))
    positions = position_count(model)
    if args.max_seq_length > positions:
        raise UserError(
            f"{spell('max_seq_length', args.max_seq_length)} is longer than the {positions} positions of {name}; "
            "lower this option"
        )
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = args.pretraining_dropout
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = args.pretraining_dropout
    facts = {"name_or_path": name, "weights": fingerprints(model)[1]}
    return model, prepared(tokenizer, positions), facts


def position_count(model: PreTrainedModel) -> int:
    """Return the length in tokens of the longest input of a BERT or RoBERTa model."""
    positions = positions_of(model.base_model)
    return positions.size - positions.first


def architecture(model: PreTrainedModel) -> dict[str, Any]:
    """Return the architecture of a model for the record: the values of the options that would create the model."""
    sizes = ("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return {
        **{name: getattr(model.config, name) for name in (*sizes, "tie_word_embeddings")},
        "max_position_embeddings": position_count(model),
    }


def build_model(args: PretrainingArguments, tokenizer: PreTrainedTokenizerFast, counts: Tensor) -> PreTrainedModel:
    """Return a new masked language model, whose random weights are drawn with the seed `args.seed`.

    Args:
        counts (vocabulary,): Number of occurrences of each token in the training text.
    """
    transformers.set_seed(args.seed)
    with quiet():
        model = transformers.AutoModelForMaskedLM.from_config(_config(args, tokenizer))
    initialize(model, counts)
    return model


@torch.no_grad()
def initialize(model: PreTrainedModel, counts: Tensor) -> None:
    """Set the initial embeddings and the output bias of a new BERT or RoBERTa. Other weights are not changed.

    The position embeddings start as sinusoids (Vaswani et al., 2017, section 3.5) and are trained. Neighbouring
    positions are therefore similar from the start, unlike random position embeddings. The output bias is the logarithm
    of the unigram probabilities, (count + 1) / sum. The model therefore starts with the loss of the unigram model and
    need not learn the frequencies of tokens.

    Args:
        counts (vocabulary,): Number of occurrences of each token in the training text.
    """
    model.get_input_embeddings().weight.normal_(0, WORD_DEVIATION)
    first = positions_of(model.base_model).first
    table = model.base_model.embeddings.position_embeddings.weight[first:]
    table.copy_(sinusoids(*table.shape))
    table *= POSITION_DEVIATION * 2**0.5  # the mean square of a sinusoid is 1/2
    smoothed = counts.to(torch.float32) + 1
    model.get_output_embeddings().bias.copy_((smoothed / smoothed.sum()).log())


def sinusoids(count: int, size: int) -> Tensor:
    """Return position embeddings (count, size): sines in even columns, cosines of the same waves in odd columns."""
    waves = torch.exp(-math.log(LONGEST_WAVE) * torch.arange(0, size, 2) / size)
    angles = torch.arange(count)[:, None].float() * waves
    table = torch.empty(count, size)
    table[:, 0::2], table[:, 1::2] = torch.sin(angles), torch.cos(angles)[:, : size // 2]
    return table


def _config(args: PretrainingArguments, tokenizer: PreTrainedTokenizerFast) -> PretrainedConfig:
    common = {
        **{name: getattr(args, name) for name in ("num_hidden_layers", "hidden_size", "tie_word_embeddings")},
        "num_attention_heads": max(1, args.hidden_size // HEAD_SIZE),
        "intermediate_size": 4 * args.hidden_size,
        "initializer_range": INITIALIZER_RANGE,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "max_position_embeddings": args.max_seq_length,
        "hidden_dropout_prob": args.pretraining_dropout,
        "attention_probs_dropout_prob": args.pretraining_dropout,
    }
    if args.model_type == "bert":
        return transformers.BertConfig(**common)
    # As in the published models: positions are counted from the id of the padding token + 1.
    return transformers.RobertaConfig(
        **{**common, "max_position_embeddings": args.max_seq_length + tokenizer.pad_token_id + 1},
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
