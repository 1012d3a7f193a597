"""`dcpcse search similarity MODEL SENTENCE SENTENCE …`: print cosines of sentences, or of pairs in a file."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcpcse.data.text_file import TextFile
from dcpcse.encoders.encode_options import CosineOptions
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.command_parser import Parser, as_text
from dcpcse.utils.console import print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import option
from dcpcse.utils.text_lines import line_error

if TYPE_CHECKING:
    import numpy as np

PAIRS = 4_096
"""Number of pairs that are encoded at once."""

ScoredPair = tuple[str, str, float]


@dataclass
class SimilarityArguments(CosineOptions):
    """Options of `dcpcse search similarity`."""

    _argument_group_name = "similarity"

    pairs: str | None = option(None, "Text file, UTF-8, two sentences per line, separated by a tab.")
    json: bool = option(False, "Print a line of JSON for each pair.")


def similarity_command(argv: Sequence[str]) -> None:
    """Run `dcpcse search similarity`. Raises UserError for wrong input."""
    encoder, args, places = similarity_parser().parse(argv, "sentence")
    if len(places.sentence) == 1 or bool(places.sentence) == bool(args.pairs):
        raise UserError("give at least two sentences (the first is compared with the others), or --pairs FILE")
    if not all(sentence.strip() for sentence in places.sentence):
        raise UserError("a sentence is empty; give at least one word")
    # Imported after the options are checked, because this takes seconds.
    from dcpcse.inference.loading import load_model

    file = TextFile.read(args.pairs, PAIRS, tabs=True) if args.pairs else None
    for _ in _pairs(file) if file else ():  # checks the lines before the encoder is loaded
        pass
    model = load_model(places.model, encoder)
    pairs = [(places.sentence[0], other) for other in places.sentence[1:]]
    chunks = [pairs] if file is None else _pairs(file)
    for first, second, score in _scored(args.encode_with(model), chunks):
        line = {"sentences": [first, second], "score": score}
        print_result(json.dumps(line, ensure_ascii=False) if args.json else f"{score:7.4f}  {first} | {second}")


def _pairs(file: "TextFile") -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs of each chunk of lines. Raises UserError if a line does not contain two sentences."""
    for number, texts in enumerate(file.read_chunks()):
        pairs = []
        for line, text in enumerate(texts, file.first_line(number)):
            parts = text.split("\t")
            if len(parts) != 2 or not all(part.strip() for part in parts):
                raise line_error(file.path, line, "expected two sentences separated by one tab")
            pairs.append((parts[0], parts[1]))
        yield pairs


def _scored(
    encode: "Callable[[list[str]], np.ndarray]", chunks: Iterable[list[tuple[str, str]]]
) -> Iterator[ScoredPair]:
    from dcpcse.inference.similarity import normalize_rows, pairwise_cosines

    for pairs in chunks:
        sentences = list(dict.fromkeys(sentence for pair in pairs for sentence in pair))
        row = {sentence: number for number, sentence in enumerate(sentences)}
        vectors = normalize_rows(encode(sentences))
        first, second = ([row[pair[side]] for pair in pairs] for side in (0, 1))
        for pair, score in zip(pairs, pairwise_cosines(vectors[first], vectors[second]).tolist(), strict=True):
            yield *pair, score


def similarity_parser() -> Parser:
    """Return the parser of `dcpcse search similarity`."""
    parser = Parser(
        (EncoderArguments, SimilarityArguments),
        prog="dcpcse search similarity",
        description="Print the cosine of the first sentence to each of the others, or of the pairs in a file.",
    )
    parser.add_model()
    parser.add_argument("sentence", nargs="*", type=as_text, default=[], metavar="SENTENCE")
    return parser
