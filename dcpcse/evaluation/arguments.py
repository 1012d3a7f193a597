"""Options of evaluation and encoding, as dataclasses with their checks. Nothing else happens here.

Apart from `dcpcse.training.arguments`: those of training are transformers' TrainingArguments too, which take seconds
to import.
"""

from dataclasses import dataclass

from senteval.names import FAMILY_OF, MODE_NAMES, TASK_SETS, find_by_name, tasks_of_set

from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import option, require

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
