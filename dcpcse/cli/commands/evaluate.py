"""`dcpcse evaluate` and evaluation.py; modules for evaluation are imported after the options are checked."""

import contextlib
from collections.abc import Sequence

from dcpcse.cli.parse import parse_evaluation
from dcpcse.utils.signals import resumable


def evaluate_command(argv: Sequence[str]) -> None:
    """Run evaluation.py. Raises UserError or DataError for a user mistake."""
    args, published = parse_evaluation(argv)
    from dcpcse.evaluation.run import run_evaluation

    with resumable() if args.output_file else contextlib.nullcontext():
        run_evaluation(args, published)
