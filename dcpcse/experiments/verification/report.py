"""The report of a verification: published and measured figures side by side, and the verdict.

A checkpoint passes if every published figure of the row, including a published average, differs from the measured
figure by at most 0.05 points. Both figures are compared × 100, rounded to two decimals. Alignment, uniformity and
anisotropy are not multiplied by 100: they are rounded to four decimals, and may differ by 0.0005.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict

from dcpcse.experiments.reproduction.published_rows import PublishedRow
from dcpcse.experiments.reproduction.result_tables import environment_line
from dcpcse.experiments.reproduction.results import GEOMETRY, figures_of
from dcpcse.experiments.verification.subject import Subject
from dcpcse.utils import schema
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import json_text, require_output, write_files
from dcpcse.utils.tables import STYLES, make_table

RULE = (
    "passes if each published figure, the average included, differs by at most 0.05 points from the measured one, "
    "both rounded to two decimals (alignment, uniformity and anisotropy: 0.0005, four decimals)"
)
REPORT_JSON, REPORT_PAGE = "verification.json", "verification.md"


@strict
@dataclass(kw_only=True)
class _Checkpoint(schema.Open):
    weights_sha256: dict[str, str]


@strict
@dataclass(kw_only=True)
class VerificationRecord(schema.Open):
    """The entries of the JSON report that say which row and which weights were compared."""

    row: str
    checkpoint: _Checkpoint


@dataclass(frozen=True)
class FigureComparison:
    """The published and the measured figure of a column, both rounded (see the module docstring)."""

    column: str
    published: Decimal
    measured: Decimal

    @property
    def difference(self) -> Decimal:
        """The measured figure minus the published figure."""
        return self.measured - self.published

    @property
    def within(self) -> bool:
        """Whether the two figures agree."""
        return abs(self.difference) <= (Decimal("0.0005") if self.column in GEOMETRY else Decimal("0.05"))


@dataclass(frozen=True)
class Verification:
    """The result of a verification: the measured figures of a model, compared with a published row.

    Args:
        facts: Further entries of the report, by name.
    """

    row: PublishedRow
    subject: Subject
    columns: tuple[FigureComparison, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passes(self) -> bool:
        """Whether the measured figures agree with the published figures in all columns."""
        return all(figure.within for figure in self.columns)

    @property
    def verdict(self) -> str:
        return "passes" if self.passes else "differs"

    def as_dict(self) -> dict[str, Any]:
        """Return the report in a form that can be written to JSON."""
        columns = {
            figure.column: {
                "published": float(figure.published),
                "measured": float(figure.measured),
                "difference": float(figure.difference),
                "within": figure.within,
            }
            for figure in self.columns
        }
        source = self.subject
        subject: dict[str, Any] = {"location": source.location, "revision": source.revision, "kind": source.title}
        head = {
            "row": self.row.name,
            "shows": self.row.shows,
            "verdict": self.verdict,
            "rule": RULE,
            "row_options": row_options(self.row),
        }
        subject["weights_sha256"] = dict(source.weights)
        return {**head, "columns": columns, "checkpoint": subject, **self.facts}

    def table(self, style: Any = STYLES.DEFAULT) -> str:
        """Return the figures as a table."""
        rows = [
            [
                *(figure.column, figure.published, figure.measured, f"{figure.difference:+f}"),
                "yes" if figure.within else "no",
            ]
            for figure in self.columns
        ]
        return str(make_table(["column", "published", "measured", "difference", "within"], rows, "lr", style=style))

    def summary(self) -> str:
        """Return the verdict in one line."""
        outside = [figure.column for figure in self.columns if not figure.within]
        why = f": {', '.join(outside)}" if outside else ""
        return f"{self.row.name} {self.verdict}{why} (a row {RULE})"


def row_options(row: PublishedRow) -> dict[str, Any]:
    """Return the options of evaluation.py for a row, as in its paper, without tasks and encoder."""
    options = row.evaluation if row.plain is None else row.plain
    return {name: value for name, value in options.items() if name != "model"}


def compare_figures(row: PublishedRow, scores: Mapping[str, Any]) -> tuple[FigureComparison, ...]:
    """Compare the published figures of a row with the content of a score file of evaluation.py (--output_file).

    Raises UserError if a published column cannot be computed from the score file.
    """
    measured = figures_of(row, scores)
    if missing := [column for column in row.published if column not in measured]:
        raise UserError(f"{row.name}: {', '.join(missing)} cannot be measured on these data; give the official sets")
    return tuple(
        FigureComparison(column, *(_rounded(column, value) for value in (row.published[column], measured[column])))
        for column in row.columns
        if column in row.published
    )


def _rounded(column: str, value: float) -> Decimal:
    return Decimal(f"{value:.{4 if column in GEOMETRY else 2}f}")


def require_report_room(folder: Path, subject: Subject, row: PublishedRow, overwrite: bool) -> None:
    """Raise UserError if the report cannot be written, or would replace a report on another row or other weights."""
    path = folder / REPORT_JSON
    if path.is_file() and not overwrite:
        try:
            earlier = schema.read(VerificationRecord, path)
            about = (earlier["row"], earlier["checkpoint"]["weights_sha256"])
        except UserError:
            about = None
        if about != (row.name, dict(subject.weights)):
            what = f"is the report on {'other weights' if about and about[0] == row.name else 'another row'}"
            raise UserError(
                f"{path} {what if about else 'is not a report of this command'}; give another --output_dir, or add "
                "--overwrite to replace it"
            )
    for name in (REPORT_JSON, REPORT_PAGE):
        require_output(folder / name, "output_dir", overwrite or path.is_file())


def write_report(folder: Path, verification: Verification) -> None:
    """Write the report as JSON and as a page in Markdown."""
    write_files({folder / REPORT_JSON: json_text(verification.as_dict()), folder / REPORT_PAGE: page(verification)})


def page(verification: Verification) -> str:
    """Return the report as Markdown."""
    content = verification.as_dict()
    checkpoint, evaluation = content["checkpoint"], content["evaluation"]
    environment, identity = content["environment"], evaluation["model"]["identity"]
    unknown = [name for name, facts in evaluation["data"].items() if not facts["known"]]
    settings = [f"- `--{name} {value}`, not in the checkpoint" for name, value in content["assumed"].items()]
    row = verification.row
    settings += [f"- `--{name} {value}`, as in the row" for name, value in content["row_options"].items()]
    settings += [f"- assumed by the row: {row.assumed}"] if row.assumed else []
    untrained = row.plain is not None or row.glove  # there are no weights except the encoder's
    digests = [name for name in ("pooling", "base", "trained", "tokenizer") if name != "trained" or not untrained]
    revision = f" at {checkpoint['revision']}" if checkpoint["revision"] else ""
    lines = [
        f"# {content['row']}: {content['verdict']}",
        "",
        f"{content['shows']}. A row {RULE}.",
        "",
        verification.table(STYLES.MARKDOWN),
        "",
        "## Checkpoint",
        "",
        f"- `{checkpoint['location']}`{revision}: {checkpoint['kind']}",
        *(f"- sha256 of `{name}`: `{digest}`" for name, digest in checkpoint["weights_sha256"].items()),
        *settings,
        *(f"- {name}: `{identity[name]}`" for name in digests),
        "",
        "## Data",
        "",
        *(["The evaluation data are not the official sets (`--custom_data`).", ""] if content["custom_data"] else []),
        *([f"{len(unknown)} of {len(evaluation['data'])} files differ from the known ones.", ""] if unknown else []),
        "| file | sha256 |",
        "|---|---|",
        *(f"| {name} | `{facts['sha256']}` |" for name, facts in evaluation["data"].items()),
        "",
        "## Environment",
        "",
        environment_line(environment),
        "",
        "```bash",
        content["command"],
        "```",
        "",
    ]
    return "\n".join(lines)
