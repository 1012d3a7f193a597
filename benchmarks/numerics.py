"""Measure how much rounding changes the embeddings of a real encoder (the measured column of docs/training.md).

    python benchmarks/numerics.py [--model_name_or_path ENCODER] --text data/sample/sentences.txt

The reference of a vector is computed in float64, without packing, one sentence at a time. For each sentence, the
distance between vector and reference is divided by the length of the reference. The script prints the largest value
over all sentences. Prompts are drawn from N(0, 1), so they are as large as trained prompts.
"""

import argparse
import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from dcpcse.encoders.backbones import Backbone, load_backbone
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.encoder import Encoder, set_packed
from dcpcse.encoders.pooling import POOLERS
from dcpcse.encoders.templates import Template
from dcpcse.models import DeepPrompt, PromptShape, SentenceEncoder, plain_encoder
from dcpcse.utils.packages import EMBEDDED_ENCODER
from dcpcse.utils.tensor_files import set_dtype

TEMPLATE = Template.parse('This sentence of "{sentence}" means [MASK] .')
PROMPTS = 16


def models(backbone: Backbone) -> Mapping[str, SentenceEncoder]:
    """Return the plain encoder with every pooler that needs no head, and an encoder with deep prompts, by name."""
    poolers = [name for name in POOLERS if name != "cls"]
    plain = {name: plain_encoder(backbone, name, TEMPLATE if name == "mask" else None) for name in poolers}
    torch.manual_seed(0)
    prompt = DeepPrompt(PromptShape.fit(backbone.model.config, PROMPTS), std=1.0)
    encoder = Encoder(copy.deepcopy(backbone.model), prompt, position_offset=PROMPTS)
    prompted = SentenceEncoder(encoder, backbone.tokenizer, backbone.source, pooling="cls_before_pooler")
    return {**plain, f"{PROMPTS} deep prompts": prompted.requires_grad_(False).eval()}


def moved(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest distance between a found and an expected vector, relative to the expected vector's length."""
    return float((np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())


@torch.no_grad()
def exact(model: SentenceEncoder, texts: list[str]) -> np.ndarray:
    """Return the embeddings computed in float64, one text at a time."""
    reference = copy.deepcopy(model).double()
    set_packed(reference, False)
    read, pad = reference.tokenize(texts, EncodeOptions()), reference.tokenizer.pad_token_id
    return torch.stack([reference(*read.batch([i], pad))[0] for i in range(len(texts))]).numpy()


def with_threads(model: SentenceEncoder, texts: list[str], count: int) -> np.ndarray:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return model.encode(texts)
    finally:
        torch.set_num_threads(before)


def with_padding(model: SentenceEncoder, texts: list[str]) -> np.ndarray:
    set_packed(model, False)
    try:
        return model.encode(texts)
    finally:
        set_packed(model, True)


def in_bfloat16(model: SentenceEncoder, texts: list[str]) -> np.ndarray:
    half = copy.deepcopy(model)
    set_dtype(half.encoder.backbone, torch.bfloat16)
    return half.encode(texts)


def backwards(model: SentenceEncoder, texts: list[str]) -> np.ndarray:
    return model.encode(texts[::-1])[::-1]


def without_onednn(model: SentenceEncoder, texts: list[str]) -> np.ndarray:
    with torch.backends.mkldnn.flags(enabled=False):
        return model.encode(texts)


WAYS: Mapping[str, Callable[[SentenceEncoder, list[str]], np.ndarray]] = {
    "batch size 1": lambda model, texts: model.encode(texts, batch_size=1),
    "batch size 128": lambda model, texts: model.encode(texts),
    "padded": with_padding,
    "in reverse order": backwards,
    "1 thread": lambda model, texts: with_threads(model, texts, 1),
    "2 threads": lambda model, texts: with_threads(model, texts, 2),
    "without weights laid out for oneDNN": without_onednn,
    "encoder in bfloat16": in_bfloat16,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_name_or_path", default=str(EMBEDDED_ENCODER))
    parser.add_argument("--text", required=True, help="A sentence a line.")
    parser.add_argument("--lines", type=int, default=400)
    args = parser.parse_args()
    texts = Path(args.text).read_text(encoding="utf-8").splitlines()[: args.lines]
    backbone = load_backbone(args.model_name_or_path)
    largest: dict[str, float] = {}
    for name, model in models(backbone).items():
        expected = exact(model, texts)
        for way, encode in WAYS.items():
            distance = moved(encode(model, texts), expected)
            largest[way] = max(distance, largest.get(way, 0.0))
            print(f"{name:20} {way:40} {distance:.1e}", flush=True)
        if torch.cuda.is_available():
            distance = moved(copy.deepcopy(model).to("cuda").encode(texts), expected)
            print(f"{name:20} {'on a GPU':40} {distance:.1e}", flush=True)
    for way, distance in largest.items():
        print(f"{'largest':20} {way:40} {distance:.1e}")


if __name__ == "__main__":
    main()
