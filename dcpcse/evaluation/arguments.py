"""Options of evaluation and their checks.

This module is separate from `dcpcse.training.arguments` because that module imports TrainingArguments, which takes
seconds.
"""

from dataclasses import dataclass

from senteval.names import FAMILY_OF, LABELS_METRICS, MODE_NAMES, TASK_SETS, find_by_name, tasks_of_set

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.errors import OptionError, UserError, no_effect, spell
from dcpcse.utils.option_fields import SEEDS, option

MULTILINGUAL = "multilingual"
"""The task set of MTEB tasks in many languages."""

MULTILINGUAL_TASKS = ("STS17", "STS22.v2", "Tatoeba", "TatoebaFromEnglish")
"""The tasks of the task set multilingual. mteb has all except the last task, which searches for translations of
Tatoeba's English sentences.
"""

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
class EvaluationArguments(EncoderArguments, EncodeOptions):
    """The options of evaluation.py: the encoder, the tasks, and the settings of the evaluation."""

    _argument_group_name = "evaluation"

    model_name_or_path: str | None = option(
        None,
        "Encoder (required): a model folder of train.py, a Hugging Face folder or hub id, or a text file of word "
        "vectors, which are averaged.",
    )
    mode: str = option(
        "test",
        "test: the published protocol on the test sets. fasttest: faster classifiers and K-means, and STS as in test. "
        "dev: dev sets and dev accuracies.",
        choices=list(MODE_NAMES),
    )
    task_set: str | None = option(
        None,
        "sts (default): the seven STS tasks; transfer: MR, CR, SUBJ, MPQA, SST2, TREC, MRPC; full: both; fewshot, "
        "clustering, retrieval, geometry; all: all of these; frequent: STS without the most frequent tokens; "
        "multilingual: STS17, STS22.v2 and Tatoeba (both ways) of mteb, with a score for each language; na: the tasks "
        "of --tasks. In dev mode, the tasks that have a dev set.",
        choices=[*TASK_SETS, MULTILINGUAL, "na"],
    )
    tasks: list[str] | None = option(None, f"Tasks instead of a set: {', '.join(FAMILY_OF)}.")
    pairs: str | None = option(
        None,
        "File of your own with two sentences and a score per row: csv, json, jsonl, or tab-separated under any other "
        "name, with or without a header. Pairs with the scores 0 and 1 are evaluated by average precision, others by "
        "Spearman correlation.",
    )
    labels: str | None = option(
        None,
        "File of your own with a text and its class per row, in the formats of --pairs. --metric chooses the score.",
    )
    metric: str = option(
        LABELS_METRICS[0],
        "Score of --labels: accuracy of a logistic regression on the embeddings in cross-validation, or map, the mean "
        "average precision where each text is a query for the other texts of its class. map also suits classes that "
        "the training has not seen.",
        choices=LABELS_METRICS,
    )
    columns: list[str] | None = option(
        None,
        "Columns of --pairs and --labels to read, as ROLE=NAME, such as anchor=text positive=title score=similarity, "
        "or anchor=text class=topic.",
        named=True,
    )
    retrieval: list[str] | None = option(
        None,
        "Folders of your own with documents, queries and judgements in the layout of BEIR (corpus.jsonl, "
        "queries.jsonl, qrels/SPLIT.tsv), of which --mode test uses the split test and --mode dev the split dev, or "
        "FOLDER:SPLIT; and NanoBEIR or some of its sets by name (NanoNFCorpus, ...), whose data must be in the cache "
        "of the hub already. The score is nDCG@10.",
    )
    mteb: list[str] | None = option(
        None,
        "MTEB tasks by name (STSBenchmark, ...), or FILE.py[:CLASS] with your own tasks, whose code is run. Without "
        "--task_set only these are evaluated. Needs the package mteb.",
    )
    mteb_benchmark: str | None = option(
        None,
        "All tasks of one of mteb's benchmarks by its name, such as 'MTEB(eng, v2)'. Their data must be in the cache "
        "of datasets already. Without --task_set only these are evaluated. Needs the package mteb.",
    )
    mteb_data_dir: str | None = option(
        None,
        "Folder with a copy of each data set of the MTEB tasks, named by the last part of its hub id. Default: the "
        "cache of datasets, or for --mteb the hub.",
    )
    mteb_languages: list[str] | None = option(
        None,
        "Evaluate MTEB tasks only in these languages and in pairs with one of them. Codes of ISO 639-3, such as deu "
        "ara.",
    )
    mteb_prompts: str | None = option(
        None,
        "YAML or JSON file of the texts before each text of an MTEB task, by name: TASK, a type of tasks such as STS, "
        "query or document, or TASK-query. {instruction} stands for mteb's instruction for the task. Default: the "
        "prompts in the sentence-transformers settings of the encoder's folder.",
    )
    mteb_results: str | None = option(
        None, "Folder for the results of MTEB tasks and the description of the model, in mteb's own format."
    )
    data_dir: str = option("SentEval/data", "Folder that contains downstream/ (and clustering/).")
    custom_data: bool = option(
        False, "The files are your own in SentEval's format: do not check them for the official sizes."
    )
    output_file: str | None = option(None, "JSON file for all scores, including the scores of subsets.")
    similarities_file: str | None = option(
        None,
        "File (.npz) for the outcomes of each test example, which dcpcse compare reads: gold scores and cosines of "
        "pairs, whether the examples of transfer tasks are classified correctly, and nDCG@10 of each query.",
    )
    overwrite: bool = option(False, "Replace --output_file and --similarities_file if they exist.")
    postprocess: str | None = option(
        None,
        "Transform the embeddings before they are scored: by whitening, or by a normalising flow that is trained on "
        "embeddings. Measures that need access to the encoder are left out.",
        choices=["whitening", "flow"],
    )
    fit_on: str | None = option(
        None,
        "File of sentences (txt, csv, tsv, json, jsonl, as for training) to fit --postprocess to. Default: the "
        "sentences of each task, without their scores.",
    )
    whitening_dimensions: int | None = option(
        None, "Number of dimensions that whitening keeps. Default: all in which the embeddings vary.", at_least=2
    )
    flow_epochs: int = option(1, "Training epochs of the flow, in batches of 16 sentences.", at_least=1)
    flow_learning_rate: float = option(1e-3, "Learning rate of the flow (Adam).", above=0)
    flow_seed: int = option(0, "Seed of the flow's initial weights and of the order of its sentences.", **SEEDS)
    truncate_dim: list[int] | None = option(
        None,
        "Score only this number of first values of the embeddings. With several numbers, the sentences are encoded "
        "once, and the tables have a row for each number.",
        at_least=1,
    )
    cache_dir: str | None = option(
        None, "Folder for downloads and for embeddings; a later evaluation of the same model reads the embeddings."
    )
    classifier: str = option(
        "torch",
        "Classifier of the transfer tasks: torch (SentEval's own) or sklearn (scikit-learn's logistic regression).",
        choices=["torch", "sklearn"],
    )
    nhid: int = option(
        0, "Hidden units of the transfer classifier; 0 is logistic regression, as published.", at_least=0
    )
    shots: int = option(16, "Few-shot tasks: number of labelled examples per class.", at_least=2)
    draws: int = option(10, "Few-shot tasks: number of times that the examples are drawn.", at_least=2)
    kmeans_runs: int = option(10, "Clustering: number of K-means runs to average.", at_least=2)
    retrieval_identical: str = option(
        "merge",
        "Retrieval: merge sentences that occur more than once, or keep them; then a copy of the query ranks first.",
        choices=["merge", "keep"],
    )
    geometry_sentences: str | None = option(
        None, "Geometry: text file, one sentence per line, for the anisotropy. Default: the sentences of STS-B."
    )
    geometry_sample: int = option(
        100_000, "Geometry: number of sentences drawn from --geometry_sentences.", at_least=2
    )

    def check(self) -> None:
        """Raise OptionError if an option has no effect, or if two options exclude each other."""
        if self.nhid and self.classifier == "sklearn":
            raise no_effect("nhid", f"with {spell('classifier', 'sklearn')}")
        if not self.model_name_or_path:
            raise OptionError(
                "model_name_or_path",
                reason="is missing",
                remedy="give a model folder of dcpcse train, a Hugging Face folder or a hub id",
            )
        self._require_used()
        self._require_postprocess()
        self._require_mteb()
        self._require_sizes()

    @property
    def options(self) -> EncodeOptions:
        """The options of `encode`. `truncate_dim` is None, because embeddings are shortened after encoding."""
        return EncodeOptions(**{**self.given(), "truncate_dim": None})

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The sizes to which embeddings are shortened for scoring, largest first; (None,) if not shortened."""
        return tuple(sorted(self.truncate_dim, reverse=True)) if self.truncate_dim else (None,)

    @property
    def mteb_option(self) -> str | None:
        """The option with which the user chose tasks of MTEB, as written in messages; None without such tasks."""
        if self.task_set == MULTILINGUAL:
            return spell("task_set", MULTILINGUAL)
        return next((spell(name) for name in ("mteb", "mteb_benchmark") if getattr(self, name)), None)

    @property
    def _others(self) -> bool:
        """Whether there are user data or tasks of MTEB; tasks of SentEval are then optional."""
        return bool(self.pairs or self.labels or self.retrieval or self.mteb_option)

    def chosen_tasks(self) -> tuple[str, ...]:
        """Return the names of the tasks of `--task_set` or `--tasks`.

        The result is empty if only user data or tasks of MTEB are given. Raises UserError if options contradict each
        other, and DataError if no task of the set supports `--mode`.
        """
        if self.tasks and self.task_set in (None, "na"):
            return tuple(self.tasks)
        if self.tasks:
            raise UserError(f"{spell('tasks')} and {spell('task_set', self.task_set)} exclude each other; give one")
        if self.task_set == "na" and not self._others:
            raise UserError(
                f"{spell('task_set', 'na')} needs {spell('tasks')}, {spell('pairs')}, {spell('labels')}, "
                f"{spell('retrieval')}, {spell('mteb')} or {spell('mteb_benchmark')}; add one"
            )
        if self.task_set in (MULTILINGUAL, "na") or (self._others and not self.task_set):
            return ()
        return tasks_of_set(self.task_set or "sts", "dev" if self.mode == "dev" else "test")

    def _require_used(self) -> None:
        """Raise UserError for an option that none of the chosen tasks uses, and DataError for an unknown task."""
        families = {find_by_name(task, FAMILY_OF) for task in self.chosen_tasks()}
        changed = self.changed()
        for name, family in OPTIONS_OF_FAMILY.items():
            if name in changed and family not in families:
                raise no_effect(name, f"without a {family} task")
        if "metric" in changed and not self.labels:
            raise no_effect("metric", f"without {spell('labels')}")
        if self.similarities_file and not (families & {"sts", "transfer"} or self._others):
            raise no_effect(
                "similarities_file",
                f"without an STS task, a transfer task, a task of MTEB, {spell('pairs')}, "
                f"{spell('labels')} or {spell('retrieval')}",
            )
        if self.overwrite and not (self.output_file or self.similarities_file):
            raise no_effect("overwrite", f"without {spell('output_file')} or {spell('similarities_file')}")
        if "geometry_sample" in changed and not self.geometry_sentences:
            raise no_effect("geometry_sample", f"without {spell('geometry_sentences')}")

    def _require_mteb(self) -> None:
        """Raise UserError for options that cannot be combined with tasks of MTEB, or that need tasks of MTEB."""
        option = self.mteb_option
        if option is None:
            for name in ("mteb_data_dir", "mteb_languages", "mteb_prompts", "mteb_results"):
                if getattr(self, name):
                    raise no_effect(
                        name,
                        f"without tasks of MTEB ({spell('mteb')}, {spell('mteb_benchmark')}, or "
                        f"{spell('task_set', MULTILINGUAL)})",
                    )
            return
        for name in ("mteb", "mteb_benchmark"):
            if getattr(self, name) and option != spell(name):
                raise UserError(
                    f"{option} and {spell(name)} cannot be combined, since each has its own average; give one of them"
                )
        if self.mode == "dev":
            raise UserError(f"{option}: MTEB tasks have their own splits; leave {spell('mode', 'dev')} out")
        if self.postprocess:
            raise UserError(
                f"{spell('postprocess', self.postprocess)} does not apply to {option}; leave one of them out"
            )

    def _require_sizes(self) -> None:
        """Raise UserError for repeated sizes, and for options and tasks that cannot be combined with sizes."""
        sizes = self.truncate_dim or []
        if len(set(sizes)) < len(sizes):
            raise OptionError("truncate_dim", sizes, "a size is given twice", "give each size once")
        if sizes and self.postprocess:
            raise UserError(
                f"{spell('postprocess', self.postprocess)} cannot be combined with {spell('truncate_dim')}, since "
                "each of its values depends on all values of an embedding; leave one of them out"
            )
        if len(sizes) < 2:
            return
        inside = [task for task in self.chosen_tasks() if FAMILY_OF[task] in ("geometry", "frequent")]
        for name in (
            *inside,
            *([self.mteb_option] if self.mteb_option else []),
            *([spell("similarities_file")] if self.similarities_file else []),
        ):
            raise UserError(f"{name} supports only one size of embeddings; give one number to {spell('truncate_dim')}")

    def _require_postprocess(self) -> None:
        """Raise UserError for options of a postprocessor that was not chosen."""
        if self.fit_on and not self.postprocess:
            raise no_effect("fit_on", f"without {spell('postprocess')}")
        if self.postprocess and any(FAMILY_OF[task] == "frequent" for task in self.chosen_tasks()):
            raise UserError(
                f"{spell('postprocess', self.postprocess)} does not apply to STS-frequent, which needs the encoder "
                "itself; leave one of them out"
            )
        for name, owner in OPTIONS_OF_POSTPROCESS.items():
            if name in self.changed() and self.postprocess != owner:
                raise no_effect(name, f"without {spell('postprocess', owner)}")
