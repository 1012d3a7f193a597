"""Options of training, as dataclasses with their checks. Nothing else happens here.

The names are those of the public SimCSE and DCPCSE scripts; `dcpcse.cli.legacy_options` maps the older ones.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from dcpcse.utils.errors import UserError, invalid_choice
from dcpcse.utils.option_fields import option, require
from dcpcse.utils.parsing import read_text

JSON_OPTIONS = ("accelerator_config", "lr_scheduler_kwargs", "gradient_checkpointing_kwargs")
"""Options that take a JSON object, or a file with one."""

_NEGATIVES = "it decides which sentences are each other's negatives"
_UNTESTED = "it is not tested with frozen encoders and prompts"
_UNUSED = "no code here uses it"
_FOLDER_ONLY = "only the finished folder is pushed to the hub (--push_to_hub)"
UNSUPPORTED = {
    **dict.fromkeys(("group_by_length", "length_column_name"), _NEGATIVES),
    "auto_find_batch_size": "it changes the number of negatives during a run",
    "label_smoothing_factor": "contrastive targets are not smoothed",
    **dict.fromkeys(("fsdp", "fsdp_config"), "use --shard_encoder, which splits the frozen encoder over processes"),
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
"""Options of transformers.TrainingArguments that are rejected, with the reason."""


@dataclass
class DataArguments:
    """Training data, and the data of the evaluation during training."""

    _argument_group_name = "data"

    train_file: str | None = option(
        None,
        "txt (a sentence a line), csv, tsv, json or jsonl with 1 (sentence), 2 (pair) or 3 columns (hard negative, or "
        "what the third is named: label or score).",
    )
    max_seq_length: int = option(
        32, "Tokens of a sentence in training, [CLS] and [SEP] included, a template not; longer ones are cut."
    )
    pad_to_max_length: bool = option(False, "Pad every batch to --max_seq_length instead of its longest sentence.")
    overwrite_cache: bool = option(False, "Read the training file anew even if it was read before.")
    eval_data_dir: str = option("SentEval/data", "Folder that holds downstream/STS and downstream/SICK.")
    eval_tasks: list[str] = option(
        ["STSBenchmark", "SICKRelatedness"], "Tasks whose dev set is measured in training (stsb, sickr)."
    )
    eval_transfer: bool = option(
        False, "Measure the dev accuracies of MR CR SUBJ MPQA SST2 TREC MRPC as well (minutes at each evaluation)."
    )
    custom_eval_data: bool = option(
        False, "The evaluation files are your own in SentEval's format: do not ask for the official counts."
    )

    def __post_init__(self) -> None:
        require(self.max_seq_length >= 3, "--max_seq_length", self.max_seq_length, "at least 3")


MAX_EPOCHS, MAX_LEARNING_RATE = 1_000_000, 1e38
"""Beyond them the numbers overflow somewhere in the middle of a run: float32 ends at 3.4e38."""


@dataclass
class RunArguments(TrainingArguments):
    """transformers' training arguments, with what the papers' scripts have besides."""

    _argument_group_name = "training (those of transformers.TrainingArguments)"

    output_dir: str | None = option(None, "Folder for the result (required); a new or an empty one.")
    resume: bool = option(
        False,
        "Go on from the newest whole checkpoint in --output_dir; begin where there is none yet, and leave a finished "
        "result as it is. A job that may be cut off can always be given so.",
    )
    resume_from_checkpoint: str | None = option(
        None,
        "True goes on from the newest whole checkpoint in --output_dir, and there must be one; a folder checkpoint-N "
        "from that one.",
    )
    overwrite_output_dir: bool = option(False, "Replace an earlier result in --output_dir.")
    logging_dir: str | None = option(None, "Folder of TensorBoard's files (with --report_to tensorboard).")
    # The papers' transformers had no fused optimiser and hid no NaN.
    optim: str = option("adamw_torch", "Optimiser; a name of transformers' OptimizerNames.")
    logging_nan_inf_filter: bool = option(
        False, "Pass over losses that are not finite and do no harm, unseen in the log; training stops otherwise."
    )
    gradient_cache_chunk: int | None = option(
        None,
        "Encode a batch in chunks of so many examples, each twice: batches of any size in the memory of a chunk, with "
        "the exact gradient (GradCache). Not with --batchnorm.",
    )
    packing: bool = option(True, "Compute no pads, where the encoder allows it; False: padded batches, same numbers.")
    flex_attention: bool = option(
        False,
        "On a GPU: flex attention over packed texts in one row, prompts stored once, where attention has no dropout: "
        "in evaluation and encode.",
    )
    prepack: bool = option(
        True,
        "On a CPU, in float32: lay the frozen weights out once as matrix products want them; the copies cost twice "
        "their memory; False: without.",
    )
    shard_encoder: bool = option(
        False,
        "With several processes each keeps a part of the frozen encoder's layers (FSDP2); a layer is whole only while "
        "it computes. For encoders that are too large for one device beside a batch.",
    )
    per_device_eval_batch_size: int = option(128, "Sentences a batch, at most, when dev sets are encoded.")

    def __post_init__(self) -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.accelerator.is_available():
            # accelerate joins processes on CPUs only when told so; untold, each would train alone, in one folder.
            self.use_cpu = True
        self._require_sensible()
        self._require_known()
        try:
            super().__post_init__()
        except (ValueError, TypeError, NotImplementedError, ImportError, OSError) as error:
            of = "--accelerator_config: " if "AcceleratorConfig" in str(error) else ""
            raise UserError(f"{of}{' '.join(str(error).split())}") from error

    def _require_sensible(self) -> None:
        """UserError for a number that cannot be, by our names: transformers looks at few of them, and late."""
        for name in ("eval_steps", "save_steps", "logging_steps"):
            value = getattr(self, name)
            require(value is None or value > 0, f"--{name}", value, "above 0")
        epochs = self.num_train_epochs
        require(
            self.max_steps == -1 or self.max_steps >= 1, "--max_steps", self.max_steps, "at least 1 (-1: by epochs)"
        )
        require(
            self.max_steps > 0 or 0 < epochs <= MAX_EPOCHS, "--num_train_epochs", epochs, f"above 0, to {MAX_EPOCHS}"
        )
        if self.resume and self.resume_from_checkpoint is not None:
            raise UserError("--resume finds the checkpoint itself: leave --resume_from_checkpoint out, or --resume")
        if self.resume and self.overwrite_output_dir:
            raise UserError("--resume goes on with what --overwrite_output_dir would replace: give one of them")
        for name in ("seed", "data_seed"):
            value = getattr(self, name)
            require(value is None or 0 <= value < 2**32, f"--{name}", value, "in 0 .. 2^32 - 1")
        bounds = f"above 0, to {MAX_LEARNING_RATE:g}"
        require(0 < self.learning_rate <= MAX_LEARNING_RATE, "--learning_rate", self.learning_rate, bounds)
        for name in ("adam_beta1", "adam_beta2"):
            require(0 <= getattr(self, name) < 1, f"--{name}", getattr(self, name), "in [0, 1)")
        if self.dataloader_persistent_workers and not self.dataloader_num_workers:
            raise UserError("--dataloader_persistent_workers needs --dataloader_num_workers above 0; or leave it out")
        least = {"dataloader_num_workers": 0, "gradient_accumulation_steps": 1, "torch_empty_cache_steps": 1}
        least |= {"dataloader_prefetch_factor": 1, "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1}
        least |= {"gradient_cache_chunk": 2}
        least |= dict.fromkeys(("weight_decay", "max_grad_norm", "adam_epsilon", "eval_delay", "warmup_steps"), 0)
        least |= {"save_total_limit": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            require(value is None or value >= bound, f"--{name}", value, f"at least {bound}")

    def _require_known(self) -> None:
        """UserError for words that transformers would refuse without the name of the option, or stumble over."""
        if self.fp16 and self.bf16:
            raise UserError("--fp16 and --bf16: give one of them")
        save, measure = (str(getattr(way, "value", way)) for way in (self.save_strategy, self.eval_strategy))
        if self.load_best_model_at_end and save not in ("best", measure):
            raise UserError(
                f"--load_best_model_at_end: --save_strategy {save} and --eval_strategy {measure} must be the same, or "
                "--save_strategy best"
            )
        known = [optimizer.value for optimizer in OptimizerNames]
        if self.optim not in known:
            raise invalid_choice("--optim", self.optim, known)
        if self.optim_args and not re.fullmatch(r"[^=,]+=[^=,]+(,[^=,]+=[^=,]+)*", self.optim_args):
            raise UserError(f"--optim_args {self.optim_args}: must be NAME=VALUE, several with commas between them")
        for name in JSON_OPTIONS:
            if isinstance(getattr(self, name), str):
                _require_object(name, getattr(self, name))


def _require_object(name: str, given: str) -> None:
    """UserError unless an option is a JSON object, or a file with one."""
    file = Path(given)
    try:
        found = json.loads(read_text(file) if file.suffix == ".json" else given)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"--{name} {given}: must be a JSON object, or a .json file with one ({error})") from error
    require(isinstance(found, dict), f"--{name}", given, "a JSON object, or a .json file with one")
