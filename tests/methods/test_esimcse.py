"""ESimCSE against its definitions: repeated tokens, averages in closed form, the queue and its loss in loops."""

import copy
from collections import Counter
from itertools import groupby
from random import Random

import pytest
import torch

from dcpcse.data.collator import ViewCollator, slots_of
from dcpcse.encoders.backbones import load_backbone
from dcpcse.losses.momentum_contrastive import MomentumContrastive
from dcpcse.methods import build_method, fill_defaults, model_arguments
from dcpcse.methods.esimcse import WordRepetition
from dcpcse.training.gradient_cache import run_in_chunks
from dcpcse.training.step import TrainingStep

pytestmark = pytest.mark.usefixtures("on_command_line")

MASKED = {"pooler_type": "mask", "template": 'This sentence : "{sentence}" means [MASK] .', "denoise": True}
KINDS = {
    "full": {},
    "projection": {"tuning": "deep", "pre_seq_len": 3, "prefix_projection": True, "prefix_hidden_size": 8},
    "shallow": {"tuning": "shallow", **MASKED},
    "prototypes": {**MASKED, "prototypes": "both", "tuning": "deep", "pre_seq_len": 3},
}
TEMPERATURE, MOMENTUM, QUEUE, BATCH = 0.3, 0.7, 7, 4


def built(folder, columns=("anchor",), **options):
    """A training step in float64 and its collator; what is trained lies elsewhere than at the start."""
    options = {"temp": TEMPERATURE, "momentum": MOMENTUM, "neg_size": QUEUE, "mlp_only_train": None, **options}
    if options.get("neg_size") == 0:
        del options["momentum"]
    backbone = load_backbone(folder)
    torch.manual_seed(0)
    args = fill_defaults(model_arguments(method="esimcse", **options), list(columns))
    method = build_method(backbone, args, list(columns))
    step = TrainingStep(method).double().train()
    with torch.no_grad():
        for weight in step.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)
    return step, ViewCollator(backbone.tokenizer, method.views, 24, templates=step.model.templates, seed=1)


def batches(collate, sentences, count, columns=("anchor",), size=BATCH):
    """Batches of other sentences each, as the loader gives them."""
    texts = [f"{sentences[i % 12]} {i}" for i in range(count * size * len(columns))]
    rows = [
        {**{column: texts[i * len(columns) + k] for k, column in enumerate(columns)}, "row": i, "epoch": 0}
        for i in range(count * size)
    ]
    found = [collate(rows[start : start + size]) for start in range(0, len(rows), size)]
    return [{name: part for name, part in batch.items() if name != "rows"} for batch in found]


def loss_of(step) -> MomentumContrastive:
    return step.losses["contrastive"]


# Repeated tokens


@pytest.mark.parametrize("rate", [0.05, 0.32, 0.9])
def test_as_many_tokens_are_repeated_as_the_public_code_repeats_and_each_as_often(rate):
    """randrange(min(10, int(rate · N))) of N tokens with the special ones; none where that is zero."""
    random, repetition = Random(0), WordRepetition(rate)
    for tokens in (1, 3, 20, 60):
        ids, counts, places = list(range(100, 100 + tokens)), Counter(), Counter()
        for _ in range(1000):
            edited = repetition.edit(ids, random)
            assert list(dict.fromkeys(edited)) == ids
            times = Counter(edited)
            assert set(times.values()) <= {1, 2} and edited == [i for i in ids for _ in range(times[i])]
            counts[len(edited) - tokens] += 1
            places.update(i for i in ids if times[i] == 2)
        limit = min(10, int(rate * (tokens + 2)))
        assert set(counts) == set(range(max(limit, 1)))
        assert repetition.longest(tokens) == tokens + max(counts)
        share = 1000 / max(limit, 1)
        assert all(abs(count - share) < 5 * share**0.5 for count in counts.values())
        if limit > 1:
            mean = sum(places.values()) / tokens
            assert len(places) == tokens and all(abs(count - mean) < 6 * mean**0.5 for count in places.values())


def test_only_the_second_view_repeats_and_only_tokens_of_the_sentence(tiny, sentences):
    for options in ({}, MASKED):
        step, collate = built(tiny("bert"), **options, dup_rate=0.9)
        (batch,) = batches(collate, sentences, 1, size=8)
        tokenizer, grown = step.model.tokenizer, 0
        special = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id}
        for (first, second), masks in zip(batch["input_ids"].tolist(), batch["attention_mask"].tolist(), strict=True):
            plain, repeated = (row[: sum(mask)] for row, mask in zip((first, second), masks, strict=True))
            assert [i for i in repeated if i in special] == [i for i in plain if i in special]
            assert [token for token, _ in groupby(repeated)] == [token for token, _ in groupby(plain)]
            assert len(plain) <= len(repeated)
            grown += len(repeated) - len(plain)
        assert grown > 0
        if (slots := slots_of(batch)) is not None:
            added = slots.content.view(-1, 2).diff(dim=1)
            assert (added >= 0).all() and added.sum() == grown


# Averaged weights, the queue, the loss


def weights_of(step) -> dict:
    """What is trained in the encoder, head left out."""
    return {n: p.detach().clone() for n, p in step.model.encoder.named_parameters() if p.requires_grad}


def embedded(step, weights, batch):
    """Anchors by a copy of the model with these weights, all in evaluation, the head in use."""
    model = copy.deepcopy(step.model)
    with torch.no_grad():
        for name, weight in model.encoder.named_parameters():
            if name in weights:
                weight.copy_(weights[name])
    model.head_at_inference = model.head is not None
    model.denoising = type(model.denoising)(**{**vars(model.denoising), "inference": model.denoising.training})
    ids, mask, slots = batch["input_ids"][:, 0], batch["attention_mask"][:, 0], slots_of(batch)
    views = batch["input_ids"].shape[1]
    slots = slots and slots.map(lambda part: part[::views])
    with torch.no_grad():
        return model.eval()(ids, mask, slots)


def loop(anchors, positives, queue):
    """-log of the share of the own positive, sentence by sentence."""
    losses = []
    for i, anchor in enumerate(anchors):
        scores = [torch.cosine_similarity(anchor, other, dim=0) / TEMPERATURE for other in (*positives, *queue)]
        losses.append(torch.stack(scores).logsumexp(0) - scores[i])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_of_loops_with_a_copy_of_the_model(kind, tiny, sentences):
    """Four steps: loss, queue and averages m_n = λⁿ θ_0 + (1 - λ) Σ λ^(n-k) θ_k of the weights θ_k after k steps."""
    step, collate = built(tiny("bert"), **KINDS[kind])
    loss_fn, course, queue = loss_of(step), [weights_of(step)], []
    trained = [weight for weight in step.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.3)
    for n, batch in enumerate(batches(collate, sentences, 4)):
        average = {
            name: MOMENTUM**n * course[0][name]
            + (1 - MOMENTUM) * sum(MOMENTUM ** (n - k) * course[k][name] for k in range(1, n + 1))
            for name in course[0]
        }
        expected = embedded(step, average, batch)
        torch.manual_seed(n)
        views = step.encode(**batch).embeddings
        torch.manual_seed(n)
        loss = step(**batch)["contrastive"]
        naive = loop(views["anchor"], views["positive"], queue)
        torch.testing.assert_close(loss, naive, rtol=1e-9, atol=1e-12)
        wanted = torch.autograd.grad(naive, trained, allow_unused=True)
        optimizer.zero_grad()
        loss.backward()
        for weight, gradient in zip(trained, wanted, strict=True):
            if gradient is not None:
                torch.testing.assert_close(weight.grad, gradient, rtol=1e-6, atol=1e-11)
        queue = [*queue, *expected][-QUEUE:]
        (held,) = loss_fn.extra_negatives()
        torch.testing.assert_close(held, torch.stack(queue), rtol=1e-8, atol=1e-10)
        optimizer.step()
        with torch.no_grad():
            loss_fn.after_step(step.model)
        course.append(weights_of(step))
    assert max((course[0][name] - course[-1][name]).abs().max() for name in course[0]) > 1e-3
    assert not any(weight.requires_grad for weight in loss_fn.persistent_state().values())


def test_a_batch_larger_than_the_queue_fills_it_with_its_last_sentences(tiny, sentences):
    step, collate = built(tiny("bert"), pooler_type="avg")
    loss_fn, earlier, size = loss_of(step), [], QUEUE + 4
    for batch in batches(collate, sentences, 2, size=size):
        step(**batch)
        earlier += [*embedded(step, {}, batch)]
        (held,) = loss_fn.extra_negatives()
        torch.testing.assert_close(held, torch.stack(earlier[-QUEUE:]), rtol=1e-9, atol=1e-12)
    assert loss_fn.negatives(size, ["anchor", "positive"]) == size - 1 + QUEUE


def test_looking_draws_nothing_and_leaves_dropout_on(tiny, sentences):
    step, collate = built(tiny("bert"))
    (batch,) = batches(collate, sentences, 1)
    before = {name: module.training for name, module in step.named_modules()}
    encoded = step.encode(**batch)
    torch.manual_seed(5)
    looks = [loss_of(step).precompute(encoded)["queued"] for _ in range(2)]
    assert torch.equal(*looks)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    assert {name: module.training for name, module in step.named_modules()} == before
    assert not torch.equal(*(step.encode(**batch).embeddings["anchor"] for _ in range(2)))


def test_a_gradient_cache_has_the_queue_of_batches_at_once(tiny, sentences):
    folder = tiny("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    columns, found = ["anchor", "positive", "negative"], []
    for chunk in (5, 2):
        step, collate = built(folder, columns, **KINDS["shallow"])

        def run(part, replay, last, step=step):
            terms = step(replay=replay, **part)
            sum(terms.values()).backward()
            return terms

        for batch in batches(collate, sentences, 3, columns, size=5):
            step.zero_grad()
            if chunk == 5:
                terms = run(batch, None, True)
            else:
                terms = run_in_chunks(step, batch, chunk, {"contrastive": 1.0}, run)
        gradients = {name: p.grad.clone() for name, p in step.named_parameters() if p.grad is not None}
        found.append({"loss": terms["contrastive"].detach(), "queue": loss_of(step).queue.clone(), **gradients})
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, rtol=1e-6, atol=1e-11)


# Options


def test_without_queue_and_repetition_it_is_simcse(tiny, sentences):
    found = []
    for method, options in (("esimcse", {"neg_size": 0, "dup_rate": 0.0}), ("simcse", {"mlp_only_train": True})):
        backbone = load_backbone(tiny("bert"))
        torch.manual_seed(0)
        made = build_method(backbone, model_arguments(method=method, **options), ["anchor"])
        step = TrainingStep(made).train()
        batch = ViewCollator(backbone.tokenizer, made.views, 24)([{"anchor": text} for text in sentences[:4]])
        torch.manual_seed(3)
        found.append(step(**batch)["contrastive"])
    assert torch.equal(*found)


def test_defaults_are_the_papers_for_bert_base():
    alone = fill_defaults(model_arguments(method="esimcse"), ["anchor"])
    assert (alone.dup_rate, alone.neg_size, alone.momentum) == (0.32, 160, 0.995)
    assert (alone.tuning, alone.pooler_type, alone.mlp_only_train) == ("full", "cls", True)
    assert not fill_defaults(model_arguments(method="esimcse"), ["anchor", "positive"]).mlp_only_train
