"""ESimCSE from train.py: what it remembers, and under a compiler."""

import torch
from runs import assert_a_compiled_run_trains_the_same, weights
from safetensors.torch import load_file

KEPT = "checkpoint-{}/objectives.safetensors"


def test_averages_in_checkpoints_are_those_of_the_prompts_in_them(train, tiny, train_txt):
    """m_n = λⁿ θ_0 + (1 - λ) Σ λ^(n-k) θ_k, from the files of a run alone; the queue holds what it has room for."""
    options = {"method": "esimcse", "tuning": "deep", "pre_seq_len": 3, "momentum": 0.6, "neg_size": 10}
    run = train(tiny("bert"), train_txt, save_strategy="steps", save_steps=1, **options)
    course = [run.initial["model.encoder.prompt.table.weight"]]
    for n in range(1, 5):
        course.append(weights(run.folder / f"checkpoint-{n}")["prompt_embeddings"])
        expected = 0.6**n * course[0] + 0.4 * sum(0.6 ** (n - k) * course[k] for k in range(1, n + 1))
        kept = load_file(run.folder / KEPT.format(n))
        assert set(kept) == {f"kept.contrastive.{name}" for name in ("queue", "filled", "average.prompt.table.weight")}
        torch.testing.assert_close(kept["kept.contrastive.average.prompt.table.weight"], expected)
        assert kept["kept.contrastive.filled"] == min(4 * n, 10)
        assert (kept["kept.contrastive.queue"].abs().sum(1) > 0).sum() == min(4 * n, 10)
    assert not (run.folder / "objectives.safetensors").exists()


def test_a_compiled_run_trains_the_same(train, tiny, train_txt):
    options = {"method": "esimcse", "max_steps": 2, "dup_rate": 0.0}
    assert_a_compiled_run_trains_the_same(train, tiny("bert", num_hidden_layers=1), train_txt, **options)
