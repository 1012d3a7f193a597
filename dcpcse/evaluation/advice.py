"""Name the options of the command that was called in errors about the files of senteval."""

import contextlib
from collections.abc import Iterator, Mapping

from senteval.errors import DataError
from senteval.files import MissingFilesError

_OWN_FILES = "--custom_data (in Python: official=False)"

OF_EVALUATION = {_OWN_FILES: "--custom_data"}
"""Text in a message of senteval → the option of evaluation.py."""
OF_TRAINING = {"--data_dir": "--eval_data_dir", _OWN_FILES: "--custom_eval_data"}
"""Text in a message of senteval → the option of train.py."""


@contextlib.contextmanager
def advice(options: Mapping[str, str], tasks: str | None = None) -> Iterator[None]:
    """Name the options of a command in the errors that senteval raises about its files.

    options: text in the messages → the option of the command. tasks: options that choose a task, the last word, as an
    example for users who do not have the files of another task.
    """
    try:
        yield
    except DataError as error:
        text = str(error)
        for found, own in options.items():
            text = text.replace(found, own)
        if isinstance(error, MissingFilesError) and tasks and not text.startswith(f"{tasks.split()[-1]}:"):
            text += f", or choose tasks whose files are there, for instance {tasks}"
        error.args = (text,)
        raise
