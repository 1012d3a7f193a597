"""`dcpcse evaluate` and evaluation.py; modules for evaluation are imported after the options are checked."""

from collections.abc import Sequence

from dcpcse.cli.parse import parse_evaluation


def evaluate_command(argv: Sequence[str]) -> None:
    """Run evaluation.py. Raises UserError or DataError for a user mistake."""
    args, published = parse_evaluation(argv)
    from dcpcse.evaluation.run import run_evaluation

    run_evaluation(args, published)
