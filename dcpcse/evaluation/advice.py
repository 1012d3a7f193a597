"""Replace setting names in the errors of senteval by the names of the program's options."""

import contextlib
from collections.abc import Iterator, Mapping

from senteval.errors import DataError
from senteval.files import MissingFilesError

from dcpcse.utils.errors import UserError, spell

_SETTINGS = {
    "data_dir": ("data_dir", None),
    "official=False": ("custom_data", True),
    "identical='keep'": ("retrieval_identical", "keep"),
    "classifier='torch'": ("classifier", "torch"),
}
"""Setting of senteval → the option of evaluation with its value."""

OF_EVALUATION: Mapping[str, str] = {}
OF_TRAINING = {"data_dir": "eval_data_dir", "custom_data": "custom_eval_data"}
"""Option of evaluation → option of training."""


def as_user_error(error: DataError, options: Mapping[str, str] = OF_EVALUATION) -> UserError:
    """Return an error of senteval as a UserError whose remedy is an option of the running program.

    Args:
        error: The error of senteval.
        options: Option of evaluation.py → option of the running program, if their names differ (see `OF_TRAINING`).
    """
    text = str(error)
    if error.remedy:
        option, value = _SETTINGS[error.remedy]
        before, _, after = text.rpartition(error.remedy)
        text = f"{before}{spell(options.get(option, option), value)}{after}"
    return UserError(text)


@contextlib.contextmanager
def advice(options: Mapping[str, str] = OF_EVALUATION, tasks: str | None = None) -> Iterator[None]:
    """Convert each DataError of senteval in the context to a UserError. Also usable as a decorator.

    Args:
        options: See `as_user_error`.
        tasks: The option that chooses only the task STSBenchmark, as the user writes it. If the files of another task
            are missing, the message recommends this option.
    """
    try:
        yield
    except DataError as error:
        raised = as_user_error(error, options)
        if isinstance(error, MissingFilesError) and tasks and not str(error).startswith("STSBenchmark:"):
            raised = UserError(f"{raised}, or choose tasks whose files exist, for instance {tasks}")
        raise raised from error
