"""Check the output folder of a run before training, clear it, and describe how to resume its run."""

from pathlib import Path

from dcpcse.encoders.storage import model_folder
from dcpcse.training import atomic_save, checkpoints
from dcpcse.training.arguments import TrainingArguments
from dcpcse.training.guards import NON_FINITE
from dcpcse.utils.errors import UserError, same_call, spell
from dcpcse.utils.files import remove, require_writable
from dcpcse.utils.run_files import RECORDS, RUN_FILE, STATE, checkpoints_in, last_checkpoint

EVAL_RESULTS = "eval_results.txt"
REPORTS = (RUN_FILE, "train_results.txt", EVAL_RESULTS, STATE, *RECORDS)


def require_output_dir(run: TrainingArguments) -> None:
    """Raise UserError unless files can be written to --output_dir."""
    folder = Path(run.output_dir)
    if run.process_index:  # the first process checks
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{spell('output_dir', folder)} is a file; give a folder")
    require_writable(folder, spell("output_dir", run.output_dir))


def check_output(run: TrainingArguments, encoder: str | None) -> None:
    """Raise UserError if the output folder cannot be used for this run.

    It must be empty, unless it is to be overwritten or its run is to be resumed. It must not contain the encoder.

    Args:
        run: Options of the run.
        encoder: Folder or hub id of the encoder; None for a built method.
    """
    if run.process_index:  # only the first process checks: a slower process would find files that it has written
        return
    folder = Path(run.output_dir)
    if encoder and Path(encoder).is_dir() and folder.samefile(encoder):
        raise UserError(f"{spell('output_dir', folder)} is the folder of the encoder; give another folder")
    if not run.trains or _resumes_in(folder, run):
        return
    if any(not atomic_save.is_temporary(path) for path in folder.iterdir()) and not run.overwrite_output_dir:
        if run.resume:
            raise UserError(
                f"{spell('output_dir', folder)} contains files that are not from a run; give another folder"
            )
        raise UserError(
            f"{spell('output_dir', folder)} is not empty; give another folder, or add "
            f"{spell('overwrite_output_dir', True)} to replace its run or {spell('resume', True)} to continue from "
            "its last checkpoint"
        )
    if model_folder.holds_another_encoder(folder) and not (folder / RUN_FILE).is_file():
        raise UserError(
            f"{spell('output_dir', folder)} contains an encoder that is no result of dcpcse train; give another folder"
        )


def _resumes_in(folder: Path, run: TrainingArguments) -> bool:
    """Return whether the options request that the run in this folder be resumed."""
    asked = run.resume_from_checkpoint
    if not checkpoints.asks_to_resume(asked):
        return run.resume and ((folder / RUN_FILE).is_file() or all(map(_is_of_a_run, folder.iterdir())))
    return not Path(asked).is_dir() or Path(asked).resolve().parent == folder.resolve()


def _is_of_a_run(path: Path) -> bool:
    """Return whether a run that was killed before its first checkpoint may have written this file."""
    return atomic_save.is_temporary(path) or path.name in REPORTS


def resume_hint(output: Path) -> str:
    """Return the message for an interrupted run: the path of its last checkpoint, and how to resume."""
    newest = last_checkpoint(output)
    if newest is None:
        return f"there is no checkpoint in {output} yet; {same_call()} with {spell('resume', True)} starts again"
    return f"{newest} is the last checkpoint; {same_call()} with {spell('resume', True)} continues from there"


def clear_run(output_dir: Path) -> None:
    """Remove the model, checkpoints and reports of an earlier run from a folder that is to be overwritten."""
    model_folder.clear(output_dir)
    for checkpoint in checkpoints_in(output_dir).values():
        atomic_save.delete_checkpoint(checkpoint)
    clear_reports(output_dir)


def clear_reports(output_dir: Path) -> None:
    """Remove the reports of an earlier run from a folder."""
    for name in (NON_FINITE, *REPORTS):
        remove(output_dir / name)
