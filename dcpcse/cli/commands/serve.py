"""`dcpcse serve ENCODER --adapters FOLDER …`: serve embeddings of an encoder and its adapters over HTTP."""

from collections.abc import Sequence
from dataclasses import replace

from dcpcse.inference.arguments import EncoderArguments
from dcpcse.serving.arguments import ServingArguments
from dcpcse.utils.command_parser import Parser
from dcpcse.utils.packages import require_packages

PACKAGES = ("starlette", "uvicorn", "pydantic", "orjson", "prometheus_client")


def serve_command(argv: Sequence[str]) -> None:
    """Run `dcpcse serve` until SIGTERM or Ctrl-C. Raises UserError for mistakes that the user can fix."""
    encoder, args, places = serve_parser().parse(argv)
    require_packages("dcpcse serve", PACKAGES, "serve")
    # Imported after the options are checked, because this takes seconds.
    from dcpcse.serving.monitoring import structured_logs
    from dcpcse.serving.security import bind
    from dcpcse.serving.server import ServerOptions, require_usable, serve, serve_on_ray

    options = ServerOptions(places.encoder, encoder, args)
    require_usable(options)
    if args.ray:
        with structured_logs():
            options()  # the replicas load their own; this process finds the mistakes first
            serve_on_ray(args.ray, options)
        return
    with bind(args.host, args.port) as bound, structured_logs():
        application = options()  # several processes load their own; this one finds the mistakes first
        if args.workers == 1:
            serve(lambda: application, args, bound)
        else:
            del application
            serve(replace(options, is_worker=True), args, bound)


def serve_parser() -> Parser:
    """Return the parser of `dcpcse serve`."""
    parser = Parser(
        (EncoderArguments, ServingArguments),
        prog="dcpcse serve",
        description="Serve the embeddings of an encoder and of any number of its adapters over HTTP, with the "
        "interface of OpenAI's API. Requests of all adapters share batches.",
    )
    parser.add_model("encoder")
    return parser
