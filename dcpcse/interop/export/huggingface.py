"""The trained encoder as a plain Hugging Face folder, where it is the whole truth."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.interop.export.usage_page import embed, needs_other_pooler, pooling_of, write_page

ENCODER_NOTE = "A trained sentence encoder; sentence-transformers reads how it is pooled from `modules.json`."


def obstacles(model: SentenceEncoder) -> list[str]:
    """Why AutoModel would give other vectors; empty where it gives the same."""
    found = model.plain_obstacles()
    if not found and needs_other_pooler(model):
        found.append(f"{model.source.model_type} encoders have no pooler that its MLP could be")
    return found


def write(model: SentenceEncoder, folder: Path) -> None:
    """Weights, configuration, tokenizer, a page, and what sentence-transformers has to know."""
    model.tuned_backbone().write(folder)
    model.tokenizer.save_pretrained(folder)
    imports = ("import torch", "from transformers import AutoModel, AutoTokenizer")
    load = "AutoModel.from_pretrained(FOLDER, dtype=torch.float32)"
    write_page(model, folder, "transformers", imports, load, ENCODER_NOTE)


def read_back(model: SentenceEncoder, folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Vectors by transformers alone."""
    module = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    return embed(module, folder, sentences, model.encoder.max_tokens, pooling_of(model))
