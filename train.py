"""Train sentence embeddings: `python train.py --help`."""

import sys


def main() -> int:
    from dcpcse.cli import run
    from dcpcse.training import train

    return run(train)


if __name__ == "__main__":
    sys.exit(main())
