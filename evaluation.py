"""Evaluate an encoder: `python evaluation.py --help`."""

import sys

from dcpcse.cli.commands.train import evaluate_command
from dcpcse.cli.runner import run

if __name__ == "__main__":
    sys.exit(run(evaluate_command))
