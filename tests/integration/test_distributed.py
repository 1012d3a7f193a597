"""Two processes (gloo, CPU) train as one process with the joined batch would."""

import json
import os
from pathlib import Path

import pytest
import torch
from runs import NO_DROPOUT, contrastive_loss, launch, weights, words

import dcpcse
from dcpcse.arguments import ModelArguments
from dcpcse.backbones import load_backbone
from dcpcse.collators import ViewCollator, slots_of
from dcpcse.methods import build_method
from dcpcse.trainer import TrainingStep

ROLES = ("anchor", "positive", "negative")

# What both processes do: a forward and a backward pass over their own half of the rows of each case.
STEP = """
import json, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from dcpcse.arguments import ModelArguments
from dcpcse.backbones import load_backbone
from dcpcse.collators import ViewCollator
from dcpcse.methods import build_method
from dcpcse.trainer import TrainingStep

job = json.loads(open(sys.argv[1]).read())
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
results = {}
for name, case in job["cases"].items():
    torch.manual_seed(0)
    method = build_method(load_backbone(job["encoder"]), ModelArguments(**case["arguments"]), case["columns"])
    step = TrainingStep(method).double().train()
    step.load_state_dict(torch.load(case["weights"]))
    rows = case["rows"][rank * len(case["rows"]) // world : (rank + 1) * len(case["rows"]) // world]
    batch = ViewCollator(method.model.tokenizer, method.views, 32, templates=method.model.templates)(rows)
    wrapped = DistributedDataParallel(step)  # kept: it averages gradients only while it lives
    (loss,) = wrapped(**batch).values()
    loss.backward()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    gradients = {n: p.grad for n, p in step.named_parameters() if p.grad is not None}
    results[name] = {"loss": mean / world, "own": loss.detach(), "length": batch["input_ids"].shape[2], **gradients}
    del wrapped, loss  # a live one at the end of the group may abort the process
torch.save(results, f"{sys.argv[2]}/rank{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""

CASES = {
    "unsupervised": {"columns": ROLES[:1], "arguments": {}},
    "pairs": {"columns": ROLES[:2], "arguments": {"pooler_type": "avg"}},
    "hard negatives": {"columns": ROLES, "arguments": {"hard_negative_weight": 0.5, "temp": 0.2}},
    "simcse": {"columns": ROLES[:2], "arguments": {"method": "simcse"}},
    "promptbert": {"columns": ROLES[:2], "arguments": {"method": "promptbert"}},
    "conpvp": {"columns": ROLES[:1], "arguments": {"method": "conpvp"}},
    "scpcse": {"columns": ROLES[:1], "arguments": {"method": "scpcse"}},
}


@pytest.fixture(scope="module")
def two_processes(tiny, sentences, tmp_path_factory):
    """Case → (one process's step in float64, its joined rows, [results of rank 0, results of rank 1])."""
    folder = tmp_path_factory.mktemp("ddp")
    encoder = tiny("bert", **NO_DROPOUT)
    job, whole = {"encoder": encoder, "cases": {}}, {}
    # The first process gets the short sentences: it pads to another length than the second.
    short_first = sorted(sentences, key=len)[:8]
    for name, case in CASES.items():
        rows = [
            {role: short_first[(i + 3 * r) % 4 + 4 * (i // 4)] for r, role in enumerate(case["columns"])}
            for i in range(8)
        ]
        torch.manual_seed(1)
        method = build_method(load_backbone(encoder), ModelArguments(**case["arguments"]), case["columns"])
        step = TrainingStep(method).double().train()
        if method.model.encoder.prompt is not None:
            with torch.no_grad():
                method.model.encoder.prompt.table.weight.mul_(20)  # prompts that matter
        torch.save(step.state_dict(), folder / f"{name}.pt")
        job["cases"][name] = {**case, "rows": rows, "weights": str(folder / f"{name}.pt")}
        collator = ViewCollator(method.model.tokenizer, method.views, 32, templates=method.model.templates)
        whole[name] = step, collator(rows)
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    (folder / "step.py").write_text(STEP, encoding="utf-8")
    done = launch(str(folder / "step.py"), folder / "job.json", folder, processes=2)
    assert done.returncode == 0, done.stderr
    ranks = [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]
    return {name: (*whole[name], [rank[name] for rank in ranks]) for name in CASES}


def joined(step: TrainingStep, batch: dict, case: str) -> torch.Tensor:
    """The paper's loss over all rows, in plain loops."""
    rows, views = batch["input_ids"].shape[:2]
    ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
    vectors = step.model(ids, mask, slots_of(batch)).unflatten(0, (rows, views))
    arguments = CASES[case]["arguments"]
    return contrastive_loss(vectors, arguments.get("temp", 0.05), arguments.get("hard_negative_weight", 0.0))


@pytest.mark.parametrize("case", CASES)
def test_the_mean_loss_of_two_processes_is_that_of_the_joined_batch(case, two_processes):
    step, batch, ranks = two_processes[case]
    assert ranks[0]["length"] < ranks[1]["length"] == batch["input_ids"].shape[2]
    assert abs(ranks[0]["own"] - ranks[1]["own"]) > 1e-3  # different rows, so the mean means something
    with torch.no_grad():
        expected = joined(step, batch, case)
    for rank in ranks:
        torch.testing.assert_close(rank["loss"], expected, rtol=0, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("case", CASES)
def test_the_averaged_gradients_of_two_processes_are_those_of_the_joined_batch(case, two_processes):
    step, batch, ranks = two_processes[case]
    trained = {name: p for name, p in step.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(joined(step, batch, case), list(trained.values()))
    for name, gradient in zip(trained, gradients, strict=True):
        # The loss is computed in float32 whatever the model: float64 helps up to there.
        largest = gradient.abs().max().item()
        # Some have none: softmax does not feel key biases, denoising takes the last LayerNorm's bias away again.
        allowed = max(1e-12, min(1e-6, 1e-3 * largest) + 2e-6 * largest)
        for rank in ranks:
            torch.testing.assert_close(rank[name], gradient, rtol=0, atol=allowed)


@pytest.mark.parametrize("case", CASES)
def test_one_process_has_the_same_loss_without_a_process_group(case, two_processes):
    step, batch, _ = two_processes[case]
    with torch.no_grad():
        (loss,) = step(**batch).values()
        torch.testing.assert_close(loss, joined(step, batch, case), rtol=0, atol=1e-6, check_dtype=False)


# train.py itself, with the masks that each process draws

TRAIN = """
import os, sys
import torch
from dcpcse import training
from dcpcse.cli import run
from dcpcse.prompts import DeepPrompt
from dcpcse.trainer import ContrastiveTrainer

drawn, trainers, rows = [], [], []
draw, init, compute = DeepPrompt.forward, ContrastiveTrainer.__init__, ContrastiveTrainer.compute_loss

def forward(self, rows):
    prefix = draw(self, rows)
    if self.training:
        drawn.append(torch.cat([(half == 0).flatten() for pair in prefix.values() for half in pair]))
    return prefix

def remember(self, *args, **kwargs):
    init(self, *args, **kwargs)
    trainers.append(self)

def compute_loss(self, model, inputs, *args, **kwargs):
    tokenizer = self.step_module.model.tokenizer
    rows.append(tokenizer.batch_decode(inputs["input_ids"][:, 0], skip_special_tokens=True))
    return compute(self, model, inputs, *args, **kwargs)

DeepPrompt.forward, ContrastiveTrainer.__init__ = forward, remember
ContrastiveTrainer.compute_loss = compute_loss
code = run(training.train, sys.argv[2:])
state = {"code": code, "masks": drawn, "rows": rows, "rank": int(os.environ["RANK"])}
state["trained"] = {n: p.detach() for n, p in trainers[-1].step_module.named_parameters() if p.requires_grad}
torch.save(state, f"{sys.argv[1]}/rank{os.environ['RANK']}.pt")
sys.exit(code)
"""


@pytest.fixture(scope="module")
def with_dropout(train, tiny, train_txt, sts_data, tmp_path_factory):
    """What the two processes of a run with dropout, MLM loss and measurements kept, and its folder."""
    folder = tmp_path_factory.mktemp("torchrun")
    (folder / "program.py").write_text(TRAIN, encoding="utf-8")
    options = {
        "do_mlm": True,
        "max_steps": 5,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
    }
    options |= {"metric_for_best_model": "stsb_spearman", "eval_data_dir": sts_data, "custom_eval_data": True}
    argv = train.argv(tiny("bert"), train_txt, folder / "out", **options, save_strategy=None)
    done = launch(str(folder / "program.py"), folder, *argv, processes=2)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)], folder / "out", done.stderr


def test_processes_draw_different_dropout_masks(with_dropout):
    (first, second), _, _ = with_dropout
    assert len(first["masks"]) == len(second["masks"]) == 5
    for one, other in zip(first["masks"], second["masks"], strict=True):
        assert 0.05 < one.float().mean() < 0.15  # the dropout of 0.1 of the tiny encoder
        assert not torch.equal(one, other)


def test_processes_share_out_the_sentences(with_dropout):
    """5 steps of 2 × 4 are an epoch of the 40 sentences: each belongs to one process, once."""
    ranks, _, _ = with_dropout
    seen = [sentence for rank in ranks for batch in rank["rows"] for sentence in batch]
    assert len(seen) == 40
    assert len(set(seen)) == 40, f"{40 - len(set(seen))} sentences of the epoch were never seen, others twice"


def test_no_process_has_the_sentence_of_another_in_the_same_step(with_dropout):
    """It would be among its own negatives."""
    (first, second), _, _ = with_dropout
    for one, other in zip(first["rows"], second["rows"], strict=True):
        assert not set(one) & set(other)


def test_processes_end_with_the_same_weights_and_these_are_saved(with_dropout):
    (first, second), folder, _ = with_dropout
    assert first["trained"].keys() == second["trained"].keys()
    for name, weight in first["trained"].items():
        assert torch.equal(weight, second["trained"][name]), name
    saved = weights(folder)["prompt_embeddings"]
    assert torch.equal(saved, first["trained"]["model.encoder.prompt.table.weight"])


def test_one_of_several_processes_speaks_and_counts_all_negatives(with_dropout):
    _, _, said = with_dropout
    assert said.count("negatives per anchor: 7 (batch 8 over 2 process(es))") == 1


@pytest.fixture(scope="module")
def published_run(train, tiny, train_csv, sts_data, tmp_path_factory):
    """The published script for supervised training on two processes, on a tiny encoder without dropout."""
    folder = tmp_path_factory.mktemp("sup") / "my-sup-dcpcse-roberta-large"
    options = {
        "model_name_or_path": tiny("roberta", **NO_DROPOUT),
        "train_file": train_csv,
        "output_dir": folder,
        **{"num_train_epochs": 1, "per_device_train_batch_size": 4, "learning_rate": "5e-3", "max_seq_length": 32},
        **{"evaluation_strategy": "steps", "metric_for_best_model": "stsb_spearman", "load_best_model_at_end": True},
        **{"eval_steps": 125, "pooler_type": "cls", "overwrite_output_dir": True, "pre_seq_len": 10, "temp": 0.05},
        **{"do_train": True, "do_eval": True, "fp16": True},
        **{"eval_data_dir": sts_data, "custom_eval_data": True, "cache_dir": train.cache_dir, "max_grad_norm": 0},
    }
    done = launch("train.py", *words(options), "--optim", "sgd", processes=2)
    assert done.returncode == 0, done.stderr
    return folder, options, done.stderr


def test_the_published_two_process_command_leaves_a_loadable_folder(published_run, sentences):
    folder, _, said = published_run
    assert "--evaluation_strategy is now --eval_strategy" in said
    assert "--fp16 has no effect without a GPU" in said
    assert "negatives per anchor: 15 " in said
    assert "eval_stsb_spearman = " in (folder / "eval_results.txt").read_text(encoding="utf-8")
    assert dcpcse.load(str(folder), device="cpu").encode(sentences).shape == (len(sentences), 32)


def test_two_processes_train_the_prompts_of_one_with_the_double_batch(published_run, train, tiny, train_csv):
    folder, options, _ = published_run
    kept = {name: options[name] for name in ("learning_rate", "temp", "pre_seq_len", "max_grad_norm")}
    single = train(
        options["model_name_or_path"],
        train_csv,
        **{**kept, "per_device_train_batch_size": 8, "max_steps": None, "num_train_epochs": 1, "optim": "sgd"},
    )
    assert single.state["global_step"] == 3
    names = {"prompt_embeddings": "model.encoder.prompt.table.weight", "head.dense.weight": "model.head.dense.weight"}
    for saved, name in names.items():
        # By plain descent the way is the sum of the gradients; a lost or doubled half would show.
        way = weights(single.folder)[saved] - single.initial[name]
        assert way.abs().max() > 0
        other_way = weights(folder)[saved] - single.initial[name]
        torch.testing.assert_close(other_way, way, rtol=0, atol=0.02 * way.abs().max().item())


@pytest.mark.parametrize("method", ["d2cse", "diffcse"])
def test_two_processes_train_replaced_token_detection(method, tiny, train, train_txt, tmp_path, sentences):
    """BatchNorm takes the rows of each process for itself, so that it is another training than with one process."""
    options = {"method": method, "generator_name": tiny("bert"), "max_steps": 3}
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **options)
    done = launch("train.py", *argv, processes=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rtd_accuracy_kept") == 3
    assert dcpcse.load(tmp_path / "out").encode(sentences).shape == (12, 32)


def test_the_launcher_of_these_tests_finds_this_package():
    here = Path(dcpcse.__file__).parents[1]
    done = launch("-c", "import dcpcse; print(dcpcse.__file__)", cwd=Path(os.sep))
    assert done.stdout.strip() == str(here / "dcpcse/__init__.py"), done.stderr
