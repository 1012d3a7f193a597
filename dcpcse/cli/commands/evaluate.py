"""`dcpcse evaluate` and evaluation.py; modules for evaluation are imported after the options are checked."""

from collections.abc import Sequence

from dcpcse.cli.parse import parse_evaluation
from dcpcse.utils.refusals import require_text


def evaluate_command(argv: Sequence[str]) -> None:
    """Run evaluation.py. Raises UserError or DataError for a user mistake."""
    require_text(argv)
    args, published = parse_evaluation(argv)
    from dcpcse.evaluation.run import run_evaluation

    run_evaluation(args, published)
