"""The names of commands, and the style that they share."""

import contextlib
import io
import re
import signal
from unittest.mock import Mock

import pytest

import dcpcse
from dcpcse.cli import main as program
from dcpcse.cli.commands.compare import compare_parser
from dcpcse.cli.commands.encode import encode_parser
from dcpcse.cli.commands.plot import plot_parser
from dcpcse.cli.commands.predict import predict_parser
from dcpcse.cli.main import COMMANDS, FORMER, find_command, main
from dcpcse.cli.parse import parse_evaluation, parse_training
from dcpcse.utils.errors import UserError
from dcpcse.utils.signals import Interrupted


def help_of(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        assert main([*words, "--help"]) == 0
    return out.getvalue()


def test_there_are_17_commands_which_name_themselves_and_the_help_says_where_to_begin():
    assert len({name.split()[0] for name in COMMANDS}) == 17
    shown = help_of()
    assert re.findall(r"^  (\w+(?: \w+)?)  ", shown, re.MULTILINE) == list(COMMANDS)
    assert re.search(r"^\nBegin here:\n  quickstart ", shown, re.MULTILINE)
    assert [name for name in COMMANDS if f"usage: dcpcse {name} " not in help_of(*name.split())] == []


def test_a_former_name_runs_its_command_and_says_so_in_one_line(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(program, "find_command", lambda name: lambda words: calls.append((name, words)))
    for former, name in FORMER.items():
        calls = []
        caplog.clear()
        assert main([former, "a", "--b", "c"]) == 0
        assert calls == [(name, ["a", "--b", "c"])]
        assert caplog.messages == [f"dcpcse {former} is now dcpcse {name}"]


def test_the_version_is_printed(capfd):
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"dcpcse {dcpcse.__version__}\n"


@pytest.mark.parametrize("resumes", [True, False])
def test_ctrl_c_says_whether_the_same_command_resumes(resumes, monkeypatch, capfd):
    name = next(name for name, command in COMMANDS.items() if command.resumes == resumes)
    kept = "interrupted; what is finished is kept: repeat the same command to resume"
    for error, code, said in (
        (KeyboardInterrupt(), 130, kept if resumes else "interrupted"),
        (Interrupted(signal.SIGTERM), 143, kept if resumes else "interrupted"),
        (KeyboardInterrupt("said already"), 130, "said already"),
    ):
        monkeypatch.setattr(program, "find_command", lambda name, error=error: Mock(side_effect=error))
        assert main([*name.split(), "x"]) == code
        assert capfd.readouterr().err == f"{said}\n"


def test_a_word_after_a_command_that_has_no_function_of_its_own(capfd):
    assert main(["hub"]) == 0
    assert "hub push" in capfd.readouterr().out
    assert main(["hub", "psh"]) == 2
    assert "did you mean 'hub push'?" in capfd.readouterr().err
    assert callable(find_command("hub push"))


def test_a_model_is_the_first_argument_or_an_option():
    option = ["--model_name_or_path", "M"]
    for before, after in ((option, []), ([], option), ([], ["--model_name_or_path=M"])):
        encoded = encode_parser().parse([*before, "f.txt", "--output", "v.npy", *after])[-1]
        assert (encoded.model, encoded.file) == ("M", "f.txt")
        predicted = predict_parser().parse_args([*before, "A b.", "C.", *after])
        assert (predicted.model_name_or_path, predicted.sentences) == ("M", ["A b.", "C."])
        assert compare_parser().parse_args([*before, "B", *after]).models == ["M", "B"]
        plotted = plot_parser().parse_args(["cosines", *before, "--task", "STS12", *after])
        assert plotted.models == ["M"]
    with pytest.raises(UserError, match="--model_name_or_path has no value; give a folder"):
        encode_parser().parse(["--model_name_or_path", "--output", "v.npy", "f.txt"])


def test_train_and_evaluate_take_the_model_first():
    (model, _, run), given = parse_training(["bert", "--train_file", "t.txt", "--output_dir", "out"])
    assert (model.model_name_or_path, run.output_dir) == ("bert", "out")
    assert "model_name_or_path" in given
    assert parse_evaluation(["bert"])[0].model_name_or_path == "bert"
    for parse in (parse_training, parse_evaluation):
        with pytest.raises(UserError, match="bert is not a file of options"):
            parse(["bert", "--model_name_or_path=roberta"])
