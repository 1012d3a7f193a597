"""What train.py does, step by step: check, build, train, measure, report."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from senteval import TRANSFER_TASKS, Suite, load_suite, settings_of_mode
from torch import nn
from transformers.integrations import get_available_reporting_integrations
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from . import checkpoints, first_checks, hub, saving
from . import folder as model_folder
from .arguments import DataArguments, ModelArguments, RunArguments
from .backbones import Backbone, LoadOptions, fingerprint, load_backbone, vocabulary_fingerprint
from .cli import parse_training, say
from .collators import ViewCollator
from .corpus import Corpus, CorruptedRows, data_fingerprint
from .data import TrainingData, load_training_file, located
from .devices import require_flex_attention
from .distributed import is_lost_process
from .encoder import set_packed
from .errors import UserError
from .evaluator import METRIC_NAMES, dev_metrics, measure
from .gradient_cache import require_cachable, require_repeatable
from .interruption import Interrupted
from .locks import alone_in, is_held
from .methods import Method, build_method
from .methods import settle as settle_method
from .numbered import NumberedRows
from .paths import require_writable, write_whole
from .publishing import Target, push, remove_old_card, require_pushable
from .recording import write_environment
from .records import RUN_FILE, read_state
from .trainer import EVALUATED, REPORTS, ContrastiveTrainer, clear_reports, clear_run, planned_steps, summary

logger = logging.getLogger(__name__)

SETTLED = ("seed", "learning_rate", "per_device_train_batch_size", "num_train_epochs", "max_steps", "do_train", "fp16")
"""Options of a run that `run.yaml` always holds."""

OF_HUB = ("hub_model_id", "hub_private_repo", "hub_revision")
"""Options that say where `--push_to_hub` pushes to."""

OF_ONE_CALL = ("resume", "resume_from_checkpoint", "overwrite_output_dir", "push_to_hub", *OF_HUB)
"""Options that `run.yaml` never holds: what a call did with its folder is not part of the run."""


def train(argv: Sequence[str]) -> None:
    """The whole of train.py; raises UserError or DataError for what the user can mend."""
    options, given = parse_training(argv)
    first_checks.require_sensible(options, given)
    train_with(options, given)


def train_with(options: tuple[ModelArguments, DataArguments, RunArguments], given: Collection[str]) -> None:
    """What train.py does once its options are read; given: names of those that were."""
    _, _, run_args = options
    settle(run_args, options[1], given)
    require_output_dir(run_args, given)
    output = Path(run_args.output_dir)
    with contextlib.ExitStack() as stack:
        stack.enter_context(saving.told(output, lambda: how_to_go_on(output)))
        if run_args.process_index == 0:
            stack.enter_context(alone_in(output, f"--output_dir {output}"))
        _train_with(options, given)


def _train_with(options: tuple[ModelArguments, DataArguments, RunArguments], given: Collection[str]) -> None:
    model_args, data_args, run_args = options
    check_output(run_args, model_args.model_name_or_path)
    target = take_target(run_args, given)
    if target and run_args.process_index == 0:  # what cannot be pushed should not cost a training
        require_pushable(run_args.output_dir, target)
    checkpoint = checkpoints.find(run_args)
    require_given(model_args, data_args)
    settle_method(model_args, ["anchor"])  # what contradicts itself should not cost the reading of a large file
    dev = load_dev_tasks(data_args) if wants_dev_scores(run_args) else None
    data = load_training_file(data_args.train_file, _data_cache(model_args), refresh=data_args.overwrite_cache)
    _require_enough(data, run_args, data_args.train_file)
    _warn_of_repeats(data, data_args.train_file, run_args)
    model_args = settle_method(model_args, data.dataset.column_names)
    if model_args.hard_negative_weight and "negative" not in data.dataset.column_names:
        say("--hard_negative_weight has no effect: the training file has no third column, of hard negatives")
    require_shardable(model_args, run_args)
    if run_args.gradient_cache_chunk:
        require_repeatable(run_args)
    if model_args.gather_gradient == "published" and run_args.world_size == 1:
        say("--gather_gradient published has no effect on one process: nothing is gathered")
    transformers.set_seed(run_args.seed)
    backbone = load(model_args)
    method = build_method(backbone, model_args, data.dataset.column_names)
    _require_fits(method, data_args)
    if run_args.do_train:
        _require_negatives(method, run_args)
    if run_args.gradient_cache_chunk:
        require_cachable(method.model.head)
    corpus = _corpus(model_args, data_args, method)
    made_of = _made_of(data_args, run_args, method, corpus)
    if checkpoint:
        checkpoint.require_same_options(resolved(model_args, data_args, run_args, given))
        checkpoint.require_same_origin(made_of)
        checkpoint.require_same_run(method.model, method.trained_objectives())
        if run_args.load_best_model_at_end:
            checkpoint.require_best(Path(run_args.output_dir))
    in_dev = bool(model_args.denoise_in_dev)
    trainer = build_trainer(method, data, data_args, run_args, dev, denoise_in_dev=in_dev, corpus=corpus)
    trainer.made_of = made_of
    finished = run_args.do_train and _is_finished(trainer, resolved(model_args, data_args, run_args, given))
    if run_args.do_train and not finished:
        _prepare(trainer, checkpoint, model_args, data_args, given)
        _train(trainer, checkpoint)
    if run_args.do_eval and not (finished and (Path(run_args.output_dir) / EVALUATED).is_file()):
        _evaluate(trainer)
    if target and trainer.is_world_process_zero():
        _push(Path(run_args.output_dir), target)
    trainer.accelerator.wait_for_everyone()  # processes that leave the group one by one may abort the others
    trainer.accelerator.end_training()


def take_target(run: RunArguments, given: Collection[str]) -> Target | None:
    """Where the folder is pushed to at the end, None without `--push_to_hub`, which is taken away from transformers.

    It would push every checkpoint, with optimiser states and pickles.
    """
    if not run.push_to_hub:
        if unread := [name for name in OF_HUB if name in given]:
            raise UserError(f"--{unread[0]} only counts with --push_to_hub; add it, or leave it out")
        return None
    if not run.hub_model_id:
        raise UserError("--push_to_hub: where to is missing; give --hub_model_id ORGANISATION/NAME")
    if not run.do_train:
        raise UserError("--push_to_hub pushes what is trained, and nothing is; dcpcse push FOLDER ORGANISATION/NAME")
    run.push_to_hub = False
    return Target(run.hub_model_id, run.hub_revision or "main", run.hub_private_repo or None)


def _push(folder: Path, target: Target) -> None:
    try:
        say(f"pushed: {push(folder, target)}")
    except UserError as error:
        raise UserError(
            f"the model is in {folder}, but not on the hub: {error}; try again: dcpcse push {folder} {target.repo_id}"
        ) from error


def settle(run: RunArguments, data: DataArguments, given: Collection[str]) -> None:
    """Fill in what follows from the other options, and say so."""
    if not {"do_train", "do_eval"} & set(given):  # not run.do_eval: transformers sets it where eval_strategy is given
        run.do_train = True
    if run.fp16 and not torch.cuda.is_available():
        say("--fp16 has no effect without a GPU: training in float32")
        run.fp16 = False
    if run.n_gpu > 1:
        say(f"{run.n_gpu} GPUs are visible, one is used; launch with torchrun to use all")
        run._n_gpu = 1
    if data.eval_transfer and not wants_dev_scores(run):
        raise UserError("--eval_transfer: nothing is evaluated; add --eval_strategy steps or --do_eval")
    if run.metric_for_best_model:
        _require_metric(run.metric_for_best_model, data)
        run.greater_is_better = run.greater_is_better if "greater_is_better" in given else True
    _tell_of_no_effect(run, data, given)
    if run.ddp_find_unused_parameters is None:
        run.ddp_find_unused_parameters = False
    run.dataloader_pin_memory = run.dataloader_pin_memory and torch.cuda.is_available()
    run.remove_unused_columns = False  # the collator reads text, which the Trainer would drop
    if run.train_sampling_strategy != "random":
        raise UserError(
            f"--train_sampling_strategy {run.train_sampling_strategy}: in contrastive training the sampler decides "
            "who is whose negative; only random is supported"
        )
    if run.accelerator_config.split_batches or run.accelerator_config.dispatch_batches:
        raise UserError(
            "--accelerator_config: split_batches and dispatch_batches deal batches out in ways that change who is "
            "whose negative; leave them out"
        )
    _require_installed(run)
    if run.flex_attention:
        require_flex_attention(run.device, run.packing)
    if run.logging_dir:
        os.environ["TENSORBOARD_LOGGING_DIR"] = run.logging_dir


def _tell_of_no_effect(run: RunArguments, data: DataArguments, given: Collection[str]) -> None:
    """A line for each option that was given and that nothing looks at."""
    if not wants_dev_scores(run):
        defaults = {field.name: field for field in fields(DataArguments)}
        of_data = ("eval_data_dir", "custom_eval_data")
        changed = {name for name in of_data if getattr(data, name) != defaults[name].default}
        names = [*changed, "metric_for_best_model", "load_best_model_at_end", "greater_is_better"]
        for name in names:
            if name in given:
                say(f"--{name} has no effect: nothing is measured without --eval_strategy steps or --do_eval")
    if run.logging_dir and "tensorboard" not in run.report_to:
        say("--logging_dir has no effect without --report_to tensorboard")


def _require_installed(run: RunArguments) -> None:
    """UserError for an optimiser or a reporter that is not known, or whose package is not there."""
    if unknown := sorted(set(run.report_to) - set(INTEGRATION_TO_CALLBACK)):
        known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
        raise UserError(f"--report_to {' '.join(unknown)}: choose among {known}; or none")
    if missing := sorted(set(run.report_to) - set(get_available_reporting_integrations())):
        names = " ".join(missing)
        raise UserError(f"--report_to {names}: not installed; pip install {names}, or --report_to none")
    try:
        transformers.Trainer.get_optimizer_cls_and_kwargs(run)
    except (ImportError, ValueError, RuntimeError) as error:
        name = getattr(run.optim, "value", run.optim)
        raise UserError(f"--optim {name}: {' '.join(str(error).split())}") from error
    _require_schedule(run)
    if run.torch_compile_mode:
        try:
            torch.compile(lambda tensor: tensor, mode=run.torch_compile_mode)
        except RuntimeError as error:
            raise UserError(
                f"--torch_compile_mode {run.torch_compile_mode}: {' '.join(str(error).split())}"
            ) from error


def _require_schedule(run: RunArguments) -> None:
    """UserError for a schedule that cannot be made, or not be followed, with these options: it is tried on nothing."""
    name = getattr(run.lr_scheduler_type, "value", run.lr_scheduler_type)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    try:
        schedule = transformers.get_scheduler(
            run.lr_scheduler_type, optimizer, run.get_warmup_steps(100), 100, run.lr_scheduler_kwargs or {}
        )
        if not isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            with warnings.catch_warnings():  # of a step of the schedule before one of the optimiser
                warnings.simplefilter("ignore")
                schedule.step()
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"--lr_scheduler_type {name}: {problem}; see --lr_scheduler_kwargs") from error


def dev_tasks(data: DataArguments) -> list[str]:
    """The tasks that dev evaluation measures."""
    return [*data.eval_tasks, *(TRANSFER_TASKS if data.eval_transfer else ())]


def load_dev_tasks(data: DataArguments) -> Suite:
    """Their files, read and checked: before encoders are loaded, and for the whole of the run."""
    settings = settings_of_mode("dev", official=not data.custom_eval_data)
    return load_suite(dev_tasks(data), data.eval_data_dir, settings)


def _require_metric(name: str, data: DataArguments) -> None:
    known = [METRIC_NAMES[task] for task in data.eval_tasks if task in METRIC_NAMES]
    known += ["avg_sts"] if len(known) == len(METRIC_NAMES) else []
    known += [*TRANSFER_TASKS, "avg_transfer"] if data.eval_transfer else []
    if name.removeprefix("eval_") not in known:
        raise UserError(f"--metric_for_best_model {name}: choose one of {known} (measured on --eval_tasks)")


def wants_dev_scores(run: RunArguments) -> bool:
    """Whether the run measures dev scores at any time."""
    return run.do_eval or run.eval_strategy != "no" or run.eval_on_start


def require_output_dir(run: RunArguments, given: Collection[str]) -> None:
    """UserError unless --output_dir is given, and is a place for files."""
    if "output_dir" not in given:  # transformers would take ./trainer_output
        raise UserError("--output_dir is missing: the folder for the result")
    folder = Path(run.output_dir)
    if run.process_index:  # the first process looks
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output_dir {folder} is a file; give a folder")
    require_writable(folder, f"--output_dir {run.output_dir}")


def check_output(run: RunArguments, encoder: str | None) -> None:
    """Refuse to train into a folder that holds something, unless told to overwrite or to go on."""
    if run.process_index:  # the first process looks; what it writes later must not stop a slower one
        return
    folder = Path(run.output_dir)
    if encoder and Path(encoder).is_dir() and folder.samefile(encoder):
        raise UserError(f"--output_dir {folder} is the folder of the encoder; the result needs one of its own")
    if not run.do_train or _goes_on_in(folder, run):
        return
    if any(not saving.is_aside(path) for path in folder.iterdir()) and not run.overwrite_output_dir:
        raise UserError(
            f"--output_dir {folder} is not empty; give another folder, --overwrite_output_dir to replace its result, "
            "or --resume to go on from its last checkpoint"
        )
    if model_folder.holds_another_encoder(folder) and not (folder / RUN_FILE).is_file():
        raise UserError(f"--output_dir {folder} holds an encoder that is no result of train.py; give another folder")


def _goes_on_in(folder: Path, run: RunArguments) -> bool:
    """Whether a run that lies in this folder already is to go on."""
    asked = run.resume_from_checkpoint
    if not checkpoints.wanted(asked):
        return run.resume and ((folder / RUN_FILE).is_file() or all(map(_is_of_a_run, folder.iterdir())))
    return not Path(asked).is_dir() or Path(asked).resolve().parent == folder.resolve()


def _is_of_a_run(path: Path) -> bool:
    """Whether a run that was killed before its first checkpoint may have left this."""
    return saving.is_aside(path) or path.name.removesuffix(".part") in REPORTS


def how_to_go_on(output: Path) -> str:
    """For a run that ends before its time: the checkpoint that is left, and what to do."""
    newest = checkpoints.last(output)
    if newest is None:
        return f"there is no checkpoint in {output} yet; the same command with --resume begins again"
    return f"{newest} is the last checkpoint; the same command with --resume goes on from there"


def require_given(model: ModelArguments, data: DataArguments) -> None:
    """UserError without an encoder, without data, or for dev tasks that there are not."""
    first_checks.require_given(model, data)
    if unknown := set(data.eval_tasks) - set(METRIC_NAMES):
        raise UserError(f"--eval_tasks {sorted(unknown)}: choose among {sorted(METRIC_NAMES)}, which have dev sets")


def _data_cache(args: ModelArguments) -> Path | None:
    return Path(args.cache_dir) / "dcpcse" if args.cache_dir else None


def _require_enough(data: TrainingData, run: RunArguments, path: str) -> None:
    rows, batch = len(data.dataset), run.per_device_train_batch_size * run.world_size
    if rows < 2:
        raise UserError(
            f"--train_file {path} has {rows} training example: a contrastive loss needs at least 2, to be each "
            "other's negatives"
        )
    if rows < run.world_size:
        raise UserError(
            f"--train_file {path} has {rows} training examples for {run.world_size} processes: each needs one; launch "
            "fewer"
        )
    logger.info("training data: %s rows; columns %s", f"{rows:,}", ", ".join(data.columns))
    if rows < batch:
        logger.warning("%d examples are fewer than a batch of %d: every batch holds them all", rows, batch)


def _warn_of_repeats(data: TrainingData, file: str, run: RunArguments) -> None:
    """One line where rows of the file are each other's false negatives, or teach nothing."""
    found, batch = data.repeats, run.per_device_train_batch_size * run.world_size
    what = {
        "occurred before": found.duplicates,
        "have the same text as anchor and positive": found.identical,
        "have the same text as anchor and negative": found.contradictory,
    }
    told = [
        f"{of.count:,} {words} (line {of.lines[0]}{', …' if of.count > 1 else ''})"
        for words, of in what.items()
        if of.count
    ]
    if told:
        logger.warning(
            "%s: of %s rows %s; %.1f %% of batches of %d hold a false negative; more: dcpcse doctor %s",
            *(file, f"{found.rows:,}", ", ".join(told), 100 * found.share(batch), batch, file),
        )


def require_shardable(model: ModelArguments, run: RunArguments) -> None:
    """UserError where `--shard_encoder` cannot split an encoder."""
    obstacles = {
        "there is one process; launch several with torchrun": run.world_size == 1,
        "--tuning full trains the encoder, and only a frozen one is split": model.tuning == "full",
        "it is not tested with --torch_compile": run.torch_compile,
    }
    for obstacle, there in obstacles.items():
        if run.shard_encoder and there:
            raise UserError(f"--shard_encoder: {obstacle}, or leave it out")


def load(args: ModelArguments) -> Backbone:
    """The encoder that the options name, with its LM head where the MLM loss or the head needs one."""
    options = LoadOptions.asked(args.cache_dir, args.use_auth_token, args.model_revision)
    hub.require_known(args.model_name_or_path, options)
    return load_backbone(
        args.model_name_or_path,
        tokenizer=args.tokenizer_name,
        config=args.config_name,
        lm_head=args.lm_head if args.do_mlm or args.org_mlp else None,
        options=options,
    )


def _require_fits(method: Method, data: DataArguments) -> None:
    encoder, template = method.model.encoder, method.model.longest_template
    if data.max_seq_length + template > encoder.max_tokens:
        around = f" and {template} tokens of the longest template" if template else ""
        fits = "do" if around else "does"
        raise UserError(
            f"--max_seq_length {data.max_seq_length}{around} {fits} not fit: with position offset "
            f"{encoder.position_offset} the encoder has room for {encoder.max_tokens} tokens; lower it, or the offset"
        )
    for term in method.terms.values():
        room = term.objective.max_tokens
        if room is not None and data.max_seq_length > room:
            raise UserError(f"--max_seq_length {data.max_seq_length}: the generator has room for {room} tokens")


def _require_negatives(method: Method, run: RunArguments) -> None:
    """UserError for batches in which nothing is told apart: the loss would be 0 whatever is trained."""
    batch = run.per_device_train_batch_size * run.world_size
    if not method.contrastive.negatives(batch, [view.name for view in method.views]):
        raise UserError(
            f"--per_device_train_batch_size {run.per_device_train_batch_size}: an anchor would have no negative; give "
            "at least 2"
        )


def _corpus(args: ModelArguments, data: DataArguments, method: Method) -> Corpus | None:
    """The corpus that was corrupted ahead of training, if one is given; UserError if it is of another run."""
    if args.corrupted_corpus is None:
        return None
    corpus = Corpus.read(args.corrupted_corpus)
    corpus.require(
        data=data_fingerprint(data.train_file),
        vocabulary=vocabulary_fingerprint(method.model.tokenizer),
        views=[view.name for view in method.views],
        max_seq_length=data.max_seq_length,
    )
    return corpus


def build_trainer(
    method: Method,
    data: TrainingData,
    data_args: DataArguments,
    run_args: RunArguments,
    dev: Suite | None = None,
    *,
    denoise_in_dev: bool = False,
    corpus: Corpus | None = None,
) -> ContrastiveTrainer:
    """The Trainer with collator and dev evaluation on the tasks of `dev`; corpus: corrupted ids of the data."""

    def dev_scores() -> Mapping[str, float]:
        with method.model.denoised(denoise_in_dev):
            return dev_metrics(measure(method.model, dev, batch_size=run_args.per_device_eval_batch_size).results)

    collator = ViewCollator(
        method.model.tokenizer,
        method.views,
        data_args.max_seq_length,
        templates=method.model.templates,
        seed=run_args.seed,
        pad_to_max_length=data_args.pad_to_max_length,
    )
    rows = NumberedRows(data.dataset)
    trainer = ContrastiveTrainer(
        method,
        run_args,
        dev_scores=dev_scores if dev else None,
        locate=lambda numbers: located(data_args.train_file, data.dataset, numbers),
        data_collator=collator,
        train_dataset=rows if corpus is None else CorruptedRows(rows, corpus),
    )
    set_packed(trainer.step_module, run_args.packing, run_args.flex_attention)
    return trainer


def _made_of(data: DataArguments, run: RunArguments, method: Method, corpus: Corpus | None) -> dict[str, Any]:
    """What a run is made of besides its options and the encoder, by the names that a refusal gives it."""
    frozen = [parameter for term in method.terms.values() for parameter in term.objective.parameters()]
    frozen = nn.ParameterList(parameter for parameter in frozen if not parameter.requires_grad)
    made_of = {"processes": run.world_size, "training file": data_fingerprint(data.train_file)}
    if len(frozen):
        made_of["generator or LM head"] = fingerprint(frozen)
    if corpus:
        made_of["corrupted corpus"] = corpus.fingerprint()
    return made_of


def _is_finished(trainer: ContrastiveTrainer, options: Mapping[str, Any]) -> bool:
    """Whether a run that is to go on has left its result already; then that stays, and is what is measured.

    UserError for a result of other options, and for a shorter one without a checkpoint to go on from.
    """
    run, output, steps = trainer.args, Path(trainer.args.output_dir), planned_steps(trainer)
    there = model_folder.is_model_folder(output)
    if not there or not (run.resume or checkpoints.asks_for_newest(run.resume_from_checkpoint)):
        return False
    state = read_state(output) or {"global_step": 0}
    result = checkpoints.Checkpoint(output, state["global_step"])
    result.require_same_options(options)
    if result.step >= steps:
        result.require_same_run(trainer.step_module.model, None)
        say(f"{output} is finished: all its {steps} steps are done; its result stays as it is")
        if trainer.is_world_process_zero():
            saving.tidy(output)
        trainer.restore_result()
        return True
    if checkpoints.last(output) is None:
        raise UserError(
            f"{output} holds the result of {result.step} steps, and no checkpoint to go on from to {steps}; give "
            "another folder, or --overwrite_output_dir without --resume"
        )
    return False


def _prepare(
    trainer: ContrastiveTrainer,
    checkpoint: checkpoints.Checkpoint | None,
    model_args: ModelArguments,
    data_args: DataArguments,
    given: Collection[str],
) -> None:
    """Make the output folder ready, and say what is about to be trained."""
    if not trainer.is_world_process_zero():
        return
    output = Path(trainer.args.output_dir)
    saving.tidy(output)
    remove_old_card(output)
    if not checkpoint and trainer.args.resume:
        say(f"--resume: there is no whole checkpoint in {output} yet; the training begins")
        clear_reports(output)  # a broken checkpoint stays until a whole one takes its place
    elif not checkpoint:
        clear_run(output)
    else:
        say(f"going on from {checkpoint.folder}, after step {checkpoint.step}")
    write_run(output / RUN_FILE, resolved(model_args, data_args, trainer.args, given))
    write_environment(output, step=checkpoint.step if checkpoint else 0)
    for line in summary(trainer).splitlines():
        say(line)


def _train(trainer: ContrastiveTrainer, checkpoint: checkpoints.Checkpoint | None) -> None:
    output = Path(trainer.args.output_dir)
    with trainer.stop.awaited():
        metrics = _metrics_of_training(trainer, checkpoint)
        trainer.save_result({} if metrics is None else {"train_results.txt": _lines(metrics)})
        if metrics is not None and trainer.is_world_process_zero():
            for line in _lines(metrics).splitlines():
                say(line)
    if trainer.is_world_process_zero():
        say(f"the model is in {output}")
    if number := trainer.stop.number:  # it came in the last step, or while the result was saved
        raise Interrupted(number, f"{Interrupted(number).name} at the end of the training: the model is in {output}")


def _metrics_of_training(
    trainer: ContrastiveTrainer, checkpoint: checkpoints.Checkpoint | None
) -> Mapping[str, float] | None:
    """Train; None where the checkpoint is the end already."""
    steps, output = planned_steps(trainer), Path(trainer.args.output_dir)
    if checkpoint and checkpoint.step >= steps:  # transformers would take one step more
        say(f"{checkpoint.folder} is the end of the run: all its {steps} steps are done, none is left to train")
        trainer.restore(checkpoint)
        return None
    try:
        return trainer.train(resume_from_checkpoint=str(checkpoint.folder) if checkpoint else None).metrics
    except KeyboardInterrupt as error:
        if not str(error):  # at once, in the middle of a step
            say(how_to_go_on(output))
        raise
    except RuntimeError as error:
        if is_lost_process(error):
            _tell_of_loss(trainer, output)
        raise


def _tell_of_loss(trainer: ContrastiveTrainer, output: Path) -> None:
    """Another process is gone. The first one says what to do; the second one, where the first is gone."""
    if number := trainer.stop.number:  # the launcher has seen it too, and ends this process
        raise Interrupted(number)
    speaker = 1 if trainer.args.process_index == 1 and not is_held(output) else 0
    if trainer.args.process_index == speaker:
        print(f"another process of this run has ended; {how_to_go_on(output)}", file=sys.stderr, flush=True)


def resolved(model: ModelArguments, data: DataArguments, run: RunArguments, given: Collection[str]) -> dict[str, Any]:
    """The options of a run, whether given, settled or left at their defaults."""
    # Of transformers' hundred options those that were given, and those that matter always.
    kept = {name: value for name, value in run.to_dict().items() if name in given or name in SETTLED}
    options = {**vars(model), **vars(data), **kept, "output_dir": run.output_dir}
    return {name: value for name, value in options.items() if value not in (None, []) and name not in OF_ONE_CALL}


def write_run(path: Path, options: Mapping[str, Any]) -> None:
    """Write resolved options as a file that train.py reads again."""
    write_whole(path, yaml.safe_dump(dict(options), sort_keys=True, allow_unicode=True))


def _evaluate(trainer: ContrastiveTrainer) -> None:
    """Dev scores of the result, on the terminal and in eval_results.txt."""
    lines = _lines(trainer.evaluate())
    if trainer.is_world_process_zero():
        write_whole(Path(trainer.args.output_dir) / EVALUATED, lines)
        for line in lines.splitlines():
            say(line)


def _lines(metrics: Mapping[str, Any]) -> str:
    """`key = value`, one a line."""
    return "".join(f"{key} = {value}\n" for key, value in sorted(metrics.items()))
