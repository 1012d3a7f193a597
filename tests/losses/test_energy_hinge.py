"""The energy-based hinge, by itself and as an option of a method; its loop is in loops.py."""

import math

import pytest
import torch
from loops import PAIR, QUADRUPLE, TRIPLE, cosine, hinge
from torch.nn import MarginRankingLoss

from dcpcse.data.collator import ViewCollator
from dcpcse.encoders.backbones import load_backbone
from dcpcse.losses import EncodedBatch
from dcpcse.losses.energy_hinge import EnergyHinge, own_and_hardest
from dcpcse.methods import build_method, model_arguments
from dcpcse.training.step import TrainingStep
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

MARGIN = 0.3


def vectors(names, rows=5, size=4, seed=0):
    """Rows of quite different lengths, so that a missing normalisation shows."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.logspace(-1, 1, rows, dtype=torch.float64).unsqueeze(1)
    return {
        name: (torch.randn(rows, size, generator=random, dtype=torch.float64) * lengths).requires_grad_()
        for name in names
    }


def loss_of(views, margin=MARGIN, **options):
    loss_fn = EnergyHinge(margin, **options)
    return loss_fn(EncodedBatch(None, None, None, views)), loss_fn


@pytest.mark.parametrize("margin", [0.0, MARGIN, 2.0])
def test_its_metrics_are_those_of_loops_at_any_margin(margin):
    """How many anchors pay, and how near their hardest negatives are."""
    shares = set()
    for seed in range(4):
        views = vectors((PAIR, TRIPLE, QUADRUPLE)[seed % 3], seed=seed)
        loss, loss_fn = loss_of(views, margin)
        assert loss.item() == pytest.approx(hinge(margin)(views, {}).item(), rel=1e-12)
        hardest, paying = [], 0
        views = {name: rows.detach() for name, rows in views.items()}
        for i, anchor in enumerate(views["anchor"]):
            candidates = ((name, j, row) for name in list(views)[1:] for j, row in enumerate(views[name]))
            others = [float(cosine(anchor, row)) for *place, row in candidates if place != ["positive", i]]
            hardest.append(max(others))
            paying += margin - float(cosine(anchor, views["positive"][i])) + max(others) > 0
        found = {name: float(total / number) for name, (total, number) in loss_fn.metrics.items()}
        assert found == {"cosine_hardest": pytest.approx(sum(hardest) / 5), "within_margin": pytest.approx(paying / 5)}
        shares.add(paying)
    assert margin == 2 or len(shares) > 1, "all anchors pay alike: the hinge is not tried"


def test_it_is_the_margin_ranking_loss_that_the_public_code_takes():
    views = vectors(TRIPLE, rows=8)
    anchors, positives, *negatives = views.values()
    own, hardest = own_and_hardest(anchors, positives, negatives)
    expected = MarginRankingLoss(margin=MARGIN)(own, hardest, torch.ones_like(own))
    assert loss_of(views)[0].item() == pytest.approx(expected.item(), rel=1e-12)


def test_rows_of_other_processes_are_negatives_and_each_anchor_keeps_its_own_positive():
    """Own rows come first, as they are gathered; there are more candidates than anchors."""
    anchors, positives, negatives = vectors(TRIPLE, rows=7).values()
    every = own_and_hardest(anchors, positives, [negatives])
    for count in (1, 3):
        for found, expected in zip(own_and_hardest(anchors[:count], positives, [negatives]), every, strict=True):
            torch.testing.assert_close(found, expected[:count], rtol=1e-12, atol=0)
    own, hardest = own_and_hardest(anchors, positives[[0, 0, 2, 3, 4, 5, 6]])
    assert own[0] - hardest[0] <= 0  # the positive of another row that is the same text costs the whole margin


def test_a_pair_alone_costs_nothing_and_gives_no_gradient():
    views = vectors(PAIR, rows=1)
    loss, loss_fn = loss_of(views)
    loss.backward()
    assert loss.item() == 0
    assert all(torch.equal(rows.grad, torch.zeros_like(rows)) for rows in views.values())
    assert [count.tolist() for count in loss_fn.metrics["cosine_hardest"]] == [0, 0]


# As an option of a method


def built(folder, columns, **options):
    torch.manual_seed(0)
    return build_method(load_backbone(folder), model_arguments(do_eh_loss=True, **options), list(columns))


@pytest.mark.parametrize(
    ("name", "names"),
    [("simcse", PAIR), ("dcpcse", TRIPLE), ("simcse", QUADRUPLE), ("d2cse", TRIPLE), ("diffcse", PAIR)],
)
def test_a_method_has_it_beside_its_other_terms_and_takes_it_of_its_embeddings(name, names, tiny, sentences):
    generator = {"generator_name": tiny("bert")} if name in ("d2cse", "diffcse") else {}
    method = built(tiny("bert"), names, method=name, eh_loss_margin=MARGIN, **generator)
    step = TrainingStep(method).double().eval()
    rows = [{column: sentences[(i + 4 * k) % 12] for k, column in enumerate(names)} for i in range(4)]
    batch = ViewCollator(method.model.tokenizer, method.views, 16)(rows)
    with torch.no_grad():
        found, views = step(**batch), step.encode(**batch).embeddings
    assert list(found) == ["contrastive", "energy_hinge", *(["crtd"] if generator else [])]
    assert found["energy_hinge"].item() == pytest.approx(hinge(MARGIN)(views, {}).item(), rel=1e-9)
    assert {n: term.weight for n, term in method.terms.items() if n != "crtd"} == {
        "contrastive": 1,
        "energy_hinge": 10,
    }


def test_margin_weight_and_gradient_are_those_of_the_options_and_else_of_the_paper(tiny):
    for given, expected in [
        ({}, (0.2, 10.0, "exact")),
        ({"eh_loss_margin": 0.0, "eh_loss_weight": 3.0}, (0.0, 3.0, "exact")),
        ({"gather_gradient": "published"}, (0.2, 10.0, "published")),
    ]:
        term = built(tiny("bert"), PAIR, **given).terms["energy_hinge"]
        assert (term.loss.margin, term.weight, term.loss.gather_gradient) == expected
    options = {"template": "{sentence} [MASK]", "pooler_type": "mask", "prototypes": "both"}
    method = built(tiny("bert"), TRIPLE, **options)
    assert list(method.terms) == ["contrastive", "prototypical", "energy_hinge"]
    views = vectors([view.name for view in method.views])  # the pair and the negative alone are compared
    loss = method.terms["energy_hinge"].loss(EncodedBatch(None, None, None, views))
    of_data = {name: views[name] for name in TRIPLE}
    assert loss.item() == pytest.approx(hinge(0.2)(of_data, {}).item(), rel=1e-12)


def test_what_cannot_be_is_refused(tiny):
    for columns, options, message in (
        (PAIR, {"do_eh_loss": False, "eh_loss_margin": 0.2}, "--eh_loss_margin has no effect without --do_eh_loss"),
        (PAIR, {"eh_loss_weight": 1.0, "do_eh_loss": False}, "--eh_loss_weight has no effect without"),
        (PAIR, {"method": "promptbert"}, "is an option of --method d2cse and dcpcse and diffcse and simcse"),
        (PAIR, {"eh_loss_margin": -0.1}, r"--eh_loss_margin -0\.1: must be at least 0 and below 2"),
        (PAIR, {"eh_loss_margin": 2.0}, "--eh_loss_margin 2: must be"),
        (PAIR, {"eh_loss_weight": 0.0}, "--eh_loss_weight 0: must be above 0"),
        (PAIR, {"eh_loss_weight": math.inf}, "--eh_loss_weight inf: must be"),
        (["anchor"], {}, "--do_eh_loss needs sentence pairs, but --train_file has one column"),
    ):
        with pytest.raises(UserError, match=message):
            args = model_arguments(**{"do_eh_loss": True, **options})
            build_method(load_backbone(tiny("bert")), args, list(columns))
