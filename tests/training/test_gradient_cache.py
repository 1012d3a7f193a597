"""The gradient cache against the same chunks in one graph with dropout, and against one pass without, in float64."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from method_models import Collator, stir_adapter, with_encoder, with_guides

from dcpcse.data.examples import NEGATIVES_KEY
from dcpcse.encoders.backbones import load_backbone
from dcpcse.losses import EncodedBatch, Loss, Term
from dcpcse.losses.base import with_precomputed
from dcpcse.losses.guide import GuideSource
from dcpcse.methods import build_method, fill_defaults, model_arguments
from dcpcse.training import gradient_cache
from dcpcse.training.gradient_cache import joint, per_row_losses, require_cachable, run_in_chunks
from dcpcse.training.step import TrainingStep
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

DEEP, HINGE = {"pre_seq_len": 3}, {"do_eh_loss": True, "eh_loss_margin": 0.5}
METHODS = {
    "dcpcse": {**DEEP, "do_mlm": True},
    "classes": {"method": "dcpcse", **DEEP, **HINGE, "temp": 0.5},
    "numbers": {"method": "dcpcse", **DEEP, **HINGE, "temp": 0.5},
    "guide": {"method": "scpcse", "prototypes": "both", "temp": 0.5},
    "promptbert": {"further_templates": ['[MASK] is "{sentence}" .']},
    "conpvp": {"instance_weight": 0.5},
    "d2cse": {**DEEP, "batchnorm": False, "cls_prompt": True, "do_mlm": True},
    "diffcse": {"batchnorm": False, "crtd_reduction": "mean_all"},
    "d2cse, scores": {"method": "d2cse", **DEEP, "batchnorm": False, "crtd_views": "anchor"},
    "sbert": {},
    "rankcse": {"temp": 0.5, "ranking_temp": 0.2, "matryoshka_dims": [32, 8]},
    "cosent": {"temp": 0.5},
    "angle": {"temp": 0.5},
    "lora": {"method": "simcse", "tuning": "lora", "lora_target_modules": ["all-linear"]},
    "consert": {"augmentation_1": "adversarial", "augmentation_2": "token_cutoff", "no_dropout": False},
}
COLUMNS = {"conpvp": ["anchor"], "diffcse": ["anchor"], "classes": ["anchor", "positive", "class"]}
COLUMNS |= {name: ["anchor", "positive", "score"] for name in ("d2cse, scores", "cosent")}
RANDOM = {name for name in METHODS if "do_mlm" in METHODS[name] or name.startswith(("d2cse", "diffcse"))}
"""Methods that mask tokens at random."""
COLUMNS["numbers"] = ["anchor", "positive", "negative_1", "negative_2", NEGATIVES_KEY]
LABELS = {"class": lambda i: i // 2, "score": lambda i: i % 5, NEGATIVES_KEY: lambda i: i % 3}


def built(tiny, sentences, name: str, dropout: float):
    folder = tiny("bert", hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    options = {"method": name, **METHODS[name]}
    if name == "lora":
        options["lora_dropout"] = dropout
    options = with_encoder(options, tiny("bert", seed=3))
    columns = COLUMNS.get(name, ["anchor", "positive", "negative"])
    backbone = load_backbone(folder, lm_head="checkpoint")
    args = model_arguments(model_name_or_path=folder, **options)
    torch.manual_seed(0)
    method = build_method(backbone, fill_defaults(args, columns), columns)
    stir_adapter(method.model)
    if name == "guide":
        method = replace(method, guides={"guide": GuideSource(tiny("roberta"))})
    method = with_guides(method)
    steps = TrainingStep(method).double().train()
    rows = [{c: sentences[(i + 4 * j) % 12] for j, c in enumerate(columns)} for i in range(7)]
    rows = [{**row, **{c: LABELS[c](i) for c in columns if c in LABELS}} for i, row in enumerate(rows)]
    return steps, Collator.of(method, 24)(rows), {name: term.weight for name, term in method.terms.items()}


def stepped(steps, terms, weights):
    """The terms, and the gradients of their weighted sum."""
    sum(weights[name] * term for name, term in terms.items()).backward()
    return terms, gradients(steps)


def gradients(steps):
    return {name: p.grad.clone() for name, p in steps.named_parameters() if p.grad is not None}


def cached(steps, batch, chunk, weights):
    """Terms and gradients by `run_in_chunks`."""

    def run(part, replay, last):
        terms = steps(replay=replay, **part)
        sum(weights.get(name, 1.0) * term for name, term in terms.items()).backward()
        return terms

    steps.zero_grad()
    torch.manual_seed(11)
    return run_in_chunks(steps, batch, chunk, weights, run), gradients(steps)


def one_graph(steps, batch, chunk, weights):
    """Terms and gradients of the same chunks with the same random numbers in one graph and one backward pass."""
    steps.zero_grad()
    torch.manual_seed(11)
    parts = list(gradient_cache._split(batch, -(-len(batch["input_ids"]) // chunk)))
    seeds = torch.randint(2**62, (len(parts),)).tolist()
    embeddings, sums, counts = [], {}, {}
    for part, seed in zip(parts, seeds, strict=True):
        torch.manual_seed(seed)
        encoded = steps.encode(**part)
        embeddings.append(encoded.embeddings)
        with torch.random.fork_rng(devices=[]):  # drawn in the first pass, which restores the generator
            sampled = {name: o.sample(encoded) for name, o in per_row_losses(steps.losses).items()}
        for name, loss_fn in per_row_losses(steps.losses).items():
            count = loss_fn.num_items(encoded, sampled[name])
            sums[name] = sums.get(name, 0) + loss_fn.mean(encoded, sampled[name]) * count
            counts[name] = counts.get(name, 0) + count
    views = {view: torch.cat([part[view] for part in embeddings]) for view in steps.view_names}
    encoded = EncodedBatch(
        None, batch["input_ids"], batch["attention_mask"], views, extras=batch, guides=dict(steps.guides.items())
    )
    terms = {name: o(with_precomputed(encoded, o)) for name, o in joint(steps.losses).items()}
    terms |= {name: sums[name] / counts[name] for name in sums}
    return stepped(steps, terms, weights)


def assert_same(found, expected):
    assert found[0].keys() == expected[0].keys()
    for name, term in expected[0].items():
        torch.testing.assert_close(found[0][name], term.detach(), rtol=1e-9, atol=1e-12)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        atol = 1e-8 * gradient.abs().max().item() + 1e-12
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("name", [*sorted(RANDOM), "rankcse", "lora", "consert"])
def test_with_dropout_it_is_the_same_chunks_in_one_graph(tiny, sentences, name):
    steps, batch, weights = built(tiny, sentences, name, 0.1)
    assert_same(cached(steps, batch, 3, weights), one_graph(steps, batch, 3, weights))
    with torch.no_grad():
        first, second = (steps.encode(**batch).embeddings["anchor"] for _ in range(2))
    assert not torch.equal(first, second), "dropout is off"


@pytest.mark.parametrize("name", METHODS)
def test_without_dropout_it_is_the_batch_at_once(tiny, sentences, name):
    """And losses in chunks of their rows change nothing."""
    steps, batch, weights = built(tiny, sentences, name, 0.0)
    whole = cached(steps, batch, 3, weights)
    if name not in RANDOM:
        steps.zero_grad()
        assert_same(whole, stepped(steps, steps(**batch), weights))
    if name not in ("sbert", "cosent"):
        for loss_fn in joint(steps.losses).values():
            assert loss_fn.has_row_chunks
            loss_fn.row_chunk = 2
        assert_same(cached(steps, batch, 3, weights), whole)


class Scaled(Loss):
    """A loss of all rows with a trained temperature."""

    def __init__(self):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, batch):
        anchors, positives = (F.normalize(batch.embeddings[name], dim=1) for name in ("anchor", "positive"))
        return F.cross_entropy(anchors @ positives.T * self.log_scale.exp(), torch.arange(len(anchors)))


def test_parameters_of_a_loss_that_compares_all_rows_have_their_gradient(tiny, sentences):
    method = build_method(load_backbone(tiny("bert")), model_arguments(method="simcse", pooler_type="avg"), ["anchor"])
    steps = TrainingStep(replace(method, terms={"own": Term(Scaled(), 0.5)})).double().eval()
    batch = Collator.of(method, 24)([{"anchor": text} for text in sentences[:7]])
    expected = stepped(steps, steps(**batch), {"own": 0.5})
    assert "losses.own.log_scale" in expected[1]
    assert_same(cached(steps, batch, 3, {"own": 0.5}), expected)


def test_only_a_chunk_is_in_memory(tiny, sentences):
    """Compares the largest number of elements saved for the backward pass at any time."""
    steps, batch, weights = built(tiny, sentences, "angle", 0.0)
    held, most = 0, 0

    class Held:
        def __init__(self, tensor):
            nonlocal held, most
            self.tensor, self.size = tensor, tensor.numel()
            held += self.size
            most = max(most, held)

        def __del__(self):
            nonlocal held
            held -= self.size

    peaks = {}
    for chunk in (2, 7):
        held = most = 0
        with torch.autograd.graph.saved_tensors_hooks(Held, lambda kept: kept.tensor):
            cached(steps, batch, chunk, weights)
        peaks[chunk] = most
    assert peaks[2] < 0.45 * peaks[7]


def test_a_run_continues_its_random_numbers_and_a_generator_runs_once_a_chunk(tiny, sentences):
    """After the two passes, the random stream of the run continues, not that of a chunk."""
    steps, batch, weights = built(tiny, sentences, "d2cse", 0.1)
    (corruption,) = (o.corruption for o in steps.losses.values() if hasattr(o, "corruption"))
    calls = []
    corruption.register_forward_hook(lambda *_: calls.append(1))
    cached(steps, batch, 3, weights)
    after = torch.rand(1)
    assert len(calls) == 3  # chunks of 7 examples
    torch.manual_seed(11)
    torch.randint(2**62, (3,))
    assert torch.equal(after, torch.rand(1))


def test_batch_normalisation_is_refused_by_name(tiny):
    args = fill_defaults(model_arguments(method="simcse", batchnorm=True), ["anchor"])
    with pytest.raises(UserError, match="--gradient_cache_chunk: batch normalisation"):
        require_cachable(build_method(load_backbone(tiny("bert")), args, ["anchor"]).model.head)
