"""Plot token embeddings in two dimensions, coloured by frequency, subword and case.

These three properties bias the embeddings (PromptBERT, section 3).
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.errors import UserError
from dcpcse.utils.text_lines import decode_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

LINES_AT_ONCE = 4096
"""Number of lines tokenized at a time."""
DOT_OPTIONS = {"s": 1.6, "linewidths": 0, "rasterized": True, "antialiased": False}
"""The many thousand dots are stored as an image in the SVG; without smooth edges, this image is far smaller."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """Coordinates (V, 2) of tokens, their frequency ranks (V,) from 1 (0 if absent), and their classes (V,).

    explained: share of the variance in each dimension. text: name of the file in which tokens were counted.
    """

    label: str
    places: np.ndarray
    rank: np.ndarray
    subword: np.ndarray
    capital: np.ndarray
    explained: tuple[float, float]
    text: str


@style.styled
def draw(tokens: Tokens) -> "Figure":
    """Draw three panels of the same coordinates: by frequency rank, by subword and by case."""
    figure = style.figure(style.PAGE, 3.2)
    axes = figure.subplots(2, 3, height_ratios=[1, 0.42])
    figure.suptitle(style.plain(f"{tokens.label}: {len(tokens.rank):,} token embeddings", 90), fontsize=8)
    _by_rank(figure, axes[0, 0], axes[1, 0], tokens)
    _by_class(*axes[:, 1], tokens.places, tokens.subword, ("starts a word", "continues a word"))
    _by_class(*axes[:, 2], tokens.places, tokens.capital, ("no capital letter", "with a capital letter"))
    axes[0, 0].set_ylabel(f"component 2 ({tokens.explained[1]:.1%})")
    for panel, title in zip(axes[0], ("frequency", "subword", "case"), strict=True):
        panel.set_title(title)
        panel.set_xlabel(f"component 1 ({tokens.explained[0]:.1%})")
        panel.grid(False)
    return figure


def _by_rank(figure: "Figure", axes: "Axes", below: "Axes", tokens: Tokens) -> None:
    """Colour tokens by powers of ten of their rank, since only few colours can be told apart among so many dots."""
    from matplotlib.colors import BoundaryNorm

    seen = tokens.rank > 0
    absent = axes.scatter(*tokens.places[~seen].T, color="#cccccc", marker="x", **{**DOT_OPTIONS, "linewidths": 0.3})
    order = np.argsort(-tokens.rank[seen], kind="stable")  # frequent tokens are drawn last, on top
    places, rank = tokens.places[seen][order], tokens.rank[seen][order]
    ends = [10**power for power in range(len(str(rank.max(initial=1))) + 1)]
    norm = BoundaryNorm(ends, 256)
    shown = axes.scatter(*places.T, c=rank, cmap=style.SEQUENTIAL, norm=norm, **DOT_OPTIONS)
    _legend(below, {f"not in the text ({(~seen).sum():,})": absent}, "lower center")
    bar = figure.colorbar(shown, cax=below.inset_axes([0.0, 0.88, 1.0, 0.12]), orientation="horizontal")
    bar.set_ticks(ends, labels=[f"{end // 1000}k" if end >= 1000 else str(end) for end in ends])
    bar.outline.set_linewidth(0.5)
    bar.set_label(f"frequency rank in {style.plain(tokens.text)}")


def _by_class(axes: "Axes", below: "Axes", places: np.ndarray, member: np.ndarray, names: tuple[str, str]) -> None:
    """Colour the tokens by class, with the smaller class on top."""
    looks = ((~member, style.COLOURS[0], "o"), (member, style.COLOURS[1], "^"))
    handles = {}
    for name, (rows, color, marker) in zip(names, looks, strict=True):
        handles[f"{name} ({rows.sum():,})"] = axes.scatter(
            *places[rows].T, color=color, marker=marker, zorder=2 - rows.mean(), **DOT_OPTIONS
        )
    _legend(below, handles, "upper center")


def _legend(below: "Axes", handles: dict[str, Any], location: str) -> None:
    below.set_axis_off()
    legend = below.legend(list(handles.values()), list(handles), loc=location, handletextpad=0.1)
    for handle in legend.legend_handles:
        handle.set_sizes([14])


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
        with path.open("rb") as file:
            texts = (decode_line(path, number, line) for number, line in enumerate(file, start=1))
            found = list(islice((text for text in texts if text.strip()), most))
    except OSError as error:
        raise UserError(f"--text: cannot read {path}: {error.strerror}") from error
    if not found:
        raise UserError(f"--text {path}: contains no text")
    return found


def gather(args: argparse.Namespace) -> Tokens:
    """Count the tokens of a text, and project the embedding matrix without special tokens."""
    from sklearn.decomposition import PCA

    from dcpcse.encoders.untrained.static import biased_tokens
    from dcpcse.evaluation.evaluator import token_embeddings
    from dcpcse.inference.loading import is_trained, load_model

    if args.lines < 1:
        raise UserError(f"--lines {args.lines}: must be at least 1")
    text = Path(args.text)
    lines = read_lines(text, args.lines)
    ((label, place),) = inputs.labelled([args.model]).items()
    # The embedding matrix does not depend on the pooling, and cls_before_pooler works for any encoder.
    encoder = EncoderArguments(base=args.base, cache_dir=args.cache_dir)
    pooler = None if is_trained(place, encoder) else "cls_before_pooler"
    model = load_model(place, replace(encoder, pooler_type=pooler))
    matrix = token_embeddings(model)
    ranks = frequency_ranks(model.tokenizer, lines, len(matrix))
    # Rows beyond the vocabulary only pad the matrix.
    kept = sorted(set(model.tokenizer.get_vocab().values()) - set(model.tokenizer.all_special_ids))
    pca = PCA(2, svd_solver="covariance_eigh").fit(matrix[kept])
    classes = {name: np.zeros(len(matrix), dtype=bool) for name in ("subword", "case")}
    for name, member in classes.items():
        member[list(biased_tokens(model.tokenizer, [name]))] = True
    inputs.notify(
        f"{label}: {len(kept):,} tokens of {place}; {(ranks > 0).sum():,} occur in {len(lines):,} lines of {text}"
    )
    return Tokens(
        label,
        pca.transform(matrix[kept]),
        ranks[kept],
        classes["subword"][kept],
        classes["case"][kept],
        tuple(pca.explained_variance_ratio_.tolist()),
        text.name,
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    inputs.add_models(parser, many=False)
    parser.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text file to count tokens in (required).")
    parser.add_argument("--lines", type=int, default=100_000, help="Number of lines to read (default: %(default)s).")
    parser.add_argument("--base", help="Current location of the frozen encoder of the output folder.")
    parser.add_argument("--cache_dir", help="Folder for downloads.")


KIND = style.PlotKind("Token embeddings by frequency, subword, case.", _add_options, lambda args: draw(gather(args)))
