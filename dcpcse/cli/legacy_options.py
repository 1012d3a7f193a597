"""Translate option names of the papers' public scripts to the names of this program."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dcpcse.encoders.pooling import BIAS_NAMES


@dataclass(frozen=True)
class LegacyNames:
    """The old option names of train.py or evaluation.py.

    Args:
        renamed: A dict from old names to new names. The values of these options stay the same.
        meaning: A dict from old switches to the arguments that replace them.
        gone: A dict from old options that are left out (with their values) to the reason.
        overruled: A dict from old switches to options that have no effect if the switch is given. These options are
            left out, with reasons as in `gone`.
    """

    renamed: Mapping[str, str]
    meaning: Mapping[str, tuple[str, ...]]
    gone: Mapping[str, str]
    overruled: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


TRAINING_NAMES = LegacyNames(
    renamed={
        "evaluation_strategy": "eval_strategy",
        "no_cuda": "use_cpu",
        "warmup_ratio": "warmup_steps",  # transformers 5 reads a value below 1 as a ratio
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
    },
    meaning={
        "mask_embedding_sentence": ("--method", "promptbert", "--final_period"),
        "mask_embedding_sentence_delta_no_delta_eval": ("--denoise_in_dev", "False"),
        "mask_embedding_sentence_autoprompt": ("--tuning", "shallow"),
        "mask_embedding_sentence_autoprompt_random_init": ("--prompt_init", "normal"),
    },
    gone={
        "local_rank": "the launcher gives each process its rank",
        "mask_embedding_sentence_num_masks": "the template determines the number of masks",
        "mask_embedding_sentence_avg": "the vectors of several masks are always averaged",
        "mask_embedding_sentence_bs": "--template contains the text before the sentence",
        "mask_embedding_sentence_es": "--template contains the text after the sentence",
    },
)
"""Old options of train.py in the public SimCSE, DCPCSE, PromCSE and PromptBERT code (transformers 4.2)."""

_IN_FOLDER = "a model folder records its own"
_MEASURES_MASK = "with --mask_embedding_sentence, [MASK] is the representation"
EVALUATION_NAMES = LegacyNames(
    renamed={"mask_embedding_sentence_template": "template", "mask_embedding_sentence_delta": "denoise"},
    meaning={
        "mask_embedding_sentence": ("--final_period",),
        "embedding_only": ("--pooler_type", "static"),
        "remove_continue_word": ("--remove", *BIAS_NAMES),
    },
    gone={
        "mask_embedding_sentence_use_pooler": _IN_FOLDER,
        "mask_embedding_sentence_use_org_pooler": _IN_FOLDER,
        "mask_embedding_sentence_autoprompt": _IN_FOLDER,
        "mask_embedding_sentence_org_mlp": _IN_FOLDER,
    },
    # The published command lines give --pooler avg, which the public code ignores together with the switch.
    overruled={"mask_embedding_sentence": dict.fromkeys(("pooler", "pooler_type"), _MEASURES_MASK)},
)
"""Old options of evaluation.py in the public PromptBERT code."""


def translate(argv: Sequence[str], notify: Callable[[str], None], names: LegacyNames) -> list[str]:
    """Return the arguments with old options replaced. `notify` is called with one line for each old option."""
    out: list[str] = []
    seen: set[str] = set()
    skipping = False
    option_names = {name for name, *_ in map(_split, argv)}
    gone = dict(names.gone)
    for switch in option_names & set(names.overruled):
        gone |= names.overruled[switch]
    for word in argv:
        name, equals, value = _split(word)
        if name is None:
            if not skipping:
                out.append(word)
            continue
        skipping = False
        seen.add(name)
        if name in gone:
            notify(f"--{name} is left out: {gone[name]}")
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
    """Return the options that the public PromptBERT code implies if a command line lacks some switches.

    Without these options, the defaults of the method promptbert would be used.
    """
    if "mask_embedding_sentence" not in seen:
        return []
    denoises = "mask_embedding_sentence_delta" in seen
    implied = [] if denoises else ["--denoise", "False", "--denoise_at_inference", "False"]
    if denoises and "mask_embedding_sentence_delta_no_delta_eval" not in seen:
        implied = ["--denoise_in_dev"]
    if implied:
        notify(f"added, as in the public PromptBERT code: {' '.join(implied)}")
    return implied


def _split(word: str) -> tuple[str | None, str, str]:
    """Split '--a-b=c' into ('a_b', '=', 'c'). The first part is None if the argument is not an option."""
    if not word.startswith("--") or len(word) == 2:
        return None, "", ""
    name, equals, value = word[2:].partition("=")
    return name.replace("-", "_"), equals, value
