"""`dcpcse plot KIND ... --output OUT`: plots for papers, as OUT.png and OUT.svg."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm.contrib.logging import logging_redirect_tqdm

from dcpcse.analysis.plots import (
    alignment_uniformity,
    cosines,
    projections,
    scores,
    style,
    training_curves,
)
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.command_parser import CommandParser, Parser
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_output

PLOTS: Mapping[str, style.PlotKind] = {
    **cosines.KINDS,
    "plane": alignment_uniformity.KIND,
    **projections.KINDS,
    **scores.KINDS,
    "curves": training_curves.KIND,
}

WRITTEN_SUFFIXES = (".png", ".svg")
OTHER_SUFFIXES = (".pdf", ".eps", ".ps", ".jpg", ".jpeg", ".gif", ".tif", ".tiff", ".webp")


def plot_command(argv: Sequence[str]) -> None:
    """Run `dcpcse plot`. Raises UserError or DataError for mistakes that the user can fix."""
    args, unknown = plot_parser().parse_known_args(list(argv))
    args.parser.refuse_unknown(unknown)
    stem = _output_stem(args.output or args.kind, args.overwrite)
    style.require_matplotlib()
    with logging_redirect_tqdm():
        figure = PLOTS[args.kind].plot(args)
    written = style.save(figure, stem)
    notify(f"saved to {' and '.join(map(str, written))}")


def _output_stem(output: str, overwrite: bool) -> Path:
    """Return the output path without its suffix. Raises UserError if OUT.png or OUT.svg must not be written."""
    path = Path(output)
    if path.suffix.lower() in OTHER_SUFFIXES:
        raise UserError(f"--output {output}: plots are saved as OUT.png and OUT.svg; omit {path.suffix}")
    stem = path.with_suffix("") if path.suffix.lower() in WRITTEN_SUFFIXES else path
    if path.is_dir() and stem == path:
        raise UserError(f"--output {output} is a folder; give a file name in it, such as {path / 'plot'}")
    for suffix in WRITTEN_SUFFIXES:
        require_output(stem.with_name(f"{stem.name}{suffix}"), "output", overwrite)
    return stem


def plot_parser() -> CommandParser:
    """Return the parser of `dcpcse plot`, with a subparser for each kind of plot."""
    parser = CommandParser(prog="dcpcse plot", description="Draw plots for papers, as OUT.png and OUT.svg.")
    kinds = parser.add_subparsers(prog=parser.prog, dest="kind", required=True, metavar="KIND", parser_class=Parser)
    for name, kind in PLOTS.items():
        dataclass_types = (EncoderArguments, EncodeOptions) if kind.of_encoders else ()
        sub: Parser = kinds.add_parser(name, dataclass_types=dataclass_types, help=kind.help, description=kind.help)
        kind.add_options(sub)
        sub.add_argument("--output", metavar="OUT", help=f"Save the plot to OUT.png and OUT.svg (default: {name}).")
        sub.add_argument("--overwrite", action="store_true", help="Replace existing files.")
        sub.set_defaults(parser=sub)
    return parser
