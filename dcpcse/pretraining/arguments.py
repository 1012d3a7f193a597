"""Options of `dcpcse pretrain`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, NamedTuple

from dcpcse.utils.errors import OptionError, UserError, no_effect, spell
from dcpcse.utils.option_fields import COUNT, SEEDS, Options, flag, option


class Size(NamedTuple):
    """The number of layers and the hidden size of a new encoder.

    Attention heads have 64 units. Feed-forward layers are 4 times as wide as hidden states.
    """

    layers: int
    hidden: int


SIZES: Mapping[str, Size] = {"tiny": Size(2, 128), "mini": Size(4, 256), "small": Size(4, 512), "base": Size(12, 768)}
"""The named architectures of Turc et al. (2019), *Well-Read Students Learn Better*, table 1, and BERT-base."""

HEAD_SIZE = 64
"""Units of a head; a model with a smaller hidden size has one head."""

VOCAB_SIZE = 8000
MAX_STEPS = 10_000
CAUSAL_SHARE = 0.25

SHORTEST = 8
"""The smallest --max_seq_length and --short_seq_length."""

UNUSED_WITH_TOKENIZER = ("vocab_size", "lowercase")

UNUSED_WITH_MODEL = (
    *("model_type", "size", "num_hidden_layers", "hidden_size", "tie_word_embeddings", "tokenizer"),
    *UNUSED_WITH_TOKENIZER,
)
"""Options that describe a new model or its tokenizer. They are None if --model_name_or_path is given."""


@dataclass
class PretrainingArguments(Options):
    """Options of a pretraining: the data, the model, the masks, the schedule and the output.

    An option that has the name of an argument of transformers' Trainer is passed to the Trainer.
    """

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
        "of 64 units (default: mini). The following options change its numbers.",
        choices=list(SIZES),
    )
    num_hidden_layers: int | None = option(None, "Number of layers.", **COUNT)
    hidden_size: int | None = option(None, "Size of the hidden states.", **COUNT)
    tie_word_embeddings: bool | None = flag("Use the word embeddings as the output layer too (default: true).")

    tokenizer: str | None = option(
        None, "Folder or hub id of an existing tokenizer. By default, a tokenizer is trained on the text."
    )
    vocab_size: int | None = option(
        None, f"Maximum number of tokens of the trained tokenizer (default: {VOCAB_SIZE}).", at_least=20
    )
    lowercase: bool | None = flag(
        "Convert the text to lower case and remove accents (default: true for bert; roberta cannot)."
    )

    validation_share: float = option(
        0.02, "Share of the text, in blocks of 100 lines, that is held out to measure the model.", above=0, at_most=0.5
    )
    validation_file: str | None = option(None, "Text file that is used to measure the model in place of a share.")
    max_seq_length: int = option(128, "Length in tokens of the windows of running text.", at_least=SHORTEST)
    short_seq_prob: float = option(
        0.15, "Share of batches whose windows are short and begin with a sentence.", at_least=0, at_most=1
    )
    short_seq_length: int | None = option(
        None, "Length in tokens of these windows (default: a quarter of --max_seq_length).", at_least=SHORTEST
    )
    mlm_probability: float = option(0.3, "Share of tokens that are masked in training.", above=0, at_most=0.9)
    whole_word_mask: bool = option(False, "Mask all tokens of a word together.")
    pretraining_dropout: float = option(
        0.0, "Dropout during pretraining, of hidden states and attention.", at_least=0, at_most=0.9
    )

    max_steps: int | None = option(None, f"Number of optimiser steps (default: {MAX_STEPS}).", **COUNT)
    minutes: float | None = option(
        None,
        "Train for so many minutes, measurements and checkpoints included, in place of a number of steps.",
        above=0,
    )
    causal_steps: float | None = option(
        None,
        "Steps at the start in which the model predicts each next token from the tokens before it, until it predicts "
        "masked tokens; below 1, their share of all steps or of --minutes "
        f"(default: {CAUSAL_SHARE}; 0 with --model_name_or_path).",
        at_least=0,
    )
    per_device_train_batch_size: int = option(
        32, "Windows of --max_seq_length per batch; a batch of short windows has as many tokens.", **COUNT
    )
    gradient_accumulation_steps: int = option(1, "Batches per optimiser step.", **COUNT)
    learning_rate: float = option(1e-3, "Highest learning rate of AdamW.", above=0, at_most=10)
    lr_scheduler_type: str = option(
        "linear",
        "Learning rate after the warm-up: falls to 0 (linear, cosine) or constant.",
        choices=["linear", "cosine", "constant"],
    )
    warmup_steps: float = option(
        0.05,
        "Steps in which the learning rate rises; below 1, their share of all steps or of --minutes.",
        at_least=0,
    )
    weight_decay: float = option(0.01, "Weight decay of AdamW.", at_least=0, at_most=10)
    adam_beta2: float = option(0.98, "Second beta of AdamW.", at_least=0, at_most=0.999999)
    adam_epsilon: float = option(1e-8, "Epsilon of AdamW.", above=0)
    max_grad_norm: float = option(1.0, "Gradients are scaled down to this norm.", above=0)
    seed: int = option(0, "Seed of the weights, the order of the windows and the masks.", **SEEDS)
    fp16: bool = option(False, "Mixed precision with float16; needs a GPU.")
    bf16: bool = option(False, "Mixed precision with bfloat16.")
    torch_compile: bool = option(False, "Compile the layers (torch.compile), which takes a minute at the start.")
    use_cpu: bool = option(False, "Compute on the CPU even if there is a GPU.")
    logging_steps: int = option(50, "Steps between two lines of progress.", **COUNT)
    eval_steps: int = option(500, "Steps between two measurements on the held-out text.", **COUNT)
    save_steps: int = option(500, "Steps between two checkpoints; the last two are kept until the end.", **COUNT)

    def check(self) -> None:
        """Raise OptionError for options that exclude each other, and fill in options that are not given."""
        if not self.output_dir:
            raise OptionError("output_dir", reason="is missing", remedy="give a folder for the encoder")
        self._require_no_conflict()
        self._given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        self._settle()

    def _require_no_conflict(self) -> None:
        unused = {
            "max_steps": self.minutes is not None and f"with {spell('minutes')}",
            "validation_share": self.validation_file is not None and f"with {spell('validation_file')}",
        }
        if self.tokenizer is not None:
            unused |= dict.fromkeys(UNUSED_WITH_TOKENIZER, f"with {spell('tokenizer')}, which is not trained")
        if self.model_name_or_path is not None:
            why = f"with {spell('model_name_or_path')}, whose model and tokenizer are used unchanged"
            unused |= dict.fromkeys(UNUSED_WITH_MODEL, why)
        for name, why in unused.items():
            if why and getattr(self, name) != getattr(type(self), name):
                raise no_effect(name, why)
        if self.model_type == "roberta" and self.lowercase:
            remedy = f"choose {spell('model_type', 'bert')}, or convert the text to lower case"
            raise OptionError("lowercase", True, "the tokenizer of roberta distinguishes case", remedy)
        if self.fp16 and self.use_cpu:
            remedy = f"use {spell('bf16', True)}, or leave out {spell('use_cpu', True)}"
            raise OptionError("fp16", reason="needs a GPU", remedy=remedy)

    def _settle(self) -> None:
        """Replace None by a value that depends on other options; raise UserError if options do not fit together."""
        if self.model_name_or_path is None:
            self._settle_model()
        self.short_seq_length = self.short_seq_length or max(SHORTEST, self.max_seq_length // 4)
        if self.short_seq_length > self.max_seq_length:
            raise UserError(
                f"{spell('short_seq_length', self.short_seq_length)} is more than "
                f"{spell('max_seq_length', self.max_seq_length)}; lower {spell('short_seq_length')}"
            )
        if self.causal_steps is None:
            self.causal_steps = CAUSAL_SHARE if self.model_name_or_path is None else 0.0
        if self.minutes is None:
            self.max_steps = self.max_steps or MAX_STEPS
        for name in ("causal_steps", "warmup_steps"):
            if (value := getattr(self, name)) >= (self.max_steps or 1):
                limit = f"1, since it is a share of {spell('minutes')}" if self.minutes else self.max_steps
                raise OptionError(name, value, f"must be below {limit}")

    def _settle_model(self) -> None:
        size = SIZES[self.size or "mini"]
        self.model_type = self.model_type or "bert"
        self.tie_word_embeddings = self.tie_word_embeddings is not False
        self.num_hidden_layers = self.num_hidden_layers or size.layers
        self.hidden_size = self.hidden_size or size.hidden
        if self.tokenizer is None:
            self.vocab_size = self.vocab_size or VOCAB_SIZE
            self.lowercase = self.model_type == "bert" if self.lowercase is None else self.lowercase
        if self.hidden_size > HEAD_SIZE and self.hidden_size % HEAD_SIZE:
            raise OptionError(
                "hidden_size", self.hidden_size, f"must be a multiple of {HEAD_SIZE}, the size of a head"
            )

    @property
    def share(self) -> Fraction:
        """The share of blocks of the text that are held out, as an exact fraction."""
        return Fraction(str(self.validation_share))

    @property
    def causal_share(self) -> float:
        """The share of the training, in steps or in time, in which the model predicts next tokens."""
        return self.causal_steps if self.causal_steps < 1 else self.causal_steps / self.max_steps

    def recorded(self) -> dict[str, Any]:
        """Return the options that change the result of the pretraining or its files, by name."""
        return {name: value for name, value in asdict(self).items() if name not in ("output_dir", "resume")}

    def words(self) -> list[str]:
        """Return the given options as words of a command line. FOLDER replaces the value of --output_dir."""
        given = {name: value for name, value in self._given.items() if name not in ("output_dir", "resume")}
        whole = {name: int(v) for name, v in given.items() if isinstance(v, float) and v.is_integer()}
        options = {"output_dir": "FOLDER", **given, **whole}
        return [word for name, value in options.items() for word in (f"--{name}", str(value))]
