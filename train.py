"""Train sentence embeddings: `python train.py --help`."""

import sys

from dcpcse.__main__ import train
from dcpcse.cli import run

if __name__ == "__main__":
    sys.exit(run(train))
