"""Write the summary that train.py prints before training: parameters, negatives and steps.

The argument `trainer` is always a `dcpcse.training.trainer.Trainer`.
"""

import math

import torch
from torch import nn
from transformers import Trainer

from dcpcse.data.columns import negatives_in
from dcpcse.data.examples import ClassPairs, EveryPositive
from dcpcse.encoders.encoder import Encoder
from dcpcse.losses import PerRowLoss
from dcpcse.losses.guide import FALSE_NEGATIVES
from dcpcse.training.validate_setup import batch_sizes
from dcpcse.utils.distributed import world_size
from dcpcse.utils.errors import plural, spell


def summary(trainer: Trainer) -> str:
    """Return a summary of the run in a few lines: parameters, negatives, steps."""
    model, args = trainer.step_module.model, trainer.args
    encoder, steps = model.encoder, trainer.step_module
    sizes = {part: sum(map(torch.numel, tensors.values())) for part, tensors in encoder.parts().items()}
    prompts, adapter = sizes.get("prompt", 0) + sizes.get("shallow", 0), sizes.get("lora", 0)
    backbone, trained = count_parameters(encoder.backbone) - adapter, count_parameters(steps, trained=True)
    # With a trained encoder, the share would be above 100 %.
    share = "" if encoder.tuned else f" ({trained / backbone:.3%})"
    guides = count_parameters(steps.guides)
    of_guides = f", and {guides:,} of the {' and '.join(steps.guides).replace('_', ' ')}" if guides else ""
    added = {"prompts": prompts, "LoRA adapter": adapter}
    of_added = "".join(f"{name} {number:,} ({number / backbone:.3%}), " for name, number in added.items() if number)
    return "\n".join(
        [
            f"method {model.method} on {model.source.name_or_path} ({model.source.model_type})",
            f"parameters: encoder {backbone:,}, {_state(encoder)}; trained: "
            f"{of_added}{trained:,} with heads{share}; total {count_parameters(steps) - guides:,}{of_guides}",
            f"text starts at position {encoder.position_offset}; the encoder takes {encoder.max_tokens} tokens",
            _batch(trainer),
            *_sizes(trainer),
            f"batches {_batches(encoder)}",
            f"optimiser steps: {planned_steps(trainer):,}; learning rate {args.learning_rate:g}; seed {args.seed}",
        ]
    )


def _batch(trainer: Trainer) -> str:
    processes, batch = world_size(), max(batch_sizes(trainer.train_dataset, trainer.args))
    negatives = trainer.method.negatives(batch)
    if negatives is None:
        compares = any(not isinstance(loss_fn, PerRowLoss) for loss_fn in trainer.method.losses)
        how = "all its examples are compared" if compares else "the loss does not compare its examples"
        return f"batch: {batch} over {plural(processes, 'process')}; {how}"
    hard = ", with hard negatives" if negatives_in(trainer.step_module.view_names) else ""
    dataset = trainer.train_dataset
    left_out = ", rows of the anchor's class left out" if isinstance(dataset.parts[0], ClassPairs) else ""
    if isinstance(dataset.parts[0], EveryPositive):
        left_out = ", other positives of the anchor left out"
    if (numbers := dataset.num_negatives) is not None:
        left_out += f", {numbers.min()} to {numbers.max()} in a row"
    if FALSE_NEGATIVES in trainer.method.guides:
        left_out += ", candidates that the guide finds nearer left out"
    return (
        f"negatives per anchor: {'up to ' if left_out else ''}{negatives} (batch {batch} over "
        f"{plural(processes, 'process')}{hard}{left_out})"
    )


def _sizes(trainer: Trainer) -> list[str]:
    widths = next((loss_fn.widths for loss_fn in trainer.method.losses if loss_fn.widths), ())
    sizes = ", ".join(str(width) for width, _ in reversed(widths))
    return [f"embeddings are trained at the sizes {sizes} ({spell('matryoshka_dims')})"] if sizes else []


def _state(encoder: Encoder) -> str:
    if encoder.tuned:
        return "trained"
    dtype = encoder.backbone.dtype
    return "frozen" if dtype == torch.float32 else f"frozen, in {str(dtype).removeprefix('torch.')}"


def _batches(encoder: Encoder) -> str:
    if encoder.packed:
        return "packed, without padding tokens"
    return "padded" if encoder.packable else f"padded: {encoder.backbone.config.model_type} does not support packing"


def count_parameters(module: nn.Module, *, trained: bool = False) -> int:
    """Return the number of parameters of a module. Shared parameters are counted once.

    Args:
        module: The module.
        trained: Count only parameters that require a gradient.
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)


def planned_steps(trainer: Trainer) -> int:
    """Return the number of optimiser steps of the run."""
    args = trainer.args
    if args.max_steps > 0:
        return args.max_steps
    whole = len(batch_sizes(trainer.train_dataset, args))
    return math.ceil(math.ceil(whole / args.gradient_accumulation_steps) * args.num_train_epochs)
