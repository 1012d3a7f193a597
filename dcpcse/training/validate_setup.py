"""What data, encoder and method must be to be trained together; each refusal says what to change."""

import logging

from dcpcse.data.labels import describe_labels
from dcpcse.data.training_file import TrainingData
from dcpcse.data.views import max_added_tokens
from dcpcse.encoders.templates import frame
from dcpcse.evaluation.evaluator import METRIC_NAMES
from dcpcse.methods import Method
from dcpcse.methods.arguments import ModelArguments
from dcpcse.training import validate_arguments as first_checks
from dcpcse.training.arguments import DataArguments, RunArguments
from dcpcse.training.gradient_cache import require_cachable
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError

logger = logging.getLogger(__name__)


def require_training_file(model: ModelArguments, data: DataArguments) -> None:
    """UserError without an encoder, without data, or for dev tasks that there are not."""
    first_checks.require_encoder_and_file(model, data)
    if unknown := sorted(set(data.eval_tasks) - set(METRIC_NAMES)):
        raise UserError(f"--eval_tasks {unknown[0]} has no dev scores; choose from: {', '.join(METRIC_NAMES)}")


def require_enough(data: TrainingData, run: RunArguments, path: str) -> None:
    """UserError for fewer rows than a loss, or the processes, need."""
    rows, batch = len(data.dataset), run.per_device_train_batch_size * run.world_size
    if rows < 2:
        raise UserError(
            f"--train_file {path} has {rows} training example: give at least 2, as most losses tell examples apart"
        )
    if rows < run.world_size:
        raise UserError(
            f"--train_file {path} has {rows} training examples for {run.world_size} processes: each needs one; launch "
            "fewer"
        )
    if rows < batch and run.dataloader_drop_last:
        raise UserError(
            f"--dataloader_drop_last: the {rows} training examples of {path} are no whole batch of {batch}: nothing "
            "would be trained; give smaller batches, or leave it out"
        )
    labels = describe_labels(data.classes, data.scores)
    named = f"{', '.join(data.columns)}{f' ({labels})' if labels else ''}"
    logger.info("training data: %s rows; columns %s", f"{rows:,}", named)
    if rows < batch:
        logger.warning("%d examples are fewer than a batch of %d: every batch holds them all", rows, batch)


def warn_of_duplicates(data: TrainingData, file: str, run: RunArguments) -> None:
    """One line where rows of the file are each other's false negatives, or teach nothing."""
    found, batch = data.repeats, run.per_device_train_batch_size * run.world_size
    what = {
        "occurred before": found.duplicates,
        "have the same text as anchor and positive": found.identical,
        "have the same text as anchor and negative": found.contradictory,
        "are pairs that had another label before": found.relabelled,
    }
    told = [
        f"{of.count:,} {words} (line {of.lines[0]}{', …' if of.count > 1 else ''})"
        for words, of in what.items()
        if of.count
    ]
    share = f"; {100 * found.share(batch):.1f} % of batches of {batch} hold a false negative"
    if told:
        logger.warning(
            "%s: of %s rows %s%s; more: dcpcse doctor %s",
            *(file, f"{found.rows:,}", ", ".join(told), "" if data.roles.label else share, file),
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


def require_data(data: TrainingData, model: ModelArguments, run: RunArguments, file: str) -> None:
    """UserError for data that cannot be trained on; lines for what is odd in them, and for what has no effect."""
    require_enough(data, run, file)
    warn_of_duplicates(data, file, run)
    if model.hard_negative_weight and "negative" not in data.dataset.column_names:
        notify("--hard_negative_weight has no effect: the training file has no third column, of hard negatives")
    if model.gather_gradient == "published" and run.world_size == 1:
        notify("--gather_gradient published has no effect on one process: nothing is gathered")


def require_fitting(method: Method, data: DataArguments, run: RunArguments) -> None:
    """UserError for a method that cannot be trained on texts of this length, or in batches of this kind."""
    require_fits(method, data)
    require_fresh_workers(method, run)
    require_inner_gradient(method, run)
    if run.do_train:
        require_negatives(method, run)
    if run.gradient_cache_chunk:
        require_cachable(method.model.head)


def require_fits(method: Method, data: DataArguments) -> None:
    """UserError for texts that are longer than the encoder, or a generator, has room for."""
    encoder, template = method.model.encoder, method.model.longest_template
    special = 0 if template else sum(map(len, frame(method.model.tokenizer)))
    more = max_added_tokens(method.views, data.max_seq_length - special)
    longer = f" and the {more} tokens by which --method {method.model.method} may lengthen it" if more else ""
    if data.max_seq_length + template + more > encoder.max_tokens:
        around = f" and {template} tokens of the longest template" if template else ""
        around += longer
        fits = "do" if around else "does"
        raise UserError(
            f"--max_seq_length {data.max_seq_length}{around} {fits} not fit: with position offset "
            f"{encoder.position_offset} the encoder has room for {encoder.max_tokens} tokens; lower it, or the offset"
        )
    for loss_fn in method.losses:
        room = loss_fn.max_tokens
        if room is not None and data.max_seq_length + more > room:
            raise UserError(
                f"--max_seq_length {data.max_seq_length}{longer}: the generator has room for {room} tokens"
            )


def require_fresh_workers(method: Method, run: RunArguments) -> None:
    """UserError for workers that would draw the augmentations of the first epoch in all of them."""
    if run.dataloader_persistent_workers and any(view.augmentation for view in method.views):
        raise UserError(
            f"--dataloader_persistent_workers: --method {method.model.method} changes sentences anew in each epoch, "
            "and workers that stay keep the first one's number; leave it out"
        )


def require_inner_gradient(method: Method, run: RunArguments) -> None:
    """UserError for ways to compute that have no gradient to give inside the forward pass."""
    if method.adversary is None:
        return
    obstacles = {
        "--torch_compile": (run.torch_compile, "a compiled step has none; leave it out"),
        "--shard_encoder": (run.shard_encoder, "a split encoder has none; leave it out"),
        "--fp16": (run.fp16, "that gradient is not scaled, and would be lost in half precision; give --bf16"),
    }
    for option, (given, reason) in obstacles.items():
        if given:
            raise UserError(
                f"{option}: --method {method.model.method} takes the gradient of its adversarial views inside the "
                f"forward pass; {reason}"
            )


def require_negatives(method: Method, run: RunArguments) -> None:
    """UserError for batches in which nothing is left to be told apart: the loss would be 0 whatever is trained."""
    batch = run.per_device_train_batch_size * run.world_size
    if method.negatives(batch) == 0:
        raise UserError(
            f"--per_device_train_batch_size {run.per_device_train_batch_size}: an anchor would have no negative; give "
            "at least 2"
        )
