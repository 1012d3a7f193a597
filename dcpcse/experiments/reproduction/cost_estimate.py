"""How long a unit will take and how much memory, roughly: from shapes, and from products timed on this machine."""

import functools
import itertools
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dcpcse.data.labels import Columns
from dcpcse.data.training_file import load_training_file
from dcpcse.experiments.reproduction.units import RunUnit
from dcpcse.methods import arguments_class, fill_defaults, model_arguments
from dcpcse.utils.errors import UserError

ENCODER_SHAPES: Mapping[str, tuple[int, int, int]] = {
    "bert-base-uncased": (12, 768, 30_522),
    "roberta-base": (12, 768, 50_265),
    "bert-large-uncased": (24, 1024, 30_522),
    "roberta-large": (24, 1024, 50_265),
}
"""Layers, hidden size and vocabulary of the papers' encoders, which need not be here for a plan."""

EVALUATION_TOKENS: Mapping[str, int] = {
    "sts": 373_000,
    "transfer": 1_781_000,
    "clustering": 2_072_000,
    "fewshot": 1_775_000,
    "retrieval": 37_000,
    "geometry": 8 * 37_000,  # encoded anew for each number of tokens that is left out
}
"""Tokens of a family's distinct sentences, counted with BERT's vocabulary."""

DEV_TOKENS = 59_000
"""Of the dev sets of STS-B and SICK-R."""

STEP_OVERHEAD = 1.4
"""A step takes so many times its matrix products (docs/results.md, "A training step")."""

BYTES_PER_TOKEN, LIBRARIES_MB = 32 * 4, 500
"""Activations of a layer for each number of a token's hidden state, by measured peaks; libraries when idle."""


class EncoderShape(NamedTuple):
    """What an encoder's costs follow from."""

    layers: int
    hidden: int
    vocabulary: int

    @property
    def linear(self) -> int:
        """Numbers in the linear layers, whose inner width is four times the hidden size."""
        return self.layers * 12 * self.hidden**2


@dataclass(frozen=True)
class Estimate:
    """Optimiser steps (0 without training), seconds in all, and peak memory; None where the encoder is not here."""

    steps: int
    seconds: float | None
    megabytes: float | None


def estimate(unit: RunUnit) -> Estimate:
    """What a unit will cost on this machine, within a factor of two or so."""
    shape = _shape(unit)
    options = unit.options
    steps = _steps(options) if unit.train else 0
    if shape is None:
        return Estimate(steps, None, None)
    per_second = flops_per_second() / STEP_OVERHEAD
    measuring = 2 * shape.linear * sum(EVALUATION_TOKENS[family] for family in unit.row.tasks)
    if not unit.train:
        return Estimate(0, measuring / per_second, _megabytes(shape, 2_048, full=False))
    tokens, full = _tokens_of_a_step(options), _is_full(options)
    looks = steps // int(options["eval_steps"])
    training = 2 * shape.linear * (steps * tokens * (3 if full else 2) + looks * DEV_TOKENS)
    return Estimate(steps, (training + measuring) / per_second, _megabytes(shape, tokens, full))


def _is_full(options: Mapping[str, Any]) -> bool:
    """Whether the encoder itself is trained, by default of the method."""
    known = {field.name for field in fields(arguments_class())}
    columns = _file_stats(str(options["train_file"])).columns
    given = model_arguments(**{name: value for name, value in options.items() if name in known})
    return fill_defaults(given, columns).tuning == "full"


def _megabytes(shape: EncoderShape, tokens: int, full: bool) -> float:
    weights = 4 * (shape.linear + shape.vocabulary * shape.hidden)
    activations = tokens * shape.layers * shape.hidden * BYTES_PER_TOKEN
    # Trained weights have a gradient and two moments; frozen ones are laid out twice more for a CPU.
    return LIBRARIES_MB + ((4 if full else 3) * weights + activations) / 1e6


def _shape(unit: RunUnit) -> EncoderShape | None:
    words = unit.evaluate if not unit.train else ()
    name = str(unit.options.get("model_name_or_path") or words[words.index("--model_name_or_path") + 1])
    if name in ENCODER_SHAPES:
        return EncoderShape(*ENCODER_SHAPES[name])
    path = Path(name) / "config.json"
    if not path.is_file():
        return None
    config = json.loads(path.read_text(encoding="utf-8"))
    try:
        return EncoderShape(config["num_hidden_layers"], config["hidden_size"], config["vocab_size"])
    except KeyError as error:
        raise UserError(f"{path} does not say the {error} of the encoder") from error


def _steps(options: Mapping[str, Any]) -> int:
    if options.get("max_steps"):
        return int(options["max_steps"])
    rows = _file_stats(str(options["train_file"])).rows
    return math.ceil(rows / int(options["per_device_train_batch_size"])) * int(options["num_train_epochs"])


def _tokens_of_a_step(options: Mapping[str, Any]) -> int:
    """Tokens that go through the encoder in a step; passes of other losses count like the contrastive one."""
    text = _file_stats(str(options["train_file"]))
    length = min(int(options["max_seq_length"]), 1.35 * text.words + 2) + (12 if options.get("template") else 0)
    passes = 1 + bool(options.get("do_mlm")) + 2 * bool(options.get("generator_name"))
    return int(int(options["per_device_train_batch_size"]) * max(2, len(text.columns.sentences)) * length * passes)


class TrainingFileStats(NamedTuple):
    """A training file: its rows, its columns, and the mean words of its first sentences."""

    rows: int
    columns: Columns
    words: float


@functools.cache
def _file_stats(path: str) -> TrainingFileStats:
    data = load_training_file(path)
    rows, columns = len(data.dataset), data.roles
    first = data.dataset[: min(1_000, rows)]
    sentences = list(itertools.chain.from_iterable(first[name] for name in columns.sentences))
    return TrainingFileStats(rows, columns, sum(len(sentence.split()) for sentence in sentences) / len(sentences))


@functools.cache
def flops_per_second() -> float:
    """Multiplications and additions a second in the products of a feed-forward layer, on the device that trains."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    first, second = torch.randn(2_048, 768, device=device), torch.randn(768, 3_072, device=device)
    first @ second
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < 0.3:
        (first @ second).sum().item()
        count += 1
    return count * 2 * first.numel() * second.shape[1] / (time.perf_counter() - started)
