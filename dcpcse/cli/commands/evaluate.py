"""evaluation.py: nothing of evaluation is imported before its options are read."""

from collections.abc import Sequence

from dcpcse.cli.parse import parse_evaluation


def evaluate_command(argv: Sequence[str]) -> None:
    """The whole of evaluation.py; raises UserError or DataError for what the user can mend."""
    args, published = parse_evaluation(argv)
    from dcpcse.evaluation.run import run_evaluation

    run_evaluation(args, published)
