"""Training steps of every method on the pretended device: what the host waits for in each of them.

Usage: python steps.py FOLDER [--sample], with the compiled device.cpp in LD_PRELOAD, and with the folder of the
project, SentEval and tests in PYTHONPATH

Tiny encoders are written to FOLDER. REPORTS in it gets one line of JSON for every case and mode; with `--sample`, for
one case of every method, two runs and three encoders.
"""

import argparse
import json
import os
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator
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
    "dcpcse, classes": ("bert", (*PAIR, "class"), {**DEEP, "do_eh_loss": True}),
    "dcpcse, guide": ("bert", TRIPLE, {**DEEP, "do_eh_loss": True}),
    "dcpcse, projection": ("bert", SENTENCE, {**DEEP, "prefix_projection": True}),
    "dcpcse, vectors": ("roberta", SENTENCE, {**DEEP, "prompt_form": "vectors"}),
    "dcpcse, ModernBERT": ("modernbert", SENTENCE, DEEP),
    "dcpcse, ELECTRA": ("electra", SENTENCE, DEEP),
    "scpcse": ("bert", TRIPLE, {"method": "scpcse", "prototypes": "both"}),
    "d2cse": ("bert", SENTENCE, {**DEEP, "method": "d2cse"}),
    "d2cse, [CLS] prompt, anchors": ("bert", TRIPLE, {**D2CSE, "cls_prompt": True, "crtd_views": "anchor"}),
    "promptbert": ("bert", SENTENCE, {"method": "promptbert"}),
    "promptbert, triples": ("roberta", TRIPLE, {"method": "promptbert", "org_mlp": True}),
    "promptbert, attention": ("bert", SENTENCE, {"method": "promptbert", "denoise_by": "attention"}),
    "promptbert, shallow": ("bert", SENTENCE, {"method": "promptbert", "tuning": "shallow"}),
    "conpvp": ("bert", TRIPLE, {"method": "conpvp", "instance_weight": 0.5}),
    "conpvp, LoRA": ("roberta", SENTENCE, {"method": "conpvp", "tuning": "lora"}),
    "simcse": ("bert", SENTENCE, {"method": "simcse"}),
    "simcse, triples": ("bert", TRIPLE, {"method": "simcse"}),
    "simcse, avg_first_last": ("bert", SENTENCE, {"method": "simcse", "pooler_type": "avg_first_last"}),
    "diffcse": ("bert", SENTENCE, {"method": "diffcse"}),
    "diffcse, public code": ("bert", SENTENCE, {"method": "diffcse", "batchnorm": False, **PUBLIC_CODE}),
    "esimcse": ("bert", SENTENCE, {"method": "esimcse", "neg_size": 12}),
    "esimcse, template": ("bert", TRIPLE, {"method": "esimcse", "neg_size": 12, **IN_TEMPLATE}),
    "consert": ("bert", SENTENCE, {"method": "consert"}),
    "consert, adversarial": ("bert", TRIPLE, {"method": "consert", **ADVERSARIAL}),
    "sbert, labels": ("bert", LABELLED, {"method": "sbert"}),
    "sbert, scores": ("bert", SCORED, {"method": "sbert"}),
    "rankcse": ("bert", SENTENCE, {"method": "rankcse", "ranking": "listnet"}),
    "cosent, scores": ("bert", SCORED, {"method": "cosent"}),
    "angle, labels": ("bert", LABELLED, {"method": "angle"}),
}
"""Name → kind of encoder, columns of the data, options."""

ALL_MODES = {"simcse, triples", "diffcse, public code", "dcpcse"}
"""Cases that a sample runs in all modes; the others in one process at once, and in two with chunks."""

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
    """Tiny encoders of one layer, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, kind: str) -> str:
        if not (self.folder / kind).exists():
            names = ("n_layers", "n_heads") if kind == "distilbert" else ("num_hidden_layers", "num_attention_heads")
            # The project's kernels need heads of at least 16 dimensions.
            make_encoder(self.folder / kind, kind, **dict(zip(names, (1, 2), strict=True)))
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


def one_step(step: TrainingStep, optimizer, batch, chunk: int | None) -> None:
    """A step of training on a batch in pinned memory, in chunks if there is a number of their rows."""
    weights = {name: term.weight for name, term in step.terms.items()}
    batch = send_to_device(batch, device.CUDA, non_blocking=True)

    def run(part, replay, last):
        terms = step(replay=replay, **part)
        sum(weights.get(name, 1.0) * term for name, term in terms.items()).backward()
        return terms

    if chunk is None:
        run(batch, None, True)
    else:
        run_in_chunks(step, batch, chunk, weights, run)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for loss_fn in step.losses.values():
            loss_fn.after_step(step.model)


def steps(encoders: Encoders, names: Iterable[str], in_all_modes: Container[str]) -> Iterator[dict[str, Any]]:
    """Report one step of every case, in all modes or in two of them."""
    for name in names:
        step, batch = built(name, encoders)
        step, batch = step.to(device.CUDA), {**pin_memory(batch), COUNTS_KEY: (ROWS, ROWS)}
        optimizer = torch.optim.AdamW([p for p in step.parameters() if p.requires_grad], lr=1e-3, foreach=True)
        modes = {"one pass": None, "three chunks": CHUNK, "two processes, three chunks": CHUNK, "two processes": None}
        if isinstance(step.model.head, BatchNormMLP):  # it does not take chunks
            modes = {"one pass": None, "two processes": None}
        elif name not in in_all_modes:
            modes = {"one pass": None, "two processes, three chunks": CHUNK}
        for mode, chunk in modes.items():
            device.reset()
            with device.two_processes() if "processes" in mode else nullcontext():
                one_step(step, optimizer, batch, chunk)
            yield {"case": name, "mode": mode, "exchanges": device.EXCHANGES.total(), "lines": lines_of(device.WAITS)}


def planted(encoders: Encoders) -> Iterator[dict[str, Any]]:
    """Report steps with a loss that reads a number on the host."""
    unread = Contrastive.forward

    def read(loss_fn, batch):
        loss = unread(loss_fn, batch)
        return loss * (loss.item() > 0)

    with patch.object(Contrastive, "forward", read):
        for found in steps(encoders, ["simcse, triples"], ALL_MODES):
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


def runs(encoders: Encoders) -> Iterator[dict[str, Any]]:
    """Report the steps of whole runs of the Trainer, from the loading of a batch on."""
    for name, (options, how) in RUNS.items():
        folder = str(encoders.folder / f"run of {name}")
        how = how | {"save_strategy": "no", "logging_steps": 1000, "disable_tqdm": True, "overwrite_output_dir": True}
        how |= {"max_steps": STEPS + 3, "per_device_train_batch_size": ROWS, "learning_rate": 1e-4}
        args = dcpcse.TrainingArguments(folder, **how)
        sentences, steps = [f"{sentence} {i}" for i in range(10) for sentence in SENTENCES], EachStep()
        data = [tuple(row.values()) for row in rows_of(sentences, options["method"], len(sentences))]
        options = with_encoder(options, encoders["bert"])
        dcpcse.Trainer(encoders["bert"], args=args, train_dataset=data, callbacks=[steps], **options).train()
        yield {"case": name, "mode": "run", "lines": steps.lines, "fused": steps.fused, "kernels": steps.kernels}


def lines_of(waits: Counter) -> list[str]:
    return [f"{number} × {what}: {where}" for (what, where), number in waits.items()]


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    device.pretend()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", action="store_true")
    args, names, all_modes = parser.parse_args(), list(CASES), list(CASES)
    if args.sample:
        one_of_each = {options["method"]: name for name, (_, _, options) in reversed(CASES.items())}
        names, all_modes = sorted({*one_of_each.values(), *ALL_MODES}), ALL_MODES
        in_bf16 = ("dcpcse, bf16", "simcse, bf16") if os.environ.get("TRITON_INTERPRET") == "1" else ("simcse, bf16",)
        RUNS = {name: RUNS[name] for name in ("dcpcse, gradient cache", *in_bf16)}
    encoders = Encoders(args.folder)
    with open(args.folder / REPORTS, "w", encoding="utf-8") as file:
        parts = (checks(), planted(encoders), encodings(args.folder, args.sample), steps(encoders, names, all_modes))
        for found in chain(*parts, runs(encoders)):
            file.write(json.dumps(found) + "\n")
