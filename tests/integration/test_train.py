"""train.py from the command line to the folder: what is trained, what is logged, what the options do."""

import contextlib
import functools
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_kernels
import yaml
from numpy.testing import assert_allclose
from runs import (
    NO_DROPOUT,
    Run,
    assert_same_weights,
    cls_by_cache,
    contrastive_loss,
    files,
    weights,
    words,
)
from scipy.stats import spearmanr
from transformers import AutoModel, AutoModelForMaskedLM

import dcpcse
from dcpcse.cli.commands.train import evaluate_command, train_command
from dcpcse.encoders import frozen_layers as prepacking
from dcpcse.encoders import half_precision
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.identity import fingerprint
from dcpcse.training import trainer as trainers
from dcpcse.utils import devices

TRAINED = ("model.encoder.prompt.", "model.head.")


@pytest.fixture(scope="module")
def once(train, tiny, request):
    """once(kind, data, dropout=True, **options) → the run with these options, which several tests look at."""

    @functools.cache
    def run(kind: str = "bert", data: str = "train_txt", *, dropout: bool = True, **options) -> Run:
        return train(tiny(kind, **({} if dropout else NO_DROPOUT)), request.getfixturevalue(data), **options)

    return run


# What is trained, and what is not


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        *(("bert", "train_txt"), ("roberta", "train_csv"), ("xlm-roberta", "train_txt"), ("electra", "train_csv")),
        ("modernbert", "train_txt"),
    ],
)
def test_prompts_and_head_change_and_nothing_else(kind, data, once):
    run = once(kind, data)
    changed = {name for name, weight in run.final.items() if not torch.equal(weight, run.initial[name])}
    assert changed == {name for name in run.initial if name.startswith(TRAINED)}
    assert changed >= {"model.encoder.prompt.table.weight", "model.head.dense.weight", "model.head.dense.bias"}


@pytest.mark.parametrize("run_of", ["unsupervised", "supervised"])
def test_the_backbone_after_training_is_the_checkpoint_to_the_last_bit(run_of, tiny, request):
    run = request.getfixturevalue(run_of)
    original = AutoModel.from_pretrained(tiny("bert" if run_of == "unsupervised" else "roberta"))
    original.pooler = None
    backbone = run.trainer.step_module.model.encoder.backbone
    trained = dict(backbone.named_parameters())
    assert trained.keys() == dict(original.named_parameters()).keys()
    for name, weight in original.named_parameters():
        assert torch.equal(trained[name], weight), name
    recorded = json.loads((run.folder / "dcpcse.json").read_text(encoding="utf-8"))["base"]["fingerprint"]
    assert fingerprint(backbone) == fingerprint(original) == recorded


def test_the_lm_head_is_frozen_as_in_the_paper(once):
    run = once(do_mlm=True)
    head = {name for name in run.initial if name.startswith("losses.mlm.")}
    assert head and all(torch.equal(run.final[name], run.initial[name]) for name in head)


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_a_trained_lm_head_changes_and_leaves_the_encoder_alone(kind, tiny, train, train_txt):
    before = files(Path(tiny(kind)))
    run = train(tiny(kind), train_txt, do_mlm=True, train_lm_head=True)
    changed = {name for name, weight in run.final.items() if not torch.equal(weight, run.initial[name])}
    assert {name for name in changed if not name.startswith((*TRAINED, "losses.mlm."))} == set()
    assert any(name.endswith("decoder.weight") for name in changed)
    words_of_checkpoint = AutoModel.from_pretrained(tiny(kind)).get_input_embeddings().weight
    backbone = run.trainer.step_module.model.encoder.backbone
    assert torch.equal(backbone.get_input_embeddings().weight, words_of_checkpoint)
    assert files(Path(tiny(kind))) == before


def test_an_lm_head_of_another_checkpoint_serves_one_that_has_none(tiny, train, train_txt):
    with_head, without = tiny("bert", seed=3, vocab_size=300), tiny("bert", masked_lm=False, vocab_size=300)
    run = train(without, train_txt, do_mlm=True, lm_head=with_head)
    decoder = AutoModelForMaskedLM.from_pretrained(with_head).get_output_embeddings().weight
    found = [weight for name, weight in run.final.items() if name.startswith("losses.mlm.")]
    assert any(weight.shape == decoder.shape and torch.equal(weight, decoder) for weight in found)


def test_a_new_lm_head_is_trained(tiny, train, train_txt):
    run = train(tiny("bert", masked_lm=False), train_txt, do_mlm=True, lm_head="new")
    head = {name for name in run.initial if name.startswith("losses.mlm.")}
    assert head
    assert any(not torch.equal(run.final[name], run.initial[name]) for name in head)


def test_a_projection_is_trained_in_the_place_of_the_prompts(tiny, train, train_txt):
    run = train(tiny("bert"), train_txt, prefix_projection=True, prefix_hidden_size=24)
    changed = {name for name, weight in run.final.items() if not torch.equal(weight, run.initial[name])}
    assert {name for name in changed if "prompt" in name} == {
        f"model.encoder.prompt.table.{name}"
        for name in ("embedding", "trans.0.weight", "trans.0.bias", "trans.2.weight", "trans.2.bias")
    }
    table = run.trainer.step_module.model.encoder.prompt.table()
    assert torch.equal(weights(run.folder)["prompt_embeddings"], table.detach())


# The folder


@pytest.mark.parametrize("run_of", ["unsupervised", "supervised"])
def test_the_folder_loads_and_encodes_as_the_trained_model(run_of, sentences, request):
    run = request.getfixturevalue(run_of)
    loaded = dcpcse.load(str(run.folder), device="cpu").encode(sentences)
    assert loaded.shape == (len(sentences), 32)
    assert_allclose(loaded, run.trainer.step_module.model.encode(sentences), atol=1e-6)


@pytest.mark.parametrize(
    ("run_of", "kind", "head"), [("unsupervised", "bert", False), ("supervised", "roberta", True)]
)
def test_embeddings_are_those_of_the_saved_prompts_as_cached_keys_and_values(
    run_of, kind, head, tiny, sentences, request
):
    folder = request.getfixturevalue(run_of).folder
    expected = cls_by_cache(tiny(kind), folder, sentences, head=head)
    assert_allclose(dcpcse.load(str(folder), device="cpu").encode(sentences), expected, atol=1e-5)


def test_the_prompts_matter(unsupervised, tiny, sentences):
    model = dcpcse.load(str(unsupervised.folder), device="cpu")
    with_prompts = model.encode(sentences)
    model.encoder.prompt = None
    assert np.abs(with_prompts - model.encode(sentences)).max() > 0.01


def test_the_folder_is_small_and_holds_no_backbone_and_no_pickle(supervised):
    assert all(tensor.numel() < 5000 for tensor in weights(supervised.folder).values())
    allowed = {".json", ".jsonl", ".safetensors", ".yaml", ".txt"}
    assert {path.suffix for path in supervised.folder.iterdir()} <= allowed


def test_one_seed_gives_one_result_and_another_seed_another(tiny, train, train_txt):
    first, again, other = (train(tiny("bert"), train_txt, seed=seed) for seed in (7, 7, 8))
    assert_same_weights(first.folder, again.folder)
    assert not torch.equal(weights(first.folder)["prompt_embeddings"], weights(other.folder)["prompt_embeddings"])


def test_overwriting_leaves_nothing_of_the_earlier_result(tiny, train, train_txt):
    first = train(tiny("bert"), train_txt, mlp_only_train=True, save_strategy="steps", save_steps=1)
    assert (first.folder / "adapter_model.safetensors").is_file()
    second = train(tiny("bert"), train_txt, folder=first.folder, overwrite_output_dir=True, pre_seq_len=3)
    fresh = train(tiny("bert"), train_txt, pre_seq_len=3)
    assert files(second.folder).keys() == files(fresh.folder).keys()
    assert_same_weights(second.folder, fresh.folder)


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


# The scores of five steps, and of the evaluation that --do_eval asks for at the end.
SCRIPT = {"stsb_spearman": [0.1, 0.5, 0.3, 0.5, -0.2, 0.5], "sickr_spearman": [0.2, -0.1, 0.9, 0.2, 0.1, 0.9]}
SCRIPT["avg_sts"] = [(stsb + sickr) / 2 for stsb, sickr in zip(*SCRIPT.values(), strict=True)]


@pytest.mark.parametrize(("metric", "best"), [("sickr_spearman", 3), ("avg_sts", 3), ("eval_stsb_spearman", 2)])
def test_the_best_step_by_the_metric_asked_for_is_kept(metric, best, tiny, train, train_txt, sts_data, monkeypatch):
    """Of five steps with given scores; of equal ones the first."""
    scores = iter([dict(zip(SCRIPT, values, strict=True)) for values in zip(*SCRIPT.values(), strict=True)])
    monkeypatch.setattr("dcpcse.training.eval_datasets.dev_metrics", lambda results: next(scores))
    run = train(
        tiny("bert"),
        train_txt,
        **{"eval_strategy": "steps", "eval_steps": 1, "eval_data_dir": sts_data, "custom_eval_data": True},
        **{"load_best_model_at_end": True, "metric_for_best_model": metric, "save_strategy": None, "max_steps": 5},
    )
    assert run.state["best_metric"] == SCRIPT[metric.removeprefix("eval_")][best - 1]
    assert run.state["best_global_step"] == best
    assert {path.name for path in run.folder.glob("checkpoint-*")} == {f"checkpoint-{best}", "checkpoint-5"}
    assert_same_weights(run.folder, run.folder / f"checkpoint-{best}")
    last, kept = weights(run.folder / "checkpoint-5"), weights(run.folder)
    assert not torch.equal(last["prompt_embeddings"], kept["prompt_embeddings"])


def test_do_eval_at_the_end_measures_the_kept_model_which_is_the_best_on_stsb(tiny, train, train_txt, sts_data):
    run = train(
        tiny("bert"),
        train_txt,
        **{"eval_strategy": "steps", "eval_steps": 1, "eval_data_dir": sts_data, "custom_eval_data": True},
        **{"load_best_model_at_end": True, "save_strategy": None, "do_eval": True},
    )
    lines = (run.folder / "eval_results.txt").read_text(encoding="utf-8").splitlines()
    results = dict(line.split(" = ") for line in lines)
    assert float(results["eval_stsb_spearman"]) == run.state["best_metric"] == max(run.logged("eval_stsb_spearman"))


def test_evaluation_py_gives_the_best_score_again(unsupervised, sts_data, tool, tmp_path):
    argv = ["--model_name_or_path", str(unsupervised.folder), "--mode", "dev", "--data_dir", sts_data]
    outcome = tool(evaluate_command, [*argv, "--custom_data", "--output_file", str(tmp_path / "scores.json")])
    assert outcome.code == 0, outcome.err
    assert outcome.table["STSBenchmark"] == f"{100 * unsupervised.state['best_metric']:.2f}"
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))["scores_x100"]
    assert scores["STSBenchmark"] / 100 == pytest.approx(unsupervised.state["best_metric"], abs=1e-9)


def test_dev_scores_are_of_the_dev_file_as_scipy_computes_them(tiny, train, train_txt, sts_data, tmp_path):
    data = tmp_path / "downstream"
    for name, digest in files(Path(sts_data) / "downstream").items():
        if digest:
            (data / name).parent.mkdir(parents=True, exist_ok=True)
            (data / name).write_bytes((Path(sts_data) / "downstream" / name).read_bytes())
    for split in ("train", "test"):  # other gold scores, so that a mixed-up split shows
        path = data / f"STS/STSBenchmark/sts-{split}.csv"
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        lines = ["\t".join([*row[:4], str(i), *row[5:]]) for i, row in enumerate(rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    evaluating = {"eval_strategy": "steps", "eval_steps": 4, "eval_data_dir": tmp_path, "custom_eval_data": True}
    run = train(tiny("bert"), train_txt, **evaluating)
    model = dcpcse.load(str(run.folder), device="cpu")
    dev, test = (spearman_by_hand(model, data / f"STS/STSBenchmark/sts-{split}.csv") for split in ("dev", "test"))
    assert abs(dev - test) > 0.01
    assert run.logged("eval_stsb_spearman") == [pytest.approx(dev, abs=1e-6)]


@pytest.mark.parametrize("strategy", [{"eval_strategy": "steps", "eval_steps": 3}, {"eval_strategy": "epoch"}])
def test_the_best_model_is_kept_however_often_it_is_measured(strategy, tiny, train, train_txt, sts_data):
    """With save_steps and save_strategy left at their defaults, 500 and steps."""
    run = train(
        tiny("bert"),
        train_txt,
        **strategy,
        **{"eval_data_dir": sts_data, "custom_eval_data": True},
        **{"load_best_model_at_end": True, "metric_for_best_model": "stsb_spearman"},
        **{"max_steps": None, "num_train_epochs": 2, "per_device_train_batch_size": 10, "save_strategy": None},
    )
    scores = run.logged("eval_stsb_spearman")
    assert len(scores) >= 2
    assert run.state["best_metric"] == max(scores)


def test_measuring_does_not_change_the_training(once, sts_data):
    evaluating = {"eval_strategy": "steps", "eval_steps": 1, "eval_data_dir": sts_data, "custom_eval_data": True}
    assert_same_weights(once(**evaluating).folder, once().folder)


def test_training_needs_no_do_train(once, sts_data):
    """transformers sets do_eval by itself where eval_strategy is given; nobody asked for an evaluation alone."""
    places = {"eval_data_dir": sts_data, "custom_eval_data": True}
    run = once(do_train=None, eval_strategy="steps", eval_steps=2, **places)
    assert (run.folder / "dcpcse.json").is_file()
    assert run.state["global_step"] == 4


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
        (
            {"mlm_weight": 2.0, "mlm_decay_rate": 0.5, "mlm_decay_steps": 3},
            lambda step: 2.0 * 0.5 ** (step / 3),
        ),
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


def test_the_mlm_loss_is_a_mean_over_accumulated_batches_too(tiny, train, train_txt):
    run = train(tiny("bert"), train_txt, do_mlm=True, gradient_accumulation_steps=2, mlm_decay_steps=2)
    terms = enumerate(zip(run.logged("loss_contrastive"), run.logged("loss_mlm"), strict=True))
    expected = [c + 0.1 * 0.95 ** (finished / 2) * m for finished, (c, m) in terms]
    assert len(expected) == 4
    assert_allclose(run.logged("loss"), expected, rtol=1e-5)


# Ways of training that give the same result


def test_two_accumulated_batches_give_the_mean_of_their_gradients(tiny, train, train_csv):
    run = train(
        tiny("bert", **NO_DROPOUT),
        train_csv,
        **{"gradient_accumulation_steps": 2, "max_steps": 1, "max_grad_norm": 0, "temp": 0.5},
    )
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


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert"])
def test_gradient_checkpointing_recomputes_with_the_same_dropout(kind, tiny, train, train_csv):
    options = {"learning_rate": 1e-3, "max_steps": 2, "do_mlm": True}
    plain = train(tiny(kind), train_csv, **options)
    recomputed = train(tiny(kind), train_csv, gradient_checkpointing=True, **options)
    backbone = recomputed.trainer.step_module.model.encoder.backbone
    assert any(getattr(module, "gradient_checkpointing", False) for module in backbone.modules())
    assert_same_weights(plain.folder, recomputed.folder, atol=1e-6)


def test_gradient_caching_gives_the_same_prompts_and_the_same_log(tiny, train, train_csv):
    """Without dropout; four examples in chunks of three, in which hard negatives stay with their anchors."""
    options = {"learning_rate": 1e-3, "max_steps": 2, "gradient_accumulation_steps": 2}
    folder = tiny("bert", **NO_DROPOUT)
    plain = train(folder, train_csv, **options)
    cached = train(folder, train_csv, gradient_cache_chunk=3, **options)
    assert_same_weights(plain.folder, cached.folder, atol=1e-5)
    for key in ("loss", "cosine_positive", "cosine_negative", "grad_norm"):
        assert cached.logged(key) == pytest.approx(plain.logged(key), rel=1e-4)


def test_losses_in_row_chunks_give_the_same_prompts_and_the_same_log(tiny, train, train_csv):
    options = {"learning_rate": 1e-3, "max_steps": 2, "do_eh_loss": True, "gradient_cache_chunk": 3}
    whole = train(tiny("bert"), train_csv, **options)
    chunked = train(tiny("bert"), train_csv, loss_chunk=3, **options)
    assert_same_weights(whole.folder, chunked.folder, atol=1e-5)
    for key in ("loss", "loss_energy_hinge", "cosine_positive", "cosine_negative", "within_margin", "grad_norm"):
        assert chunked.logged(key) == pytest.approx(whole.logged(key), rel=1e-4)
    recorded = [yaml.safe_load((run.folder / "run.yaml").read_text(encoding="utf-8")) for run in (whole, chunked)]
    assert [options.get("loss_chunk") for options in recorded] == [None, 3]


def test_both_passes_of_gradient_caching_have_the_precision_of_the_run(tiny, train, train_txt, monkeypatch):
    """In the Trainer it is the wrapped module that has it, which the first pass does not go through."""
    seen, forward = [], Encoder.forward

    def watched(self, *args, **kwargs):
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Encoder, "forward", watched)
    train(tiny("bert"), train_txt, gradient_cache_chunk=2, bf16=True, max_steps=1)
    assert sorted(seen) == [(False, True)] * 2 + [(True, True)] * 2


def test_gradient_caching_logs_every_term(tiny, train, train_txt):
    run = train(tiny("bert"), train_txt, gradient_cache_chunk=2, do_mlm=True)
    for key in ("loss_contrastive", "loss_mlm", "weight_mlm"):
        assert len(run.logged(key)) == 4
    logged = zip(*map(run.logged, ("loss_contrastive", "weight_mlm", "loss_mlm")), strict=True)
    together = [contrastive + weight * mlm for contrastive, weight, mlm in logged]
    assert run.logged("loss") == pytest.approx(together, rel=1e-2)


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


def test_long_sentences_are_cut_at_max_seq_length(tiny, train, train_csv):
    run = train(tiny("bert"), train_csv, max_seq_length=7, max_steps=1)
    ids = run.batches[0]["input_ids"]
    assert ids.shape == (4, 3, 7)
    tokenizer = run.trainer.step_module.model.tokenizer
    assert ids[ids[:, :, 6] != tokenizer.pad_token_id][:, 6].unique().tolist() == [tokenizer.sep_token_id]


def test_bf16_works_on_a_cpu_and_leaves_the_weights_in_float32(tiny, train, train_txt):
    half, full = (train(tiny("bert"), train_txt, max_steps=1, bf16=bf16, temp=0.5) for bf16 in (True, False))
    assert {tensor.dtype for tensor in weights(half.folder).values()} == {torch.float32}
    assert half.logged("loss")[0] != full.logged("loss")[0]
    assert half.logged("loss")[0] == pytest.approx(full.logged("loss")[0], rel=0.05)


def test_a_compiled_step_is_one_graph_and_trains_the_same(tiny, train, train_txt):
    options = {"max_steps": 2, "learning_rate": 1e-3, "max_seq_length": 16, "pad_to_max_length": True}
    encoder = tiny("bert", num_hidden_layers=1)  # tracing a layer takes a second
    plain = train(encoder, train_txt, **options)
    torch._dynamo.reset()
    try:
        torch._dynamo.utils.counters.clear()
        compiled = train(encoder, train_txt, torch_compile=True, torch_compile_backend="eager", **options)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
        assert not torch._dynamo.utils.counters["graph_break"]
    finally:
        torch._dynamo.reset()
    assert_same_weights(plain.folder, compiled.folder, atol=1e-6)


def test_a_fused_optimiser_trains_the_same_prompts(once):
    assert_same_weights(once().folder, once(optim="adamw_torch_fused").folder, atol=1e-5)


def test_workers_that_tokenise_ahead_train_the_same(once):
    options = {"method": "conpvp", "max_steps": 2}
    plain, ahead = once(**options), once(dataloader_num_workers=2, **options)
    assert_same_weights(plain.folder, ahead.folder, atol=0)


# Options, and what is said at the start


def test_the_start_says_whether_pads_are_computed(tiny, train, train_txt, tool):
    rows = [
        ("bert", {}, "batches packed, without padding tokens\n"),
        ("bert", {"packing": "False"}, "batches padded\n"),
        ("deberta", {"method": "simcse"}, "batches padded: deberta does not support packing\n"),
    ]
    for kind, options, said in rows:
        argv = train.argv(tiny(kind), train_txt, train.fresh(), max_steps=1, **options)
        assert said in tool(train_command, argv).said, kind


def test_run_yaml_gives_the_run_again(tiny, train, train_txt, tool):
    first = train(
        tiny("bert"),
        train_txt,
        **{"do_mlm": True, "mlp_only_train": True, "pre_seq_len": 4, "prompt_dropout": 0.3, "position_offset": 1},
        **{"seed": 5, "gradient_accumulation_steps": 2, "warmup_steps": 1, "lr_scheduler_type": "cosine"},
        **{"lr_scheduler_kwargs": '{"num_cycles": 0.3}', "report_to": "none", "max_steps": 3},
    )
    kept = files(first.folder)
    outcome = tool(train_command, [str(first.folder / "run.yaml"), "--output_dir", str(first.folder) + "-again"])
    assert outcome.code == 0, outcome.err
    assert "no effect" not in outcome.said
    again = Path(str(first.folder) + "-again")
    assert_same_weights(first.folder, again)
    assert files(first.folder) == kept
    options = [yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8")) for folder in (first.folder, again)]
    assert options[0] == {**options[1], "output_dir": str(first.folder)}


def test_run_yaml_of_a_run_that_chose_its_best_gives_the_run_again(unsupervised, tool):
    again = Path(str(unsupervised.folder) + "-again")
    outcome = tool(train_command, [str(unsupervised.folder / "run.yaml"), "--output_dir", str(again)])
    assert outcome.code == 0, outcome.err
    assert_same_weights(unsupervised.folder, again)
    state = json.loads((again / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["best_metric"] == unsupervised.state["best_metric"]


def test_the_command_line_overrides_a_file_of_options(tiny, train, train_txt, tool, tmp_path):
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", pre_seq_len=3)
    options = {"pre_seq_len": 6, "temp": 0.2, "max_steps": 99, "do_mlm": True}
    path = tmp_path / "options.yaml"
    path.write_text(yaml.safe_dump(options), encoding="utf-8")
    outcome = tool(train_command, [str(path), *argv])
    assert outcome.code == 0, outcome.err
    record = json.loads((tmp_path / "out/dcpcse.json").read_text(encoding="utf-8"))
    assert record["prompt"]["length"] == 3
    given = {"temp": 0.2, "do_mlm": True, "pre_seq_len": 3}
    assert record["arguments"] == {**given, "tuning": "deep", "pooler_type": "cls"}
    assert json.loads((tmp_path / "out/trainer_state.json").read_text(encoding="utf-8"))["global_step"] == 4


@pytest.mark.parametrize(
    ("data", "options", "negatives"),
    [
        ("train_txt", {}, 3),
        ("train_csv", {}, 7),
        ("train_txt", {"per_device_train_batch_size": 64}, 39),  # the file has 40 rows
    ],
)
def test_the_summary_counts_parameters_and_negatives(data, options, negatives, tiny, train, tool, tmp_path, request):
    argv = train.argv(
        tiny("bert"), request.getfixturevalue(data), tmp_path / "out", pre_seq_len=5, max_steps=1, **options
    )
    outcome = tool(train_command, argv)
    encoder = AutoModel.from_pretrained(tiny("bert"))
    frozen = sum(p.numel() for name, p in encoder.named_parameters() if not name.startswith("pooler."))
    prompts = 5 * 2 * 3 * 32  # P · 2 · layers · hidden
    trained = prompts + 32 * 32 + 32
    assert f"encoder {frozen:,}, frozen" in outcome.said
    assert f"trained: prompts {prompts:,} ({100 * prompts / frozen:.3f}%)" in outcome.said
    assert f"{trained:,} with heads ({100 * trained / frozen:.3f}%)" in outcome.said
    assert f"negatives per anchor: {negatives} " in outcome.said
    assert "optimiser steps: 1;" in outcome.said


@pytest.mark.parametrize(
    "options",
    [
        {"num_train_epochs": 2, "per_device_train_batch_size": 7, "gradient_accumulation_steps": 4},
        {"num_train_epochs": 1.5, "per_device_train_batch_size": 10},
        {"num_train_epochs": 2, "per_device_train_batch_size": 9, "dataloader_drop_last": True},
        {"num_train_epochs": 0.3, "per_device_train_batch_size": 6, "gradient_accumulation_steps": 2},
    ],
)
def test_the_summary_foretells_the_number_of_steps(options, tiny, train, train_txt, tool, tmp_path):
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **{"max_steps": None, **options})
    outcome = tool(train_command, argv)
    state = json.loads((tmp_path / "out/trainer_state.json").read_text(encoding="utf-8"))
    assert f"optimiser steps: {state['global_step']:,};" in outcome.said


def test_options_without_effect_on_this_run_are_reported(tiny, train, train_txt, tool, tmp_path):
    options = {"gather_gradient": "published", "loss_chunk": 4, "max_steps": 1}
    outcome = tool(train_command, train.argv(tiny("bert"), train_txt, tmp_path / "out", **options))
    assert outcome.code == 0
    assert "--gather_gradient published has no effect with one process" in outcome.said
    assert "--loss_chunk 4 has no effect with --per_device_train_batch_size 4" in outcome.said


def test_modernbert_says_that_a_position_offset_changes_nothing_and_nothing_changes(tiny, train, train_txt, tool):
    folders = [train.fresh(), train.fresh()]
    outcomes = [
        tool(train_command, train.argv(tiny("modernbert"), train_txt, folder, position_offset=offset, max_steps=2))
        for folder, offset in zip(folders, (7, None), strict=True)
    ]
    assert [outcome.code for outcome in outcomes] == [0, 0]
    assert "--position_offset 7 has no effect on modernbert" in outcomes[0].said
    assert "position_offset" not in outcomes[1].said
    assert_same_weights(*folders)


def test_a_position_offset_moves_the_text_of_bert(once, tiny, sentences):
    unshifted = once(position_offset=0)
    assert once().logged("loss") != unshifted.logged("loss")
    expected = cls_by_cache(tiny("bert"), unshifted.folder, sentences, head=True)
    assert_allclose(dcpcse.load(str(unshifted.folder), device="cpu").encode(sentences), expected, atol=1e-5)


def test_views_of_a_sentence_differ_by_dropout_alone(tiny, train, train_txt):
    """Without any dropout both views are one vector; B equal anchors at most, so the loss is below ln B."""
    still = train(tiny("bert", **NO_DROPOUT), train_txt, max_steps=1)
    prompts_only = train(tiny("bert", **NO_DROPOUT), train_txt, max_steps=1, prompt_dropout=0.5)
    assert still.logged("loss")[0] < math.log(4)
    assert prompts_only.logged("loss")[0] != still.logged("loss")[0]


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


def test_frozen_layers_in_bf16_are_those_of_training_alone(tiny, train, train_txt, sentences, monkeypatch, caplog):
    """As on a GPU with kernels: the folder, its vectors and the frozen weights are those of float32."""
    for name in ("prefix_kernel", "layer_kernels"):
        monkeypatch.setitem(sys.modules, f"dcpcse.encoders.{name}", torch_kernels)
        monkeypatch.setattr(f"dcpcse.encoders.{name}", torch_kernels, raising=False)
    caplog.set_level("INFO")
    line = "frozen layers are computed in bfloat16 by kernels"
    options = {"method": "scpcse", "bf16": True, "max_steps": 2, "temp": 1.0}
    folder = tiny("bert", **NO_DROPOUT)
    plain = train(folder, train_txt, **options)
    assert line not in caplog.text
    monkeypatch.setattr(trainers, "uses_kernels", lambda *args, **options: True)
    passes, run = [], half_precision.HalfStack.__call__
    monkeypatch.setattr(half_precision.HalfStack, "__call__", lambda *a, **k: passes.append(1) or run(*a, **k))
    half = train(folder, train_txt, **options)
    assert line in caplog.text and len(passes) >= 2
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
        # Without batch normalisation, which blows differences within four rows up.
        ("bert", {"method": "d2cse", "discriminator": "trained", "batchnorm": "False"}),
        ("bert", {"method": "scpcse"}),
        ("modernbert", {"prefix_projection": True, "gradient_checkpointing": True}),
    ],
    ids=str,
)
def test_a_frozen_encoder_in_bf16_trains_prompts_in_float32(kind, options, tiny, train, train_txt, sentences):
    if options.get("method") == "d2cse":
        options = {**options, "generator_name": tiny(kind, seed=1)}
    folder = tiny(kind, **NO_DROPOUT)  # whose draws hang on the type
    options = {
        **options,
        "max_steps": 1,
        "temp": 1.0,
    }  # at 0.05 the batch is told apart already, and nothing but rounding is left
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


def test_free_memory_is_given_back_after_every_few_steps(tiny, train, train_txt, monkeypatch):
    given = []
    monkeypatch.setattr(devices, "_malloc_trim", lambda: given.append)
    monkeypatch.setattr(devices, "RELEASE_EVERY", 2)
    train(tiny("bert"), train_txt, max_steps=5)
    assert len(given) == 2


def test_overwrite_cache_tokenises_again(tiny, train, train_txt, tmp_path, monkeypatch):
    refreshed, opened = [], trainers.open_token_tables

    def noted(*given, **how):
        refreshed.append(how["refresh"])
        return opened(*given, **how)

    monkeypatch.setattr(trainers, "open_token_tables", noted)
    options = {"cache_dir": str(tmp_path), "max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 20}
    for again in (False, True):
        train(tiny("bert"), train_txt, overwrite_cache=again, **options)
    assert refreshed == [False, True]


def test_the_log_and_the_end_of_a_training_are_lines(tiny, train, train_txt, tool, tmp_path):
    ended = tool(train_command, train.argv(tiny("bert"), train_txt, tmp_path / "out", max_steps=3, logging_steps=1))
    assert ended.code == 0
    logged = [line.split(": loss ")[0] for line in ended.out.splitlines() if "loss" in line]
    assert logged == ["step 1", "step 2", "step 3"]
    (end,) = [line for line in ended.said.splitlines() if line.startswith("finished at step 3: mean loss ")]
    assert re.search(r"; [\d.]+ s, \S+ steps per second$", end)
    assert not re.search("total_flos|[{}]", ended.out + ended.said)
    assert "total_flos" not in (tmp_path / "out/train_results.txt").read_text(encoding="utf-8")
