"""Measure the errors of the float32 gradient that processing in chunks or in several processes causes.

    python benchmarks/gradient_errors.py [--rows 256] [--chunk 16] [--processes 1 2 4] [--output_file errors.json]

The reference is the gradient in float64 of all rows at once, in one process. An error is the largest difference from
the reference, divided by the largest value of the reference.

The first table contains the errors of the gradients that the optimiser gets in the first training step. The step is
one of DCPCSE on the embedded encoder, without dropout, on triplets of data/sample. It is measured for each number of
processes, with and without --gradient_cache_chunk and --loss_chunk (both set to --chunk).

The second table contains the errors of the gradients of the loss with respect to the embeddings of the same rows. It
compares this project with CachedMultipleNegativesRankingLoss of sentence-transformers.
"""

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import sentence_transformers
import torch
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from torch import Tensor, nn
from transformers import TrainerCallback

import dcpcse
from dcpcse.data.examples import without_index
from dcpcse.losses import Contrastive, EncodedBatch
from dcpcse.utils.distributed import is_main_process, world_size
from dcpcse.utils.packages import EMBEDDED_ENCODER

TRIPLETS = EMBEDDED_ENCODER.with_name("sample") / "triplets.csv"
VIEWS = ("anchor", "positive", "negative")
OPTIONS = ("gradient_cache_chunk", "loss_chunk")

Gradients = Mapping[str, Tensor]


class Recorder(TrainerCallback):
    """Keeps the gradients that the optimiser gets."""

    def on_pre_optimizer_step(
        self, args: object, state: object, control: object, model: nn.Module, **_: object
    ) -> None:
        self.gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def main() -> None:
    args = parse()
    if args.folder:
        work(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {count: launch(count, folder) for count in args.processes}
    reference = found[1]["reference"]
    steps = {
        f"{count} process{'es' * (count > 1)}": {
            name: error(gradients, reference) for name, gradients in kept["steps"].items()
        }
        for count, kept in found.items()
    }
    losses = compare_losses(args, found[1]["embeddings"])
    show(steps)
    show(losses)
    if args.output_file:
        settings = {
            **vars(args),
            "torch": torch.__version__,
            "sentence_transformers": sentence_transformers.__version__,
        }
        content = {"settings": settings, "steps": steps, "losses": losses}
        Path(args.output_file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def launch(count: int, folder: str) -> dict:
    """Run all cells of a number of processes, and return what the first process found."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(count)]
    command = command if count > 1 else command[:1]
    done = subprocess.run([*command, *sys.argv, "--folder", folder], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return torch.load(Path(folder) / "found.pt")


def work(args: argparse.Namespace) -> None:
    """Do one step for each combination of options, in this process as one of several; the first one writes a file."""
    cells = {
        " and ".join(name for name, _ in given) or "at once": gradients_of(args, dict(given))
        for chosen in itertools.product((False, True), repeat=2)
        for given in [[(name, args.chunk) for name, use in zip(OPTIONS, chosen, strict=True) if use]]
    }
    found = {"steps": cells}
    if world_size() == 1:
        trainer = trainer_of(args, {})
        (batch, _), step = without_index(next(iter(trainer.get_train_dataloader()))), trainer.step_module.train()
        found["embeddings"] = {name: rows.detach() for name, rows in step.encode(**batch).embeddings.items()}
        step.double()
        sum(step(**batch).values()).backward()
        found["reference"] = {name: p.grad for name, p in step.named_parameters() if p.grad is not None}
    if is_main_process():
        torch.save(found, Path(args.folder) / "found.pt")


def gradients_of(args: argparse.Namespace, options: Mapping[str, int]) -> Gradients:
    """Return the gradients of the first step, averaged over processes, by the name of the parameter."""
    trainer, recorder = trainer_of(args, options), Recorder()
    trainer.add_callback(recorder)
    trainer.train()
    return {name.removeprefix("module."): gradient for name, gradient in recorder.gradients.items()}


def trainer_of(args: argparse.Namespace, options: Mapping[str, int]) -> dcpcse.Trainer:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    arguments = dcpcse.TrainingArguments(
        tempfile.mkdtemp(dir=args.folder),
        max_steps=1,
        per_device_train_batch_size=args.rows // processes,
        max_grad_norm=0,  # no clipping
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    with TRIPLETS.open(encoding="utf-8") as file:
        rows = [dict(zip(VIEWS, row, strict=True)) for row in itertools.islice(csv.reader(file), 1, args.rows + 1)]
    without_dropout = {"encoder_dropout": 0.0, "prompt_dropout": 0.0}
    return dcpcse.Trainer(EMBEDDED_ENCODER, "dcpcse", arguments, rows, **without_dropout)


def compare_losses(args: argparse.Namespace, embeddings: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Return the errors of the losses' gradients with respect to embeddings (B, H)."""
    reference = ours({name: rows.double() for name, rows in embeddings.items()}, None)
    sizes = {"at once": None, f"{args.chunk} rows at a time": args.chunk}
    sides = {"this project": ours, "sentence-transformers": theirs}
    return {
        side: {name: error(compute(embeddings, chunk), reference) for name, chunk in sizes.items()}
        for side, compute in sides.items()
    }


def ours(embeddings: Mapping[str, Tensor], chunk: int | None) -> Gradients:
    views = {name: rows.clone().requires_grad_() for name, rows in embeddings.items()}
    loss_fn = Contrastive()
    loss_fn.row_chunk = chunk
    loss_fn(EncodedBatch(None, torch.empty(0), torch.empty(0), views)).backward()
    return {name: rows.grad for name, rows in views.items()}


def theirs(embeddings: Mapping[str, Tensor], chunk: int | None) -> Gradients:
    """Return the gradients of the library's loss of a model that looks embeddings up."""
    table = Lookup(torch.cat([embeddings[name] for name in VIEWS]))
    places = torch.arange(len(table.rows)).chunk(len(VIEWS))
    model = sentence_transformers.SentenceTransformer(modules=[table], device="cpu")
    loss_fn = CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=chunk or len(places[0]))
    loss_fn([{"input_ids": rows} for rows in places], torch.empty(0)).backward()
    return dict(zip(VIEWS, table.rows.grad.chunk(len(VIEWS)), strict=True))


class Lookup(nn.Module):
    """A model whose embeddings are its parameters."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows.clone())

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.rows[features["input_ids"]]}


def error(found: Gradients, reference: Gradients) -> float:
    """Return the largest difference of two sets of gradients over the largest number of the reference."""
    if found.keys() != reference.keys():
        raise ValueError(f"gradients of {sorted(found)}, not of {sorted(reference)}")
    largest = max(gradient.abs().max() for gradient in reference.values())
    return max(float((found[name] - gradient).abs().max() / largest) for name, gradient in reference.items())


def show(rows: Mapping[str, Mapping[str, float]]) -> None:
    names = list(next(iter(rows.values())))
    print("| | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{row[column]:.1e}" for column in names) + " |")
    print()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="with 1 among them")
    parser.add_argument("--output_file")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
