"""Compare the time of `dcpcse.evaluate` on the seven STS tasks with the plain loop of the papers' scripts.

    python benchmarks/sts_speed.py --model_name_or_path ENCODER --data_dir SentEval/data [--output_file speed.json]

The plain loop uses only transformers. It encodes both sentences of every pair in every split that the published
evaluation reads (including train and dev), in file order. Its batches of 128 sentences are padded to the longest
sentence. Both programs use the same encoder with mean pooling. Their scores are printed, to show that they do the same
work.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.stats
import senteval
import torch
from senteval import ScoredPairs
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder

BATCH = 128


def main() -> None:
    args = parse()
    loaded = plain_encoder(load_backbone(args.model_name_or_path), "avg")
    tokenizer, model = load_plain(args.model_name_or_path)
    loaded.encode(["warm up"] * BATCH)
    plain_embed(tokenizer, model, ["warm up"] * BATCH)

    started = time.perf_counter()
    results = dcpcse.evaluate(loaded, "sts", data_dir=args.data_dir).results
    ours = time.perf_counter() - started
    started = time.perf_counter()
    plain = {task: plain_score(tokenizer, model, task, args.data_dir) for task in senteval.STS_TASKS}
    loop = time.perf_counter() - started

    print(f"{'task':16} {'ours':>7} {'plain loop':>11}   (Spearman x 100)")
    for task in senteval.STS_TASKS:
        print(f"{task:16} {100 * results[task].score:7.2f} {100 * plain[task]:11.2f}")
    print(f"seconds          {ours:7.1f} {loop:11.1f}   the plain loop takes {loop / ours:.2f} times as long")
    if args.output_file:
        content = {
            "seconds": ours,
            "seconds_plain_loop": loop,
            "ratio": loop / ours,
            "threads": torch.get_num_threads(),
        }
        Path(args.output_file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--data_dir", default="SentEval/data")
    parser.add_argument("--output_file")
    return parser.parse_args()


def load_plain(name: str) -> tuple:
    return AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name, dtype=torch.float32).eval()


def plain_score(tokenizer, model, task: str, data_dir: str) -> float:  # noqa: ANN001
    """Return Spearman 'all' of the test split, after encoding all splits."""
    splits = ("train", "dev", "test") if "test" in task_splits(task) and len(task_splits(task)) > 1 else ("test",)
    for split in splits:  # the test split comes last
        sets = list(senteval.load_pairs(task, data_dir, split))
        cosines = np.concatenate([plain_cosines(tokenizer, model, pairs) for pairs in sets])
        gold = np.concatenate([pairs.gold for pairs in sets])
    return float(scipy.stats.spearmanr(cosines, gold)[0])


def task_splits(task: str) -> tuple[str, ...]:
    return tuple(senteval.STS[task].splits)


def plain_cosines(tokenizer, model, pairs: ScoredPairs) -> np.ndarray:  # noqa: ANN001
    return np.concatenate(
        [
            torch.cosine_similarity(plain_embed(tokenizer, model, a), plain_embed(tokenizer, model, b)).numpy()
            for a, b in batches(pairs)
        ]
    )


def batches(pairs: ScoredPairs) -> Iterator[tuple[list[str], list[str]]]:
    for start in range(0, len(pairs), BATCH):
        yield pairs.first[start : start + BATCH], pairs.second[start : start + BATCH]


@torch.no_grad()
def plain_embed(tokenizer, model, sentences: list[str]) -> torch.Tensor:  # noqa: ANN001
    batch = tokenizer(sentences, padding=True, truncation=True, max_length=512, return_tensors="pt")
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return (hidden * mask).sum(1) / mask.sum(1)


if __name__ == "__main__":
    main()
