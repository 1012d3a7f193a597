"""The steps of train.py: check the options, build the model, train, evaluate and report."""

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from senteval import Suite
from transformers import TrainerCallback

from dcpcse.data.mixture import AnyTrainingData, by_name
from dcpcse.encoders.storage import manifest
from dcpcse.methods import Method
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Builder
from dcpcse.training import atomic_save, checkpoints
from dcpcse.training.arguments import DataArguments, TrainingArguments
from dcpcse.training.callbacks import replace_progress, write_environment
from dcpcse.training.eval_datasets import OwnTask, load_dev_tasks, read_own_data, settle_metric
from dcpcse.training.gain import measure_untouched, report_gains
from dcpcse.training.publish import PushTarget, push_to_hub, remove_old_card, require_pushable
from dcpcse.training.resolve_arguments import resolve_arguments, take_push_target, wants_dev_scores
from dcpcse.training.setup import open_train_dataset, write_run
from dcpcse.training.summary import planned_steps, summary
from dcpcse.training.trainer import Trainer
from dcpcse.utils.console import notify, print_message
from dcpcse.utils.distributed import is_lost_process
from dcpcse.utils.errors import UserError, doing, plural, spell
from dcpcse.utils.files import write_atomic
from dcpcse.utils.locks import exclusive_lock, is_locked
from dcpcse.utils.run_files import RUN_FILE, explain_removal, last_checkpoint, read_state
from dcpcse.utils.signals import Interrupted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inputs:
    """Inputs of a run that cannot be given on a command line. train.py uses none of them.

    Args:
        train_data: The training data as a Python object. None: the path in the option `train_data` is used.
        eval_pairs: The evaluation pairs as a Python object. None: the path in the option `eval_pairs` is used, if
            given.
        eval_labels: The labelled texts as a Python object. None: the path in the option `eval_labels` is used, if
            given.
        method: A function (backbone, args, columns) → `Method`, or a built `Method`; None if `--method` names a
            registered method.
        callbacks: As in transformers' Trainer.
        trainer_class: The class of the trainer.
        prints_log: Whether log entries are printed in addition to the progress bar.
    """

    train_data: Any = None
    eval_pairs: Any = None
    eval_labels: Any = None
    method: Builder | Method | None = None
    callbacks: Sequence[TrainerCallback | type[TrainerCallback]] = ()
    trainer_class: type[Trainer] = Trainer
    prints_log: bool = True


def run_training(
    options: tuple[ModelArguments, DataArguments, TrainingArguments],
    option_names: Collection[str],
    inputs: Inputs = Inputs(),
) -> Trainer:
    """Train, evaluate and write the model and the records, as train.py does; return the trainer.

    Args:
        options: Options from `resolve_options`.
        option_names: Names of the options that the user has set.
        inputs: Inputs that are not options.
    """
    _, _, run_args = options
    resolve_arguments(run_args, options[1], option_names)
    checkpoints.require_output_dir(run_args)
    output = Path(run_args.output_dir)
    with contextlib.ExitStack() as stack:
        stack.enter_context(atomic_save.explain_disk_errors(output, lambda: checkpoints.resume_hint(output)))
        if run_args.process_index == 0:
            stack.enter_context(exclusive_lock(output, spell("output_dir", output)))
        return _train_with(options, option_names, inputs)


def _train_with(
    options: tuple[ModelArguments, DataArguments, TrainingArguments], option_names: Collection[str], inputs: Inputs
) -> Trainer:
    model_args, data_args, run_args = options
    checkpoints.check_output(run_args, model_args.model_name_or_path)
    target = take_push_target(run_args, option_names)
    if target and run_args.process_index == 0:  # checked before training, to save the time
        require_pushable(run_args.output_dir, target)
    checkpoint = checkpoints.find_checkpoint(run_args)
    checkpoints.keep_precision(run_args, checkpoint)
    tasks, dev = [], None
    if wants_dev_scores(run_args):
        tasks = read_own_data(data_args, inputs.eval_pairs, inputs.eval_labels)
        dev = load_dev_tasks(data_args, tasks)
        settle_metric(run_args, dev, option_names)
    source = by_name(data_args.train_files) if inputs.train_data is None else inputs.train_data
    data = open_train_dataset(source, model_args, data_args, "train_data")
    trainer = build_trainer(model_args, data_args, run_args, inputs, data, dev)
    if checkpoint:
        with _explain_removal(checkpoint, run_args):
            trainer.require_resumable(checkpoint)
    _train_and_evaluate(trainer, checkpoint, tasks)
    if target and trainer.is_world_process_zero():
        _push(Path(run_args.output_dir), target)
    trainer.accelerator.wait_for_everyone()  # a process that leaves the group early may abort the others
    trainer.accelerator.end_training()
    return trainer


def _train_and_evaluate(trainer: Trainer, checkpoint: checkpoints.Checkpoint | None, tasks: Sequence[OwnTask]) -> None:
    """Train and evaluate, if the options request it and it is not done yet; report the gain on the user's data."""
    run = trainer.args
    finished = run.trains and _is_finished(trainer)
    if run.trains and not finished:
        _prepare(trainer, checkpoint)
        measure_untouched(trainer, tasks)
        _train(trainer, checkpoint)
    if run.do_eval and not (finished and (Path(run.output_dir) / checkpoints.EVAL_RESULTS).is_file()):
        _evaluate(trainer)
    if run.trains:
        report_gains(trainer, tasks, finished=finished)


def _push(folder: Path, target: PushTarget) -> None:
    try:
        notify(f"pushed: {push_to_hub(folder, target)}")
    except UserError as error:
        raise UserError(
            f"the model is in {folder}, but not on the hub: {error}; "
            f"try again: dcpcse hub push {folder} {target.repo_id}"
        ) from error


def build_trainer(
    model_args: ModelArguments,
    data_args: DataArguments,
    run_args: TrainingArguments,
    inputs: Inputs,
    data: AnyTrainingData,
    dev: Suite | None,
) -> Trainer:
    """Build the Trainer of a run.

    Args:
        model_args: Options of the model.
        data_args: Options of the data.
        run_args: Options of the run.
        inputs: Inputs that are not options.
        data: The training data.
        dev: The tasks that are evaluated during training. None: no evaluation.
    """
    trainer = inputs.trainer_class(
        model_args.model_name_or_path,
        inputs.method or model_args.method,
        run_args,
        data,
        dev,
        callbacks=inputs.callbacks,
        options=(model_args, data_args),
    )
    trainer.is_prepared = True
    replace_progress(trainer, prints_log=inputs.prints_log)
    return trainer


def _is_finished(trainer: Trainer) -> bool:
    """Return whether the run to resume has already finished. If so, load its result; the saved result stays unchanged.

    Raises UserError if the result was trained with different options. Also raises UserError if the result was trained
    for fewer steps than planned and there is no checkpoint to resume from.
    """
    run, output, steps = trainer.args, Path(trainer.args.output_dir), planned_steps(trainer)
    exists = manifest.is_model_folder(output)
    if not exists or not (run.resume or checkpoints.asks_for_newest(run.resume_from_checkpoint)):
        return False
    state = read_state(output) or {"global_step": 0}
    result = checkpoints.Checkpoint(output, state["global_step"])
    result.require_same_options(trainer.run_options)
    if trainer.is_over(state):
        result.require_same_run(trainer.step_module.model, None)
        notify(f"{output} contains a finished run of {plural(result.step, 'step')}; it remains unchanged")
        if trainer.is_world_process_zero():
            atomic_save.remove_leftovers(output)
        trainer.restore_result()
        return True
    if last_checkpoint(output) is None:
        raise UserError(
            f"{output} contains the result of {plural(result.step, 'step')}, but no checkpoint from which the "
            f"training could be resumed to {plural(steps, 'step')}; give another folder, or "
            f"{spell('overwrite_output_dir', True)} without {spell('resume', True)}"
        )
    return False


def _prepare(trainer: Trainer, checkpoint: checkpoints.Checkpoint | None) -> None:
    """Clean the output folder, write the records of the run to it, and print a summary of the run."""
    if not trainer.is_world_process_zero():
        return
    output = Path(trainer.args.output_dir)
    atomic_save.remove_leftovers(output)
    remove_old_card(output)
    if not checkpoint and trainer.args.resume:
        notify(
            f"{spell('resume', True)}: there is no complete checkpoint in {output} yet; training starts from the "
            "beginning"
        )
        checkpoints.clear_reports(output)  # broken checkpoints remain until complete ones replace them
    elif not checkpoint:
        checkpoints.clear_run(output)
    else:
        notify(f"resuming from {checkpoint.folder}, after step {checkpoint.step}")
    write_run(output / RUN_FILE, trainer.run_options)
    write_environment(output, step=checkpoint.step if checkpoint else 0)
    for line in summary(trainer).splitlines():
        notify(line)


def _train(trainer: Trainer, checkpoint: checkpoints.Checkpoint | None) -> None:
    output = Path(trainer.args.output_dir)
    with trainer.stop.active():
        metrics = _metrics_of_training(trainer, checkpoint)
        trainer.save_result({} if metrics is None else {"train_results.txt": _lines(metrics)})
    if metrics is not None and trainer.is_world_process_zero():
        speed = f"{metrics['train_runtime']:,.1f} s, {metrics['train_steps_per_second']:.3g} steps per second"
        early = " (stopped early)" if trainer.state.global_step < planned_steps(trainer) else ""
        notify(f"finished at step {trainer.state.global_step}{early}: mean loss {metrics['train_loss']:.4g}; {speed}")
    if trainer.is_world_process_zero():
        best = trainer.state.best_global_step if trainer.args.load_best_model_at_end else None
        kept = f"; it is the checkpoint of step {best}, which has the best dev score" if best else ""
        notify(f"the model is in {output}{kept}")
    if number := trainer.stop.number:  # the signal arrived in the last step, or while the result was saved
        raise Interrupted(number, f"{Interrupted(number).name} at the end of the training: the model is in {output}")


def _metrics_of_training(trainer: Trainer, checkpoint: checkpoints.Checkpoint | None) -> Mapping[str, float] | None:
    """Train and return the metrics; return None if the checkpoint was saved after the last step of the run."""
    output = Path(trainer.args.output_dir)
    try:
        with (
            doing("while the model was trained"),
            _explain_removal(checkpoint, trainer.args, lambda: trainer.state.global_step <= checkpoint.step),
        ):
            metrics = trainer.train(checkpoint.folder if checkpoint else False).metrics
            return {name: value for name, value in metrics.items() if name != "total_flos"} or None
    except KeyboardInterrupt as error:
        if not str(error):  # interrupted immediately, within a step
            notify(checkpoints.resume_hint(output))
        raise
    except RuntimeError as error:
        if is_lost_process(error):
            _report_lost_process(trainer, output)
        raise


def _explain_removal(
    checkpoint: checkpoints.Checkpoint | None, run: TrainingArguments, is_read: Callable[[], bool] = lambda: True
) -> contextlib.AbstractContextManager[None]:
    """Explain errors in this context if a training in another folder has removed the checkpoint to resume from."""
    foreign = checkpoint.folder if checkpoint and not checkpoints.is_in(checkpoint.folder, run) else None
    return explain_removal(foreign, is_read)


def _report_lost_process(trainer: Trainer, output: Path) -> None:
    """Report that another process has ended. Only the first process or, if it has ended, the second reports this."""
    if number := trainer.stop.number:  # the launcher has also noticed it and is ending this process
        raise Interrupted(number)
    reporter = 1 if trainer.args.process_index == 1 and not is_locked(output) else 0
    if trainer.args.process_index == reporter:
        print_message(f"another process of this run has ended; {checkpoints.resume_hint(output)}")


def _evaluate(trainer: Trainer) -> None:
    """Evaluate the result on the dev sets, print the scores, and write them to eval_results.txt."""
    lines = _lines(trainer.evaluate())
    if trainer.is_world_process_zero():
        write_atomic(Path(trainer.args.output_dir) / checkpoints.EVAL_RESULTS, lines)
        for line in lines.splitlines():
            notify(line)


def _lines(metrics: Mapping[str, Any]) -> str:
    """Return the metrics as lines `key = value`, sorted by key."""
    return "".join(f"{key} = {value}\n" for key, value in sorted(metrics.items()))
