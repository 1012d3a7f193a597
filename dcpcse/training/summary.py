"""What is about to be trained, in numbers and in a few lines.

A trainer here is a `ContrastiveTrainer`, which is built above this module.
"""

import math

import torch
from torch import nn
from transformers import Trainer

from dcpcse.encoders.encoder import Encoder
from dcpcse.utils.distributed import step_sizes, world_size


def summary(trainer: Trainer) -> str:
    """What is about to be trained, in a few lines: parameters, negatives, steps."""
    model, args = trainer.step_module.model, trainer.args
    encoder, steps = model.encoder, trainer.step_module
    prompts = sum(count_parameters(prompt) for prompt in (encoder.prompt, encoder.shallow) if prompt is not None)
    backbone, trained = count_parameters(encoder.backbone), count_parameters(steps, trained=True)
    # A share says something of a frozen encoder only: of one that is trained itself more than all is trained.
    share = "" if encoder.tuned else f" ({trained / backbone:.3%})"
    of_prompts = f"{prompts:,} of the prompts ({prompts / backbone:.3%}), " if prompts else ""
    return "\n".join(
        [
            f"method {model.method} on {model.source.name_or_path} ({model.source.model_type})",
            f"parameters: {backbone:,} of the encoder, {_kept(encoder)}; trained: "
            f"{of_prompts}{trained:,} with heads{share}; {count_parameters(steps):,} in all",
            f"text from position {encoder.position_offset} on; room for {encoder.max_tokens} tokens",
            _batch(trainer),
            f"batches {_batches(encoder)}",
            f"optimiser steps: {planned_steps(trainer):,}; learning rate {args.learning_rate:g}; seed {args.seed}",
        ]
    )


def _batch(trainer: Trainer) -> str:
    processes, batch = world_size(), trainer.args.per_device_train_batch_size * world_size()
    negatives = trainer.method.negatives(batch)
    if negatives is None:
        return f"batch: {batch} over {processes} process(es); its examples are not told apart"
    hard = ", with hard negatives" if "negative" in trainer.step_module.view_names else ""
    return f"negatives per anchor: {negatives} (batch {batch} over {processes} process(es){hard})"


def _kept(encoder: Encoder) -> str:
    if encoder.tuned:
        return "trained"
    dtype = encoder.backbone.dtype
    return "frozen" if dtype == torch.float32 else f"frozen, in {str(dtype).removeprefix('torch.')}"


def _batches(encoder: Encoder) -> str:
    if encoder.packed:
        return "packed: no pads are computed"
    return "padded" if encoder.packable else f"padded: {encoder.backbone.config.model_type} cannot take packed ones"


def count_parameters(module: nn.Module, *, trained: bool = False) -> int:
    """Numbers in the parameters of a module, shared ones once; only those that get a gradient if `trained`."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)


def planned_steps(trainer: Trainer) -> int:
    """Optimiser steps of the whole run."""
    args = trainer.args
    if args.max_steps > 0:
        return args.max_steps
    rows, batch = len(trainer.train_dataset), args.per_device_train_batch_size
    whole = len(step_sizes(rows, batch, args.world_size, args.dataloader_drop_last))
    return math.ceil(math.ceil(whole / args.gradient_accumulation_steps) * args.num_train_epochs)
