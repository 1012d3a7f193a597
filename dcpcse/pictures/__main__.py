"""`dcpcse plot KIND ...`: one picture, as OUT.png and OUT.svg."""

import sys

from ..cli import run
from .command import plot

if __name__ == "__main__":
    sys.exit(run(plot))
