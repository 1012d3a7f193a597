"""Mistakes on a command line become one line that names the option, the value and the most similar known name."""

import importlib
import re
from dataclasses import fields

import pytest

from dcpcse.cli import parse
from dcpcse.cli.commands.pretrain import corrupt_parser
from dcpcse.cli.main import COMMANDS
from dcpcse.experiments.reproduction.units import parse_seeds
from dcpcse.utils.command_parser import build_dataclass
from dcpcse.utils.errors import UserError, did_you_mean, invalid_choice
from dcpcse.utils.option_fields import Whole, finite_number

TRAINING = {
    "--pre_seq_length 10": "unknown argument --pre_seq_length; did you mean --pre_seq_len?",
    "--pre-seq-length 10": "did you mean --pre-seq-len?",
    "--quickly": "unknown argument --quickly (--help lists the options)",
    "pre_seq_len 10": "unknown argument pre_seq_len; did you mean --pre_seq_len?",
    "run.yaml": "run.yaml is not an option; a file of options must be the first argument",
    "--temp warm": "--temp warm: must be a number, such as 0.05",
    "--do_mlm maybe": "--do_mlm maybe: Truthy value expected: got maybe",
    "--pooler_type mean": "--pooler_type mean: unknown; did you mean 'avg'? Choose from: cls, cls_before_pooler,",
    "--temp=": "the value of --temp is empty",
}
OTHERS = {
    "--mode validation": "--mode validation: unknown; did you mean 'dev'?",
    "--seed 1": "the following arguments are required: ENCODER, ",
    "--help pooler": "--help pooler is unknown; give --help for the main options",
}


@pytest.fixture(scope="module")
def parsers():
    return [parse.training_parser(), parse.evaluation_parser(), corrupt_parser()]


def test_a_mistake_is_one_line_that_names_it(parsers):
    for line, message in {**TRAINING, **OTHERS}.items():
        with pytest.raises(UserError) as error:
            parsers[0 if line in TRAINING else 2 if "--seed" in line else 1].parse_args(line.split())
        assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("program", ["train", "evaluate"])
def test_help_shows_the_main_options_and_help_all_every_option_once(program, parsers, capsys):
    parser, main = parsers[0], parse.MAIN_TRAINING_OPTIONS
    if program == "evaluate":
        parser, main = parsers[1], parse.MAIN_EVALUATION_OPTIONS
    shown = {}
    for words in ("--help", "--help all"):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(words.split())
        assert ended.value.code == 0
        shown[words] = capsys.readouterr().out
    main_names = [f"--{name}" for names in main.values() for name in names]
    listed = {words: re.findall(r"^  (?:-h, )?(--\w+)", text, re.MULTILINE) for words, text in shown.items()}
    assert listed["--help"] == main_names
    declared = [field for kind in parser.dataclass_types for field in fields(kind)]
    known = {f"--{field.name}" for field in declared if not field.metadata.get("python_only")} | {"--help"}
    hidden = {f"--{name}" for name in (*parser.unsupported, "local_rank")}
    assert sorted(listed["--help all"]) == sorted(known - hidden)


def test_the_most_similar_name_is_found_by_synonym_spelling_case_and_beginning():
    known = ["avg", "cls_before_pooler", "SICKRelatedness"]
    names = ("mean", "agv", "sickrelatednes", "cls_be", "max", "av")
    found = [did_you_mean(name, known) for name in names]
    assert found == [f"did you mean '{known[i]}'?" for i in (0, 0, 2, 1)] + ["", "did you mean 'avg'?"]
    assert did_you_mean("mean", ["cls"]) == ""
    assert str(invalid_choice("x", "agv", known)).endswith("did you mean 'avg'? Choose from: " + ", ".join(known))
    assert str(invalid_choice("x", "max", ["a"])) == 'x="max": unknown; choose from: a'


def every_parser():
    """Yield the parsers of all programs, and those of the kinds of plots."""
    modules = {importlib.import_module(f"dcpcse.cli.commands.{command.module}") for command in COMMANDS.values()}
    modules |= {parse}
    found = [make() for module in modules for name, make in vars(module).items() if name.endswith("_parser")]
    for parser in found:
        kinds = parser._subparsers._group_actions[0].choices.values() if parser._subparsers else []
        yield from kinds or [parser]


def test_every_option_that_is_a_number_accepts_finite_numbers_only():
    kinds, tried = {float: ["nan", "-inf", "1e400", "0x1", ""], int: ["nan", "1.5", "1e3", "0x1", ""]}, 0
    for parser in every_parser():
        for action in parser._actions:
            kind = int if isinstance(action.type, Whole) else float if action.type is finite_number else action.type
            name = next(iter(action.option_strings), "")
            texts = [] if name[2:] in getattr(parser, "unsupported", ()) else kinds.get(kind, [])
            for text in texts:
                with pytest.raises(UserError) as error:
                    parser.parse_known_args([name, text])
                refused = rf"{name} {text}: (must be |invalid int value: )|the value of {name} is empty"
                assert re.match(refused, str(error.value)), parser.prog
            tried += len(texts)
    assert tried > 500


BELOW_ZERO = {"max_steps", "local_rank"}
"""Options for which -1 has a meaning."""


@pytest.mark.usefixtures("on_command_line")
def test_every_whole_number_has_a_lower_bound():
    enough = {"model_name_or_path": "x", "output": "x.npy", "sentences": "x.txt", "output_dir": "x"}
    unbounded = set()
    for parser in every_parser():
        kinds = getattr(parser, "dataclass_types", ())
        of_kind = {field.name: kind for kind in kinds for field in fields(kind)}
        for action in parser._actions:
            is_whole = action.type is int or isinstance(action.type, Whole)
            if not is_whole or action.dest in getattr(parser, "unsupported", ()):
                continue
            try:
                action.type("-1")
                value = [-1] if action.nargs == "+" else -1
                build_dataclass(of_kind[action.dest], {**enough, action.dest: value})
            except ValueError as error:
                if isinstance(error, UserError):
                    assert str(error).startswith(f"--{action.dest} -1: must be "), parser.prog
            else:
                unbounded.add(action.dest)
    assert unbounded == BELOW_ZERO


def test_a_negative_number_is_a_value_in_any_notation(parsers):
    for text in ("-1e-3", "-.5", "-2"):
        assert parsers[0].parse_known_args(["--hard_negative_weight", text])[0].hard_negative_weight == float(text)


def test_a_seed_is_a_number_that_numpy_accepts():
    for parser in every_parser():
        if any(action.dest == "seed" and isinstance(action.type, Whole) for action in parser._actions):
            with pytest.raises(UserError, match=r"^--seed 4294967296: must be a whole number"):
                parser.parse_known_args(["--seed", "4294967296"])
    with pytest.raises(UserError, match="--seeds"):
        parse_seeds("4294967296")


def test_help_of_a_method_shows_its_own_options(capsys):
    with pytest.raises(SystemExit):
        parse.parse_training(["--method", "conpvp", "--help"])
    shown = capsys.readouterr().out
    assert "method conpvp:" in shown and "--prompt_len" in shown and "--dup_rate" not in shown
