"""Define the options of train.py and check their values.

The names are the same as in the public SimCSE and DCPCSE scripts; `dcpcse.cli.legacy_options` translates older names.
"""

import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import torch
import transformers
from transformers.training_args import OptimizerNames

from dcpcse.data.column_choice import CHOICES, chosen_columns
from dcpcse.data.tables import describe
from dcpcse.encoders.tokenization import CPU_ROWS
from dcpcse.utils.distributed import init_process_group, launched
from dcpcse.utils.errors import OptionError, UserError, did_you_mean, spell
from dcpcse.utils.option_fields import (
    SEEDS,
    SHARE,
    Need,
    Options,
    check_value,
    flag,
    option,
    refuse_removed,
    require_kinds,
)
from dcpcse.utils.private.arguments import OneGpuArguments, enable_tf32

_NEGATIVES = "it decides which sentences are each other's negatives"
_UNTESTED = "it is not tested with frozen encoders and prompts"
_UNUSED = "no code here uses it"
_FOLDER_ONLY = "only the finished folder is pushed to the hub (--push_to_hub)"
UNSUPPORTED = {
    **dict.fromkeys(("group_by_length", "length_column_name"), _NEGATIVES),
    "auto_find_batch_size": "it changes the number of negatives during a run",
    "label_smoothing_factor": "contrastive targets are not smoothed",
    **dict.fromkeys(("fsdp", "fsdp_config"), "every process needs the complete frozen encoder"),
    **dict.fromkeys(("deepspeed", "parallelism_config", "neftune_noise_alpha"), _UNTESTED),
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config"), _UNTESTED),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), "scores are computed in float32"),
    "hub_token": "other users of the machine can read it; log in with hf auth login, or set HF_TOKEN",
    **dict.fromkeys(("hub_strategy", "hub_always_push", "trackio_space_id"), _FOLDER_ONLY),
    **dict.fromkeys(("trackio_bucket_id", "trackio_static_space_id"), _FOLDER_ONLY),
    **dict.fromkeys(("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object"), _UNUSED),
    **dict.fromkeys(("eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics"), _UNUSED),
    **dict.fromkeys(("label_names", "remove_unused_columns", "use_cache", "do_predict"), _UNUSED),
    **dict.fromkeys(("include_num_input_tokens_seen", "average_tokens_across_devices"), _UNUSED),
}
"""Option of transformers.TrainingArguments that raises an error → reason."""


@dataclass
class DataArguments(Options):
    """Options of the training data and of the evaluation data during training."""

    _argument_group_name = "data"

    train_file: list[str] | None = option(
        None,
        "Training file (required), or several files, of which each batch uses one: txt (one sentence per line), csv, "
        "tsv, json, jsonl (each also with .gz) or parquet with 1 column (sentence), 2 (pair), 3 (pair and hard "
        "negative, or a third column named label or score) or more. Several positives are named positive_1, "
        "positive_2, ... (one of them is drawn in each epoch), several hard negatives negative_1, negative_2, ...",
    )
    train_weights: list[float] | None = option(
        None,
        "Weights by which the batches of an epoch are divided among the files of --train_file, in their order. "
        "Default: by size, so that every row is used once in an epoch.",
        above=0,
    )
    columns: list[str] | None = option(
        None,
        "Columns of the training data to read, as ROLE=NAME, such as anchor=question positive=answer. Roles: "
        f"{', '.join(CHOICES)}, and positive_1, negative_2, ... Default: all columns, by their position and names.",
        named=True,
    )
    max_seq_length: int = option(
        32,
        "Maximum number of tokens of a training sentence, with [CLS] and [SEP] but without a template. Longer "
        "sentences are truncated.",
        at_least=3,
    )
    pad_to_max_length: bool = option(False, "Pad every batch to --max_seq_length instead of to its longest sentence.")
    overwrite_cache: bool = option(False, "Read and tokenise the training file again even if the result is cached.")
    eval_pairs: str | None = option(
        None,
        "File of your own with two sentences and a score (or 0 and 1) per row, evaluated before training and at every "
        "evaluation; the formats are those of evaluation.py --pairs. It implies --eval_on_start and --eval_strategy "
        "epoch, and selects the best checkpoint unless --metric_for_best_model is given.",
        replaces=("metric_for_best_model", "eval_tasks"),
    )
    eval_labels: str | None = option(
        None,
        "File of your own with a text and its class per row, used like --eval_pairs.",
        replaces=("metric_for_best_model", "eval_tasks"),
    )
    eval_columns: list[str] | None = option(
        None,
        "Columns of --eval_pairs and --eval_labels to read, as ROLE=NAME, such as anchor=text positive=title "
        "score=similarity, or anchor=text class=topic.",
        named=True,
    )
    eval_retrieval: list[str] | None = option(
        None,
        "Folders of your own with documents, queries and judgements, whose split dev is evaluated (or FOLDER:SPLIT), "
        "and NanoBEIR or some of its sets by name, as for evaluation.py --retrieval; used like --eval_pairs. The "
        "metric is the mean of their nDCG@10.",
        replaces=("metric_for_best_model", "eval_tasks"),
    )
    eval_data_dir: str = option("SentEval/data", "Folder that contains downstream/STS and downstream/SICK.")
    eval_tasks: list[str] = option(
        ["STSBenchmark", "SICKRelatedness"],
        "Tasks whose dev sets are evaluated: STSBenchmark, SICKRelatedness. With --eval_pairs, --eval_labels "
        "or --eval_retrieval they are evaluated only if this option is given.",
        choices=["STSBenchmark", "SICKRelatedness"],
    )
    eval_transfer: bool = option(
        False,
        "Also compute the dev accuracies of MR, CR, SUBJ, MPQA, SST2, TREC and MRPC; this takes minutes at every "
        "evaluation.",
    )
    custom_eval_data: bool = option(
        False,
        "The evaluation files are your own in SentEval's format: do not check them for the official sizes. For your "
        "own data in simpler files use --eval_pairs and --eval_labels.",
    )

    def check(self) -> None:
        """Check the files and columns. A list of one training file becomes a single path, as in run.yaml."""
        chosen_columns(self.columns)
        chosen_columns(self.eval_columns, "eval_columns")
        files = self.train_files
        self.train_file = files[0] if len(files) == 1 else self.train_file
        if repeated := next((file for file in files if files.count(file) > 1), None):
            reason, remedy = "is given twice", f"give it once, and draw it more often by {spell('train_weights')}"
            raise OptionError("train_file", repeated, reason, remedy)

    @property
    def train_files(self) -> list[str]:
        """The training files, or the names of the Python objects that were given instead."""
        return [self.train_file] if isinstance(self.train_file, str) else list(self.train_file or ())


NO_DUPLICATES = "no_duplicates"
BATCH_SAMPLERS = ("random", NO_DUPLICATES)
"""The values of --batch_sampler."""

MAX_EPOCHS, MAX_LEARNING_RATE = 1_000_000, 1e38
"""Larger values overflow during a run: the largest float32 is 3.4e38."""

_POSITIVE, _NOT_NEGATIVE, _COUNT = {"above": 0}, {"at_least": 0}, {"at_least": 1}
BOUNDS_OF_TRANSFORMERS: Mapping[str, Mapping[str, float]] = {
    **dict.fromkeys(("eval_steps", "save_steps", "logging_steps"), _POSITIVE),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), SHARE),
    **dict.fromkeys(("weight_decay", "adam_epsilon", "eval_delay"), _NOT_NEGATIVE),
    **dict.fromkeys(("warmup_steps", "max_grad_norm"), _NOT_NEGATIVE),
    **dict.fromkeys(("gradient_accumulation_steps", "torch_empty_cache_steps", "dataloader_prefetch_factor"), _COUNT),
    **dict.fromkeys(("save_total_limit", "ddp_bucket_cap_mb"), _COUNT),
    **dict.fromkeys(("seed", "data_seed"), SEEDS),
    "ddp_timeout": {"at_least": 1, "at_most": 10**8},
}
"""Option that transformers declares → its bounds, as metadata of `option`."""


@dataclass
class TrainingArguments(OneGpuArguments):
    """Options of a run: the options of transformers' Trainer, and further options of train.py.

    Differences from transformers:

    - The defaults of `learning_rate` and `per_device_train_batch_size` depend on the method, the tuning and the
      encoder.
    - The defaults of `bf16`, `optim` and `dataloader_num_workers` depend on the device.
    - A loss that is not finite stops the run.
    - The evaluation uses the batches of `encode`.
    - `metric_for_best_model` is a score of the evaluation data. The default is the first score.
    - UserError is raised for values that are not allowed, and for options that would change which sentences a
      contrastive loss compares.
    """

    # These are not options.
    given = frozenset()  # names of the options that were passed, also with a default value
    filled = MappingProxyType({})  # option → the value that `dcpcse.training.resolve_arguments` has filled in
    is_resolved = False  # set by `resolve_arguments`
    trains = True  # set by `resolve_arguments`

    _argument_group_name = "further options of transformers.TrainingArguments"

    output_dir: str | None = option(None, "Folder for the trained model (required); it must be new or empty.")
    resume: bool = option(
        False,
        "Resume from the newest complete checkpoint in --output_dir, or start if there is none. A finished run stays "
        "unchanged, so a job that may be interrupted can always be given this option.",
    )
    resume_from_checkpoint: str | None = option(
        None,
        "Resume from a checkpoint-N folder, or with True from the newest complete checkpoint in --output_dir, which "
        "must exist.",
    )
    overwrite_output_dir: bool = option(False, "Delete an earlier run in --output_dir when training starts.")
    logging_dir: str | None = option(None, "Folder for TensorBoard files (with --report_to tensorboard).")
    # The transformers version of the papers had no fused optimiser and did not hide NaN losses.
    optim: str | None = option(
        None,
        "Optimiser: one of transformers' OptimizerNames. Default: adamw_torch_fused on CUDA, which is AdamW in fewer "
        "kernels, and adamw_torch elsewhere or with --adam_bias_correction False.",
    )
    adam_bias_correction: bool = option(
        True,
        "Correct the averages of --optim adamw_torch for their start at zero. False computes AdamW of transformers 4 "
        "with correct_bias=False, as in the public code of SBERT and ConSERT.",
    )
    logging_nan_inf_filter: bool = option(
        False,
        "Leave out of the log losses that are not finite. Without this option, training stops at such a loss.",
    )
    gradient_cache_chunk: int | None = option(
        None,
        "Encode a batch in chunks of this many examples, twice each (GradCache): the gradient is exact and a batch of "
        "any size takes the memory of a chunk. Not with --batchnorm.",
        at_least=2,
    )
    loss_chunk: int | None = option(
        None,
        "Compare this many anchors at a time with all candidates in the losses, instead of all anchors: the gradient "
        "is the same except for rounding, and a large batch needs no matrix of all pairs.",
        at_least=1,
    )
    packing: bool = option(
        True, "Compute no padding tokens if the encoder allows it. False pads batches; the results are the same."
    )
    attention: str | None = option(
        None,
        "Attention over packed sentences: triton (kernels for GPUs, in half precision) or torch. Default: triton "
        "where it can be used.",
        choices=["triton", "torch"],
    )
    prepack: bool = option(
        True,
        "On a CPU in float32, store the frozen weights also in the layout of its matrix products. The copies take "
        "twice the memory of these weights.",
    )
    batch_sampler: str = option(
        "random",
        "Which rows are a batch: random, or no_duplicates (no two rows with a common sentence in any column or of one "
        "class, over all processes; rows that do not fit wait for a later batch).",
        choices=list(BATCH_SAMPLERS),
    )
    learning_rate: float | None = option(
        None,
        "Highest learning rate. Default: depends on --method, --tuning and the encoder.",
        above=0,
        at_most=MAX_LEARNING_RATE,
    )
    per_device_train_batch_size: int | None = option(
        None, "Training examples per device in a batch. Default: depends on --method and --tuning.", at_least=1
    )
    bf16: bool | None = flag(
        "Compute matrix products in bfloat16 (mixed precision). Default: on, if the GPU has units for it and neither "
        "--fp16 nor --encoder_dtype is given; else off."
    )
    fp16: bool = option(
        False,
        "Compute matrix products in float16 (mixed precision, with a scaled loss); needs a GPU.",
        needs=Need(lambda: spell("bf16", False), lambda options: not options.bf16, voids="bf16"),
    )
    dataloader_num_workers: int | None = option(
        None,
        "Number of processes that collate the next batches, for each process that trains. Default: 2 on a GPU, else "
        "0.",
        at_least=0,
    )
    max_steps: int = option(-1, "Number of optimiser steps; it overrides --num_train_epochs. -1: train by epochs.")
    per_device_eval_batch_size: int | None = option(
        None,
        "Maximum batch size in sentences when dev sets are encoded. Default: 128 on a CPU; on a GPU, only tokens are "
        "limited.",
        at_least=1,
    )
    do_train: bool = option(False, "Train the model. Default: on, unless --do_eval is given alone.")
    do_eval: bool = option(False, "Evaluate the dev sets at the end.")
    load_best_model_at_end: bool = option(
        False, "Keep the checkpoint with the best --metric_for_best_model instead of the last one."
    )
    metric_for_best_model: str | None = option(
        None, "Dev score that selects the best checkpoint: stsb_spearman (default), sickr_spearman, avg_sts, ..."
    )
    early_stopping_patience: int | None = option(
        None,
        "Stop the training when this many evaluations in a row have not improved --metric_for_best_model. It implies "
        "--load_best_model_at_end, unless that option is given.",
        at_least=1,
    )
    early_stopping_threshold: float = option(
        0.0, "An evaluation counts as an improvement if it is better than the best one by more than this.", at_least=0
    )
    push_to_hub: bool = option(False, "Push the finished model folder to the hub, to --hub_model_id.")
    hub_model_id: str | None = option(None, "Repository for --push_to_hub, as ORGANISATION/NAME.")

    def __new__(cls, *args: Any, **options: Any) -> "TrainingArguments":
        """Record which options are given; later, a given value cannot be told from a default or a derived value.

        An option with the value None does not count as given. Raises UserError if an option is unknown.
        """
        instance, defaults = super().__new__(cls), {field.name: field for field in fields(cls)}
        if unknown := next((name for name in options if name not in defaults), None):
            refuse_removed([unknown])
            hint = did_you_mean(unknown, defaults.keys() - UNSUPPORTED.keys(), form="{}")
            raise UserError(f"unknown option {unknown}; {hint or 'see the options in docs/training.md'}")
        passed = dict(zip(defaults, args, strict=False)) | options
        # dataclasses.replace and HfArgumentParser pass all options, also those that nobody has given.
        passes_all = len(passed) == sum(field.init for field in defaults.values())
        instance.given = None if passes_all else frozenset(name for name in passed if passed[name] is not None)
        return instance

    def __post_init__(self) -> None:
        require_kinds(self)
        if launched() > 1 and not torch.accelerator.is_available():
            # accelerate joins processes on CPUs only with use_cpu; otherwise all would train separately in one folder.
            self.use_cpu = True
        on_gpu = torch.cuda.is_available() and not self.use_cpu
        if self.optim is None:
            fused = on_gpu and self.adam_bias_correction
            self.optim = OptimizerNames.ADAMW_TORCH_FUSED if fused else OptimizerNames.ADAMW_TORCH
        self._check_values()
        if self.tf32 is not None:
            enable_tf32.cache_clear()  # an option left from an earlier run of this process would have no effect
        backend = self.ddp_backend or ("nccl" if on_gpu else "gloo")
        init_process_group(backend, timedelta(seconds=self.ddp_timeout))
        workers = self.dataloader_num_workers
        self.dataloader_num_workers = workers or 0  # transformers compares it with numbers
        if self.early_stopping_patience and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"  # stands for the first score, as with load_best_model_at_end
        super().__post_init__()
        self.dataloader_num_workers = workers
        if self.given is None:
            self.given = _changed(self)

    @property
    def eval_batch_size(self) -> int:
        """The maximum number of sentences per batch of an evaluation: `per_device_eval_batch_size` or its default."""
        return self.per_device_eval_batch_size or CPU_ROWS

    def set_bf16(self, on: bool) -> None:
        """Set the option `bf16` after the constructor has run, and before a Trainer is created with these options."""
        self.bf16 = on
        if on:
            self.mixed_precision = "bf16"  # what transformers gives to accelerate

    def _check_values(self) -> None:
        """Raise UserError for invalid values that transformers does not report, or reports only during training."""
        for field in fields(self):
            value, bounds = getattr(self, field.name), BOUNDS_OF_TRANSFORMERS.get(field.name, {})
            if bounds or "help" in field.metadata:
                check_value(field.name, value, {**field.metadata, **bounds})
        if self.max_steps < 1 and self.max_steps != -1:
            raise OptionError("max_steps", self.max_steps, "must be at least 1, or -1 for epochs")
        if self.max_steps == -1:
            check_value("num_train_epochs", self.num_train_epochs, {"above": 0, "at_most": MAX_EPOCHS})
        if self.resume and self.resume_from_checkpoint is not None:
            raise UserError(
                f"{spell('resume', True)} finds the newest checkpoint itself; leave out "
                f"{spell('resume_from_checkpoint')} or {spell('resume', True)}"
            )
        if self.resume and self.overwrite_output_dir:
            raise UserError(
                f"{spell('resume', True)} continues the run that {spell('overwrite_output_dir', True)} would replace; "
                "give one of them"
            )
        for name in ("dataloader_persistent_workers", "dataloader_prefetch_factor"):
            if getattr(self, name) and not self.dataloader_num_workers:
                raise OptionError(name, reason=f"needs {spell('dataloader_num_workers')} of at least 1")
        if not self.adam_bias_correction and self.optim != OptimizerNames.ADAMW_TORCH:
            raise UserError(
                f"{spell('adam_bias_correction', False)} is not available with {spell('optim', self.optim)}; use "
                f"{spell('optim', 'adamw_torch')} or {spell('adam_bias_correction', True)}"
            )
        for name in ("accelerator_config", "lr_scheduler_kwargs", "gradient_checkpointing_kwargs"):
            value = getattr(self, name)
            if isinstance(value, str) and not value.startswith("{") and not value.endswith(".json"):
                raise OptionError(name, value, "must be a JSON object, or a .json file with one")
        if self.optim_args and not re.fullmatch(r"[^=,]+=[^=,]+(,[^=,]+=[^=,]+)*", self.optim_args):
            raise OptionError("optim_args", self.optim_args, "must be one or several NAME=VALUE, separated by commas")


def require_supported(names: Collection[str]) -> None:
    """Raise UserError if train.py does not support one of the given options."""
    for name in sorted(names):
        if name in UNSUPPORTED:
            raise UserError(f"{spell(name)} is not supported: {UNSUPPORTED[name]}; leave it out")


def as_training_arguments(args: transformers.TrainingArguments | None) -> TrainingArguments:
    """Return the options of a run as a new `dcpcse.TrainingArguments`, which a Trainer may change.

    All values of transformers.TrainingArguments count as set by the user, so none is replaced by a default of dcpcse.
    Options that an earlier Trainer filled in are reset.

    Args:
        args: The options. None: the defaults.

    Raises:
        UserError: If `args` has another type, or if an option is not supported.
    """
    if args is None:
        return TrainingArguments()
    if not isinstance(args, transformers.TrainingArguments):
        raise UserError(f"args is {describe(args)}; give dcpcse.TrainingArguments or transformers.TrainingArguments")
    changed = _changed(args)
    if isinstance(args, TrainingArguments):
        require_supported(args.given & changed)
        copied = copy.copy(args)
        for name, value in args.filled.items():
            if getattr(copied, name) == value:
                setattr(copied, name, None)
    else:
        require_supported(changed)
        known = {field.name for field in fields(args)} & {field.name for field in fields(TrainingArguments)}
        copied = TrainingArguments(**{name: getattr(args, name) for name in known})
        copied.given = changed
    copied.filled = {}
    copied.accelerator_config = copy.copy(copied.accelerator_config)
    return copied


def _changed(args: transformers.TrainingArguments) -> frozenset[str]:
    """Return the names of the options whose values differ from the defaults.

    Options whose values are derived from other options are left out. `remove_unused_columns` is left out too, since it
    has no effect in dcpcse.
    """
    usual = TrainingArguments(output_dir=args.output_dir, use_cpu=args.use_cpu)
    shared = {field.name for field in fields(args)} & {field.name for field in fields(usual)}
    changed = {name for name in shared if getattr(args, name) != getattr(usual, name)}
    changed |= {"use_cpu"} if args.use_cpu else set()
    changed -= {"remove_unused_columns", "do_eval", "gradient_checkpointing", "gradient_checkpointing_kwargs"}
    if args.metric_for_best_model == "loss":  # as by default, where the loss selects the best checkpoint
        changed -= {"metric_for_best_model", "greater_is_better"}
    if args.per_device_eval_batch_size == transformers.TrainingArguments.per_device_eval_batch_size:
        changed -= {"per_device_eval_batch_size"}
    return frozenset(changed)
