"""Plots of embeddings in two dimensions.

- labelled pairs (ConPVP, figure 6)
- the sentences of several models in one plane (D2CSE, figure 2a)
- tokens by frequency, subword and case (PromptBERT, figures 1 and 2)

Frequency, subword and case of tokens bias the embeddings of tokens (PromptBERT, section 3).
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.option_fields import SEED, Whole
from dcpcse.utils.parsing import open_input
from dcpcse.utils.text_lines import decode_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from senteval import ScoredPairs
    from transformers import PreTrainedTokenizerBase

    from dcpcse.encoders.sentence_encoder import SentenceEncoder


DISSIMILAR_UP_TO = 1.0
"""Highest gold score of dissimilar pairs; pairs above senteval.geometry.POSITIVE_ABOVE are similar."""

LOOKS = (1, 0)
"""Indices of the styles of the first two groups. The gold scores 0, 3 and 5 are then orange, blue and green, as in
figure 6 of ConPVP.
"""


def project(vectors: np.ndarray, how: str, seed: int) -> tuple[np.ndarray, tuple[str, str]]:
    """Return coordinates (N, 2) of vectors (N, H), projected by `pca` or `tsne`, and names of both dimensions.

    For PCA, a name contains the component's share of the variance.

    Args:
        how: "pca", or "tsne" for t-SNE.
        seed: Seed of t-SNE.
    """
    if how == "pca":
        from sklearn.decomposition import PCA

        # The solver is exact, and fast for the many rows of an embedding matrix.
        pca = PCA(2, svd_solver="covariance_eigh").fit(vectors)
        first, second = (f"component {i + 1} ({pca.explained_variance_ratio_[i]:.1%})" for i in range(2))
        return pca.transform(vectors), (first, second)
    from sklearn.manifold import TSNE

    # Use scikit-learn's default perplexity, or the highest one that is possible with few points. The vectors have
    # unit length, so their distances follow from their cosines. One thread is used, so that sums keep their order.
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed, n_jobs=1)
    return tsne.fit_transform(vectors), ("t-SNE 1", "t-SNE 2")


def name_axes(axes: "Axes", names: tuple[str, str]) -> None:
    """Label the two axes, and hide the tick values, which have no meaning."""
    axes.set(xlabel=names[0], ylabel=names[1])
    axes.tick_params(labelbottom=False, labelleft=False, length=0)


@dataclass(frozen=True, eq=False)
class ProjectedPairs:
    """The projected pairs of a model: name of a group → coordinates (n, 2) of first and of second sentences.

    Args:
        axes: Names of the two dimensions.
    """

    groups: Mapping[str, tuple[np.ndarray, np.ndarray]]
    axes: tuple[str, str]


@style.styled
def draw_pairs(models: Mapping[str, ProjectedPairs]) -> "Figure":
    """Draw one panel per model; a line joins the two sentences of a pair. All models must have the same groups."""
    figure, axes = style.panel_grid(len(models), 2.3)
    handles: dict[str, object] = {}
    for panel, (label, projected) in zip(axes[0], models.items(), strict=True):
        style.title(panel, label, min(len(models), style.PANELS_PER_ROW))
        for i, (name, (first, second)) in enumerate(projected.groups.items()):
            look = style.series_style(LOOKS[i] if i < len(LOOKS) else i)
            ends = np.stack([first, second])  # (2, n, 2)
            lines = panel.plot(
                ends[..., 0], ends[..., 1], markersize=3, linewidth=0.8, markeredgewidth=0, **look.line()
            )
            handles[f"{name} (n = {len(first)})"] = lines[0]
        name_axes(panel, projected.axes)
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def grouped(gold: np.ndarray, scores: Sequence[float] | None = None) -> dict[str, np.ndarray]:
    """Return a mask (N,) of the pairs in each group by the group's name, from low to high gold scores (N,).

    Args:
        scores: Gold scores. The pairs with each score are a group. None: a group of dissimilar and a group of similar
            pairs.

    Raises:
        UserError: If a group is empty.
    """
    from senteval.geometry import POSITIVE_ABOVE

    if scores is None:
        groups = {
            f"gold at most {DISSIMILAR_UP_TO:g}": gold <= DISSIMILAR_UP_TO,
            f"gold above {POSITIVE_ABOVE:g}": gold > POSITIVE_ABOVE,
        }
    else:
        groups = {f"gold {score:g}": gold == score for score in sorted(scores)}
    for name, rows in groups.items():
        if not rows.any():
            raise UserError(f"there is no pair with {name}; choose other --scores, or a different --task or --split")
    return groups


def sample_pairs(groups: Mapping[str, np.ndarray], count: int, seed: int) -> dict[str, np.ndarray]:
    """Return the sorted rows of at most `count` random pairs of each group."""
    random = np.random.default_rng(seed)
    indices = {name: np.flatnonzero(rows) for name, rows in groups.items()}
    return {name: np.sort(random.choice(rows, min(count, len(rows)), replace=False)) for name, rows in indices.items()}


def gather_pairs(args: argparse.Namespace) -> dict[str, ProjectedPairs]:
    """Encode the pairs with each model, sample the same pairs for all models, and project the sample."""
    from senteval.scores import unit_rows

    if args.scores and len(set(args.scores)) < len(args.scores):
        raise UserError(f"--scores {' '.join(f'{score:g}' for score in args.scores)}: give each score once")
    places = inputs.labelled(args.models)
    task, sets = inputs.load_sets(args)
    sample = sample_pairs(grouped(np.concatenate([pairs.gold for pairs in sets]), args.scores), args.count, args.seed)
    for name, rows in sample.items():
        if len(rows) < args.count:
            inputs.notify(f"{name}: {task} {args.split} has only {plural(len(rows), 'such pair')}; all are drawn")
    rows = np.concatenate(list(sample.values()))
    ends = np.cumsum([len(indices) for indices in sample.values()])[:-1]
    projected = {}
    for label, encoded in inputs.encode_by_each(places, args, task, sets):
        both = unit_rows(np.concatenate([encoded.first[rows], encoded.second[rows]]))
        coordinates, names = project(both, args.projection, args.seed)
        first, second = (np.split(half, ends) for half in np.split(coordinates, 2))
        projected[label] = ProjectedPairs(dict(zip(sample, zip(first, second, strict=True), strict=True)), names)
        drawn = ", ".join(f"{len(indices)} with {name}" for name, indices in sample.items())
        inputs.notify(f"{label}: {len(rows)} sampled pairs ({drawn}); {args.projection}")
    return projected


@style.styled
def draw_embeddings(models: Mapping[str, np.ndarray], names: tuple[str, str]) -> "Figure":
    """Draw one panel with the sentences of all models, with equal scales on both axes.

    Args:
        models: Name of a model → coordinates (N, 2) of the sentences. All models must have the same sentences and the
            same projection. Each model has its own colour and marker.
        names: Names of the two dimensions.
    """
    from matplotlib.lines import Line2D

    figure = style.figure(style.COLUMN, 3.3)
    axes = figure.subplots()
    handles = []
    for i, coordinates in enumerate(models.values()):
        look = style.series_style(i)
        # The dots are transparent, since models can lie on top of each other.
        options = {"color": look.color, "marker": look.marker, "s": 5, "linewidths": 0, "alpha": 0.45}
        axes.scatter(*coordinates.T, rasterized=True, **options)
        handles.append(Line2D([], [], linestyle="none", marker=look.marker, color=look.color))
    axes.set_aspect("equal", adjustable="datalim")
    name_axes(axes, names)
    style.legend_below(figure, handles, list(models))
    return figure


def sample_sentences(sets: "Sequence[ScoredPairs]", count: int, seed: int) -> np.ndarray:
    """Return the rows of at most `count` random distinct sentences, in the order of the data.

    Row numbers count the first sentences of all pairs, then the second sentences of all pairs.
    """
    texts = [text for pairs in sets for text in pairs.first] + [text for pairs in sets for text in pairs.second]
    row = {text: i for i, text in reversed(list(enumerate(texts)))}
    rows = np.sort(list(row.values()))
    return np.sort(np.random.default_rng(seed).choice(rows, min(count, len(rows)), replace=False))


def gather_embeddings(args: argparse.Namespace) -> tuple[dict[str, np.ndarray], tuple[str, str]]:
    """Encode the pairs with each model, and project a sample of sentences of all models together.

    Raises UserError if the embeddings of two models differ in size.
    """
    from senteval.scores import unit_rows

    places = inputs.labelled(args.models)
    task, sets = inputs.load_sets(args)
    rows = sample_sentences(sets, args.count, args.seed)
    embeddings: dict[str, np.ndarray] = {}
    for label, encoded in inputs.encode_by_each(places, args, task, sets):
        embeddings[label] = unit_rows(np.concatenate([encoded.first, encoded.second])[rows])
        first = next(iter(embeddings))
        sizes = embeddings[first].shape[1], embeddings[label].shape[1]
        if sizes[0] != sizes[1]:
            raise UserError(
                f"the embeddings of {first} have {sizes[0]} dimensions and those of {label} {sizes[1]}; one plane "
                f"needs embeddings of one size: draw {label} without {first}"
            )
    coordinates, names = project(np.concatenate(list(embeddings.values())), args.projection, args.seed)
    inputs.notify(
        f"{len(rows):,} distinct sentences of {task} {args.split} per model; one {args.projection} projection of all "
        "models"
    )
    return dict(zip(embeddings, np.split(coordinates, len(embeddings)), strict=True)), names


def _add_sample(parser: CommandParser, count: int, sampled: str) -> None:
    """Add the options of a sample and of its projection."""
    help = "Default: %(default)s"
    parser.add_argument("--count", type=Whole(2), default=count, help=f"Number of {sampled} (default: %(default)s).")
    parser.add_argument("--projection", choices=("pca", "tsne"), default="pca", help=help)
    parser.add_argument("--seed", type=SEED, default=0, help=f"Seed of the sample and of t-SNE. {help}")


def _add_pair_options(parser: CommandParser) -> None:
    inputs.add_pairs(parser)
    help = f"Gold scores, each a group of pairs (default: two groups, up to {DISSIMILAR_UP_TO:g} and above 4)."
    parser.add_argument("--scores", nargs="+", type=float, metavar="SCORE", help=help)
    _add_sample(parser, 30, "pairs sampled of each group")


def _add_embedding_options(parser: CommandParser) -> None:
    inputs.add_pairs(parser)
    _add_sample(parser, 1000, "distinct sentences sampled")


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
    """V tokens in a plot, with their frequencies and properties.

    Args:
        label: Name of the encoder.
        matrix: Name of the embedding matrix that contains the tokens.
        places: Coordinates (V, 2).
        rank: Frequency ranks (V,): 1 for the most frequent token, 0 for absent tokens.
        subword, capital: Masks (V,) of the tokens that continue a word, and of those with a capital letter.
        axes: Names of the two dimensions.
    """

    label: str
    matrix: str
    places: np.ndarray
    rank: np.ndarray
    subword: np.ndarray
    capital: np.ndarray
    axes: tuple[str, str]


@style.styled
def draw_tokens(panels: Sequence[Tokens], text: str) -> "Figure":
    """Draw two panels per item of `panels`: the tokens coloured by frequency rank, and by subword and capital.

    Args:
        text: Name of the file in which the tokens were counted.
    """
    from matplotlib.colors import BoundaryNorm
    from matplotlib.lines import Line2D

    figure, axes = style.panel_grid(len(panels), 2.2, rows_each=2)
    columns = min(len(panels), style.PANELS_PER_ROW)
    # Powers of ten, since only few colours can be distinguished among so many dots.
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
    """Return a mask (V,) of the tokens with these values of the properties subword and capital."""
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
    """Return the frequency rank (V,) of every token: 1 for the most frequent token, 0 for absent tokens.

    Tokens with equal counts are ordered by id.

    Args:
        lines: The text in which tokens are counted.
        size: Number of tokens V.
    """
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
    """Return the first `most` lines of a text file that are not blank. Raises UserError if all lines are blank."""
    try:
        with open_input(path) as file:
            texts = (decode_line(path, number, line) for number, line in enumerate(file, start=1))
            lines = list(islice((text for text in texts if text.strip()), most))
    except OSError as error:
        raise UserError(f"--text: cannot read {path}: {error.strerror}") from error
    if not lines:
        raise UserError(f"--text {path}: contains no text; give a file with texts, one per line")
    return lines


def gather_tokens(args: argparse.Namespace) -> list[Tokens]:
    """Count the tokens of a text, and project each encoder's embedding matrices that `args.matrix` names.

    Special tokens are left out.
    """
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
        inputs.notify(f"{label}: {occurring:,} different tokens occur in {len(lines):,} lines of {text}")
        panels += model_panels
    return panels


def token_panels(label: str, model: "SentenceEncoder", matrices: Sequence[str], lines: Sequence[str]) -> list[Tokens]:
    """Project the rows of embedding matrices to a plane, without special tokens, and count the tokens in `lines`.

    If both matrices of an encoder are equal, as with tied weights, the result has one item for both.

    Args:
        matrices: "input" (the input embeddings) or "mlm_head", or both.
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
    """Check all encoders before the first one is loaded. Return the options of loading by path or hub id."""
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
    """Return the chosen matrices (V, H) of an encoder by their names in titles. Equal matrices share one name."""
    from dcpcse.evaluation.evaluator import token_embeddings

    matrices = {"input": token_embeddings(model)}
    if "mlm_head" in chosen:
        matrices["mlm_head"] = model.encoder.weight.float().cpu().numpy()
    named = {MATRICES[name]: matrices[name] for name in MATRICES if name in chosen}
    if len(named) > 1 and np.array_equal(*named.values()):
        return {" = ".join(named): matrices["input"]}
    return named


def _add_token_options(parser: CommandParser) -> None:
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


KINDS = {
    "pairs": style.PlotKind(
        "Labelled pairs, projected to two dimensions.",
        _add_pair_options,
        lambda args: draw_pairs(gather_pairs(args)),
        of_encoders=True,
    ),
    "embeddings": style.PlotKind(
        "Sentence embeddings of several models in one plane.",
        _add_embedding_options,
        lambda args: draw_embeddings(*gather_embeddings(args)),
        of_encoders=True,
    ),
    "tokens": style.PlotKind(
        "Token embeddings by frequency, subword, case.",
        _add_token_options,
        lambda args: draw_tokens(gather_tokens(args), Path(args.text).name),
    ),
}
