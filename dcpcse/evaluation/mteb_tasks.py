"""Functions that find MTEB tasks, load their data, and evaluate a model on them with mteb."""

import importlib.util
import inspect
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Unpack

import huggingface_hub.constants
import numpy as np
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from senteval import DataError

from dcpcse.encoders.encode_options import EncodeKeywords
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.arguments import MULTILINGUAL, MULTILINGUAL_TASKS
from dcpcse.evaluation.distributed_encoding import EncodeFunction, run_on_rank_zero
from dcpcse.evaluation.evaluator import cached_encode
from dcpcse.evaluation.foreign_encoder import ForeignEncoder
from dcpcse.evaluation.mteb_encoder import MTEBEncoder, import_mteb
from dcpcse.evaluation.outcomes import MTEB, ExampleOutcomes, part_names, scores_of_parts
from dcpcse.utils.console import notify
from dcpcse.utils.distributed import is_main_process
from dcpcse.utils.errors import OptionError, UserError, did_you_mean, first_line, first_names, plural, spell
from dcpcse.utils.parsing import read_json

OWN_MODULE = "_dcpcse_mteb_"
"""Prefix of the module name of a user's file with tasks."""

PREFIX = f"{MTEB}/"
"""Prefix of a task's name in results."""

MEASURES = {"ndcg_at_": "ndcg_cut_", "map_at_": "map_cut_", "recall_at_": "recall_", "precision_at_": "P_"}
"""Prefix of a measure's name in mteb, for retrieval tasks → prefix of the name in pytrec_eval, which gives the measure
of each query.
"""


@dataclass(frozen=True)
class MtebTasks:
    """The tasks of mteb to evaluate, and how the user chose them.

    Args:
        tasks: Name in the form `mteb/NAME` → task.
        benchmark: The name of the benchmark or task set, used as the title of tables; None for single tasks.
        option: The option with which the user chose the tasks, for messages.
        expression: A Python expression that returns the tasks. If data are missing, the message uses it in a command
            that downloads them. None if loading the data also downloads them.
    """

    tasks: Mapping[str, Any]
    benchmark: str | None = None
    option: str = field(default_factory=lambda: spell("mteb"))
    expression: str | None = None


@dataclass(frozen=True)
class MtebResult:
    """The result of an MTEB task.

    Args:
        task: Name of the task in the form `mteb/NAME`.
        task_type: mteb's type of the task, such as STS.
        metric: Name of the main score.
        scores: Split → the scores of each subset in mteb's form. Scores are fractions.
        dataset_revision: Revision of the data set.
        mteb_version: Version of mteb.
        benchmark: The benchmark whose tasks were evaluated, or None.
        examples: Name of a part of the task (one split of one subset) → outcomes of its examples, if mteb provides
            them.
        family: The family of the task. The results of a family are shown in one table.
    """

    task: str
    task_type: str
    metric: str
    scores: Mapping[str, Sequence[Mapping[str, Any]]]
    dataset_revision: str | None
    mteb_version: str
    benchmark: str | None = None
    examples: Mapping[str, ExampleOutcomes] = field(default_factory=dict)
    family: str = MTEB

    @property
    def split(self) -> str:
        """The names of the evaluated splits."""
        return ", ".join(self.scores)

    @property
    def points(self) -> float:
        """The main score × 100, averaged over all splits and subsets with equal weight, as in mteb."""
        return 100 * float(np.mean([subset["main_score"] for subsets in self.scores.values() for subset in subsets]))

    @property
    def parts(self) -> dict[str, float]:
        """The main score × 100 of each part of the task (one split of one subset), by the name of the part."""
        return scores_of_parts(self.task, self.scores, "mteb")

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable record, with the scores as returned by mteb."""
        return {
            "task": self.task,
            **({"benchmark": self.benchmark} if self.benchmark else {}),
            "type": self.task_type,
            "split": self.split,
            "metric": self.metric,
            "dataset_revision": self.dataset_revision,
            "mteb_version": self.mteb_version,
            "scores": self.scores,
        }


def find_tasks(names: Sequence[str]) -> MtebTasks:
    """Return tasks of mteb by name, without their data.

    Args:
        names: Names of mteb's tasks. For your own tasks: FILE.py or FILE.py:CLASS; the file is executed.

    Raises:
        UserError: If a task is unknown or given twice.
    """
    matches = [task for name in names for task in _find(name)]
    tasks = _by_name(matches)
    if len(tasks) < len(matches):
        raise OptionError("mteb", " ".join(names), "a task occurs twice", "give each task once")
    return MtebTasks(tasks)


def find_benchmark(name: str) -> MtebTasks:
    """Return the tasks of one of mteb's benchmarks, without their data.

    Args:
        name: A name or alias of `mteb.get_benchmarks()`.

    Raises:
        UserError: If there is no benchmark of this name, or if a task of the benchmark needs more than text, such as
            images.
    """
    mteb = import_mteb()
    try:
        benchmark = mteb.get_benchmark(name)
    except KeyError as error:
        known = [alias for benchmark in mteb.get_benchmarks() for alias in (benchmark.name, *benchmark.aliases)]
        hint = did_you_mean(name, known)
        raise UserError(
            f"{spell('mteb_benchmark', name)}: unknown benchmark; {hint + ' ' if hint else ''}choose a name of "
            "mteb.get_benchmarks()"
        ) from error
    # The tasks are copied, because the benchmark's tasks are shared within the process.
    tasks = _by_name([copy(task) for task in benchmark.tasks])
    other = [task.metadata.name for task in benchmark.tasks if set(task.metadata.modalities) != {"text"}]
    if other:
        raise UserError(
            f"{spell('mteb_benchmark', benchmark.name)}: {plural(len(other), 'task')} of {len(tasks)} need more than "
            f"text, such as images ({first_names(other)}); choose a benchmark of texts, or give the text tasks to "
            f"{spell('mteb')}"
        )
    name = benchmark.name
    return MtebTasks(tasks, name, spell("mteb_benchmark", name), f"mteb.get_benchmark('{name}').tasks")


def multilingual_tasks() -> MtebTasks:
    """Return the tasks of `--task_set multilingual`, without their data.

    STS17 and STS22.v2 are scored for each language or pair of languages. The task Tatoeba searches for the English
    translation of each sentence. A fourth task, which mteb does not have, searches for the translation of each English
    sentence.
    """
    mteb = import_mteb()
    *names, reverse = MULTILINGUAL_TASKS
    tasks = [mteb.get_task(name) for name in names]
    tasks.append(_reverse(type(tasks[-1]), reverse))
    return MtebTasks(_by_name(tasks), MULTILINGUAL, spell("task_set", MULTILINGUAL), f"mteb.get_tasks(tasks={names})")


def _reverse(forward: type, name: str) -> Any:
    """Return a bitext-mining task with this name: the task of the given class with exchanged sides."""

    class Reverse(forward):
        metadata = forward.metadata.model_copy(update={"name": name})

        def dataset_transform(self, **options: Any) -> None:
            super().dataset_transform(**options)
            exchanged = {"sentence1": "sentence2", "sentence2": "sentence1"}
            self.dataset = {subset: data.rename_columns(exchanged) for subset, data in self.dataset.items()}

    return Reverse()


def in_languages(tasks: MtebTasks, languages: Sequence[str]) -> MtebTasks:
    """Return the tasks, restricted to subsets that contain at least one of these languages.

    For a pair of languages, one of the two is enough. Tasks in other languages are left out, with a log line.

    Args:
        tasks: The tasks.
        languages: Codes of ISO 639-3, such as deu, with or without a script (deu-Latn).

    Raises:
        UserError: If none of the tasks has one of the languages.
    """
    spoken = {name: _languages(task) for name, task in tasks.tasks.items()}
    known = set().union(*spoken.values())
    for code in languages:
        if code not in known:
            codes = sorted(language for language in known if "-" not in language)
            near = did_you_mean(code, codes)
            how = f"{near} " * bool(near) + f"give codes of ISO 639-3, separated by spaces: {', '.join(codes)}"
            raise OptionError("mteb_languages", code, f"no task of {tasks.option} has this language", how)
    if left := [name.removeprefix(PREFIX) for name, supported in spoken.items() if not supported & set(languages)]:
        notify(
            f"{spell('mteb_languages', languages)}: these tasks have none of the languages and are left out: "
            f"{first_names(left)}"
        )
    # Copies, because tasks may be shared within the process.
    selected = {name: copy(task) for name, task in tasks.tasks.items() if spoken[name] & set(languages)}
    for task in selected.values():
        task.filter_languages(list(languages))
    needed = [task.metadata.name for task in selected.values() if task.metadata.name != MULTILINGUAL_TASKS[-1]]
    expression = tasks.expression and f"mteb.get_tasks(tasks={needed}, languages={list(languages)})"
    return replace(tasks, tasks=selected, expression=expression)


def _languages(task: Any) -> set[str]:
    """Return the codes of a task's languages, with and without their scripts."""
    codes = {code for subset in task.metadata.hf_subsets_to_langscripts.values() for code in subset}
    return codes | {code.partition("-")[0] for code in codes}


def load_data(tasks: MtebTasks, data_dir: str | Path | None = None) -> None:
    """Load the data of tasks. Data of a benchmark or a task set are never downloaded; single tasks may be downloaded.

    Args:
        tasks: The tasks.
        data_dir: A folder that contains a copy of each data set. The name of a copy is the last part of the hub id of
            the data set. None: use the cache of `datasets` or, for single tasks, the hub.

    Raises:
        UserError: If the data of a task are missing or incomplete.
    """
    if data_dir is not None and not Path(data_dir).is_dir():
        raise UserError(
            f"{spell('mteb_data_dir', data_dir)} is not a folder; give the folder that contains the copies"
        )
    with nullcontext() if tasks.expression is None else _offline():
        loaded = {name.removeprefix(PREFIX): _load_task(task, data_dir) for name, task in tasks.tasks.items()}
    problems = {name: problem for name, problem in loaded.items() if problem is not None}
    if not problems:
        return
    first, reason = next(iter(problems.items()))
    if type(tasks.tasks[PREFIX + first]).__module__.startswith(OWN_MODULE):
        how = "correct the file that defines the task"
    elif data_dir is not None:
        how = f"put complete copies into {data_dir}"
    elif tasks.expression is None:
        how = f"run once with a network connection to download them, or give {spell('mteb_data_dir')} with copies"
    else:
        command = f"import mteb; [task.load_data() for task in {tasks.expression}]"
        how = f'download them with python -c "{command}", or give {spell("mteb_data_dir")} with copies'
    raise UserError(
        f"{tasks.option}: the data of {len(problems)} of {plural(len(tasks.tasks), 'task')} are "
        f"missing or incomplete ({first_names(list(problems))}; {first}: {reason}); {how}"
    )


def load_downloaded(tasks: MtebTasks) -> list[str]:
    """Load the data of tasks from the cache of the hub, without a download. Return the names of missing data sets.

    Raises UserError if data are incomplete.
    """
    missing = []
    with _offline():
        for name, task in tasks.tasks.items():
            if (folder := _snapshot(task)) is None:
                missing.append(task.metadata.dataset["path"])
            elif (problem := _load_copy(task, folder, task.metadata.revision)) is not None:
                raise UserError(
                    f"{name.removeprefix(PREFIX)}: the data in {folder} are incomplete ({problem}); delete the folder "
                    "and download it again"
                )
    return missing


def evaluate_mteb_tasks(
    model: SentenceEncoder | ForeignEncoder,
    tasks: MtebTasks,
    *,
    cache_dir: Path | None = None,
    prompts: Mapping[str, str] | None = None,
    folder: Path | None = None,
    results_dir: str | Path | None = None,
    on_result: Callable[[int | None, MtebResult], None] = lambda size, result: None,
    **options: Unpack[EncodeKeywords],
) -> tuple[dict[str, MtebResult], dict[str, float]]:
    """Evaluate a model on loaded tasks. Return two dicts by task: the results, and the times in seconds.

    All processes must call this function: all processes encode, and the first process computes the scores.

    Args:
        model: The model.
        tasks: The loaded tasks.
        cache_dir: The folder in which embeddings are cached; None for no cache.
        prompts: See `MTEBEncoder`.
        folder: See `MTEBEncoder`.
        results_dir: The folder to which the results are written in mteb's format, with the layout of a
            `mteb.ResultCache`.
        on_result: A function that is called with the size of the embeddings and each result as soon as it is computed.
        options: See `MTEBEncoder`.

    Raises:
        UserError: If `results_dir` is given and the model is a `ForeignEncoder`, or if existing results with more
            languages would be replaced.
    """
    if results_dir is not None and isinstance(model, ForeignEncoder):
        raise UserError(
            f"mteb_results: mteb stores results by model and revision, but {model.name} has no known revision; leave "
            "mteb_results out"
        )
    encoder = MTEBEncoder(model, prompts=prompts, folder=folder, **options)
    size, whole = encoder.options.truncate_dim, replace(encoder.whole)
    if results_dir is not None:
        _require_no_loss(tasks, encoder, results_dir)

    def work(encode: EncodeFunction) -> tuple[dict[str, MtebResult], dict[str, float]]:
        results, seconds = {}, {}
        with cached_encode(encode, model, cache_dir, whole) as function:
            # Options that mteb passes are ignored: each process encodes with the given batch_size and show_progress.
            encoder.encode_texts = lambda texts, **ignored: function(texts)
            for name, task in tasks.tasks.items():
                started = time.perf_counter()
                results[name] = _evaluate_task(encoder, name, task, tasks.benchmark, results_dir)
                seconds[name] = time.perf_counter() - started
                on_result(size, results[name])
        return results, seconds

    whole.show_progress = whole.show_progress and is_main_process()
    return run_on_rank_zero(partial(model.encode, **whole.given()), work)


def _require_no_loss(tasks: MtebTasks, encoder: MTEBEncoder, results_dir: str | Path) -> None:
    """Raise UserError if results in a folder have languages that are not evaluated now and would be lost."""
    results, meta = import_mteb().ResultCache(results_dir), encoder.mteb_model_meta
    for name, task in tasks.tasks.items():
        if (before := results.load_task_result(task.metadata.name, meta)) is not None:
            subsets = {subset["hf_subset"] for split in before.scores.values() for subset in split}
            if lost := sorted(subsets - set(task.hf_subsets)):
                raise OptionError(
                    "mteb_results",
                    results_dir,
                    f"its result of {name.removeprefix(PREFIX)} has languages that are left out now "
                    f"({first_names(lost)}) and would be lost",
                    "give another folder",
                )


def _evaluate_task(
    encoder: MTEBEncoder, name: str, task: Any, benchmark: str | None, results_dir: str | Path | None
) -> MtebResult:
    # mteb's cache is not used, because its results would be outdated when the data of a local task change.
    recorder = OutcomeRecorder(task)
    options = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
    with recorder.recording() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "To copy construct from a tensor")  # mteb copies our similarities
        warnings.filterwarnings("ignore", "An input array is constant")  # the score is checked below
        try:
            results = import_mteb().evaluate(encoder, task, prediction_folder=folder, **options)
        except (LookupError, TypeError, ValueError) as error:  # for example, a copy of the data lacks a column
            if error in encoder.errors or isinstance(error, (UserError, DataError)):
                raise
            raise UserError(
                f"{name}: mteb cannot evaluate it ({type(error).__name__}: {first_line(error)}); check the columns "
                "and values of its data"
            ) from error
    (result,) = results.task_results
    for split, subsets in result.scores.items():
        for subset in subsets:
            if not math.isfinite(subset["main_score"]):
                raise UserError(
                    f"{name}: {task.metadata.main_score} of {split} ({subset['hf_subset']}) is not a number; check "
                    "whether all gold scores are equal, or the encoder gives every sentence the same embedding"
                )
    if results_dir is not None:
        import_mteb().ResultCache(results_dir).save_to_cache(result, encoder.mteb_model_meta)
    return MtebResult(
        task=name,
        task_type=task.metadata.type,
        metric=task.metadata.main_score,
        scores=result.scores,
        dataset_revision=result.dataset_revision,
        mteb_version=import_mteb().__version__,
        benchmark=benchmark,
        examples=recorder.outcomes(name, result.scores),
    )


def _by_name(tasks: Sequence[Any]) -> dict[str, Any]:
    return {PREFIX + task.metadata.name: task for task in tasks}


def _find(name: str) -> list[Any]:
    """Return the mteb task of this name, or the tasks of FILE.py or FILE.py:CLASS."""
    path, _, class_name = name.partition(":")
    if Path(path).suffix == ".py":
        return _tasks_of_file(Path(path), class_name)
    try:
        return [import_mteb().get_task(name)]
    except KeyError as error:
        near = re.search(r"Did you mean: '(.+?)'", str(error))
        hint = f"did you mean {near[1]}? " if near else ""
        raise OptionError(
            "mteb", name, "unknown task", f"{hint}choose one of mteb.get_tasks(), or give FILE.py[:CLASS]"
        ) from error


def _tasks_of_file(path: Path, class_name: str) -> list[Any]:
    """Return the tasks that a Python file defines or, if `class_name` is given, only the task of this class."""
    abstask = import_mteb().abstasks.AbsTask
    module = _run_file(path)
    classes = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, abstask) and value.__module__ == module.__name__
    }
    if not classes:
        raise OptionError("mteb", path, "the file defines no mteb task", "add a subclass of mteb.AbsTask")
    if class_name and class_name not in classes:
        raise UserError(
            f"{spell('mteb', path)}:{class_name}: unknown task; the file defines {', '.join(sorted(classes))}"
        )
    return [task_class() for name, task_class in classes.items() if class_name in ("", name)]


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise OptionError("mteb", path, "no such file", "give an existing FILE.py")
    name = f"{OWN_MODULE}{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # as the import system does, because classes look up their module there
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise OptionError(
            "mteb", path, f"the file cannot be run ({type(error).__name__}: {error})", "correct the file"
        ) from error
    return module


def _load_task(task: Any, data_dir: str | Path | None) -> str | None:
    """Load the data of a task or, for an aggregate task, of the averaged tasks; if this fails, return the reason."""
    parts = task.metadata.tasks if task.is_aggregate else [task]
    problems = (_load_data(part, None if data_dir is None else Path(data_dir)) for part in parts)
    return next((problem for problem in problems if problem is not None), None)


def _load_data(task: Any, data_dir: Path | None) -> str | None:
    """Load the data of a task with mteb, which uses `datasets`. Return the reason if the data are not available."""
    name = task.metadata.name
    if task.metadata.dataset.get("trust_remote_code"):
        raise OptionError(
            "mteb", name, "its data set needs to run code from the hub, which is not allowed", "leave this task out"
        )
    if data_dir is not None:
        folder = data_dir / Path(task.metadata.dataset["path"]).name
        return _load_copy(task, folder, "local") if folder.is_dir() else f"the folder {folder} does not exist"
    problem = _load(task)
    if problem is None or not huggingface_hub.constants.HF_HUB_OFFLINE or (cached := _snapshot(task)) is None:
        return problem
    # mteb asks for the configurations of retrieval data, which `datasets` knows of a folder, but offline of no hub id.
    return _load_copy(task, cached, task.metadata.revision)


def _snapshot(task: Any) -> Path | None:
    """Return the folder of a task's data set in the cache of the hub; None if the data set was not downloaded."""
    path, revision = (task.metadata.dataset[key] for key in ("path", "revision"))
    try:
        return Path(
            huggingface_hub.snapshot_download(path, repo_type="dataset", revision=revision, local_files_only=True)
        )
    except (LocalEntryNotFoundError, HFValidationError):  # the path of a user's task need not be a hub id
        return None


def _load_copy(task: Any, folder: Path, revision: str) -> str | None:
    """Load the data of a task from a copy of this revision of its data set. Return the reason if this fails."""
    # The metadata are copied, because the object is shared by all instances of the task's class.
    dataset = {**task.metadata.dataset, "path": str(folder.resolve()), "revision": revision}
    task.metadata = task.metadata.model_copy(update={"dataset": dataset})
    return _load(task)


def _load(task: Any) -> str | None:
    try:
        task.load_data()
    except Exception as error:  # incomplete files raise errors of many kinds, from datasets, pyarrow and the task
        cause = error.__cause__  # of datasets, which says only that there was an error
        return first_line(error) + (f": {first_line(cause)}" if cause else "")
    return _missing_split(task)


def _missing_split(task: Any) -> str | None:
    """Return a message if a split is missing from the loaded data or empty; otherwise None.

    Without this check, mteb would raise KeyError after it has encoded the texts of the other splits.
    """
    if task.dataset is None or hasattr(task, "corpus"):  # tasks of mteb's first version keep their data elsewhere
        return None
    training = [task.train_split] if hasattr(task, "train_split") else []
    for split in (*task.eval_splits, *training):
        data = {subset: task.dataset.get(subset, task.dataset) for subset in task.hf_subsets}
        if missing := [subset for subset, splits in data.items() if not len(splits.get(split, ()))]:
            return f"the split {split} of {first_names(missing, 12)} is missing or empty"
    return None


@contextmanager
def _offline() -> Iterator[None]:
    """Let `datasets` read only its cache within the context: a benchmark can have hundreds of gigabytes."""
    import datasets.config  # imported here because it is slow

    places = (datasets.config, huggingface_hub.constants)
    before = [module.HF_HUB_OFFLINE for module in places]
    try:
        for module in places:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(places, before, strict=True):
            module.HF_HUB_OFFLINE = value


class OutcomeRecorder:
    """Records the outcome of each example of a task, such as the cosine of a pair, while mteb evaluates the task.

    The outcomes depend on the type of the task:

    - STS with Spearman as main score: the cosine and the gold score of each pair
    - bitext mining: the contribution of each sentence to the mean F1
    - retrieval and reranking: the score of each query

    mteb provides no outcomes for other types of tasks or for other main scores.
    """

    def __init__(self, task: Any) -> None:
        self.task = task
        self._main_score: str = task.metadata.main_score
        self._queries: dict[tuple[str, str], Sequence[float]] = {}
        self._predictions: Mapping[str, Mapping[str, Any]] = {}

    @contextmanager
    def recording(self) -> Iterator[Path | None]:
        """Record outcomes within the context. Yield the folder to which mteb has to write predictions, or None."""
        if self._reads_predictions:
            with TemporaryDirectory() as folder:
                yield Path(folder)
                (path,) = Path(folder).glob("*.json")
                self._predictions = read_json(path)
            return
        if (measure := self._measure_of_query) is None:
            yield None
            return
        hook = self.task.task_specific_scores  # mteb calls it with the measures of all queries

        @wraps(hook)
        def recorded(scores: Mapping[str, Mapping[str, float]], *args: Any, **names: Any) -> Any:
            if all(measure in measures for measures in scores.values()):
                key = (names["hf_subset"], names["hf_split"])
                self._queries[key] = [scores[query][measure] for query in sorted(scores)]
            return hook(scores, *args, **names)

        self.task.task_specific_scores = recorded
        try:
            yield None
        finally:
            del self.task.task_specific_scores

    def outcomes(self, name: str, scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, ExampleOutcomes]:
        """Return the outcomes of each part of the task (one split of one subset), by the name of the part.

        Args:
            name: The name of the task in the form mteb/TASK.
            scores: Split → scores of each subset, in mteb's form.
        """
        outcomes = {part: self._of(*key) for key, part in part_names(name, scores).items()}
        return {part: outcome for part, outcome in outcomes.items() if outcome is not None}

    def _of(self, subset: str, split: str) -> ExampleOutcomes | None:
        if (subset, split) in self._queries:
            return ExampleOutcomes("mean", np.array(self._queries[subset, split]), None)
        if not self._reads_predictions:
            return None
        predicted = self._predictions[subset][split]
        data = self.task.dataset.get(subset, self.task.dataset)[split]
        if self.task.metadata.type == "STS":
            return ExampleOutcomes("spearman", np.array(predicted["cosine_scores"]), np.array(data["score"]))
        if isinstance(data, dict):  # of the first BUCC, which has separate gold pairs
            return None
        (neighbours,) = predicted.values()
        return ExampleOutcomes("mean", parts_of_f1([neighbour["corpus_id"] for neighbour in neighbours]), None)

    @property
    def _reads_predictions(self) -> bool:
        kind, task = self.task.metadata.type, self.task
        if task.is_aggregate:
            return False
        if kind == "STS":
            return self._main_score == "cosine_spearman"
        # Tasks with parallel subsets have predictions in a different form.
        return kind == "BitextMining" and self._main_score == "f1" and not task.parallel_subsets

    @property
    def _measure_of_query(self) -> str | None:
        if not hasattr(self.task, "task_specific_scores"):
            return None
        start, _, cutoff = self._main_score.rpartition("_")
        return MEASURES[f"{start}_"] + cutoff if f"{start}_" in MEASURES else None


def parts_of_f1(predicted: Sequence[int]) -> np.ndarray:
    """Return the contribution (n,) of each of n sentences to the weighted mean of F1.

    If p sentences have the same nearest sentence, and one of the p sentences is its translation, the precision is 1 /
    p and the recall is 1, so F1 is 2 / (p + 1).

    Args:
        predicted: For each sentence, the index of the nearest sentence of the other language. A sentence and its
            translation have the same index.
    """
    indices = np.array(predicted)
    count = np.bincount(indices, minlength=len(indices))
    return np.where(indices == np.arange(len(indices)), 2 / (count[: len(indices)] + 1), 0.0)
