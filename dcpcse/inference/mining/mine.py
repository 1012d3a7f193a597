"""Mine hard negatives from a corpus, and write them with their pairs to a training file."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, compress, islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from senteval.lines import single_blanks
from tqdm.auto import tqdm

from dcpcse.data.readers import write_table
from dcpcse.data.training_data import TrainingData, load_training_data
from dcpcse.encoders.encode_options import CosineOptions
from dcpcse.inference.index.index_folder import is_index_folder
from dcpcse.inference.index.sentence_index import Hit, SentenceIndex
from dcpcse.inference.mining.arguments import LISTS, MiningArguments
from dcpcse.inference.mining.pairs import AnchorChunk, DistinctTexts, Pairs, pairs_in
from dcpcse.inference.mining.result import MiningResult, Negatives, OutputRows
from dcpcse.inference.mining.similarities import Encoding, Similarities, StoredVectors
from dcpcse.utils.arguments import location
from dcpcse.utils.console import notify
from dcpcse.utils.errors import OptionError, UserError, plural, spell
from dcpcse.utils.files import require_output, staging_folder

ANCHORS = 256
"""Number of anchors whose candidates are in memory at once."""

SPARE = 16
"""Number of additional texts that are searched, because the anchor, its positives and duplicates are left out."""

SEED = 42
"""The default seed of random sampling."""


def open_corpus(corpus: Any, cache_dir: str | Path | None, name: str) -> TrainingData | Path | None:
    """Return the texts of a file or a Python object, or the folder of an index. For None, return None.

    Args:
        corpus: The file, object or folder.
        cache_dir: Folder in which the texts that were read are cached.
        name: Name of the corpus in messages.

    Raises:
        UserError: If the texts cannot be read, or if a folder contains no index.
    """
    if corpus is None:
        return None
    corpus = location(name, corpus) if isinstance(corpus, str | PathLike) else corpus
    if isinstance(corpus, str) and os.path.isdir(corpus):
        if not is_index_folder(corpus):
            raise UserError(
                f"{spell(name, corpus)} is a folder without an index; give a file, or an index of dcpcse search"
            )
        return Path(corpus)
    return load_training_data(corpus, cache_dir, name=name)


def mine_negatives(
    args: MiningArguments,
    pairs: TrainingData,
    corpus: TrainingData | Path | None,
    load_model: Callable[[], Any],
    load_guide: Callable[[], Any] | None = None,
) -> MiningResult:
    """Mine negatives for pairs, and write them to `args.output`.

    Args:
        args: Options of the mining.
        pairs: Anchors and positives.
        corpus: Texts, the folder of an index, or None for the positives. With an index, its options of encoding apply
            to all texts.
        load_model: A function that returns an object with `encode(sentences, batch_size=...)`. It is called after all
            other input was checked.
        load_guide: A function that returns the guide, as `load_model` returns the model. None without a guide.

    Raises:
        UserError: If the columns of the pairs are not anchor and positive, if the index belongs to another model, if
            the output exists, is also an input or cannot be written, or if no pair has enough negatives.
    """
    output = Path(args.output)
    require_output(output, "output", args.overwrite)
    for source in (pairs, corpus):
        is_file = isinstance(source, TrainingData) and output.exists() and os.path.exists(source.name)
        if is_file and output.samefile(source.name):
            raise UserError(f"{spell('output', output)} is an input and would be overwritten; give another file")
    numbered = Pairs.of(pairs)
    model = load_model()
    guide_encode = load_guide and Encoding(load_guide(), CosineOptions(batch_size=args.batch_size))
    with staging_folder(output) as part:
        index = _open_index(args, corpus, numbered, model, part / "corpus")
        how = {"batch_size": args.batch_size, "show_progress": False}
        encode = Encoding(model, replace(index.options, **how))
        encode_anchors = Encoding(model, replace(index.query_options, **how))
        encoders = encode_anchors, encode, guide_encode
        miner = _Miner(args, numbered, index, *encoders, part, is_corpus_of_positives=corpus is None)
        with tqdm(total=len(numbered.anchors), desc="mine", mininterval=1, disable=not args.show_progress) as bar:
            negatives = miner.mine(bar.update)
        rows = _rows_of_output(args, numbered, negatives)
        require_output(output, "output", args.overwrite)  # it may have been written in the meantime
        texts = _lists if args.output_format == LISTS else _texts
        write_table(output, args.output_columns, texts(numbered, rows, negatives, index))
    result = MiningResult.of(args, numbered, negatives, rows, index.described)
    for line in result.lines:
        notify(line)
    return result


def _open_index(
    args: MiningArguments, corpus: TrainingData | Path | None, pairs: Pairs, model: Any, folder: Path
) -> SentenceIndex:
    """Load the index of a corpus, or build it in a folder. Without a corpus, row i is positive i.

    Raises UserError for an index whose texts were encoded with other options.
    """
    if isinstance(corpus, Path):
        index = SentenceIndex.load(corpus, model, args.backend)
        for name, value, _ in args.with_prompt(model).differing(index.options):
            raise OptionError(name, value, f"the index {corpus} was built with other options", "leave it out")
        return index
    texts = pairs.positives
    if corpus is not None:
        sentences = len(corpus.roles.sentences)
        cells = chain.from_iterable(row[:sentences] for row in corpus.rows())
        texts = DistinctTexts(text for text in cells if text is not None).texts
    return SentenceIndex.build(model, texts, folder, backend=args.backend, **args.given())


class _Miner:
    """The data from which `mine_negatives` chooses the negatives of each anchor."""

    def __init__(
        self,
        args: MiningArguments,
        pairs: Pairs,
        index: SentenceIndex,
        encode_anchors: Encoding,
        encode: Encoding,
        guide_encode: Encoding | None,
        folder: Path,
        *,
        is_corpus_of_positives: bool,
    ) -> None:
        def stored(encode: Encoding, name: str, of_corpus: bool) -> StoredVectors:
            text = index.sentence if of_corpus else pairs.positives.__getitem__
            return StoredVectors(encode, text, len(index) if of_corpus else len(pairs.positives), folder / name)

        self.args, self.pairs, self.index = args, pairs, index
        positives = index.vectors if is_corpus_of_positives else stored(encode, "positives", of_corpus=False)
        self.similarities = Similarities(encode_anchors, positives, index.vectors)
        self.guide: Similarities | None = None
        if guide_encode:
            by_guide = stored(guide_encode, "guide_corpus", of_corpus=True)
            positives = (
                by_guide if is_corpus_of_positives else stored(guide_encode, "guide_positives", of_corpus=False)
            )
            self.guide = Similarities(guide_encode, positives, by_guide)

    def mine(self, advance: Callable[[int], Any]) -> Negatives:
        """Choose the negatives of all anchors.

        Args:
            advance: A function that is called with the number of finished anchors.
        """
        shape = (len(self.pairs.anchors), self.args.num_negatives)
        rows, similarities = np.full(shape, -1), np.full(shape, np.nan)
        of_pairs, candidates, remaining = np.empty(len(self.pairs.anchor_of)), 0, 0
        for chunk in self.pairs.chunks(ANCHORS):
            vectors = self.similarities.encode(chunk.texts)
            of_pairs[chunk.rows] = self.similarities.of_pairs(chunk, vectors)
            limits = self._limits(chunk.lowest(of_pairs[chunk.rows]))
            hits = self._candidates(vectors, limits, chunk.excluded())
            candidates += sum(map(len, hits))
            if self.guide:
                hits = self._without_false_negatives(self.guide, chunk, hits)
            remaining += sum(map(len, hits))
            for anchor, anchor_hits in zip(chunk.numbers, hits, strict=True):
                chosen = self._sample(anchor, anchor_hits)
                rows[anchor, : len(chosen)] = [hit.row for hit in chosen]
                similarities[anchor, : len(chosen)] = [hit.score for hit in chosen]
            advance(len(chunk.numbers))
        return Negatives(rows, similarities, of_pairs, candidates, candidates - remaining)

    def _limits(self, positives: np.ndarray) -> np.ndarray | None:
        """Return the largest cosine that a negative of each anchor may have, or None without limits.

        Args:
            positives: The smallest cosine of each anchor with its positives.
        """
        args, limits = self.args, []
        if args.max_similarity is not None:
            limits.append(np.full(len(positives), args.max_similarity))
        if args.absolute_margin is not None:
            limits.append(positives - args.absolute_margin)
        if args.relative_margin is not None:
            limits.append(positives - np.abs(positives) * args.relative_margin)
        return np.min(limits, axis=0) if limits else None

    def _candidates(
        self, vectors: np.ndarray, limits: np.ndarray | None, excluded: Sequence[set[str]]
    ) -> list[list[Hit]]:
        """Return the texts in the range of ranks of each anchor, best first.

        Ranks count different texts that are within the limits and not excluded.

        Args:
            vectors: The vectors (n, H) of the anchors.
        """
        candidates: list[list[Hit]] = [[]] * len(vectors)
        left, top_k = np.arange(len(vectors)), self.args.range_max + SPARE
        while len(left):
            own_limits = None if limits is None else limits[left]
            hits, again = self.index.search_vectors(vectors[left], top_k, limits=own_limits), []
            for anchor, anchor_hits in zip(left.tolist(), hits, strict=True):
                ranked = list(islice(_distinct(anchor_hits, excluded[anchor]), self.args.range_max))
                candidates[anchor] = ranked[self.args.range_min :]
                if len(ranked) < self.args.range_max and len(anchor_hits) == top_k:
                    again.append(anchor)
            left, top_k = np.array(again, np.int64), 2 * top_k
        return candidates

    def _without_false_negatives(
        self, guide: Similarities, chunk: AnchorChunk, candidates: Sequence[Sequence[Hit]]
    ) -> list[list[Hit]]:
        """Return the candidates whose cosine by the guide is within the limit that `guide_margin` sets."""
        vectors = guide.encode(chunk.texts)
        limits = chunk.lowest(guide.of_pairs(chunk, vectors)) - self.args.guide_margin
        cosines = guide.of_candidates(vectors, [[hit.row for hit in hits] for hits in candidates])
        masks = [of_anchor <= limit for of_anchor, limit in zip(cosines, limits, strict=True)]
        return [list(compress(hits, keep)) for hits, keep in zip(candidates, masks, strict=True)]

    def _sample(self, anchor: int, candidates: Sequence[Hit]) -> Sequence[Hit]:
        count = self.args.num_negatives
        if self.args.sampling == "top" or len(candidates) <= count:
            return candidates[:count]
        # A generator for each anchor, so that the choice does not depend on other anchors.
        random = np.random.default_rng([SEED if self.args.seed is None else self.args.seed, anchor])
        return [candidates[i] for i in np.sort(random.choice(len(candidates), count, replace=False))]


def _distinct(hits: Sequence[Hit], excluded: set[str]) -> Iterator[Hit]:
    """Yield the first hit of each text that is not excluded. Texts that differ only in white space are equal."""
    seen = set(excluded)
    for hit in hits:
        text = single_blanks(hit.sentence)
        if text not in seen:
            seen.add(text)
            yield hit


def _rows_of_output(args: MiningArguments, pairs: Pairs, negatives: Negatives) -> OutputRows:
    """Choose the rows of the output. Raises UserError if there are no rows."""
    counts, places = negatives.counts[pairs.anchor_of], np.arange(args.num_negatives)
    if args.output_format != "n-tuple":
        of_row, column = np.nonzero(places < counts[:, None])
        rows = OutputRows(of_row, column[:, None], len(pairs.anchors) if args.output_format == LISTS else len(of_row))
    else:
        complete = np.flatnonzero(counts == args.num_negatives)
        rows = OutputRows(complete, np.tile(places, (len(complete), 1)), len(complete))
    if not len(rows.pairs):
        needed = plural(rows.places.shape[1], "negative")
        raise UserError(
            f"no pair of {pairs.data.name} has {needed} in the corpus with these options; give a larger corpus, "
            f"fewer {spell('num_negatives')}, smaller margins or a larger {spell('max_similarity')}"
        )
    return rows


def _texts(pairs: Pairs, rows: OutputRows, negatives: Negatives, index: SentenceIndex) -> Iterator[list[str]]:
    """Yield the texts of the rows of the output."""
    left = zip(rows.pairs.tolist(), rows.places, strict=True)
    pair, places = next(left)
    for number, texts in enumerate(pairs_in(pairs.data)):
        while pair == number:
            indices = negatives.rows[pairs.anchor_of[number], places]
            yield [*texts, *map(index.sentence, indices.tolist())]
            pair, places = next(left, (-1, places))


def _lists(pairs: Pairs, rows: OutputRows, negatives: Negatives, index: SentenceIndex) -> Iterator[list[Any]]:
    """Yield each anchor with the lists of its positives and of its negatives."""
    for number, anchor in enumerate(pairs.anchors):
        chosen = negatives.rows[number][: negatives.counts[number]].tolist()
        yield [anchor, pairs.positives_of(number), [*map(index.sentence, chosen)]]
