"""Folders of sentence-transformers around tiny encoders, for the tests beside this file."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

KINDS = {"1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}


def write_sentence_folder(
    folder: Path,
    encoder: str,
    *,
    mode: str = "mean",
    normalize: bool = True,
    prompt: str | None = None,
    dense: bool = False,
    **settings,
) -> str:
    """Write an encoder with the settings of sentence-transformers to a new folder.

    mode: the pooling mode. prompt: the default prompt. settings: of sentence_bert_config.json.
    """
    shutil.copytree(encoder, folder)
    paths = ["1_Pooling", *(["2_Dense"] if dense else []), *(["3_Normalize"] if normalize else [])]
    modules = [("", "Transformer"), *((path, KINDS[path]) for path in paths)]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
    size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"pooling_mode": mode, "embedding_dimension": size}), encoding="utf-8"
    )
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if prompt is not None:
        prompts = {"prompts": {"query": prompt, "passage": "passage: "}, "default_prompt_name": "query"}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts), encoding="utf-8")
    if dense:
        add_dense_layer(folder, size)
    return str(folder)


def add_dense_layer(folder: Path, size: int) -> None:
    """Write a module Dense, which takes `size` values and returns 5."""
    (folder / "2_Dense").mkdir()
    config = {"in_features": size, "out_features": 5, "activation_function": "torch.nn.modules.activation.Tanh"}
    (folder / "2_Dense/config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {"linear.weight": torch.randn(5, size), "linear.bias": torch.zeros(5)}
    save_file(weights, folder / "2_Dense/model.safetensors")
