"""Options of `dcpcse pretrain`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from dcpcse.utils.errors import OptionError, UserError, no_effect, spell
from dcpcse.utils.option_fields import SEEDS, Options, flag, option


class Size(NamedTuple):
    """Numbers of layers and hidden units; a head has 64 units, and the inner layers are four times as wide."""

    layers: int
    hidden: int


SIZES: Mapping[str, Size] = {"tiny": Size(2, 128), "mini": Size(4, 256), "small": Size(4, 512), "base": Size(12, 768)}
"""The named architectures of Turc et al. (2019), *Well-Read Students Learn Better*, table 1, and BERT-base."""

HEAD_SIZE = 64

VOCAB_SIZE = 8000
"""Default of --vocab_size, which is None as long as it is not given."""

SHORTEST = 8
"""The shortest --max_seq_length, and the shortest of the sequences that --short_seq_prob shortens."""

INITIALIZER_RANGE = 0.04
"""Default of --initializer_range.

The outputs of a linear layer grow with this number times the square root of the number of units: 0.04 gives a layer of
256 units (0.64) about the outputs that 0.02 gives one of BERT's 768 units (0.55).
"""

CAUSAL_SHARE = 0.25
"""Default of --causal_steps for a new model."""

UNUSED_WITH_TOKENIZER = ("vocab_size", "lowercase")

UNUSED_WITH_MODEL = (
    *("model_type", "size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "initializer_range", "tie_word_embeddings", "tokenizer", *UNUSED_WITH_TOKENIZER),
)
"""Options that describe a new model or its tokenizer. They are None if --model_name_or_path is given."""

OF_OTHERS = ("model_name_or_path", "size", "model_type", "tokenizer", "max_seq_length")
"""Options on which the defaults of other options depend."""


@dataclass
class PretrainingArguments(Options):
    """Options of a pretraining: the data, the model, the masks, the schedule and the output."""

    _argument_group_name = "pretraining"

    output_dir: str | None = option(None, "Folder for the encoder and, until the end, for checkpoints (required).")
    resume: bool = option(
        False, "Continue the interrupted pretraining in --output_dir, with the same text and options."
    )
    export_dtype: str = option(
        "float32",
        "Data type of the saved weights. float16 halves the file; config.json still makes transformers compute in "
        "float32.",
        choices=["float32", "float16"],
    )

    model_name_or_path: str | None = option(
        None,
        "Folder or hub id of a BERT or RoBERTa masked language model, whose pretraining is continued with its "
        "tokenizer. By default, a new model is trained.",
    )
    model_type: str | None = option(
        None, "Architecture and tokenizer of a new model (default: bert).", choices=["bert", "roberta"]
    )
    size: str | None = option(
        None,
        "Named architecture: tiny (2 layers of 128), mini (4 of 256), small (4 of 512), base (12 of 768), with heads "
        "of 64 units (default: mini). The following options change single numbers of it.",
        choices=list(SIZES),
    )
    num_hidden_layers: int | None = option(None, "Number of layers.", at_least=1)
    hidden_size: int | None = option(None, "Size of the hidden states.", at_least=1)
    num_attention_heads: int | None = option(
        None, "Number of heads (default: hidden size / 64, at least 1).", at_least=1
    )
    intermediate_size: int | None = option(
        None, "Size of the inner layers (default: four times the hidden size).", at_least=1
    )
    max_position_embeddings: int | None = option(
        None,
        "Longest input of the encoder in tokens (default: --max_seq_length; positions beyond it stay untrained).",
        at_least=SHORTEST,
    )
    initializer_range: float | None = option(
        None,
        f"Standard deviation of the initial weights other than embeddings (default: {INITIALIZER_RANGE}).",
        above=0,
    )
    tie_word_embeddings: bool | None = flag("Use the word embeddings as the output layer too (default: true).")

    tokenizer: str | None = option(
        None, "Folder or hub id of an existing tokenizer. By default, a tokenizer is trained on the text."
    )
    vocab_size: int | None = option(
        None, f"Number of tokens of the trained tokenizer (default: {VOCAB_SIZE}).", at_least=20
    )
    lowercase: bool | None = flag(
        "Convert the text to lower case and remove accents (default: true for bert; roberta cannot)."
    )

    validation_share: float = option(
        0.02, "Share of the text, in blocks of 100 lines, that is held out to measure the model.", above=0, at_most=0.5
    )
    validation_file: str | None = option(None, "Text file that is used to measure the model in place of a share.")
    max_seq_length: int = option(
        128, "Length in tokens of the sequences that lines are packed into.", at_least=SHORTEST
    )
    short_seq_prob: float = option(
        0.1, f"Share of sequences of random shorter length, from {SHORTEST} tokens on.", at_least=0, at_most=1
    )
    mlm_probability: float = option(
        0.3, "Share of tokens that are masked in training (whole words: share of words).", above=0, at_most=0.9
    )
    whole_word_mask: bool = option(False, "Mask all tokens of a word together; all of them become the mask token.")
    pretraining_dropout: float = option(
        0.0, "Dropout during pretraining, of hidden states and attention.", at_least=0, at_most=0.9
    )
    final_dropout: float = option(
        0.1,
        "Dropout that the config.json of the finished encoder contains. Contrastive training needs it as noise, even "
        "if pretraining uses none.",
        at_least=0,
        at_most=0.9,
    )

    max_steps: int = option(10_000, "Number of optimiser steps.", at_least=1)
    causal_steps: float | None = option(
        None,
        "Steps at the start in which the model predicts each next token from the tokens before it, until it predicts "
        f"masked tokens; below 1, their share of all steps (default: {CAUSAL_SHARE}; 0 with --model_name_or_path).",
        at_least=0,
    )
    per_device_train_batch_size: int = option(32, "Sequences per batch.", at_least=1)
    gradient_accumulation_steps: int = option(1, "Batches per optimiser step.", at_least=1)
    learning_rate: float = option(1e-3, "Highest learning rate of AdamW.", above=0, at_most=10)
    lr_scheduler_type: str = option(
        "linear",
        "Learning rate after the warm-up: falls to 0 (linear, cosine) or constant.",
        choices=["linear", "cosine", "constant"],
    )
    warmup_steps: float = option(
        0.05, "Steps in which the learning rate rises; below 1, their share of all steps.", at_least=0
    )
    weight_decay: float = option(0.01, "Weight decay of AdamW.", at_least=0, at_most=10)
    adam_beta2: float = option(0.98, "Second beta of AdamW.", at_least=0, at_most=0.999999)
    adam_epsilon: float = option(1e-8, "Epsilon of AdamW.", above=0)
    max_grad_norm: float = option(1.0, "Gradients are scaled down to this norm.", above=0)
    seed: int = option(0, "Seed of the weights, the order of the sequences and the masks.", **SEEDS)
    fp16: bool = option(False, "Mixed precision with float16; needs a GPU.")
    bf16: bool = option(False, "Mixed precision with bfloat16.")
    use_cpu: bool = option(False, "Compute on the CPU even if there is a GPU.")
    logging_steps: int = option(50, "Steps between two lines of progress.", at_least=1)
    eval_steps: int = option(500, "Steps between two measurements on the held-out text.", at_least=1)
    save_steps: int = option(500, "Steps between two checkpoints; the last two are kept until the end.", at_least=1)

    def check(self) -> None:
        """Raise OptionError for options that exclude each other, and settle those that are left out."""
        if not self.output_dir:
            raise OptionError("output_dir", reason="is missing", remedy="give a folder for the encoder")
        self._require_no_conflict()
        _settle(self)

    def _require_no_conflict(self) -> None:
        if self.model_name_or_path is not None:
            for name in UNUSED_WITH_MODEL:
                if getattr(self, name) is not None:
                    raise no_effect(
                        name, f"with {spell('model_name_or_path')}, whose model and tokenizer are used unchanged"
                    )
        if self.tokenizer is not None:
            for name in UNUSED_WITH_TOKENIZER:
                if getattr(self, name) is not None:
                    raise no_effect(name, f"with {spell('tokenizer')}, which is not trained")
        if self.model_type == "roberta" and self.lowercase:
            raise OptionError(
                "lowercase",
                True,
                "the tokenizer of roberta distinguishes case",
                f"choose {spell('model_type', 'bert')}, or convert the text to lower case",
            )
        if self.validation_file is not None and self.validation_share != type(self).validation_share:
            raise no_effect("validation_share", f"with {spell('validation_file')}")
        if self.fp16 and self.bf16:
            raise UserError(
                f"{spell('fp16', True)} and {spell('bf16', True)} exclude each other; leave one of them out"
            )
        if self.fp16 and self.use_cpu:
            raise OptionError(
                "fp16",
                reason="needs a GPU",
                remedy=f"use {spell('bf16', True)}, or leave out {spell('use_cpu', True)}",
            )

    @property
    def share(self) -> Fraction:
        """The exact share of blocks that are held out."""
        return Fraction(str(self.validation_share))

    @property
    def causal_count(self) -> int:
        """The number of steps in which the model predicts next tokens; a share of all steps is rounded down."""
        return int(self.causal_steps if self.causal_steps >= 1 else self.causal_steps * self.max_steps)

    def words(self) -> list[str]:
        """Return --output_dir and the options that are not at their defaults, as words of the command line."""
        plain = PretrainingArguments(output_dir=self.output_dir)
        same = PretrainingArguments(output_dir=self.output_dir, **{name: getattr(self, name) for name in OF_OTHERS})
        usual = asdict(same) | {name: getattr(plain, name) for name in OF_OTHERS} | {"output_dir": None}
        words = []
        for name, value in asdict(self).items():
            if value not in (None, usual[name]):
                whole = isinstance(value, float) and value.is_integer()
                words += [f"--{name}", str(int(value) if whole else value)]
        return words

    def recorded(self) -> dict[str, Any]:
        """Return the options that the result depends on, and how it is saved, by name."""
        return {name: value for name, value in asdict(self).items() if name not in ("output_dir", "resume")}


def _settle(args: PretrainingArguments) -> None:
    """Replace values that are None by those that depend on other options; raise UserError if they do not fit."""
    if args.model_name_or_path is None:
        _settle_model(args)
    if args.causal_steps is None:
        args.causal_steps = CAUSAL_SHARE if args.model_name_or_path is None else 0.0
    if args.causal_count >= args.max_steps:
        raise UserError(
            f"{spell('causal_steps', args.causal_steps)} leaves none of the {args.max_steps} steps for masked "
            "tokens; give fewer steps, or a share below 1"
        )
    if args.warmup_steps > args.max_steps:
        raise UserError(
            f"{spell('warmup_steps', args.warmup_steps)} is more than {spell('max_steps', args.max_steps)}; give "
            "fewer steps, or a share below 1"
        )


def _settle_model(args: PretrainingArguments) -> None:
    """Replace the values of a new model that are None; raise UserError if its numbers do not fit."""
    size = SIZES[args.size or "mini"]
    args.model_type = args.model_type or "bert"
    args.initializer_range = args.initializer_range or INITIALIZER_RANGE
    args.tie_word_embeddings = args.tie_word_embeddings is not False
    args.num_hidden_layers = args.num_hidden_layers or size.layers
    args.hidden_size = args.hidden_size or size.hidden
    args.num_attention_heads = args.num_attention_heads or max(1, args.hidden_size // HEAD_SIZE)
    args.intermediate_size = args.intermediate_size or 4 * args.hidden_size
    args.max_position_embeddings = args.max_position_embeddings or args.max_seq_length
    if args.tokenizer is None:
        args.vocab_size = args.vocab_size or VOCAB_SIZE
        args.lowercase = args.model_type == "bert" if args.lowercase is None else args.lowercase
    if args.hidden_size % args.num_attention_heads:
        raise UserError(
            f"{spell('num_attention_heads', args.num_attention_heads)} does not divide the hidden size "
            f"{args.hidden_size}; each head needs the same number of units"
        )
    if args.max_seq_length > args.max_position_embeddings:
        raise UserError(
            f"{spell('max_seq_length', args.max_seq_length)} is longer than the {args.max_position_embeddings} "
            f"positions of the model; lower it, or raise {spell('max_position_embeddings')}"
        )
