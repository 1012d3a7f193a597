"""Messages spell options as the interface does by which the user called: a command line, or Python."""

import pickle
import threading
from pathlib import Path

from dcpcse.cli.runner import run
from dcpcse.utils.errors import OptionError, command_line, parameter_names, same_call, spell
from dcpcse.utils.option_fields import needs_above_zero, needs_given, needs_value

SPELLED = (
    (("temp",), "--temp", "temp"),
    (("temp", 0.05), "--temp 0.05", "temp=0.05"),
    (("max_steps", 64.0), "--max_steps 64", "max_steps=64.0"),
    (("tuning", "deep"), "--tuning deep", 'tuning="deep"'),
    (("resume", True), "--resume", "resume=True"),
    (("packing", False), "--packing False", "packing=False"),
    (("output_dir", Path("a/b")), "--output_dir a/b", 'output_dir="a/b"'),
    (("eval_tasks", ["STSBenchmark", "MR"]), "--eval_tasks STSBenchmark MR", 'eval_tasks=["STSBenchmark", "MR"]'),
    (("text", "a\nb"), "--text a\nb", 'text="a\\nb"'),
)


def test_options_conditions_and_calls_are_spelled_as_their_user_writes_them():
    needs = [needs_value("tuning", "deep"), needs_value("do_mlm", True), needs_given("guide"), needs_above_zero("neg")]
    in_python = [*(text for _, _, text in SPELLED), 'tuning="deep"', "do_mlm=True", "guide", "neg above 0"]
    on_a_command_line = [*(text for _, text, _ in SPELLED), "--tuning deep", "--do_mlm", "--guide", "--neg above 0"]

    def spelled() -> list[str]:
        return [*(spell(*arguments) for arguments, _, _ in SPELLED), *map(str, needs)]

    assert (spelled(), same_call()) == (in_python, "the same call")
    with command_line():
        assert (spelled(), same_call()) == (on_a_command_line, "the same command")
    assert (spelled(), same_call()) == (in_python, "the same call")


def test_the_names_of_the_outermost_function_count_and_may_hold_a_value():
    @parameter_names(train_file="train_dataset")
    def inner():
        return spell("train_file", "a.csv"), spell("custom_data", True)

    assert inner() == ('train_dataset="a.csv"', "custom_data=True")
    with parameter_names(train_file="train_data", custom_data="official=False"):
        assert inner() == ('train_data="a.csv"', "official=False")
        with command_line():
            assert inner() == ("--train_file a.csv", "--custom_data")
    assert spell("train_file") == "train_file"


def test_an_error_has_its_parts_and_leaves_out_those_that_it_does_not_have():
    error = OptionError("temp", 0.0, "must be positive", "give 0.05")
    parts = ("temp", 0.0, "must be positive", "give 0.05")
    assert (error.option, error.value, error.reason, error.remedy) == parts
    assert str(error) == "temp=0.0: must be positive; give 0.05"
    assert str(OptionError("do", reason="has no effect", remedy="leave it out")) == "do has no effect; leave it out"


def test_an_error_of_a_worker_process_is_spelled_as_the_first_process_was_called():
    sent = pickle.dumps(OptionError("temp", 0.5, "too low"))
    with command_line():
        error = pickle.loads(sent)
    assert type(error) is OptionError and str(error) == "--temp 0.5: too low"


def test_a_program_spells_options_as_on_a_command_line_in_its_threads_too(capsys):
    said = []

    def main(argv):
        worker = threading.Thread(target=lambda: said.append(spell("resume", True)))
        worker.start()
        worker.join()
        raise OptionError("temp", -0.5, "must be above 0")

    assert run(main, []) == 2
    assert capsys.readouterr().err == "error: --temp -0.5: must be above 0\n" and said == ["--resume"]
    assert spell("temp") == "temp"
