"""Adversarial views against transformers' layers and autograd, sentence by sentence in float64."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModel

from dcpcse.data.collator import ViewCollator
from dcpcse.data.views import View
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import set_packed
from dcpcse.losses import Contrastive, Term
from dcpcse.losses.pair_classification import Classification, Pair
from dcpcse.methods import Adversary, Method, build_method, model_arguments
from dcpcse.training.gradient_cache import run_in_chunks
from dcpcse.training.step import TrainingStep
from dcpcse.training.validate_setup import require_inner_gradient
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

ROLES = ("anchor", "positive", "negative")
VIEWS = (*(View(role, role) for role in ROLES), View("steep", "anchor"), View("steep too", "positive"))
EPSILON = 0.7
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def step_of(tiny, kind="bert", **options):
    """A step in float64 with two adversarial views, and a batch of 5 examples of unequal lengths."""
    backbone = load_backbone(tiny(kind, **STILL))
    args = model_arguments(method="simcse", pooler_type="avg", **options)
    torch.manual_seed(0)
    model = build_method(backbone, args, ["anchor"]).model
    pairs = [Pair("anchor", "positive", "entailment"), Pair("anchor", "negative", "contradiction")]
    classification = Classification(model.dimension, ["contradiction", "entailment"], pairs)
    terms = {"supervised": Term(classification), "contrastive": Term(Contrastive(positive="steep"))}
    adversary = Adversary("supervised", EPSILON, {"steep": "anchor", "steep too": "positive"})
    return TrainingStep(Method(model, VIEWS, terms, adversary)).double().train()


@pytest.fixture
def batch(tiny, sentences):
    rows = [{role: sentences[(i + 4 * k) % 12] for k, role in enumerate(ROLES)} for i in range(5)]
    return ViewCollator(load_backbone(tiny("bert")).tokenizer, VIEWS, 24)(rows)


def by_hand(step, folder, batch):
    """The adversarial embeddings (5, H) of anchors and positives."""
    plain, head = AutoModel.from_pretrained(folder).double().eval(), step.losses["supervised"].head
    found = {"steep": [], "steep too": []}
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        texts = [row[: int(own.sum())].unsqueeze(0) for row, own in zip(ids, mask, strict=True)]
        embedded = [plain.embeddings(text).detach().requires_grad_() for text in texts[:3]]
        u, v, w = (plain.encoder(given).last_hidden_state[0].mean(0) for given in embedded)
        loss = 0
        for other, target in ((v, 1), (w, 0)):
            logits = nn.functional.linear(torch.cat([u, other, (u - other).abs()]), head.weight, head.bias)
            loss = loss - logits.log_softmax(0)[target]
        gradients = torch.autograd.grad(loss, embedded)
        for name, given, gradient in zip(found, embedded[:2], gradients[:2], strict=True):
            moved = given + EPSILON * gradient / gradient.norm(dim=-1, keepdim=True)
            found[name].append(plain.encoder(moved).last_hidden_state[0].mean(0))
    return {name: torch.stack(vectors).detach() for name, vectors in found.items()}


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_an_adversarial_view_is_a_step_uphill_at_every_token(packed, tiny, batch):
    step = step_of(tiny)
    set_packed(step, packed)
    found = step.encode(**batch).embeddings
    for name, expected in by_hand(step, tiny("bert", **STILL), batch).items():
        torch.testing.assert_close(found[name].detach(), expected, rtol=0, atol=1e-10)
    assert all(parameter.grad is None for parameter in step.parameters())
    for name, same in (("steep", "anchor"), ("steep too", "positive")):
        assert ((found[name] - found[same]).abs().amax(1) > 1e-2).all()


@pytest.mark.parametrize("options", [{}, {"tuning": "deep", "pre_seq_len": 3}], ids=["full", "deep"])
def test_chunks_take_the_same_steps(options, tiny, batch):
    """The gradient cache looks at a chunk without a gradient; the step uphill has its own."""
    step, weights = step_of(tiny, **options), {"supervised": 1.0, "contrastive": 1.0}

    def run(part, replay, last):
        terms = step(replay=replay, **part)
        sum(terms.values()).backward()
        return terms

    def gradients():
        found = {name: weight.grad.clone() for name, weight in step.named_parameters() if weight.grad is not None}
        step.zero_grad()
        return found

    terms = step(**batch)
    sum(terms.values()).backward()
    at_once, in_chunks = gradients(), run_in_chunks(step, batch, 2, weights, run)
    for name, gradient in gradients().items():
        atol = 1e-8 * float(at_once[name].abs().max()) + 1e-13
        torch.testing.assert_close(gradient, at_once[name], rtol=1e-6, atol=atol)
    for name, term in terms.items():
        torch.testing.assert_close(in_chunks[name], term.detach(), rtol=1e-9, atol=0)


def test_ways_to_compute_without_an_inner_gradient_are_refused():
    method = SimpleNamespace(adversary=Adversary("supervised", 1.0, {}), model=SimpleNamespace(method="mine"))
    run = {"torch_compile": False, "fp16": False}
    require_inner_gradient(method, SimpleNamespace(**run))
    for option in run:
        with pytest.raises(UserError, match=f"--{option}: --method mine needs the gradient"):
            require_inner_gradient(method, SimpleNamespace(**{**run, option: True}))
