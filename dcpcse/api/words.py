"""Messages for users of Python: the package names options as its command line does, which this module translates."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

from senteval.errors import DataError

from dcpcse.utils.console import worded
from dcpcse.utils.errors import UserError, shortened
from dcpcse.utils.refusals import describe_refusal
from dcpcse.utils.signals import Interrupted

_NAMES = {"model_name_or_path": "model", "train_file": "train_data"}
"""Option of the command line → parameter of the functions in Python, where the names differ."""

_PHRASES = (
    (r" \(--help lists the options\)| \(is a shell variable unset\?\)", ""),
    (r"unknown argument (?=--)", "unknown option "),
    (r"the same command with --", "the same call with --"),
    (r"add --resume to the same command to continue", "repeat the call with --resume to continue"),
    (r"run the (?:same )?command again|run the same command", "repeat the call"),
    (r"(--\w+) \(in Python: [^)]+\)", r"\1"),
    (r"for instance (?:--task_set na )?--(\w*tasks) (\w+)", r'for instance \1=["\2"]'),
    (r"\ba (--train_file)", r"\1"),
    (r"(?<![/\w])train\.py\b", "dcpcse.train"),
    (r"(?<![/\w])evaluation\.py --output_file", "dcpcse.evaluate(...).to_json"),
    (r"(?<![/\w])evaluation\.py --similarities_file", "similarities_file of the command dcpcse evaluate"),
    (r"(?<![/\w])evaluation\.py\b", "dcpcse.evaluate"),
    (r"\bdcpcse pretrain\b", "dcpcse.pretrain"),
    (r"\bdcpcse import\b", "dcpcse.import_checkpoint"),
    (r"\bdcpcse export\b", "dcpcse.export"),
)
"""Pattern in a message → its replacement; applied in this order, before the names of options are replaced."""

_OPTION = re.compile(r"(?<![\w-])--([a-z][\w-]*)(?: (\w[\w-]*))?")
_OF_USER = re.compile(r" [^;,]+: must be ")
"""What follows an option whose value is the one that the user gave."""


@contextlib.contextmanager
def python_words(**names: str) -> Iterator[None]:
    """Name options in errors and log lines as parameters of Python; also usable as a decorator.

    names: option of the command line → parameter of the called function, where these differ, or `parameter=value`. If
    such functions call each other, the names of the outermost one count. User errors, errors in evaluation data and
    refusals of the system (no permission, no memory) leave this context as UserError with the message in one line and
    the traceback; interruptions and bugs keep their class.
    """
    with worded(lambda text: in_python_words(text, names)) as translate:
        try:
            yield
        except (UserError, Interrupted) as error:
            _translate_chain(error, translate)
            raise
        except DataError as error:
            _translate_chain(error, translate)
            raise UserError(str(error)) from error
        except Exception as error:
            if (described := describe_refusal(error)) is None:
                raise
            raise UserError(shortened(translate(described))) from error


def _translate_chain(error: BaseException | None, translate: Callable[[str], str]) -> None:
    """Translate the message of an error and of those that it was raised from, which a traceback shows too."""
    while error is not None:
        if isinstance(error, UserError | DataError | Interrupted):
            error.args = (translate(str(error)),)
        error = error.__cause__ or error.__context__


def in_python_words(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return a message of the command line in the words of Python.

    `--temp 0.0` becomes `temp 0.0`, `--resume` becomes `resume=True`, and `--tuning deep` becomes `tuning="deep"`.
    Commands with an equivalent in Python become its name. names: as in `python_words`.
    """
    names = {**_NAMES, **(names or {})}
    for pattern, replacement in _PHRASES:
        text = re.sub(pattern, replacement, text)

    def parameter(found: re.Match[str]) -> str:
        option, value = found[1], found[2]
        name, rest = names.get(option, option).replace("-", "_"), f" {value}" if value else ""
        is_asked = text[: found.start()].endswith(("did you mean ", "unknown option "))
        if "=" in name:
            return name
        if is_asked or _OF_USER.match(text, found.end(1)):
            return f"{name}{rest}"
        flags, values = _options()
        if option in flags:
            return f"{name}={value}" if value in ("True", "False") else f"{name}=True{rest}"
        return f'{name}="{value}"' if value in values.get(option, ()) else f"{name}{rest}"

    return _OPTION.sub(parameter, text)


def _options() -> tuple[set[str], dict[str, set[str]]]:
    """Return the names of the options that are True or False, and the known values of other options by name."""
    # Imported here because an error is rare, and these imports take seconds.
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy
    from transformers.training_args import OptimizerNames

    from dcpcse.evaluation.arguments import EvaluationArguments
    from dcpcse.inference.arguments import PublishedEvaluationArguments
    from dcpcse.inference.mining.arguments import MiningArguments
    from dcpcse.methods import METHODS, arguments_class
    from dcpcse.pretraining.arguments import PretrainingArguments
    from dcpcse.training.arguments import DataArguments, TrainingArguments

    flags: set[str] = set()
    enumerations = {"eval_strategy": IntervalStrategy, "save_strategy": SaveStrategy, "optim": OptimizerNames}
    values = {"method": set(METHODS)} | {name: {one.value for one in kind} for name, kind in enumerations.items()}
    for kind in (
        arguments_class(),
        DataArguments,
        TrainingArguments,
        EvaluationArguments,
        PublishedEvaluationArguments,
        PretrainingArguments,
        MiningArguments,
    ):
        for one in fields(kind):
            if "bool" in str(one.type):
                flags.add(one.name)
            if choices := one.metadata.get("choices"):
                values[one.name] = set(choices)
    return flags, values
