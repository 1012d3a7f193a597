"""Train sentence embeddings: `python train.py --help`."""

import sys

from dcpcse.cli.commands.train import train_command
from dcpcse.cli.runner import run

if __name__ == "__main__":
    sys.exit(run(train_command))
