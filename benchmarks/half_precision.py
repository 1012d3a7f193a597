"""Measure the errors of bfloat16 in training and evaluation, and count the casts (docs/training.md, docs/gpu.md).

    python benchmarks/half_precision.py [--model_name_or_path ENCODER] [--json FILE]

A training step of every method is computed twice with the same initial weights and batches: in float32 and under
bfloat16 autocast. This is done on a CPU and without dropout. The script prints the largest differences over all
batches:

- of an embedding, relative to the length of the embedding;
- of the loss, relative to the loss;
- of a gradient, relative to the largest element of the gradient of the same parameter. If this element is below a
  thousandth of the largest one of all parameters, the gradient is mostly rounding, and the difference is relative to
  that thousandth.

The cosine is the cosine of the two vectors of all gradients of a batch.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dcpcse
from dcpcse.data.examples import without_index
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import set_dropout
from dcpcse.encoders.half_precision import in_half_precision
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.experiments.sample_scores import load_sample_pairs, measure_pairs
from dcpcse.methods import METHODS
from dcpcse.training.step import TrainingStep
from dcpcse.utils.packages import EMBEDDED_ENCODER

SAMPLE = Path("data/sample")
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "d2cse": {"generation": "argmax"},
    "diffcse": {"generation": "argmax"},
    "esimcse": {"neg_size": 0},
    "rankcse": {"teacher_pooler": "avg"},
}
"""Options without which a second pass over a batch would differ by more than its precision, and required ones."""

ON_TRIPLETS = ("sbert", "cosent", "angle")

HALF = torch.bfloat16


def trainer_of(method: str, encoder: str, folder: str) -> dcpcse.Trainer:
    """Return a trainer of a method on the sample, without dropout."""
    options = dict(OPTIONS.get(method, {}))
    if "generation" in options:
        options["generator_name"] = encoder
    if method == "rankcse":
        options["teacher"] = [encoder]
    data = SAMPLE / ("triplets.csv" if method in ON_TRIPLETS else "sentences.txt")
    args = dcpcse.TrainingArguments(
        folder, use_cpu=True, bf16=False, per_device_train_batch_size=64, report_to="none", seed=0
    )
    trainer = dcpcse.Trainer(encoder, method, args, data, **options)
    set_dropout(trainer.step_module, 0.0)
    return trainer


def outcome(step: TrainingStep, batch: Mapping[str, Tensor], half: bool) -> tuple[Tensor, float, dict[str, Tensor]]:
    """Return the embeddings (B · V, H), the loss and the gradients of a batch."""
    torch.manual_seed(0)  # of masks
    step.zero_grad()
    with torch.autocast("cpu", HALF) if half else nullcontext():
        loss = sum(step.terms[name].weight * value for name, value in step(**batch).items())
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in step.named_parameters() if p.grad is not None}
    with torch.no_grad(), torch.autocast("cpu", HALF) if half else nullcontext():
        embeddings = torch.cat([*step.encode(**batch).embeddings.values()]).float()
    return embeddings, loss.item(), gradients


def differences(step: TrainingStep, batch: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the differences of a batch, as described above."""
    (vectors, loss, gradients), (rounded, near, found) = (outcome(step, batch, half) for half in (False, True))
    largest = max(tensor.abs().max().item() for tensor in gradients.values())
    sizes = {name: max(tensor.abs().max().item(), 1e-3 * largest) for name, tensor in gradients.items()}
    whole, other = (torch.cat([g[name].flatten() for name in sizes]).double() for g in (gradients, found))
    return {
        "embeddings": ((rounded - vectors).norm(dim=1) / vectors.norm(dim=1)).max().item(),
        "loss": abs(near - loss) / abs(loss),
        "gradients": max((found[name] - gradients[name]).abs().max().item() / size for name, size in sizes.items()),
        "1 - cosine": 1 - torch.cosine_similarity(whole, other, dim=0).item(),
    }


class Casts(TorchDispatchMode):
    """Counts the casts to bfloat16."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.to):
            self.count += result.dtype == HALF != args[0].dtype
        return result


def casts(step: TrainingStep, batch: Mapping[str, Tensor], once: bool) -> int:
    """Return the number of casts to bfloat16 of a step. once: whether frozen weights are cast before it."""
    with in_half_precision(nn.ModuleList([step.model, step.losses]), HALF if once else None), Casts() as counted:
        with torch.autocast("cpu", HALF):
            loss = sum(step(**batch).values())
        loss.backward()
    return counted.count


def of_method(method: str, encoder: str, batches: int) -> dict[str, float]:
    """Return the largest differences of a method over some batches, and its casts."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(method, encoder, folder)
        step, loader = trainer.step_module.train(), iter(trainer.get_train_dataloader())
        drawn = [without_index(next(loader))[0] for _ in range(batches)]
        found = [differences(step, batch) for batch in drawn]
        worst: dict[str, float] = {name: max(one[name] for one in found) for name in found[0]}
        return worst | {
            f"casts, {'once' if once else 'autocast'}": casts(step, drawn[0], once) for once in (False, True)
        }


def scores(encoder: str) -> dict[str, dict[str, float]]:
    """Return Spearman x 100 of the untouched encoder on the scored pairs of the sample in both precisions."""
    pairs, found = load_sample_pairs(SAMPLE), {}
    for pooler in ("cls_before_pooler", "avg"):
        model = plain_encoder(load_backbone(encoder), pooler)
        for name, model.bf16 in (("float32", False), ("bfloat16", True)):
            found[f"{pooler}, {name}"] = {s: 100 * r for s, r in measure_pairs(model, pairs).spearman.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_name_or_path", default=str(EMBEDDED_ENCODER))
    parser.add_argument("--methods", nargs="+", default=sorted(METHODS))
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--json", type=Path, help="File for the figures.")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for method in args.methods:
        figures[method] = of_method(method, args.model_name_or_path, args.batches)
        print(f"{method:12}", "  ".join(f"{name} {value:.1e}" for name, value in figures[method].items()), flush=True)
    figures["scores"] = scores(args.model_name_or_path)
    for name, of_splits in figures["scores"].items():
        print(f"{name:28}", "  ".join(f"{split} {score:.2f}" for split, score in of_splits.items()))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
