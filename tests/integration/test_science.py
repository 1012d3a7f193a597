"""Training works at all: prompts trained on the embedded encoder gain much, and planted bugs take the gain away.

Other tests check each part against a reference. Here the parts together must do what they are made for.
"""

from collections.abc import Callable

import pytest
import senteval
import torch.nn.functional as F
from runs import ROOT
from senteval.scores import correlate, similarities

import dcpcse
from dcpcse.cli.commands import quickstart
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.prompts import PromptTable
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.losses import contrastive
from dcpcse.training.guards.gradients import GradientFlowCheck
from dcpcse.utils.packages import EMBEDDED_ENCODER

SAMPLE = ROOT / "data/sample"
SENTENCES = SAMPLE / "sentences.txt"
SETTING = {**quickstart.COMMON, "pre_seq_len": 16, "max_steps": 30, "seed": 0, "use_cpu": True, "disable_tqdm": True}
"""That of the quickstart without labels, with 30 of its steps: 9.1, 8.1 and 7.7 points with the seeds 0, 1 and 2."""

WITH_HEAD = {"pooler_type": "cls", "mlp_only_train": True}

Train = Callable[..., dcpcse.TrainingResult]


@pytest.fixture(scope="module")
def pairs_of_dev() -> senteval.ScoredPairs:
    """The 200 dev pairs of the sample, none of whose sentences is trained on."""
    (pairs,) = senteval.load_pairs("STSBenchmark", SAMPLE, "dev", official=False)
    assert len(pairs.gold) == 200
    assert not {*pairs.first, *pairs.second} & set(SENTENCES.read_text(encoding="utf-8").splitlines())
    return pairs


def spearman(model: SentenceEncoder, pairs: senteval.ScoredPairs) -> float:
    """Spearman correlation × 100 of cosines and gold scores, read as in the quickstart."""
    model.pooling = quickstart.READ_WITH
    first, second = (model.encode(side) for side in (pairs.first, pairs.second))
    return 100 * correlate("dev", similarities("STSBenchmark", pairs, first, second), pairs.gold).spearman


@pytest.fixture(scope="module")
def untouched(pairs_of_dev) -> float:
    """The score without prompts."""
    return spearman(plain_encoder(load_backbone(str(EMBEDDED_ENCODER)), quickstart.READ_WITH), pairs_of_dev)


@pytest.fixture
def train(tmp_path) -> Train:
    """train(**options) trains the prompts of the embedded encoder on the sentences of the sample."""
    places = {"output_dir": tmp_path / "run", "cache_dir": tmp_path / "cache"}
    return lambda **options: dcpcse.train(EMBEDDED_ENCODER, SENTENCES, **{**SETTING, **options, **places})


def test_trained_prompts_are_five_points_ahead_of_the_untouched_encoder(train, untouched, pairs_of_dev):
    assert spearman(train().model, pairs_of_dev) - untouched >= 5


def flip_the_sign(patch: pytest.MonkeyPatch) -> None:
    """Own positives are pushed away."""
    correct = contrastive.nt_xent
    patch.setattr(contrastive, "nt_xent", lambda *args, **kwargs: -correct(*args, **kwargs))


def take_the_wrong_diagonal(patch: pytest.MonkeyPatch) -> None:
    """The positive of each anchor is that of another one."""
    correct = F.cross_entropy
    patch.setattr(F, "cross_entropy", lambda logits, targets, **kwargs: correct(logits, targets.roll(1), **kwargs))


def detach_the_prompts(patch: pytest.MonkeyPatch) -> None:
    """The encoder gets the numbers of the prompts without their graph, so that at most a head learns."""
    correct = PromptTable.forward
    patch.setattr(PromptTable, "forward", lambda self: correct(self).detach())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"the loss depends on none of the trained parameters .*prompt\.table\.weight"),
        (WITH_HEAD, r"no gradient reaches the prompts .*prompt\.table\.weight"),
    ],
    ids=["without a head", "with a head"],
)
def test_the_check_of_gradients_stops_a_run_of_detached_prompts(options, message, monkeypatch, train):
    detach_the_prompts(monkeypatch)
    with pytest.raises(dcpcse.UserError, match=message):
        train(**options)


@pytest.mark.parametrize(
    ("plant", "options"), [(flip_the_sign, {}), (take_the_wrong_diagonal, {}), (detach_the_prompts, WITH_HEAD)]
)
def test_a_planted_bug_takes_the_gain_away(plant, options, monkeypatch, train, untouched, pairs_of_dev):
    plant(monkeypatch)
    # The check cannot be switched off by an option; without it, the score alone has to show the detached prompts.
    monkeypatch.setattr(GradientFlowCheck, "require", lambda self: None)
    assert spearman(train(**options).model, pairs_of_dev) - untouched < 2.5
