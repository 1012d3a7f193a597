"""The guide: which candidates it masks, against loops and the library sentence-transformers, and how often it runs."""

import copy
from dataclasses import replace

import pytest
import torch
from loops import info_nce, left_out_of
from method_models import Collator

from dcpcse.data.collator import GUIDE_PREFIX, ViewCollator
from dcpcse.data.views import sentence_pair_views
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.encoders.templates import Template
from dcpcse.encoders.untrained import load_word_vectors
from dcpcse.losses.false_negatives import GUIDED
from dcpcse.losses.guide import Guide
from dcpcse.methods import build_method, fill_defaults, model_arguments
from dcpcse.training.step import TrainingStep
from dcpcse.utils.errors import UserError

COLUMNS = ("anchor", "positive", "negative")
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture
def guided(tiny, sentences):
    """guided(columns, guide, options) → training step with the guide, its batch, the examples."""

    def make(columns, guide, **options):
        args = model_arguments(**{"method": "simcse", "pooler_type": "avg", "temp": 0.2, **options})
        method = build_method(load_backbone(tiny("bert", **WITHOUT_DROPOUT)), fill_defaults(args, columns), columns)
        method = replace(method, guides={"guide": Guide(guide, method.views)})
        rows = [{name: f"{sentences[(i + 5 * k) % 12]} {k}" for k, name in enumerate(columns)} for i in range(8)]
        return TrainingStep(method).train(), Collator.of(method, 32)(rows), rows

    return make


@pytest.mark.parametrize(
    ("kind", "columns"), [("templated", COLUMNS), ("word vectors", (*COLUMNS[:2], "negative_1", "negative_2"))]
)
def test_candidates_nearer_than_the_positive_are_left_out(kind, columns, guided, tiny, tmp_path, sentences):
    if kind == "word vectors":
        words = sorted({word.strip(".").lower() for sentence in sentences for word in sentence.split()})
        torch.manual_seed(0)
        lines = [f"{word} {' '.join(f'{x:.3f}' for x in torch.randn(6).tolist())}" for word in words]
        (file := tmp_path / "words.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        guide = load_word_vectors(str(file))
    else:
        template = Template.parse('"{sentence}" means [MASK] .') if kind == "templated" else None
        guide = plain_encoder(load_backbone(tiny("roberta")), "mask" if template else "avg", template)
    step, batch, rows = guided(columns, guide)
    found = step(**batch)["contrastive"]
    with torch.no_grad():
        embeddings = step.encode(**batch).embeddings
    vectors = {name: guide.encode([row[name] for row in rows]) for name in columns}
    marks = {f"{GUIDED}{name}": torch.from_numpy(rows).double() for name, rows in vectors.items()}
    expected = info_nce(weight=0.0)(embeddings, marks)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    left_out = left_out_of(marks, "positive")
    places = [(name, i, j) for name in columns[1:] for i in range(len(rows)) for j in range(len(rows))]
    assert step.losses["contrastive"].metrics["left_out"][0] == sum(left_out(*place) for place in places) > 0


def test_the_loss_is_that_of_sentence_transformers(guided, tiny):
    """GISTEmbedLoss, restricted to candidates of the anchor, and all its gradients."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    def theirs(folder):
        transformer = Transformer(folder)
        return library.SentenceTransformer(modules=[transformer, Pooling(32, "mean")], device="cpu")

    folders = tiny("bert", **WITHOUT_DROPOUT), tiny("bert", seed=7, **WITHOUT_DROPOUT)
    model, guide = map(theirs, folders)
    step, batch, rows = guided(COLUMNS, plain_encoder(load_backbone(folders[1]), "avg"))
    loss_fn = GISTEmbedLoss(model, guide, temperature=0.2, contrast_anchors=False, contrast_positives=False)
    expected = loss_fn.train()([model.preprocess([row[name] for row in rows]) for name in COLUMNS], None)
    found = step(**batch)["contrastive"]
    assert step.losses["contrastive"].metrics["left_out"][0] > 0
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    found.backward()
    expected.backward()
    gradients = {name: p.grad for name, p in model[0].auto_model.named_parameters() if p.grad is not None}
    assert gradients
    for name, parameter in step.model.encoder.backbone.named_parameters():
        if name in gradients:
            atol = 1e-5 * gradients[name].abs().max().item() + 1e-9
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=atol)


def test_all_losses_of_a_batch_share_one_pass(guided, tiny):
    guide, calls = plain_encoder(load_backbone(tiny("roberta")), "avg"), []
    step, batch, _ = guided(COLUMNS, guide, do_eh_loss=True, eh_loss_margin=0.5)
    guide.register_forward_hook(lambda *_: calls.append(1))
    for count in (1, 2):
        step(**copy.deepcopy(batch))
        assert len(calls) == count


def test_a_guide_stays_frozen_in_eval_mode_and_sees_whole_sentences(guided, tiny, sentences):
    guide = plain_encoder(load_backbone(tiny("roberta")), "avg")
    step, batch, rows = guided(COLUMNS[:2], guide)
    assert step.training and not guide.training
    assert not any(parameter.requires_grad for parameter in step.guides["guide"].parameters())
    step(**batch)["contrastive"].backward()
    assert all(parameter.grad is None for parameter in step.guides["guide"].parameters())
    short = ViewCollator(step.model.tokenizer, sentence_pair_views(COLUMNS[:2]), 3, guides={"guide": guide})
    ids = short(rows)[f"{GUIDE_PREFIX}guide_input_ids"]
    assert torch.equal(ids, batch[f"{GUIDE_PREFIX}guide_input_ids"])  # --max_seq_length is that of the trained encoder
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = step.guides["guide"].vectors(copy.deepcopy(batch))
    whole = step.guides["guide"].vectors(batch)
    for name, rows in half.items():
        assert rows.dtype == torch.float32 and torch.equal(rows, whole[name])
    other = {name: value for name, value in batch.items() if not name.startswith(GUIDE_PREFIX)}
    with pytest.raises(UserError, match="the guide reads tokens that your data_collator does not add"):
        step(**other)
