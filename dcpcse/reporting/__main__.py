"""`dcpcse report RUN [RUN ...] --output report.html`."""

import sys

from ..cli import run
from .command import report

if __name__ == "__main__":
    sys.exit(run(report))
