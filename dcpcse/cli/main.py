"""`python -m dcpcse COMMAND`: every command by one name."""

import difflib
import importlib
from collections.abc import Sequence

from dcpcse.cli.runner import run
from dcpcse.utils.errors import UserError

COMMANDS = {
    "train": ("commands.train", "train_command", "train a method (as train.py)"),
    "evaluate": ("commands.evaluate", "evaluate_command", "measure an encoder (as evaluation.py)"),
    "reproduce": (
        "commands.reproduce",
        "reproduce_command",
        "rows of the papers' tables over seeds, beside their figures",
    ),
    "doctor": ("commands.doctor", "doctor_command", "what is wrong or odd in data, models, runs, the environment"),
    "runs": ("commands.runs", "runs_command", "list and compare training runs"),
    "report": ("commands.report", "report_command", "one HTML page of a run, or of several side by side"),
    "plot": ("commands.plot", "plot_command", "a picture of encoders, scores or runs"),
    "demo": ("commands.demo", "demo_command", "a page on this machine: the nearest sentences under several models"),
    "card": ("commands.hub", "card_command", "the model card of a folder"),
    "push": ("commands.hub", "push_command", "a model folder to the Hugging Face hub"),
    "pull": ("commands.hub", "pull_command", "a model folder on the hub to a folder here"),
    "encode": ("commands.encode", "encode_command", "a text file to vectors"),
    "import": ("commands.import_", "import_command", "a checkpoint of other code to a model folder"),
    "info": ("commands.info", "info_command", "what lies in a folder: method, base, sizes, scores"),
    "similarity": ("commands.similarity", "similarity_command", "cosines of sentences"),
    "search": ("commands.search", "search_command", "the most similar sentences of a file, or of a saved index"),
    "export": (
        "commands.export",
        "export_command",
        "a trained folder for peft, sentence-transformers, ONNX, transformers",
    ),
    "predict": ("commands.predict", "predict_command", "words that a template's [MASK] stands for"),
    "corrupt": ("commands.corrupt", "corrupt_command", "write a corpus with replaced tokens ahead of training"),
    "search-templates": (
        "commands.search_templates",
        "search_templates_command",
        "templates by their score on STS-B dev",
    ),
    "search-hyperparameters": (
        "commands.search_hyperparameters",
        "search_hyperparameters_command",
        "the papers' searches",
    ),
}
"""Name → module, function of the words that follow it, what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 2 for one that is not known."""
    return run(_dispatch, argv)


def _dispatch(argv: Sequence[str]) -> int | None:
    name, *words = argv or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"dcpcse {name}: {hint}the commands are {', '.join(COMMANDS)}")
    module, function, _ = COMMANDS[name]
    return getattr(importlib.import_module(f".{module}", __package__), function)(words)


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {what}" for name, (_, _, what) in COMMANDS.items()]
    return "\n".join(["usage: dcpcse COMMAND [options]; dcpcse COMMAND --help lists its options", "", *lines])
