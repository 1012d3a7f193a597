"""`dcpcse serve demo`: show the nearest sentences that several models find."""

import argparse
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from dcpcse.analysis.plots.inputs import labelled
from dcpcse.data.text_file import read_sentences
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.pooling import POOLERS
from dcpcse.evaluation.embedding_cache import embeddings_dir
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.serving.security import bind
from dcpcse.utils.command_parser import MODEL_HELP, CommandParser
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_writable
from dcpcse.utils.option_fields import BATCH_SIZE_HELP, Whole
from dcpcse.utils.packages import require_packages

POOLER_NAMES = [name for name, pooler in POOLERS.items() if not pooler.needs_template]
"""Poolers that need no template."""


def demo_command(argv: Sequence[str]) -> None:
    """Run `dcpcse serve demo` until Ctrl-C. Raises UserError or DataError for mistakes that the user can fix."""
    args = demo_parser().parse_args(list(argv))
    places = labelled(args.models)
    _check_options(args, places.values())
    sentences = read_sentences(Path(args.sentences), "sentences")
    bind(args.host, args.port).close()
    if args.cache_dir:
        require_writable(embeddings_dir(args.cache_dir), f"--cache_dir {args.cache_dir}")
    require_packages("dcpcse serve demo", ["gradio"], "demo")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads this when it is imported
    from dcpcse.serving.demo import build_page, load_demo_model, serve_page

    encoder = EncoderArguments(pooler_type=args.pooler, base=args.base, device=args.device, cache_dir=args.cache_dir)
    options = EncodeOptions(batch_size=args.batch_size)
    file = Path(args.sentences)
    models = [
        load_demo_model(label, location, encoder, options, sentences, file) for label, location in places.items()
    ]
    serve_page(build_page(models, sentences, file.name, args.top_k), args.host, args.port)
    notify("the server has stopped")


def _check_options(args: argparse.Namespace, places: Collection[str]) -> None:
    """Raise UserError if a value is out of range, or if an option has no effect on the given models."""
    from dcpcse.encoders.storage.manifest import is_model_folder

    trained = [is_model_folder(location) for location in places]
    if args.base is not None and not any(trained):
        raise UserError(f"--base {args.base}: applies to output folders of train.py, and none is given; omit it")
    if args.pooler is not None and all(trained):
        raise UserError(f"--pooler {args.pooler}: does not apply to output folders of train.py; omit it")


def demo_parser() -> CommandParser:
    """Return the parser of `dcpcse serve demo`."""
    parser = CommandParser(
        prog="dcpcse serve demo",
        description="Serve a local web page that shows the nearest sentences of a typed one under each model.",
    )
    add = parser.add_argument
    parser.add_model("models", f"{MODEL_HELP} LABEL=PLACE sets the label.", nargs="+", metavar="MODEL")
    add("--sentences", required=True, metavar="FILE", help="Text file to search, one sentence per line (required).")
    add("--top_k", type=Whole(1), default=10, help="Number of sentences shown per model. Default: %(default)s")
    help = "Address to serve at; 0.0.0.0 makes the page available to the network. Default: %(default)s"
    add("--host", default="127.0.0.1", help=help)
    add("--port", type=Whole(1, 65535), default=7860, help="Default: %(default)s")
    help = "Pooling of encoders that are not output folders of train.py (default: cls)."
    add("--pooler", choices=POOLER_NAMES, help=help)
    add("--base", help="Current location of the frozen encoder of the output folders.")
    add("--device", help="cpu, cuda, cuda:1, ... (default: cuda if available).")
    add("--batch_size", type=Whole(1), help=BATCH_SIZE_HELP)
    add("--cache_dir", help="Folder for downloads and embeddings, which later starts reuse.")
    return parser
