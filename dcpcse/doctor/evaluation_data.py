"""Checks of evaluation data, and a search for their sentences in training files."""

import contextlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from senteval.errors import DataError
from senteval.files import MissingFilesError, identify
from senteval.names import DEV_TASKS, FAMILIES

from dcpcse.doctor.findings import CheckSettings, Finding, Findings, fault, note, ok, warning
from dcpcse.utils.errors import UserError, plural

SPLITS = {"test": tuple(name for family in ("sts", "finetune", "transfer", "clustering") for name in FAMILIES[family])}
SPLITS["dev"] = tuple(name for name in SPLITS["test"] if name in DEV_TASKS)
"""Split → the tasks that are evaluated on this split and have their own files, not files of another task."""


def check(path: Path, settings: CheckSettings) -> Findings:
    """Check whether the files of each task exist, have the official size, and are identical to the known files."""
    absent = []
    for name in settings.progress(SPLITS["test"], len(SPLITS["test"]), "tasks"):
        finding = _task(path, name)
        if finding is None:
            absent.append(name)
        else:
            yield finding
    if absent:
        yield note("missing", f"{', '.join(absent)}: the folder has no files of these tasks")
    if len(absent) == len(SPLITS["test"]):
        yield fault("empty", "the folder has no known task; run SentEval/data/downstream/download_dataset.sh")


def _task(path: Path, name: str) -> Finding | None:
    """Return the finding for a task; None if the folder contains no files of this task."""
    from senteval.settings import settings_of_mode  # imports torch
    from senteval.tasks import TASKS

    loaded = []
    for mode in _modes(name):
        try:
            loaded.append(TASKS[name].load(path, settings_of_mode(mode)))
        except MissingFilesError as error:
            return None if error.all_of_them and not loaded else fault(name, str(error))
        except DataError as error:
            return fault(name, str(error))
    return _known(path, name, loaded)


def _modes(name: str) -> list[str]:
    return [mode for mode, tasks in SPLITS.items() if name in tasks]


def sentences(path: Path) -> Iterator[tuple[str, str]]:
    """Yield task and text of each sentence in a folder of evaluation data, without tasks that cannot be loaded."""
    from senteval.settings import settings_of_mode  # imports torch
    from senteval.tasks import TASKS

    for name in SPLITS["test"]:
        for mode in _modes(name):
            with contextlib.suppress(DataError):  # `check` reports it
                yield from ((name, text) for text, _ in TASKS[name].load(path, settings_of_mode(mode)).located())


def _known(path: Path, name: str, loaded: list) -> Finding:
    files = identify([file for task in loaded for file in task.files()], path)
    if unknown := [file for file, facts in files.items() if not facts["known"]]:
        text = f"official size, but different contents from the known files: {', '.join(unknown)}"
        return warning(name, f"{text}; scores may differ from published ones")
    places = {(line.path, line.number, text) for task in loaded for text, line in task.located()}
    return ok(name, f"{len(files)} known files, {len(places):,} sentences")


def check_retrieval(path: Path, settings: CheckSettings) -> Findings:
    """Check that the documents, the queries and the judgements of each split can be read and fit together."""
    from dcpcse.evaluation.retrieval_data import QRELS, own_retrieval, splits_in  # imported here because it is slow

    splits = splits_in(path)
    if not splits:
        yield fault("judgements", f"{QRELS} contains no SPLIT.tsv; add the judgements, such as {QRELS}/test.tsv")
    for split in settings.progress(splits, len(splits), "splits"):
        try:
            task = own_retrieval(f"{path}:{split}")
        except (DataError, UserError) as error:
            yield fault(split, str(error))
            continue
        documents = plural(len(task.documents), "document")
        yield ok(split, f"{documents}; queries with a relevant document: {len(task.queries):,}")
        if task.queries_left_out:
            yield note(split, f"queries without a relevant document, which are not scored: {task.queries_left_out:,}")


_OTHERS = re.compile(r"[\W_]+")
"""All ASCII characters except letters and digits. (In other scripts, `\\W` would also match vowel signs and
accents.)"""


def key(text: str) -> int | None:
    """Return a 64-bit hash of the letters and digits of a text, ignoring case; None if there are none.

    Two texts with the same hash are considered the same sentence.

    Marks on letters, such as the vowel signs of Indic scripts, count as parts of the letters. It makes no difference
    whether a letter and its marks are one character or several.
    """
    text = text.casefold()
    if text.isascii():
        letters = _OTHERS.sub("", text)
    else:
        categories = ((letter, unicodedata.category(letter)[0]) for letter in unicodedata.normalize("NFC", text))
        letters = "".join(letter for letter, category in categories if category in "LMN")
        # Without letters, only marks remain of emoji.
        letters = letters if any(map(str.isalnum, letters)) else ""
    return hash(letters) if letters else None


def evaluation_keys(folders: Iterable[Path]) -> Mapping[int, str]:
    """Return a dict from the key of each sentence in folders of evaluation data to the first task with the sentence.

    The dict needs about 100 bytes per sentence of the evaluation data, whatever the size of the training file is.
    """
    keys: dict[int, str] = {}
    for folder in folders:
        for task, text in sentences(folder):
            digest = key(text)
            if digest is not None:
                keys.setdefault(digest, task)
    return keys
