"""Export a model as a plain Hugging Face folder. This is possible if the model is only a trained encoder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.interop.export.usage_page import embed, needs_other_pooler, write_page

ENCODER_NOTE = "A trained sentence encoder. sentence-transformers reads the pooling from `modules.json`."


def obstacles(model: SentenceEncoder) -> list[str]:
    """Return the reasons why AutoModel would return different embeddings, or []."""
    reasons = model.plain_obstacles()
    if not reasons and needs_other_pooler(model):
        reasons.append(f"{model.source.model_type} encoders have no pooler for its MLP")
    return reasons


def write(model: SentenceEncoder, folder: Path, options: EncodeOptions) -> None:
    """Write the model's weights, configuration and tokenizer, a README and the files of sentence-transformers.

    Args:
        model: The model to export.
        folder: The folder to write.
        options: Not used, since the format cannot contain options of encoding.
    """
    model.tuned_backbone().write(folder)
    model.tokenizer.save_pretrained(folder)
    imports = ("import torch", "from transformers import AutoModel, AutoTokenizer")
    load = "AutoModel.from_pretrained(FOLDER, dtype=torch.float32)"
    write_page(model, folder, "transformers", imports, load, ENCODER_NOTE)


def read_back(model: SentenceEncoder, folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Return the embeddings (N, H) that transformers alone computes from an exported folder, to check the export.

    Args:
        model: The exported model, which determines the pooling.
        folder: The exported folder.
        sentences: N sentences.
    """
    module = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    return embed(model, module, folder, sentences)
