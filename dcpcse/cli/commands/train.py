"""train.py: nothing of training is imported before its options are read."""

from collections.abc import Sequence

from dcpcse.cli.parse import parse_training


def train_command(argv: Sequence[str]) -> None:
    """The whole of train.py; raises UserError or DataError for what the user can mend."""
    options, given = parse_training(argv)
    from dcpcse.training.validate_arguments import require_sensible

    require_sensible(options, given)
    from dcpcse.training.run import run_training

    run_training(options, given)
