"""`dcpcse.evaluate`: the scores of any encoder on the tasks of SentEval and MTEB, and on your data."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from senteval.names import FAMILY_OF, TASK_SETS, find_by_name, tasks_of_set

from dcpcse.encoders.encode_options import UnsizedKeywords
from dcpcse.evaluation.advice import advice
from dcpcse.evaluation.arguments import MULTILINGUAL, EvaluationArguments
from dcpcse.utils.arguments import known_arguments, list_of_strings, strings, truth_value
from dcpcse.utils.errors import UserError, parameter_names

if TYPE_CHECKING:
    from dcpcse.encoders.sentence_encoder import SentenceEncoder
    from dcpcse.evaluation.evaluation_result import EvaluationResult
    from dcpcse.evaluation.foreign_encoder import ForeignEncoder
    from dcpcse.evaluation.run import Plan


class Encodes(Protocol):
    """An object that encodes sentences, such as a model of `dcpcse.load` or a SentenceTransformer."""

    @property
    def encode(self) -> Callable[..., Any]: ...


AnyEncoder = Encodes | Callable[[list[str]], Any] | str | os.PathLike[str]
"""The types that `evaluate` accepts as a model."""


@known_arguments
@parameter_names(model_name_or_path="model", custom_data="official=False")
@advice()
def evaluate(
    model: AnyEncoder,
    tasks: Any = None,
    *,
    mode: str = "test",
    data_dir: str | Path = "SentEval/data",
    pairs: Any = None,
    labels: Any = None,
    metric: str = "accuracy",
    columns: Mapping[str, str] | Sequence[str] | None = None,
    retrieval: str | Path | Sequence[str | Path] | None = None,
    mteb: str | Sequence[str] | None = None,
    mteb_benchmark: str | None = None,
    mteb_data_dir: str | Path | None = None,
    mteb_languages: str | Sequence[str] | None = None,
    mteb_prompts: str | Path | None = None,
    mteb_results: str | Path | None = None,
    official: bool = True,
    cache_dir: str | Path | None = None,
    truncate_dim: int | Sequence[int] | None = None,
    postprocess: str | None = None,
    fit_on: str | Path | Sequence[str] | None = None,
    whitening_dimensions: int | None = None,
    flow_epochs: int = 1,
    flow_learning_rate: float = 1e-3,
    flow_seed: int = 0,
    classifier: str = "torch",
    nhid: int = 0,
    shots: int = 16,
    draws: int = 10,
    kmeans_runs: int = 10,
    retrieval_identical: str = "merge",
    geometry_sentences: str | Path | None = None,
    geometry_sample: int = 100_000,
    **options: Unpack[UnsizedKeywords],
) -> "EvaluationResult":
    """Evaluate an encoder, with the settings and scores of `dcpcse evaluate`.

    Every distinct sentence is encoded once. If a launcher such as torchrun started several processes, all processes
    must call this function. The processes divide the sentences among them, and each process returns the result.

    Args:
        model: A model of `dcpcse.load`, a name or path that `dcpcse.load` loads, a SentenceTransformer, any object
            with `encode(sentences, batch_size=...)`, or a function from a list of strings to an array, tensor or list
            of rows (n, H). The tasks geometry and frequent need access to the encoder. For an encoder of other code,
            geometry measures only the embeddings, and frequent raises an error.
        tasks: A task set (sts, transfer, full, fewshot, clustering, retrieval, geometry, frequent or all), a task such
            as "STSBenchmark", or a list of task sets and tasks. The task set multilingual can only be given alone.
            None: sts, or no task if your data or mteb tasks are given. Scored pairs, as for `pairs`, are accepted too.
        mode: "test" for the published protocol, "fasttest" for faster classifiers, or "dev" for the dev sets.
        data_dir: Folder that contains the subfolder downstream, and clustering for clustering tasks.
        pairs: Your sentence pairs with scores: a list of tuples, a dict of columns, a DataFrame, a Dataset or a file.
            The result is the Spearman correlation, or the average precision if all scores are 0 or 1.
        labels: Your texts with classes, in the same forms as `pairs`.
        metric: The score of `labels`: "accuracy" of logistic regression in cross-validation, or "map", the mean
            average precision where each text is a query for the other texts of its class.
        columns: The columns of `pairs` and `labels` to read, by their roles, such as {"anchor": "text", "positive":
            "title", "score": "similarity"} or {"anchor": "text", "class": "topic"}. None: all columns.
        retrieval: One or several folders with documents, queries and judgements in the layout of BEIR, or names of
            NanoBEIR sets (NanoBEIR: all sets). The result is nDCG@10.
        mteb: Names of MTEB tasks, or FILE.py[:CLASS] for a task that a Python file defines.
        mteb_benchmark: Name of a benchmark of mteb, such as "MTEB(eng, v2)". All tasks of the benchmark are evaluated.
        mteb_data_dir: Folder that contains a copy of each data set of the MTEB tasks. The name of a copy is the last
            part of the hub id of the data set. None: the cache of datasets for `mteb_benchmark`, and
            the hub for `mteb`.
        mteb_languages: ISO 639-3 codes of languages. MTEB tasks are evaluated only in these languages, and in pairs of
            languages that contain one of them. None: all languages.
        mteb_prompts: YAML or JSON file with the prompts that are put before the texts of each task. None: the prompts
            in the sentence-transformers settings of the model folder.
        mteb_results: Folder for the results of MTEB tasks in the format of mteb.
        official: Whether the files in `data_dir` must have the official sizes. Use False for your data in the same
            format.
        cache_dir: Folder for downloads and embeddings. A later evaluation of the same model reuses the embeddings.
            Embeddings of encoders of other code cannot be cached, since nothing identifies the encoder.
        truncate_dim: Number of first values of the embeddings that are scored. With a list of numbers, sentences are
            encoded once, the tables have a row for each number, and `at_size` of the result contains all results.
        postprocess: Transformation of the embeddings before they are scored: "whitening" or "flow".
        fit_on: List or file of sentences to which `postprocess` is fitted. None: the sentences of each task.
        whitening_dimensions: Number of dimensions that whitening keeps. None: all dimensions in which the embeddings
            vary.
        flow_epochs: Number of training epochs of the flow, in batches of 16 sentences.
        flow_learning_rate: Learning rate of the flow (Adam).
        flow_seed: Seed for the initial weights of the flow and for the order of its training sentences.
        classifier: Classifier of the transfer tasks: "torch" (the classifier of SentEval) or "sklearn" (logistic
            regression of scikit-learn).
        nhid: Number of hidden units of the transfer classifier. 0 is logistic regression, as published.
        shots: Number of labelled examples per class in few-shot tasks.
        draws: Number of times that the examples of few-shot tasks are drawn.
        kmeans_runs: Number of K-means runs over which clustering scores are averaged.
        retrieval_identical: Whether to "merge" or "keep" sentences that occur more than once in a retrieval task. With
            "keep", a copy of the query ranks first.
        geometry_sentences: Text file, one sentence per line, from which the task geometry computes the anisotropy.
            None: the sentences of STS-B.
        geometry_sample: Number of sentences that are drawn from `geometry_sentences`.
        options: The other options of `SentenceEncoder.encode`. show_progress is True by default.

    Returns:
        The scores by task. Printing the result shows the tables of the papers.

    Raises:
        UserError: If an argument, the data or the embeddings are unusable.
    """
    from dcpcse.api.load import load
    from dcpcse.evaluation.foreign_encoder import as_encoder
    from dcpcse.evaluation.run import evaluate_plan, load_plan, read_own_data
    from dcpcse.inference.loading import local_folder
    from dcpcse.utils.distributed import local_device

    is_name = isinstance(model, str | os.PathLike)
    encoder = None if is_name else as_encoder(model)
    names, second = tasks_or_pairs(tasks, mode)
    if second is not None and pairs is not None:
        raise UserError("scored pairs are given twice, as the second argument and as pairs; leave one of them out")
    pairs = second if pairs is None else pairs
    is_listed = fit_on is not None and not isinstance(fit_on, str | os.PathLike)
    args = EvaluationArguments(
        model_name_or_path=os.fspath(model) if is_name else getattr(encoder, "name", type(model).__name__),
        task_set=MULTILINGUAL if names == (MULTILINGUAL,) else None,
        tasks=list(names) if names and names != (MULTILINGUAL,) else None,
        mode=mode,
        data_dir=data_dir,
        pairs=None if pairs is None else "pairs",
        labels=None if labels is None else "labels",
        metric=metric,
        columns=columns,
        retrieval=None if retrieval is None else _listed(retrieval),
        mteb=[mteb] if isinstance(mteb, str) else mteb,
        mteb_benchmark=mteb_benchmark,
        mteb_data_dir=mteb_data_dir,
        mteb_languages=[mteb_languages] if isinstance(mteb_languages, str) else mteb_languages,
        mteb_prompts=mteb_prompts,
        mteb_results=mteb_results,
        custom_data=not truth_value("official", official),
        cache_dir=cache_dir,
        truncate_dim=truncate_dim,
        postprocess=postprocess,
        fit_on="the given sentences" if is_listed else fit_on,
        whitening_dimensions=whitening_dimensions,
        flow_epochs=flow_epochs,
        flow_learning_rate=flow_learning_rate,
        flow_seed=flow_seed,
        classifier=classifier,
        nhid=nhid,
        shots=shots,
        draws=draws,
        kmeans_runs=kmeans_runs,
        retrieval_identical=retrieval_identical,
        geometry_sentences=geometry_sentences,
        geometry_sample=geometry_sample,
        **{"show_progress": True, **options},
    )
    _require_possible(args, encoder)
    listed = (
        tuple(dict.fromkeys(strings(fit_on, "fit_on must be a list of sentences", "fit_on: sentence")))
        if is_listed
        else None
    )
    plan = load_plan(args, read_own_data(args, pairs, labels), listed)
    with _processes(plan):
        encoder = load(model, device=local_device(None), cache_dir=args.cache_dir) if encoder is None else encoder
        folder = local_folder(args.model_name_or_path, args) if is_name and plan.mteb else None
        return evaluate_plan(plan, encoder, plan.head(encoder), folder=folder)


def _listed(retrieval: Any) -> list[str]:
    """Return the folders and names in `retrieval` as a list of strings."""
    names = list_of_strings("retrieval", [retrieval] if isinstance(retrieval, str | Path) else retrieval)
    if not names:
        raise UserError("retrieval is empty; give a folder, the name of a NanoBEIR set, or a list of them")
    return names


def tasks_or_pairs(tasks: Any, mode: str) -> tuple[tuple[str, ...], Any]:
    """Return (names of tasks, None), or ((), pairs) if `tasks` contains scored pairs.

    Task sets are replaced by the names of their tasks, except the set multilingual, whose tasks belong to mteb.

    Args:
        tasks: The argument `tasks` of `evaluate`.
        mode: The mode of the evaluation. The tasks of a set depend on it.
    """
    if tasks is None:
        return (), None
    tasks = os.path.expanduser(tasks) if isinstance(tasks, str) else tasks
    if isinstance(tasks, str) and tasks not in TASK_SETS and tasks not in FAMILY_OF and Path(tasks).is_file():
        return (), tasks
    task_names = [tasks] if isinstance(tasks, str) else tasks
    if not isinstance(task_names, list | tuple | Set) or not all(isinstance(task, str) for task in task_names):
        return (), tasks
    if not task_names:
        raise UserError("tasks is empty; give a task set such as 'sts', names of tasks, or pairs with scores")
    if list(task_names) == [MULTILINGUAL]:
        return (MULTILINGUAL,), None
    if MULTILINGUAL in task_names:
        raise UserError(f"the task set {MULTILINGUAL} cannot be combined with other tasks; give it alone")
    names: dict[str, None] = {}
    for name in task_names:
        if name in TASK_SETS:
            names |= dict.fromkeys(tasks_of_set(name, "dev" if mode == "dev" else "test"))
        elif Path(name).suffix or os.sep in name:
            raise UserError(
                f"tasks {name[:200]!r}: there is no such file; give a file of scored pairs, or names of tasks"
            )
        else:
            find_by_name(name, {**TASK_SETS, **FAMILY_OF})  # raises DataError with the nearest name
            names[name] = None
    return tuple(names), None


def _require_possible(args: EvaluationArguments, encoder: "SentenceEncoder | ForeignEncoder | None") -> None:
    """Raise UserError if options or tasks need more than the embeddings of an encoder of other code."""
    from dcpcse.evaluation.foreign_encoder import ForeignEncoder

    if not isinstance(encoder, ForeignEncoder):
        return
    if args.cache_dir is not None:
        encoder.refuse_cache()
    if inside := [task for task in args.chosen_tasks() if FAMILY_OF[task] == "frequent"]:
        raise UserError(
            f"the task {inside[0]} removes tokens inside the encoder, but {encoder.name} gives only "
            "embeddings; leave the task out, or load the model with dcpcse.load"
        )


@contextmanager
def _processes(plan: "Plan") -> Iterator[None]:
    """Join the processes that a launcher started. At the end, destroy the process group unless it existed before.

    Raises UserError if another process has failed and has therefore left the group.
    """
    from dcpcse.evaluation.run import join_processes
    from dcpcse.utils.distributed import destroy_process_group, is_lost_process, world_size

    existed = world_size() > 1
    try:
        join_processes(plan)
        yield
    except RuntimeError as error:
        if not is_lost_process(error):
            raise
        raise UserError("another process of this program has failed; see the error of that process") from error
    finally:
        if not existed:
            destroy_process_group()
