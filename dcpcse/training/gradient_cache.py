"""Train with contrastive batches of any size in the memory of one chunk (GradCache; Gao et al., 2021).

The gradient is exact. In the first pass, all chunks are encoded without gradients. The losses that compare all rows
are then computed, with their gradient with respect to the embeddings. In the second pass, each chunk is encoded again
with the same dropout, and its part of this gradient is propagated back. Losses that are means over rows are computed
in the second pass. Models with batch normalisation need all rows at once, so they cannot use the cache.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from dcpcse.data.collator import ON_HOST
from dcpcse.data.examples import COUNTS_KEY
from dcpcse.data.views import present_views
from dcpcse.encoders.heads import BatchNormMLP
from dcpcse.encoders.packing import Packing
from dcpcse.losses import EncodedBatch, Loss, PerRowLoss
from dcpcse.utils.devices import release_memory
from dcpcse.utils.distributed import all_reduce_max, mean_count
from dcpcse.utils.errors import UserError, spell

Batch = Mapping[str, Any]
Terms = dict[str, Tensor]

CACHED = "cached"
"""Name of the term of a chunk that stands for all losses that compare rows. Its gradient is the chunk's part of the
gradient of these losses."""


class Steps(Protocol):
    """Interface of the training step: a module that encodes batches and contains the losses."""

    losses: Mapping[str, Loss]
    view_names: list[str]

    def encode(self, **batch: Any) -> EncodedBatch:
        """Encode a batch, without computing losses."""
        ...


@dataclass(frozen=True)
class Replay:
    """What the second pass over a chunk needs from the first pass of the gradient cache.

    Args:
        gradient: Gradient (examples, views, dimension) of the weighted loss of the complete batch with respect to
            the embeddings of the chunk; None if no loss compares all rows.
        of_losses: The trained parameters of the losses that compare all rows, each with its gradient. The list is
            empty except for the last chunk.
        sampled: The result of `sample` of each loss that is a mean over rows. The second pass uses it instead of
            drawing random numbers again.
        counts: The number of items in the complete batch, averaged over processes, of each loss that is a mean over
            rows.
    """

    gradient: Tensor | None
    of_losses: Sequence[tuple[Tensor, Tensor]]
    sampled: Mapping[str, Any]
    counts: Mapping[str, Tensor]

    def terms(self, batch: EncodedBatch, losses: Mapping[str, Loss]) -> Terms:
        """Return, by name, the chunk's part of each loss that is a mean over rows.

        If `gradient` is not None, a term "cached" with this gradient stands for the losses that compare all rows.

        Args:
            batch: The chunk, encoded again.
            losses: All losses by name.
        """
        terms = {}
        if self.gradient is not None:
            products = ((parameter * gradient).sum() for parameter, gradient in self.of_losses)
            terms[CACHED] = sum(products, (_stacked(batch) * self.gradient).sum())
        for name, loss_fn in per_row_losses(losses).items():
            share = loss_fn.num_items(batch, self.sampled[name]) / self.counts[name]
            terms[name] = loss_fn.mean(batch, self.sampled[name]) * share
        return terms


def per_row_losses(losses: Mapping[str, Loss]) -> dict[str, PerRowLoss]:
    """Return the losses that are means over rows, so that they can be computed on parts of a batch."""
    return {name: loss_fn for name, loss_fn in losses.items() if isinstance(loss_fn, PerRowLoss)}


def joint(losses: Mapping[str, Loss]) -> dict[str, Loss]:
    """Return the losses that compare all rows. These losses use only embeddings and the results of `precompute`."""
    return {name: loss_fn for name, loss_fn in losses.items() if not isinstance(loss_fn, PerRowLoss)}


def require_repeatable(run: TrainingArguments) -> None:
    """Raise UserError if an option prevents the second pass of the gradient cache from repeating the first one."""
    if run.torch_compile:
        raise UserError(
            f"{spell('gradient_cache_chunk')}: compiled modules draw their own random numbers for dropout, which the "
            f"second pass over a chunk cannot repeat; leave out {spell('gradient_cache_chunk')} or "
            f"{spell('torch_compile', True)}"
        )
    if run.torch_empty_cache_steps or "lomo" in run.optim:
        option = spell("torch_empty_cache_steps") if run.torch_empty_cache_steps else spell("optim", run.optim)
        raise UserError(f"{spell('gradient_cache_chunk')} cannot be combined with {option}; leave out one of them")


def require_cachable(head: nn.Module | None) -> None:
    """Raise UserError if the head has batch normalisation, which needs the whole batch at once."""
    if isinstance(head, BatchNormMLP):
        raise UserError(
            f"{spell('gradient_cache_chunk')}: batch normalisation needs the whole batch, which is never in memory at "
            f"once; leave out {spell('gradient_cache_chunk')}, or give {spell('batchnorm', False)}"
        )


def run_in_chunks(
    steps: Steps,
    batch: Batch,
    chunk: int,
    weights: Mapping[str, float],
    run: Callable[[Batch, Replay, bool], Terms],
    precision: Callable[[], AbstractContextManager] = contextlib.nullcontext,
) -> Terms:
    """Compute all gradients of a batch chunk by chunk; return the losses of the complete batch, detached, by name.

    The module's docstring describes the two passes. Every process has the same number of chunks.

    Args:
        steps: The training step.
        batch: The batch.
        chunk: Number of examples per chunk.
        weights: The weight of each loss, by name.
        run: A function for the second pass over a chunk. It computes the terms (`Replay.terms`), and runs the backward
            pass of the term "cached" plus the weighted other terms. The last argument of the function says whether
            the chunk is the last one.
        precision: A function that returns the context (autocast) for the first pass and for the losses that compare
            all rows.
    """
    of_processes = batch.get(COUNTS_KEY) or [all_reduce_max(len(batch["input_ids"]))]
    chunks = list(_split(batch, -(-max(of_processes) // chunk)))
    seeds = torch.randint(2**62, (len(chunks),)).tolist()
    with precision():
        first_passes = []
        for part, seed in zip(chunks, seeds, strict=True):
            first_passes.append(_first_pass(steps, part, seed))
            release_memory(part["input_ids"].device)  # after every chunk, since saving memory is the purpose
    terms, gradients, of_losses = _joint_terms(steps, batch, first_passes, weights, precision)
    per_row = per_row_losses(steps.losses)
    counts = {name: mean_count(sum(first.counts[name] for first in first_passes)) for name in per_row}
    total: Terms = {name: term.detach() for name, term in terms.items()}
    for i, (part, seed) in enumerate(zip(chunks, seeds, strict=True)):
        is_last = i == len(chunks) - 1  # DDP averages the gradients of all parameters over the processes in this pass
        replay = Replay(gradients[i], of_losses if is_last else (), first_passes[i].sampled, counts)
        with _seeded(seed, part["input_ids"].device):
            parts = run(part, replay, is_last)
        release_memory(part["input_ids"].device)
        for name in counts:
            total[name] = total.get(name, 0) + parts[name].detach()
    return {name: total[name] for name in steps.losses}


class _FirstPass(NamedTuple):
    """Results of the first pass over a chunk: the embeddings (B, V, H), and intermediate results by name of the loss.

    Args:
        precomputed: Results of `precompute` of the losses that compare all rows.
        sampled: Results of `sample` of the losses that are means over rows.
        counts: Numbers of items of the losses that are means over rows.
    """

    embeddings: Tensor
    precomputed: Mapping[str, Mapping[str, Tensor]]
    sampled: Mapping[str, Any]
    counts: Mapping[str, Tensor]


@torch.no_grad()
def _first_pass(steps: Steps, chunk: Batch, seed: int) -> _FirstPass:
    alone = per_row_losses(steps.losses)
    with _seeded(seed, chunk["input_ids"].device):
        batch = steps.encode(**chunk)
        sampled = {name: loss_fn.sample(batch) for name, loss_fn in alone.items()}
        precomputed = {name: loss_fn.precompute(batch) for name, loss_fn in joint(steps.losses).items()}
    vectors = _stacked(batch)
    counts = {name: loss_fn.num_items(batch, sampled[name]) for name, loss_fn in alone.items()}
    # Not `torch.tensor`, since the host would wait for its copy of a number to a GPU.
    counts = {name: c.to(vectors) if isinstance(c, Tensor) else vectors.new_full((), c) for name, c in counts.items()}
    return _FirstPass(vectors, precomputed, sampled, counts)


def _joint_terms(
    steps: Steps,
    tensors: Batch,
    first_passes: Sequence[_FirstPass],
    weights: Mapping[str, float],
    precision: Callable[[], AbstractContextManager],
) -> tuple[Terms, Sequence[Tensor | None], Sequence[tuple[Tensor, Tensor]]]:
    """Return the terms of losses that compare all rows, and the gradients of their weighted sum.

    The gradients are with respect to the embeddings of each chunk and with respect to the parameters of the losses.
    """
    losses = joint(steps.losses)
    if not losses:
        return {}, [None] * len(first_passes), []
    embeddings = torch.cat([first.embeddings for first in first_passes]).requires_grad_()
    views = dict(zip(present_views(steps.view_names, embeddings.shape[1]), embeddings.unbind(1), strict=True))
    batch = EncodedBatch(None, tensors["input_ids"], tensors["attention_mask"], views, counts=tensors.get(COUNTS_KEY))
    with precision():
        terms = {name: o(replace(batch, precomputed=_joined(name, first_passes))) for name, o in losses.items()}
        loss = sum(weights[name] * term for name, term in terms.items())
    parameters = [parameter for parameter in nn.ModuleList(losses.values()).parameters() if parameter.requires_grad]
    of_rows, *of_losses = torch.autograd.grad(loss, [embeddings, *parameters], allow_unused=True)
    gradients = [pair for pair in zip(parameters, of_losses, strict=True) if pair[1] is not None]
    of_rows = torch.zeros_like(embeddings) if of_rows is None else of_rows
    return terms, of_rows.split([len(first.embeddings) for first in first_passes]), gradients


def _joined(name: str, first_passes: Sequence[_FirstPass]) -> dict[str, Tensor]:
    """Concatenate the precomputed tensors of a loss over all chunks."""
    parts = [first.precomputed[name] for first in first_passes]
    return {tensor: torch.cat([part[tensor] for part in parts]) for tensor in parts[0]}


def _split(batch: Batch, count: int) -> Iterator[Batch]:
    """Split a batch into `count` parts with nearly the same number of examples."""
    parts = {name: tensor.tensor_split(count) for name, tensor in batch.items() if isinstance(tensor, Tensor)}
    batch = {"packing": None, **batch}
    for name, packing in batch.items():
        if name.endswith("packing"):
            masks = [mask.flatten(0, 1) for mask in parts[name.removesuffix("packing") + "attention_mask"]]
            packing = packing or Packing.of(torch.cat(masks))
            parts[name] = packing.split([len(mask) for mask in masks], masks[0].shape[1])
    if ON_HOST in batch:
        parts[ON_HOST] = batch[ON_HOST].split(count)
    for part in zip(*parts.values(), strict=True):
        yield dict(zip(parts, part, strict=True))


def _stacked(batch: EncodedBatch) -> Tensor:
    """Return the embeddings (B, V, H) of all views in at least float32, so that their gradients are precise."""
    vectors = torch.stack(list(batch.embeddings.values()), dim=1)
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Use the random numbers of `seed` within the context, so that both passes over a chunk draw the same numbers."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
