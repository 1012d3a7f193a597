"""Output for the user at the terminal."""

import logging

from dcpcse.utils.errors import printable

logger = logging.getLogger(__name__)


def print_result(text: str) -> None:
    """Print the output of a command to stdout, with control characters escaped."""
    print(printable(text))


def notify(line: str) -> None:
    """Log a line for the user, such as how an option is interpreted."""
    logger.info(line)
