"""The program `dcpcse` (`python -m dcpcse`), which runs a command by its name."""

import importlib
from collections.abc import Callable, Sequence

from dcpcse.cli.runner import run
from dcpcse.utils.console import print_result
from dcpcse.utils.errors import invalid_choice
from dcpcse.utils.refusals import require_text

COMMANDS = {
    "quickstart": ("quickstart", "train and evaluate on the sample in a few minutes"),
    "adapt": ("adapt", "adapt an encoder to your data, and say whether that helped"),
    "train": ("train", "train a method (as train.py)"),
    "pretrain": ("pretrain", "pretrain a small BERT or RoBERTa on a text file"),
    "evaluate": ("evaluate", "evaluate an encoder (as evaluation.py)"),
    "compare": ("compare", "compare models, with intervals and paired tests"),
    "reproduce": ("reproduce", "reproduce rows of the papers' tables over several seeds"),
    "verify": ("verify", "compare a published checkpoint's scores with the figures of its paper"),
    "doctor": ("doctor", "check data, models, runs and the environment for problems"),
    "runs": ("runs", "list and compare training runs"),
    "report": ("report", "write an HTML report of one or several runs"),
    "plot": ("plot", "plot embeddings, scores or runs"),
    "demo": ("demo", "serve a local page with the nearest sentences of several models"),
    "card": ("hub", "write the model card of a folder"),
    "push": ("hub", "upload a model folder to the Hugging Face hub"),
    "pull": ("hub", "download a model folder from the hub"),
    "encode": ("encode", "encode the lines of a text file"),
    "import": ("import_", "convert a checkpoint of other code to a model folder"),
    "info": ("info", "show method, encoder, sizes and scores of a folder"),
    "similarity": ("similarity", "print cosine similarities of sentences"),
    "search": ("search", "search a file or a saved index for similar sentences"),
    "serve": ("serve", "serve an encoder and its adapters over HTTP, as OpenAI's API"),
    "mine": ("mine", "add hard negatives from a corpus to pairs"),
    "export": ("export", "export a model folder to peft, sentence-transformers, ONNX or transformers"),
    "predict": ("predict", "predict tokens at the [MASK] of a template"),
    "corrupt": ("corrupt", "write a training corpus with replaced tokens"),
    "search-templates": ("search_templates", "search for templates by their score on STS-B dev"),
    "search-hyperparameters": ("search_hyperparameters", "run the hyperparameter searches of the papers"),
}
"""Name → module in `commands`, and description. `search-templates` runs the function `search_templates_command`."""


READERS = ("doctor", "info", "plot", "report", "runs", "similarity", "search")
"""Commands that write no record of their arguments, so that these may also be names that are not text."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, which is 2 for an unknown command."""
    return run(_dispatch, argv)


def _dispatch(argv: Sequence[str]) -> int | None:
    name, *words = argv or ["--help"]
    if name in ("-h", "--help"):
        print_result(_help())
        return 0
    if name not in COMMANDS:
        raise invalid_choice("command", name, COMMANDS)
    if name not in READERS:
        require_text(words)
    return find_command(name)(words)


def find_command(name: str) -> Callable[[Sequence[str]], int | None]:
    """Return the function of a command, which takes the arguments after its name."""
    module = importlib.import_module(f"dcpcse.cli.commands.{COMMANDS[name][0]}")
    return getattr(module, f"{name.replace('-', '_')}_command")


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["usage: dcpcse COMMAND [OPTIONS]; dcpcse COMMAND --help shows the options", "", *lines])
