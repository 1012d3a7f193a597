"""A training step of any method, the same in one process (test_distributed.py) and in several (torchrun)."""

import contextlib
import json
import sys
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from method_models import Collator, stir_adapter, with_guides
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dcpcse.data.collator import slots_of
from dcpcse.encoders.backbones import load_backbone
from dcpcse.losses.guide import GuideSource
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.methods import build_method, model_arguments
from dcpcse.training.step import TrainingStep
from dcpcse.utils.distributed import gather_by_rank, require_same_in_all_processes
from dcpcse.utils.errors import UserError

OF_BATCHES = {"running_mean", "running_var", "num_batches_tracked", "queue"}
"""Buffers that batches change."""

PUBLISHED = {"temp": 0.2, "hard_negative_weight": 0.5}


def masked_by_place(self: TokenMasking, input_ids: Tensor, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Instead of random masks: those that follow from a token and its place, whatever batch it is in."""
    ordinary = ~torch.isin(input_ids, self.special_ids)
    candidates = ordinary if candidates is None else ordinary & candidates
    chosen = candidates & ((input_ids + torch.arange(input_ids.shape[1])) % 3 == 0)
    return torch.where(chosen, self.mask_id, input_ids), chosen


def build(case: dict[str, Any]) -> tuple[TrainingStep, Collator]:
    """The step of a case in float64, the same in every process, and its collator; masking is to be patched."""
    torch.manual_seed(0)
    method = build_method(
        load_backbone(case["encoder"], lm_head=case["lm_head"]), model_arguments(**case["arguments"]), case["columns"]
    )
    if "guide" in case:
        method = replace(method, guides={"guide": GuideSource(case["guide"])})
    method = with_guides(method)
    for loss_fn in method.losses:
        loss_fn.row_chunk = case.get("row_chunk")
    step = TrainingStep(method).double().train()
    if method.model.encoder.prompt is not None:
        with torch.no_grad():
            method.model.encoder.prompt.table.weight.mul_(20)  # prompts that matter
    stir_adapter(method.model)
    return step, Collator.of(method, 32)


def rows_of(rank: int) -> Tensor:
    """Rows of a process, another number in each."""
    return 10.0 * rank + torch.arange(2.0 * (rank + 1)).view(-1, 2)


def go_before(step: nn.Module, batch: dict[str, Any], case: dict[str, Any]) -> None:
    """Passes before the one that is looked at, of objectives that remember."""
    with torch.no_grad():
        for _ in range(case.get("before", 0)):
            step(**batch)


def outcome(step: TrainingStep, terms: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Terms, the gradients of their sum, and the buffers afterwards."""
    sum(terms.values()).backward()
    return {
        "terms": {name: term.detach() for name, term in terms.items()},
        "gradients": {name: p.grad for name, p in step.named_parameters() if p.requires_grad},
        "buffers": {name: b.clone() for name, b in step.named_buffers() if OF_BATCHES.intersection(name.split("."))},
    }


class PublicCode(nn.Module):
    """The loss of the public SimCSE and DCPCSE code for several processes, on embeddings of our model."""

    def __init__(self, step: TrainingStep) -> None:
        super().__init__()
        self.step = step

    def forward(self, **batch: Tensor) -> Tensor:
        ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
        views = self.step.model(ids, mask, slots_of(batch)).unflatten(0, batch["input_ids"].shape[:2])
        z1, z2, z3 = (self.gathered(view.contiguous()) for view in views.unbind(1))
        cos = torch.cat([F.cosine_similarity(z1.unsqueeze(1), z.unsqueeze(0), dim=-1) for z in (z2, z3)], dim=1)
        logits = cos / PUBLISHED["temp"]
        logits[:, len(z1) :] += torch.eye(len(z1)) * PUBLISHED["hard_negative_weight"]
        return F.cross_entropy(logits, torch.arange(len(z1)))

    @staticmethod
    def gathered(own: Tensor) -> Tensor:
        parts = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        parts[dist.get_rank()] = own
        return torch.cat(parts)


def main(job_file: str, folder: str) -> None:
    """Each case with this process's share of its rows; results go to <folder>/rank<r>.pt."""
    with open(job_file, encoding="utf-8") as file:
        job = json.load(file)
    dist.init_process_group("gloo")
    TokenMasking.forward = masked_by_place
    rank, results = dist.get_rank(), {}
    for name, case in job["cases"].items():
        step, collate = build(case)
        batch = collate(case["rows"][rank])
        wrapped = DistributedDataParallel(step)  # kept: it averages gradients only while it lives
        go_before(wrapped, batch, case)
        results[name] = {**outcome(step, wrapped(**batch)), "length": batch["input_ids"].shape[2]}
        del wrapped  # a live one at the end of the group may abort the process
    case = job["cases"]["published"]
    step, collate = build(case)
    wrapped = DistributedDataParallel(PublicCode(step))
    results["public code"] = outcome(step, {"contrastive": wrapped(**collate(case["rows"][rank]))})
    del wrapped
    results["by rank"] = gather_by_rank(rows_of(rank))
    require_same_in_all_processes({"corpus": "the same", "training file": None})
    with contextlib.suppress(UserError):
        require_same_in_all_processes({"corpus": "the same", "training file": f"of rank {rank}"})
        raise AssertionError("files that differ are refused in every process")
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
