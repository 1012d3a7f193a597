"""The generator of replaced tokens: which tokens it replaces, by which, and which generators are refused."""

import math

import pytest
import torch
from transformers import AutoModelForMaskedLM

from dcpcse.encoders.backbones import load_tokenizer
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.losses.generator import Corruption, load_generator
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")


def corrupted(folder, sentences, **options):
    """A batch of sentences, which tokens are chosen and masked, and what they become."""
    tokenizer = load_tokenizer(folder, LoadOptions())
    generator = load_generator(folder, tokenizer, LoadOptions())
    corrupt = Corruption(TokenMasking(tokenizer, 0.5), generator, **options)
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    torch.manual_seed(0)
    masked, chosen = corrupt.masking(batch["input_ids"])
    torch.manual_seed(0)
    return tokenizer, batch, masked, chosen, corrupt(batch["input_ids"], batch["attention_mask"])


def test_only_masked_tokens_are_replaced_and_pads_and_special_ones_stay(tiny, sentences):
    tokenizer, batch, _, chosen, found = corrupted(tiny("roberta"), sentences)
    changed = found != batch["input_ids"]
    assert changed.any()
    assert not (changed & ~chosen).any()
    assert not (changed & torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))).any()


def test_argmax_everywhere_is_the_choice_of_the_generator_at_all_tokens_but_the_first(tiny, sentences):
    _, batch, masked, _, found = corrupted(tiny("bert"), sentences, choice="argmax", place="all")
    generator = AutoModelForMaskedLM.from_pretrained(tiny("bert"), dtype=torch.float32).eval()
    with torch.no_grad():
        picks = generator(input_ids=masked, attention_mask=batch["attention_mask"]).logits.argmax(-1)
    expected = torch.where(batch["attention_mask"].bool(), picks, batch["input_ids"])
    expected[:, 0] = batch["input_ids"][:, 0]
    assert torch.equal(found, expected)


def test_samples_follow_the_distribution_of_the_generator(tiny):
    tokenizer = load_tokenizer(tiny("bert"), LoadOptions())
    generator = load_generator(tiny("bert"), tokenizer, LoadOptions())
    logits = torch.tensor([0.0, math.log(3.0), -20.0]).expand(20_000, 3)
    torch.manual_seed(0)
    shares = torch.bincount(Corruption(TokenMasking(tokenizer, 0.5), generator)._pick(logits), minlength=3) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.25, 0.75, 0.0]), atol=0.015, rtol=0)


def test_a_generator_stays_in_eval_mode_unless_an_option_says_otherwise_and_others_are_refused(tiny):
    tokenizer = load_tokenizer(tiny("bert"), LoadOptions())
    for train_mode in (False, True):
        generator = load_generator(tiny("bert"), tokenizer, LoadOptions(), train_mode=train_mode)
        assert generator.train().encoder.backbone.training == train_mode
        assert not generator.eval().encoder.backbone.training
        assert not any(parameter.requires_grad for parameter in generator.parameters())
    with pytest.raises(UserError, match="its vocabulary differs from the encoder's"):
        load_generator(tiny("roberta"), tokenizer, LoadOptions())
    with pytest.raises(UserError, match=r"--generator_name .*: it cannot be loaded as a masked language model"):
        load_generator(tiny("bert", masked_lm=False), tokenizer, LoadOptions())
