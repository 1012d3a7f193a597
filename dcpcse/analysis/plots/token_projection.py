"""Plot token embeddings in two dimensions by frequency, subword and case (PromptBERT, figures 1 and 2).

These three properties bias the embeddings (PromptBERT, section 3).
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.analysis.plots.projections import name_axes, project
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import Whole
from dcpcse.utils.parsing import open_input
from dcpcse.utils.text_lines import decode_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

    from dcpcse.encoders.sentence_encoder import SentenceEncoder

ABSENT = "#bbbbbb"
"""Colour of the tokens that do not occur in the text."""
LINES_AT_ONCE = 4096
"""Number of lines tokenized at a time."""
DOT_OPTIONS = {"s": 1.6, "linewidths": 0, "rasterized": True, "antialiased": False}
"""The many thousand dots are stored as an image in the SVG; without smooth edges, this image is far smaller."""


MATRICES = {"input": "input embeddings", "mlm_head": "MLM head"}
"""Value of --matrix → name of the matrix in titles."""
CLASSES = {
    (False, False): ("starts a word", 0),
    (False, True): ("starts a word, with a capital letter", 1),
    (True, False): ("continues a word", 3),
    (True, True): ("continues a word, with a capital letter", 4),
}
"""(subword, capital) → name of the class and index of its style; capitals are red and subwords yellow in the paper."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """Coordinates (V, 2) of tokens, their frequency ranks (V,) from 1 (0 if absent), and their properties (V,).

    label: name of the encoder. matrix: name of the matrix. axes: names of the two dimensions.
    """

    label: str
    matrix: str
    places: np.ndarray
    rank: np.ndarray
    subword: np.ndarray
    capital: np.ndarray
    axes: tuple[str, str]


@style.styled
def draw(panels: Sequence[Tokens], text: str) -> "Figure":
    """Draw two panels of the same coordinates for each item, one above the other: by frequency rank, and by class.

    text: name of the file in which tokens were counted.
    """
    from matplotlib.colors import BoundaryNorm
    from matplotlib.lines import Line2D

    figure, axes = style.panel_grid(len(panels), 2.2, rows_each=2)
    columns = min(len(panels), style.PANELS_PER_ROW)
    # Powers of ten, since only few colours can be told apart among so many dots.
    most = max(tokens.rank.max(initial=1) for tokens in panels)
    ends = [10**power for power in range(len(str(most)) + 1)]
    norm = BoundaryNorm(ends, 256)
    for i, tokens in enumerate(panels):
        style.title(axes[0, i], tokens.label, columns, below=tokens.matrix)
        shown = _by_rank(axes[0, i], tokens, norm)
        _by_class(axes[1, i], tokens)
        for panel in axes[:, i]:
            name_axes(panel, tokens.axes)
            panel.grid(False)
    bar = style.colorbar(figure, shown, list(axes[0]), style.plain(f"frequency rank in {text}", 30))
    bar.set_ticks(ends, labels=[f"{end // 1000}k" if end >= 1000 else str(end) for end in ends])
    handles = {"not in the text": Line2D([], [], linestyle="none", marker="x", color=ABSENT)}
    for key, (name, look) in CLASSES.items():
        if any(members(tokens, *key).any() for tokens in panels):
            handles[name] = Line2D([], [], linestyle="none", marker="o", color=style.series_style(look).color)
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def members(tokens: Tokens, subword: bool, capital: bool) -> np.ndarray:
    """Return which tokens (V,) have both of these properties."""
    return (tokens.subword == subword) & (tokens.capital == capital)


def _by_rank(axes: "Axes", tokens: Tokens, norm: Any) -> Any:
    seen = tokens.rank > 0
    axes.scatter(*tokens.places[~seen].T, color=ABSENT, marker="x", **{**DOT_OPTIONS, "linewidths": 0.3})
    order = np.argsort(-tokens.rank[seen], kind="stable")  # frequent tokens are drawn last, on top
    places, rank = tokens.places[seen][order], tokens.rank[seen][order]
    return axes.scatter(*places.T, c=rank, cmap=style.SEQUENTIAL, norm=norm, **DOT_OPTIONS)


def _by_class(axes: "Axes", tokens: Tokens) -> None:
    """Colour the tokens by class, with smaller classes on top."""
    for key, (_, look) in CLASSES.items():
        rows = members(tokens, *key)
        color = style.series_style(look).color
        axes.scatter(*tokens.places[rows].T, color=color, zorder=2 - rows.mean(), **DOT_OPTIONS)


def frequency_ranks(tokenizer: "PreTrainedTokenizerBase", lines: Iterable[str], size: int) -> np.ndarray:
    """Return the frequency rank (V,) of every token: 1 for the most frequent, 0 if absent; ties are ordered by id."""
    counts: Counter[int] = Counter()
    rest = iter(lines)
    while chunk := list(islice(rest, LINES_AT_ONCE)):
        for ids in tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]:
            counts.update(ids)
    ranks = np.zeros(size, dtype=np.int64)
    ordered = sorted(counts, key=lambda token: (-counts[token], token))
    ranks[ordered] = np.arange(1, len(ordered) + 1)
    return ranks


def read_lines(path: Path, most: int) -> list[str]:
    """Return the first `most` lines of a text file that are not blank; raises UserError if there are none."""
    try:
        with open_input(path) as file:
            texts = (decode_line(path, number, line) for number, line in enumerate(file, start=1))
            lines = list(islice((text for text in texts if text.strip()), most))
    except OSError as error:
        raise UserError(f"--text: cannot read {path}: {error.strerror}") from error
    if not lines:
        raise UserError(f"--text {path}: contains no text")
    return lines


def gather(args: argparse.Namespace) -> list[Tokens]:
    """Count the tokens of a text, and project the matrices of each encoder without special tokens."""
    from dcpcse.inference.loading import load_model

    if args.lm_head != "checkpoint" and "mlm_head" not in args.matrix:
        raise UserError("--lm_head has no effect without --matrix mlm_head; leave it out")
    text = Path(args.text)
    lines = read_lines(text, args.lines)
    places = inputs.labelled(args.models)
    encoders = _encoders(places.values(), args)
    panels = []
    for label, path in places.items():
        model_panels = token_panels(label, load_model(path, encoders[path]), args.matrix, lines)
        for panel in model_panels:
            counts = "; ".join(f"{name}: {members(panel, *key).sum():,}" for key, (name, _) in CLASSES.items())
            inputs.notify(f"{label}, {panel.matrix}: {len(panel.rank):,} tokens of {path} ({counts})")
        occurring = (model_panels[0].rank > 0).sum()
        inputs.notify(f"{label}: {occurring:,} tokens occur in {len(lines):,} lines of {text}")
        panels += model_panels
    return panels


def token_panels(label: str, model: "SentenceEncoder", matrices: Sequence[str], lines: Sequence[str]) -> list[Tokens]:
    """Project the chosen matrices of an encoder, without special tokens, and count its tokens in some lines.

    matrices: keys of `MATRICES`. If both matrices of an encoder are equal, as with tied weights, they are one item.
    """
    from dcpcse.encoders.untrained import biased_tokens

    tokenizer, weights = model.tokenizer, _matrices(model, matrices)
    size = len(next(iter(weights.values())))
    ranks = frequency_ranks(tokenizer, lines, size)
    # Rows beyond the vocabulary only pad the matrix.
    ids = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    classes = {name: np.zeros(size, dtype=bool) for name in ("subword", "case")}
    for name, member in classes.items():
        member[list(biased_tokens(tokenizer, [name]))] = True
    panels = []
    for matrix, weight in weights.items():
        coordinates, names = project(weight[ids], "pca", seed=0)
        columns = (ranks[ids], classes["subword"][ids], classes["case"][ids])
        panels.append(Tokens(label, matrix, coordinates, *columns, names))
    return panels


def _encoders(places: Iterable[str], args: argparse.Namespace) -> dict[str, EncoderArguments]:
    """Return place → the options that load the encoder with the matrices; checks all places before any is loaded."""
    from dcpcse.inference.loading import has_representation

    options = EncoderArguments(base=args.base, cache_dir=args.cache_dir, lm_head=args.lm_head)
    # The input embeddings do not depend on the pooling, and cls_before_pooler works for any encoder.
    plain = "static_lm_head" if "mlm_head" in args.matrix else "cls_before_pooler"
    encoders = {}
    for path in places:
        trained = has_representation(path, options)
        if trained and "mlm_head" in args.matrix:
            raise UserError(
                f"--matrix mlm_head applies only to plain encoders, but {path} is a trained model; leave it out"
            )
        encoders[path] = replace(options, pooler_type=None if trained else plain)
    return encoders


def _matrices(model: "SentenceEncoder", chosen: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the chosen matrices (V, H) of an encoder by their names in titles; equal ones are under one name."""
    from dcpcse.evaluation.evaluator import token_embeddings

    matrices = {"input": token_embeddings(model)}
    if "mlm_head" in chosen:
        matrices["mlm_head"] = model.encoder.weight.float().cpu().numpy()
    named = {MATRICES[name]: matrices[name] for name in MATRICES if name in chosen}
    if len(named) > 1 and np.array_equal(*named.values()):
        return {" = ".join(named): matrices["input"]}
    return named


def _add_options(parser: CommandParser) -> None:
    inputs.add_models(parser)
    parser.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text file to count tokens in (required).")
    parser.add_argument(
        "--lines", type=Whole(1), default=100_000, help="Number of lines to read (default: %(default)s)."
    )
    help = "Matrices to draw: the input embeddings, the output matrix of the masked-LM head, or both (default: input)."
    parser.add_argument("--matrix", nargs="+", choices=list(MATRICES), default=["input"], help=help)
    help = "Masked-LM head of --matrix mlm_head: checkpoint (the encoder's own), or a folder or hub id."
    parser.add_argument("--lm_head", default="checkpoint", help=help)
    parser.add_argument("--base", help="Current location of the frozen encoder of the output folder.")
    parser.add_argument("--cache_dir", help="Folder for downloads.")


KIND = style.PlotKind(
    "Token embeddings by frequency, subword, case.",
    _add_options,
    lambda args: draw(gather(args), Path(args.text).name),
)
