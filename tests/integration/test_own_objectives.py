"""Methods with objectives of other kinds than the package's own, from train.py on."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from runs import as_interrupted, assert_same_weights, refused, weights
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

from dcpcse.cli.commands.train import train_command
from dcpcse.data.views import sentence_pair_views
from dcpcse.encoders.backbones import load_backbone
from dcpcse.losses import Contrastive, Loss, Term
from dcpcse.methods import METHODS, Method, build_method, model_arguments
from dcpcse.methods.building import sentence_encoder
from dcpcse.training.step import TrainingStep


class Remembering(Loss):
    """Draws anchors to where the earlier ones lay, and counts the steps; both are its memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(32), persistent=False)
        self.steps, self.sum = torch.zeros((), dtype=torch.long), torch.zeros(())

    def precompute(self, step):
        return {"anchors": step.embeddings["anchor"]}

    def forward(self, step):
        loss = (step.embeddings["anchor"] - self.centre.clone()).square().sum(-1).mean()
        self.centre.lerp_(step.precomputed["anchors"].mean(0), 0.5)
        return loss

    def persistent_state(self):
        return {"centre": self.centre, "steps": self.steps, "sum": self.sum}

    def after_step(self, model):
        self.steps += 1
        self.sum += model.encoder.prompt.table.weight.sum()


@pytest.fixture
def method(monkeypatch):
    """method(objective): --method dcpcse has this one objective while the test lasts."""

    def make(loss_fn):
        def build(backbone, args, columns):
            model, views = sentence_encoder(backbone, args, []), sentence_pair_views(columns)
            return Method(model, views, {"own": Term(loss_fn())})

        monkeypatch.setitem(METHODS, "dcpcse", replace(METHODS["dcpcse"], build=build))

    return make


def test_row_chunks_are_refused_by_losses_that_have_none(method, tiny, train, train_csv, tool, tmp_path):
    method(Remembering)
    words = train.argv(tiny("bert"), train_csv, tmp_path / "out", loss_chunk=2)
    refused(tool, train_command, words, "--loss_chunk", "the loss own of")
    assert not (tmp_path / "out").exists()


def test_negatives_and_anchors_are_those_of_the_first_loss_that_has_some():
    first, second, columns = Contrastive(others=("negated",)), Contrastive(), ["anchor", "positive", "negative"]
    terms = {"plain": Term(Loss()), "first": Term(first), "second": Term(second)}
    both = Method(None, sentence_pair_views(columns), terms)
    assert both.negatives(5) == first.negatives(5, columns) == 14
    assert both.anchors is None
    second.anchors = torch.ones(2, 3)
    assert both.anchors is second.anchors
    first.anchors = torch.zeros(2, 3)
    assert both.anchors is first.anchors


def test_what_an_objective_remembers_is_resumed_and_is_no_part_of_the_result(method, tiny, train, train_txt, tmp_path):
    """It is told of a step once, and after it."""
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1}
    options |= {"gradient_cache_chunk": 3, "gradient_accumulation_steps": 2}
    method(Remembering)
    whole = train(tiny("bert"), train_txt, **options)
    folder = as_interrupted(whole.folder, tmp_path / "out", 4)
    again = train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
    assert len(again.gradients) == 2
    assert_same_weights(whole.folder, folder)
    kept = [load_file(run / "checkpoint-6/objectives.safetensors") for run in (whole.folder, folder)]
    assert set(kept[0]) == {"kept.own.centre", "kept.own.steps", "kept.own.sum"}
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
    assert kept[0]["kept.own.steps"] == 6
    tables = [weights(folder / f"checkpoint-{step}")["prompt_embeddings"] for step in range(1, 7)]
    torch.testing.assert_close(kept[0]["kept.own.sum"], sum(table.sum() for table in tables))
    assert kept[0]["kept.own.centre"].abs().sum() > 0
    assert not list(folder.glob("objectives*"))
    assert not any("centre" in name for name in weights(folder))


def test_ddp_does_not_send_round_what_is_kept(method, tiny):
    method(Remembering)
    built = build_method(load_backbone(tiny("bert")), model_arguments(pre_seq_len=2), ["anchor"])
    step = TrainingStep(built)
    assert "losses.own.centre" in dict(step.named_buffers())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sent = DistributedDataParallel(step).modules_buffers
    finally:
        dist.destroy_process_group()
    assert sent
    assert all(buffer is not built.losses[0].centre for buffer in sent)
