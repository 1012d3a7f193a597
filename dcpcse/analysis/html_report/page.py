"""Collect the values that a report shows; `report.html.j2` arranges them, and `style.css` sets their look."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.analysis.html_report.measurements import ModelMeasurements, ReportInputs
from dcpcse.analysis.plots.inputs import STS_TASK
from dcpcse.analysis.rendering import render
from dcpcse.analysis.run_comparison import align_rows, compare_environments, compare_settings, format_value
from dcpcse.training.run_history import Run
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import is_number, mode_and_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class EvaluationScores:
    """The content of a score file, labelled with the name of its run or of the file."""

    label: str
    path: Path
    report: Mapping[str, Any]


@dataclass(frozen=True)
class ScoreTable:
    """A table of scores: column heads, named rows, and notes. Values that are not numbers count as missing."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[tuple[Sequence[str], Sequence[Any]]]
    digits: int
    notes: Sequence[str] = ()

    def text(self, score: Any) -> str | None:
        """Format a score; None if it is missing."""
        return f"{score:.{self.digits}f}" if is_number(score) else None

    @property
    def best(self) -> list[str | None]:
        """The highest score of each column, formatted; None if fewer than two rows have one."""
        columns = [list(filter(is_number, column)) for column in zip(*(row for _, row in self.rows), strict=True)]
        return [self.text(max(scores)) if len(scores) > 1 else None for scores in columns]


@dataclass(frozen=True)
class Plot:
    """A figure (its SVG in base64 and its width in inches), or the reason why there is none."""

    svg: str = ""
    width: float = 0.0
    problem: str = ""


def render_page(
    title: str,
    runs: Mapping[str, Run],
    evaluations: Sequence[EvaluationScores],
    problems: Sequence[str],
    inputs: ReportInputs,
    measured: Mapping[str, ModelMeasurements],
    failed: Mapping[str, str],
) -> str:
    """Return the HTML of a report.

    problems: notes about score files that could not be read. failed: label → reason why the model could not be
    evaluated.
    """
    from dcpcse.analysis.plots.alignment_uniformity import Point
    from dcpcse.analysis.plots.alignment_uniformity import draw as draw_plane
    from dcpcse.analysis.plots.cosines import draw_cosines
    from dcpcse.analysis.plots.inputs import PairScores
    from dcpcse.analysis.plots.training_curves import draw as draw_curves
    from dcpcse.analysis.plots.training_curves import metric_names

    logged = {label: run.metrics for label, run in runs.items() if run.metrics}
    geometry = {label: model.pairs for label, model in measured.items() if model.pairs is not None}
    scored = {label: PairScores(pairs.gold, pairs.cosines, pairs.spearman) for label, pairs in geometry.items()}
    plane = [Point(label, pairs.alignment, pairs.uniformity, pairs.spearman) for label, pairs in geometry.items()]
    plane = [point for point in plane if point.alignment is not None]
    neighbours = {label: model.neighbours for label, model in measured.items() if model.neighbours}
    return render(
        "html_report/report.html.j2",
        title=title,
        created=datetime.now().astimezone(),
        runs=runs,
        settings=compare_settings([*runs.values()]),
        environments=compare_environments([*runs.values()]),
        curves=_plot(draw_curves, logged),
        metrics=metric_names(logged),
        logged=logged,
        dev_scores=_dev_scores(runs),
        evaluations=_evaluation_tables(evaluations),
        problems=problems,
        pairs_name=f"{STS_TASK} {inputs.split}",
        geometry=geometry,
        cosines_plot=_plot(draw_cosines, scored),
        plane=plane,
        plane_plot=_plot(draw_plane, plane),
        inputs=inputs,
        neighbours=neighbours,
        ranked=[list(zip_longest(*of_query)) for of_query in zip(*neighbours.values(), strict=True)],
        failed=failed,
        format_value=format_value,
        zip=zip,
    )


def _plot(draw: "Callable[[Any], Figure]", values: Any) -> Plot | None:
    from dcpcse.analysis.plots import style

    if not values:
        return None
    try:
        figure = draw(values)
    except UserError as error:
        return Plot(problem=str(error))
    return Plot(base64.b64encode(style.svg(figure)).decode("ascii"), figure.get_figwidth())


def _dev_scores(runs: Mapping[str, Run]) -> ScoreTable | None:
    names = dict.fromkeys(name for run in runs.values() for name in run.dev_scores)
    columns = {f"{name}, {kind}": (name, kind) for name in names for kind in ("last", "best")}
    rows = [
        ([label], [getattr(run.dev_scores.get(name), kind, None) for name, kind in columns.values()])
        for label, run in runs.items()
    ]
    caption = "Dev scores logged during training: Spearman as a fraction, accuracies x 100"
    return ScoreTable(caption, ["run", *columns], rows, 4) if names else None


def _evaluation_tables(evaluations: Sequence[EvaluationScores]) -> list[ScoreTable]:
    by_mode: dict[str, list[EvaluationScores]] = {}
    for item in evaluations:
        mode = mode_and_size(item.report.get("mode"), item.report.get("truncate_dim"))
        by_mode.setdefault(mode, []).append(item)
    tables = []
    for mode, of_mode in by_mode.items():
        reports = [item.report for item in of_mode]
        files = [f"{item.path.name}{'' if item.report.get('complete', True) else ' (incomplete)'}" for item in of_mode]
        tasks = dict.fromkeys(chain(*(report["scores_x100"] for report in reports)))
        families = dict.fromkeys(chain(*(report.get("averages_x100", {}) for report in reports)))
        scores = [
            [*map(report["scores_x100"].get, tasks), *map(report.get("averages_x100", {}).get, families)]
            for report in reports
        ]
        rows = [([item.label, file], values) for item, file, values in zip(of_mode, files, scores, strict=True)]
        notes = []
        if any(set(report["scores_x100"]) != set(tasks) for report in reports):
            notes.append("The files contain different tasks, so their averages cannot be compared.")
        protocols = align_rows([report.get("protocol", {}) for report in reports])
        if differing := ", ".join(row.name for row in protocols if row.differs):
            notes.append(f"The files were produced under different protocols, which differ in: {differing}.")
        heads = ["model", "file", *tasks, *(f"average, {family}" for family in families)]
        tables.append(ScoreTable(f"Scores x 100, mode {mode}", heads, rows, 2, notes))
    return tables
