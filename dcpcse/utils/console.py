"""Lines for the person at the terminal."""

import logging

from dcpcse.utils.errors import printable

logger = logging.getLogger(__name__)


def print_result(text: str) -> None:
    """What a command was asked for, on stdout; names and sentences of others cannot command the terminal."""
    print(printable(text))


def notify(line: str) -> None:
    """A line for the person at the terminal: how what was asked is understood."""
    logger.info(line)
