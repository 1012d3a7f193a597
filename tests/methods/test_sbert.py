"""What SBERT trains and what the data decide; its numbers are compared with the public code in tests/parity."""

import pytest
import torch

from dcpcse.data.columns import CLASSES, Columns
from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import build_method, fill_defaults, model_arguments

pytestmark = pytest.mark.usefixtures("on_command_line")

PAIR = ["anchor", "positive"]
LABELLED, SCORED = Columns([*PAIR, "label"], CLASSES), Columns([*PAIR, "score"], scores=(0.0, 5.0))
TRIPLES = Columns([*PAIR, "negative"])
TWO_WAY = Columns([*PAIR, "label"], CLASSES[:2])
TEMPLATE = 'This sentence : "{sentence}" means [MASK] .'


def built(tiny, columns, **options):
    torch.manual_seed(0)
    return build_method(load_backbone(tiny("bert")), model_arguments(method="sbert", **options), columns)


def test_it_trains_the_encoder_and_means_by_default(tiny):
    settled = fill_defaults(model_arguments(method="sbert"), LABELLED)
    assert (settled.tuning, settled.pooler_type) == ("full", "avg")
    method = built(tiny, LABELLED)
    assert method.model.head is None
    assert [view.name for view in method.views] == PAIR
    assert list(method.terms) == ["classification"]
    assert method.negatives(8) is None
    assert built(tiny, SCORED).terms["regression"].loss.largest == 5.0
    assert built(tiny, SCORED, largest_score=8.0).terms["regression"].loss.largest == 8.0
    assert built(tiny, TWO_WAY).terms["classification"].loss.head.out_features == 2
    assert built(tiny, [*PAIR, "label"]).terms["classification"].loss.classes == CLASSES  # not known: all are expected
    names = {name for name, _ in method.model.named_parameters()}  # without the classifier
    assert names == {name for name, _ in built(tiny, SCORED).model.named_parameters()}


@pytest.mark.parametrize(("columns", "source"), [(LABELLED, "anchor"), (SCORED, "anchor"), (TRIPLES, "positive")])
def test_prototypes_are_of_a_sentence_that_means_the_same(columns, source, tiny):
    options = {"prototypes": "both", "pooler_type": "mask", "template": TEMPLATE, "temp": 0.1}
    method = built(tiny, columns, **options)
    assert list(method.terms) == ["regression" if columns is SCORED else "classification", "prototypical"]
    columns_of = {view.name: view.column for view in method.views}
    assert columns_of["prototype"] == columns_of["negated"] == source
    assert method.terms["prototypical"].loss.temperature == 0.1
