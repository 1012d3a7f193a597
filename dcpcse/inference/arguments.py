"""Options of the commands that use an encoder."""

from dataclasses import InitVar, dataclass, fields

from dcpcse.encoders.encode_options import PrecisionOptions
from dcpcse.encoders.pooling import BIAS_NAMES, POOLERS, UNTRAINED, describe_poolers
from dcpcse.encoders.templates import Template
from dcpcse.utils.errors import OptionError, spell
from dcpcse.utils.option_fields import COUNT, Options, flag, option


@dataclass
class EncoderArguments(Options):
    """Options for loading an encoder and for choosing its sentence representation."""

    _argument_group_name = "encoder"

    pooler_type: str | None = option(
        None,
        "Sentence representation. Not needed for a model folder of train.py, which records it (cls is its trained "
        "representation; any other value overrides it). Default for other encoders: cls. "
        f"{describe_poolers(untrained=True)}.",
        choices=[*POOLERS, *UNTRAINED],
        aliases=["--pooler"],
    )
    template: str | None = option(
        None,
        "Template for every sentence, such as 'This sentence of \"{sentence}\" means [MASK] .', or in the grammar of "
        "the public PromptBERT code. With --pooler mask its [MASK] is the representation.",
        text=True,
    )
    prompt: str | None = option(
        None,
        "Text before each sentence, such as 'query: '; '' for none. Default: as recorded in the folder, or the "
        "default prompt of its config_sentence_transformers.json.",
        text=True,
    )
    prompts: list[str] | None = option(
        None,
        "Named prompts, such as query='query: ' document='passage: ', in addition to those of the folder. "
        "--prompt_name chooses one; searches use query and document.",
        named=True,
        text=True,
    )
    denoise: bool | None = flag(
        "Subtract the [MASK] vector of the template alone, at the positions of the full input. Default: as recorded "
        "in the model folder; not for other encoders."
    )
    final_period: bool | None = flag("Add a full stop to sentences that do not end with . ? \" or '.")
    top_k: int = option(200, "Number of tokens that --pooler top_k averages.", at_least=1)
    remove: list[str] | None = option(
        None,
        f"Kinds of tokens that the static poolers leave out: {', '.join(BIAS_NAMES)}. For case, sentences are "
        "converted to lower case.",
        choices=list(BIAS_NAMES),
    )
    lm_head: str = option(
        "checkpoint",
        "Masked-LM head of --pooler top_k and static_lm_head: checkpoint (the encoder's own), or a folder or hub id.",
    )
    base: str | None = option(None, "Folder or hub id of the frozen encoder. Default: the one recorded in the folder.")
    bf16: bool = option(
        False, "Compute matrix products in bfloat16, and the rest in float32; meant for GPUs with bfloat16 units."
    )
    packing: bool = option(
        True, "Compute no padding tokens if the encoder allows it. False pads batches; the results are the same."
    )
    attention: str | None = option(
        None,
        "Attention over packed sentences: triton (kernels for GPUs, in half precision) or torch. Default: triton "
        "where it can be used.",
        choices=["triton", "torch"],
    )
    device: str | None = option(None, "Device: cpu, cuda, cuda:1, ... Default: cuda if available.")
    cache_dir: str | None = option(None, "Folder for downloads.")
    model_revision: str = option("main", "Branch, tag or commit on the hub.")
    use_auth_token: bool = option(False, "Use the stored hub token.")

    def check(self) -> None:
        """Raise UserError if `template` is not a valid template."""
        if self.template is not None:
            Template.parse(self.template)

    def changed(self) -> set[str]:
        """Return the names of the options that differ from their defaults."""
        return {field.name for field in fields(self) if getattr(self, field.name) != field.default}


@dataclass
class EncodingArguments(PrecisionOptions):
    """Options of `dcpcse encode` for the output file and for the processes that compute the vectors.

    Args:
        max_seq_length: Alternative name of `max_length`.
    """

    output: str | None = option(None, "Output file: OUT.npy or OUT.arrow (required).")
    dtype: str = option(
        "float32", "Data type of the vectors in the output, without --precision.", choices=["float32", "float16"]
    )
    column: str | None = option(
        None, "Column to encode of a table (.csv, .tsv, .json, .jsonl, .parquet); a text file has none.", text=True
    )
    with_sentences: bool = option(False, "Add a column with the sentences to OUT.arrow.")
    chunk_size: int = option(8192, "Lines per chunk. An interrupted run keeps its finished chunks.", at_least=1)
    num_processes: int | None = option(
        None,
        "Number of processes on this machine (default: 1), or with --ray of workers on the cluster (default: one per "
        "GPU, or one per machine if no GPU is used).",
        at_least=1,
    )
    ray: str | None = option(
        None,
        "Encode on the Ray cluster at this address ('auto': the cluster of this machine; 'local': start one here).",
    )
    overwrite: bool = option(False, "Replace an output, finished or not, of a different model, text or option.")
    max_seq_length: InitVar[int | None] = None

    def __post_init__(self, max_seq_length: int | None) -> None:
        self.max_length = max_seq_length if self.max_length is None else self.max_length
        super().__post_init__()

    def check(self) -> None:
        """Raise OptionError if the output is missing, or if two options set the type of its numbers."""
        if not self.output:
            raise OptionError("output", reason="is missing", remedy="give OUT.npy or OUT.arrow")
        if self.precision != "float32" and self.dtype != "float32":
            raise OptionError(
                "dtype", self.dtype, f"contradicts {spell('precision', self.precision)}", "leave one out"
            )


@dataclass
class PublishedEvaluationArguments(Options):
    """Options of the evaluation scripts of DCPCSE and similar papers that `EncoderArguments` lacks."""

    _argument_group_name = "options of the papers' script"

    pre_seq_len: int | None = option(None, "Prompt length; it must equal the length in the model folder.", **COUNT)
    prefix_projection: bool = option(
        False, "Whether an MLP computes the prompts; it must agree with the model folder."
    )
    prefix_hidden_size: int | None = option(
        None, "Hidden size of that MLP; it must equal the size in the model folder.", **COUNT
    )
    mlp_only_train: bool | None = flag("Evaluate [CLS] before the MLP.")
    do_mlm: bool = option(False, "Option of training without an effect on scores; it is reported.")
    temp: float | None = option(None, "Option of training without an effect on scores; it is reported.")
    hard_negative_weight: float | None = option(
        None, "Option of training without an effect on scores; it is reported."
    )
    mlm_weight: float | None = option(None, "Option of training without an effect on scores; it is reported.")
