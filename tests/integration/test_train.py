"""train.py from the command line to the folder: what is trained, what is logged, what the options do."""

import contextlib
import functools
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_kernels
import yaml
from method_models import with_encoder
from numpy.testing import assert_allclose
from runs import (
    NO_DROPOUT,
    Run,
    assert_a_compiled_run_trains_the_same,
    assert_same_weights,
    cls_by_cache,
    contrastive_loss,
    files,
    weights,
    words,
)
from scipy.stats import spearmanr
from transformers import AutoModel

import dcpcse
from dcpcse.cli.commands.train import train_command
from dcpcse.cli.parse import parse_training
from dcpcse.encoders import frozen_layers as prepacking
from dcpcse.encoders import half_precision
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.identity import fingerprint
from dcpcse.training import trainer as trainers

TRAINED = ("model.encoder.prompt.", "model.head.")
MEASURED = {"eval_strategy": "steps", "eval_steps": 1, "custom_eval_data": True}


@pytest.fixture(scope="module")
def once(train, tiny, request):
    """once(kind, data, dropout=True, **options) → the run with these options, which several tests look at."""

    @functools.cache
    def run(kind: str = "bert", data: str = "train_txt", *, dropout: bool = True, **options) -> Run:
        return train(tiny(kind, **({} if dropout else NO_DROPOUT)), request.getfixturevalue(data), **options)

    return run


# What is trained, and what is not


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert"])
def test_prompts_and_head_change_and_no_bit_of_the_backbone(kind, once, tiny, unsupervised, supervised):
    run = {"bert": unsupervised, "roberta": supervised}.get(kind) or once(kind, "train_csv")
    changed = {name for name, weight in run.final.items() if not torch.equal(weight, run.initial[name])}
    assert changed == {name for name in run.initial if name.startswith(TRAINED)}
    assert changed >= {"model.encoder.prompt.table.weight", "model.head.dense.weight", "model.head.dense.bias"}
    original = AutoModel.from_pretrained(tiny(kind))
    original.pooler = None
    backbone = run.trainer.step_module.model.encoder.backbone
    trained = dict(backbone.named_parameters())
    assert trained.keys() == dict(original.named_parameters()).keys()
    for name, weight in original.named_parameters():
        assert torch.equal(trained[name], weight), name
    recorded = json.loads((run.folder / "dcpcse.json").read_text(encoding="utf-8"))["base"]["fingerprint"]
    assert fingerprint(backbone) == fingerprint(original) == recorded
    assert all(tensor.numel() < 5000 for tensor in weights(run.folder).values())
    allowed = {".json", ".jsonl", ".safetensors", ".yaml", ".txt", ""}  # no pickle; folders of checkpoints
    assert {path.suffix for path in run.folder.iterdir()} <= allowed


@pytest.mark.parametrize(("kind", "trained"), [("bert", False), ("bert", True), ("modernbert", True)])
def test_the_lm_head_changes_if_it_is_trained_and_the_encoder_never_does(kind, trained, once, tiny):
    run = once(kind, do_mlm=True, **({"train_lm_head": True} if trained else {}))
    changed = {name for name, weight in run.final.items() if not torch.equal(weight, run.initial[name])}
    head = {name for name in run.initial if name.startswith("losses.mlm.")}
    assert head and {name for name in changed if not name.startswith(TRAINED)} <= head
    assert any(name.endswith("decoder.weight") for name in changed) == bool(changed & head) == trained
    words_of_checkpoint = AutoModel.from_pretrained(tiny(kind)).get_input_embeddings().weight
    backbone = run.trainer.step_module.model.encoder.backbone
    assert torch.equal(backbone.get_input_embeddings().weight, words_of_checkpoint)


@pytest.mark.parametrize("name", ["unsupervised", "supervised", "without position offset"])
def test_embeddings_are_those_of_the_saved_prompts_in_a_cache(name, once, tiny, sentences, unsupervised, supervised):
    run = {"unsupervised": unsupervised, "supervised": supervised}.get(name) or once(position_offset=0)
    kind = "roberta" if name == "supervised" else "bert"
    expected = cls_by_cache(tiny(kind), run.folder, sentences, head=name != "unsupervised")
    assert_allclose(dcpcse.load(str(run.folder), device="cpu").encode(sentences), expected, atol=1e-5)


# Measuring while training


def spearman_by_hand(model, sts_file: Path) -> float:
    """scipy's correlation of cosines that no line of the package computed."""
    fields = [line.split("\t") for line in sts_file.read_text(encoding="utf-8").splitlines()]
    first, second = (model.encode([row[column] for row in fields], normalize=False) for column in (5, 6))
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(first, second, strict=True)]
    return spearmanr(cosines, [float(row[4]) for row in fields]).statistic


def test_the_best_checkpoint_is_what_lies_in_the_output_folder(unsupervised):
    scores, state = unsupervised.logged("eval_stsb_spearman"), unsupervised.state
    assert len(scores) == 6
    assert state["best_metric"] == max(scores)
    assert state["best_global_step"] == int(np.argmax(scores)) + 1
    assert_same_weights(unsupervised.folder, unsupervised.folder / f"checkpoint-{state['best_global_step']}")
    both = zip(scores, unsupervised.logged("eval_sickr_spearman"), strict=True)
    assert_allclose(unsupervised.logged("eval_avg_sts"), [(stsb + sickr) / 2 for stsb, sickr in both])
    lines = (unsupervised.folder / "eval_results.txt").read_text(encoding="utf-8").splitlines()
    assert float(dict(line.split(" = ") for line in lines)["eval_stsb_spearman"]) == max(scores)


# The scores of five steps, and of the evaluation at the end.
SCRIPT = {"stsb_spearman": [0.1, 0.5, 0.3, 0.5, -0.2, 0.5], "sickr_spearman": [0.2, -0.1, 0.9, 0.2, 0.1, 0.9]}


@pytest.mark.parametrize(("metric", "best"), [("sickr_spearman", 3), ("eval_stsb_spearman", 2)])
def test_the_best_step_by_the_metric_asked_for_is_kept(metric, best, tiny, train, train_txt, sts_data, monkeypatch):
    """Of five steps with given scores; of equal ones the first."""
    scores = iter([dict(zip(SCRIPT, values, strict=True)) for values in zip(*SCRIPT.values(), strict=True)])
    monkeypatch.setattr("dcpcse.training.eval_datasets.dev_metrics", lambda results: next(scores))
    options = {**MEASURED, "eval_data_dir": sts_data, "metric_for_best_model": metric, "max_steps": 5}
    run = train(tiny("bert"), train_txt, **options, load_best_model_at_end=True, save_strategy=None)
    assert run.state["best_metric"] == SCRIPT[metric.removeprefix("eval_")][best - 1]
    assert run.state["best_global_step"] == best
    assert {path.name for path in run.folder.glob("checkpoint-*")} == {f"checkpoint-{best}", "checkpoint-5"}
    assert_same_weights(run.folder, run.folder / f"checkpoint-{best}")
    last, kept = weights(run.folder / "checkpoint-5"), weights(run.folder)
    assert not torch.equal(last["prompt_embeddings"], kept["prompt_embeddings"])


def test_dev_scores_are_of_the_dev_file_as_scipy_computes_them(tiny, train, train_txt, sts_data, tmp_path):
    shutil.copytree(Path(sts_data) / "downstream", tmp_path / "downstream")
    files_of = {split: tmp_path / f"downstream/STS/STSBenchmark/sts-{split}.csv" for split in ("train", "dev", "test")}
    for split in ("train", "test"):  # other gold scores, so that a mixed-up split shows
        rows = [line.split("\t") for line in files_of[split].read_text(encoding="utf-8").splitlines()]
        lines = ["\t".join([*row[:4], str(i), *row[5:]]) for i, row in enumerate(rows)]
        files_of[split].write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = train(tiny("bert"), train_txt, **{**MEASURED, "eval_steps": 4, "eval_data_dir": tmp_path})
    model = dcpcse.load(str(run.folder), device="cpu")
    dev, test = (spearman_by_hand(model, files_of[split]) for split in ("dev", "test"))
    assert abs(dev - test) > 0.01
    assert run.logged("eval_stsb_spearman") == [pytest.approx(dev, abs=1e-6)]


def test_measuring_does_not_change_the_training_and_another_seed_does(once, sts_data):
    measured = once(**MEASURED, eval_data_dir=sts_data, do_train=None)  # trains without --do_train, too
    assert_same_weights(measured.folder, once().folder)
    first, other = weights(once().folder), weights(once(seed=8).folder)
    assert not torch.equal(first["prompt_embeddings"], other["prompt_embeddings"])


def test_do_eval_alone_measures_without_training(tiny, train, train_txt, sts_data):
    run = train(tiny("bert"), train_txt, do_train=None, do_eval=True, eval_data_dir=sts_data, custom_eval_data=True)
    for name, weight in run.final.items():
        assert torch.equal(weight, run.initial[name]), name
    assert "eval_stsb_spearman = " in (run.folder / "eval_results.txt").read_text(encoding="utf-8")
    assert not (run.folder / "dcpcse.json").exists()


# What is logged


def test_the_loss_is_that_of_the_paper(tiny, train, train_csv):
    """First step, without dropout, against plain loops over transformers' vectors of the same batch."""
    run = train(tiny("bert", **NO_DROPOUT), train_csv, max_steps=1, hard_negative_weight=0.7, temp=0.2)
    model = run.trainer.step_module.model
    model.load_state_dict({n.removeprefix("model."): w for n, w in run.initial.items() if n.startswith("model.")})
    ids, mask = run.batches[0]["input_ids"], run.batches[0]["attention_mask"]
    model.save(run.folder / "initial")
    texts = [
        model.tokenizer.decode(row[kept.bool()], skip_special_tokens=True)
        for row, kept in zip(ids.flatten(0, 1), mask.flatten(0, 1), strict=True)
    ]
    vectors = cls_by_cache(tiny("bert", **NO_DROPOUT), run.folder / "initial", texts, head=True)
    expected = contrastive_loss(torch.tensor(vectors).view(4, 3, -1), temperature=0.2, hard_negative_weight=0.7)
    assert run.logged("loss") == [pytest.approx(expected.item(), abs=1e-4)]


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({}, lambda step: 0.1 * 0.95 ** (step / 100)),
        ({"mlm_weight": 2.0, "mlm_decay_rate": 0.5, "mlm_decay_steps": 3}, lambda step: 2.0 * 0.5 ** (step / 3)),
        ({"gradient_accumulation_steps": 2, "mlm_decay_steps": 2}, lambda step: 0.1 * 0.95 ** (step / 2)),
        ({"gradient_cache_chunk": 2, "mlm_decay_steps": 2}, lambda step: 0.1 * 0.95 ** (step / 2)),
    ],
)
def test_both_terms_are_logged_and_make_up_the_loss(options, weight, once):
    run = once(do_mlm=True, **options)
    steps = [entry["step"] for entry in run.state["log_history"] if "loss" in entry]
    assert steps == [1, 2, 3, 4]
    assert_allclose(run.logged("weight_mlm"), [weight(step) for step in steps], rtol=1e-12)
    terms = zip(steps, run.logged("loss_contrastive"), run.logged("loss_mlm"), strict=True)
    # A step's loss has the weight as of the steps finished before it.
    assert_allclose(run.logged("loss"), [c + weight(step - 1) * m for step, c, m in terms], rtol=1e-5)
    assert all(4 < mlm < 8 for mlm in run.logged("loss_mlm"))  # about ln(300), a random head's guess


def test_terms_logged_over_several_steps_are_their_means(once):
    every, second = once(do_mlm=True), once(do_mlm=True, logging_steps=2)
    for key in ("loss", "loss_contrastive", "loss_mlm"):
        assert_allclose(second.logged(key), np.reshape(every.logged(key), (2, 2)).mean(1), rtol=1e-4)


# Ways of training that give the same result


def test_two_accumulated_batches_give_the_mean_of_their_gradients(tiny, train, train_csv):
    options = {"gradient_accumulation_steps": 2, "max_steps": 1, "max_grad_norm": 0, "temp": 0.5}
    run = train(tiny("bert", **NO_DROPOUT), train_csv, **options)
    assert len(run.batches) == 2
    module = run.trainer.step_module
    module.load_state_dict({**module.state_dict(), **run.initial})
    names = [name for name, weight in module.named_parameters() if weight.requires_grad]
    losses = []
    for batch in run.batches:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        vectors = [module.model(ids[:, view], mask[:, view]) for view in range(ids.shape[1])]
        losses.append(contrastive_loss(torch.stack(vectors, dim=1), temperature=0.5))
    mean = (losses[0] + losses[1]) / 2
    gradients = torch.autograd.grad(mean, [dict(module.named_parameters())[name] for name in names])
    assert run.gradients[0].keys() == set(names)
    for name, gradient in zip(names, gradients, strict=True):
        assert gradient.abs().max() > 0
        torch.testing.assert_close(run.gradients[0][name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_gradient_checkpointing_recomputes_with_the_same_dropout(kind, tiny, train, train_csv):
    options = {"learning_rate": 1e-3, "max_steps": 2, "do_mlm": True}
    plain = train(tiny(kind), train_csv, **options)
    recomputed = train(tiny(kind), train_csv, gradient_checkpointing=True, **options)
    backbone = recomputed.trainer.step_module.model.encoder.backbone
    assert any(getattr(module, "gradient_checkpointing", False) for module in backbone.modules())
    assert_same_weights(plain.folder, recomputed.folder, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "chunks"),
    [
        ({"gradient_accumulation_steps": 2}, {"gradient_cache_chunk": 3}),
        ({"do_eh_loss": True, "gradient_cache_chunk": 3}, {"loss_chunk": 3}),
    ],
)
def test_chunks_give_the_same_prompts_and_the_same_log(options, chunks, tiny, train, train_csv):
    """Without dropout; four examples in chunks of three, in which hard negatives stay with their anchors."""
    folder, options = tiny("bert", **NO_DROPOUT), {"learning_rate": 1e-3, "max_steps": 2, **options}
    whole, chunked = train(folder, train_csv, **options), train(folder, train_csv, **options, **chunks)
    assert_same_weights(whole.folder, chunked.folder, atol=1e-5)
    metrics = ("loss", "cosine_positive", "cosine_negative", "grad_norm", "loss_energy_hinge", "within_margin")
    for metric in metrics if "do_eh_loss" in options else metrics[:4]:
        assert chunked.logged(metric) == pytest.approx(whole.logged(metric), rel=1e-4)
        assert len(whole.logged(metric)) == 2


def test_both_passes_of_gradient_caching_have_the_precision_of_the_run(tiny, train, train_txt, monkeypatch):
    """In the Trainer it is the wrapped module that has it, which the first pass does not go through."""
    seen, forward = [], Encoder.forward

    def watched(self, *args, **kwargs):
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Encoder, "forward", watched)
    train(tiny("bert"), train_txt, gradient_cache_chunk=2, bf16=True, max_steps=1)
    assert sorted(seen) == [(False, True)] * 2 + [(True, True)] * 2


@pytest.mark.parametrize(("kind", "pooler"), [("bert", "cls"), ("roberta", "avg"), ("modernbert", "avg")])
def test_padding_to_the_full_length_gives_the_same_gradients(kind, pooler, tiny, train, train_csv):
    dropout = {} if kind == "modernbert" else NO_DROPOUT
    options = {"max_steps": 1, "max_grad_norm": 0, "pooler_type": pooler, "max_seq_length": 40}
    short = train(tiny(kind, **dropout), train_csv, **options)
    padded = train(tiny(kind, **dropout), train_csv, pad_to_max_length=True, **options)
    assert padded.batches[0]["input_ids"].shape[2] == 40 > short.batches[0]["input_ids"].shape[2]
    assert padded.logged("loss") == [pytest.approx(short.logged("loss")[0], abs=1e-5)]
    assert short.gradients[0].keys() == padded.gradients[0].keys()
    for name, gradient in short.gradients[0].items():
        size = gradient.abs().max().item()
        assert size > 0
        torch.testing.assert_close(padded.gradients[0][name], gradient, rtol=0, atol=2e-3 * size)


@pytest.mark.whole
def test_a_compiled_step_is_one_graph_and_trains_the_same(tiny, train, train_txt):
    counters = torch._dynamo.utils.counters
    counters.clear()
    encoder = tiny("bert", num_hidden_layers=1)  # tracing a layer takes a second
    assert_a_compiled_run_trains_the_same(train, encoder, train_txt, max_steps=2)
    assert counters["stats"]["unique_graphs"] > 0 and not counters["graph_break"]


def test_workers_that_tokenise_ahead_train_the_same(once):
    options = {"method": "conpvp", "max_steps": 2}
    plain, ahead = once(**options), once(dataloader_num_workers=2, **options)
    assert_same_weights(plain.folder, ahead.folder, atol=0)


# Options, and what is said at the start


def test_run_yaml_gives_the_run_again(tiny, train, train_txt, sts_data, tool):
    first = train(
        tiny("bert"),
        train_txt,
        **{"do_mlm": True, "mlp_only_train": True, "pre_seq_len": 4, "prompt_dropout": 0.3, "position_offset": 1},
        **{"seed": 5, "gradient_accumulation_steps": 2, "warmup_steps": 1, "lr_scheduler_type": "cosine"},
        **{"lr_scheduler_kwargs": '{"num_cycles": 0.3}', "report_to": "none", "max_steps": 3, "save_strategy": None},
        **{**MEASURED, "eval_data_dir": sts_data, "load_best_model_at_end": True},
    )
    kept, again = files(first.folder), Path(f"{first.folder}-again")
    outcome = tool(train_command, [str(first.folder / "run.yaml"), "--output_dir", str(again)])
    assert outcome.code == 0, outcome.err
    assert "no effect" not in outcome.said
    assert_same_weights(first.folder, again)
    assert files(first.folder) == kept
    options = [yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8")) for folder in (first.folder, again)]
    assert options[0] == {**options[1], "output_dir": str(first.folder)}
    state = json.loads((again / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["best_metric"] == first.state["best_metric"] is not None


def test_the_command_line_overrides_a_file_of_options(train, tmp_path):
    (tmp_path / "options.yaml").write_text("pre_seq_len: 6\ntemp: 0.2\nmax_steps: 99\n", encoding="utf-8")
    argv = train.argv("encoder", "text.txt", tmp_path / "out", pre_seq_len=3)
    (model, _, run), _ = parse_training([str(tmp_path / "options.yaml"), *argv])
    assert (model.pre_seq_len, model.temp, run.max_steps) == (3, 0.2, 4)


@pytest.mark.parametrize(
    ("data", "epochs", "batch_size", "options", "negatives"),
    [
        ("train_csv", 1, 4, {"max_steps": 1}, 7),
        ("train_txt", 1, 64, {}, 39),  # the file has 40 rows
        ("train_txt", 1.5, 9, {"dataloader_drop_last": True}, 8),
        ("train_txt", 2, 7, {"gradient_accumulation_steps": 4}, 6),
    ],
)
def test_the_summary_counts_parameters_negatives_and_steps(
    data, epochs, batch_size, options, negatives, tiny, train, tool, tmp_path, request
):
    options = {"max_steps": None, "pre_seq_len": 5, "num_train_epochs": epochs, **options}
    options["per_device_train_batch_size"] = batch_size
    outcome = tool(train_command, train.argv(tiny("bert"), request.getfixturevalue(data), tmp_path / "out", **options))
    encoder = AutoModel.from_pretrained(tiny("bert"))
    frozen = sum(p.numel() for name, p in encoder.named_parameters() if not name.startswith("pooler."))
    prompts = 5 * 2 * 3 * 32  # P · 2 · layers · hidden
    trained = prompts + 32 * 32 + 32
    assert f"encoder {frozen:,}, frozen" in outcome.said
    assert f"trained: prompts {prompts:,} ({100 * prompts / frozen:.3f}%)" in outcome.said
    assert f"{trained:,} with heads ({100 * trained / frozen:.3f}%)" in outcome.said
    assert f"negatives per anchor: {negatives} " in outcome.said
    state = json.loads((tmp_path / "out/trainer_state.json").read_text(encoding="utf-8"))
    assert f"optimiser steps: {state['global_step']:,};" in outcome.said


def test_train_and_evaluation_run_as_programs(once, tiny, train, train_txt, sts_data, tmp_path, pairs):
    """The program trains what a run in this process does, which justifies testing in process."""
    here = once(do_mlm=True)
    trained = pairs.alone("train.py", *train.argv(tiny("bert"), train_txt, tmp_path / "out", do_mlm=True))
    assert trained.returncode == 0, trained.stderr
    assert "negatives per anchor: 3" in trained.stderr
    assert_same_weights(here.folder, tmp_path / "out", atol=1e-5)  # after 4 steps at 0.03
    options = {"mode": "dev", "data_dir": sts_data, "custom_data": True}
    measured = pairs.alone("evaluation.py", *words({"model_name_or_path": tmp_path / "out", **options}))
    assert measured.returncode == 0, measured.stderr
    assert measured.stdout.startswith("------ dev ------\n+")


# Frozen weights laid out for oneDNN


def frozen_layers(run: Run) -> set[torch.nn.Module]:
    modules = run.trainer.step_module.modules()
    return {module for module in modules if type(module) is torch.nn.Linear and not module.weight.requires_grad}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_run_with_frozen_weights_laid_out_is_the_same_run(tiny, train, train_txt, monkeypatch):
    monkeypatch.setattr(prepacking, "LEAST_WEIGHTS", 1)
    monkeypatch.setattr(prepacking, "LEAST_ROWS", 1)
    made = []
    build = prepacking._Prepacked.__init__
    monkeypatch.setattr(prepacking._Prepacked, "__init__", lambda *given: made.append(given[1]) or build(*given))
    options = {"method": "d2cse", "generator_name": tiny("bert", seed=1), "max_steps": 1}
    plain = train(tiny("bert"), train_txt, **options, prepack="False")
    assert not made
    own = train(tiny("bert"), train_txt, **options)
    frozen = frozen_layers(own)
    assert set(made) == frozen
    assert not any("forward" in vars(module) for module in own.trainer.step_module.modules())
    for name, gradient in plain.gradients[0].items():
        assert (own.gradients[0][name] - gradient).abs().max() <= 1e-4 * gradient.abs().max(), name


# Frozen weights in half precision under autocast


def test_a_run_in_bf16_casts_frozen_weights_once_and_is_the_same_run(tiny, train, train_txt, monkeypatch):
    options = {"method": "d2cse", "generator_name": tiny("bert", seed=1), "bf16": True, "max_steps": 2}
    made = []
    build = half_precision._HalfPrecision.__init__
    monkeypatch.setattr(
        half_precision._HalfPrecision, "__init__", lambda *given: made.append(given[1]) or build(*given)
    )
    own = train(tiny("bert"), train_txt, **options)
    frozen = frozen_layers(own)
    assert set(made) == frozen and len(made) == len(frozen)
    assert not any("forward" in vars(layer) for layer in frozen)
    monkeypatch.setattr(trainers, "in_half_precision", lambda module, dtype, whole: contextlib.nullcontext())
    plain = train(tiny("bert"), train_txt, **options)
    assert plain.logged("loss") == own.logged("loss")
    for ours, theirs in zip(own.gradients, plain.gradients, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(gradient, theirs[name]) for name, gradient in ours.items())
    assert_same_weights(own.folder, plain.folder)


def test_frozen_layers_in_bf16_are_those_of_training_alone(tiny, train, train_txt, sentences, monkeypatch):
    """As on a GPU with kernels: the folder, its vectors and the frozen weights are those of float32."""
    for name in ("prefix_kernel", "layer_kernels"):
        monkeypatch.setitem(sys.modules, f"dcpcse.encoders.{name}", torch_kernels)
        monkeypatch.setattr(f"dcpcse.encoders.{name}", torch_kernels, raising=False)
    options = {"method": "scpcse", "bf16": True, "max_steps": 2, "temp": 1.0}
    folder = tiny("bert", **NO_DROPOUT)
    plain = train(folder, train_txt, **options)
    monkeypatch.setattr(trainers, "uses_kernels", lambda *args, **options: True)
    passes, run = [], half_precision.HalfStack.__call__
    monkeypatch.setattr(half_precision.HalfStack, "__call__", lambda *a, **k: passes.append(1) or run(*a, **k))
    half = train(folder, train_txt, **options)
    assert len(passes) >= 2
    assert {parameter.dtype for parameter in half.final.values()} == {torch.float32}
    for name, gradient in half.gradients[0].items():
        expected = plain.gradients[0][name].flatten()
        assert not torch.equal(gradient, plain.gradients[0][name])
        assert torch.cosine_similarity(gradient.flatten(), expected, dim=0) > 0.95 or expected.abs().max() < 1e-6, name
    model, loaded = half.trainer.step_module.model, dcpcse.load(half.folder, device="cpu")
    np.testing.assert_array_equal(loaded.encode(sentences), model.encode(sentences))
    assert loaded.encoder.dtype_name == "float32"


# A frozen encoder in bfloat16


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("roberta", {"do_mlm": True, "train_lm_head": True}),
        ("modernbert", {"prefix_projection": True, "gradient_checkpointing": True}),
        # Without batch normalisation, which blows differences within four rows up.
        ("bert", {"method": "d2cse", "discriminator": "trained", "batchnorm": "False"}),
        ("bert", {"method": "scpcse"}),
    ],
    ids=str,
)
def test_a_frozen_encoder_in_bf16_trains_prompts_in_float32(kind, options, tiny, train, train_txt, sentences):
    folder = tiny(kind, **NO_DROPOUT)  # whose draws hang on the type
    # At a temperature of 0.05 the batch is told apart already, and nothing but rounding is left.
    options = with_encoder({**options, "max_steps": 1, "temp": 1.0}, tiny(kind, seed=1))
    full, half = (train(folder, train_txt, **options, encoder_dtype=name) for name in ("float32", "bfloat16"))
    model = half.trainer.step_module.model
    frozen = [p for p in half.trainer.step_module.parameters() if not p.requires_grad]
    assert frozen and {parameter.dtype for parameter in frozen} == {torch.bfloat16}
    trained = {name: p for name, p in half.trainer.step_module.named_parameters() if p.requires_grad}
    assert {p.dtype for p in trained.values()} == {torch.float32}
    for name, gradient in half.gradients[0].items():
        exact = full.gradients[0][name].flatten()
        assert torch.cosine_similarity(gradient.flatten(), exact, dim=0) > 0.95 or exact.abs().max() < 1e-6, name
    loaded = dcpcse.load(half.folder, device="cpu")
    np.testing.assert_array_equal(loaded.encode(sentences), model.encode(sentences))
    assert loaded.encoder.backbone.dtype == torch.bfloat16
    assert fingerprint(full.trainer.step_module.model.encoder.backbone) == loaded.source.fingerprint
    assert not (half.folder / "adapter_config.json").exists()
