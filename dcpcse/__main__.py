"""Entry point of `python -m dcpcse COMMAND`."""

import sys

from dcpcse.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
