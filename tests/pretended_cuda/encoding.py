"""`encode` on the pretended device: what the host waits for, and whether the vectors are those of the CPU."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import device
import numpy as np
from method_models import stir_adapter
from tiny_encoders import SENTENCES, make_encoder

from dcpcse.encoders import sentence_encoder
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.adapters import Adapters
from dcpcse.methods import build_method, model_arguments

TEXTS = [f"{sentence}{' and so on' * (i % 7)}" for i, sentence in enumerate(SENTENCES * 2)]

TOKENS = 50
"""Maximum number of tokens per batch, so that there are several batches."""

DEEP = {"method": "dcpcse", "pre_seq_len": 3, "mlp_only_train": True}
DENOISED = {"method": "promptbert", "tuning": "lora"}
MODELS = {
    "plain": ("roberta", {"method": "simcse"}),
    "prompts": ("bert", DEEP),
    "prompts in bfloat16": ("bert", DEEP),
    "prompts and a window": ("modernbert", DEEP),
    "input vectors": ("bert", {"method": "scpcse"}),
    "a denoised template": ("bert", DENOISED),
    "denoised by attention": ("bert", {**DENOISED, "denoise_by": "attention"}),
    "two templates": ("bert", {"method": "conpvp"}),
}
"""Name → kind of encoder, options."""
SAMPLE = ("prompts in bfloat16", "denoised by attention")

ADAPTERS = {
    "three": DEEP,
    "five": {**DEEP, "pre_seq_len": 5},
    "input vectors": {"method": "scpcse"},
    "LoRA": {"method": "simcse", "tuning": "lora"},
    "denoised": DENOISED,
}
"""Name → options."""


def encodings(folder: Path, sample: bool) -> Iterator[dict[str, Any]]:
    """Report the waits, the batches, and the largest difference to the vectors of the CPU of every encoder.

    sample: of two encoders and of the adapters only.
    """
    for name in SAMPLE if sample else MODELS:
        kind, options = MODELS[name]
        model = built(folder, kind, options)
        model.bf16 = name.endswith("bfloat16")
        vectors = model.encode(TEXTS)
        yield report(name, model.to(device.CUDA), model.encode, vectors)
    folders = {name: folder / f"adapter {name}" for name in ADAPTERS}
    for name, options in ADAPTERS.items():
        built(folder, "bert", options).save(folders[name])
    names = [list(ADAPTERS)[i % len(ADAPTERS)] for i in range(len(TEXTS))]
    vectors = Adapters.load(folders, device="cpu").encode(TEXTS, names)
    adapters = Adapters.load(folders, device="cuda")
    yield report("a mixed batch", adapters["three"], lambda texts: adapters.encode(texts, names), vectors)


def built(folder: Path, kind: str, options: dict[str, Any]) -> SentenceEncoder:
    place = folder / f"encoder {kind}"
    if not place.exists():
        make_encoder(place, kind, num_hidden_layers=3 if kind == "modernbert" else 1)  # of which one has no window
    model = build_method(load_backbone(place), model_arguments(**options), ("anchor",)).model.eval()
    stir_adapter(model)
    return model


def report(name: str, model: SentenceEncoder, encode: Callable, expected: np.ndarray) -> dict[str, Any]:
    assert model.device == device.CUDA
    sizes, pipeline = [], sentence_encoder.run_pipeline

    def counted(jobs, *others):
        sizes.extend(map(len, jobs))
        return pipeline(jobs, *others)

    encode(TEXTS)  # at once; the copies in half precision are kept
    with patch.multiple(sentence_encoder, GPU_TOKENS=TOKENS, run_pipeline=counted):
        device.reset()
        found = encode(TEXTS)
    lines = Counter()
    for (what, where), number in device.WAITS.items():
        lines[f"{what}: {where.split(':')[0]}"] += number
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    return {"case": name, "mode": "encode", "batches": len(sizes), "lines": lines, "difference": difference}
