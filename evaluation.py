"""Measure an encoder: `python evaluation.py --help`."""

import sys


def main() -> int:
    from dcpcse.cli import run
    from dcpcse.evaluating import evaluation

    return run(evaluation)


if __name__ == "__main__":
    sys.exit(main())
