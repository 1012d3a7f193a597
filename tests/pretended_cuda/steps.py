"""Training steps of every method on the pretended device: what the host waits for in each of them.

Usage: python steps.py FOLDER [PART_OF_A_NAME ...] [--bf16] [--layers 3] [--sample], with the compiled device.cpp in
LD_PRELOAD, and with the folder of the project, SentEval and tests in PYTHONPATH

Tiny encoders are written to FOLDER; they have one layer, or as many as `--layers` says. REPORTS in it gets one line of
JSON for every case and mode; with `--sample`, for one case of every method, two runs and three encoders.
"""

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import device
import torch
from accelerate.utils import send_to_device
from checks import checks
from encoding import encodings
from method_models import Collator, rows_of, with_encoder, with_guides
from tiny_encoders import SENTENCES, make_encoder
from torch.utils.data._utils.pin_memory import pin_memory
from transformers import TrainerCallback
from transformers.utils import logging

import dcpcse
from dcpcse.data.columns import CLASSES, Columns
from dcpcse.data.examples import COUNTS_KEY
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.heads import BatchNormMLP
from dcpcse.losses import Contrastive
from dcpcse.losses.guide import GuideSource
from dcpcse.methods import METHODS, build_method, model_arguments
from dcpcse.training.gradient_cache import run_in_chunks
from dcpcse.training.guards.gradients import STEPS
from dcpcse.training.step import TrainingStep

REPORTS = "reports.jsonl"

ROWS, CHUNK = 8, 3

SENTENCE, PAIR, TRIPLE = ("anchor",), ("anchor", "positive"), ("anchor", "positive", "negative")
LABELLED = Columns((*PAIR, "label"), classes=CLASSES)
SCORED = Columns((*PAIR, "score"), scores=(0.0, 4.0))
ANNOTATIONS = {"label": lambda i: CLASSES[i % 3], "score": lambda i: float(i % 5), "class": lambda i: i // 2}

DEEP = {"method": "dcpcse", "pre_seq_len": 3}
IN_TEMPLATE = {"template": 'This sentence : "{sentence}" means [MASK].', "pooler_type": "mask", "denoise": True}
D2CSE = {**DEEP, "method": "d2cse", "batchnorm": False}
PUBLIC_CODE = {"crtd_reduction": "mean_all", "generate_at": "all", "generation": "argmax"}
ADVERSARIAL = {"augmentation_1": "adversarial", "augmentation_2": "token_cutoff", "max_square": True}
CASES = {
    "dcpcse": ("bert", SENTENCE, DEEP),
    "dcpcse, triples": ("roberta", TRIPLE, DEEP),
    "dcpcse, MLM": ("bert", SENTENCE, {**DEEP, "do_mlm": True}),
    "dcpcse, hinge": ("bert", TRIPLE, {**DEEP, "do_eh_loss": True}),
    "dcpcse, classes": ("bert", (*PAIR, "class"), {**DEEP, "do_eh_loss": True}),
    "dcpcse, guide": ("bert", TRIPLE, {**DEEP, "do_eh_loss": True}),
    "dcpcse, projection": ("bert", SENTENCE, {**DEEP, "prefix_projection": True}),
    "dcpcse, vectors": ("roberta", SENTENCE, {**DEEP, "prompt_form": "vectors"}),
    "dcpcse, ModernBERT": ("modernbert", SENTENCE, DEEP),
    "dcpcse, ELECTRA": ("electra", SENTENCE, DEEP),
    "scpcse": ("bert", SENTENCE, {"method": "scpcse"}),
    "scpcse, prototypes": ("bert", TRIPLE, {"method": "scpcse", "prototypes": "both"}),
    "d2cse": ("bert", SENTENCE, {**DEEP, "method": "d2cse"}),
    "d2cse, [CLS] prompt, anchors": ("bert", TRIPLE, {**D2CSE, "cls_prompt": True, "crtd_views": "anchor"}),
    "promptbert": ("bert", SENTENCE, {"method": "promptbert"}),
    "promptbert, triples": ("roberta", TRIPLE, {"method": "promptbert", "org_mlp": True}),
    "promptbert, MLM": ("bert", SENTENCE, {"method": "promptbert", "do_mlm": True}),
    "promptbert, attention": ("bert", SENTENCE, {"method": "promptbert", "denoise_by": "attention"}),
    "promptbert, shallow": ("bert", SENTENCE, {"method": "promptbert", "tuning": "shallow"}),
    "conpvp": ("bert", SENTENCE, {"method": "conpvp"}),
    "conpvp, triples": ("bert", TRIPLE, {"method": "conpvp", "instance_weight": 0.5}),
    "conpvp, LoRA": ("roberta", SENTENCE, {"method": "conpvp", "tuning": "lora"}),
    "simcse": ("bert", SENTENCE, {"method": "simcse"}),
    "simcse, triples": ("bert", TRIPLE, {"method": "simcse"}),
    "simcse, LoRA": ("bert", SENTENCE, {"method": "simcse", "tuning": "lora"}),
    "simcse, avg_first_last": ("bert", SENTENCE, {"method": "simcse", "pooler_type": "avg_first_last"}),
    "diffcse": ("bert", SENTENCE, {"method": "diffcse"}),
    "diffcse, public code": ("bert", SENTENCE, {"method": "diffcse", "batchnorm": False, **PUBLIC_CODE}),
    "esimcse": ("bert", SENTENCE, {"method": "esimcse", "neg_size": 12}),
    "esimcse, template": ("bert", TRIPLE, {"method": "esimcse", "neg_size": 12, **IN_TEMPLATE}),
    "consert": ("bert", SENTENCE, {"method": "consert"}),
    "consert, adversarial": ("bert", TRIPLE, {"method": "consert", **ADVERSARIAL}),
    "sbert": ("bert", TRIPLE, {"method": "sbert"}),
    "sbert, labels": ("bert", LABELLED, {"method": "sbert"}),
    "sbert, scores": ("bert", SCORED, {"method": "sbert"}),
    "rankcse": ("bert", SENTENCE, {"method": "rankcse", "ranking": "listnet"}),
    "cosent, scores": ("bert", SCORED, {"method": "cosent"}),
    "angle, labels": ("bert", LABELLED, {"method": "angle"}),
}
"""Name → kind of encoder, columns of the data, options."""

RUNS = {
    **{name: ({"method": name}, {}) for name in METHODS},
    "dcpcse, gradient cache": (DEEP, {"gradient_cache_chunk": CHUNK}),
    "dcpcse, bf16": (DEEP, {"bf16": True}),
    "simcse, bf16": ({"method": "simcse"}, {"bf16": True}),
}
"""Name → options of `dcpcse.Trainer` and of its TrainingArguments."""


OF_PROJECT = {"forward_kernel", "backward_kernel", "add_norm_forward", "add_norm_backward"}
"""Triton kernels of the project, for attention and for dropout, residual and normalisation."""


class Encoders:
    """Tiny encoders, each made once."""

    def __init__(self, folder: Path, layers: int) -> None:
        self.folder, self.layers = folder, layers

    def __getitem__(self, kind: str) -> str:
        if not (self.folder / kind).exists():
            names = ("n_layers", "n_heads") if kind == "distilbert" else ("num_hidden_layers", "num_attention_heads")
            # The project's kernels need heads of at least 16 dimensions.
            make_encoder(self.folder / kind, kind, **dict(zip(names, (self.layers, 2), strict=True)))
        return str(self.folder / kind)


def built(name: str, encoders: Encoders) -> tuple[TrainingStep, dict[str, Any]]:
    """The step of a case and a batch, both on the CPU."""
    kind, columns, options = CASES[name]
    options = with_encoder(options, encoders["distilbert" if options["method"] != "rankcse" else "roberta"])
    torch.manual_seed(0)
    backbone = load_backbone(encoders[kind], lm_head="checkpoint" if {"do_mlm", "org_mlp"} & options.keys() else None)
    method = build_method(backbone, model_arguments(**options), columns)
    if name.endswith("guide"):
        method = replace(method, guides={"guide": GuideSource(encoders["roberta"])})
    method = with_guides(method)
    rows = [
        {c: ANNOTATIONS[c](i) if c in ANNOTATIONS else SENTENCES[(i + 4 * k) % 12] for k, c in enumerate(columns)}
        for i in range(ROWS)
    ]
    return TrainingStep(method).train(), Collator.of(method, 32)(rows)


def one_step(step: TrainingStep, optimizer, batch, chunk: int | None, dtype: torch.dtype | None) -> None:
    """A step of training on a batch in pinned memory, in chunks if there is a number of their rows."""
    weights = {name: term.weight for name, term in step.terms.items()}
    batch = send_to_device(batch, device.CUDA, non_blocking=True)

    def precision():
        return nullcontext() if dtype is None else torch.autocast("cuda", dtype)

    def run(part, replay, last):
        with precision():
            terms = step(replay=replay, **part)
        sum(weights.get(name, 1.0) * term for name, term in terms.items()).backward()
        return terms

    if chunk is None:
        run(batch, None, True)
    else:
        run_in_chunks(step, batch, chunk, weights, run, precision)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for loss_fn in step.losses.values():
            loss_fn.after_step(step.model)


def steps(encoders: Encoders, wanted: Sequence[str], bf16: bool) -> Iterator[dict[str, Any]]:
    """Report one step of every case in every mode."""
    for name in CASES:
        if wanted and not any(part in name for part in wanted):
            continue
        step, batch = built(name, encoders)
        step, batch = step.to(device.CUDA), {**pin_memory(batch), COUNTS_KEY: (ROWS, ROWS)}
        optimizer = torch.optim.AdamW([p for p in step.parameters() if p.requires_grad], lr=1e-3, foreach=True)
        modes = {"one pass": (None, None)}
        modes |= {"bf16": (None, torch.bfloat16)} if bf16 else {}
        if not isinstance(step.model.head, BatchNormMLP):  # it does not take chunks
            modes |= {"three chunks": (CHUNK, None), "two processes, three chunks": (CHUNK, None)}
        modes |= {"two processes": (None, None)}
        for mode, (chunk, dtype) in modes.items():
            device.reset()
            with device.two_processes() if "processes" in mode else nullcontext():
                one_step(step, optimizer, batch, chunk, dtype)
            yield report(name, mode, device.WAITS, device.KERNELS)


def planted(encoders: Encoders) -> Iterator[dict[str, Any]]:
    """Report steps with a loss that reads a number on the host."""
    unread = Contrastive.forward

    def read(loss_fn, batch):
        loss = unread(loss_fn, batch)
        return loss * (loss.item() > 0)

    with patch.object(Contrastive, "forward", read):
        for found in steps(encoders, ["simcse, triples"], bf16=False):
            yield {**found, "case": "planted"}


class EachStep(TrainerCallback):
    """Remembers what the host waits for from the beginning of each step to that of the next one."""

    def __init__(self) -> None:
        self.lines, self.fused, self.kernels = [], 0, {}

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step:
            self.lines.append(lines_of(device.WAITS))
            self.fused = device.KERNELS["_fused_adamw_"]
            self.kernels = {name: number for name, number in device.KERNELS.items() if name in OF_PROJECT}
        device.reset()


def runs(encoders: Encoders, wanted: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Report the steps of whole runs of the Trainer, from the loading of a batch on."""
    for name, (options, how) in RUNS.items():
        if wanted and not any(part in name for part in wanted):
            continue
        args = dcpcse.TrainingArguments(
            str(encoders.folder / f"run of {name}"),
            max_steps=STEPS + 3,
            per_device_train_batch_size=ROWS,
            learning_rate=1e-4,
            save_strategy="no",
            logging_steps=1000,
            disable_tqdm=True,
            overwrite_output_dir=True,
            **how,
        )
        sentences, steps = [f"{sentence} {i}" for i in range(10) for sentence in SENTENCES], EachStep()
        data = [tuple(row.values()) for row in rows_of(sentences, options["method"], len(sentences))]
        options = with_encoder(options, encoders["bert"])
        dcpcse.Trainer(encoders["bert"], args=args, train_dataset=data, callbacks=[steps], **options).train()
        yield {"case": name, "mode": "run", "lines": steps.lines, "fused": steps.fused, "kernels": steps.kernels}


def lines_of(waits: Counter) -> list[str]:
    return [f"{number} × {what}: {where}" for (what, where), number in waits.items()]


def report(name: str, mode: str, waits: Counter, kernels: Counter) -> dict[str, Any]:
    numbers = {"waits": waits.total(), "kernels": kernels.total(), "exchanges": device.EXCHANGES.total()}
    return {"case": name, "mode": mode, **numbers, "lines": lines_of(waits)}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    device.pretend()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("wanted", nargs="*")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--sample", action="store_true")
    args = parser.parse_args()
    if args.sample:
        sample = {options["method"]: name for name, (_, _, options) in reversed(CASES.items())}
        CASES = {name: CASES[name] for name in (*sample.values(), "diffcse, public code", "simcse, triples")}
        RUNS = {name: RUNS[name] for name in ("dcpcse, gradient cache", "dcpcse, bf16", "simcse, bf16")}
    encoders, wanted = Encoders(args.folder, args.layers), args.wanted
    with open(encoders.folder / REPORTS, "w", encoding="utf-8") as file:
        parts = () if wanted else (checks(), planted(encoders), encodings(args.folder, args.sample))
        for found in chain(*parts, steps(encoders, wanted, args.bf16), runs(encoders, wanted)):
            file.write(json.dumps(found) + "\n")
