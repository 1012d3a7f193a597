"""Options under the names that the papers' transformers had, and options that cannot work here: mapped or refused."""

from collections.abc import Callable, Sequence

from .errors import UserError

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "warmup_ratio": "warmup_steps",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "pooler": "pooler_type",
    "preprocessing_num_workers": "dataloader_num_workers",
}
"""Old name → new name; the value stays as it is (a warm-up below 1 is a ratio in transformers 5)."""

GONE = {
    "local_rank": "the launcher tells each process its rank",
    "save_safetensors": "weights are always written as safetensors",
}
"""Options that nothing depends on any more: left out, with one line."""

NEVER = "it never had an effect"
NOT_READ = "nothing here reads it"
UNTESTED = "it is not tested with frozen encoders and prompts"
NO_HUB = "folders are not pushed to the hub by this version"

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
    **dict.fromkeys(("deepspeed", "fsdp", "fsdp_config", "parallelism_config"), UNTESTED),
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config", "neftune_noise_alpha"), UNTESTED),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), "scores are measured in float32"),
    **dict.fromkeys(("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id"), NO_HUB),
    **dict.fromkeys(("hub_strategy", "hub_always_push", "hub_revision"), NO_HUB),
    **dict.fromkeys(("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"), NO_HUB),
    **dict.fromkeys(("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object"), NOT_READ),
    **dict.fromkeys(("eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics"), NOT_READ),
    **dict.fromkeys(("label_names", "remove_unused_columns", "use_cache", "do_predict"), NOT_READ),
    **dict.fromkeys(("include_num_input_tokens_seen", "average_tokens_across_devices"), NOT_READ),
}
"""Options that cannot do what their user expects, with the reason."""


def translate(argv: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Rewrite the old options of a command line; `say` gets one line for each. Raises UserError for `REFUSED`."""
    out: list[str] = []
    skipping = False
    for word in argv:
        name, equals, value = _split(word)
        if name is None:
            if not skipping:
                out.append(word)
            continue
        skipping = False
        if name in REFUSED:
            raise UserError(f"--{name}: {REFUSED[name]}; leave it out")
        if name in GONE:
            say(f"--{name} is left out: {GONE[name]}")
            skipping = not equals
        elif name in RENAMED:
            say(f"--{name} is now --{RENAMED[name]}")
            out.append(f"--{RENAMED[name]}{equals}{value}")
        else:
            out.append(word)
    return out


def _split(word: str) -> tuple[str | None, str, str]:
    """'--a-b=c' → ('a_b', '=', 'c'); (None, …) for a word that is no option."""
    if not word.startswith("--") or len(word) == 2:
        return None, "", ""
    name, equals, value = word[2:].partition("=")
    return name.replace("-", "_"), equals, value
