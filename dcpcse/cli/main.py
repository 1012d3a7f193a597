"""The program `dcpcse` (or `python -m dcpcse`), which runs the command named by the first arguments."""

import contextlib
import importlib
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from dcpcse import __version__
from dcpcse.cli.runner import run
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.errors import UserError, choose_from
from dcpcse.utils.signals import resumable


class Command(NamedTuple):
    """A command of `dcpcse`.

    Args:
        group: Heading under which the help lists the command.
        module: Module of the command in `dcpcse.cli.commands`.
        help: Description of the command in the help.
        former: Name of the command in earlier versions, if it had a different name.
        resumes: Whether an interrupted run can be resumed by running the same command again.
    """

    group: str
    module: str
    help: str
    former: str = ""
    resumes: bool = False


BEGIN, TRAIN, USE = "Begin here", "Train", "Use an encoder"
MEASURE, PAPERS, SHARE = "Measure and compare", "Reproduce papers", "Convert and share"

COMMANDS = {
    "quickstart": Command(BEGIN, "quickstart", "train and evaluate on the sample in a few minutes"),
    "adapt": Command(BEGIN, "adapt", "adapt an encoder to your data, and test whether it is better", resumes=True),
    "doctor": Command(BEGIN, "doctor", "check data, models, runs and the environment for problems"),
    "train": Command(TRAIN, "train", "train a method (as train.py)"),
    "pretrain": Command(TRAIN, "pretrain", "pretrain a small BERT or RoBERTa on a text file"),
    "pretrain corrupt": Command(TRAIN, "pretrain", "write a training corpus with replaced tokens", "corrupt"),
    "mine": Command(TRAIN, "mine", "add hard negatives from a corpus to pairs"),
    "encode": Command(USE, "encode", "encode the lines of a text file", resumes=True),
    "search": Command(USE, "search", "search a file or a saved index for similar sentences"),
    "search similarity": Command(USE, "similarity", "print cosine similarities of sentences", "similarity"),
    "serve": Command(USE, "serve", "serve an encoder and its adapters over HTTP, as OpenAI's API"),
    "serve demo": Command(USE, "demo", "serve a local page with the nearest sentences of several models", "demo"),
    "evaluate": Command(MEASURE, "train", "evaluate an encoder (as evaluation.py)"),
    "compare": Command(MEASURE, "compare", "compare models, with intervals and paired tests"),
    "info": Command(MEASURE, "info", "show method, encoder, sizes and scores of a folder"),
    "plot": Command(MEASURE, "plot", "plot embeddings, scores or runs"),
    "plot report": Command(MEASURE, "report", "write an HTML report of one or several runs", "report"),
    "plot runs": Command(MEASURE, "runs", "list and compare training runs", "runs"),
    "plot predictions": Command(MEASURE, "predict", "predict tokens at the [MASK] of a template", "predict"),
    "reproduce": Command(PAPERS, "reproduce", "reproduce rows of the papers' tables over several seeds", resumes=True),
    "reproduce verify": Command(PAPERS, "verify", "compare a published checkpoint with its paper", "verify"),
    "reproduce search": Command(
        PAPERS, "search_hyperparameters", "search hyperparameters", "search-hyperparameters", resumes=True
    ),
    "reproduce templates": Command(
        PAPERS, "search_templates", "search for a template", "search-templates", resumes=True
    ),
    "export": Command(SHARE, "export", "export to peft, sentence-transformers, ONNX or transformers"),
    "import": Command(SHARE, "import_", "convert a checkpoint of other code to a model folder"),
    "hub push": Command(SHARE, "hub", "upload a model folder to the Hugging Face hub", "push"),
    "hub pull": Command(SHARE, "hub", "download a model folder from the hub", "pull"),
    "hub card": Command(SHARE, "hub", "write the model card of a folder", "card"),
}
"""A dict from names to commands. The function in the module is NAME_command, or FORMER_command if `former` is set."""

HELP = ("-h", "--help")
FORMER = {command.former: name for name, command in COMMANDS.items() if command.former}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. The exit code is 2 for an unknown command."""
    return run(_dispatch, argv)


def _dispatch(argv: Sequence[str]) -> int | None:
    words = list(argv) or ["--help"]
    if words == ["--version"]:
        print_result(f"dcpcse {__version__}")
        return 0
    if words[0] in FORMER:
        notify(f"dcpcse {words[0]} is now dcpcse {FORMER[words[0]]}")
        words[:1] = FORMER[words[0]].split()
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
    members = [name for name in COMMANDS if words[0] in (*HELP, name.split()[0])]
    wants_help = not words[1:] or words[0] in HELP or words[1] in HELP
    if name is None and not (members and wants_help):
        unknown = " ".join(words[:2]) if members else words[0]
        raise UserError(f"command {unknown}: unknown; {choose_from(unknown, COMMANDS)}")
    if name is None or (len(members) > 1 and words[1:] and wants_help):
        print_result(_list(members))
    if name is None:
        return 0
    with resumable() if COMMANDS[name].resumes else contextlib.nullcontext():
        return find_command(name)(words[len(name.split()) :])


def find_command(name: str) -> Callable[[Sequence[str]], int | None]:
    """Return the function of a command. The function is called with the arguments after the name of the command."""
    command = COMMANDS[name]
    module = importlib.import_module(f"dcpcse.cli.commands.{command.module}")
    return getattr(module, f"{(command.former or name).replace('-', '_')}_command")


def _list(names: Sequence[str]) -> str:
    """Return a help text that lists commands by their groups."""
    lines = ["usage: dcpcse COMMAND [--OPTION VALUE ...]; dcpcse COMMAND --help shows the options"]
    lines += ["       dcpcse --version"]
    for group, members in groupby(names, key=lambda name: COMMANDS[name].group):
        lines += ["", f"{group}:", *(f"  {name:20}  {COMMANDS[name].help}" for name in members)]
    return "\n".join([*lines, ""])
