"""Options of the papers' scripts under the names that their transformers had: mapped, or refused by name."""

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

REFUSED = {
    "model_type": "it never had an effect: the architecture follows from the checkpoint",
    "dataset_name": "it never had an effect: give --train_file",
    "dataset_config_name": "it never had an effect: give --train_file",
    "validation_split_percentage": "it never had an effect: the dev sets are --eval_tasks",
    "group_by_length": "it would decide which sentences are each other's negatives; leave it out",
    "sharded_ddp": "transformers 5 has no fairscale; use --fsdp",
    "eval_transfer": "the transfer tasks are not part of this version; the STS dev sets are measured",
}
"""Options that cannot do what their user expects."""


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
            raise UserError(f"--{name}: {REFUSED[name]}")
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
