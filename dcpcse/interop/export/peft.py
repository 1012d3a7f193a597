"""A PREFIX_TUNING adapter for PeftModel, where peft gives the very same vectors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel

from dcpcse.encoders.heads import TanhMLP
from dcpcse.encoders.prompt_support import peft_config
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.backbone_folder import TunedBackbone
from dcpcse.encoders.storage.manifest import PEFT_CONFIG, PEFT_PROMPTS, PROMPT_KEY
from dcpcse.interop.export.usage_page import embed, needs_other_pooler, pooling_of, write_page
from dcpcse.utils.files import write_json_atomic
from dcpcse.utils.safetensors_io import save_tensors

POOLER = "base_model.pooler.dense"
"""Where peft keeps a pooler that was trained with an adapter."""

NOTE = """Prompts for the frozen encoder `{base}`, in peft's format. Neither peft nor transformers knows how vectors
are taken from the output, so it is shown here."""


def obstacles(model: SentenceEncoder) -> list[str]:
    """Why peft would give other vectors; empty where it gives the same."""
    found = model.encoder.peft_obstacles()
    if model.templates:
        found.append("its sentences stand in a template")
    elif model.pooling not in TunedBackbone.POOLINGS:
        found.append(f"its pooling, {model.pooling}, is neither [CLS] nor the mean of the last layer")
    if model.head_at_inference and not isinstance(model.head, TanhMLP):
        found.append("its head at inference is not a tanh MLP")
    elif needs_other_pooler(model):
        found.append(f"{model.source.model_type} encoders have no pooler that its MLP could be")
    return found


def write(model: SentenceEncoder, folder: Path) -> None:
    """The adapter, its MLP as the pooler where inference uses one, the tokenizer and a page."""
    source, prompt = model.source, model.encoder.prompt
    config, tensors = peft_config(prompt.shape, source.name_or_path, source.revision), {PROMPT_KEY: prompt.table()}
    if model.head_at_inference:
        config["modules_to_save"] = ["pooler"]
        tensors |= {f"{POOLER}.{name}": tensor for name, tensor in model.head.dense.state_dict().items()}
    save_tensors(folder / PEFT_PROMPTS, tensors)
    write_json_atomic(folder / PEFT_CONFIG, config)
    model.tokenizer.save_pretrained(folder)
    imports = ("import torch", "from peft import PeftModel", "from transformers import AutoModel, AutoTokenizer")
    revision = "" if source.revision is None else f", revision={source.revision!r}"
    base = f"AutoModel.from_pretrained({source.name_or_path!r}{revision}, dtype=torch.float32)"
    note = NOTE.format(base=source.name_or_path)
    write_page(model, folder, "peft", imports, f"PeftModel.from_pretrained({base}, FOLDER)", note)


def read_back(model: SentenceEncoder, folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Vectors by peft and transformers alone."""
    from peft import PeftModel

    source = model.source
    base = AutoModel.from_pretrained(source.name_or_path, revision=source.revision, dtype=torch.float32)
    module = PeftModel.from_pretrained(base, folder).eval()
    return embed(module, folder, sentences, model.encoder.max_tokens, pooling_of(model))
