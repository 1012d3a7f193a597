"""The parts of a report, each made of what was read or measured before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.analysis import run_comparison
from dcpcse.analysis.html_report.html import Markup, absent, clean, join, number, remark, row, table, tag
from dcpcse.analysis.html_report.measurements import ModelMeasurements, Neighbour, ReportInputs
from dcpcse.analysis.html_report.page import Section, captioned_figure
from dcpcse.analysis.plots.inputs import STS_TASK
from dcpcse.training.run_history import Run
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from senteval.geometry import PairGeometry

NO_NUMBER = absent("none")


@dataclass(frozen=True)
class EvaluationScores:
    """The file of an evaluation, under the name of its run or its own."""

    label: str
    path: Path
    report: Mapping[str, Any]


def overview_section(runs: Mapping[str, Run]) -> Section:
    """Where each run stands."""
    header = ("run", "method", "encoder", "steps", "state", "dev score", "last", "best", "written", "folder")
    rows = [_overview_row(label, run) for label, run in runs.items()]
    return Section("overview", "Runs", table("How far the runs have come", header, rows))


def _overview_row(label: str, run: Run) -> Markup:
    score = run.dev_score
    planned = "?" if run.steps_planned is None else run.steps_planned
    dev_cells = [NO_NUMBER] * 3
    if score:
        best = f"{score.best:.4f} (step {score.best_step})"
        dev_cells = [score.metric, number(f"{score.last:.4f}"), number(best)]
    cells = [
        run_comparison.format_value(run.options.get("method")),
        run_comparison.format_value(run.options.get("model_name_or_path")),
        number(f"{run.steps_done} of {planned}"),
        "finished" if run.finished else "unfinished",
        *dev_cells,
        number(run.written.strftime("%Y-%m-%d %H:%M")),
        str(run.folder),
    ]
    return row(label, cells)


def settings_section(runs: Mapping[str, Run]) -> Section:
    """All options of run.yaml, those that differ first."""
    body = _compared("Settings", list(runs), run_comparison.compare_settings([*runs.values()]), "setting", "not given")
    return Section("settings", "Settings", body)


def environment_section(runs: Mapping[str, Run]) -> Section:
    """Versions, hardware and commit of every run."""
    rows = run_comparison.compare_environments([*runs.values()])
    missing = [label for label, run in runs.items() if not run.environment]
    notes = [remark(f"{label} has no environment.json: what it ran on is not on record.") for label in missing]
    body = _compared("What the runs were trained on", list(runs), rows, "what", "not on record") if rows else join()
    return Section("environment", "Environment", join(*notes, body))


def _compared(
    caption: str, labels: Sequence[str], rows: Sequence[run_comparison.RunRow], what: str, missing: str
) -> Markup:
    """A table with a column a run; where there are several, rows that differ come first, and are marked.

    what: heads the names of the rows; missing: stands where a run has no value.
    """
    ordered = sorted(rows, key=lambda one: not one.differs)
    if len(labels) > 1:
        count = sum(one.differs for one in rows)
        caption = f"{caption}: {f'{count} of {len(rows)} differ, marked by ≠' if count else 'none differs'}"
    return table(caption, [what, *labels], [_compared_row(one, missing) for one in ordered])


def _compared_row(one: run_comparison.RunRow, missing: str) -> Markup:
    cells = [absent(missing) if value is None else run_comparison.format_value(value) for value in one.values]
    if not one.differs:
        return row(one.name, cells)
    mark = tag("span", "≠", class_="mark", title="differs", role="img", aria_label="differs:")
    return row(join(mark, " ", one.name), cells, class_="differs")


def curves_section(runs: Mapping[str, Run]) -> Section:
    """What every run logged over its steps."""
    logged = {label: run.metrics for label, run in runs.items() if run.metrics}
    notes = [remark(f"{label} has logged nothing: no curves.") for label in runs if label not in logged]
    drawn = _drawn_curves(logged) if logged else join()
    return Section("curves", "Curves of training", join(drawn, *notes))


def _drawn_curves(logged: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup:
    from dcpcse.analysis.plots import training_curves

    names = _listed(training_curves.metric_names(logged))
    description = f"Lines over the steps of training, one for each of {_listed(logged)}, in a panel each for {names}."
    return _picture(lambda: training_curves.draw(logged), "curves", "What was logged over the steps", description)


def _picture(draw: Any, name: str, caption: str, description: str) -> Markup:
    """A picture, or a line why there is none."""
    try:
        figure: Figure = draw()
        return captioned_figure(figure, name, caption, description)
    except UserError as error:
        return remark(f"{caption}: left out, {error}")


def _listed(names: Any) -> str:
    return ", ".join(clean(name) for name in names)


def scores_section(runs: Mapping[str, Run], files: Sequence[EvaluationScores], problems: Sequence[str]) -> Section:
    """Dev scores from the logs, then a table for each mode of the evaluations."""
    by_mode: dict[str, list[EvaluationScores]] = {}
    for one in files:
        by_mode.setdefault(str(one.report.get("mode", "unknown")), []).append(one)
    tables = [_mode_table(mode, of_mode) for mode, of_mode in by_mode.items()]
    missing = [] if files else [remark("No file of evaluation.py --output_file was given, or lies in a run's folder.")]
    return Section("scores", "Scores", join(_dev_table(runs), *tables, *missing, *map(remark, problems)))


def _dev_table(runs: Mapping[str, Run]) -> Markup:
    names = list(dict.fromkeys(name for run in runs.values() for name in run.dev_scores))
    if not names:
        return remark("No dev score was measured in training (--eval_strategy).")
    columns = {f"{name}, {kind}": (name, kind) for name in names for kind in ("last", "best")}
    values = {
        label: {title: getattr(run.dev_scores.get(name), kind, None) for title, (name, kind) in columns.items()}
        for label, run in runs.items()
    }
    caption = "Dev scores in training, as logged: Spearman a fraction, accuracies x 100"
    return _numbers(caption, ["run"], [([label], own) for label, own in values.items()], list(columns), 4)


def _mode_table(mode: str, files: Sequence[EvaluationScores]) -> Markup:
    tasks = list(dict.fromkeys(task for one in files for task in one.report["scores_x100"]))
    families = list(dict.fromkeys(name for one in files for name in one.report.get("averages_x100", ())))
    rows = []
    for one in files:
        averages = {f"average, {name}": value for name, value in one.report.get("averages_x100", {}).items()}
        ended = "" if one.report.get("complete", True) else " (not complete)"
        rows.append(([one.label, f"{one.path.name}{ended}"], {**one.report["scores_x100"], **averages}))
    columns = [*tasks, *(f"average, {name}" for name in families)]
    return join(_numbers(f"Scores x 100, mode {mode}", ["model", "file"], rows, columns, 2), *_warnings(files))


def _warnings(files: Sequence[EvaluationScores]) -> list[Markup]:
    """Lines about what makes the numbers of a table hard to compare."""
    lines = []
    if any(set(one.report["scores_x100"]) != set(files[0].report["scores_x100"]) for one in files):
        lines.append(remark("The files hold different tasks, so their averages are not of the same tasks."))
    differing = [
        one.name for one in run_comparison.align_rows([one.report.get("protocol", {}) for one in files]) if one.differs
    ]
    if differing:
        lines.append(remark(f"The files were measured by different protocols: {', '.join(differing)} differ."))
    return lines


def _numbers(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[tuple[Sequence[str], Mapping[str, Any]]],
    columns: Sequence[str],
    digits: int,
) -> Markup:
    """A table of numbers by column name, the best of each column bold where there is more than one to choose from.

    rows: the words that a row begins with, and its numbers. Best is what reads best at so many digits.
    """
    best = {name: _best([values.get(name) for _, values in rows], digits) for name in columns}
    lines = []
    for (label, *words), values in rows:
        cells = [_number(values.get(name), digits, best[name]) for name in columns]
        lines.append(row(label, [*words, *cells]))
    return table(caption, [*heads, *columns], lines)


def _best(values: Sequence[float | None], digits: int) -> str | None:
    known = [value for value in values if is_number(value)]
    return f"{max(known):.{digits}f}" if len(known) > 1 else None


def _number(value: float | None, digits: int, best: str | None) -> Markup:
    if not is_number(value):
        return NO_NUMBER
    text = f"{value:.{digits}f}"
    return number(text, text == best)


def similarities_section(
    measured: Mapping[str, ModelMeasurements], inputs: ReportInputs, notes: Sequence[str]
) -> Section:
    """Cosines against gold scores, and alignment against uniformity, of the pairs of STS-B."""
    on_pairs = {label: one.pairs for label, one in measured.items() if one.pairs is not None}
    body = _pictures(on_pairs, f"{STS_TASK} {inputs.split}") if on_pairs else join()
    return Section("similarities", "Similarities", join(body, *map(remark, notes)))


def _pictures(on_pairs: Mapping[str, "PairGeometry"], split: str) -> Markup:
    from dcpcse.analysis.plots import alignment_uniformity, cosine_by_score

    scored = {
        label: cosine_by_score.PairScores(one.gold, one.cosines, one.spearman) for label, one in on_pairs.items()
    }
    points = [
        alignment_uniformity.Point(label, one.alignment, one.uniformity, one.spearman)
        for label, one in on_pairs.items()
        if one.alignment is not None
    ]
    shown = [
        _picture(
            lambda: cosine_by_score.draw(scored),
            "cosines",
            f"Cosine of each pair of {split} against its gold score",
            f"Densities of pairs over gold score and cosine, and of cosines in each bin of gold scores, for "
            f"{_listed(on_pairs)}.",
        )
    ]
    if points:
        shown.append(
            _picture(
                lambda: alignment_uniformity.draw(points),
                "plane",
                f"Alignment and uniformity on {split}; both are better the lower they are",
                f"Points in the plane of uniformity and alignment for {_listed(p.label for p in points)}; the table "
                "below has their numbers.",
            )
        )
    return join(*shown, _losses(on_pairs, split))


def _losses(on_pairs: Mapping[str, "PairGeometry"], split: str) -> Markup:
    rows = [
        row(
            label,
            [
                number(f"{one.spearman:.2f}"),
                NO_NUMBER if one.alignment is None else number(f"{one.alignment:.4f}"),
                number(f"{one.uniformity:.4f}"),
            ],
        )
        for label, one in on_pairs.items()
    ]
    pairs = len(next(iter(on_pairs.values())).gold)
    return table(f"{split}, {pairs} pairs", ["run", "Spearman x 100", "alignment", "uniformity"], rows)


def neighbours_section(
    measured: Mapping[str, ModelMeasurements], inputs: ReportInputs, notes: Sequence[str]
) -> Section:
    """For each query a table with the nearest sentences of every model beside each other."""
    shown = {label: one.neighbours for label, one in measured.items() if one.neighbours}
    if not shown:
        return Section("neighbours", "Nearest neighbours", join(*map(remark, notes)))
    about = tag(
        "p",
        f"Corpus: {inputs.corpus_name}, {len(inputs.corpus):,} different sentences. A query that is in it is no "
        "neighbour of its own.",
    )
    tables = [
        _of_query(query, {label: found[place] for label, found in shown.items()})
        for place, query in enumerate(inputs.queries)
    ]
    return Section("neighbours", "Nearest neighbours", join(about, *tables, *map(remark, notes)))


def _of_query(query: str, found: Mapping[str, Sequence[Neighbour]]) -> Markup:
    above = tag("tr", tag("td"), *(tag("th", label, scope="colgroup", colspan=2) for label in found))
    header = ["rank", *(name for _ in found for name in ("sentence", "cosine"))]
    ranks = range(max(map(len, found.values())))
    rows = [row(rank + 1, [cell for own in found.values() for cell in _neighbour(own, rank)]) for rank in ranks]
    return table(f"Nearest to: {query}", header, rows, above)


def _neighbour(found: Sequence[Neighbour], rank: int) -> list[Any]:
    if rank >= len(found):
        return [NO_NUMBER, NO_NUMBER]
    return [tag("td", found[rank].sentence, dir="auto"), number(f"{found[rank].cosine:.4f}")]
