"""Compare two ways to fit the classifiers of a transfer task on the same vectors: all at once, and one after another.

    python benchmarks/transfer_speed.py --model_name_or_path ENCODER --data_dir SentEval/data [--task MR] \\
        [--mode test] [--output_file transfer_speed.json]

The sequential way is the plain implementation with which the tests in tests/test_senteval compare this project. It
uses a separate torch module, optimiser and early stopping for each fit. Both ways use the same embeddings, folds and
float32 features. Their accuracies are printed, to show that they do the same work. The times do not include encoding.
For MR in test mode (410 fits), the sequential way needs a quarter of an hour.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from senteval import TRANSFER_TASKS, load_suite, settings_of_mode
from senteval.embeddings import encode_all
from senteval.transfer import LoadedTransfer

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/test_senteval"))
import senteval_oracle as oracle


def main() -> None:
    args = parse()
    settings = settings_of_mode(args.mode)
    task = load_suite([args.task], args.data_dir, settings).tasks[args.task]
    model = plain_encoder(load_backbone(args.model_name_or_path), args.pooler)
    embed = encode_all(model.encode, task.located())

    started = time.perf_counter()
    result = task.score(embed, settings)
    ours = time.perf_counter() - started
    started = time.perf_counter()
    dev, test = SEQUENTIAL[task.task.protocol](task, embed, settings)
    sequential = time.perf_counter() - started

    print(f"{args.task} {args.mode}       dev    test  seconds of the classifiers")
    print(f"at once            {result.dev_accuracy:6.2f}  {result.accuracy:6.2f}  {ours:8.1f}")
    print(f"one after another  {dev:6.2f}  {test:6.2f}  {sequential:8.1f}   {sequential / ours:.1f} times as long")
    if args.output_file:
        content = {
            "task": args.task,
            "mode": args.mode,
            "accuracy": {"at_once": result.accuracy, "one_after_another": test},
            "seconds": ours,
            "seconds_one_after_another": sequential,
            "ratio": sequential / ours,
            "threads": torch.get_num_threads(),
        }
        Path(args.output_file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--pooler", default="avg")
    parser.add_argument("--data_dir", default="SentEval/data")
    parser.add_argument("--task", default="MR", choices=TRANSFER_TASKS)
    parser.add_argument("--mode", default="test", choices=["test", "fasttest"])
    parser.add_argument("--output_file")
    return parser.parse_args()


def tensors(task: LoadedTransfer, embed) -> tuple:  # noqa: ANN001
    features, labels, rows = task.all_features(embed)
    features, labels = torch.as_tensor(features), torch.as_tensor(labels)
    return {split: (features[of_split], labels[of_split]) for split, of_split in rows.items()}


def nested(task: LoadedTransfer, embed, settings) -> tuple[float, float]:  # noqa: ANN001
    features, labels = tensors(task, embed)["all"]
    return oracle.nested_kfold(features, labels, task.task.classes, settings.kfold, settings.classifier, settings.seed)


def kfold(task: LoadedTransfer, embed, settings) -> tuple[float, float]:  # noqa: ANN001
    data = tensors(task, embed)
    sides = (*data["train"], *data["test"])
    dev, test, _ = oracle.kfold(*sides, task.task.classes, settings.kfold, settings.classifier, settings.seed)
    return dev, test


def split(task: LoadedTransfer, embed, settings) -> tuple[float, float]:  # noqa: ANN001
    data = tensors(task, embed)
    sides = (data["train"], data["dev"], data["test"])
    return oracle.split(*sides, task.task.classes, settings.classifier, settings.seed)


SEQUENTIAL = {"nested": nested, "kfold": kfold, "split": split}

if __name__ == "__main__":
    main()
