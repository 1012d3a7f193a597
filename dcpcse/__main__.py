"""`python -m dcpcse COMMAND`, and the console script `dcpcse`: every command of the package by one name."""

import difflib
import importlib
import sys
from collections.abc import Sequence

from .cli import parse_evaluation, parse_training, run
from .errors import UserError

COMMANDS = {
    "train": ("__main__", "train", "train a method (as train.py)"),
    "evaluate": ("__main__", "evaluate", "measure an encoder (as evaluation.py)"),
    "reproduce": ("reproduction.command", "reproduce", "rows of the papers' tables over seeds, beside their figures"),
    "doctor": ("doctor.command", "doctor", "what is wrong or odd in data, models, runs, the environment"),
    "runs": ("runs", "runs", "list and compare training runs"),
    "report": ("reporting.command", "report", "one HTML page of a run, or of several side by side"),
    "plot": ("pictures.command", "plot", "a picture of encoders, scores or runs"),
    "demo": ("demo.command", "demo", "a page on this machine: the nearest sentences under several models"),
    "card": ("hub_commands", "card", "the model card of a folder"),
    "push": ("hub_commands", "push", "a model folder to the Hugging Face hub"),
    "pull": ("hub_commands", "pull", "a model folder on the hub to a folder here"),
    "encode": ("encode", "encode", "a text file to vectors"),
    "import": ("importing.command", "import_", "a checkpoint of other code to a model folder"),
    "info": ("info", "info", "what lies in a folder: method, base, sizes, scores"),
    "similarity": ("similarity", "similarity", "cosines of sentences"),
    "search": ("search", "search", "the most similar sentences of a file, or of a saved index"),
    "export": ("exporting.command", "export", "a trained folder for peft, sentence-transformers, ONNX, transformers"),
    "predict": ("predict", "predict", "words that a template's [MASK] stands for"),
    "corrupt": ("corrupt", "corrupt", "write a corpus with replaced tokens ahead of training"),
    "search-templates": ("template_search", "search", "templates by their score on STS-B dev"),
    "search-hyperparameters": ("hyperparameter_search", "search", "the papers' searches"),
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


def train(argv: Sequence[str]) -> None:
    """As `dcpcse.training.train`, but nothing of training is imported before the options are read."""
    options, given = parse_training(argv)
    from .first_checks import require_sensible

    require_sensible(options, given)
    from .training import train_with

    train_with(options, given)


def evaluate(argv: Sequence[str]) -> None:
    """As `dcpcse.evaluating.evaluation`, but nothing of evaluation is imported before the options are read."""
    args, published = parse_evaluation(argv)
    from .evaluating import evaluate_with

    evaluate_with(args, published)


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {what}" for name, (_, _, what) in COMMANDS.items()]
    return "\n".join(["usage: dcpcse COMMAND [options]; dcpcse COMMAND --help lists its options", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
