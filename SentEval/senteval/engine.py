"""SentEval's original interface, `SE(params, batcher, prepare).eval(names)`, for existing scripts.

`params` is a dict with these keys. task_path is required; the other keys have the defaults below:

    task_path    the folder that contains downstream/
    batch_size   128; the maximum number of sentences in a call of batcher
    similarity   the cosine; a function of two numpy vectors (H,), for the STS tasks
    kfold        5; folds of the cross-validated tasks
    seed         1111; of the folds and classifiers
    usepytorch   True; False uses scikit-learn's logistic regression and ignores `classifier`
    classifier   {'nhid': 0}; nhid is required, the other keys are the fields of `senteval.stacked.Classifier`
    official     True; False allows files whose sizes differ from the official ones

Other keys are passed on to the script's functions. There are three differences to the original: the global random
state stays unchanged, equal sentences of a task are encoded once, and a pair without a defined cosine raises DataError
instead of counting as 0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from senteval.data import ScoredPairs
from senteval.embeddings import Embeddings, encode_all
from senteval.errors import DataError, require_integer, shown
from senteval.finetune import FINETUNE
from senteval.lines import Located
from senteval.names import find_by_name
from senteval.scores import correlations, score_task, similarities
from senteval.settings import Settings
from senteval.stacked import Classifier
from senteval.sts import STS, LoadedSts, load_pairs
from senteval.tasks import Loaded
from senteval.transfer import TRANSFER

Tokens = list[str]
Batcher = Callable[["Params", list[Tokens]], np.ndarray | torch.Tensor]
"""A function that returns embeddings (n, H) of n tokenised sentences; an empty sentence is []."""
Prepare = Callable[["Params", list[Tokens]], Any]
"""A function that is called with all sentences of a task, including repeated ones, before they are encoded."""

DEFAULTS: Mapping[str, Any] = {
    "usepytorch": True,
    "seed": 1111,
    "batch_size": 128,
    "nhid": 0,  # used by batchers only; as in the original, the classifier has its own nhid
    "kfold": 5,
    "classifier": None,
    "official": True,
}

FLAGS = ("usepytorch", "official")
CLASSIFIER = tuple(field.name for field in fields(Classifier))


class Params(dict):
    """A dict whose entries are also attributes. As in the original SentEval, an attribute without an entry is None."""

    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look up special methods and would call None.
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)


class SE:
    """SentEval's engine, which evaluates the encoder that a script passes as `batcher`.

    The attribute `results` is the last return value of `eval`.

    batcher and prepare get the same `Params` object in every call, with the name of the task as `current_task`.

    Args:
        params, batcher, prepare: See the module docstring.

    Raises:
        DataError: If `params` are unusable.
    """

    def __init__(self, params: Mapping[str, Any], batcher: Batcher, prepare: Prepare | None = None) -> None:
        if not isinstance(params, Mapping):
            raise _unusable("params", params, "a dict with a task_path")
        self.params = Params({**DEFAULTS, **params})
        self.params.classifier = self.params.classifier or {"nhid": 0}
        self.batcher = _require_callable("batcher", batcher)
        self.prepare = _require_callable("prepare", prepare if prepare is not None else lambda params, samples: None)
        self.list_tasks = list(TASKS)
        self.results: dict[str, Any] = {}
        settings_of(self.params)  # raises errors before anything is encoded

    def eval(self, name: str | Iterable[str]) -> dict[str, Any]:
        """Return the results of a task by SentEval's keys. For a list of tasks, return a dict of results by task.

        The files of all tasks are read and checked before anything is encoded. Raises DataError for an unknown task,
        faulty files or unusable embeddings.
        """
        if isinstance(name, str):
            self.results = self._evaluate(name, self._load(name))
        else:
            loaded = {one: self._load(one) for one in name}
            self.results = {one: self._evaluate(one, task) for one, task in loaded.items()}
        return self.results

    def _load(self, name: str) -> Loaded:
        return find_by_name(name, TASKS).load(Path(self.params.task_path), settings_of(self.params))

    def _evaluate(self, name: str, loaded: Loaded) -> dict[str, Any]:
        self.params.current_task = name
        self.prepare(self.params, [sentence.split() for sentence, _ in loaded.located()])
        # `prepare` may change params and encoder, so sentences are encoded after the call of `prepare`, and again for
        # every task.
        settings = settings_of(self.params)
        embed = encode_by(self.batcher, self.params, loaded.located())
        return TASKS[name].score(loaded, embed, settings, self.params)


def settings_of(params: Params) -> Settings:
    """Return the params as `Settings`. Raises DataError for the first key that is missing or unusable."""
    if not isinstance(params.task_path, (str, PathLike)):
        raise _unusable("params['task_path']", params.task_path, "the path of the folder that contains downstream/")
    for key in FLAGS:
        if params[key] not in (True, False):
            raise _unusable(f"params[{key!r}]", params[key], "True or False")
    require_integer("params['batch_size']", params.batch_size, 1)
    if params.similarity is not None:
        _require_callable("params['similarity']", params.similarity)
    classifier = _classifier(params.classifier)
    flags = {"use_torch": bool(params.usepytorch), "official": bool(params.official)}
    with _prefixed("params"):
        return Settings(kfold=params.kfold, classifier=classifier, seed=params.seed, **flags)


def encode_by(batcher: Batcher, params: Params, located: Iterable[Located]) -> Embeddings:
    """Encode all distinct sentences with a batcher. Raises DataError unless vectors are finite and of equal length."""

    def encode(sentences: list[str]) -> np.ndarray:
        return as_array(batcher(params, [sentence.split() for sentence in sentences]))

    return encode_all(encode, located, chunk=params.batch_size, source="batcher")


def as_array(vectors: Any) -> Any:
    """Return a tensor as a numpy array, and any other value unchanged."""
    if not isinstance(vectors, torch.Tensor):
        return vectors
    if vectors.is_floating_point() and vectors.dtype != torch.float64:
        vectors = vectors.float()  # numpy has no bfloat16
    return vectors.numpy(force=True)


def load_all_splits(name: str, data_dir: Path, settings: Settings) -> LoadedSts:
    """Load an STS task with the pairs of all its splits. The original SentEval evaluates all splits together."""
    splits = STS[name].splits
    sets = chain.from_iterable(load_pairs(name, data_dir, split, settings.official) for split in splits)
    return LoadedSts(name, ", ".join(splits), tuple(sets))


def score_pairs(loaded: LoadedSts, embed: Embeddings, settings: Settings, params: Params) -> dict[str, Any]:
    """Return scipy's correlations for each set, the correlations over all pairs, and the averages over sets."""
    compare = similarities if params.similarity is None else partial(similarities_by, params.similarity)
    similarity_of = [compare(loaded.task, pairs, embed(pairs.first), embed(pairs.second)) for pairs in loaded.subsets]
    results: dict[str, Any] = {}
    for pairs, similarity in zip(loaded.subsets, similarity_of, strict=True):
        pearson, spearman = correlations(f"{loaded.task} {pairs.name}", similarity, pairs.gold)
        results[pairs.name] = {"pearson": pearson, "spearman": spearman, "nsamples": len(pairs)}
    together = score_task(loaded.task, loaded.split, loaded.subsets, similarity_of)
    return {**results, "all": together.as_senteval()["all"]}


def similarities_by(
    similarity: Callable[[np.ndarray, np.ndarray], float],
    task: str,
    pairs: ScoredPairs,
    first: np.ndarray,
    second: np.ndarray,
) -> np.ndarray:
    """Return the similarities (N,) of pairs of vectors (N, H), computed by the function `params['similarity']`.

    Raises DataError unless all similarities are finite.
    """
    found = []
    for line, *vectors in zip(pairs.lines, first, second, strict=True):
        value = similarity(*vectors)
        if not _is_finite(value):
            owner = f"{pairs.source}:{line}: {task} {pairs.name}: params['similarity'] of this pair"
            raise _unusable(owner, value, "a finite number")
        found.append(float(value))
    return np.array(found)


def score_trained(loaded: Loaded, embed: Embeddings, settings: Settings, params: Params) -> dict[str, Any]:
    """Return the scores of a classifier that is trained on the embeddings."""
    return loaded.score(embed, settings).as_senteval()


class Task(NamedTuple):
    """The functions that load the data of a task and compute its scores from the embeddings."""

    load: Callable[[Path, Settings], Loaded]
    score: Callable[[Any, Embeddings, Settings, Params], dict[str, Any]]


TASKS: dict[str, Task] = {
    **{name: Task(partial(load_all_splits, name), score_pairs) for name in STS},
    **{name: Task(task.load, score_trained) for name, task in {**TRANSFER, **FINETUNE}.items()},
}


def _classifier(given: Any) -> Classifier:
    owner = "params['classifier']"
    if not isinstance(given, Mapping) or "nhid" not in given:
        raise _unusable(owner, given, "a dict with 'nhid', the number of hidden units or 0,")
    for key in given:
        if key not in CLASSIFIER:
            raise DataError(f"{owner} has an unknown key {shown(key)}; choose from {', '.join(CLASSIFIER)}")
    with _prefixed(owner):
        return Classifier(**given)


@contextmanager
def _prefixed(owner: str) -> Iterator[None]:
    """Add `owner`, the name of the faulty value, before the message of a DataError in the context."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{owner}: {error}") from error


def _require_callable(owner: str, given: Any) -> Callable[..., Any]:
    if not callable(given):
        raise _unusable(owner, given, "a function")
    return given


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError, RuntimeError):
        return False


def _unusable(owner: str, given: Any, wanted: str) -> DataError:
    return DataError(f"{owner} is {shown(given)}; {wanted} is needed")
