"""Options of evaluation and encoding, as dataclasses with their checks. Nothing else happens here.

Apart from `dcpcse.arguments`: those of training are transformers' TrainingArguments too, which take seconds to import.
"""

from dataclasses import dataclass, fields

from senteval.names import FAMILY_OF, MODE_NAMES, TASK_SETS, find_by_name, tasks_of_set

from .errors import UserError
from .options import option, require
from .pooling import BIAS_NAMES, POOLERS, UNTRAINED, describe_poolers
from .templates import Template

OPTIONS_OF_FAMILY = {
    "classifier": "transfer",
    "nhid": "transfer",
    "shots": "fewshot",
    "draws": "fewshot",
    "kmeans_runs": "clustering",
    "retrieval_identical": "retrieval",
    "geometry_sentences": "geometry",
    "geometry_sample": "geometry",
}

OPTIONS_OF_POSTPROCESS = {
    "whitening_dimensions": "whitening",
    "flow_epochs": "flow",
    "flow_learning_rate": "flow",
    "flow_seed": "flow",
}


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
    """Where the vectors of a text file go, what they are, and who makes them."""

    _argument_group_name = "encoding"

    output: str | None = option(None, "The file that is written: OUT.npy or OUT.arrow (required).")
    dtype: str = option("float32", "Type of the numbers in the file.", choices=["float32", "float16"])
    with_sentences: bool = option(False, "OUT.arrow holds the sentences too.")
    normalize: bool = option(False, "Vectors of unit length.")
    max_seq_length: int | None = option(
        None, "Cut texts at so many tokens, special ones included; without it where the encoder has no more room."
    )
    bf16: bool = option(False, "Compute in bfloat16 where that is safe; meant for CUDA.")
    chunk_size: int = option(8192, "Lines of a chunk: what is encoded, written and recorded at once.")
    num_processes: int | None = option(
        None, "Processes on this machine (default: 1); with --ray all workers (default: a GPU each, or a machine)."
    )
    ray: str | None = option(
        None,
        "Encode on the Ray cluster at this address ('auto': the one this machine is in; 'local': start one here).",
    )
    overwrite: bool = option(False, "Replace a result, or a begun one, that is of another model, file or options.")

    def __post_init__(self) -> None:
        for name in ("chunk_size", "num_processes", "max_seq_length"):
            given = getattr(self, name)
            require(given is None or given >= 1, f"--{name}", given, "at least 1")
        if not self.output:
            raise UserError("--output is missing: OUT.npy or OUT.arrow")


@dataclass
class EvaluationArguments(EncoderArguments):
    """What evaluation.py measures, on what, and how."""

    _argument_group_name = "evaluation"

    model_name_or_path: str | None = option(
        None,
        "Output folder of train.py, Hugging Face folder or hub id, or a text file of word vectors, whose averages are "
        "measured (required).",
    )
    mode: str = option(
        "test",
        "test: the published protocol on the test sets; fasttest: cheaper classifiers and K-means (the same as test "
        "for STS); dev: dev sets and dev accuracies.",
        choices=list(MODE_NAMES),
    )
    task_set: str | None = option(
        None,
        "sts (default): the seven STS tasks; transfer: MR CR SUBJ MPQA SST2 TREC MRPC; full: both; fewshot, "
        "clustering, retrieval, geometry; all; na: those of --tasks. In dev mode those of them that have a dev set.",
        choices=[*TASK_SETS, "na"],
    )
    tasks: list[str] | None = option(None, f"Tasks, with --task_set na: {', '.join(FAMILY_OF)}.")
    pairs: str | None = option(
        None, "A file of your own, scored like an STS task: sentence, sentence, score, tab-separated, no header."
    )
    mteb: list[str] | None = option(
        None,
        "Tasks of MTEB, by name (STSBenchmark, ...), or FILE.py[:CLASS] with tasks of your own, which is run. Without "
        "--task_set nothing else is measured. Needs mteb.",
    )
    mteb_data_dir: str | None = option(
        None,
        "Folder with a copy of each data set of --mteb under the last part of its hub id; without it the cache of "
        "datasets, or the hub.",
    )
    data_dir: str = option("SentEval/data", "Folder that holds downstream/ (and clustering/).")
    custom_data: bool = option(
        False, "The files are your own in SentEval's format: do not ask for the official counts."
    )
    output_file: str | None = option(None, "Write all scores, of every subset, to this JSON file.")
    similarities_file: str | None = option(
        None, "Write gold scores and cosines of all pairs of the STS tasks to this .npz file."
    )
    overwrite: bool = option(False, "Replace such files that are there.")
    postprocess: str | None = option(
        None,
        "Map the embeddings before they are scored, by whitening or by a flow that is trained for it; measures that "
        "look into the encoder are left out.",
        choices=["whitening", "flow"],
    )
    fit_on: str | None = option(
        None,
        "Fit that map to the sentences of this file (txt, csv, tsv, json, jsonl, as for training); without it to "
        "those of each task, without their scores.",
    )
    whitening_dimensions: int | None = option(None, "Dimensions that whitening keeps; without it all that vary.")
    flow_epochs: int = option(1, "Passes over the sentences that the flow is trained for, in batches of 16.")
    flow_learning_rate: float = option(1e-3, "Of Adam, in training the flow.")
    flow_seed: int = option(0, "Of the flow's first weights, and of the order of its sentences.")
    cache_dir: str | None = option(
        None, "Folder for downloads, and for embeddings: a later evaluation of the same model reads them back."
    )
    classifier: str = option(
        "torch",
        "Of the transfer tasks. torch: SentEval's own; sklearn: scikit-learn's logistic regression.",
        choices=["torch", "sklearn"],
    )
    nhid: int = option(0, "Hidden units of the transfer classifier; 0 is logistic regression, as published.")
    shots: int = option(16, "Few-shot: labelled examples a class.")
    draws: int = option(10, "Few-shot: how often these are drawn.")
    kmeans_runs: int = option(10, "Clustering: runs of K-means that are averaged.")
    retrieval_identical: str = option(
        "merge",
        "Retrieval: merge sentences that occur more than once, or keep them; a copy of the query then outranks all.",
        choices=["merge", "keep"],
    )
    geometry_sentences: str | None = option(
        None, "Geometry: text file, a sentence a line, to measure anisotropy on; without it the sentences of STS-B."
    )
    geometry_sample: int = option(100_000, "Geometry: how many of these are drawn.")

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {
            "nhid": 0,
            "shots": 2,
            "draws": 2,
            "kmeans_runs": 2,
            "geometry_sample": 2,
            "flow_epochs": 1,
            "flow_seed": 0,
        }
        for name, bound in least.items():
            require(getattr(self, name) >= bound, f"--{name}", getattr(self, name), f"at least {bound}")
        require(self.flow_seed < 2**32, "--flow_seed", self.flow_seed, "below 2^32")
        if self.nhid and self.classifier == "sklearn":
            raise UserError("--nhid speaks of the torch classifier; leave it or --classifier sklearn out")
        if not self.model_name_or_path:
            raise UserError(
                "--model_name_or_path is missing: an output folder of train.py, a Hugging Face folder or id"
            )
        self._require_used()
        self._require_postprocess()
        self._require_mteb()

    def chosen_tasks(self) -> tuple[str, ...]:
        """Names of the tasks of `--task_set` or `--tasks`; none where there are only `--pairs` or `--mteb`.

        UserError where these contradict each other, DataError for a set without a task in this mode.
        """
        if self.task_set == "na":
            if not (self.tasks or self.pairs or self.mteb):
                raise UserError("--task_set na measures the tasks of --tasks; give some")
            return tuple(self.tasks or ())
        if self.tasks:
            raise UserError(f"--tasks {' '.join(self.tasks)} only counts with --task_set na; add it")
        if (self.pairs or self.mteb) and not self.task_set:
            return ()
        return tasks_of_set(self.task_set or "sts", "dev" if self.mode == "dev" else "test")

    def _require_used(self) -> None:
        """UserError for an option that no task to be measured looks at, DataError for an unknown task."""
        families = {find_by_name(task, FAMILY_OF) for task in self.chosen_tasks()}
        changed = self.changed()
        for name, family in OPTIONS_OF_FAMILY.items():
            if name in changed and family not in families:
                raise UserError(f"--{name} only counts with {family} tasks, and none is measured; leave it out")
        if self.similarities_file and not families & {"sts"} and not self.pairs:
            raise UserError("--similarities_file holds the pairs of STS tasks, and none is measured; leave it out")
        if self.overwrite and not (self.output_file or self.similarities_file):
            raise UserError("--overwrite replaces --output_file and --similarities_file; give one, or leave it out")
        if "geometry_sample" in changed and not self.geometry_sentences:
            raise UserError("--geometry_sample draws from --geometry_sentences; give that file, or leave it out")

    def _require_mteb(self) -> None:
        """UserError for options that do not go with the tasks of MTEB, or speak of nothing without them."""
        if not self.mteb:
            if self.mteb_data_dir:
                raise UserError("--mteb_data_dir holds the data of --mteb; give some tasks, or leave it out")
            return
        if self.mode == "dev":
            raise UserError("--mteb: the tasks of MTEB have splits of their own; leave --mode dev out")
        if self.postprocess:
            raise UserError(f"--postprocess {self.postprocess}: mteb measures an encoder as it is; leave one out")

    def _require_postprocess(self) -> None:
        """UserError for options of a map that is not asked for, and for impossible values."""
        dimensions, rate = self.whitening_dimensions, self.flow_learning_rate
        require(dimensions is None or dimensions >= 2, "--whitening_dimensions", dimensions, "at least 2")
        require(rate > 0, "--flow_learning_rate", rate, "above 0")
        if self.fit_on and not self.postprocess:
            raise UserError("--fit_on is what --postprocess whitening or flow is fitted to; add one, or leave it out")
        for name, owner in OPTIONS_OF_POSTPROCESS.items():
            if name in self.changed() and self.postprocess != owner:
                raise UserError(f"--{name} only counts with --postprocess {owner}; leave it out")


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
