"""PromptBERT with further templates: the mean loss over the positives, against models of two templates and loops."""

import pytest
import torch
import torch.nn.functional as F
from method_models import Collator

from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import build_method, model_arguments
from dcpcse.training.step import TrainingStep

pytestmark = pytest.mark.usefixtures("on_command_line")

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ONE, TWO = 'This sentence of "{sentence}" means [MASK].', 'This sentence : "{sentence}" means [MASK].'
THREE, FOUR = 'The "{sentence}" was said of [MASK] .', '[MASK] is what "{sentence}" means in the village .'
TRIPLETS = ["anchor", "positive", "negative"]


def built(tiny, sentences, columns=("anchor",), **options):
    """A training step in float64 with the same weights for all options, and a batch of 4 examples."""
    args = model_arguments(method="promptbert", template=ONE, temp=0.5, **options)
    torch.manual_seed(0)
    step = TrainingStep(method := build_method(load_backbone(tiny("bert", **NO_DROPOUT)), args, columns)).double()
    with torch.no_grad():
        step.model.head.dense.weight.normal_(generator=torch.Generator().manual_seed(1))  # so that sentences differ
    rows = [{name: sentences[(i + 4 * k) % 12] for k, name in enumerate(columns)} for i in range(4)]
    return step, Collator.of(method, 16)(rows)


def total(step, terms):
    return sum(step.terms[name].weight * term for name, term in terms.items())


@pytest.mark.parametrize("denoise", [True, False])
def test_the_loss_is_the_mean_of_those_with_each_template_as_the_second(denoise, tiny, sentences):
    """Each view then subtracts the vector of its own template, or none."""
    step, batch = built(tiny, sentences, second_template=TWO, further_templates=[THREE, FOUR], denoise=denoise)
    terms = step(**batch)
    assert list(terms) == ["contrastive", "contrastive_further_1", "contrastive_further_2"]
    assert {step.terms[name].weight for name in terms} == {1 / 3}
    alone = [built(tiny, sentences, second_template=text, denoise=denoise) for text in (TWO, THREE, FOUR)]
    expected = [pair(**given)["contrastive"].item() for pair, given in alone]
    assert [term.item() for term in terms.values()] == pytest.approx(expected, rel=1e-9)
    assert len({round(loss, 6) for loss in expected}) == 3
    assert total(step, terms).item() == pytest.approx(sum(expected) / 3, rel=1e-9)
    step.zero_grad()
    total(step, step(**batch)).backward()
    for pair, given in alone:
        (pair(**given)["contrastive"] / 3).backward()
    mine = step.model.encoder.backbone.get_input_embeddings().weight.grad
    theirs = sum(pair.model.encoder.backbone.get_input_embeddings().weight.grad for pair, _ in alone)
    torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-12)


def test_of_triplets_the_positive_has_further_templates_and_the_hard_negative_that_of_the_positive(tiny, sentences):
    step, batch = built(tiny, sentences, TRIPLETS, second_template=TWO, further_templates=[THREE])
    views = {name: F.normalize(rows, dim=-1) for name, rows in step.encode(**batch).embeddings.items()}
    assert list(views) == [*TRIPLETS, "further_1"]
    losses = []
    for positives in (views["positive"], views["further_1"]):
        for i, anchor in enumerate(views["anchor"]):
            logits = torch.stack([row @ anchor / 0.5 for row in (*positives, *views["negative"])])
            losses.append((logits.logsumexp(0) - logits[i]).item())
    assert total(step, step(**batch)).item() == pytest.approx(sum(losses) / len(losses), rel=1e-9)
    assert batch["slots_template"].tolist() == [[0, 1, 1, 2]] * 4
    lengths = dict(zip(views, batch["slots_content"].T.tolist(), strict=True))
    assert lengths["further_1"] == lengths["positive"] != lengths["anchor"]


def test_prototypes_keep_their_templates_behind_the_further_ones_and_the_longest_template_counts(tiny, sentences):
    long = f"{'the ' * 30}{{sentence}} [MASK]"
    step, batch = built(tiny, sentences, prototypes="positive", second_template=TWO, further_templates=[THREE, long])
    plain, _ = built(tiny, sentences, second_template=TWO, prototypes="positive")
    assert list(step.terms) == ["contrastive", "contrastive_further_1", "contrastive_further_2", "prototypical"]
    found, others = ([str(one.template) for one in each.model.templates] for each in (step, plain))
    assert found == [*others[:2], THREE, long, *others[2:]]
    chosen = batch["slots_template"]
    assert chosen[:, :4].tolist() == [[0, 1, 2, 3]] * 4 and set(chosen[:, 4].tolist()) <= set(range(4, len(found)))
    assert step.model.longest_template == max(template.length for template in step.model.templates) > 30
