"""`dcpcse.mine`: add hard negatives from a corpus to pairs."""

import os
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
    corpus: Any = None,
    num_negatives: int = 1,
    output_format: str = "n-tuple",
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
    that differ only in white space are equal. Candidates that are too similar to the anchor by a limit are skipped;
    the others are ranked by their similarity (cosine) to the anchor, and the negatives are chosen from a range of
    ranks. Equal anchors get the same negatives.

    Args:
        model: A model of `dcpcse.load`, a name that it loads, or anything else that `dcpcse.evaluate` takes.
        pairs: A training file or an object with its rows, with the columns anchor and positive.
        output: A .csv or .tsv file; it is written at the end, atomically.
        corpus: A file, a list or another object of texts (the texts of all columns count), or the folder of an index
            of the same model. None: the positives.
        num_negatives: Number of negatives per pair.
        output_format: "n-tuple" writes a row for each pair with enough negatives, in the columns anchor, positive and
            negative, or negative_1, negative_2, ...; "triplet" writes a row for each negative.
        range_min: First rank of the range; ranks are counted from 0.
        range_max: Last rank of the range plus 1.
        absolute_margin: The cosine of a negative is at most p - absolute_margin, where p is the cosine of the anchor's
            least similar positive.
        relative_margin: The cosine of a negative is at most p - relative_margin * abs(p), with the same p.
        max_similarity: Largest cosine of a negative to the anchor.
        guide: A second encoder, given as `model` is; candidates are left out if it finds them more similar to the
            anchor than the least similar positive, less `guide_margin`. The name of an encoder without recorded
            pooling stands for the mean over its tokens; as `model`, such an encoder is given as `dcpcse.load(name,
            pooler="avg")`.
        guide_margin: Minimum difference between the guide's cosines of the positive and of a negative.
        sampling: "top", the first candidates in range, or "random", any of them.
        seed: Seed of random sampling. None: 42.
        backend: As in `SentenceIndex`; all but "ivf" are exact.
        cache_dir: Folder for downloads and for the rows that were read.
        overwrite: Replace `output` if it exists.
        options: The options of `SentenceEncoder.encode` except normalize, which has no effect on cosines;
            show_progress is True by default. With an index as corpus, the recorded options of the index are used. Of
            the options, only batch_size applies to the guide.

    Returns:
        The number of rows, the numbers of what was left out, and statistics of the similarities.

    Raises:
        UserError: If an argument or the data are not valid, or if no pair has enough negatives.
    """
    # Imported here, because this takes seconds.
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
        load_training_data(pairs, cache, name="pairs"),
        open_corpus(corpus, cache, "corpus"),
        partial(_encoder, model, cache),
        None if guide is None else partial(_guide, guide, cache),
    )


def _encoder(model: AnyEncoder, cache_dir: str | None) -> Any:
    from dcpcse.api.load import load
    from dcpcse.evaluation.foreign_encoder import as_encoder

    return load(model, cache_dir=cache_dir) if isinstance(model, str | os.PathLike) else as_encoder(model)


def _guide(guide: AnyEncoder, cache_dir: str | None) -> Any:
    """Return a guide; the name of a plain encoder stands for the mean over its tokens, as for `--guide`."""
    from dcpcse.inference.arguments import EncoderArguments
    from dcpcse.inference.loading import load_guide

    if not isinstance(guide, str | os.PathLike):
        return _encoder(guide, cache_dir)
    return load_guide(location("guide", guide), EncoderArguments(cache_dir=cache_dir))
