"""Check that data, encoder, method and options fit together, before training starts."""

import logging
from collections.abc import Iterable, Sequence

from dcpcse.data.checks import MOST_UNKNOWN, REMEDY, describe_unknown, unknown_share
from dcpcse.data.columns import CLASS, describe_labels, kind_of_role
from dcpcse.data.examples import EVERY, EveryPositive, IndexedDataset
from dcpcse.data.mixture import MixedDataset
from dcpcse.data.sampling import distinct_rows
from dcpcse.data.training_data import TrainingData
from dcpcse.data.views import View, max_added_tokens
from dcpcse.encoders.heads import BatchNormMLP
from dcpcse.encoders.templates import frame
from dcpcse.losses.guide import FALSE_NEGATIVES
from dcpcse.methods import Method
from dcpcse.methods.arguments import ModelArguments
from dcpcse.training.arguments import NO_DUPLICATES, DataArguments, TrainingArguments
from dcpcse.training.gradient_cache import joint, require_cachable
from dcpcse.training.optimizer import WITHOUT_WARMUP
from dcpcse.utils.arguments import texts_by_name
from dcpcse.utils.console import notify, warn
from dcpcse.utils.distributed import step_sizes
from dcpcse.utils.errors import OptionError, UserError, no_effect, plural, spell

logger = logging.getLogger(__name__)


def require_enough(data: TrainingData, rows: int, run: TrainingArguments) -> None:
    """Raise UserError if there are too few training examples for the loss, the processes or --dataloader_drop_last.

    Args:
        data: The training data.
        rows: Number of training examples; with --positive next, it differs from the number of rows of the data.
        run: Options of the run.
    """
    batch = run.per_device_train_batch_size * run.world_size
    named = data.name if data.unit == "row" else spell("train_file", data.name)
    if rows < 2:
        raise UserError(
            f"{named} has {plural(rows, 'training example')}; give at least 2, because losses compare examples"
        )
    if rows < run.world_size:
        raise UserError(
            f"{named} has {rows} training examples for {run.world_size} processes, and each process needs "
            "one; launch fewer processes"
        )
    if rows < batch and run.dataloader_drop_last:
        raise UserError(
            f"{spell('dataloader_drop_last', True)} drops all {rows} training examples of {data.name}, which do not "
            f"fill a batch of {batch}; use smaller batches, or leave the option out"
        )
    labels, positives = describe_labels(data.classes, data.scores), len(data.roles.positives)
    if positives > 1:
        labels = f"one of {positives} positives is drawn for each row and epoch"
        if rows > len(data.dataset):
            labels = "each positive makes an example"
    columns = f"{', '.join(data.columns)}{f' ({labels})' if labels else ''}"
    logger.info("training data: %s rows; columns %s", f"{rows:,}", columns)
    if rows < batch:
        level = logging.INFO if "per_device_train_batch_size" in run.filled else logging.WARNING
        logger.log(level, "%d examples are fewer than a batch of %d; every batch contains all of them", rows, batch)


def require_following(data: TrainingData, examples: int) -> None:
    """Raise UserError if --positive next finds fewer than two pairs of a line and the following line.

    Args:
        data: The training data.
        examples: Number of lines that are followed by another line of the same document.
    """
    if examples < 2:
        unit, lines = data.unit, len(data.dataset)
        subject = f"no {unit} of {data.name}" if examples == 0 else f"only one {unit} of {data.name}"
        # The last line of each document is not followed by another one.
        documents = f"{plural(lines, unit)} in {plural(lines - examples, 'document')}"
        raise OptionError(
            "positive",
            "next",
            f"{subject} is followed by another {unit} of its document ({documents}), and at least 2 must be",
            f"write one sentence per {unit} and blank {unit}s only between documents, or leave "
            f"{spell('positive')} out",
        )


def warn_of_duplicates(data: TrainingData, run: TrainingArguments) -> None:
    """Log a warning if rows of the data are repeated, contradict each other or give no training signal.

    Args:
        data: The training data.
        run: Options of the run.
    """
    stats, batch = data.repeats, run.per_device_train_batch_size * run.world_size
    problems = {
        "repeat an earlier row": stats.duplicates,
        "have the same sentence as anchor and positive": stats.identical,
        "have the same sentence as negative and as anchor or positive": stats.contradictory,
        f"repeat an earlier {'sentence' if data.roles.label == CLASS else 'pair'} with a different label": (
            stats.relabelled
        ),
    }
    counts = [
        f"{rows.count:,} {problem} ({data.unit} {rows.lines[0]}{', …' if rows.count > 1 else ''})"
        for problem, rows in problems.items()
        if rows.count
    ]
    if not counts and 2 * stats.pairs >= stats.rows * (stats.rows - 1):  # a column that is not a sentence of the pair
        counts = ["any two have the same anchor or the same positive"]
    most = "up to " if len(data.roles.positives) > 1 else ""  # not all of them are drawn
    share = f"; {most}{100 * stats.share(batch):.1f} % of batches of {batch} contain a false negative"
    share += f" (not with {spell('batch_sampler', NO_DUPLICATES)})"
    share = "" if data.roles.label or run.batch_sampler == NO_DUPLICATES else share
    if counts:
        logger.warning(
            "%s: of %s rows, %s%s%s",
            *(data.name, f"{stats.rows:,}", ", ".join(counts), share),
            "" if data.unit == "row" else f"; dcpcse doctor {data.name} shows more",
        )


def warn_of_columns(data: TrainingData) -> None:
    """Log a warning for each column of the data that is probably misread."""
    for problem in data.problems:
        warn(f"{data.name}: {problem}")


def warn_of_unknown_tokens(data: TrainingData, method: Method) -> None:
    """Log a warning if many tokens of the data, or a token of a template, are unknown to the tokenizer.

    Args:
        data: The training data.
        method: The method.
    """
    tokenizer = method.model.tokenizer
    share = unknown_share(data.dataset, data.roles.sentences, tokenizer)
    if share > MOST_UNKNOWN:
        warn(f"{data.name}: {describe_unknown(share, tokenizer.unk_token)}; {REMEDY}")
    for template in method.model.templates:
        if tokenizer.unk_token_id in (*template.before, *template.after):
            warn(
                f"the template {str(template.template)!r} has words that are unknown to the tokenizer, which reads "
                f"all of them as {tokenizer.unk_token}; choose another template"
            )


def require_classes(data: TrainingData) -> None:
    """Raise UserError if no class has two sentences, or if there is only one class, which gives no negatives.

    Also log a warning if some classes have only one sentence.
    """
    if data.roles.label != CLASS:
        return
    single, classes = sum(count == 1 for count in data.classes.values()), len(data.classes)
    if classes < 2:
        raise UserError(
            f"{data.name}: all rows have the class {next(iter(data.classes))!r}, and rows of one class are not each "
            "other's negatives; add rows of another class, or remove the column of classes"
        )
    if single == classes:
        raise UserError(
            f"{data.name}: each of the {single:,} classes in the column {data.columns[-1]!r} has one sentence, so "
            "no sentence has a positive; remove the column, or rename it to positive if it contains positives"
        )
    if single:
        warn(f"{data.name}: {single:,} of {classes:,} classes have one sentence, which is its own positive")


def require_masked(method: Method, columns: Sequence[str], dataset: IndexedDataset | MixedDataset | None) -> None:
    """Raise UserError if false negatives are known, but a loss of the method cannot leave them out.

    False negatives are known if the data have classes, with `--positive all`, or if a guide (`--guide`) finds them.
    Also raise UserError if there is a guide, but no loss compares sentences of different rows.

    Args:
        method: The method.
        columns: The columns of the examples.
        dataset: The examples; None if the run does not train.
    """
    sources = {
        "the column of classes": CLASS in columns,
        spell("positive", EVERY): dataset is not None and isinstance(dataset.parts[0], EveryPositive),
        spell("guide"): FALSE_NEGATIVES in method.guides,
    }
    for what in (name for name, known in sources.items() if known):
        comparing = joint({name: term.loss for name, term in method.terms.items()})
        for name, loss_fn in comparing.items():
            if not loss_fn.leaves_out_false_negatives:
                raise UserError(
                    f"{what}: the loss {name} of {spell('method', method.model.method)} does not leave out false "
                    f"negatives; leave out {what}, or use dcpcse.losses.false_negatives in the loss and set "
                    "leaves_out_false_negatives"
                )
        if FALSE_NEGATIVES in method.guides and not comparing:
            raise no_effect("guide", f"on {spell('method', method.model.method)}, whose losses compare no rows")


def require_same_numbers(method: Method, dataset: IndexedDataset | MixedDataset | None) -> None:
    """Raise UserError if rows have different numbers of hard negatives, but the method needs equal numbers.

    Args:
        method: The method.
        dataset: The examples; None if the run does not train.
    """
    if dataset is None or dataset.num_negatives is None:
        return
    users = {f"the loss {name}": not term.loss.leaves_out_absent for name, term in method.terms.items()}
    users[spell("batchnorm", True)] = isinstance(method.model.head, BatchNormMLP)
    if user := next((name for name, uses in users.items() if uses), None):
        least, most = dataset.num_negatives.min(), dataset.num_negatives.max()
        raise UserError(
            f"{spell('train_file')} has rows with {least} to {most} hard negatives, but {user} of "
            f"{spell('method', method.model.method)} needs the same number in every row; give each row {least or 1} "
            "of them, or choose another method"
        )


def require_row_chunks(method: Method, run: TrainingArguments) -> None:
    """Raise UserError if --loss_chunk is given, but has no effect or is not supported.

    The option has no effect if no loss of the method compares sentences of different rows. It is not supported if a
    loss compares rows, but cannot be computed in chunks of rows.

    Args:
        method: The method.
        run: Options of the run.
    """
    if run.loss_chunk is None:
        return
    comparing = joint({name: term.loss for name, term in method.terms.items()})
    if not comparing:
        raise no_effect("loss_chunk", f"on {spell('method', method.model.method)}, whose losses compare no rows")
    if whole := next((name for name, loss_fn in comparing.items() if not loss_fn.has_row_chunks), None):
        raise UserError(
            f"{spell('loss_chunk')}: the loss {whole} of {spell('method', method.model.method)} compares all rows at "
            f"once; leave out {spell('loss_chunk')}, or use dcpcse.losses.row_chunks in the loss and set "
            "has_row_chunks"
        )


def batch_sizes(dataset: IndexedDataset | MixedDataset, run: TrainingArguments) -> list[int]:
    """Return the number of rows of each batch of an epoch, in all processes together.

    Args:
        dataset: The examples.
        run: Options of the run.
    """
    options = (run.per_device_train_batch_size, run.world_size, run.dataloader_drop_last)
    return [size for part in dataset.parts for size in step_sizes(len(part), *options)]


def require_weights(data: DataArguments, sets: int, run: TrainingArguments) -> None:
    """Raise OptionError unless --train_weights is left out, or has a weight for each of several training sets.

    Args:
        data: Options of the data.
        sets: Number of training sets.
        run: Options of the run.
    """
    weights = data.train_weights
    if run.trains and weights and (sets < 2 or len(weights) != sets):
        reason = f"has {plural(len(weights), 'weight')} for {plural(sets, 'training set')}"
        raise OptionError(
            "train_weights", reason=reason, remedy="give one weight for each of several sets, or leave it out"
        )


def require_distinct_rows(dataset: IndexedDataset, run: TrainingArguments) -> None:
    """Raise UserError if there are too few rows without duplicates to fill a batch of --batch_sampler no_duplicates.

    Args:
        dataset: The examples.
        run: Options of the run.
    """
    if run.batch_sampler != NO_DUPLICATES:
        return
    largest = max(batch_sizes(dataset, run))
    count = len(distinct_rows(dataset, largest))
    if count < largest:
        most = count // run.world_size
        lower = f"lower {spell('per_device_train_batch_size')} to at most {most}, or " if count > 1 and most else ""
        raise OptionError(
            "batch_sampler",
            "no_duplicates",
            f"a batch needs {largest:,} rows without a common sentence or class, but the data have only {count:,} "
            "such rows",
            f"{lower}leave {spell('batch_sampler')} out",
        )


def require_data(data: TrainingData, examples: int, model: ModelArguments, run: TrainingArguments) -> None:
    """Raise UserError if the data cannot be used for training; log duplicate rows and misread columns.

    Args:
        data: The training data.
        examples: Number of training examples that are made from the data.
        model: Options of the model.
        run: Options of the run.
    """
    if model.positive == "next":
        require_following(data, examples)
    require_enough(data, examples, run)
    if model.positive == "next":
        lines = plural(len(data.dataset), data.unit)
        notify(f"{data.name}: {examples:,} of {lines} are examples, since another one of their document follows")
    warn_of_duplicates(data, run)
    warn_of_columns(data)
    require_classes(data)


def warn_of_no_effect(model: ModelArguments, run: TrainingArguments) -> None:
    """Log a warning for each option without effect on this run.

    Args:
        model: Options of the model.
        run: Options of the run.
    """
    if model.gather_gradient == "published" and run.world_size == 1:
        warn(f"{spell('gather_gradient', 'published')} has no effect with one process")
    if run.loss_chunk and run.loss_chunk >= run.per_device_train_batch_size:
        rows = run.per_device_train_batch_size
        size = spell("per_device_train_batch_size", rows)
        warn(f"{spell('loss_chunk', run.loss_chunk)} has no effect with {size}: a batch has only {rows} rows")


def require_fitting(
    method: Method,
    columns: Sequence[str],
    dataset: IndexedDataset | None,
    data: DataArguments,
    run: TrainingArguments,
) -> None:
    """Raise UserError if the method cannot be trained with these examples, sentence length, batch size or options.

    Args:
        method: The method.
        columns: The columns of the examples.
        dataset: The examples; None if the run does not train.
        data: Options of the data.
        run: Options of the run.
    """
    require_fits(method, data)
    require_room_after_prompt(method, data)
    require_masked(method, columns, dataset)
    require_same_numbers(method, dataset)
    require_row_chunks(method, run)
    require_fresh_workers(method, dataset, run)
    require_inner_gradient(method, run)
    require_recomputable(method, run)
    require_warmups(method, run)
    if run.trains:
        require_negatives(method, run)
    if run.gradient_cache_chunk:
        require_cachable(method.model.head)


def require_room_after_prompt(method: Method, data: DataArguments) -> None:
    """Raise UserError if a prompt, the text before each sentence, leaves no room for the sentence.

    Args:
        method: The method.
        data: Options of the data.
    """
    model = method.model
    for prompt in (model.text_prefix, *texts_by_name(model.arguments.get("prompts")).values()):
        tokens = len(model.tokenizer(prompt)["input_ids"]) if prompt else 0
        if tokens >= data.max_seq_length:
            raise UserError(
                f"{spell('max_seq_length', data.max_seq_length)} leaves no room for a sentence after the prompt "
                f"{prompt!r:.80}, which has {tokens} tokens; raise {spell('max_seq_length')}, or give "
                f"{spell('prompt')} ''"
            )


def require_prompted_columns(options: ModelArguments, views: Iterable[View]) -> None:
    """Raise OptionError if there is a prompt for a column that the data do not have.

    Args:
        options: Options of the model.
        views: The views of the method.
    """
    roles = {kind_of_role(view.column) for view in views}
    for role in texts_by_name(options.prompts):
        if role not in roles:
            raise OptionError("prompts", role, "the training uses no such column of sentences", "leave it out")


def require_fits(method: Method, data: DataArguments) -> None:
    """Raise UserError if a sentence may have more tokens than the encoder or a generator has positions for.

    Args:
        method: The method.
        data: Options of the data.
    """
    encoder, template = method.model.encoder, method.model.longest_template
    special = 0 if template else sum(map(len, frame(method.model.tokenizer)))
    more = max_added_tokens(method.views, data.max_seq_length - special)
    longer = f" and up to {more} tokens that {spell('method', method.model.method)} adds" if more else ""
    if data.max_seq_length + template + more > encoder.max_tokens:
        added = f" and {template} tokens of the longest template" if template else ""
        raise UserError(
            f"{spell('max_seq_length', data.max_seq_length)}{added}{longer}: the encoder has {encoder.max_tokens} "
            f"positions at position offset {encoder.position_offset}; lower {spell('max_seq_length')} or "
            f"{spell('position_offset')}"
        )
    for loss_fn in method.losses:
        room = loss_fn.max_tokens
        if room is not None and data.max_seq_length + more > room:
            raise UserError(
                f"{spell('max_seq_length', data.max_seq_length)}{longer}: the generator has {room} positions; "
                f"lower {spell('max_seq_length')}"
            )


def require_fresh_workers(method: Method, dataset: IndexedDataset | None, run: TrainingArguments) -> None:
    """Raise UserError if persistent data loader workers would repeat the random draws of the first epoch.

    Args:
        method: The method.
        dataset: The examples; None if the run does not train.
        run: Options of the run.
    """
    drawn = {
        f"{spell('method', method.model.method)} draws new augmentations": any(
            view.augmentation for view in method.views
        ),
        "positives are drawn": dataset is not None and dataset.draws,
    }
    for what, applies in drawn.items():
        if run.dataloader_persistent_workers and applies:
            raise OptionError(
                "dataloader_persistent_workers",
                True,
                f"{what} in each epoch, and persistent workers would repeat the draws of the first epoch",
                "leave it out",
            )


def require_inner_gradient(method: Method, run: TrainingArguments) -> None:
    """Raise UserError if an option prevents the gradient from which the method computes adversarial views.

    Args:
        method: The method.
        run: Options of the run.
    """
    if method.adversary is None:
        return
    obstacles = {
        spell("torch_compile", True): (run.torch_compile, "which a compiled step does not provide; leave it out"),
        spell("fp16", True): (
            run.fp16,
            f"which is not scaled and underflows in half precision; use {spell('bf16', True)}",
        ),
    }
    for option, (enabled, reason) in obstacles.items():
        if enabled:
            raise UserError(
                f"{option}: {spell('method', method.model.method)} needs the gradient of its adversarial views inside "
                f"the forward pass, {reason}"
            )


def require_recomputable(method: Method, run: TrainingArguments) -> None:
    """Raise OptionError if --gradient_checkpointing is set, but transformers does not support it for the encoder.

    Args:
        method: The method.
        run: Options of the run.
    """
    backbone = method.model.encoder.backbone
    if run.gradient_checkpointing and not backbone.supports_gradient_checkpointing:
        reason = f"transformers cannot recompute the activations of {backbone.config.model_type} encoders"
        raise OptionError("gradient_checkpointing", True, reason, "leave it out")


def require_warmups(method: Method, run: TrainingArguments) -> None:
    """Raise UserError if a group of parameters has a separate warm-up, but the schedule supports no warm-up.

    Args:
        method: The method.
        run: Options of the run.
    """
    for group in method.groups:
        if group.warmup_steps is not None and run.lr_scheduler_type in WITHOUT_WARMUP:
            raise UserError(
                f"{spell('lr_scheduler_type', run.lr_scheduler_type.value)} has no warm-up, but a warm-up of "
                f"{group.warmup_steps:g} steps is given for the {group.name}; leave out "
                f"{spell('lr_scheduler_type')} or this warm-up"
            )


def require_negatives(method: Method, run: TrainingArguments) -> None:
    """Raise UserError if batches have no negatives, since the contrastive loss would always be 0.

    Args:
        method: The method.
        run: Options of the run.
    """
    batch = run.per_device_train_batch_size * run.world_size
    if method.negatives(batch) == 0:
        raise UserError(
            f"{spell('per_device_train_batch_size', run.per_device_train_batch_size)} leaves an anchor without "
            "negatives; give at least 2"
        )
