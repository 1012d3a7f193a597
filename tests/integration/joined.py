"""A training step of any method, the same in one process (test_distributed.py) and in several (torchrun)."""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from dcpcse.arguments import ModelArguments
from dcpcse.backbones import load_backbone
from dcpcse.collators import ViewCollator
from dcpcse.masking import TokenMasking
from dcpcse.methods import build_method
from dcpcse.trainer import TrainingStep


def masked_by_place(self: TokenMasking, input_ids: Tensor, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Instead of random masks: those that follow from a token and its place, whatever batch it is in."""
    ordinary = ~torch.isin(input_ids, self.special_ids)
    candidates = ordinary if candidates is None else ordinary & candidates
    chosen = candidates & ((input_ids + torch.arange(input_ids.shape[1])) % 3 == 0)
    return torch.where(chosen, self.mask_id, input_ids), chosen


def build(encoder: str, case: dict[str, Any]) -> tuple[TrainingStep, ViewCollator]:
    """The step of a case in float64, the same in every process, and its collator; masking is to be patched."""
    torch.manual_seed(0)
    method = build_method(
        load_backbone(encoder, lm_head=case["lm_head"]), ModelArguments(**case["arguments"]), case["columns"]
    )
    step = TrainingStep(method).double().train()
    if method.model.encoder.prompt is not None:
        with torch.no_grad():
            method.model.encoder.prompt.table.weight.mul_(20)  # prompts that matter
    return step, ViewCollator(method.model.tokenizer, method.views, 32, templates=method.model.templates)


def outcome(step: TrainingStep, terms: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Terms, the gradients of their sum, and the buffers afterwards."""
    sum(terms.values()).backward()
    return {
        "terms": {name: term.detach() for name, term in terms.items()},
        "gradients": {name: p.grad for name, p in step.named_parameters() if p.requires_grad},
        "buffers": {name: b.clone() for name, b in step.named_buffers() if "running" in name or "tracked" in name},
    }


def main(job_file: str, folder: str) -> None:
    """Each case with this process's share of its rows; results go to <folder>/rank<r>.pt."""
    with open(job_file, encoding="utf-8") as file:
        job = json.load(file)
    dist.init_process_group("gloo")
    TokenMasking.forward = masked_by_place
    rank, results = dist.get_rank(), {}
    for name, case in job["cases"].items():
        step, collate = build(job["encoder"], case)
        batch = collate(case["rows"][rank])
        wrapped = DistributedDataParallel(step)  # kept: it averages gradients only while it lives
        results[name] = {**outcome(step, wrapped(**batch)), "length": batch["input_ids"].shape[2]}
        del wrapped  # a live one at the end of the group may abort the process
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
