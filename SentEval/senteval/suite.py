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
    """The results of an evaluation by task, with its settings, times and files.

    Args:
        sentences: Number of distinct sentences.
        seconds: Name → time in seconds: "encode" for the encoding, and the name of each task for its scoring.
        files: The files that were read; see `senteval.files.identify`.
    """

    results: dict[str, Result]
    settings: Settings
    sentences: int
    seconds: dict[str, float] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def unknown_files(self) -> list[str]:
        """The names of the files that differ from the files with which the documented scores were computed."""
        return [name for name, facts in self.files.items() if not facts["known"]]


@dataclass(frozen=True)
class Suite:
    """Tasks with their checked data. One suite can evaluate any number of encoders.

    Args:
        files: The files that were read; see `senteval.files.identify`.
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
        """Encode every distinct sentence of all tasks once, and score each task.

        See `evaluate` for the other arguments.

        Args:
            finish: A function that maps the embeddings (n, H) of a task's distinct sentences to the vectors (n, K)
                that are scored.
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
        """Encode every distinct sentence of all tasks once. Return the embeddings, and {"encode": time in seconds}.

        Call `score` with the embeddings, also several times with different functions `finish`. See `measure` for the
        arguments.
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
        """Score each task with the embeddings that `Suite.embed` returns.

        See `measure` for the other arguments.

        Args:
            seconds: The times that `Suite.embed` returns.
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
        extra: Tasks with the user's own data, which need no files of `data_dir`.

    Raises:
        DataError: If a name is unknown or a file is faulty. The message names the first fault.
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
        encode: A function that returns the embeddings (n, H) of n sentences. It is called after the files of all tasks
            are checked, in chunks of sentences, longest sentences first. Each distinct sentence is encoded once.
        data_dir: The folder that contains downstream/ (and clustering/).
        settings: Settings to use instead of the settings of `mode`.
        inside: Access to the encoder's internals, for the tasks geometry and frequent.
        progress: A function that is called during the evaluation to report progress.
        on_result: A function that is called with each result as soon as it is computed.

    Raises:
        DataError: If a task or the mode is unknown, if files are faulty, or if embeddings are unusable.
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
