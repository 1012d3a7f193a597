"""Evaluation of a sentence encoder: checks all files, encodes every distinct sentence once, and scores each task."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from senteval.embeddings import CHUNK, Embeddings, Encode, Finish, Inside, Progress, encode_all
from senteval.errors import DataError
from senteval.files import identify
from senteval.lines import recorded
from senteval.settings import Settings, settings_of_mode
from senteval.tasks import Loaded, Result, Task, find_tasks


@dataclass(frozen=True)
class Evaluation:
    """The results by task, with the settings, times and files of the evaluation.

    Args:
        sentences: Number of distinct sentences.
        seconds: Times of "encode" and of scoring each task.
        files: See `senteval.files.identify`.
    """

    results: dict[str, Result]
    settings: Settings
    sentences: int
    seconds: dict[str, float] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def unknown_files(self) -> list[str]:
        """Names of files that passed all checks but differ from those used to compute the documented scores."""
        return [name for name, facts in self.files.items() if not facts["known"]]


@dataclass(frozen=True)
class Suite:
    """Tasks with their checked data, on which any number of encoders can be evaluated.

    Args:
        files: See `senteval.files.identify`; they are not read again.
    """

    tasks: Mapping[str, Loaded]
    settings: Settings
    files: dict[str, dict[str, Any]]

    def measure(
        self,
        encode: Encode,
        *,
        inside: Inside | None = None,
        finish: Finish | None = None,
        progress: Progress = lambda *_: None,
        on_result: Callable[[Result], None] = lambda result: None,
        chunk: int = CHUNK,
    ) -> Evaluation:
        """Encode every distinct sentence of all tasks once and score each task. See `evaluate` for the arguments.

        Args:
            finish: Maps the embeddings (n, H) of a task's distinct sentences to the vectors (n, K) that are scored.
            chunk: Number of sentences per call of `encode`.
        """
        embed, seconds = self.embed(encode, inside=inside, progress=progress, chunk=chunk)
        return self.score(embed, seconds, finish=finish, progress=progress, on_result=on_result)

    def embed(
        self,
        encode: Encode,
        *,
        inside: Inside | None = None,
        progress: Progress = lambda *_: None,
        chunk: int = CHUNK,
    ) -> tuple[Embeddings, dict[str, float]]:
        """Encode every distinct sentence of all tasks once; return the embeddings and the time of "encode".

        With `score`, one encoding is scored several times, each with another `finish`. See `measure`.
        """
        seconds: dict[str, float] = {}
        with _timed(seconds, "encode"):
            located = chain.from_iterable(task.located() for task in self.tasks.values())
            return encode_all(encode, located, progress, inside, chunk), seconds

    def score(
        self,
        embed: Embeddings,
        seconds: Mapping[str, float],
        *,
        finish: Finish | None = None,
        progress: Progress = lambda *_: None,
        on_result: Callable[[Result], None] = lambda result: None,
    ) -> Evaluation:
        """Score each task on the result of `embed`.

        See `measure` for the other arguments.

        Args:
            seconds: Times measured so far.
        """
        seconds, results = dict(seconds), {}
        for done, (name, task) in enumerate(self.tasks.items()):
            progress("score", done, len(self.tasks))
            with _timed(seconds, name):
                own = embed if finish is None else _finished(embed, task, finish)
                results[name] = task.score(own, self.settings)
            on_result(results[name])
        progress("score", len(self.tasks), len(self.tasks))
        return Evaluation(results, self.settings, len(embed), seconds, self.files)


def load_suite(tasks: Sequence[str], data_dir: str | Path, settings: Settings, extra: Sequence[Task] = ()) -> Suite:
    """Read and check the data of all tasks.

    Args:
        extra: Tasks with the user's data.

    Raises:
        DataError: If a name is unknown or a file is faulty; the first fault is reported.
    """
    chosen = [*(find_tasks(tasks) if tasks or not extra else []), *extra]
    names = [task.name for task in chosen]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"your own data have the same name as another task, {twice}; rename their file or folder")
    with recorded() as read:
        loaded = {task.name: task.load(Path(data_dir), settings) for task in chosen}
    paths = chain.from_iterable(task.files() for task in loaded.values())
    return Suite(loaded, settings, identify(paths, Path(data_dir), read))


def evaluate(
    encode: Encode,
    tasks: Sequence[str],
    data_dir: str | Path,
    mode: str = "test",
    *,
    settings: Settings | None = None,
    inside: Inside | None = None,
    progress: Progress = lambda *_: None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Evaluation:
    """Evaluate an encoder on tasks.

    Args:
        encode: A function that is called with every distinct sentence of all tasks once, in chunks, longest first,
            after the files of all tasks are checked.
        data_dir: The folder that contains downstream/ (and clustering/).
        settings: Settings that replace the settings of the mode.
        inside: Access to the encoder's internals, for the tasks geometry and frequent.
        progress: A function that is called during the evaluation.
        on_result: A function that is called with each result as soon as it is computed.

    Raises:
        DataError: If a task or mode is unknown, files are faulty or embeddings are unusable.
    """
    suite = load_suite(tasks, data_dir, settings or settings_of_mode(mode))
    return suite.measure(encode, inside=inside, progress=progress, on_result=on_result)


def _finished(embed: Embeddings, task: Loaded, finish: Finish) -> Embeddings:
    return embed.of(list(dict.fromkeys(sentence for sentence, _ in task.located())), finish)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started
