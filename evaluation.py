"""Measure an encoder: `python evaluation.py --help`."""

import sys
from collections.abc import Sequence


def main() -> int:
    from dcpcse.cli import run

    return run(evaluation)


def evaluation(argv: Sequence[str]) -> None:
    """As `dcpcse.evaluating.evaluation`, but nothing of evaluation is imported before the options are read."""
    from dcpcse.cli import parse_evaluation

    args, published = parse_evaluation(argv)
    from dcpcse.evaluating import evaluate_with

    evaluate_with(args, published)


if __name__ == "__main__":
    sys.exit(main())
