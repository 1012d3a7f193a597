"""Contrastive batches of any size in the memory of a chunk, with the exact gradient (GradCache; Gao et al. 2021).

All chunks are encoded without a gradient first; losses that see all rows give the gradient of the embeddings; each
chunk is then encoded again, with the same dropout, and takes its part of that gradient back. Objectives that are means
over rows run with the second pass. What needs all rows in the model at once, batch normalisation, cannot be cached.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from dcpcse.encoders.heads import BatchNormMLP
from dcpcse.encoders.packing import Packing
from dcpcse.losses import EncodedBatch, Loss, PerRowLoss
from dcpcse.utils.devices import release_memory
from dcpcse.utils.distributed import all_reduce_max, mean_count
from dcpcse.utils.errors import UserError

Batch = Mapping[str, Any]
Terms = dict[str, Tensor]

CACHED = "cached"
"""The term of a chunk whose gradient is that of all losses on the whole batch's embeddings."""


class Steps(Protocol):
    """The module that trains: views to embeddings, and the losses."""

    losses: Mapping[str, Loss]
    view_names: list[str]

    def encode(self, **batch: Any) -> EncodedBatch:
        """The step of a batch, before any loss."""
        ...


@dataclass(frozen=True)
class Replay:
    """What the second pass over a chunk needs of the first one.

    gradient (B, V, H): of the weighted loss of the whole batch, by the chunk's embeddings; None where no loss
    sees all rows. For each loss that is a mean over rows, drawn: what it drew there, so that no generator runs
    twice; counts: the number of its things in the whole batch, of a process on average.
    """

    gradient: Tensor | None
    sampled: Mapping[str, Any]
    counts: Mapping[str, Tensor]

    def terms(self, step: EncodedBatch, losses: Mapping[str, Loss]) -> Terms:
        """The chunk's part of each term, and `CACHED` where there is a gradient."""
        terms = {} if self.gradient is None else {CACHED: (_stacked(step) * self.gradient).sum()}
        for name, loss_fn in per_row_losses(losses).items():
            share = loss_fn.num_items(step, self.sampled[name]) / self.counts[name]
            terms[name] = loss_fn.mean(step, self.sampled[name]) * share
        return terms


def per_row_losses(losses: Mapping[str, Loss]) -> dict[str, PerRowLoss]:
    """The losses that a batch can be taken apart for."""
    return {name: loss_fn for name, loss_fn in losses.items() if isinstance(loss_fn, PerRowLoss)}


def joint(losses: Mapping[str, Loss]) -> dict[str, Loss]:
    """Those that see all rows, of which they have embeddings alone, and what `precompute` returned."""
    return {name: loss_fn for name, loss_fn in losses.items() if not isinstance(loss_fn, PerRowLoss)}


def require_repeatable(run: TrainingArguments) -> None:
    """UserError for options of a run that passes over chunks cannot keep."""
    if run.torch_compile:
        raise UserError(
            "--gradient_cache_chunk: compiled modules draw dropout from random numbers of their own, which the second "
            "pass over a chunk cannot repeat; leave it or --torch_compile out"
        )
    if run.torch_empty_cache_steps or "lomo" in run.optim:
        option = "--torch_empty_cache_steps" if run.torch_empty_cache_steps else f"--optim {run.optim}"
        raise UserError(f"--gradient_cache_chunk does not go together with {option}; leave one of them out")


def require_cachable(head: nn.Module | None) -> None:
    """UserError for a head that has to see the whole batch."""
    if isinstance(head, BatchNormMLP):
        raise UserError(
            "--gradient_cache_chunk: batch normalisation takes its statistics from the whole batch, which is never in "
            "memory at once; leave it out, or give --batchnorm False"
        )


def run_in_chunks(
    steps: Steps,
    batch: Batch,
    chunk: int,
    weights: Mapping[str, float],
    run: Callable[[Batch, Replay, bool], Terms],
    precision: Callable[[], AbstractContextManager] = contextlib.nullcontext,
) -> Terms:
    """All gradients of a batch, chunk of examples by chunk; gives the whole batch's terms, without a gradient.

    weights: of the terms in the loss. run: the second pass over a chunk, forward and backward of the sum of `CACHED`
    and the weighted terms; told whether it is the last one. precision: of the passes (autocast). Every process has
    equally many chunks.
    """
    chunks = list(_split(batch, -(-all_reduce_max(len(batch["input_ids"])) // chunk)))
    seeds = torch.randint(2**62, (len(chunks),)).tolist()
    with precision():
        looks = []
        for part, seed in zip(chunks, seeds, strict=True):
            looks.append(_look(steps, part, seed))
            release_memory()  # after every chunk: memory is what this is for
    terms, gradients = _joint_terms(steps, batch, looks, weights, precision)
    counts = {name: mean_count(sum(look.counts[name] for look in looks)) for name in per_row_losses(steps.losses)}
    total: Terms = {name: term.detach() for name, term in terms.items()}
    for i, (part, seed) in enumerate(zip(chunks, seeds, strict=True)):
        with _seeded(seed, part["input_ids"].device):
            parts = run(part, Replay(gradients[i], looks[i].sampled, counts), i == len(chunks) - 1)
        release_memory()
        for name in counts:
            total[name] = total.get(name, 0) + parts[name].detach()
    return {name: total[name] for name in steps.losses}


class _Look(NamedTuple):
    """The first pass over a chunk: embeddings (B, V, H), and of losses by name what they took of it.

    looked: of those that see all rows; drawn, and how many things they have: of those that are means over rows.
    """

    embeddings: Tensor
    precomputed: Mapping[str, Mapping[str, Tensor]]
    sampled: Mapping[str, Any]
    counts: Mapping[str, Tensor]


@torch.no_grad()
def _look(steps: Steps, chunk: Batch, seed: int) -> _Look:
    alone = per_row_losses(steps.losses)
    with _seeded(seed, chunk["input_ids"].device):
        step = steps.encode(**chunk)
        sampled = {name: loss_fn.sample(step) for name, loss_fn in alone.items()}
        precomputed = {name: loss_fn.precompute(step) for name, loss_fn in joint(steps.losses).items()}
    vectors = _stacked(step)
    counts = {name: torch.as_tensor(loss_fn.num_items(step, sampled[name])) for name, loss_fn in alone.items()}
    return _Look(vectors, precomputed, sampled, {name: count.to(vectors) for name, count in counts.items()})


def _joint_terms(
    steps: Steps,
    batch: Batch,
    looks: Sequence[_Look],
    weights: Mapping[str, float],
    precision: Callable[[], AbstractContextManager],
) -> tuple[Terms, Sequence[Tensor | None]]:
    """The terms that see all rows, and the gradient of their weighted sum by the embeddings of each chunk."""
    losses = joint(steps.losses)
    if not losses:
        return {}, [None] * len(looks)
    embeddings = torch.cat([look.embeddings for look in looks]).requires_grad_()
    views = dict(zip(steps.view_names, embeddings.unbind(1), strict=True))
    step = EncodedBatch(None, batch["input_ids"], batch["attention_mask"], views)
    with precision():
        terms = {name: o(replace(step, precomputed=_joined(name, looks))) for name, o in losses.items()}
        loss = sum(weights[name] * term for name, term in terms.items())
    return terms, torch.autograd.grad(loss, embeddings)[0].split([len(look.embeddings) for look in looks])


def _joined(name: str, looks: Sequence[_Look]) -> dict[str, Tensor]:
    """What a loss found in all chunks, as it would in the batch."""
    found = [look.precomputed[name] for look in looks]
    return {tensor: torch.cat([part[tensor] for part in found]) for tensor in found[0]}


def _split(batch: Batch, count: int) -> Iterator[Batch]:
    """The batch in `count` parts of (nearly) equally many examples."""
    tensors = {name: tensor.tensor_split(count) for name, tensor in batch.items() if isinstance(tensor, Tensor)}
    masks = [mask.flatten(0, 1) for mask in tensors["attention_mask"]]
    packing = batch.get("packing") or Packing.of(torch.cat(masks))
    packings = packing.split([len(mask) for mask in masks], masks[0].shape[1])
    for part, *parts in zip(packings, *tensors.values(), strict=True):
        yield {**dict(zip(tensors, parts, strict=True)), "packing": part}


def _stacked(step: EncodedBatch) -> Tensor:
    """Embeddings of all views (B, V, H), in float32 or better: gradients are kept in that."""
    vectors = torch.stack(list(step.embeddings.values()), dim=1)
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of a stream of its own: the same in both passes, others in each chunk."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
