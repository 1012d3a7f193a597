"""The energy-based hinge, by itself and as an option of a method; its loop is in loops.py."""

import math

import pytest
import torch
from loops import PAIR, QUADRUPLE, TRIPLE, cosine, hinge

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


def loss_of(views, margin=MARGIN):
    loss_fn = EnergyHinge(margin)
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
        for i, anchor in enumerate(views["anchor"]):
            cosines = {(n, j): cosine(anchor, row).item() for n in [*views][1:] for j, row in enumerate(views[n])}
            own = cosines.pop(("positive", i))
            hardest.append(max(cosines.values()))
            paying += margin - own + hardest[-1] > 0
        found = {name: float(total / number) for name, (total, number) in loss_fn.metrics.items()}
        assert found == {"cosine_hardest": pytest.approx(sum(hardest) / 5), "within_margin": pytest.approx(paying / 5)}
        shares.add(paying)
    assert margin == 2 or len(shares) > 1, "all anchors pay alike: the hinge is not tried"
    loss, loss_fn = loss_of(vectors(PAIR, rows=1), margin)  # a pair alone has no negative
    assert loss.item() == 0 and [count.item() for count in loss_fn.metrics["cosine_hardest"]] == [0, 0]


def test_rows_of_other_processes_are_negatives_and_each_anchor_keeps_its_own_positive():
    """Own rows come first, as they are gathered; there are more candidates than anchors."""
    anchors, positives, negatives = vectors(TRIPLE, rows=7).values()
    every = own_and_hardest(anchors, positives, [negatives])
    for count in (1, 3):
        for found, expected in zip(own_and_hardest(anchors[:count], positives, [negatives]), every, strict=True):
            torch.testing.assert_close(found, expected[:count], rtol=1e-12, atol=0)
    own, hardest = own_and_hardest(anchors, positives[[0, 0, 2, 3, 4, 5, 6]])
    assert own[0] - hardest[0] <= 0  # the positive of another row that is the same text costs the whole margin


# As an option of a method


def built(folder, columns, **options):
    torch.manual_seed(0)
    return build_method(load_backbone(folder), model_arguments(do_eh_loss=True, **options), list(columns))


@pytest.mark.parametrize(("name", "names"), [("simcse", PAIR), ("dcpcse", QUADRUPLE), ("d2cse", TRIPLE)])
def test_a_method_has_it_beside_its_other_terms_and_takes_it_of_its_embeddings(name, names, tiny, sentences):
    generator = {"generator_name": tiny("bert")} if name == "d2cse" else {}
    method = built(tiny("bert"), names, method=name, eh_loss_margin=MARGIN, **generator)
    step = TrainingStep(method).double().eval()
    rows = [{column: sentences[(i + 4 * k) % 12] for k, column in enumerate(names)} for i in range(4)]
    batch = ViewCollator(method.model.tokenizer, method.views, 16)(rows)
    with torch.no_grad():
        found, views = step(**batch), step.encode(**batch).embeddings
    assert list(found) == ["contrastive", "energy_hinge", *(["crtd"] if generator else [])]
    assert found["energy_hinge"].item() == pytest.approx(hinge(MARGIN)(views, {}).item(), rel=1e-9)
    assert [method.terms[name].weight for name in ("contrastive", "energy_hinge")] == [1, 10]


def test_margin_and_weight_are_those_of_the_options_and_else_of_the_paper(tiny):
    given = {"eh_loss_margin": 0.0, "eh_loss_weight": 3.0, "gather_gradient": "published"}
    for options, expected in (({}, (0.2, 10.0, "exact")), (given, (0.0, 3.0, "published"))):
        term = built(tiny("bert"), PAIR, **options).terms["energy_hinge"]
        assert (term.loss.margin, term.weight, term.loss.gather_gradient) == expected
    options = {"template": "{sentence} [MASK]", "pooler_type": "mask", "prototypes": "both"}
    method = built(tiny("bert"), TRIPLE, **options)
    assert list(method.terms) == ["contrastive", "prototypical", "energy_hinge"]
    views = vectors([view.name for view in method.views])  # the pair and the negative alone are compared
    loss = method.terms["energy_hinge"].loss(EncodedBatch(None, None, None, views))
    assert loss.item() == pytest.approx(hinge(0.2)({name: views[name] for name in TRIPLE}, {}).item(), rel=1e-12)


def test_what_cannot_be_is_refused(tiny):
    backbone = load_backbone(tiny("bert"))
    for columns, options, message in (
        (PAIR, {"do_eh_loss": False, "eh_loss_margin": 0.2}, "--eh_loss_margin has no effect without --do_eh_loss"),
        (PAIR, {"method": "promptbert"}, "is an option of --method d2cse and dcpcse and diffcse and simcse"),
        *((PAIR, {"eh_loss_margin": value}, "--eh_loss_margin .*: must be at least 0") for value in (-0.1, 2.0)),
        *((PAIR, {"eh_loss_weight": weight}, "--eh_loss_weight .*: must be") for weight in (0.0, math.inf)),
        (["anchor"], {}, "--do_eh_loss needs sentence pairs, but --train_file has one column"),
    ):
        with pytest.raises(UserError, match=message):
            build_method(backbone, model_arguments(**{"do_eh_loss": True, **options}), list(columns))
