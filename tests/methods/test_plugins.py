"""Methods from outside the package: named modules and files, entry points, and what is said of those that fail."""

import hashlib
import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dcpcse.cli.parse import parse_training, training_parser
from dcpcse.methods import METHODS, fill_defaults, plugins
from dcpcse.utils.errors import UserError

OWN = """
from dataclasses import dataclass
from dcpcse.methods import register
from dcpcse.methods.building import instance_wise
from dcpcse.utils.option_fields import option, require

@dataclass
class Options:
    _argument_group_name = "mine"
    sharpness: float | None = option(None, "Of mine. Default: 2.")

    def __post_init__(self):
        require((self.sharpness or 1) > 0, "--sharpness", self.sharpness, "above 0")

@register("mine", options=Options, tuning="full", pooler_type="avg", sharpness=2.0)
def mine(backbone, args, columns):
    return instance_wise(backbone, args, columns)
"""
NEEDED = ["--model_name_or_path", "x", "--train_file", "y.txt", "--output_dir", "z"]


pytestmark = [pytest.mark.usefixtures("methods_of_this_test"), pytest.mark.usefixtures("on_command_line")]


@pytest.fixture
def plugin(tmp_path):
    """Writes a plugin; gives its path."""

    def write(text=OWN, name="my_method.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def parsed(*words):
    return parse_training([*words, *NEEDED])[0][0]


def test_a_method_in_a_file_has_its_own_options_checks_and_defaults(plugin):
    file = plugin()
    args = fill_defaults(parsed("--plugin", file, "--method", "mine"), ["anchor"])
    assert (args.tuning, args.pooler_type, args.sharpness) == ("full", "avg", 2.0)
    assert fill_defaults(parsed("--plugin", file, "--method", "mine", "--sharpness", "3"), ["anchor"]).sharpness == 3.0
    with pytest.raises(UserError, match=r"--sharpness -1: must be above 0"):
        parsed("--plugin", file, "--method", "mine", "--sharpness", "-1")
    with pytest.raises(UserError, match="--sharpness is an option of --method mine and has no effect on simcse"):
        fill_defaults(parsed("--plugin", file, "--method", "simcse", "--sharpness", "3"), ["anchor"])
    assert "--sharpness" in training_parser().format_help()


def test_a_method_without_a_tuning_needs_one_of_the_command_line(plugin):
    """What it would train otherwise is unknown."""
    words = ["--plugin", plugin(OWN.replace('tuning="full", ', "")), "--method", "mine"]
    with pytest.raises(UserError, match=r"--tuning is missing, and --method mine has no default; give full or deep"):
        fill_defaults(parsed(*words), ["anchor"])
    assert fill_defaults(parsed(*words, "--tuning", "lora"), ["anchor"]).lora_alpha == 16


def test_a_module_or_a_file_of_options_may_name_plugins_and_one_that_is_named_twice_is_run_once(
    plugin, tmp_path, monkeypatch
):
    file = plugin(name="installed_method.py")
    parsed("--plugin", file, "--method", "mine")
    parsed("--plugin", file, file, "--method", "mine")
    options = tmp_path / "run.yaml"
    options.write_text(f"plugin: [{file}]\nmethod: mine\nsharpness: 4\n", encoding="utf-8")
    assert parsed(str(options)).sharpness == 4.0
    monkeypatch.syspath_prepend(tmp_path)
    assert parsed("--plugin", "installed_method", "--method", "mine").plugin == ["installed_method"]


def test_methods_of_installed_packages_are_known_and_a_package_that_cannot_be_run_is_left_out(
    plugin, tmp_path, monkeypatch, caplog
):
    plugin(name="packaged_method.py")
    plugin("import no_such_package", name="broken_method.py")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("broken", "broken_method", plugins.GROUP),
        EntryPoint("mine", "packaged_method", plugins.GROUP),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points if group == plugins.GROUP else [])
    assert parsed("--method", "mine").method == "mine" and "mine" in METHODS
    assert "the entry point broken = broken_method: No module named 'no_such_package'" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "registers no method"),
        ("x = (", "SyntaxError: .*line 1"),
        ("import dcpcse\n\n1 / 0", r"ZeroDivisionError: division by zero \(my_method\.py, line 3\); fix it"),
        ("import no_such_package", "No module named 'no_such_package'; install it"),
        (OWN.replace('"mine"', '"simcse"'), r"'simcse' is already registered.*\(my_method\.py, line 15\)"),
        (OWN.replace('register("mine"', 'register("My Own"'), "the method name 'My Own' is invalid"),
        (OWN.replace("sharpness=2.0", "sharpnes=2.0"), "unknown option; did you mean 'sharpness'"),
        (OWN.replace("sharpness", "temp"), "--temp of my_method already exists in dcpcse.methods.arguments"),
        (OWN.replace("option(None", "option(2.0"), "the option --sharpness must be None by default"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said_in_a_line(plugin, text, message):
    with pytest.raises(UserError, match=message) as error:
        parsed("--plugin", plugin(text))
    assert "\n" not in str(error.value) and "my_method.py" in str(error.value)


def test_a_name_that_leads_to_no_plugin_is_refused(plugin, tmp_path, monkeypatch):
    for name in ("my-method.py", "random.py", "my_method.py"):
        plugin(name=name)
    monkeypatch.chdir(tmp_path)
    for name, message in {
        "nowhere.py": "--plugin nowhere.py: no such file",
        "no.such.module": "there is no module no.such.module; install it",
        "my-method.py": "my-method is not a valid module name",
        "my_method": "to load the file, give my_method.py",
        "random.py": "a module named random already exists",
    }.items():
        with pytest.raises(UserError, match=message):
            parsed("--plugin", name)


def test_a_file_of_the_same_size_and_time_is_run_anew_and_its_digest_is_of_what_was_run(plugin, monkeypatch):
    for default in ("2.0", "5.0"):
        text = OWN.replace("sharpness=2.0", f"sharpness={default}")
        file = plugin(text)
        os.utime(file, ns=(10**18, 10**18))
        METHODS.pop("mine", None)
        monkeypatch.delitem(sys.modules, "my_method", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        args = fill_defaults(parsed("--plugin", file, "--method", "mine"), ["anchor"])
        assert args.sharpness == float(default)
        Path(file).write_text("changed since", encoding="utf-8")
        digest = hashlib.sha256(text.encode()).hexdigest()
        assert plugins.code_digest(METHODS["mine"].build) == {"file of the method": digest}
    assert plugins.code_digest(METHODS["simcse"].build) == {}
