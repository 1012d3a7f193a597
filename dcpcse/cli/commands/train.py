"""`dcpcse train` and train.py; modules for training are imported after the options are checked."""

from collections.abc import Sequence

from dcpcse.cli.parse import parse_training


def train_command(argv: Sequence[str]) -> None:
    """Run train.py. Raises UserError or DataError for a user mistake."""
    options, option_names = parse_training(argv)
    from dcpcse.training.validate_arguments import require_valid

    require_valid(options, option_names)
    from dcpcse.training.run import run_training

    run_training(options, option_names)
