"""Read retrieval data, from folders in the layout of BEIR and from the NanoBEIR sets in the cache of the hub.

The encoded text of a document is the title, a space and the text, without white space at both ends. Without a title,
only the text is encoded. The text of a query is unchanged. mteb does the same.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from senteval.beir import BeirTask, IdentifiedTexts
from senteval.errors import DataError, quote, shown
from senteval.files import require_files
from senteval.lines import Content, Line, is_number, read_lines, recorded, split_columns

from dcpcse.data.readers import open_file
from dcpcse.evaluation.mteb_tasks import PREFIX, MtebTasks, find_benchmark, load_downloaded
from dcpcse.evaluation.own_data import content_of
from dcpcse.utils.arguments import location
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, did_you_mean, first_line
from dcpcse.utils.parsing import parse_json
from dcpcse.utils.text_lines import NUL_OR_SURROGATE

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
"""Names in a folder with the layout of BEIR: the documents, the queries, and the folder of judgements by split."""

NANO = "NanoBEIR"
"""The name of all NanoBEIR sets, and of mteb's benchmark that consists of them."""

COLUMNS = ("query-id", "corpus-id", "score")
"""The columns of judgements."""

LAYOUT = f"give a folder in the layout of BEIR: {CORPUS}, {QUERIES} and {QRELS}/SPLIT.tsv"
TEXT_REMEDY = "give an object with _id and text in each line"
QRELS_REMEDY = "give query-id, corpus-id and score in each line, separated by tabs, after a header"
TABLE_REMEDY = "copy or download the set again"

DOWNLOAD = (
    "import mteb; from huggingface_hub import snapshot_download; [snapshot_download(one['path'], "
    "revision=one['revision'], repo_type='dataset') for task in mteb.get_tasks(tasks={tasks}) "
    "for one in [task.metadata.dataset]]"
)
"""Python code that downloads the data sets of tasks of mteb into the cache of the hub."""

LocatedRow = tuple[Line, Mapping[str, Any]]
"""A line and the values of its keys or columns."""

TextRow = tuple[Line, str, str]
"""The line, the id and the text of a document or query."""

Judgement = tuple[Line, str, str, float]
"""The line, the id of a query, the id of a document, and the score."""


def own_retrieval(data: str | os.PathLike[str], split: str = "test") -> BeirTask:
    """Return the evaluation task of a folder in the layout of BEIR, or of a NanoBEIR set.

    Raises the same errors as `retrieval_tasks`. Raises UserError for the name NanoBEIR, which stands for several sets.

    Args:
        data: FOLDER, FOLDER:SPLIT, or the name of a set such as NanoNFCorpus.
        split: The split of the judgements, if `data` is a FOLDER without :SPLIT. A NanoBEIR set has only one split.
    """
    tasks = retrieval_tasks([location("retrieval", data)], split)
    if len(tasks) > 1:
        raise UserError(f"{data} consists of {len(tasks)} sets; give one of them, such as {tasks[0].name}")
    return tasks[0]


def retrieval_tasks(names: Sequence[str], split: str) -> list[BeirTask]:
    """Return the evaluation tasks of folders and NanoBEIR sets; the name NanoBEIR stands for all sets.

    Nothing is downloaded. See `own_retrieval` for the forms of `names` and for `split`. Raises UserError or
    senteval.DataError, with file and line, in these cases:

    - A folder, a file or a split does not exist, or the data of a set have not been downloaded.
    - A line is not valid JSON, or lacks an id or a text.
    - An id occurs twice.
    - A judgement names an unknown query or document, has a score that is not a number, contradicts another judgement,
      or says that a document with the id of the query is relevant.
    - No query has a relevant document.
    """
    folders = {name: location for name in names if (location := _folder_and_split(name, split))}
    sets = _load_sets([name for name in names if name not in folders])
    _require_once(folders, sets, names)
    _require_different_names({name: _task_name(*location) for name, location in folders.items()})
    tasks = []
    for name in names:
        if name in folders:
            tasks.append(_read_folder(*folders[name]))
        else:
            tasks += [_of_mteb(*item) for item in sets.items() if _is_named(item[0], name)]
    return tasks


def _task_name(folder: Path, split: str, is_chosen: bool) -> str:
    return Path(os.path.abspath(folder)).name + (f":{split}" if is_chosen else "")


def _require_different_names(task_names: Mapping[str, str]) -> None:
    """Raise UserError if two folders have the same name.

    Args:
        task_names: Folder or set as given by the user → name of the task.
    """
    places: dict[str, str] = {}
    for folder, name in task_names.items():
        if name in places:
            raise UserError(f"the folders {places[name]} and {folder} have the same name, {name}; rename one of them")
        places[name] = folder


def _require_once(folders: Mapping[str, tuple[Path, str, bool]], sets: Iterable[str], names: Sequence[str]) -> None:
    """Raise UserError if a split of a folder, or a set, is given twice.

    Args:
        folders: Folder as given by the user → its path, its split, and whether the user chose the split.
        sets: Names of the tasks of mteb that the user gave.
    """
    places = [(folders[key][0].resolve(), folders[key][1]) for key in names if key in folders]
    twice = [str(folder) for folder, split in places if places.count((folder, split)) > 1]
    others = [key for key in names if key not in folders]
    twice += [_short(key) for key in sets if sum(_is_named(key, name) for name in others) > 1]
    if twice:
        raise UserError(f"the retrieval data {twice[0]} are given twice; give each folder or set once")


def _folder_and_split(name: str, split: str) -> tuple[Path, str, bool] | None:
    """Return a folder, its split, and whether the user chose the split; None for the name of a NanoBEIR set."""
    folder, _, chosen = name.rpartition(":")
    if folder and not chosen and not os.path.exists(name):
        raise UserError(f"{name}: there is no split after the colon; give FOLDER or FOLDER:SPLIT")
    location = (name, split, False) if os.path.exists(name) or not folder else (folder, chosen, True)
    if not os.path.exists(location[0]):  # Path.exists raises errors for names that are too long
        if name.lower().startswith("nano") and os.sep not in name:
            return None
        raise UserError(f"{location[0]} does not exist; check the path, or give {NANO} or one of its sets by name")
    if not os.path.isdir(location[0]):
        raise UserError(f"{location[0]} is not a folder; {LAYOUT}")
    return Path(location[0]), *location[1:]


def _read_folder(folder: Path, split: str, is_chosen: bool) -> BeirTask:
    """Return the task of a folder of text files (BEIR) or, if `corpus` is a folder, Parquet files (NanoBEIR)."""
    name = _task_name(folder, split, is_chosen)
    if (folder / "corpus").is_dir():
        return _read_parquet(folder, name, split, is_chosen)
    corpus, queries = require_files(name, folder, [_packed(folder / part).name for part in (CORPUS, QUERIES)], LAYOUT)
    qrels = _packed(folder / QRELS / f"{split}.tsv")
    if not qrels.is_file():
        raise _no_split(folder, split, splits_in(folder))
    with recorded() as contents:
        documents = _identified("documents", corpus, _documents(_objects(corpus)))
        texts = _identified("queries", queries, _queries(_objects(queries)))
        return _task(name, split, documents, texts, qrels, _judgements(qrels), contents)


def splits_in(folder: Path) -> list[str]:
    """Return the splits that have judgements (SPLIT.tsv or SPLIT.tsv.gz) in a folder with the layout of BEIR."""
    return sorted({path.name.split(".tsv")[0] for path in (folder / QRELS).glob("*.tsv*")})


def _packed(path: Path) -> Path:
    """Return the path of a file, with .gz added if only the packed file exists."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() and not path.exists() else path


def _read_parquet(folder: Path, name: str, split: str, is_chosen: bool) -> BeirTask:
    """Return the task of a copy of a NanoBEIR set: folders corpus, queries and qrels of Parquet files SPLIT-*.parquet.

    Unless the user chose a split, the only split of the judgements is used. Judgements without scores have the score
    1.
    """
    parts = {part: sorted((folder / part).glob("*.parquet")) for part in ("corpus", "queries", QRELS)}
    if missing := [part for part, files in parts.items() if not files]:
        raise UserError(
            f"{folder}: there are no Parquet files in {', '.join(missing)}; copy the whole set, or {LAYOUT}"
        )
    splits = sorted({path.name.split("-")[0].removesuffix(".parquet") for path in parts[QRELS]})
    split = splits[0] if len(splits) == 1 and not is_chosen else split
    if split not in splits:
        raise _no_split(folder, split, splits)
    parts[QRELS] = [path for path in parts[QRELS] if path.name.startswith((f"{split}-", f"{split}."))]
    tables, contents = {}, {}
    for part, files in parts.items():
        opened = [open_file(path) for path in files]
        rows = [dict(zip(table.columns, cells, strict=True)) for table in opened for _, cells in table.rows]
        tables[part] = (folder / part, rows)
        contents |= {table.path: Content(table.sha256, table.bytes) for table in opened}
    return _task_of_tables(name, split, tables, contents)


def _load_sets(names: Sequence[str]) -> dict[str, Any]:
    """Return mteb's tasks with their data by name, for the NanoBEIR sets with these names.

    Raises UserError if a name is unknown, or if the data of a set are not in the cache of the hub.
    """
    if not names:
        return {}
    tasks = {name.removeprefix(PREFIX): task for name, task in find_benchmark(NANO).tasks.items()}
    known = [NANO, *map(_short, tasks)]
    for name in names:
        if not any(_is_named(task, name) for task in tasks):
            hint = did_you_mean(name, known)
            hint = "sets have one split, and take none; " if ":" in name else f"{hint} " if hint else ""
            raise UserError(f"{name} is neither a folder nor a NanoBEIR set; {hint}choose from: {', '.join(known)}")
    chosen = {name: task for name, task in tasks.items() if any(_is_named(name, requested) for requested in names)}
    if missing := load_downloaded(MtebTasks(chosen)):
        wanted = [Path(path).name for path in missing]
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise UserError(
            f"{_short(wanted[0])}: the data set {missing[0]}{more} not in the cache of the hub; download with "
            f'python -c "{DOWNLOAD.format(tasks=wanted)}", or give a folder with a copy'
        )
    return chosen


def _short(task: str) -> str:
    """Return the name of a NanoBEIR set: the name of mteb's task without "Retrieval"."""
    return task.removesuffix("Retrieval")


def _is_named(task: str, name: str) -> bool:
    """Return whether a name given by the user, in upper or lower case, means this task of mteb."""
    return name.lower() in (NANO.lower(), task.lower(), _short(task).lower())


def _of_mteb(name: str, task: Any) -> BeirTask:
    """Return the task of a NanoBEIR set that mteb has loaded."""
    ((split, data),) = task.dataset["default"].items()
    qrels = [
        {"query-id": query, "corpus-id": document, "score": score}
        for query, scores in sorted(data["relevant_docs"].items())
        for document, score in sorted(scores.items())
    ]
    tables = {"corpus": data["corpus"], "queries": data["queries"], QRELS: qrels}
    contents = {Path(_short(name)) / part: content_of(rows) for part, rows in tables.items()}
    located = {part: (Path(_short(name)) / part, rows) for part, rows in tables.items()}
    return _task_of_tables(_short(name), split, located, contents)


def _task_of_tables(
    name: str,
    split: str,
    tables: Mapping[str, tuple[Path, Iterable[Mapping[str, Any]]]],
    contents: Mapping[Path, Content],
) -> BeirTask:
    """Return the task of the three tables corpus, queries and qrels; each table is given by its source and its rows.

    The data are published, so blank texts are kept, as in mteb.
    """
    located = {part: (source, _rows(source, rows)) for part, (source, rows) in tables.items()}
    documents = _identified("documents", located["corpus"][0], _documents(located["corpus"][1]), blank=True)
    queries = _identified("queries", located["queries"][0], _queries(located["queries"][1]), blank=True)
    qrels, rows = located[QRELS]
    return _task(name, split, documents, queries, qrels, _table_judgements(rows), contents)


def _rows(source: Path, rows: Iterable[Mapping[str, Any]]) -> Iterator[LocatedRow]:
    for number, row in enumerate(rows, start=1):
        yield Line(source, number, "", TABLE_REMEDY, "row"), row


def _table_judgements(rows: Iterable[LocatedRow]) -> Iterator[Judgement]:
    """Yield the judgements of a table. If the table has no scores, each judgement has the score 1.

    Raises DataError if a score is not a number.
    """
    for line, row in rows:
        score = row.get("score", 1)
        if not is_number(str(score)):
            raise line.error(f"expected a number as score, found {shown(score)}")
        yield line, str(row.get("query-id")), str(row.get("corpus-id")), float(score)


def _no_split(folder: Path, split: str, splits: Sequence[str]) -> UserError:
    if not splits:
        return UserError(f"{folder}: there is no {QRELS}/{split}.tsv; {LAYOUT}")
    return UserError(
        f"{folder}: there is no split {split} in {QRELS}, which has {', '.join(splits)}; add the split, or choose "
        f"one, such as {folder}:{splits[0]}"
    )


def _objects(path: Path) -> Iterator[LocatedRow]:
    """Yield the JSON objects of a file with their lines. Raises DataError for a line that is not a JSON object."""
    for line in read_lines(path, remedy=TEXT_REMEDY):
        if not line.text.strip():
            raise line.error("expected a JSON object, found an empty line")
        try:
            record = parse_json(line.text, once=True)
        except ValueError as error:
            raise line.error(f"not valid JSON ({first_line(error).replace(': line 1', ' at')})") from error
        if not isinstance(record, dict):
            raise line.error(f"expected a JSON object, found {shown(record)}")
        yield line, record


def _documents(rows: Iterable[LocatedRow]) -> Iterator[TextRow]:
    for line, row in rows:
        title, text = _cell(line, row, "title", optional=True), _cell(line, row, "text")
        yield line, _id(line, row), (f"{title} {text}" if title else text).strip()


def _queries(rows: Iterable[LocatedRow]) -> Iterator[TextRow]:
    for line, row in rows:
        yield line, _id(line, row), _cell(line, row, "text")


def _id(line: Line, row: Mapping[str, Any]) -> str:
    """Return _id, or id as in data of mteb, as a string. Raises DataError unless it is a string or a whole number."""
    value = row.get("_id", row.get("id"))
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise line.error(f"expected a string as _id, found {shown(value)}")
    return str(value)


def _cell(line: Line, row: Mapping[str, Any], key: str, *, optional: bool = False) -> str:
    """Return the text of a key. Raises DataError if it is not a string; an optional text may be missing or null."""
    text = row.get(key)
    if text is None and optional:
        return ""
    if not isinstance(text, str):
        raise line.error(f"expected a string as {key}, found {shown(text)}")
    if NUL_OR_SURROGATE.search(text):
        raise line.error(f"{key} contains a NUL or a surrogate (half a character)")
    return text


def _judgements(path: Path) -> Iterator[Judgement]:
    """Yield the judgements of a file. Raises DataError if the header is missing, or if a score is not a number."""
    header, *lines = read_lines(path, remedy=QRELS_REMEDY) or [Line(path, 1, "", QRELS_REMEDY)]
    columns = [name.strip().lower() for name in split_columns(header, 3, more_allowed=False)]
    if any(map(is_number, columns)):
        raise header.error("expected a header with the column names, found a judgement")
    # Columns with other names, such as qid and docid, are read in the order of BEIR's columns.
    places = [columns.index(name) for name in COLUMNS] if set(columns) == set(COLUMNS) else range(3)
    for line in lines:
        cells = split_columns(line, 3, more_allowed=False)
        query, document, score = (cells[index] for index in places)
        if not is_number(score):
            raise line.error(f"expected a number as score, found {quote(score)}")
        yield line, query, document, float(score)


def _fault(line: Line, problem: str, remedy: str) -> DataError:
    """Return the error for a line with the right form and a wrong content."""
    return line._replace(remedy=remedy).error(problem)


def _identified(name: str, source: Path, rows: Iterable[TextRow], *, blank: bool = False) -> IdentifiedTexts:
    """Return the texts of rows. Raises DataError if there are no rows, or if an id occurs twice.

    Args:
        blank: Whether blank texts are allowed; if not, a blank text raises DataError.
    """
    first: dict[str, int] = {}
    texts, unit = [], ""
    for line, key, text in rows:
        if key in first:
            location = f"{line.unit or 'line'} {first[key]}"
            raise _fault(line, f"the id {quote(key)} occurs twice, first in {location}", "give each id once")
        if not blank and not text.strip():
            raise _fault(line, "found an empty text", "give a text, or remove the line and its judgements")
        first[key], unit = line.number, line.unit
        texts.append(text)
    if not texts:
        raise DataError(f"{source}: there are no {name}; {TEXT_REMEDY}")
    return IdentifiedTexts(name, list(first), texts, source, list(first.values()), unit)


def _task(
    name: str,
    split: str,
    documents: IdentifiedTexts,
    queries: IdentifiedTexts,
    qrels: Path,
    judgements: Iterable[Judgement],
    contents: Mapping[Path, Content],
) -> BeirTask:
    """Return the task of the queries that have a relevant document; log how many queries have none.

    Raises DataError if no query has a relevant document, or if a judgement contradicts the data or another judgement.
    """
    row_of = {doc_id: row for row, doc_id in enumerate(documents.ids)}
    scores: dict[str, dict[str, float]] = {query: {} for query in queries.ids}
    for line, query, document, score in judgements:
        if query not in scores:
            raise _fault(
                line, f"the query {quote(query)} is not in {queries.source.name}", "add the query, or remove the line"
            )
        if document not in row_of:
            found = f"the document {quote(document)} is not in {documents.source.name}"
            raise _fault(line, found, "add the document, or remove the line")
        if scores[query].setdefault(document, score) != score:
            found = f"query {quote(query)} and document {quote(document)} occur twice with different scores"
            raise _fault(line, found, "keep one of the two lines")
        if score > 0 and query == document:
            found = f"the document {quote(document)} is relevant for the query with the same id, which BEIR ignores"
            raise _fault(line, found, "give queries and documents different ids")
    relevant = {
        query: {row_of[document]: score for document, score in found.items() if score > 0}
        for query, found in scores.items()
    }
    indices = [row for row, query in enumerate(queries.ids) if relevant[query]]
    if not indices:
        raise DataError(f"{qrels}: no query has a relevant document; give at least one score above 0")
    if left_out := len(queries) - len(indices):
        notify(
            f"{name}: {left_out:,} of {len(queries):,} queries have no relevant document in {split}; they are left out"
        )
    queries = queries.part(indices)
    if shared := sum(query in row_of for query in queries.ids):
        notify(
            f"{name}: a document with the id of the query is ignored, as in BEIR; this concerns "
            f"{shared:,} of {len(queries):,} queries"
        )
    return BeirTask(name, split, documents, queries, [relevant[key] for key in queries.ids], left_out, dict(contents))
