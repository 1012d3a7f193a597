"""Load the evaluation data that a run measures during training."""

from senteval import TRANSFER_TASKS, Suite, load_suite, settings_of_mode

from dcpcse.training.arguments import DataArguments


def dev_tasks(data: DataArguments) -> list[str]:
    """Return the names of the tasks that are evaluated on their dev sets."""
    return [*data.eval_tasks, *(TRANSFER_TASKS if data.eval_transfer else ())]


def load_dev_tasks(data: DataArguments) -> Suite:
    """Load and check the files of the dev tasks once for the whole run, before any encoder is loaded."""
    settings = settings_of_mode("dev", official=not data.custom_eval_data)
    return load_suite(dev_tasks(data), data.eval_data_dir, settings)
