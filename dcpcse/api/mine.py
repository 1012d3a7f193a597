"""`dcpcse.mine`, which finds hard negatives for pairs in a corpus."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from dcpcse.api.evaluate import AnyEncoder
from dcpcse.encoders.encode_options import EncodeKeywords
from dcpcse.inference.mining.arguments import MiningArguments
from dcpcse.utils.arguments import known_arguments, location, path
from dcpcse.utils.errors import parameter_names

if TYPE_CHECKING:
    from dcpcse.inference.mining.result import MiningResult


@known_arguments
@parameter_names(model_name_or_path="model", train_file="pairs")
def mine(
    model: AnyEncoder,
    pairs: Any,
    *,
    output: str | Path,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    corpus: Any = None,
    num_negatives: int = 1,
    output_format: str | None = None,
    range_min: int = 0,
    range_max: int = 100,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    max_similarity: float | None = None,
    guide: AnyEncoder | None = None,
    guide_margin: float = 0.0,
    sampling: str = "top",
    seed: int | None = None,
    backend: str = "auto",
    cache_dir: str | Path | None = None,
    overwrite: bool = False,
    **options: Unpack[EncodeKeywords],
) -> "MiningResult":
    """Mine hard negatives for pairs from a corpus, and write them to a training file, as `dcpcse mine` does.

    A candidate is a text of the corpus that differs from the anchor and from all positives of equal anchors. Texts
    that differ only in white space are equal. Candidates that are too similar to the anchor, according to the limits
    below, are skipped. The other candidates are ranked by their similarity (cosine) to the anchor, and the negatives
    are chosen from a range of ranks. Equal anchors get the same negatives.

    Args:
        model: A model of `dcpcse.load`, or any other model that `dcpcse.evaluate` accepts.
        pairs: A training file, or an object with the same rows. The columns are anchor and positive, which may be a
            list of positives.
        output: A .csv, .tsv or .jsonl file, which is written atomically at the end.
        columns: A dict from roles to the names of columns of `pairs`, such as {"anchor": "question", "positive":
            "answer"}. None: all columns.
        corpus: A file, a list or another object that contains texts, or the folder of an index of the same model. The
            texts of all columns are used. None: the positives in `pairs`.
        num_negatives: Number of negatives per pair.
        output_format: "n-tuple" writes a row for each pair that has enough negatives. The columns are anchor, positive
            and negative, or negative_1, negative_2, ... for several negatives. "triplet" writes a row for each
            negative. "lists", for a .jsonl file, writes a row for each anchor: query, pos (a list of its positives)
            and neg (a list of up to num_negatives negatives). None: "lists" for a .jsonl file, otherwise "n-tuple".
        range_min: First rank of the range. Ranks are counted from 0.
        range_max: Last rank of the range plus 1.
        absolute_margin: The cosine of a negative to the anchor is at most p - absolute_margin, where p is the smallest
            cosine of a positive to the anchor.
        relative_margin: The cosine of a negative to the anchor is at most p - relative_margin * abs(p), with the same
            p.
        max_similarity: The cosine of a negative to the anchor is at most max_similarity.
        guide: A second encoder, in the same forms as `model`. A candidate is skipped if its cosine by the guide is
            above p - guide_margin, with p computed by the guide too. If `guide` is the name of an encoder without
            recorded pooling, mean pooling is used. (For `model`, give such an encoder as `dcpcse.load(name,
            pooler="avg")`.)
        guide_margin: The margin in the condition of `guide`.
        sampling: "top" chooses the first candidates of the range, "random" chooses candidates of the range at random.
        seed: Seed of random sampling. None: 42.
        backend: As in `SentenceIndex`. All backends except "ivf" are exact.
        cache_dir: Folder for downloads and for a cache of the rows of `pairs` and `corpus`.
        overwrite: Whether to replace `output` if it exists.
        options: The options of `SentenceEncoder.encode` except normalize, which has no effect on cosines.
            show_progress is True by default. If `corpus` is an index, the options recorded in the index are used. Only
            the option batch_size also applies to the guide.

    Returns:
        The number of written rows, the numbers of pairs and candidates that were left out, and statistics of the
        similarities.

    Raises:
        UserError: If an argument or the data are not valid, or if no pair has enough negatives.
    """
    # Imported here, because this takes seconds.
    from dcpcse.data.column_choice import chosen_columns
    from dcpcse.data.training_data import load_training_data
    from dcpcse.inference.index.sentence_index import require_backend
    from dcpcse.inference.mining.mine import mine_negatives, open_corpus
    from dcpcse.utils.files import require_output

    args = MiningArguments(
        output=os.fspath(path("output", output)),
        num_negatives=num_negatives,
        output_format=output_format,
        range_min=range_min,
        range_max=range_max,
        absolute_margin=absolute_margin,
        relative_margin=relative_margin,
        max_similarity=max_similarity,
        guide=None if guide is None else "the given encoder",
        guide_margin=guide_margin,
        sampling=sampling,
        seed=seed,
        backend=backend,
        overwrite=overwrite,
        **{"show_progress": True, **options},
    )
    require_output(Path(args.output), "output", args.overwrite)
    require_backend(args.backend)
    cache = None if cache_dir is None else str(path("cache_dir", cache_dir))
    return mine_negatives(
        args,
        load_training_data(pairs, cache, name="pairs", columns=chosen_columns(columns)),
        open_corpus(corpus, cache, "corpus"),
        partial(_encoder, model, cache),
        None if guide is None else partial(_guide, guide, cache),
    )


def _encoder(model: AnyEncoder, cache_dir: str | None) -> Any:
    from dcpcse.api.load import load
    from dcpcse.evaluation.foreign_encoder import as_encoder

    return load(model, cache_dir=cache_dir) if isinstance(model, str | os.PathLike) else as_encoder(model)


def _guide(guide: AnyEncoder, cache_dir: str | None) -> Any:
    """Return the guide. For the name of an encoder without recorded pooling, mean pooling is used."""
    from dcpcse.inference.arguments import EncoderArguments
    from dcpcse.inference.loading import load_guide

    if not isinstance(guide, str | os.PathLike):
        return _encoder(guide, cache_dir)
    return load_guide(location("guide", guide), EncoderArguments(cache_dir=cache_dir))
