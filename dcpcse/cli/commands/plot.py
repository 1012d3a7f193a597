"""The command of all pictures: which kinds there are, and where one is written."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm.contrib.logging import logging_redirect_tqdm

from dcpcse.analysis.plots import (
    alignment_uniformity,
    cosine_by_score,
    fewshot,
    frequent_tokens,
    pair_projection,
    prompt_length,
    style,
    token_projection,
    training_curves,
)
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.command_parser import CommandParser, Parser
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, did_you_mean
from dcpcse.utils.files import require_output

PLOTS: Mapping[str, style.PlotKind] = {
    "cosines": cosine_by_score.KIND,
    "plane": alignment_uniformity.KIND,
    "pairs": pair_projection.KIND,
    "tokens": token_projection.KIND,
    "prompt-length": prompt_length.KIND,
    "fewshot": fewshot.KIND,
    "frequent": frequent_tokens.KIND,
    "curves": training_curves.KIND,
}

WRITTEN_SUFFIXES = (".png", ".svg")
OTHER_SUFFIXES = (".pdf", ".eps", ".ps", ".jpg", ".jpeg", ".gif", ".tif", ".tiff", ".webp")


def plot_command(argv: Sequence[str]) -> None:
    """The whole command; raises UserError or DataError for what the user can mend."""
    _require_known(argv)
    parser = plot_parser()
    args, unknown = parser.parse_known_args(list(argv))
    args.parser.refuse_unknown(unknown)
    stem = _stem(args.output or args.kind, args.overwrite)
    style.require_matplotlib()
    with logging_redirect_tqdm():
        whole = PLOTS[args.kind].picture(args)
    written = style.save(whole, stem)
    notify(f"written: {' and '.join(map(str, written))}")


def _require_known(argv: Sequence[str]) -> None:
    """UserError with the nearest name for a kind that does not exist; argparse would only list all."""
    kinds = ", ".join(PLOTS)
    if not argv:
        raise UserError(f"give a kind of picture: {kinds}")
    kind = argv[0]
    if kind in PLOTS or kind in ("-h", "--help"):
        return
    hint = did_you_mean(kind, PLOTS)
    raise UserError(f"unknown picture {kind!r}{hint and '; ' + hint.strip()} (there are {kinds})")


def _stem(output: str, overwrite: bool) -> Path:
    """The path without its ending, which the two files get; UserError where they cannot or must not be written."""
    path = Path(output)
    if path.suffix.lower() in OTHER_SUFFIXES:
        raise UserError(f"--output {output}: OUT.png and OUT.svg are written; give no {path.suffix}")
    stem = path.with_suffix("") if path.suffix.lower() in WRITTEN_SUFFIXES else path
    if path.is_dir() and path.suffix.lower() not in WRITTEN_SUFFIXES:
        raise UserError(f"--output {output} is a folder; give a name in it, such as {path / 'picture'}")
    for ending in WRITTEN_SUFFIXES:
        require_output(stem.with_name(f"{stem.name}{ending}"), "--output", overwrite)
    return stem


def plot_parser() -> CommandParser:
    """The parser of the command, with one of its own for each kind of picture."""
    parser = CommandParser(prog="dcpcse plot", description="Pictures for papers, as OUT.png and OUT.svg.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND", parser_class=Parser)
    for name, kind in PLOTS.items():
        dataclass_types = (EncoderArguments,) if kind.of_encoders else ()
        own: argparse.ArgumentParser = kinds.add_parser(
            name, dataclass_types=dataclass_types, help=kind.help, description=kind.help
        )
        kind.add_options(own)
        own.add_argument("--output", metavar="OUT", help=f"OUT.png and OUT.svg are written (default: {name}).")
        own.add_argument("--overwrite", action="store_true", help="Replace these two, if they are there.")
        own.set_defaults(parser=own)
    return parser
