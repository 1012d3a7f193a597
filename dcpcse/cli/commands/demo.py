"""`dcpcse demo`: its options, checked before any model is loaded."""

import argparse
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from dcpcse.analysis.plots.inputs import labelled
from dcpcse.data.text_file import read_sentences
from dcpcse.encoders.pooling import POOLERS
from dcpcse.evaluation.embedding_cache import embeddings_dir
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_writable

POOLER_NAMES = [name for name, pooler in POOLERS.items() if not pooler.needs_template]
"""What a plain encoder can be read by without a template."""


def demo_command(argv: Sequence[str]) -> None:
    """The whole command, which ends by Ctrl-C; raises UserError or DataError for what the user can mend."""
    args = demo_parser().parse_args(list(argv))
    places = labelled(args.models)
    _require_fitting(args, places.values())
    sentences = read_sentences(Path(args.sentences), "--sentences")
    _require_port(args.host, args.port)
    if args.cache_dir:
        require_writable(embeddings_dir(args.cache_dir), f"--cache_dir {args.cache_dir}")
    require_gradio()
    from dcpcse.analysis.demo.models import load_demo_model
    from dcpcse.analysis.demo.page import build_page, serve_page

    encoder = EncoderArguments(
        pooler_type=args.pooler, base=args.base, device=args.device, batch_size=args.batch_size,
        cache_dir=args.cache_dir,
    )  # fmt: skip
    file = Path(args.sentences)
    models = [load_demo_model(label, place, encoder, sentences, file) for label, place in places.items()]
    serve_page(build_page(models, sentences, file.name, args.top_k), args.host, args.port)
    notify("the page is closed")


def require_gradio() -> None:
    """UserError where gradio is missing; it tells nobody that it is used."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when it is imported
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise UserError('the demo needs gradio: pip install "gradio>=6,<7" (the extra demo)') from error


def _require_fitting(args: argparse.Namespace, places: Sequence[str]) -> None:
    """UserError for impossible values, and for options that no model looks at."""
    for name in ("top_k", "batch_size"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least 1")
    if not 1 <= args.port <= 65535:
        raise UserError(f"--port {args.port}: must be between 1 and 65535")
    from dcpcse.encoders.storage.manifest import is_model_folder

    own = [is_model_folder(place) for place in places]
    if args.base is not None and not any(own):
        raise UserError("--base speaks of output folders of train.py, and none is given; leave it out")
    if args.pooler is not None and all(own):
        raise UserError("--pooler speaks of encoders as they are; output folders have their own; leave it out")


def _require_port(host: str, port: int) -> None:
    """UserError unless a page can be served there."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: cannot serve there ({error.strerror}); give others") from error


def demo_parser() -> CommandParser:
    """The parser of the command."""
    parser = CommandParser(
        prog="dcpcse demo",
        description="Serves a page on this machine: type a sentence, see the nearest ones of a file by each model.",
    )
    add = parser.add_argument
    help = "Output folder of train.py, Hugging Face folder or hub id; LABEL=PLACE says what it is called."
    add("models", nargs="+", metavar="MODEL", help=help)
    add("--sentences", required=True, metavar="FILE", help="Text to search in, a sentence a line (required).")
    add("--top_k", type=int, default=10, help="Sentences that are shown. Default: %(default)s")
    add("--host", default="127.0.0.1", help="Address to serve on; 0.0.0.0 opens the page to all. Default: %(default)s")
    add("--port", type=int, default=7860, help="Default: %(default)s")
    help = "Representation of encoders as they are (default: cls); output folders have their own."
    add("--pooler", choices=POOLER_NAMES, help=help)
    add("--base", help="Where the frozen encoder of the output folders is now.")
    add("--device", help="cpu, cuda, cuda:1, ... (default: cuda if there is one).")
    add("--batch_size", type=int, default=128, help="Sentences a batch, at most. Default: %(default)s")
    add("--cache_dir", help="Folder for downloads, and for vectors: a later start reads them back.")
    return parser
