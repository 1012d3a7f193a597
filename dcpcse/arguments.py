"""Options of training, as dataclasses with their checks. Nothing else happens here.

The names are those of the public SimCSE and DCPCSE scripts; `dcpcse.legacy` maps the older ones.
"""

import difflib
import json
import math
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from .denoising import WAYS
from .errors import UserError
from .options import flag, option, require, require_choices, require_count
from .parsing import read_text
from .pooling import POOLERS, describe_poolers
from .presets import names as preset_names
from .templates import Template

TUNINGS = ("full", "deep", "shallow")
PROMPT_INITS = ("template", "normal", "uniform")
GRADIENTS = ("exact", "published")
ENCODER_DTYPES = ("float32", "bfloat16")

OBJECTS = ("accelerator_config", "lr_scheduler_kwargs", "gradient_checkpointing_kwargs")
"""Options that take a JSON object, or a file with one."""


@dataclass
class ModelArguments:
    """The encoder, the method and its objectives, as far as several methods look at them.

    None is filled in by the method (`dcpcse.methods.settle`). Options of its own stand in a method's file;
    `dcpcse.methods.model_arguments` gives an object with those of all methods.
    """

    _argument_group_name = "encoder, method and objectives"

    model_name_or_path: str | None = option(None, "Encoder: a Hugging Face folder or hub id (required).")
    preset: str | None = option(
        None,
        "A published setting, such as dcpcse/unsup-bert-base; the other options override it. "
        f"One of {', '.join(preset_names())}.",
    )
    method: str = option("dcpcse", "What is trained and by which loss; a file in dcpcse/methods/, or of --plugin.")
    plugin: list[str] = option(
        [],
        "Methods from outside: modules, or .py files, that register some. They are run as programs are.",
    )
    config_name: str | None = option(None, "Another place for the encoder's configuration.")
    tokenizer_name: str | None = option(None, "Another place for the tokenizer.")
    cache_dir: str | None = option(None, "Folder for downloads and for the training data as read.")
    use_fast_tokenizer: bool = option(True, "Kept for old scripts; transformers 5 has fast tokenizers only.")
    model_revision: str = option("main", "Branch, tag or commit of the encoder on the hub.")
    use_auth_token: bool = option(False, "Use the stored hub token, for private encoders.")
    tuning: str | None = option(
        None,
        "What is trained: full (the encoder), deep (prompts: keys and values in every layer of the frozen encoder) or "
        "shallow (input vectors in the places of a template's tokens). Default: the method's.",
        choices=list(TUNINGS),
    )
    encoder_dtype: str = option(
        "float32",
        "Type of the frozen encoder's weights: float32, or bfloat16 in half the memory. Prompts, heads, gradients and "
        "losses stay in float32; the folder remembers it.",
        choices=list(ENCODER_DTYPES),
    )
    encoder_dropout: float | None = option(
        None, "Dropout inside the encoder in training, of hidden states and attention. Default: its configuration's."
    )
    init_from: str | None = option(
        None, "Begin with the trained weights of this output folder, of a model built alike, instead of new ones."
    )
    temp: float = option(0.05, "Temperature of the contrastive loss.")
    pooler_type: str | None = option(
        None, f"Sentence representation. {describe_poolers()}. Default: the method's.", choices=list(POOLERS)
    )
    hard_negative_weight: float = option(
        0.0, "LOGARITHM of the weight of an anchor's own hard negative (third column); 0 weighs it as 1."
    )
    gather_gradient: str = option(
        "exact",
        "With several processes, the gradient of the contrastive loss: exact, that of one process with the joined "
        "batch; or published, that of the public SimCSE and DCPCSE code, which is exact divided by the number of "
        "processes.",
        choices=list(GRADIENTS),
    )
    mlp_only_train: bool | None = flag(
        "Use the MLP of poolers cls and mask in training only, the vector before it afterwards (unsupervised recipe)."
    )
    org_mlp: bool | None = flag(
        "Instead of the MLP: the transform of the masked-LM head, on the [MASK] vector and on the template's, before "
        "one is subtracted from the other (PromptBERT's supervised BERT)."
    )
    template: str | None = option(
        None,
        "Put every sentence into a template, 'This sentence of \"{sentence}\" means [MASK] .' or in the grammar of "
        "the public PromptBERT code; [PROMPT] is a slot for a continuous prompt. Default: the method's.",
    )
    second_template: str | None = option(
        None, "Template of the positive (and the hard negative), if it is another one than the anchor's."
    )
    final_period: bool | None = flag(
        "After training put a full stop to sentences that end in none of . ? \" ' (PromptBERT's evaluation)."
    )
    denoise: bool | None = flag("In training take the template's own [MASK] vector away.")
    denoise_at_inference: bool | None = flag("Take it away after training, too; the folder remembers.")
    denoise_in_dev: bool | None = flag(
        "Take it away when dev sets are measured in training. Default: as after training; PromptBERT's code: always."
    )
    denoise_by: str | None = option(
        None,
        "template (default): by the template alone, at the positions of the full input; attention: by the full input "
        "with attention to the template only (ConPVP's code).",
        choices=list(WAYS),
    )
    denoise_unshifted: bool | None = flag("Encode the template alone at positions without a gap for the sentence.")
    denoise_freeze: bool | None = flag("No gradient through what is taken away.")
    batchnorm: bool | None = flag("Instead of the MLP: two layers with batch normalisation (D2CSE, DiffCSE).")
    cls_prompt: bool | None = flag(
        "Train the vector in the place of [CLS]'s word embedding as well (D2CSE; with --tuning deep)."
    )
    prompt_init: str | None = option(
        None,
        "Where input vectors begin: template (the embeddings of the tokens whose places they take; default there), "
        "normal (N(0, initializer_range); default of [PROMPT] slots) or uniform (0 to 1, ConPVP's code).",
        choices=list(PROMPT_INITS),
    )
    freeze_prompts: bool | None = flag("Do not train the input vectors (with --init_from).")
    pre_seq_len: int | None = option(
        None, "Prompt length: trainable keys and values in every layer. Default of --tuning deep: 10."
    )
    prefix_projection: bool | None = flag("Compute the prompts by a two-layer MLP instead of training them.")
    prefix_hidden_size: int | None = option(None, "Inner size of that MLP. Default: 512.")
    prompt_dropout: float | None = option(
        None, "Dropout on the prompts in training, per sentence copy; default: the encoder's hidden dropout."
    )
    position_offset: int | None = option(
        None,
        "Position of the first text token; default: the prompt length, as published; 0 leaves the text where the "
        "encoder was pretrained to see it. No effect on rotary encoders.",
    )
    do_mlm: bool = option(False, "Add the masked language modelling loss.")
    mlm_weight: float = option(0.1, "Weight of the MLM loss at the first step.")
    mlm_probability: float = option(0.15, "Share of the tokens that the MLM loss masks.")
    mlm_decay_rate: float = option(0.95, "The MLM weight falls by this factor every --mlm_decay_steps steps.")
    mlm_decay_steps: float = option(100.0, "Steps in which the MLM weight falls by --mlm_decay_rate.")
    lm_head: str = option(
        "checkpoint",
        "Where the LM head comes from: 'checkpoint' (the encoder's own), 'new' (drawn, trained), a path.",
    )
    train_lm_head: bool = option(
        False,
        "Train an untied copy of the LM head, as the public code does; by default it is frozen, as in the paper.",
    )

    def __post_init__(self) -> None:
        require(self.temp > 0 and math.isfinite(self.temp), "--temp", self.temp, "a positive number")
        require_choices(self)
        for name in ("pre_seq_len", "prefix_hidden_size"):
            require_count(name, getattr(self, name))
        for text in (self.template, self.second_template):
            if text is not None:
                Template.parse(text)
        for name in ("encoder_dropout", "prompt_dropout"):
            require(_is_share(getattr(self, name)), f"--{name}", getattr(self, name), "in [0, 1)")
        require((self.position_offset or 0) >= 0, "--position_offset", self.position_offset, "0 or more")
        require(0 < self.mlm_probability < 1, "--mlm_probability", self.mlm_probability, "between 0 and 1")
        require(self.mlm_weight >= 0, "--mlm_weight", self.mlm_weight, "0 or more")
        require(0 < self.mlm_decay_rate <= 1, "--mlm_decay_rate", self.mlm_decay_rate, "in (0, 1]")
        require(self.mlm_decay_steps > 0, "--mlm_decay_steps", self.mlm_decay_steps, "above 0")
        require(
            math.isfinite(self.hard_negative_weight),
            "--hard_negative_weight",
            self.hard_negative_weight,
            "finite",
        )
        if not self.use_fast_tokenizer:
            raise UserError("--use_fast_tokenizer False: transformers 5 has fast tokenizers only; leave it out")

    @property
    def trains_lm_head(self) -> bool:
        """A new head is of no use untrained."""
        return self.train_lm_head or self.lm_head == "new"

    def record(self) -> dict[str, Any]:
        """The options that differ from their defaults and say what was trained, for the model folder."""
        # Where things lay on the training machine says nothing about the model.
        places = {
            "preset",
            "plugin",
            "cache_dir",
            "model_name_or_path",
            "config_name",
            "tokenizer_name",
            "use_auth_token",
        }
        defaults = {f.name: f.default for f in fields(self)}
        return {k: v for k, v in asdict(self).items() if k not in places and v is not False and v != defaults[k]}


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


MOST_EPOCHS, MOST_LEARNING_RATE = 1_000_000, 1e38
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
            self.max_steps > 0 or 0 < epochs <= MOST_EPOCHS, "--num_train_epochs", epochs, f"above 0, to {MOST_EPOCHS}"
        )
        if self.resume and self.resume_from_checkpoint is not None:
            raise UserError("--resume finds the checkpoint itself: leave --resume_from_checkpoint out, or --resume")
        if self.resume and self.overwrite_output_dir:
            raise UserError("--resume goes on with what --overwrite_output_dir would replace: give one of them")
        for name in ("seed", "data_seed"):
            value = getattr(self, name)
            require(value is None or 0 <= value < 2**32, f"--{name}", value, "in 0 .. 2^32 - 1")
        bounds = f"above 0, to {MOST_LEARNING_RATE:g}"
        require(0 < self.learning_rate <= MOST_LEARNING_RATE, "--learning_rate", self.learning_rate, bounds)
        for name in ("adam_beta1", "adam_beta2"):
            require(0 <= getattr(self, name) < 1, f"--{name}", getattr(self, name), "in [0, 1)")
        if self.dataloader_persistent_workers and not self.dataloader_num_workers:
            raise UserError("--dataloader_persistent_workers needs --dataloader_num_workers above 0; or leave it out")
        least = {"dataloader_num_workers": 0, "gradient_accumulation_steps": 1, "torch_empty_cache_steps": 1}
        least |= {"dataloader_prefetch_factor": 1}
        least |= {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "gradient_cache_chunk": 2}
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
            near = difflib.get_close_matches(self.optim, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"--optim {self.optim}: {hint}choose one of {', '.join(known)}")
        if self.optim_args and not re.fullmatch(r"[^=,]+=[^=,]+(,[^=,]+=[^=,]+)*", self.optim_args):
            raise UserError(f"--optim_args {self.optim_args}: must be NAME=VALUE, several with commas between them")
        for name in OBJECTS:
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


def _is_share(value: float | None) -> bool:
    return value is None or 0 <= value < 1
