"""Export prompts or a LoRA adapter as an adapter of PEFT, if PEFT returns the same embeddings with it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.heads import TanhMLP
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.manifest import PEFT_CONFIG, PEFT_WEIGHTS
from dcpcse.encoders.storage.model_folder import SentenceModules
from dcpcse.interop.export.usage_page import embed, needs_other_pooler, write_page
from dcpcse.utils.files import write_json_atomic
from dcpcse.utils.tensor_files import save_tensors

POOLER = {"PREFIX_TUNING": "base_model.pooler.dense", "LORA": "base_model.model.pooler.dense"}
"""A dict from kinds of adapters to the name of a trained pooler in the files of PEFT."""

NOTE = """{what} for the frozen encoder `{base}` in the format of PEFT. Neither PEFT nor transformers stores how the
output is pooled, so the code is given here."""


def obstacles(model: SentenceEncoder) -> list[str]:
    """Return the reasons why PEFT would return different embeddings, or []."""
    reasons = model.encoder.peft_obstacles()
    if model.templates:
        reasons.append("it uses a template")
    elif model.pooling not in SentenceModules.POOLINGS:
        reasons.append(f"its pooling, {model.pooling}, is none of {', '.join(SentenceModules.POOLINGS)}")
    if model.head_at_inference and not isinstance(model.head, TanhMLP):
        reasons.append("its head at inference is not a tanh MLP")
    elif needs_other_pooler(model):
        reasons.append(f"{model.source.model_type} encoders have no pooler for its MLP")
    return reasons


def write(model: SentenceEncoder, folder: Path, options: EncodeOptions) -> None:
    """Write the model's prompts or LoRA adapter, its tokenizer, a README and, if inference uses an MLP, a pooler.

    Args:
        model: The model to export.
        folder: The folder to write.
        options: Not used, since the format cannot contain options of encoding.
    """
    source = model.source
    config, tensors = model.encoder.peft_adapter(source.name_or_path, source.revision)
    if model.head_at_inference:
        config["modules_to_save"] = ["pooler"]
        pooler = POOLER[config["peft_type"]]
        tensors |= {f"{pooler}.{name}": tensor for name, tensor in model.head.dense.state_dict().items()}
    save_tensors(folder / PEFT_WEIGHTS, tensors)
    write_json_atomic(folder / PEFT_CONFIG, config)
    model.tokenizer.save_pretrained(folder)
    imports = ("import torch", "from peft import PeftModel", "from transformers import AutoModel, AutoTokenizer")
    revision = "" if source.revision is None else f", revision={source.revision!r}"
    base = f"AutoModel.from_pretrained({source.name_or_path!r}{revision}, dtype=torch.float32)"
    what = "Prompts" if model.encoder.lora is None else "A LoRA adapter"
    note = NOTE.format(what=what, base=source.name_or_path)
    write_page(model, folder, "peft", imports, f"PeftModel.from_pretrained({base}, FOLDER)", note)


def read_back(model: SentenceEncoder, folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Return the embeddings (N, H) that PEFT and transformers compute from an exported folder, to check the export.

    Args:
        model: The exported model, which determines the frozen encoder and the pooling.
        folder: The exported folder.
        sentences: N sentences.
    """
    from peft import PeftModel

    source = model.source
    base = AutoModel.from_pretrained(source.name_or_path, revision=source.revision, dtype=torch.float32)
    module = PeftModel.from_pretrained(base, folder).eval()
    return embed(model, module, folder, sentences)
