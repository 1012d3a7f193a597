"""`dcpcse search MODEL QUERY … --sentences FILE`: print the sentences of a file or an index nearest to a query."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.data.text_file import TextFile
from dcpcse.encoders.encode_options import CosineOptions
from dcpcse.encoders.quantization import CODE_TYPES, PRECISION_HELP
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.index.backends import BACKENDS, RESCORE_MULTIPLIER
from dcpcse.utils.command_parser import Parser, as_text
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import option

if TYPE_CHECKING:
    from dcpcse.encoders.sentence_encoder import SentenceEncoder
    from dcpcse.inference.index.sentence_index import Hit, SentenceIndex

QUERY_CHUNK = 1_024
"""Number of queries that are encoded and searched at once."""


@dataclass
class SearchEncoderArguments(EncoderArguments):
    """Options for loading the encoder, without `--top_k`, which is an option of the search in this command."""

    _argument_group_name = "encoder"

    top_k: int = field(default=EncoderArguments.top_k, init=False)


@dataclass
class SearchArguments(CosineOptions):
    """The options of the search. By default, options of encoding are as recorded in a saved index."""

    _argument_group_name = "search"

    sentences: str | None = option(None, "Text file to search, UTF-8, one sentence per line.")
    vectors: str | None = option(None, "The .npy file that `dcpcse encode` wrote for --sentences with this model.")
    index: str | None = option(
        None, "Index folder with the vectors of --sentences: written by the first call, used by later calls."
    )
    overwrite: bool = option(False, "Build the index again if --index already contains one.")
    queries: str | None = option(None, "Text file of more queries, one per line.")
    top_k: int = option(5, "Maximum number of sentences for each query.", at_least=1)
    threshold: float | None = option(
        None, "Print only sentences with at least this cosine (default: no limit).", at_least=-1, at_most=1
    )
    backend: str = option(
        "auto",
        "numpy, faiss: exact, with the same result; auto: the faster one of these, or ivf for an index that was built "
        "with it; ivf: search only a few of the cells of faiss, which is faster and may miss sentences.",
        choices=list(BACKENDS),
    )
    num_cells: int | None = option(None, "With ivf: number of cells of a new index (default: 100).", at_least=1)
    num_cells_in_search: int | None = option(
        None, "With ivf: cells searched for a query (default: 10, or as saved).", at_least=1
    )
    precision: str | None = option(
        None, f"{PRECISION_HELP} (default: float32, or as saved).", choices=list(CODE_TYPES)
    )
    rescore_multiplier: int = option(
        RESCORE_MULTIPLIER,
        "With another precision than float32: number of sentences for each result that are ranked by their cosines "
        "to the query; 0 reduces the query to the precision too.",
        at_least=0,
    )
    json: bool = option(False, "Print a line of JSON for each query.")

    def check(self) -> None:
        """Raise UserError if an option needs another option that is missing."""
        if not (self.sentences or self.index):
            raise UserError("--sentences FILE is missing; give it, or --index FOLDER of an earlier search")
        if self.vectors and not self.sentences:
            raise UserError(f"--vectors {self.vectors} needs the sentences of the vectors; add --sentences FILE")
        if self.overwrite and not (self.index and self.sentences):
            raise UserError("--overwrite builds the index again; give --index and --sentences with it")
        for name in ("num_cells", "num_cells_in_search"):
            if getattr(self, name) is not None and self.backend != "ivf" and not self.index:
                raise UserError(f"--{name} needs --backend ivf; add it, or leave --{name} out")


def search_command(argv: Sequence[str]) -> None:
    """Run `dcpcse search`. Raises UserError for wrong input."""
    encoder, args, places = search_parser().parse(argv, "query")
    if not (places.query or args.queries or (args.index and args.sentences)):
        raise UserError("there is no query; give one, or --queries FILE")
    if not all(query.strip() for query in places.query):
        raise UserError("a query is empty; give a sentence")
    # Imported after the options are checked, because this takes seconds.
    from tqdm.contrib.logging import logging_redirect_tqdm

    from dcpcse.inference.index.sentence_index import require_backend
    from dcpcse.inference.loading import load_model

    require_backend(args.backend)
    _require_files(args)
    file = TextFile.read(args.queries, QUERY_CHUNK) if args.queries else None
    model = load_model(places.model, encoder)
    with logging_redirect_tqdm():
        index = _index(model, args)
    index.rescore_multiplier = args.rescore_multiplier
    notify(index.described)
    chunks = [places.query] if places.query else []
    for queries in chain(chunks, file.read_chunks() if file else ()):
        results = index.search(queries, args.top_k, args.threshold, batch_size=args.batch_size)
        for query, hits in zip(queries, results, strict=True):
            print_result(_as_json(query, hits) if args.json else _as_text(query, hits, args.threshold))


def _require_files(args: SearchArguments) -> None:
    """Raise UserError if a file cannot be read or the index does not exist. Called before the encoder is loaded."""
    from dcpcse.inference.index.index_folder import is_index_folder

    if args.vectors and not Path(args.vectors).is_file():
        raise UserError(f"--vectors {args.vectors} does not exist; write it with dcpcse encode first")
    if args.sentences:
        TextFile.read(args.sentences, QUERY_CHUNK)
    elif not is_index_folder(args.index):
        remedy = "give the folder of an index" if Path(args.index).exists() else "add --sentences FILE to build it"
        raise UserError(f"--index {args.index} contains no index; {remedy}")


def _index(model: "SentenceEncoder", args: SearchArguments) -> "SentenceIndex":
    """Load the saved index, or build a new one."""
    from dcpcse.inference.index.index_folder import is_index_folder
    from dcpcse.inference.index.sentence_index import SentenceIndex

    if args.index and is_index_folder(args.index) and not args.overwrite:
        return _with_options(SentenceIndex.load(args.index, model, args.backend), args)
    cells = {name: getattr(args, name) for name in ("num_cells", "num_cells_in_search")}
    cells = {name: value for name, value in cells.items() if value is not None}
    if cells and args.backend != "ivf":
        name = next(iter(cells))
        raise UserError(f"--{name} needs --backend ivf; add it, or leave --{name} out")
    return SentenceIndex.build(
        model,
        args.sentences,
        args.index,
        vectors=args.vectors,
        backend=args.backend,
        overwrite=args.overwrite,
        precision=args.precision or "float32",
        **cells,
        **{**args.given(), "show_progress": True},
    )


def _with_options(index: "SentenceIndex", args: SearchArguments) -> "SentenceIndex":
    """Apply the options to a saved index. Raises UserError if the index has other texts, encoding options or cells."""
    remedy = "leave the option out, give another folder, or add --overwrite"
    if args.sentences and TextFile.read(args.sentences, QUERY_CHUNK).sha256 != index.text:
        raise UserError(f"--index {args.index} was not built from the current {args.sentences}; {remedy}")
    for name, value, recorded in args.with_prompt(index.model).differing(index.options):
        has = "without it" if recorded is None else f"with {recorded}"
        raise UserError(f"--{name} {value}: the index in {args.index} was built {has}; {remedy}")
    if args.precision not in (None, index.quantizer.precision):
        has = f"the index in {args.index} has {index.quantizer.precision}"
        raise UserError(f"--precision {args.precision}: {has}; {remedy}")
    if args.num_cells not in (None, index.num_cells):
        has = f"the index in {args.index} has {index.num_cells or 'none'}"
        raise UserError(f"--num_cells {args.num_cells}: {has}; {remedy}")
    if args.num_cells_in_search is not None:
        index.num_cells_in_search = args.num_cells_in_search
    return index


def _as_json(query: str, hits: "Sequence[Hit]") -> str:
    content: dict[str, Any] = {"query": query, "found": [hit._asdict() for hit in hits]}
    return json.dumps(content, ensure_ascii=False)


def _as_text(query: str, hits: "Sequence[Hit]", threshold: float | None) -> str:
    lines = [f"  {hit.score:7.4f}  {hit.sentence}" for hit in hits]
    return "\n".join([query, *(lines or [f"  no sentence with a cosine of at least {threshold}"])])


def search_parser() -> Parser:
    """Return the parser of `dcpcse search`."""
    parser = Parser(
        (SearchEncoderArguments, SearchArguments),
        prog="dcpcse search",
        description="Find the most similar sentences in a text file or a saved index.",
    )
    parser.add_model()
    parser.add_argument("query", nargs="*", type=as_text, default=[], metavar="QUERY", help="Sentence to search for.")
    return parser
