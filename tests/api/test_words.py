"""Errors that leave a function of the Python interface name its parameters and not options of a command line."""

import logging

import pytest
from senteval.errors import DataError

from dcpcse.api.words import in_python_words, python_words
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.signals import Interrupted


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--temp 0.0: must be a positive number", "temp 0.0: must be a positive number"),
        ("--train_file a.csv has 1 training example", "train_data a.csv has 1 training example"),
        ("give a --train_file with a third column", "give train_data with a third column"),
        ("--fp16 and --bf16 exclude each other", "fp16=True and bf16=True exclude each other"),
        ("or add --overwrite_output_dir to replace its run", "or add overwrite_output_dir=True to replace its run"),
        ("leave it out (--denoise False turns it off)", "leave it out (denoise=False turns it off)"),
        ("has no effect without --tuning deep; leave", 'has no effect without tuning="deep"; leave'),
        (
            "has no effect without --eval_strategy steps or --do_eval",
            'has no effect without eval_strategy="steps" or do_eval=True',
        ),
        ("--do_mlm maybe: must be True or False", "do_mlm maybe: must be True or False"),
        (
            "unknown argument --tmp; did you mean --temp? (--help lists the options)",
            "unknown option tmp; did you mean temp?",
        ),
        (
            "there is no checkpoint yet; the same command with --resume starts again",
            "there is no checkpoint yet; the same call with resume=True starts again",
        ),
        ("give its location with --base (in Python: base=)", "give its location with base"),
        ("give --custom_data (in Python: official=False)", "give custom_eval_data=True"),
        ("for instance --task_set na --tasks STSBenchmark", 'for instance tasks=["STSBenchmark"]'),
        ("for instance --eval_tasks STSBenchmark", 'for instance eval_tasks=["STSBenchmark"]'),
        ("give the output folder of train.py", "give the output folder of dcpcse.train"),
        ("my--data.txt and /tmp/train.py remain", "my--data.txt and /tmp/train.py remain"),
    ],
)
def test_a_message_in_the_words_of_python(line, words):
    assert in_python_words(line, {"custom_data": "custom_eval_data"}) == words


def test_an_error_keeps_its_class_and_traceback_and_its_causes_are_translated_too():
    class SpecialError(UserError):
        pass

    @python_words(pooler_type="pooler")
    def fails():
        try:
            raise UserError("--temp 0")
        except UserError as error:
            raise SpecialError(f"--pooler_type x: {error}") from error

    with pytest.raises(SpecialError, match=r"^pooler x: temp 0$") as caught:
        fails()
    assert str(caught.value.__cause__) == "temp 0"
    assert caught.traceback[-1].name == "fails"


def test_the_names_of_the_outermost_function_count_and_may_hold_a_value():
    assert in_python_words("give --custom_data", {"custom_data": "official=False"}) == "give official=False"

    @python_words(train_file="train_dataset")
    def inner():
        raise UserError("--train_file")

    with pytest.raises(UserError, match=r"^train_dataset$"):
        inner()
    with pytest.raises(UserError, match=r"^train_data$"), python_words():
        inner()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DataError("download it, or give --data_dir"), "download it, or give data_dir"),
        (PermissionError(13, "Permission denied", "/x"), "Permission denied: /x; give a different path"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_errors_of_the_data_and_refusals_of_the_system_are_user_errors(error, message):
    with pytest.raises(UserError, match=message) as caught, python_words():
        raise error
    assert caught.value.__cause__ is error


def test_bugs_and_interruptions_keep_their_type():
    with pytest.raises(ZeroDivisionError), python_words():
        raise ZeroDivisionError
    with (
        pytest.raises(Interrupted, match=r"^repeat the call with resume=True to continue from there$"),
        python_words(),
    ):
        raise Interrupted(2, "add --resume to the same command to continue from there")


def test_log_lines_are_translated_during_a_call_only(caplog):
    with caplog.at_level(logging.INFO):
        with python_words():
            notify("--fp16 has no effect without a GPU")
        notify("--fp16 has no effect without a GPU")
    assert caplog.messages == ["fp16=True has no effect without a GPU", "--fp16 has no effect without a GPU"]
