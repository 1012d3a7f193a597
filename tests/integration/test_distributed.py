"""Two processes (gloo, CPU) train as one process with the joined batch would."""

import json
import signal
from pathlib import Path

import pytest
import torch
from joined import PUBLISHED, build, go_before, masked_by_place, outcome, rows_of
from method_models import with_encoder
from runs import (
    NO_DROPOUT,
    assert_same_weights,
    comparable,
    contrastive_loss,
    resumed_steps,
    train_loss,
    weights,
    words,
)
from torch.utils.data import BatchSampler, SequentialSampler

import dcpcse
from dcpcse.data.collator import slots_of
from dcpcse.data.columns import CLASSES
from dcpcse.data.examples import NEGATIVES_KEY
from dcpcse.losses.pair_ranking import PairRanking
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.utils.distributed import DistributedBatchSampler, step_sizes
from dcpcse.utils.run_files import read_metrics

SENTENCE, PAIR, TRIPLE = ("anchor",), ("anchor", "positive"), ("anchor", "positive", "negative")
SEVERAL, CLASSED = (*PAIR, "negative_1", "negative_2"), (*PAIR, "class")
HINGE, WEIGHTED = {"do_eh_loss": True, "eh_loss_margin": 0.5}, {"hard_negative_weight": 0.5, "temp": 0.2}
PROTOTYPES = {"method": "scpcse", "prototypes": "both"}
ESIMCSE = {"method": "esimcse", "dup_rate": 0.0}
D2CSE = {"method": "d2cse", "generation": "argmax"}
DIFFCSE = {"method": "diffcse", "generation": "argmax", "generate_at": "all", "crtd_reduction": "mean_all"}
CONSERT = {"method": "consert", "augmentation_1": "adversarial"}
RANKCSE = {"method": "rankcse", "temp": 0.01}
THREE = {"method": "promptbert", "org_mlp": True, "do_mlm": True, "further_templates": ["[MASK] {sentence}"]}
CASES = {
    "unsupervised": (SENTENCE, {}),
    "hard negatives": (TRIPLE, WEIGHTED),
    "several hard negatives, hinge": (SEVERAL, HINGE),
    "different numbers of hard negatives": ((*SEVERAL, NEGATIVES_KEY), {**HINGE, **WEIGHTED}),
    "classes, prototypes": (CLASSED, PROTOTYPES),
    "guide": (TRIPLE, HINGE, {"guide": True}),
    "guide and classes": (CLASSED, {}, {"guide": True}),
    "one row in one process": (TRIPLE, {"method": "simcse"}, {"shares": (1, 2)}),
    "mlm": (TRIPLE, {"do_mlm": True, "train_lm_head": True}),
    "batchnorm": (TRIPLE, {"batchnorm": True}),
    "scpcse, prototypes": (TRIPLE, PROTOTYPES),
    "promptbert, three templates": (TRIPLE, THREE),
    "conpvp, hard negatives": (TRIPLE, {"method": "conpvp", "instance_weight": 0.5, "denoise_by": "attention"}),
    "lora": (TRIPLE, {"method": "simcse", "tuning": "lora", "lora_target_modules": ["all-linear"]}),
    "esimcse": (SENTENCE, {**ESIMCSE, "neg_size": 7}, {"before": 2}),
    "esimcse, hard negatives": (TRIPLE, {**ESIMCSE, "neg_size": 30, "tuning": "deep"}, {"before": 1}),
    "esimcse, lora": (SENTENCE, {**ESIMCSE, "neg_size": 7, "tuning": "lora"}, {"before": 2}),
    "d2cse, hinge": (TRIPLE, {**D2CSE, "crtd_reduction": "mean_tokens", "before_mlp": True, "do_eh_loss": True}),
    "d2cse, labels": ((*PAIR, "label"), {**D2CSE, "temp": 0.05, "crtd_views": "anchor"}),
    "diffcse": (SENTENCE, DIFFCSE),
    "diffcse, scores": ((*PAIR, "score"), {**DIFFCSE, "temp": 0.05, "crtd_views": "anchor"}),
    "sbert": (TRIPLE, {"method": "sbert", "temp": 0.05}),
    "sbert, labels": ((*PAIR, "label"), {"method": "sbert", "temp": 0.05}),
    "sbert, scores": ((*PAIR, "score"), {"method": "sbert", "temp": 0.05}),
    # Of two texts an anchor is its own negative: |u - v| of them has rounding for a gradient.
    "consert, hard negatives": (TRIPLE, {**CONSERT, "augmentation_2": "dropout"}, {"shares": (3, 3)}),
    "rankcse, listnet": (PAIR, {**RANKCSE, "ranking": "listnet", "ranking_temp": 0.3, "teacher_temp": 0.1}),
    "rankcse, listmle": (PAIR, {**RANKCSE, "matryoshka_dims": [32, 6], "matryoshka_weights": [1, 0.3]}),
    "rankcse, pairwise": (TRIPLE, {**RANKCSE, "ranking": "pairwise", "ranking_temp": 0.3}),
    "cosent, scores": ((*PAIR, "score"), {"method": "cosent"}),
    "angle": (TRIPLE, {"method": "angle"}),
    "angle, labels, Matryoshka": ((*PAIR, "label"), {"method": "angle", "matryoshka_dims": [32, 6]}),
    "published": (TRIPLE, {"gather_gradient": "published", **PUBLISHED}, {"shares": (4, 4)}),
}
IN_ROW_CHUNKS = ("different numbers of hard negatives", "guide and classes", "conpvp, hard negatives", "esimcse")
IN_ROW_CHUNKS += ("consert, hard negatives", "rankcse, listnet", "angle")
CASES |= {  # two chunks in one process, one in the other
    f"{name}, in row chunks": (*CASES[name][:2], {**(CASES[name][2:] or ({},))[0], "row_chunk": 2})
    for name in IN_ROW_CHUNKS
}
"""Name → columns, options, and what else differs: without shares, 3 rows of one process and 2 of the other."""


LABELS = {"label": lambda i: CLASSES[i % 3], "score": float, "class": lambda i: (1 + i) // 2}
LABELS[NEGATIVES_KEY] = lambda i: i % 3


def row_of(columns, texts, i):
    """The i-th example; its sentences are some of the texts."""
    return {role: LABELS[role](i) if role in LABELS else texts[(i + k) % len(texts)] for k, role in enumerate(columns)}


@pytest.fixture(scope="module")
def without_chance():
    """Masks follow from the tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenMasking, "forward", masked_by_place)
        yield


@pytest.fixture(scope="module")
def two_processes(tiny, sentences, tmp_path_factory, without_chance, pairs):
    """Case → (step of one process, its joined batch, its outcome, [outcomes of rank 0, of rank 1])."""
    folder = tmp_path_factory.mktemp("ddp")
    encoder = tiny("bert", **NO_DROPOUT)
    job, whole = {"cases": {}}, {}
    # The first process gets the short sentences: it pads to another length than the second.
    texts = sorted(sentences, key=len)
    for name, (columns, arguments, *more) in CASES.items():
        case = {"before": 0, **(more or [{}])[0]}
        first, second = case.get("shares", (3, 2))
        halves = [(texts[:first], first), (texts[-second:], second)]
        rows = [[row_of(columns, half, i) for i in range(size)] for half, size in halves]
        arguments = with_encoder({"temp": 0.5, **arguments}, encoder)  # 0.05 leaves next to no loss without dropout
        lm_head = "checkpoint" if arguments.get("do_mlm") or arguments.get("org_mlp") else None
        job["cases"][name] = {"columns": columns, "arguments": arguments, "rows": rows, "lm_head": lm_head}
        job["cases"][name] |= {"guide": tiny("bert", seed=5, **NO_DROPOUT)} if "guide" in case else {}
        job["cases"][name] |= {"encoder": encoder, "before": case["before"]}
        step, collate = build(job["cases"][name])  # of all rows at once
        job["cases"][name]["row_chunk"] = case.get("row_chunk")
        batch = collate([*rows[0], *rows[1]])
        go_before(step, batch, case)
        whole[name] = step, batch, outcome(step, step(**batch))
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    done = pairs(Path(__file__).with_name("joined.py"), folder / "job.json", folder)
    assert done.codes == [0, 0], done.stderr
    ranks = [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]
    whole["public code"], whole["by rank"] = whole["published"], (None, None, None)
    return {name: (*one, [rank[name] for rank in ranks]) for name, one in whole.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_averaged_gradients_of_two_processes_are_those_of_the_joined_batch(case, two_processes):
    """And so are the mean of their losses, and the running statistics, averages and queues."""
    step, batch, one, ranks = two_processes[case]
    assert ranks[0]["length"] < ranks[1]["length"] == batch["input_ids"].shape[2]
    assert ranks[0]["terms"].keys() == one["terms"].keys()
    for name, expected in one["terms"].items():
        assert expected.dtype == torch.float64
        own = [rank["terms"][name] for rank in ranks]
        # Different rows, so the mean means something; every process computes the whole loss of the order of pairs.
        assert (abs(own[0] - own[1]) > 1e-3) != isinstance(step.losses[name], PairRanking)
        torch.testing.assert_close(sum(own) / 2, expected, rtol=1e-9, atol=0)
    for rank in ranks:
        for name, gradient in one["gradients"].items() if case != "published" else ():
            # Some have none but rounding: softmax does not feel key biases, denoising takes a LayerNorm's bias away.
            allowed = max(1e-13, 1e-7 * gradient.abs().max().item())
            torch.testing.assert_close(rank["gradients"][name], gradient, rtol=0, atol=allowed)
        assert rank["buffers"].keys() == one["buffers"].keys()
        for name, buffer in one["buffers"].items():
            torch.testing.assert_close(rank["buffers"][name], buffer, rtol=1e-9, atol=1e-12)
            # The last seven of two batches of five and the one after them, or all of two; in the order of ranks.
            held = {"esimcse": 7, "esimcse, hard negatives": 10}.get(case) if name.endswith("queue") else None
            if held:
                assert buffer[-held:].abs().sum(1).min() > 0
                assert torch.equal(rank["buffers"][name], ranks[0]["buffers"][name])


def test_the_published_gradient_is_that_of_the_public_code(two_processes):
    """Its loss is taken from the public code line by line; the gradient is half the exact one."""
    _, _, one, ours = two_processes["published"]
    *_, public = two_processes["public code"]
    for mine, theirs in zip(ours, public, strict=True):
        for name, gradient in theirs["gradients"].items():
            largest = gradient.abs().max().item()
            allowed = max(1e-13, 1e-7 * largest)
            torch.testing.assert_close(mine["gradients"][name], gradient, rtol=0, atol=allowed)
            torch.testing.assert_close(2 * gradient, one["gradients"][name], rtol=0, atol=2 * allowed)
    assert public[0]["terms"]["contrastive"] == pytest.approx(one["terms"]["contrastive"].item(), rel=1e-9)


def test_the_loss_of_one_process_is_that_of_plain_loops_and_rows_are_gathered_by_rank(two_processes):
    for case in ("hard negatives", "lora"):
        step, batch, one, _ = two_processes[case]
        ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
        with torch.no_grad():
            vectors = step.model(ids, mask, slots_of(batch)).unflatten(0, batch["input_ids"].shape[:2])
        arguments = CASES[case][1]
        expected = contrastive_loss(vectors, arguments.get("temp", 0.5), arguments.get("hard_negative_weight", 0.0))
        torch.testing.assert_close(one["terms"]["contrastive"], expected, rtol=1e-6, atol=0)
    for gathered in two_processes["by rank"][-1]:
        assert torch.equal(gathered, torch.cat([rows_of(0), rows_of(1)])) and not gathered.requires_grad


# How the rows of an epoch are shared out


@pytest.mark.parametrize(
    ("processes", "size", "drop_last"), [(2, 1, False), (2, 4, True), (3, 2, True), (4, 3, False)]
)
def test_every_row_of_an_epoch_is_in_one_step_of_one_process(processes, size, drop_last):
    assert step_sizes(9, 2, 2, drop_last) == ([4, 4] if drop_last else [4, 5])  # too few rows join the step before
    for rows in range(processes, 40):
        batches = BatchSampler(SequentialSampler(range(rows)), size, drop_last)
        lists = list(DistributedBatchSampler(batches, processes))
        assert len(lists) == len(DistributedBatchSampler(batches, processes)) == processes * (len(lists) // processes)
        seen = [row for rows_of_list in lists for row in rows_of_list]
        whole = rows // (size * processes) * size * processes
        assert seen == list(range(whole if drop_last else rows))
        for start in range(0, len(lists), processes):
            lengths = sorted(map(len, lists[start : start + processes]))
            assert lengths[0] >= 1
            assert lengths[-1] - lengths[0] <= 1
            assert lengths[-1] <= size + 1
            assert start + processes == len(lists) or set(lengths) == {size}  # only the last step is uneven


# train.py itself, with the masks that each process draws

TRAIN = """
import sys
from pathlib import Path
import torch
from dcpcse.cli.commands.train import train_command
from dcpcse.cli.runner import run
from dcpcse.encoders.prompts import DeepPrompt
from runs import Run, watching

drawn, draw = [], DeepPrompt.forward

def forward(self, rows, *backbone):
    prefix = draw(self, rows, *backbone)
    if self.training:
        drawn.append(torch.cat([(half == 0).flatten() for pair in prefix.values() for half in pair]))
    return prefix

DeepPrompt.forward, record = forward, Run(Path(sys.argv[1]))
with watching(record):
    code = run(train_command, sys.argv[2:])
decode = record.trainer.step_module.model.tokenizer.batch_decode
rows = [decode(batch["input_ids"][:, 0], skip_special_tokens=True) for batch in record.batches]
trained = {name: p.detach() for name, p in record.final.items() if p.requires_grad}
place = f"{sys.argv[1]}/rank{record.trainer.args.process_index}.pt"
torch.save({"masks": drawn, "rows": rows, "trained": trained}, place)
sys.exit(code)
"""


def test_processes_share_rows_draw_masks_of_their_own_and_end_with_the_same_weights(
    train, tiny, train_txt, sts_data, tmp_path, pairs
):
    """With dropout, MLM loss and measurements. 7 steps are an epoch of the 40 sentences, the last one of 2 × 2."""
    (tmp_path / "program.py").write_text(TRAIN, encoding="utf-8")
    options = {"do_mlm": True, "max_steps": None, "num_train_epochs": 1, "per_device_train_batch_size": 3}
    options |= {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "stsb_spearman", "eval_data_dir": sts_data, "custom_eval_data": True}
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **options, save_strategy=None)
    done = pairs(tmp_path / "program.py", tmp_path, *argv)
    assert done.codes == [0, 0], done.stderr
    first, second = ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    assert len(first["masks"]) == 7
    for one, other in zip(first["masks"], second["masks"], strict=True):
        assert 0.05 < one.float().mean() < 0.15  # the dropout of 0.1 of the tiny encoder
        assert not torch.equal(one, other)
    assert [[len(batch) for batch in rank["rows"]] for rank in ranks] == [[3, 3, 3, 3, 3, 3, 2]] * 2
    seen = [sentence for rank in ranks for batch in rank["rows"] for sentence in batch]
    assert len(seen) == len(set(seen)) == 40
    assert first["trained"].keys() == second["trained"].keys()
    for name, weight in first["trained"].items():
        assert torch.equal(weight, second["trained"][name]), name
    saved = weights(tmp_path / "out")["prompt_embeddings"]
    assert torch.equal(saved, first["trained"]["model.encoder.prompt.table.weight"])
    said = done.stderr
    assert said.count("negatives per anchor: 5 (batch 6 over 2 processes)") == said.count("optimiser steps: 7;") == 1


@pytest.fixture(scope="module")
def published_run(train, tiny, train_csv, sts_data, tmp_path_factory, pairs):
    """The command of the published script for supervised training on two processes, on an encoder without dropout.

    24 rows: two steps of 2 × 5 and one of 2 × 2.
    """
    folder = tmp_path_factory.mktemp("sup") / "my-sup-dcpcse-roberta-large"
    options = {
        **{"model_name_or_path": tiny("roberta", **NO_DROPOUT), "train_file": train_csv, "output_dir": folder},
        **{"num_train_epochs": 1, "per_device_train_batch_size": 5, "learning_rate": "5e-3", "max_seq_length": 32},
        **{"evaluation_strategy": "steps", "metric_for_best_model": "stsb_spearman", "load_best_model_at_end": True},
        **{"eval_steps": 125, "pooler_type": "cls", "overwrite_output_dir": True, "pre_seq_len": 10, "temp": 0.05},
        **{"do_train": True, "do_eval": True, "fp16": True},
        **{"eval_data_dir": sts_data, "custom_eval_data": True, "cache_dir": train.cache_dir, "max_grad_norm": 0},
    }
    done = pairs("train.py", *words(options), "--optim", "sgd")
    assert done.codes == [0, 0], done.stderr
    return folder, options, done.stderr


def test_two_processes_train_the_prompts_of_one_with_the_double_batch(published_run, train, train_csv, sentences):
    folder, options, said = published_run
    assert "negatives per anchor: 19 " in said
    assert "eval_stsb_spearman = " in (folder / "eval_results.txt").read_text(encoding="utf-8")
    assert dcpcse.load(str(folder), device="cpu").encode(sentences).shape == (len(sentences), 32)
    same = {name: options[name] for name in ("learning_rate", "temp", "pre_seq_len", "max_grad_norm")}
    same |= {"per_device_train_batch_size": 10, "max_steps": None, "num_train_epochs": 1, "optim": "sgd"}
    single = train(options["model_name_or_path"], train_csv, **same)
    assert single.state["global_step"] == 3
    names = {"prompt_embeddings": "model.encoder.prompt.table.weight", "head.dense.weight": "model.head.dense.weight"}
    for saved, name in names.items():
        # By plain descent the way is the sum of the gradients; a lost or doubled half would show.
        way = weights(single.folder)[saved] - single.initial[name]
        assert way.abs().max() > 0
        other_way = weights(folder)[saved] - single.initial[name]
        torch.testing.assert_close(other_way, way, rtol=0, atol=0.02 * way.abs().max().item())


def test_two_processes_train_on_two_sets_as_one_with_the_double_batch(tiny, train, two_sets, tmp_path, pairs):
    options = {"max_steps": 6, "learning_rate": 0.1, "optim": "sgd", "max_grad_norm": 0, "train_weights": [1, 1]}
    words = train.argv(tiny("bert", **NO_DROPOUT), two_sets, tmp_path / "out", **options)
    done = pairs("train.py", *words)
    assert done.codes == [0, 0], done.stderr
    single = train(tiny("bert", **NO_DROPOUT), two_sets, **{**options, "per_device_train_batch_size": 8})
    assert_same_weights(single.folder, tmp_path / "out", atol=1e-6)
    logs = [[line for line in read_metrics(folder) if "loss" in line] for folder in (single.folder, tmp_path / "out")]
    for one, two in zip(*logs, strict=True):
        (name,) = (name for name in one if name.startswith("loss_on_"))
        assert name in ("loss_on_two", f"loss_on_{Path(two_sets[1]).stem}")
        assert one[name] == pytest.approx(one["loss"], rel=1e-6) == pytest.approx(two[name], rel=1e-5)


def test_two_machines_train_what_two_processes_of_one_do(published_run, tmp_path, pairs):
    """The first processes of two machines, here on one, meet by address and port, without torchrun."""
    folder, options, _ = published_run
    done = pairs("train.py", *words({**options, "output_dir": tmp_path / "out"}), "--optim", "sgd", machines=2)
    assert done.codes == [0, 0], done.stderr
    assert "negatives per anchor: 19 (batch 10 over 2 processes" in done.err[0]
    assert "negatives per anchor" not in done.err[1]
    assert_same_weights(folder, tmp_path / "out")


# One process fails

FAILING = """
import os, sys
from dcpcse.cli import runner
from dcpcse.cli.commands.train import evaluate_command, train_command
from dcpcse.utils.errors import UserError
from dcpcse.models import SentenceEncoder
from dcpcse.training.trainer import Trainer

def fail(*args, **kwargs):
    if os.environ["RANK"] == sys.argv[1]:
        runner._GRACE = 0.2  # the other process waits for this one, and torchrun for the end of both
        raise UserError("this process has failed")
    return original(*args, **kwargs)

kind, name, main = {
    "step": (Trainer, "compute_loss", train_command),
    "encode": (SentenceEncoder, "encode", evaluate_command),
}[sys.argv[2]]
original = getattr(kind, name)
setattr(kind, name, fail)
sys.exit(runner.run(main, sys.argv[3:]))
"""


TORCHRUN = """
import runpy, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def program(*argv):
    sys.argv = [*argv]
    runpy.run_path(argv[0], run_name="__main__")

settings = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "start_method": "fork", "max_restarts": 0}
elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, **settings), program)(*sys.argv[1:])
"""
"""torchrun, but its processes are forked from it and need not import torch."""


def test_an_error_of_one_process_ends_all_with_one_message(tiny, train, train_txt, sts_data, tmp_path, pairs):
    """In a training under torchrun, and in an evaluation."""
    (program := tmp_path / "program.py").write_text(FAILING, encoding="utf-8")
    (tmp_path / "torchrun.py").write_text(TORCHRUN, encoding="utf-8")
    training = pairs.alone(
        tmp_path / "torchrun.py", program, 1, "step", *train.argv(tiny("bert"), train_txt, tmp_path / "out")
    )
    assert training.returncode and "exitcode  : 2" in training.stderr  # torchrun's own report
    argv = ["--model_name_or_path", tiny("bert"), "--pooler", "avg", "--data_dir", sts_data, "--custom_data"]
    evaluation = pairs(program, 0, "encode", *argv, "--mode", "dev")
    assert evaluation.codes[0] == 2 and evaluation.codes[1]
    for said in (training.stderr, evaluation.stderr):
        assert said.count("error: this process has failed") == said.count("error: ") == 1
        assert "dcpcse/" not in said  # no traceback


def test_two_processes_lose_nothing_when_one_is_killed_or_told_to_stop(tiny, train, train_txt, tmp_path, pairs):
    """A killed one: a line says what is left. One that gets a SIGTERM: both stop after the same step, and save it."""
    options = {"do_mlm": True, "max_steps": 8, "logging_steps": 3, "save_strategy": "steps", "save_steps": 3}
    last = f"{tmp_path}/out/checkpoint-3 is the last checkpoint"
    for folder, hit, codes, parts in (
        ("whole", None, [0, 0], []),
        ("out", signal.SIGKILL, [1, -9], [f"another process of this run has ended; {last}"]),
        ("out", signal.SIGTERM, [143, 143], ["after step 3", "SIGTERM after step 5 of 8: saved to"]),
        ("out", None, [0, 0], ["after step 5"]),
    ):
        argv = train.argv(tiny("bert"), train_txt, tmp_path / folder, **options, resume=True)
        done = pairs("train.py", *argv, hit=(1, hit, 5) if hit else None, ends=False)
        assert done.codes == codes, done.stderr
        assert all(part in done.out[0] + done.err[0] for part in parts), done.err[0]
        assert "SIGTERM" not in done.err[1]
    assert_same_weights(tmp_path / "whole", tmp_path / "out")
    whole, resumed = (read_metrics(tmp_path / name) for name in ("whole", "out"))
    steps = resumed_steps(tmp_path / "out")
    assert steps and comparable(whole, steps) == comparable(resumed, steps)
    assert train_loss(tmp_path / "out") == pytest.approx(train_loss(tmp_path / "whole"), rel=1e-6)


def test_a_mistake_of_all_processes_is_said_once(train, train_txt, tmp_path, pairs):
    done = pairs("train.py", *train.argv("nowhere", train_txt, tmp_path / "out", temp=-1))
    assert all(done.codes)
    assert done.stderr.count("error: --temp -1") == done.stderr.count("error: ") == 1
