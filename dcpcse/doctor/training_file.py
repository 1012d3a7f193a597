"""Check a training file in two passes with bounded memory: first the bytes, then the rows as training uses them."""

import os
import re
import unicodedata
from collections import Counter as Histogram
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dcpcse.data.checks import MOST_UNKNOWN, REMEDY, describe_unknown, format_problem
from dcpcse.data.columns import CLASS, ROLES, Header, describe_labels, kind_of_role, positives_in
from dcpcse.data.duplicates import LINES_SHOWN, LineCounter
from dcpcse.data.readers import format_of, open_file, open_rows
from dcpcse.data.tables import Table, TextRow, read_rows
from dcpcse.data.training_data import RowCounts
from dcpcse.doctor.evaluation_data import key
from dcpcse.doctor.findings import CheckSettings, Finding, Findings, fault, note, ok, warning
from dcpcse.utils.errors import UserError
from dcpcse.utils.text_lines import MOST_LINE_BYTES

MISSING = {"na", "n/a", "#n/a", "nan", "null", "none", "nil", "<na>"}
"""Texts of cells that other programs read as missing values. dcpcse reads them as text."""

CHUNK_BYTES = 1 << 20
CHUNK_ROWS = 10_000
"""Numbers of bytes and rows read at once."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufffd]")
"""Control characters, byte-order marks inside a sentence, and the replacement character of undecodable bytes."""


def check(path: Path, settings: CheckSettings) -> Findings:
    """Check the line ends, the format, the columns and the rows of a training file."""
    yield from _bytes(path)
    if problem := format_problem(path):
        yield warning("format", "; ".join(problem))
    faults: dict[str, tuple[str, LineCounter]] = {}

    def refuse(number: int, error: UserError) -> None:
        text = _without_path(error, path)
        # Messages that differ only in numbers and quoted text become one finding.
        kind = re.sub(r"\d+|'[^']*'|\"[^\"]*\"|\[.*?\]|0x\w+", "", text)
        faults.setdefault(kind, (text, LineCounter()))[1].add(number)

    findings, unit = [], "line"
    try:
        table = open_file(path, refuse, settings.columns)
        header, complete = read_rows(table)
        counts, unit = _SentenceCounts(settings, header), table.unit
        batches = iter(lambda: list(islice(complete, CHUNK_ROWS)), [])
        for batch in settings.progress(batches, None, f"{path.name} ({os.path.getsize(path) / 1e6:.0f} MB)"):
            counts.add(batch)
        findings = [*_table(table, header, counts, bool(faults)), *counts.findings(header)]
    except UserError as error:  # the rest of the file cannot be read
        text = _without_path(error, path)
        if not faults or "is empty" not in text:
            findings = [fault("unreadable", text)]
    for text, rows in faults.values():
        yield fault("row refused", text, rows.lines, rows.count, unit)
    for finding in findings:
        yield replace(finding, unit=unit)


def _without_path(error: UserError, path: Path) -> str:
    return re.sub(rf"^{re.escape(str(path))}(, (line|item|row) \d+)?(: |, )", "", str(error))


def _table(table: Table, header: Header, rows: "_SentenceCounts", has_faults: bool) -> Findings:
    if not (number := rows.count):
        yield fault("no rows", f"the file has no complete row (columns {', '.join(header.names)}); add some")
        return
    named = zip((name[:40] for name in header.names), header.roles, strict=True)
    roles = ", ".join(f"{name} ({role})" if name != role else name for name, role in named)
    if has_faults:
        yield note("rows", f"{number:,} complete rows, but training refuses the file; columns: {roles}")
    else:
        yield ok("rows", f"{number:,} rows for training; columns: {roles}")
    if number < 2:
        yield fault("one row", "most losses compare rows and need at least 2; add some")
    if table.dropped:
        lines = tuple(table.dropped[:LINES_SHOWN])
        yield warning("blank", "rows with a blank cell are skipped in training", lines, len(table.dropped))
    for problem in rows.table.problems(table):
        yield (fault if problem.is_fatal else warning)(problem.what, problem.text)


def _bytes(path: Path) -> Findings:
    """Check the byte-order mark and the line endings."""
    marks, crlf, lf, lone, last, since = b"", 0, 0, 0, b"", 0
    if format_of(path) == ".parquet":
        yield ok("format", f"parquet, {os.path.getsize(path):,} bytes")
        return
    with open_rows(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            if not marks:
                marks = chunk[:3]
            joined = last + chunk
            crlf += joined.count(b"\r\n") - last.count(b"\r\n")
            lf += chunk.count(b"\n")
            lone += chunk.count(b"\r")
            last = chunk[-1:]
            since = 0 if b"\n" in chunk else since + len(chunk)
            if since > MOST_LINE_BYTES:  # the reader of the rows reports it
                return
    size = f"{os.path.getsize(path):,} bytes"
    yield ok("format", f"{format_of(path)[1:]}, {size}")
    if marks == b"\xef\xbb\xbf":
        yield note("BOM", "the file begins with a byte-order mark, which is ignored")
    if crlf == lf and crlf:
        yield note("line ends", "Windows line endings (CR LF), which are accepted")
    elif crlf:
        yield warning(
            "line ends", f"mixed: {crlf:,} lines end in CR LF and {lf - crlf:,} in LF; check whether files were joined"
        )
    if lone - crlf:
        yield warning("line ends", f"{lone - crlf:,} carriage returns within lines are read as spaces; remove them")
    if last and last != b"\n" and format_of(path) != ".json":
        yield note("last line", "the last line has no line ending; is the file truncated?")


class _SentenceCounts:
    """Statistics of the sentences in all rows of a file."""

    def __init__(self, settings: CheckSettings, header: Header) -> None:
        self.settings = settings
        self.table, self.count = RowCounts(header), 0
        self.counters: Mapping[str, LineCounter] = {name: LineCounter() for name in _SENTENCE_FINDINGS}
        self.words, self.characters, self.tokens = Histogram(), Histogram(), Histogram()
        roles = [kind_of_role(role) for role in header.roles]
        # The columns of several positives, and of hard negatives, of which rows may have fewer than others.
        self._places = {role: [i for i, kind in enumerate(roles) if kind == role] for role in ROLES[1:]}
        self.numbers: Mapping[str, Histogram[int]] = {role: Histogram() for role in ROLES[1:]}
        self.evaluated: Histogram[str] = Histogram()
        self.unknown, self._unknown_rows = 0, LineCounter()
        self._special = re.compile("|".join(map(re.escape, settings.special)) or r"(?!)")

    def add(self, batch: Sequence[TextRow]) -> None:
        self.table.add(batch)
        self.count += len(batch)
        if self.table.labels.kind:
            batch = [(number, cells[:-1]) for number, cells in batch]  # without the label column
        for number, cells in batch:
            for cell in filter(None, cells):
                self._count(number, cell)
            for role, places in self._places.items():
                self.numbers[role][sum(cells[place] is not None for place in places)] += 1
        if self.settings.tokenizer:
            self._count_tokens(batch)

    def _count(self, number: int, cell: str) -> None:
        words = len(cell.split())
        self.words[words] += 1
        self.characters[len(cell)] += 1
        counters = self.counters
        if self.settings.evaluated and (task := self.settings.evaluated.get(key(cell))):
            counters["evaluation"].add(number)
            self.evaluated[task] += 1
        if len(cell) < 6 and cell.lower() in MISSING:
            counters["missing"].add(number)
        if "\t" in cell:
            counters["tab"].add(number)
        if self._special.search(cell):
            counters["special"].add(number)
        if _CONTROL.search(cell):
            counters["control"].add(number)
        if not cell.isascii() and not unicodedata.is_normalized("NFC", cell):
            counters["normal form"].add(number)
        if self.settings.tokenizer is None and words > self.settings.max_seq_length - 2:  # a word is at least 1 token
            counters["long"].add(number)

    def _count_tokens(self, batch: Sequence[TextRow]) -> None:
        texts = [text for _, cells in batch for text in cells if text is not None]
        ids = iter([encoded.ids for encoded in self.settings.tokenizer.encode_batch(texts)])
        framing = self.settings.tokenizer.num_special_tokens_to_add(False)
        for number, cells in batch:
            of_row = [next(ids) for cell in cells if cell is not None]
            lengths = list(map(len, of_row))
            self.tokens.update(lengths)
            if max(lengths) > self.settings.max_seq_length:
                self.counters["long"].add(number)
            if min(lengths) == framing:
                self.counters["no tokens"].add(number)
            if unknown := sum(encoded.count(self.settings.unknown_id) for encoded in of_row):
                self.unknown += unknown
                self._unknown_rows.add(number)

    def findings(self, header: Header) -> Findings:
        """Yield the findings about all added rows; nothing if there are no rows."""
        if not self.count:
            return
        yield from self._labels()
        yield from self._repeats(header)
        if self.settings.evaluated and not self.evaluated:
            sentences = f"{len(self.settings.evaluated):,} different sentences"
            yield ok("evaluation", f"no row contains one of the {sentences} of the evaluation data")
        for name, counter in self.counters.items():
            if counter.count:
                level, what, text = _SENTENCE_FINDINGS[name]
                yield level(what, text(self), counter.lines, counter.count)
        if self.unknown:
            yield self._unknown(self._unknown_rows)
        yield from self._lengths()

    def _unknown(self, rows: LineCounter) -> Finding:
        # Without the special tokens around a sentence.
        tokenizer, sentences = self.settings.tokenizer, self.tokens.total()
        framed = sum(length * count for length, count in self.tokens.items())
        share = self.unknown / (framed - sentences * tokenizer.num_special_tokens_to_add(False))
        text = describe_unknown(share, tokenizer.id_to_token(self.settings.unknown_id))
        if share > MOST_UNKNOWN:
            return warning("unknown", f"{text}; {REMEDY}", rows.lines, rows.count)
        return note("unknown", text, rows.lines, rows.count)

    def _labels(self) -> Findings:
        classes, scores = self.table.labels.classes, self.table.labels.scores
        if len(classes) == 1 or (scores and scores[0] == scores[1]):
            same = next(iter(classes or scores))
            yield fault(
                "labels", f"all rows have the {self.table.labels.kind} {same}, from which nothing can be learned"
            )
        elif self.table.labels.kind:
            yield ok("labels", describe_labels(classes, scores))
        if self.table.labels.kind == CLASS and (single := sum(count == 1 for count in classes.values())):
            level = fault if single == len(classes) else warning
            yield level(
                "single", f"{single:,} of {len(classes):,} classes have one sentence, which is its own positive"
            )

    def _repeats(self, header: Header) -> Findings:
        repeats, kind = self.table.repeats.found(), self.table.labels.kind
        unit = "sentence" if kind == CLASS else "pair"
        kinds = {
            "duplicate": (repeats.duplicates, "rows that repeat an earlier row"),
            "identical": (repeats.identical, "rows with the same text as anchor and positive; they teach nothing"),
            "contradictory": (repeats.contradictory, "rows with the same text as negative and as anchor or positive"),
            "relabelled": (repeats.relabelled, f"rows that repeat an earlier {unit} with a different {kind}"),
        }
        for what, (occurrences, text) in kinds.items():
            if occurrences.count:
                yield warning(what, text, occurrences.lines, occurrences.count)
        if repeats.pairs:
            side = "a sentence" if len(header.names) == 1 else "an anchor, or a positive,"
            batch = min(self.settings.batch, repeats.rows)
            most = "up to " if len(positives_in(header.roles)) > 1 else ""  # not all of them are drawn
            text = f"{most}{_percent(repeats.share(batch))} % of batches of {batch} contain {side} twice"
            level = warning if repeats.share(batch) > 0.5 else note
            yield level(
                "false negatives",
                f"{text}; the copies are then negatives of each other, which --batch_sampler no_duplicates avoids",
            )
        elif kind is None:
            side = "sentence" if len(header.names) == 1 else "anchor and no positive"
            yield ok("repeats", f"no {side} occurs twice")
        elif not repeats.duplicates.count and not repeats.relabelled.count:
            yield ok("repeats", f"no {'sentence' if kind == CLASS else 'pair of sentences'} occurs twice")

    def _lengths(self) -> Findings:
        for role, histogram in self.numbers.items():
            if len(histogram) > 1:
                least, median, most, largest = _quantiles(histogram)
                text = f"per row: min {least}, median {median}, 95th percentile {most}, max {largest}"
                yield ok(f"{role}s", text)
                mean = sum(number * rows for number, rows in histogram.items()) / histogram.total()
                if role == ROLES[2] and mean < largest / 2:
                    empty = f"training fills every row up to {largest} with empty texts"
                    yield warning(
                        "absent", f"a row has {mean:.1f} hard negatives on average, but {empty}; shorten long lists"
                    )
        for name, histogram in (("words", self.words), ("characters", self.characters), ("tokens", self.tokens)):
            if histogram:
                least, median, most, longest = _quantiles(histogram)
                text = f"per sentence: min {least}, median {median}, 95th percentile {most}, max {longest}"
                yield ok(name, text + _COUNTED.get(name, ""))


_COUNTED = {"words": " (separated by spaces)", "tokens": " (including special tokens)"}
"""Unit of the lengths → remark on the unit."""


def _percent(share: float) -> str:
    """Format a share in percent: small shares with two digits, and 100 as 100 instead of 1e+02."""
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"


def _quantiles(histogram: Mapping[int, int]) -> tuple[int, int, int, int]:
    """Return minimum, median, 95th percentile and maximum of the values in a histogram."""
    total, seen, quantiles = sum(histogram.values()), 0, []
    wanted = [0, (total - 1) // 2, max(0, -(-95 * total // 100) - 1), total - 1]
    for value in sorted(histogram):
        seen += histogram[value]
        while wanted and wanted[0] < seen:
            wanted.pop(0)
            quantiles.append(value)
    return tuple(quantiles)


def _tasks(rows: _SentenceCounts) -> str:
    return ", ".join(f"{task}: {count:,}" for task, count in rows.evaluated.most_common())


def _truncated(rows: _SentenceCounts) -> str:
    limit = rows.settings.max_seq_length
    if rows.settings.tokenizer:
        return f"rows with a sentence of more than {limit} tokens, which training truncates (--max_seq_length)"
    return f"rows with a sentence of more than {limit - 2} words; training truncates it (--max_seq_length {limit})"


Words = Callable[[_SentenceCounts], str]
_SENTENCE_FINDINGS: Mapping[str, tuple[Callable[..., Finding], str, Words]] = {
    "evaluation": (
        warning,
        "evaluation",
        lambda rows: (
            "rows with the letters and digits of a sentence in the evaluation data, so that scores there may be too "
            f"high; {_tasks(rows)}"
        ),
    ),
    "missing": (note, "NA", lambda rows: "rows with a cell such as NA, null, None or nan, which is read as text"),
    "tab": (warning, "tab", lambda rows: "rows with a tab in a sentence; if tabs separate columns, use .tsv"),
    "special": (
        warning,
        "special token",
        lambda rows: f"rows with text such as {', '.join(rows.settings.special[:3])}, which is read as special tokens",
    ),
    "control": (
        warning,
        "control",
        lambda rows: "rows with control characters, or with U+FFFD, which a wrong encoding causes",
    ),
    "normal form": (
        note,
        "not NFC",
        lambda rows: "rows that are not in Unicode's composed form (NFC), such as accents apart; tokens may differ",
    ),
    "no tokens": (
        warning,
        "no tokens",
        lambda rows: "rows with a sentence of which the tokenizer leaves nothing, so that all of them have one vector",
    ),
    "long": (note, "long", _truncated),
}
"""Name of a check of single sentences → level, name and text of the finding."""
