"""`python -m dcpcse COMMAND`: every command by one name."""

import importlib
from collections.abc import Callable, Sequence

from dcpcse.cli.runner import run
from dcpcse.utils.errors import invalid_choice

COMMANDS = {
    "train": ("train", "train a method (as train.py)"),
    "evaluate": ("evaluate", "measure an encoder (as evaluation.py)"),
    "reproduce": ("reproduce", "rows of the papers' tables over seeds, beside their figures"),
    "doctor": ("doctor", "what is wrong or odd in data, models, runs, the environment"),
    "runs": ("runs", "list and compare training runs"),
    "report": ("report", "one HTML page of a run, or of several side by side"),
    "plot": ("plot", "a picture of encoders, scores or runs"),
    "demo": ("demo", "a page on this machine: the nearest sentences under several models"),
    "card": ("hub", "the model card of a folder"),
    "push": ("hub", "a model folder to the Hugging Face hub"),
    "pull": ("hub", "a model folder on the hub to a folder here"),
    "encode": ("encode", "a text file to vectors"),
    "import": ("import_", "a checkpoint of other code to a model folder"),
    "info": ("info", "what lies in a folder: method, base, sizes, scores"),
    "similarity": ("similarity", "cosines of sentences"),
    "search": ("search", "the most similar sentences of a file, or of a saved index"),
    "export": ("export", "a trained folder for peft, sentence-transformers, ONNX, transformers"),
    "predict": ("predict", "words that a template's [MASK] stands for"),
    "corrupt": ("corrupt", "write a corpus with replaced tokens ahead of training"),
    "search-templates": ("search_templates", "templates by their score on STS-B dev"),
    "search-hyperparameters": ("search_hyperparameters", "the papers' searches"),
}
"""Name → module in `commands`, and what it does. `search-templates` is the function `search_templates_command`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 2 for one that is not known."""
    return run(_dispatch, argv)


def _dispatch(argv: Sequence[str]) -> int | None:
    name, *words = argv or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in COMMANDS:
        raise invalid_choice("command", name, COMMANDS)
    return find_command(name)(words)


def find_command(name: str) -> Callable[[Sequence[str]], int | None]:
    """The function of a command, which takes the words that follow its name."""
    module = importlib.import_module(f"dcpcse.cli.commands.{COMMANDS[name][0]}")
    return getattr(module, f"{name.replace('-', '_')}_command")


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: dcpcse COMMAND [options]; dcpcse COMMAND --help lists its options", "", *lines])
