"""Measure an encoder: `python evaluation.py --help`."""

import sys

from dcpcse.__main__ import evaluate
from dcpcse.cli import run

if __name__ == "__main__":
    sys.exit(run(evaluate))
