"""Options of commands that use an encoder."""

from dataclasses import dataclass, fields

from dcpcse.encoders.pooling import BIAS_NAMES, POOLERS, UNTRAINED, describe_poolers
from dcpcse.encoders.templates import Template
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import option, require


@dataclass
class EncoderArguments:
    """How the encoder that a command uses is reached and read."""

    _argument_group_name = "encoder"

    pooler_type: str | None = option(
        None,
        "Sentence representation. On an output folder of train.py leave it out: the folder knows ('cls' means its "
        "trained representation, any other one overrides it). On another encoder the default is cls. "
        f"{describe_poolers(untrained=True)}.",
        choices=[*POOLERS, *UNTRAINED],
        aliases=["--pooler"],
    )
    template: str | None = option(
        None,
        "Put every sentence into a template: 'This sentence of \"{sentence}\" means [MASK] .', or in the grammar of "
        "the public PromptBERT code. With --pooler mask its [MASK] is the representation.",
    )
    denoise: bool = option(False, "Take the template's own [MASK] vector away, at the positions of the full input.")
    final_period: bool = option(False, "Put a full stop to sentences that end in none of . ? \" '.")
    top_k: int = option(200, "Tokens that --pooler top_k averages.")
    remove: list[str] | None = option(
        None, f"Tokens that the static poolers leave out: {', '.join(BIAS_NAMES)}.", choices=list(BIAS_NAMES)
    )
    lm_head: str = option(
        "checkpoint",
        "Masked-LM head of --pooler top_k and static_lm_head: checkpoint, or a folder or hub id with one.",
    )
    base: str | None = option(None, "Where the frozen encoder of the output folder is now.")
    batch_size: int = option(128, "Sentences a batch, at most.")
    packing: bool = option(True, "Compute no pads, where the encoder allows it; False: padded batches, same numbers.")
    flex_attention: bool = option(
        False,
        "On a GPU: flex attention over packed texts in one row, prompts stored once, where attention has no dropout: "
        "in evaluation and encode.",
    )
    device: str | None = option(None, "cpu, cuda, cuda:1, ... (default: cuda if there is one).")
    cache_dir: str | None = option(None, "Folder for downloads.")
    model_revision: str = option("main", "Branch, tag or commit on the hub.")
    use_auth_token: bool = option(False, "Use the stored hub token.")

    def __post_init__(self) -> None:
        for name in ("batch_size", "top_k"):
            require(getattr(self, name) >= 1, f"--{name}", getattr(self, name), "at least 1")
        if self.template is not None:
            Template.parse(self.template)

    def changed(self) -> set[str]:
        """Names of the options that differ from their defaults."""
        return {field.name for field in fields(self) if getattr(self, field.name) != field.default}


@dataclass
class EncodingArguments:
    """Output file of `dcpcse encode`, its vectors, and the processes that compute them."""

    _argument_group_name = "encoding"

    output: str | None = option(None, "Output file: OUT.npy or OUT.arrow (required).")
    dtype: str = option("float32", "Data type of the vectors in the output.", choices=["float32", "float16"])
    with_sentences: bool = option(False, "Add a column with the sentences to OUT.arrow.")
    normalize: bool = option(False, "Normalize vectors to unit length.")
    max_seq_length: int | None = option(
        None, "Truncate texts to this number of tokens, including special ones (default: the encoder's maximum)."
    )
    bf16: bool = option(False, "Compute in bfloat16 where that is safe; meant for CUDA.")
    chunk_size: int = option(8192, "Lines per chunk. An interrupted run keeps its finished chunks.")
    num_processes: int | None = option(
        None,
        "Number of processes on this machine (default: 1), or with --ray of workers on the cluster (default: one per "
        "GPU, or one per machine).",
    )
    ray: str | None = option(
        None,
        "Encode on the Ray cluster at this address ('auto': the cluster of this machine; 'local': start one here).",
    )
    overwrite: bool = option(False, "Replace an output, finished or not, of a different model, text or option.")

    def __post_init__(self) -> None:
        for name in ("chunk_size", "num_processes", "max_seq_length"):
            given = getattr(self, name)
            require(given is None or given >= 1, f"--{name}", given, "at least 1")
        if not self.output:
            raise UserError("--output is missing; give OUT.npy or OUT.arrow")


@dataclass
class PublishedEvaluationArguments:
    """Options of the papers' evaluation scripts that the folder answers now, or that only mattered in training."""

    _argument_group_name = "options of the papers' script"

    pre_seq_len: int | None = option(None, "Checked against the folder.")
    prefix_projection: bool = option(False, "Checked against the folder.")
    prefix_hidden_size: int | None = option(None, "Checked against the folder.")
    mlp_only_train: bool = option(False, "Evaluate [CLS] before the MLP.")
    do_mlm: bool = option(False, "Of training; no effect on a score, and said so.")
    temp: float | None = option(None, "Of training; no effect on a score, and said so.")
    hard_negative_weight: float | None = option(None, "Of training; no effect on a score, and said so.")
    mlm_weight: float | None = option(None, "Of training; no effect on a score, and said so.")
