"""What SBERT promises: its losses on mean embeddings of one encoder, what the data decide, and its refusals."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from dcpcse.data.collator import ViewCollator
from dcpcse.data.columns import CLASSES, Columns
from dcpcse.encoders.backbones import load_backbone
from dcpcse.losses import Classification, EncodedBatch
from dcpcse.losses.cosine_regression import CosineRegression
from dcpcse.methods import build_method, fill_defaults, model_arguments
from dcpcse.training.step import TrainingStep
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

PAIR = ["anchor", "positive"]
LABELLED, SCORED = Columns([*PAIR, "label"], CLASSES), Columns([*PAIR, "score"], scores=(0.0, 5.0))
TRIPLES = Columns([*PAIR, "negative"])
TWO_WAY = Columns([*PAIR, "label"], CLASSES[:2])
TEMPLATE = 'This sentence : "{sentence}" means [MASK] .'


def built(tiny, columns, **options):
    torch.manual_seed(0)
    return build_method(load_backbone(tiny("bert")), model_arguments(method="sbert", **options), columns)


def rows_of(sentences, columns, count=6):
    special = {"label": lambda i: columns.classes[i % len(columns.classes)], "score": lambda i: (0.0, 2.5, 5.0)[i % 3]}
    text = {name: lambda i, k=k: sentences[(i + 4 * k) % len(sentences)] for k, name in enumerate(columns)}
    return [{name: {**text, **special}[name](i) for name in columns} for i in range(count)]


# The losses


def vectors_of(step, folder, texts):
    """Mean over tokens of transformers' own encoder with the trained weights, a text at a time, in float64."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    model.load_state_dict(step.model.encoder.backbone.state_dict(), strict=False)
    found = []
    for text in texts:
        encoded = step.model.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        found.append(model(**encoded).last_hidden_state[0].mean(0).detach().numpy())
    return found


def step_of(tiny, sentences, columns, **options):
    method = built(tiny, columns, **options)
    step = TrainingStep(method).double().eval()
    rows = rows_of(sentences, columns)
    return step, rows, ViewCollator(method.model.tokenizer, method.views, 64)(rows)


def cross_entropy(step, pairs):
    """Of (u, v, row of W) triples, by loops."""
    head = step.losses["classification"].head
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    losses = []
    for u, v, target in pairs:
        logits = weight @ np.concatenate([u, v, np.abs(u - v)]) + bias
        losses.append(np.log(np.exp(logits).sum()) - logits[target])
    return np.mean(losses)


@pytest.mark.parametrize("columns", [LABELLED, TWO_WAY, Columns([*PAIR, "label"], CLASSES[1:])], ids=str)
def test_labelled_pairs_are_classified_by_their_means(columns, tiny, sentences):
    step, rows, batch = step_of(tiny, sentences, columns)
    u, v = (vectors_of(step, tiny("bert"), [row[name] for row in rows]) for name in PAIR)
    targets = [columns.classes.index(row["label"]) for row in rows]
    terms = step(**batch)
    assert terms["classification"].item() == pytest.approx(
        cross_entropy(step, zip(u, v, targets, strict=True)), rel=1e-9
    )
    assert step.losses["classification"].head.weight.shape == (len(columns.classes), 3 * 32)


def test_triples_are_classified_two_ways(tiny, sentences):
    step, rows, batch = step_of(tiny, sentences, TRIPLES)
    u, v, w = (vectors_of(step, tiny("bert"), [row[name] for row in rows]) for name in TRIPLES)
    pairs = [*((a, b, 1) for a, b in zip(u, v, strict=True)), *((a, b, 0) for a, b in zip(u, w, strict=True))]
    assert step(**batch)["classification"].item() == pytest.approx(cross_entropy(step, pairs), rel=1e-9)


@pytest.mark.parametrize(("options", "largest"), [({}, 5.0), ({"largest_score": 8.0}, 8.0)], ids=str)
def test_scored_pairs_are_regressed_to_their_share_of_the_largest(options, largest, tiny, sentences):
    step, rows, batch = step_of(tiny, sentences, SCORED, **options)
    u, v = (vectors_of(step, tiny("bert"), [row[name] for row in rows]) for name in PAIR)
    cosines = [a @ b / np.sqrt(a @ a) / np.sqrt(b @ b) for a, b in zip(u, v, strict=True)]
    errors = np.array([cosine - row["score"] / largest for cosine, row in zip(cosines, rows, strict=True)])
    assert step(**batch)["regression"].item() == pytest.approx((errors**2).mean(), rel=1e-6)
    total, number = step.losses["regression"].metrics["absolute_error"]
    assert (total / number).item() == pytest.approx(np.abs(errors).mean(), rel=1e-6)


def test_the_regression_and_its_gradient_are_those_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.losses")
    torch.manual_seed(0)
    ours, theirs = ([torch.randn(7, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)] for _ in range(2))
    for mine, other in zip(ours, theirs, strict=True):
        other.data = mine.data.clone()
    scores = torch.linspace(0, 4, 7, dtype=torch.float64)
    step = EncodedBatch(None, torch.zeros(7, 2, 1), torch.ones(7, 2, 1), dict(zip(PAIR, ours, strict=True)))
    step.extras["scores"] = scores
    loss = CosineRegression(4.0)(step)
    expected = losses.CosineSimilarityLoss(torch.nn.Identity())(
        [{"sentence_embedding": vectors} for vectors in theirs], scores / 4
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-7)  # they take scores in float32
    loss.backward()
    expected.backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-8)


def test_the_regression_is_computed_in_float32_at_least():
    step = EncodedBatch(
        None, torch.zeros(3, 2, 1), torch.ones(3, 2, 1), {n: torch.ones(3, 4).bfloat16() for n in PAIR}
    )
    step.extras["scores"] = torch.tensor([1.0, 0.999, 1.0])
    loss = CosineRegression(1.0)(step)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(1e-6 / 3, rel=1e-3)


# What it builds


def test_it_trains_the_encoder_and_means_by_default(tiny):
    settled = fill_defaults(model_arguments(method="sbert"), LABELLED)
    assert (settled.tuning, settled.pooler_type) == ("full", "avg")
    method = built(tiny, LABELLED)
    assert method.model.head is None
    assert [view.name for view in method.views] == PAIR
    assert list(method.terms) == ["classification"]
    assert method.negatives(8) is None


@pytest.mark.parametrize("columns", [LABELLED, SCORED, TRIPLES], ids=str)
@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({}, "encoder.backbone"),
        ({"tuning": "deep", "pre_seq_len": 3}, "encoder.prompt"),
        ({"tuning": "shallow", "template": TEMPLATE}, "encoder.shallow"),
    ],
    ids=["full", "deep", "shallow"],
)
def test_what_tuning_names_is_trained_and_nothing_else(options, trained, columns, tiny):
    method = built(tiny, columns, **options)
    names = {name for name, parameter in method.model.named_parameters() if parameter.requires_grad}
    assert names and all(name.startswith(trained) for name in names)
    own = {name for term in method.terms.values() for name, _ in term.loss.named_parameters()}
    assert own == (set() if columns is SCORED else {"head.weight", "head.bias"})


def test_the_classifier_is_no_part_of_the_result(tiny):
    plain = {name for name, _ in built(tiny, SCORED).model.named_parameters()}
    assert {name for name, _ in built(tiny, LABELLED).model.named_parameters()} == plain


@pytest.mark.parametrize(
    ("columns", "source"), [(LABELLED, "anchor"), (SCORED, "anchor"), (TRIPLES, "positive")], ids=str
)
def test_prototypes_are_of_a_sentence_that_means_the_same(columns, source, tiny):
    options = {"prototypes": "both", "pooler_type": "mask", "template": TEMPLATE, "temp": 0.1}
    method = built(tiny, columns, **options)
    assert list(method.terms) == ["regression" if columns is SCORED else "classification", "prototypical"]
    columns_of = {view.name: view.column for view in method.views}
    assert columns_of["prototype"] == columns_of["negated"] == source
    assert method.terms["prototypical"].loss.temperature == 0.1


def test_the_mlm_loss_goes_with_it(tiny):
    torch.manual_seed(0)
    backbone = load_backbone(tiny("bert"), lm_head="checkpoint")
    method = build_method(backbone, model_arguments(method="sbert", do_mlm=True), LABELLED)
    assert list(method.terms) == ["classification", "mlm"]


def test_without_known_labels_all_classes_are_expected(tiny):
    loss_fn = built(tiny, [*PAIR, "label"]).terms["classification"].loss
    assert isinstance(loss_fn, Classification)
    assert loss_fn.classes == CLASSES


# What it refuses


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["anchor"], {}, "--method sbert needs labelled pairs or hard negatives"),
        (PAIR, {}, "third column: label, score, or hard negatives"),
        (Columns(LABELLED, ["neutral"]), {}, "--train_file: all rows have the label neutral"),
        (LABELLED, {"temp": 0.1}, "--temp has no effect: --method sbert"),
        (TRIPLES, {"hard_negative_weight": 1.0}, "--hard_negative_weight has no effect: --method sbert"),
        (LABELLED, {"gather_gradient": "published"}, "--gather_gradient has no effect: --method sbert"),
        (LABELLED, {"largest_score": 5.0}, "--largest_score has no effect without a column score"),
        (TRIPLES, {"largest_score": 5.0}, "--largest_score has no effect without a column score"),
        (SCORED, {"largest_score": 4.0}, "from 0 to 5; they must differ and be between 0 and --largest_score 4"),
        (Columns(SCORED, scores=(-1, 1)), {}, "from -1 to 1; they must differ and be 0 or more; rescale"),
        (Columns(SCORED, scores=(3, 3)), {}, "range from 3 to 3; they must differ"),
        (LABELLED, {"prototypes": "both"}, "--prototypes both needs the .MASK. vector"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_the_reason(columns, options, said, tiny):
    with pytest.raises(UserError, match=said):
        built(tiny, columns, **options)


@pytest.mark.parametrize("value", [0, -1.0, float("inf")])
def test_a_largest_score_is_above_zero(value):
    with pytest.raises(UserError, match=r"--largest_score .*: must be (above 0|a number)"):
        model_arguments(method="sbert", largest_score=value)


def test_other_methods_have_no_largest_score():
    with pytest.raises(
        UserError, match="--largest_score is an option of --method d2cse and diffcse and sbert and has"
    ):
        fill_defaults(model_arguments(method="simcse", largest_score=5.0), ["anchor"])
