"""Packed batches against padded ones: the same numbers, and no pad in any linear layer."""

from itertools import product

import pytest
import torch
from method_models import Collator, columns_of, rows_of, with_encoder, with_guides
from test_encoder import prompted
from tiny_encoders import by_kind
from torch import nn
from torch.utils.data._utils.pin_memory import pin_memory

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder, set_packed
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.prompt_support import PACKABLE
from dcpcse.encoders.prompts import ShallowPrompt
from dcpcse.methods import build_method, fill_defaults, model_arguments
from dcpcse.training.step import TrainingStep

SIZES = (11, 3, 24, 7, 3)

MASKS = {
    "right": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]),
    "left and holes": torch.tensor([[0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 0, 0]]),
    "full": torch.ones(3, 4, dtype=torch.long),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_packing_takes_the_real_tokens_in_order_and_puts_them_back(mask):
    packing = Packing.of(mask)
    batch = torch.arange(12.0).view(3, 4, 1) + 1
    wanted = [batch[i, j] for i in range(3) for j in range(4) if mask[i, j]]
    packed = packing.pack(batch)
    assert packed.shape == (1, len(wanted), 1)
    assert torch.equal(packed[0], torch.stack(wanted))
    assert torch.equal(packing.unpack(packed, 4), batch * mask.unsqueeze(-1))
    rows = packing.to_rows(packed[0])
    for i in range(3):
        own = batch[i][mask[i].bool()]
        assert torch.equal(rows[i, : len(own)], own)
        assert not rows[i, len(own) :].any()
        assert packing.real[i].tolist() == [True] * len(own) + [False] * (rows.shape[1] - len(own))
        assert torch.equal(packed[0][packing.first[i]], own[0])
    assert torch.equal(packing.from_rows(rows), packed[0])


def test_the_packings_of_parts_are_those_of_their_masks_and_a_loader_pins_their_tensors(monkeypatch):
    for mask, rows in product(MASKS.values(), ((1, 1, 1), (2, 1), (3,))):
        for part, own in zip(Packing.of(mask).split(rows, 4), mask.split(rows), strict=True):
            expected = vars(Packing.of(own))
            assert part.sizes == expected.pop("sizes")
            for name, tensor in expected.items():
                assert torch.equal(getattr(part, name), tensor), name
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    packing = Packing.of(MASKS["right"])
    pinned = pin_memory({"packing": packing})["packing"]
    assert torch.equal(pinned.source, packing.source + 1) and torch.equal(pinned.real, packing.real + 1)
    assert pinned.sizes == packing.sizes


def batch_of(encoder: Encoder, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    config = encoder.backbone.config
    ids = torch.randint(5, config.vocab_size, (len(SIZES), max(SIZES)), generator=random)
    mask = torch.zeros_like(ids)
    for row, size in enumerate(SIZES):
        ids[row, size:] = config.pad_token_id
        mask[row, :size] = 1
    return ids, mask


def plain(folder: str) -> Encoder:
    return Encoder(load_backbone(folder).model.double()).eval()


def both_ways(encoder: Encoder, *args, **kwargs) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    set_packed(encoder, True)
    assert encoder.packed
    packed = encoder(*args, **kwargs)
    set_packed(encoder, False)
    return packed, encoder(*args, **kwargs)


@pytest.mark.parametrize("kind", by_kind(PACKABLE))
def test_hidden_states_of_all_layers_and_gradients_of_prompts_are_those_of_padded_batches(tiny, kind):
    """ModernBERT's window of four tokens to each side is shorter than the texts."""
    for encoder in (prompted(tiny(kind)).double(), plain(tiny(kind))):
        ids, mask = batch_of(encoder)
        packed, padded = both_ways(encoder, ids, mask, all_layers=True)
        assert len(packed) == len(padded) > 1
        for ours, expected in zip(packed, padded, strict=True):
            torch.testing.assert_close(ours[mask.bool()], expected[mask.bool()], atol=1e-10, rtol=1e-10)
            assert not ours[~mask.bool()].any()
        if encoder.prompt is not None:
            weights = torch.randn(*ids.shape, 32, dtype=torch.float64) * mask.unsqueeze(-1)
            gradient, expected = (
                torch.autograd.grad((states[-1] * weights).sum(), encoder.prompt.table.weight)[0]
                for states in (packed, padded)
            )
            assert expected.abs().max() > 1e-3
            torch.testing.assert_close(gradient, expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("kind", ["bert", "electra", "modernbert", "deberta"])
def test_linear_layers_see_real_tokens_only_unless_the_kind_is_not_known(tiny, kind):
    encoder = plain(tiny(kind)) if kind == "deberta" else prompted(tiny(kind)).double()
    set_packed(encoder, True)
    assert encoder.packed is (kind != "deberta")
    ids, mask = batch_of(encoder)
    seen = set()
    for module in encoder.backbone.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda module, args, output: seen.add(args[0].shape[:-1].numel()))
    with torch.no_grad():
        encoder(ids, mask)
    assert (seen == {int(mask.sum())} != {mask.numel()}) is encoder.packed


def test_what_stands_in_the_input_stands_there_in_packed_batches_too(tiny):
    """A condition behind the embedding layer, a [CLS] prompt, and tokens with places of their own."""
    encoder = prompted(tiny("bert")).double()
    ids, mask = batch_of(encoder)
    encoder.cls_prompt = ShallowPrompt(torch.randn(1, 32, dtype=torch.float64))
    condition = torch.randn(len(ids), 32, dtype=torch.float64)
    index = torch.arange(ids.shape[1]).repeat(len(ids), 1) + torch.arange(len(ids)).unsqueeze(1)
    real = mask.bool()
    for options in ({}, {"condition": condition, "as_encoder": False}, {"index": index}):
        with torch.no_grad():
            packed, padded = both_ways(encoder, ids, mask, **options)
        torch.testing.assert_close(packed[-1][real], padded[-1][real], atol=1e-10, rtol=1e-10)


METHODS = {
    "dcpcse": {"pre_seq_len": 3, "do_mlm": True},
    "scpcse": {"prototypes": "both"},
    "promptbert": {"denoise_by": "template", "further_templates": ['[MASK] is "{sentence}" .']},
    "promptbert by attention": {"denoise_by": "attention"},
    "conpvp": {},
    "simcse": {"pooler_type": "avg_first_last"},
    "simcse by LoRA": {"tuning": "lora", "lora_target_modules": ["all-linear"]},
    "d2cse": {"pre_seq_len": 3, "cls_prompt": True},
    "d2cse on anchors": {"pre_seq_len": 3, "crtd_views": "anchor"},
    "diffcse": {"crtd_reduction": "mean_all"},
    "sbert": {"tuning": "deep", "pre_seq_len": 3},
    "consert": {"augmentation_1": "dropout"},
}


@pytest.mark.parametrize("name", METHODS)
def test_whole_training_steps_are_those_of_padded_batches(tiny, sentences, name):
    """Loss and gradients of every method, all passes, float64, dropout off."""
    kind, options = name.split()[0], dict(METHODS[name])
    folder = tiny("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    options = with_encoder({"method": kind, **options}, tiny("bert", seed=3))
    args = model_arguments(model_name_or_path=folder, prompt_dropout=None, **options)
    backbone = load_backbone(folder, lm_head="checkpoint")
    torch.manual_seed(0)
    method = build_method(backbone, fill_defaults(args, columns_of(kind)), columns_of(kind))
    method = with_guides(method)
    step = TrainingStep(method).double().train()
    batch = Collator.of(method, 24)(rows_of(sentences, kind, 5))
    found = {}
    for packed in (True, False):
        set_packed(step, packed)
        step.zero_grad()
        torch.manual_seed(7)
        terms = step(**batch)
        sum(terms.values()).backward()
        found[packed] = terms, {n: p.grad for n, p in step.named_parameters() if p.grad is not None}
    for term, expected in found[False][0].items():
        torch.testing.assert_close(found[True][0][term], expected, atol=1e-9, rtol=1e-9)
    assert found[True][1].keys() == found[False][1].keys()
    for parameter, expected in found[False][1].items():
        scale = expected.abs().max().item()
        torch.testing.assert_close(found[True][1][parameter], expected, atol=1e-8 * scale + 1e-12, rtol=1e-7)
