"""Run a command in a process that ends when its parent ends, for `dcpcse.experiments.reproduction.run_unit`."""

import os
import sys
import threading
import time


def end_with_parent(parent: int) -> None:
    """End this process as soon as the parent process with the id `parent` has ended."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    from dcpcse.cli.main import main

    sys.exit(main(sys.argv[2:]))
