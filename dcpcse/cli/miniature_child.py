"""Do the work of one unit of the miniature, in a process that ends when its parent ends.

`dcpcse.experiments.miniature.run` starts it. Arguments: the parent, the folder of the unit, and facts as JSON.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dcpcse.cli.child import end_with_parent


def _work(argv: Sequence[str]) -> None:
    from dcpcse.cli.main import find_command
    from dcpcse.experiments.miniature.unit_process import work

    folder, facts = Path(argv[0]), json.loads(argv[1])
    work(folder, facts["places"], facts["keep_models"], lambda words: find_command(words[0])(words[1:]))


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    from dcpcse.cli.runner import run

    sys.exit(run(_work, sys.argv[2:]))
