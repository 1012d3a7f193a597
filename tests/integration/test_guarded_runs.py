"""What training watches, from train.py: each fault planted in a run is caught, and what is left is whole.

That healthy runs pass, of every method, option and number of processes, is what all other runs of these tests show.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from method_models import with_encoder
from runs import at_step, refused
from safetensors.torch import load_file

import dcpcse
from dcpcse.cli.commands.train import train_command
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.prompts import DeepPrompt, ShallowPrompt
from dcpcse.losses import Contrastive
from dcpcse.training.trainer import Trainer

NEVER = {"logging_steps": 1000}
"""What is caught is not caught by the log."""


def spoil(monkeypatch, loss_fn: type, call: int, change) -> None:
    """Let an objective's value of its call-th pass be changed."""
    forward, calls = loss_fn.forward, []

    def spoilt(self, *args):
        calls.append(None)
        term = forward(self, *args)
        return change(term) if len(calls) == call else term

    monkeypatch.setattr(loss_fn, "forward", spoilt)


@pytest.fixture
def stops(train, tiny, train_txt, tool, tmp_path):
    """stops(*parts, **options) → the folder of a training that ends with one line that has these parts."""

    def call(*parts: str, data=train_txt, **options) -> Path:
        options = with_encoder({**NEVER, **options}, tiny("bert"))
        refused(tool, train_command, train.argv(tiny("bert"), data, tmp_path / "out", **options), *parts)
        return tmp_path / "out"

    return call


def kept(place: Path) -> tuple[dict, list[dict]]:
    """The summary and the examples that a run has kept of a step."""
    lines = (place / "batch.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads((place / "step.json").read_text(encoding="utf-8")), [json.loads(line) for line in lines]


# Losses and gradients that are not finite


def test_a_loss_that_is_not_finite_stops_at_its_step_and_the_batch_is_kept(stops, tmp_path, monkeypatch):
    data = tmp_path / "train.txt"
    sentences = [f"The cat sleeps on stone {i}." for i in range(20)]
    data.write_text("\n".join([sentences[0], "", *sentences[1:]]) + "\n", encoding="utf-8")  # line 2 is empty
    spoil(monkeypatch, Contrastive, 3, lambda loss: loss * float("nan"))
    parts = "contrastive", "step 3", f"{tmp_path / 'out'}/non-finite/step-3", "checkpoint-2"
    out = stops(*parts, data=data, save_strategy="steps", save_steps=1)
    summary, examples = kept(out / "non-finite/step-3")
    assert summary["step"] == 3 and summary["losses"] == [{"contrastive": "nan"}]
    assert summary["learning_rate"] == pytest.approx(0.03 / 2)  # linear, of four steps
    assert summary["not_finite"]["losses"] == ["contrastive"]
    assert "model.encoder.prompt.table.weight" in summary["not_finite"]["gradients"]
    lines = data.read_text(encoding="utf-8").splitlines()
    assert len(examples) == 4 and len({example["row"] for example in examples}) == 4
    tokenizer = dcpcse.load(out / "checkpoint-2", device="cpu").tokenizer
    for example in examples:
        assert example["anchor"] == sentences[example["row"]] == lines[example["line"] - 1]
        ids = [[i for i in view if i != tokenizer.pad_token_id] for view in example["input_ids"]]
        assert ids == [tokenizer(example["anchor"])["input_ids"]] * 2
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    assert not (out / "dcpcse.json").exists()


ACCUMULATED = {"gradient_accumulation_steps": 3, "gradient_checkpointing": True}


@pytest.mark.parametrize(
    ("options", "call", "sizes"), [({"gradient_cache_chunk": 2}, 2, [4]), (ACCUMULATED, 5, [4, 4, 4])]
)
def test_it_stops_at_the_same_step_however_a_step_is_computed(options, call, sizes, stops, monkeypatch):
    spoil(monkeypatch, Contrastive, call, lambda loss: loss + float("inf"))
    summary, examples = kept(stops("contrastive", "step 2", **options) / "non-finite/step-2")
    assert [len([e for e in examples if e["pass"] == i]) for i in range(len(sizes))] == sizes
    assert [terms["contrastive"] == "inf" for terms in summary["losses"]].count(True) == 1


def test_a_gradient_that_is_not_finite_stops_too(stops, monkeypatch):
    """Infinite in one parameter; clipping, which would spread it to all, has not been."""
    step = Trainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        weight = self.step_module.model.head.dense.bias
        if self.state.global_step == 1:
            weight.register_hook(lambda gradient: gradient * float("inf"))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "compute_loss", compute_loss)
    summary, _ = kept(stops("gradient", "model.head.dense.bias", "step 2") / "non-finite/step-2")
    assert summary["not_finite"] == {"losses": [], "gradients": ["model.head.dense.bias"], "weights": []}


def test_with_the_filter_a_loss_without_harm_is_passed_over(tiny, train, train_txt, monkeypatch):
    """A constant leaves the gradient as it is."""
    spoil(monkeypatch, Contrastive, 2, lambda loss: loss + float("nan"))
    result = train(tiny("bert"), train_txt, logging_nan_inf_filter=True)
    assert len(result.logged("loss")) == 4
    assert not (result.folder / "non-finite").exists()


def test_no_number_that_is_not_finite_is_ever_written(stops):
    """The first loss is finite, and Adam divides zero by zero for words that it has not seen; or a run diverges."""
    options = {"method": "simcse", "adam_epsilon": 0, "save_strategy": "steps", "save_steps": 1}
    out = stops("after step 1", "model.encoder.backbone.embeddings.word_embeddings.weight", **options)
    assert not list(out.rglob("*.safetensors"))
    options = {"learning_rate": 1e20, "save_strategy": "steps", "save_steps": 1, "overwrite_output_dir": True}
    written = list(stops("--learning_rate", **options).rglob("*.safetensors"))
    assert written
    assert all(tensor.isfinite().all() for path in written for tensor in load_file(path).values())


def test_overwriting_takes_kept_batches_away(stops, tiny, train, train_txt, monkeypatch):
    with monkeypatch.context() as patch:
        spoil(patch, Contrastive, 1, lambda loss: loss * float("nan"))
        out = stops("no checkpoint")
    train(tiny("bert"), train_txt, folder=out, overwrite_output_dir=True, max_steps=1)
    assert not (out / "non-finite").exists()


PROGRAM = """
import os, sys
from dcpcse.cli.commands.train import train_command
from dcpcse.cli.runner import run
from dcpcse.losses import Contrastive

forward, calls = Contrastive.forward, []

def spoilt(self, step):
    calls.append(None)
    loss = forward(self, step)
    return loss + float("inf") if len(calls) == 2 and os.environ["RANK"] == "1" else loss

Contrastive.forward = spoilt
sys.exit(run(train_command, sys.argv[1:]))
"""


def test_of_several_processes_all_stop_at_the_step_of_one(tiny, train, train_txt, tmp_path, pairs):
    """The loss of the second one is infinite and its gradient is not: only it could know."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **NEVER)
    done = pairs(tmp_path / "program.py", *argv)
    errors = set(re.findall("^error: .*$", done.stderr, flags=re.MULTILINE))  # of both, where the machine is busy
    assert len(errors) == 1 and "the loss contrastive is not finite at step 2" in errors.pop(), done.stderr
    place = tmp_path / "out/non-finite/step-2"
    (first, texts), (second, others) = (kept(place / f"process-{rank}") for rank in range(2))
    assert len({example["anchor"] for example in (*texts, *others)}) == len(texts) + len(others) == 8
    assert [one["not_finite"]["losses"] for one in (first, second)] == [[], ["contrastive"]]


# Gradients that do not arrive


CUT_OFF = {
    "reaches the prompts (['model.encoder.prompt.table.weight'": (DeepPrompt, {"gradient_cache_chunk": 2}),
    "model.encoder.prompt.table.embedding": (DeepPrompt, {"prefix_projection": True}),
    "model.encoder.shallow.weight": (ShallowPrompt, {"method": "conpvp"}),
    "no gradient reaches the encoder": (Encoder, {"method": "diffcse"}),
}


@pytest.mark.parametrize("missing", CUT_OFF)
def test_a_trained_part_that_gets_no_gradient_is_an_error_of_the_first_step(missing, stops, monkeypatch):
    """As where reentrant checkpointing, or an encoder that leaves prompts out, cuts the graph."""
    part, options = CUT_OFF[missing]
    name = "states" if part is Encoder else "forward"
    monkeypatch.setattr(part, name, torch.no_grad()(getattr(part, name)))
    out = stops(missing, "activation checkpointing", save_strategy="steps", save_steps=1, **options)
    assert not list(out.glob("checkpoint-*"))


def test_the_layer_that_is_cut_off_is_named(stops, monkeypatch):
    draw = DeepPrompt.forward

    def cut(self, *args):
        return {i: tuple(half.detach() for half in pair) if i == 1 else pair for i, pair in draw(self, *args).items()}

    monkeypatch.setattr(DeepPrompt, "forward", cut)
    stops("the gradient of the prompts is zero", "['model.encoder.prompt.table.weight (layer 1)']")


def test_a_loss_that_depends_on_nothing_is_an_error_and_no_traceback(stops, monkeypatch):
    monkeypatch.setattr(DeepPrompt, "forward", torch.no_grad()(DeepPrompt.forward))
    stops("the loss depends on none of", "['model.encoder.prompt.table.weight']", pooler_type="avg")


def test_gradients_that_may_be_zero_are_no_error(tiny, train, train_txt):
    for options in (
        {"do_mlm": True, "train_lm_head": True, "mlm_probability": 1e-9},
        {"method": "d2cse", "lambda_weight": 0.0},
        {"method": "conpvp", "tuning": "deep", "denoise": True, "org_mlp": True},
    ):
        train(tiny("bert"), train_txt, max_steps=1, **with_encoder(options, tiny("bert")))


# Nothing to learn


# Frozen weights


FROZEN = {"model": {"encoder_dtype": "bfloat16"}, "losses.crtd.corruption.generator": {"method": "diffcse"}}


@pytest.mark.parametrize("part", FROZEN)
def test_a_frozen_weight_that_changes_leaves_no_result(part, stops, monkeypatch):
    """As a faulty optimiser or memory might change it."""
    name, options = f"{part}.encoder.backbone.embeddings.LayerNorm.bias", FROZEN[part]

    def change(trainer: Trainer) -> None:
        trainer.step_module.get_parameter(name).data.view(-1)[-1] += 1e-6

    at_step(1, change, monkeypatch.setattr)
    assert not (stops("frozen", name, max_steps=2, **options) / "dcpcse.json").exists()


# Collapse


def test_embeddings_that_collapse_are_warned_of(tiny, train, train_txt, caplog):
    encoder = tiny("bert", hidden_dropout_prob=0.01, attention_probs_dropout_prob=0.01)
    options = {"max_steps": 30, "per_device_train_batch_size": 10, "temp": 0.5, "learning_rate": 3.0}
    result = train(encoder, train_txt, **options)
    ranks, cosines = (result.logged(name) for name in ("effective_rank", "cosine_negative"))
    assert len(ranks) == len(cosines) == 30 and 1 <= min(ranks) <= max(ranks) <= 10
    of_rate, of_collapse, *_ = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert "3 is more than ten times 0.03" in of_rate and "embeddings have collapsed" in of_collapse


def test_the_effective_rank_is_that_of_the_anchors_of_a_whole_batch(tiny, train, train_txt, monkeypatch):
    """40 sentences in batches of 12: the last one, which is logged, has four."""
    seen = []
    monkeypatch.setattr("dcpcse.training.guards.effective_rank", lambda anchors: seen.append(anchors.shape) or 7.0)
    result = train(tiny("bert"), train_txt, max_steps=4, per_device_train_batch_size=12, logging_steps=4)
    assert seen == [(12, 32)] and result.logged("effective_rank") == [7.0]
