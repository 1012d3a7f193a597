"""Find the row of a paper that fits a subject, and the settings with which the paper evaluates the subject."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dcpcse.experiments.reproduction.published_rows import PublishedRow, all_rows, find_rows
from dcpcse.experiments.reproduction.units import published_encoder
from dcpcse.experiments.verification.report import row_options
from dcpcse.experiments.verification.subject import Subject
from dcpcse.inference.public_checkpoints.choices import PublishedSettings
from dcpcse.inference.public_checkpoints.layouts import LAYOUTS
from dcpcse.utils import presets
from dcpcse.utils.errors import UserError, first_names

LISTED = 5
"""Maximum number of rows that a message lists."""

_ENCODERS = {
    "bert-base-uncased": ("bert", 768, 30_522),
    "bert-base-cased": ("bert", 768, 28_996),
    "bert-large-uncased": ("bert", 1024, 30_522),
    "roberta-base": ("roberta", 768, 50_265),
    "roberta-large": ("roberta", 1024, 50_265),
    "sentence-transformers/bert-base-nli-mean-tokens": ("bert", 768, 30_522),
}
"""Hub id of an encoder of the rows → its model type, hidden size and vocabulary size."""


def choose_row(subject: Subject, name: str | None) -> PublishedRow:
    """Return the published row with this name or, without a name, the only row that fits the subject.

    Raises UserError if the name does not select exactly one row, or if the selected row does not fit. Without a name,
    raises UserError if no row or several rows fit.
    """
    if name is None:
        return _only_candidate(subject)
    rows = find_rows([name])
    if len(rows) > 1:
        raise UserError(f"--row {name} selects {len(rows)} rows; choose one of them: {_listed(rows)}")
    if why := _misfit(subject, rows[0]):
        raise UserError(f"--row {name}: {why}; choose another row (dcpcse reproduce --list shows them)")
    return rows[0]


def _only_candidate(subject: Subject) -> PublishedRow:
    rows = _candidates(subject)
    if not rows:
        raise UserError(
            f"{subject.location} is {subject.title}; the papers' tables have no row for such a model; if "
            "there is one, give its name with --row (dcpcse reproduce --list shows the rows)"
        )
    if len(rows) > 1:
        raise UserError(
            f"{subject.location} is {subject.title}, which fits {len(rows)} rows; choose one with --row: "
            f"{_listed(rows)}"
        )
    return rows[0]


def _listed(rows: Sequence[PublishedRow]) -> str:
    return first_names([row.name for row in rows], LISTED)


def _candidates(subject: Subject) -> list[PublishedRow]:
    """Return the rows that fit; rows of the method's paper come first.

    Rows that change options of their preset, and rows that only quote figures of another row, are left out.
    """
    rows = [row for row in all_rows().values() if not (row.cited or row.options) and _suggested(subject, row)]
    matching = [row for row in rows if row.name.startswith(f"{subject.method}/")]
    distinct: list[PublishedRow] = []
    for row in [*matching, *(row for row in rows if row not in matching)]:
        if not any(_same_figures(row, other) for other in distinct):
            distinct.append(row)
    return distinct


def _same_figures(row: PublishedRow, other: PublishedRow) -> bool:
    return (row.preset, row.plain, row.published) == (other.preset, other.plain, other.published)


def _suggested(subject: Subject, row: PublishedRow) -> bool:
    if row.preset:
        unsupervised = row.preset.partition("/")[2].startswith("unsup")
        if subject.supervised is unsupervised or _settings(row).get("method") != subject.method:
            return False
    elif subject.supervised is not None:  # a name with sup or unsup belongs to a trained model
        return False
    return _misfit(subject, row) is None


def _misfit(subject: Subject, row: PublishedRow) -> str | None:
    """Return the reason why a row's figures do not belong to the subject, or None."""
    if not row.published:
        return "the row has no published figures"
    if row.needs:
        return "its encoder is not published"
    if row.fitted or row.sentences:
        return "it needs training sentences; dcpcse reproduce evaluates it"
    if row.similarity or row.predict:
        return "its figures are not scores of evaluation.py; dcpcse reproduce measures them"
    if row.glove != subject.word_vectors:
        return f"it is a row of {'word vectors' if row.glove else 'an encoder'}, but {_description(subject)}"
    settings = _settings(row)
    if row.plain is not None and not subject.may_be_plain:
        return f"it is a row of a plain encoder, but {_description(subject)}"
    if row.preset and not _may_be_of(subject, settings):
        return f"it is a row of {settings['method']}, but {_description(subject)}"
    wanted = _ENCODERS.get(settings.get("model_name_or_path"), (None, None, None))
    if any(theirs and ours and theirs != ours for theirs, ours in zip(wanted, subject.encoder, strict=True)):
        return f"it is a row of {settings['model_name_or_path']}, but {_description(subject)}"
    return None


def _description(subject: Subject) -> str:
    return f"{subject.location} is {subject.title}"


def _settings(row: PublishedRow) -> Mapping[str, Any]:
    """Return the options of train.py with which a row was trained or, for a plain encoder, of evaluation.py."""
    settings = {**presets.load_preset(row.preset).options, **row.options} if row.preset else {}
    return {**settings, "model_name_or_path": published_encoder(row)}


def _may_be_of(subject: Subject, settings: Mapping[str, Any]) -> bool:
    """Return whether the method in `settings` may have trained the subject.

    Some formats do not name the method. Other code uses SimCSE's format for completely trained encoders.
    """
    if subject.method in (None, settings["method"]):
        return True
    if subject.format is None or not subject.format.ambiguous:
        return False
    from dcpcse.methods import METHODS, model_arguments

    method = settings["method"]
    if method in {layout.method for layout in LAYOUTS.values()} or "template" in settings:
        return False
    usual = METHODS[method].defaults(model_arguments(method=method), ["anchor"])
    return {**usual, **settings}.get("tuning") == "full"


def conversion_settings(row: PublishedRow) -> PublishedSettings | None:
    """Return the settings for reading a checkpoint of the row's model; None if the row has no preset."""
    if row.preset is None:
        return None
    changed = ", changed as in the row" if row.options else ""
    return PublishedSettings(_settings(row), f"preset {row.preset} of {row.name}{changed}")


def needed_base(subject: Subject, row: PublishedRow) -> str | None:
    """Return the encoder that a checkpoint of the row's prompts needs; None if the checkpoint contains or names it."""
    layout = subject.format
    return None if layout is None or not layout.frozen or layout.adapter else _settings(row).get("model_name_or_path")


def is_converted(subject: Subject, row: PublishedRow, layout: str | None) -> bool:
    """Return whether the subject must be converted to a model folder before it is evaluated for the row.

    Args:
        layout: The format that the user gave, or None.
    """
    if subject.trained or subject.word_vectors or row.plain is not None:
        return False
    return row.preset is not None or layout is not None or not subject.may_be_plain


def evaluation_options(row: PublishedRow, encoder: Path) -> dict[str, Any]:
    """Return the options of evaluation.py that the row's evaluation needs.

    Args:
        encoder: The encoder that is evaluated.
    """
    fixed = {"mode": row.mode, "task_set": "na", "tasks": list(row.measured)}
    return {"model_name_or_path": str(encoder), **row_options(row), **fixed}
