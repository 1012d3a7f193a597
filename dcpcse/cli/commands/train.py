"""`dcpcse train` and `dcpcse evaluate`, and train.py and evaluation.py. Options are checked before slow imports."""

import contextlib
from collections.abc import Sequence

from dcpcse.cli.parse import parse_evaluation, parse_training
from dcpcse.utils.signals import resumable


def train_command(argv: Sequence[str]) -> None:
    """Run train.py. Raises UserError or DataError for a user mistake."""
    options, option_names = parse_training(argv)
    from dcpcse.training.options import require_valid

    require_valid(options, option_names)
    from dcpcse.training.run import run_training

    run_training(options, option_names)


def evaluate_command(argv: Sequence[str]) -> None:
    """Run evaluation.py. Raises UserError or DataError for a user mistake."""
    args, published = parse_evaluation(argv)
    from dcpcse.evaluation.run import run_evaluation

    with resumable() if args.output_file else contextlib.nullcontext():
        run_evaluation(args, published)
