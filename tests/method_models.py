"""Models of every method on tiny encoders, as training leaves them, for the tests beside this file."""

import torch

from dcpcse.backbones import load_backbone
from dcpcse.methods import build_method, model_arguments
from dcpcse.models import SentenceEncoder

RECIPES = {
    "dcpcse": ("bert", {"method": "dcpcse", "pre_seq_len": 3, "mlp_only_train": True}),
    "dcpcse, head at inference": ("roberta", {"method": "dcpcse", "pre_seq_len": 3, "mlp_only_train": False}),
    "dcpcse, projection": ("bert", {"method": "dcpcse", "pre_seq_len": 3, "prefix_projection": True}),
    "scpcse": ("bert", {"method": "scpcse"}),
    "promptbert": ("roberta", {"method": "promptbert"}),
    "promptbert, deep": ("roberta", {"method": "promptbert", "tuning": "deep", "pre_seq_len": 3}),
    "conpvp": ("bert", {"method": "conpvp"}),
    "simcse": ("bert", {"method": "simcse"}),
    "esimcse": ("bert", {"method": "esimcse"}),
    "d2cse": ("roberta", {"method": "d2cse", "pre_seq_len": 3}),
    "diffcse": ("bert", {"method": "diffcse"}),
    "sbert": ("roberta", {"method": "sbert"}),
}
"""Name → kind of encoder, options of train.py."""

COLUMNS = {"sbert": ("anchor", "positive", "negative")}
"""Of methods that cannot do with sentences alone."""


def columns_of(method: str) -> tuple[str, ...]:
    """Columns of data that the method can be built for."""
    return COLUMNS.get(method, ("anchor",))


def rows_of(sentences, method: str, count: int) -> list[dict[str, str]]:
    """Training examples for it."""
    columns = columns_of(method)
    return [{name: sentences[(i + 4 * k) % 12] for k, name in enumerate(columns)} for i in range(count)]


def model_of(recipe: str, tiny, seed: int = 1) -> SentenceEncoder:
    """A model whose trained numbers lie elsewhere than at the start."""
    kind, options = RECIPES[recipe]
    if options["method"] in ("d2cse", "diffcse"):
        options = {**options, "generator_name": tiny(kind)}
    torch.manual_seed(seed)
    model = build_method(load_backbone(tiny(kind)), model_arguments(**options), columns_of(options["method"])).model
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.requires_grad_(False).eval()
