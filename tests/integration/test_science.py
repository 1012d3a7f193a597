"""Training works at all: prompts trained on the embedded encoder gain much, and planted bugs take the gain away.

Other tests check each part against a reference. Here the parts together must do what they are made for.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import senteval
import torch.nn.functional as F
from runs import ROOT
from senteval.scores import correlate, similarities

import dcpcse
from dcpcse.cli.commands import quickstart
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.losses import contrastive
from dcpcse.utils.packages import EMBEDDED_ENCODER

SAMPLE = ROOT / "data/sample"
SENTENCES = SAMPLE / "sentences.txt"
SETTING = {**quickstart.COMMON, "pre_seq_len": 16, "seed": 0, "use_cpu": True, "disable_tqdm": True}
SETTING |= {"max_steps": 8, "per_device_train_batch_size": 16, "learning_rate": 0.1}
"""That of the quickstart without labels, with few and small steps at a higher rate: 6.5 points."""

Train = Callable[..., dcpcse.TrainingResult]


@pytest.fixture(scope="module")
def pairs_of_dev() -> senteval.ScoredPairs:
    """Half of the 200 dev pairs of the sample, none of whose sentences is trained on."""
    (pairs,) = senteval.load_pairs("STSBenchmark", SAMPLE, "dev", official=False)
    assert len(pairs.gold) == 200
    assert not {*pairs.first, *pairs.second} & set(SENTENCES.read_text(encoding="utf-8").splitlines())
    return replace(pairs, first=pairs.first[::2], second=pairs.second[::2], gold=pairs.gold[::2])


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


def test_trained_prompts_are_points_ahead_of_the_untouched_encoder(train, untouched, pairs_of_dev):
    assert spearman(train().model, pairs_of_dev) - untouched >= 4


def flip_the_sign(patch: pytest.MonkeyPatch) -> None:
    """Own positives are pushed away."""
    correct = contrastive.nt_xent
    patch.setattr(contrastive, "nt_xent", lambda *args, **kwargs: -correct(*args, **kwargs))


def take_the_wrong_diagonal(patch: pytest.MonkeyPatch) -> None:
    """The positive of each anchor is that of another one."""
    correct = F.cross_entropy
    patch.setattr(F, "cross_entropy", lambda logits, targets, **kwargs: correct(logits, targets.roll(1), **kwargs))


@pytest.mark.parametrize("plant", [flip_the_sign, take_the_wrong_diagonal])
def test_a_planted_bug_takes_the_gain_away(plant, monkeypatch, train, untouched, pairs_of_dev):
    plant(monkeypatch)
    assert spearman(train().model, pairs_of_dev) - untouched < 2
