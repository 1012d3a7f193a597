"""The steps of train.py: check the options, build the model, train, evaluate and report."""

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
import yaml
from senteval import Suite
from torch import nn
from transformers import PreTrainedModel, TrainerCallback

from dcpcse.data.collator import ViewCollator
from dcpcse.data.corrupted_corpus import Corpus, CorruptedDataset
from dcpcse.data.indexed_dataset import IndexedDataset
from dcpcse.data.training_file import TrainingData, load_training_file
from dcpcse.encoders.backbones import (
    Backbone,
    combined_digest,
    load_backbone,
    named_digest,
    vocabulary_fingerprint,
    weight_digest,
)
from dcpcse.encoders.base_facts import configuration, training_configuration
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.storage import hub, manifest
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.evaluation.evaluator import dev_metrics, evaluate_suite
from dcpcse.methods import Method, build_resolved, fill_defaults
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.plugins import digest_from_outside
from dcpcse.methods.registry import Builder
from dcpcse.training import atomic_save, checkpoints, output_folder
from dcpcse.training.arguments import DataArguments, TrainingArguments
from dcpcse.training.dev_evaluation import load_dev_tasks, settle_metric
from dcpcse.training.gradient_cache import require_repeatable
from dcpcse.training.progress_bar import print_no_log
from dcpcse.training.publish import PushTarget, push_to_hub, remove_old_card, require_pushable
from dcpcse.training.resolve_arguments import HUB_OPTIONS, resolve_arguments, take_push_target, wants_dev_scores
from dcpcse.training.run_recorder import write_environment
from dcpcse.training.summary import planned_steps, summary
from dcpcse.training.trainer import Trainer
from dcpcse.training.validate_setup import require_data, require_fitting, require_shardable, require_training_file
from dcpcse.utils.console import notify, print_message
from dcpcse.utils.distributed import is_lost_process, require_same_in_all_processes
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import write_atomic
from dcpcse.utils.live_runs import explain_removal
from dcpcse.utils.locks import exclusive_lock, is_locked
from dcpcse.utils.refusals import doing
from dcpcse.utils.run_files import RUN_FILE, last_checkpoint, read_state
from dcpcse.utils.signals import Interrupted

logger = logging.getLogger(__name__)

ALWAYS_RECORDED = ("seed", "learning_rate", "per_device_train_batch_size", "num_train_epochs")
ALWAYS_RECORDED += ("max_steps", "do_train", "fp16")
"""Options that are always recorded in `run.yaml`."""

NEVER_RECORDED = ("resume", "resume_from_checkpoint", "overwrite_output_dir", "push_to_hub", *HUB_OPTIONS)
"""Options that are never recorded in `run.yaml`, because they belong to one call and not to the run."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of a run that have no spelling on a command line; train.py gives none.

    train_data, eval_pairs, eval_labels: Python objects; None if the options of these names hold paths. method: a
    function (backbone, args, columns) → `Method`, or a built `Method`; None if `--method` names a registered one.
    callbacks: as in transformers' Trainer. trainer_class: the class that trains. prints_log: whether log entries are
    printed beside the progress bar.
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
    given: Collection[str],
    inputs: Inputs = Inputs(),
) -> Trainer:
    """Train, evaluate and record as train.py does, and return the trainer.

    options: parsed options. given: the names of the options that the user has set. inputs: what options cannot hold.
    """
    _, _, run_args = options
    resolve_arguments(run_args, options[1], given)
    output_folder.require_output_dir(run_args)
    output = Path(run_args.output_dir)
    with contextlib.ExitStack() as stack:
        stack.enter_context(atomic_save.explain_disk_errors(output, lambda: output_folder.resume_hint(output)))
        if run_args.process_index == 0:
            stack.enter_context(exclusive_lock(output, f"--output_dir {output}"))
        return _train_with(options, given, inputs)


def _train_with(
    options: tuple[ModelArguments, DataArguments, TrainingArguments], given: Collection[str], inputs: Inputs
) -> Trainer:
    model_args, data_args, run_args = options
    output_folder.check_output(run_args, model_args.model_name_or_path)
    target = take_push_target(run_args, given)
    if target and run_args.process_index == 0:  # checked before training, to save the time
        require_pushable(run_args.output_dir, target)
    checkpoint = checkpoints.find_checkpoint(run_args)
    require_training_file(model_args, data_args)
    dev = load_dev_tasks(data_args, inputs.eval_pairs, inputs.eval_labels) if wants_dev_scores(run_args) else None
    if dev:
        settle_metric(run_args, dev, given)
    data = load_training_file(data_args.train_file, _data_cache(model_args), refresh=data_args.overwrite_cache)
    require_data(data, model_args, run_args, data_args.train_file)
    model_args = fill_defaults(model_args, data.roles)
    require_shardable(model_args, run_args)
    if run_args.gradient_cache_chunk:
        require_repeatable(run_args)
    transformers.set_seed(run_args.seed)
    method = build_resolved(load_encoder(model_args), model_args, data.roles)
    require_fitting(method, data_args, run_args)
    corpus = _read_corpus(model_args, data_args, data, method)
    made_of = _made_of(data, run_args, method, corpus)
    require_same_in_all_processes({**made_of, "evaluation data": dev and dev.files})
    run_options = resolved(model_args, data_args, run_args, given)
    if checkpoint:
        with _explain_removal(checkpoint, run_args):
            checkpoint.require_same(run_options, made_of, method)
            if run_args.load_best_model_at_end:
                checkpoint.require_best(Path(run_args.output_dir))
    in_dev = bool(model_args.denoise_in_dev)
    trainer = build_trainer(
        method, data, data_args, run_args, dev, denoise_in_dev=in_dev, corpus=corpus, inputs=inputs
    )
    trainer.made_of = made_of
    _train_and_evaluate(trainer, checkpoint, run_options)
    if target and trainer.is_world_process_zero():
        _push(Path(run_args.output_dir), target)
    trainer.accelerator.wait_for_everyone()  # a process that leaves the group early may abort the others
    trainer.accelerator.end_training()
    return trainer


def _train_and_evaluate(
    trainer: Trainer, checkpoint: checkpoints.Checkpoint | None, run_options: Mapping[str, Any]
) -> None:
    """Train and evaluate if this is requested and not done yet. run_options: result of `resolved`."""
    run = trainer.args
    finished = run.do_train and _is_finished(trainer, run_options)
    if run.do_train and not finished:
        _prepare(trainer, checkpoint, run_options)
        _train(trainer, checkpoint)
    if run.do_eval and not (finished and (Path(run.output_dir) / output_folder.EVAL_RESULTS).is_file()):
        _evaluate(trainer)


def _push(folder: Path, target: PushTarget) -> None:
    try:
        notify(f"pushed: {push_to_hub(folder, target)}")
    except UserError as error:
        raise UserError(
            f"the model is in {folder}, but not on the hub: {error}; try again: dcpcse push {folder} {target.repo_id}"
        ) from error


def _data_cache(args: ModelArguments) -> Path | None:
    return Path(args.cache_dir) / "dcpcse" if args.cache_dir else None


def load_encoder(args: ModelArguments) -> Backbone:
    """Load the encoder, with a masked-LM head if the MLM loss or --org_mlp needs it."""
    options = LoadOptions.from_args(args.cache_dir, args.use_auth_token, args.model_revision)
    hub.require_known(args.model_name_or_path, options)
    return load_backbone(
        args.model_name_or_path,
        tokenizer=args.tokenizer_name,
        config=args.config_name,
        lm_head=args.lm_head if args.do_mlm or args.org_mlp else None,
        options=options,
    )


def _read_corpus(args: ModelArguments, data_args: DataArguments, data: TrainingData, method: Method) -> Corpus | None:
    """Return the corrupted corpus, or None if none is given. Raises UserError if it does not fit this run."""
    if args.corrupted_corpus is None:
        return None
    if any(view.augmentation for view in method.views):
        raise UserError(
            f"--corrupted_corpus: its tokens were replaced in unchanged sentences, but --method {args.method} changes "
            "them in each epoch; leave out --corrupted_corpus"
        )
    corpus = Corpus.read(args.corrupted_corpus)
    corpus.require(
        data=data.sha256,
        vocabulary=vocabulary_fingerprint(method.model.tokenizer),
        views=[view.name for view in method.views],
        max_seq_length=data_args.max_seq_length,
    )
    return corpus


def build_trainer(
    method: Method,
    data: TrainingData,
    data_args: DataArguments,
    run_args: TrainingArguments,
    dev: Suite | None = None,
    *,
    denoise_in_dev: bool = False,
    corpus: Corpus | None = None,
    inputs: Inputs = Inputs(),
) -> Trainer:
    """Build the Trainer of a run, with its collator and dev evaluation.

    dev: tasks for the dev evaluation. denoise_in_dev: use template denoising in it. corpus: corrupted ids of the data.
    """

    def dev_scores() -> Mapping[str, float]:
        with method.model.denoised(denoise_in_dev):
            evaluated = evaluate_suite(method.model, dev, batch_size=run_args.per_device_eval_batch_size)
        return dev_metrics(evaluated.results)

    collator = ViewCollator(
        method.model.tokenizer,
        method.views,
        data_args.max_seq_length,
        templates=method.model.templates,
        width=method.model.dimension,
        seed=run_args.seed,
        pad_to_max_length=data_args.pad_to_max_length,
    )
    trainer = inputs.trainer_class(
        method,
        run_args,
        dev_scores=dev_scores if dev else None,
        locate=data.locate,
        callbacks=list(inputs.callbacks),
        data_collator=collator,
        train_dataset=CorruptedDataset(data.dataset, corpus) if corpus else IndexedDataset(data.dataset),
    )
    if not inputs.prints_log:
        print_no_log(trainer)
    set_packed(trainer.step_module, run_args.packing, run_args.flex_attention)
    return trainer


def _made_of(data: TrainingData, run: TrainingArguments, method: Method, corpus: Corpus | None) -> dict[str, Any]:
    """Return the inputs of a run other than its options and encoder, by the names used in error messages."""
    losses = nn.ModuleList(method.losses)
    made_of = {"processes": run.world_size, "training file": data.sha256}
    made_of["configuration for training"] = training_configuration(method.model.encoder.backbone.config)
    if frozen := {name: weight_digest(one) for name, one in losses.named_parameters() if not one.requires_grad}:
        made_of["generator or LM head"] = combined_digest(frozen.values())
        models = [module for module in losses.modules() if isinstance(module, PreTrainedModel)]
        settings = [configuration(model, head=True) | training_configuration(model.config) for model in models]
        # Not in checkpoints of earlier versions, which identified the weights without their names.
        made_of["generator or LM head, with names and configuration"] = named_digest(frozen, settings)
    if corpus:
        made_of["corrupted corpus"] = corpus.fingerprint
    if digest := digest_from_outside(method.model.method):
        made_of["file of the method"] = digest
    return made_of


def _is_finished(trainer: Trainer, options: Mapping[str, Any]) -> bool:
    """Return whether the run to resume has already finished; if so, load its result, which remains unchanged.

    Raises UserError if the result was trained with different options, or if it has fewer steps than planned and there
    is no checkpoint to resume from.
    """
    run, output, steps = trainer.args, Path(trainer.args.output_dir), planned_steps(trainer)
    exists = manifest.is_model_folder(output)
    if not exists or not (run.resume or checkpoints.asks_for_newest(run.resume_from_checkpoint)):
        return False
    state = read_state(output) or {"global_step": 0}
    result = checkpoints.Checkpoint(output, state["global_step"])
    result.require_same_options(options)
    if result.step >= steps:
        result.require_same_run(trainer.step_module.model, None)
        notify(f"{output} contains a finished run: all {steps} steps are done; it remains unchanged")
        if trainer.is_world_process_zero():
            atomic_save.remove_leftovers(output)
        trainer.restore_result()
        return True
    if last_checkpoint(output) is None:
        raise UserError(
            f"{output} contains the result of {result.step} steps but no checkpoint to resume from for {steps} steps; "
            "give another folder, or --overwrite_output_dir without --resume"
        )
    return False


def _prepare(trainer: Trainer, checkpoint: checkpoints.Checkpoint | None, run_options: Mapping[str, Any]) -> None:
    """Clean the output folder, write the records of the run to it, and print a summary of the run."""
    if not trainer.is_world_process_zero():
        return
    output = Path(trainer.args.output_dir)
    atomic_save.remove_leftovers(output)
    remove_old_card(output)
    if not checkpoint and trainer.args.resume:
        notify(f"--resume: there is no complete checkpoint in {output} yet; training starts from the beginning")
        output_folder.clear_reports(output)  # broken checkpoints remain until complete ones replace them
    elif not checkpoint:
        output_folder.clear_run(output)
    else:
        notify(f"resuming from {checkpoint.folder}, after step {checkpoint.step}")
    write_run(output / RUN_FILE, run_options)
    write_environment(output, step=checkpoint.step if checkpoint else 0)
    for line in summary(trainer).splitlines():
        notify(line)


def _train(trainer: Trainer, checkpoint: checkpoints.Checkpoint | None) -> None:
    output = Path(trainer.args.output_dir)
    with trainer.stop.active():
        metrics = _metrics_of_training(trainer, checkpoint)
        trainer.save_result({} if metrics is None else {"train_results.txt": _lines(metrics)})
        if metrics is not None and trainer.is_world_process_zero():
            for line in _lines(metrics).splitlines():
                notify(line)
    if trainer.is_world_process_zero():
        notify(f"the model is in {output}")
    if number := trainer.stop.number:  # the signal arrived in the last step, or while the result was saved
        raise Interrupted(number, f"{Interrupted(number).name} at the end of the training: the model is in {output}")


def _metrics_of_training(trainer: Trainer, checkpoint: checkpoints.Checkpoint | None) -> Mapping[str, float] | None:
    """Train and return the metrics; return None if the checkpoint is already at the end of the run."""
    steps, output = planned_steps(trainer), Path(trainer.args.output_dir)
    if checkpoint and checkpoint.step >= steps:  # transformers would train one more step
        notify(f"{checkpoint.folder} is the end of the run: all {steps} steps are done")
        trainer.restore(checkpoint)
        return None
    try:
        with (
            doing("while the model was trained"),
            _explain_removal(checkpoint, trainer.args, lambda: trainer.state.global_step <= checkpoint.step),
        ):
            return trainer.train(resume_from_checkpoint=str(checkpoint.folder) if checkpoint else None).metrics
    except KeyboardInterrupt as error:
        if not str(error):  # interrupted immediately, within a step
            notify(output_folder.resume_hint(output))
        raise
    except RuntimeError as error:
        if is_lost_process(error):
            _report_lost_process(trainer, output)
        raise


def _explain_removal(
    checkpoint: checkpoints.Checkpoint | None, run: TrainingArguments, is_read: Callable[[], bool] = lambda: True
) -> contextlib.AbstractContextManager[None]:
    """Explain the errors of this block if a training in another folder has removed the checkpoint to resume from."""
    foreign = checkpoint.folder if checkpoint and not checkpoints.is_in(checkpoint.folder, run) else None
    return explain_removal(foreign, is_read)


def _report_lost_process(trainer: Trainer, output: Path) -> None:
    """Report once that another process has ended: in the first process, or in the second if the first has ended."""
    if number := trainer.stop.number:  # the launcher has noticed it as well and is ending this process
        raise Interrupted(number)
    reporter = 1 if trainer.args.process_index == 1 and not is_locked(output) else 0
    if trainer.args.process_index == reporter:
        print_message(f"another process of this run has ended; {output_folder.resume_hint(output)}")


def resolved(
    model: ModelArguments, data: DataArguments, run: TrainingArguments, given: Collection[str]
) -> dict[str, Any]:
    """Return the options of a run with their final values, including defaults."""
    # Only those of transformers' hundred options are kept that were given or are always recorded.
    kept = {name: value for name, value in run.to_dict().items() if name in given or name in ALWAYS_RECORDED}
    options = {**vars(model), **vars(data), **kept, "output_dir": run.output_dir}
    return {name: value for name, value in options.items() if value not in (None, []) and name not in NEVER_RECORDED}


def write_run(path: Path, options: Mapping[str, Any]) -> None:
    """Write resolved options to a YAML file that train.py can read."""
    write_atomic(path, yaml.safe_dump(dict(options), sort_keys=True, allow_unicode=True))


def _evaluate(trainer: Trainer) -> None:
    """Evaluate the result on the dev sets, print the scores, and write them to eval_results.txt."""
    lines = _lines(trainer.evaluate())
    if trainer.is_world_process_zero():
        write_atomic(Path(trainer.args.output_dir) / output_folder.EVAL_RESULTS, lines)
        for line in lines.splitlines():
            notify(line)


def _lines(metrics: Mapping[str, Any]) -> str:
    """Return the metrics as lines `key = value`, sorted by key."""
    return "".join(f"{key} = {value}\n" for key, value in sorted(metrics.items()))
