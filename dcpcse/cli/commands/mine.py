"""`dcpcse mine MODEL PAIRS --output OUT.csv`: add hard negatives from a corpus to pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.mining.arguments import MiningArguments
from dcpcse.utils.command_parser import Parser
from dcpcse.utils.console import print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_output

if TYPE_CHECKING:
    from dcpcse.encoders.sentence_encoder import SentenceEncoder


def mine_command(argv: Sequence[str]) -> None:
    """Run `dcpcse mine`. Raises UserError for wrong input."""
    encoder, args, places = mine_parser().parse(argv)
    require_output(Path(args.output), "output", args.overwrite)
    # Imported after the options are checked, because this takes seconds.
    from tqdm.contrib.logging import logging_redirect_tqdm

    from dcpcse.data.column_choice import chosen_columns
    from dcpcse.data.training_data import load_training_file
    from dcpcse.inference.index.sentence_index import require_backend
    from dcpcse.inference.loading import load_guide, load_model
    from dcpcse.inference.mining.mine import mine_negatives, open_corpus

    require_backend(args.backend)
    cache = Path(encoder.cache_dir) / "dcpcse" if encoder.cache_dir else None
    args.show_progress = True  # in Python, the caller chooses
    general = ("packing", "attention", "device", "cache_dir", "use_auth_token")
    of_guide = EncoderArguments(**{name: getattr(encoder, name) for name in general}, pooler_type=args.guide_pooler)

    def guide() -> "SentenceEncoder":
        try:
            return load_guide(args.guide, of_guide)
        except UserError as error:  # the error names the option of the first encoder
            raise UserError(str(error).replace("--pooler ", "--guide_pooler ")) from error

    with logging_redirect_tqdm():
        result = mine_negatives(
            args,
            load_training_file(places.pairs, cache, columns=chosen_columns(args.columns)),
            open_corpus(args.corpus, cache, "corpus"),
            lambda: load_model(places.model, encoder),
            None if args.guide is None else guide,
        )
    print_result(str(result))


def mine_parser() -> Parser:
    """Return the parser of `dcpcse mine`."""
    parser = Parser(
        (EncoderArguments, MiningArguments),
        prog="dcpcse mine",
        description="Add hard negatives to pairs: texts of a corpus that are similar to the anchor of a pair and are "
        "not its positives. The result is a training file.",
    )
    parser.add_model()
    parser.add_argument("pairs", metavar="PAIRS", help="Training file with the columns anchor and positive.")
    return parser
