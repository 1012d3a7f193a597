"""Train sentence embeddings: `python train.py --help`."""

import sys
from collections.abc import Sequence


def main() -> int:
    from dcpcse.cli import run

    return run(train)


def train(argv: Sequence[str]) -> None:
    """As `dcpcse.training.train`, but nothing of training is imported before the options are read."""
    from dcpcse.cli import parse_training

    options, given = parse_training(argv)
    from dcpcse.training import train_with

    train_with(options, given)


if __name__ == "__main__":
    sys.exit(main())
