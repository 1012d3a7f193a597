"""Options under the names that the papers' transformers and code had, and such as cannot work: mapped or refused."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dcpcse.encoders.pooling import BIAS_NAMES
from dcpcse.utils.errors import UserError

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "warmup_ratio": "warmup_steps",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "pooler": "pooler_type",
    "preprocessing_num_workers": "dataloader_num_workers",
    "mask_embedding_sentence_template": "template",
    "mask_embedding_sentence_different_template": "second_template",
    "mask_embedding_sentence_delta": "denoise",
    "mask_embedding_sentence_delta_freeze": "denoise_freeze",
    "mask_embedding_sentence_delta_no_position": "denoise_unshifted",
    "mask_embedding_sentence_org_mlp": "org_mlp",
    "mask_embedding_sentence_autoprompt_continue_training": "init_from",
    "mask_embedding_sentence_autoprompt_freeze_prompt": "freeze_prompts",
}
"""Old name → new name; the value stays as it is (a warm-up below 1 is a ratio in transformers 5)."""

MEANING = {
    "mask_embedding_sentence": ("--method", "promptbert", "--final_period"),
    "mask_embedding_sentence_delta_no_delta_eval": ("--denoise_in_dev", "False"),
    "mask_embedding_sentence_autoprompt": ("--tuning", "shallow"),
    "mask_embedding_sentence_autoprompt_random_init": ("--prompt_init", "normal"),
}
"""Switches of the public PromptBERT code → what they mean here."""

GONE = {
    "local_rank": "the launcher tells each process its rank",
    "save_safetensors": "weights are always written as safetensors",
    "mask_embedding_sentence_num_masks": "the template says how many masks it has",
    "mask_embedding_sentence_avg": "the vectors of several masks are always averaged",
    "mask_embedding_sentence_bs": "--template says what stands before the sentence",
    "mask_embedding_sentence_es": "--template says what stands after the sentence",
}
"""Options that nothing depends on any more: left out, with one line."""

NEVER = "it never had an effect"
NOT_READ = "nothing here reads it"
UNTESTED = "it is not tested with frozen encoders and prompts"
DEAD = "the public PromptBERT code declares it and never looks at it"
UNPUBLISHED = "no published figure hangs on it, and it is not offered here"
NO_HUB = "nothing but the finished folder is pushed to the hub (--push_to_hub)"

_DEAD_SUFFIXES = ("infomax", "with_mlm", "delta_cross_stream", "delta_cotrain", "add_period", "add_template_in_batch")

REFUSED = {
    "model_type": f"{NEVER}: the architecture follows from the checkpoint",
    "dataset_name": f"{NEVER}: give --train_file",
    "dataset_config_name": f"{NEVER}: give --train_file",
    "validation_split_percentage": f"{NEVER}: the dev sets are --eval_tasks",
    "group_by_length": "it would decide which sentences are each other's negatives",
    "length_column_name": "it would decide which sentences are each other's negatives",
    "auto_find_batch_size": "it would change the number of negatives in the middle of a run",
    "label_smoothing_factor": "contrastive targets are not smoothed",
    "sharded_ddp": "transformers 5 has no fairscale",
    **dict.fromkeys(("deepspeed", "parallelism_config"), UNTESTED),
    **dict.fromkeys(("fsdp", "fsdp_config"), "give --shard_encoder, which splits the frozen encoder over processes"),
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config", "neftune_noise_alpha"), UNTESTED),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), "scores are measured in float32"),
    "hub_token": "others on the machine would read it; log in with hf auth login, or set HF_TOKEN",
    **dict.fromkeys(("hub_strategy", "hub_always_push"), NO_HUB),
    **dict.fromkeys(("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"), NO_HUB),
    **dict.fromkeys(("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object"), NOT_READ),
    **dict.fromkeys(("eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics"), NOT_READ),
    **dict.fromkeys(("label_names", "remove_unused_columns", "use_cache", "do_predict"), NOT_READ),
    **dict.fromkeys(("two_bert", "two_bert_one_freeze", "freeze_layers", "freeze_lm_head", "freeze_embedding"), DEAD),
    **dict.fromkeys((f"mask_embedding_sentence_{name}" for name in _DEAD_SUFFIXES), DEAD),
    **dict.fromkeys(("roberta_with_special_token", "roberta_auto_weight_special_token"), DEAD),
    **dict.fromkeys(("roberta_special_token_as_cls", "remove_last_layer", "add_pseudo_instances"), DEAD),
    **dict.fromkeys(("add_pseudo_instances_from_other_model", "only_negative_loss", "untie_weights_roberta"), DEAD),
    **dict.fromkeys(("label_smoothing", "token_classification", "add_rdrop"), DEAD),
    **dict.fromkeys(("dot_sim", "norm_instead_temp", "only_embedding_training"), UNPUBLISHED),
    "mask_embedding_sentence_autoprompt_continue_training_as_positive": UNPUBLISHED,
    "mask_embedding_sentence_do_oxford": "put the two columns into a file of their own for --train_file",
    **dict.fromkeys(("include_num_input_tokens_seen", "average_tokens_across_devices"), NOT_READ),
}
"""Options that cannot do what their user expects, with the reason."""


@dataclass(frozen=True)
class LegacyNames:
    """Old names of one tool: renamed (the value stays), standing for other words, left out, refused."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    meaning: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


TRAINING_NAMES = LegacyNames(RENAMED, MEANING, GONE, REFUSED)

_FOLDER_KNOWS = "an output folder knows its own"
EVALUATION_NAMES = LegacyNames(
    renamed={"mask_embedding_sentence_template": "template", "mask_embedding_sentence_delta": "denoise"},
    meaning={
        "mask_embedding_sentence": ("--final_period",),
        "embedding_only": ("--pooler_type", "static"),
        "remove_continue_word": ("--remove", *BIAS_NAMES),
    },
    gone={
        "mask_embedding_sentence_use_pooler": _FOLDER_KNOWS,
        "mask_embedding_sentence_use_org_pooler": _FOLDER_KNOWS,
        "mask_embedding_sentence_autoprompt": _FOLDER_KNOWS,
        "mask_embedding_sentence_org_mlp": _FOLDER_KNOWS,
    },
    refused={
        "mlm_head_predict": f"{DEAD}; --pooler_type top_k is the representation that it speaks of",
        "calc_anisotropy": "it is measured by --task_set geometry",
        "tokenizer_name": "the encoder's own tokenizer is taken",
    },
)
"""Options of evaluation.py in the public PromptBERT code."""


def translate(argv: Sequence[str], notify: Callable[[str], None], names: LegacyNames = TRAINING_NAMES) -> list[str]:
    """Rewrite the old options of a command line; `say` gets one line for each. Raises UserError for refused ones."""
    out: list[str] = []
    seen: set[str] = set()
    skipping = False
    for word in argv:
        name, equals, value = _split(word)
        if name is None:
            if not skipping:
                out.append(word)
            continue
        skipping = False
        seen.add(name)
        if name in names.refused:
            raise UserError(f"--{name}: {names.refused[name]}; leave it out")
        if name in names.gone:
            notify(f"--{name} is left out: {names.gone[name]}")
            skipping = not equals
        elif name in names.renamed:
            notify(f"--{name} is now --{names.renamed[name]}")
            out.append(f"--{names.renamed[name]}{equals}{value}")
        elif name in names.meaning:
            notify(f"--{name} means {' '.join(names.meaning[name])}")
            out += names.meaning[name]
            skipping = not equals
        else:
            out.append(word)
    return out + (_promptbert(seen, notify) if names is TRAINING_NAMES else [])


def _promptbert(seen: Collection[str], notify: Callable[[str], None]) -> list[str]:
    """What the public PromptBERT code does where its switches are left out, and the method here would not."""
    if "mask_embedding_sentence" not in seen:
        return []
    denoises = "mask_embedding_sentence_delta" in seen
    implied = [] if denoises else ["--denoise", "False", "--denoise_at_inference", "False"]
    if denoises and "mask_embedding_sentence_delta_no_delta_eval" not in seen:
        implied = ["--denoise_in_dev"]
    if implied:
        notify(f"as in the public PromptBERT code: {' '.join(implied)}")
    return implied


_CONPVP = {"denoise_by": "attention", "prototype_templates": "code", "prompt_init": "uniform"}
_DIFFCSE = {
    **{"generation": "argmax", "generate_at": "all", "generator_train_mode": True, "crtd_reduction": "mean_all"},
    **{"lambda_weight": 0.1, "masking_ratio": 0.15, "batchnorm": False, "mlp_only_train": False},
}
TELLING_OPTIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "prompt_len": ("conpvp", _CONPVP),
    "generator_name": ("diffcse", _DIFFCSE),
    "lambda_weight": ("diffcse", _DIFFCSE),
}
"""Options that only one public code has, which names its method in no other way: the method, and that code's ways."""


def implied_method(given: Mapping[str, Any], notify: Callable[[str], None]) -> dict[str, Any]:
    """Method and ways of a public code that is known by an option of its own, where no method is named.

    given: all options of command line, file and preset together.
    """
    telling = next((name for name in TELLING_OPTIONS if given.get(name) is not None), None)
    if telling is None or "method" in given:
        return {}
    method, ways = TELLING_OPTIONS[telling]
    implied = {"method": method, **{name: value for name, value in ways.items() if name not in given}}
    words = " ".join(f"--{name} {value}" for name, value in implied.items())
    notify(f"--{telling} is of the public {method} code: {words}")
    return implied


def _split(word: str) -> tuple[str | None, str, str]:
    """'--a-b=c' → ('a_b', '=', 'c'); (None, …) for a word that is no option."""
    if not word.startswith("--") or len(word) == 2:
        return None, "", ""
    name, equals, value = word[2:].partition("=")
    return name.replace("-", "_"), equals, value
