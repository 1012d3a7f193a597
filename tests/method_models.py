"""Models of every method on tiny encoders, as training leaves them, for the tests beside this file."""

import zlib
from dataclasses import replace

import torch

from dcpcse.data.collator import ViewCollator
from dcpcse.data.examples import EPOCH_KEY, ROW_KEY, without_index
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.losses.guide import Guide, GuideSource
from dcpcse.methods import Method, build_method, model_arguments

RECIPES = {
    "dcpcse": ("bert", {"method": "dcpcse", "pre_seq_len": 3, "mlp_only_train": True}),
    "dcpcse, head at inference": ("roberta", {"method": "dcpcse", "pre_seq_len": 3, "mlp_only_train": False}),
    "dcpcse, projection": ("bert", {"method": "dcpcse", "pre_seq_len": 3, "prefix_projection": True}),
    "dcpcse, vectors": ("roberta", {"method": "dcpcse", "pre_seq_len": 3, "prompt_form": "vectors"}),
    "scpcse": ("bert", {"method": "scpcse"}),
    "promptbert": ("roberta", {"method": "promptbert"}),
    "promptbert, deep": ("roberta", {"method": "promptbert", "tuning": "deep", "pre_seq_len": 3}),
    "conpvp": ("bert", {"method": "conpvp"}),
    "conpvp, lora": ("roberta", {"method": "conpvp", "tuning": "lora"}),
    "simcse": ("bert", {"method": "simcse"}),
    "simcse, lora": ("bert", {"method": "simcse", "tuning": "lora", "lora_r": 2}),
    "esimcse": ("bert", {"method": "esimcse"}),
    "consert": ("roberta", {"method": "consert"}),
    "d2cse": ("roberta", {"method": "d2cse", "pre_seq_len": 3}),
    "diffcse": ("bert", {"method": "diffcse"}),
    "sbert": ("roberta", {"method": "sbert"}),
    "cosent": ("bert", {"method": "cosent", "tuning": "deep", "pre_seq_len": 3}),
    "angle": ("roberta", {"method": "angle"}),
    "rankcse": ("bert", {"method": "rankcse"}),
}
"""Name → kind of encoder, options of train.py."""

COLUMNS = dict.fromkeys(("sbert", "cosent", "angle"), ("anchor", "positive", "negative"))
"""Of methods that cannot do with sentences alone."""

OTHER_ENCODERS = {"d2cse": "generator_name", "diffcse": "generator_name", "rankcse": "teacher"}
"""Method → the option that names a second encoder, which it needs."""


def with_encoder(options: dict, encoder: str) -> dict:
    """Options of train.py, with the second encoder that their method needs."""
    name = OTHER_ENCODERS.get(options.get("method"))
    return options if name in (None, *options) else {**options, name: [encoder] if name == "teacher" else encoder}


def with_guides(method: Method) -> Method:
    """A method with its guides loaded, as training does it."""
    guides = {
        name: Guide(plain_encoder(load_backbone(one.encoder), one.pooler or "avg"), method.views, name)
        for name, one in method.guides.items()
        if isinstance(one, GuideSource)
    }
    return replace(method, guides={**method.guides, **guides})


def columns_of(method: str) -> tuple[str, ...]:
    """Columns of data that the method can be built for."""
    return COLUMNS.get(method, ("anchor",))


def rows_of(sentences, method: str, count: int) -> list[dict[str, str]]:
    """Training examples for it."""
    columns = columns_of(method)
    return [{name: sentences[(i + 4 * k) % len(sentences)] for k, name in enumerate(columns)} for i in range(count)]


def model_of(recipe: str, tiny, seed: int = 1) -> SentenceEncoder:
    """A model whose trained numbers lie elsewhere than at the start."""
    kind, options = RECIPES[recipe]
    options = with_encoder(options, tiny(kind))
    torch.manual_seed(seed)
    model = build_method(load_backbone(tiny(kind)), model_arguments(**options), columns_of(options["method"])).model
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.requires_grad_(False).eval()


def trained_model(folder: str, seed: int = 1, **options) -> SentenceEncoder:
    """A model of `build_method` on an encoder, as training leaves it: every trained number matters."""
    options = with_encoder(options, folder)
    backbone = load_backbone(folder, lm_head="checkpoint" if options.get("org_mlp") else None)
    torch.manual_seed(seed)
    model = build_method(backbone, model_arguments(**options), columns_of(options["method"])).model
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # prompts have few rows
                parameter.add_(torch.randn_like(parameter) * (0.5 if parameter.shape[0] < 5 else 0.05))
    stir_adapter(model)
    return model.eval()


def stir_adapter(model: SentenceEncoder) -> None:
    """Give the matrices B of a LoRA adapter values that matter; they begin with zeros, and A has no gradient then."""
    with torch.no_grad():
        for name, matrix in model.encoder.parts().get("lora", {}).items():
            if "lora_B" in name:
                matrix.normal_(std=0.2)


class Collator(ViewCollator):
    """That of training for examples of no file: what they say is their row, in any batch of any process."""

    @classmethod
    def of(cls, method, max_length: int, **options) -> "Collator":
        model, views = method.model, method.views
        options |= {"templates": model.templates, "width": model.dimension}
        return cls(
            model.tokenizer,
            views,
            max_length,
            guides={name: guide.model for name, guide in method.guides.items()},
            **options,
        )

    def __call__(self, examples):
        rows = [zlib.crc32(repr(sorted(example.items())).encode()) for example in examples]
        numbered = [{**example, ROW_KEY: row, EPOCH_KEY: 0} for example, row in zip(examples, rows, strict=True)]
        return without_index(super().__call__(numbered))[0]
