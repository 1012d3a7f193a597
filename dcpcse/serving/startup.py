"""Load all that a server needs from its options, and check it before the server starts."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from starlette.applications import Starlette
from starlette.types import ASGIApp

from dcpcse.analysis.plots.inputs import labelled
from dcpcse.data.text_file import read_sentences
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.fingerprint import current_identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import hub
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model
from dcpcse.serving.application import DEMO, build_application
from dcpcse.serving.arguments import ServingArguments
from dcpcse.serving.batching import Batcher
from dcpcse.serving.encoding import encode_mixed, kept_prepacked, tokens_per_batch
from dcpcse.serving.indexes import load_indexes
from dcpcse.serving.logs import structured_logs
from dcpcse.serving.metrics import Metrics
from dcpcse.serving.registry import ModelRegistry
from dcpcse.serving.security import read_admin_token, read_api_keys, require_key_beyond_this_machine
from dcpcse.serving.service import Bounds, Service
from dcpcse.serving.watching import FolderWatcher
from dcpcse.utils.errors import UserError
from dcpcse.utils.packages import require_packages

_OF_THE_PROCESS = contextlib.ExitStack()
"""The logs of a process that serves with others, until it ends."""


@dataclass(frozen=True)
class ServerOptions:
    """The options of a server; calling it loads everything and returns the application.

    encoder: path or hub id. is_worker: whether this is one of several processes, which sets up its own logs and takes
    its part of the threads.
    """

    encoder: str
    encoder_args: EncoderArguments
    args: ServingArguments
    is_worker: bool = False

    def __call__(self) -> ASGIApp:
        """Return the application. Raises UserError if something cannot be loaded."""
        if self.is_worker:
            _OF_THE_PROCESS.enter_context(structured_logs())
            torch.set_num_threads(max(1, torch.get_num_threads() // self.args.workers))
        args, metrics = self.args, Metrics()
        model = load_model(self.encoder, self.encoder_args)
        _require_transformer(self.encoder, model)
        registry = ModelRegistry(model, args.name or _name_of(self.encoder), metrics, args.max_adapters)
        # An identity reads all weights; only indexes are compared with it.
        identities = {registry.encoder_name: current_identity(model)} if args.index else {}
        for name, folder in folders_by_name(args.adapters, "--adapters").items():
            adapter = registry.add(name, Path(folder))
            if args.index:  # only now is each of them in memory
                identities[name] = current_identity(adapter)
        if args.watch or args.adapter_root:
            registry.require_adapters_fit()
        indexes = load_indexes(folders_by_name(args.index, "--index"), identities)
        tokens = args.max_batch_tokens or tokens_per_batch(model.device)
        texts = self.encoder_args.batch_size or model.default_batch_size or tokens
        batcher = Batcher(
            partial(encode_mixed, batch_size=texts),
            metrics,
            texts=texts,
            tokens=tokens,
            wait=args.max_wait_ms / 1000,
        )
        bounds = Bounds(args.max_queue, args.max_inputs, args.max_body_bytes, args.time_limit)
        service = Service(registry, batcher, indexes, bounds, metrics)
        return build_application(
            service,
            keys=read_api_keys(args.api_key_file),
            admin_token=read_admin_token(args.admin_token_file),
            adapter_root=Path(args.adapter_root) if args.adapter_root else None,
            watcher=FolderWatcher(Path(args.watch), registry) if args.watch else None,
            mount=self._demo(service),
            while_serving=kept_prepacked(model),
        )

    def _demo(self, service: Service) -> Callable[[Starlette], None] | None:
        if self.args.demo_sentences is None:
            return None
        from dcpcse.serving.demo import add_demo  # imports gradio, which takes seconds

        file = Path(self.args.demo_sentences)
        sentences = read_sentences(file, "demo_sentences")

        def mount(app: Starlette) -> None:
            add_demo(app, service, sentences, file, DEMO)

        return mount


def require_usable(options: ServerOptions) -> None:
    """Raise UserError for options that are wrong, before the encoder is loaded."""
    args = options.args
    require_key_beyond_this_machine(args.host, read_api_keys(args.api_key_file))
    read_admin_token(args.admin_token_file)
    for option in ("watch", "adapter_root"):
        folder = getattr(args, option)
        if folder is not None and not Path(folder).is_dir():
            raise UserError(f"--{option} {folder}: is no folder; create it, or give a different one")
    for option, words in (("--adapters", args.adapters), ("--index", args.index)):
        for folder in folders_by_name(words, option).values():
            if not hub.is_hub_id(folder) and not Path(folder).is_dir():
                raise UserError(f"{option} {folder}: there is no such folder; check the path")
    for name in folders_by_name(args.adapters, "--adapters"):
        ModelRegistry.require_name(name)
    if args.demo_sentences is not None:
        require_packages("--demo_sentences", ["gradio"], "demo")
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads this when it is imported
        read_sentences(Path(args.demo_sentences), "demo_sentences")


def folders_by_name(words: Sequence[str] | None, option: str) -> Mapping[str, str]:
    """Return name → folder of the values of an option. Raises UserError if two have the same name."""
    try:
        return labelled(words or (), "name")
    except UserError as error:
        raise UserError(f"{option}: {error}") from error


def _name_of(encoder: str) -> str:
    return encoder if hub.is_hub_id(encoder) else Path(os.path.abspath(encoder)).name


def _require_transformer(name: str, model: SentenceEncoder) -> None:
    if type(model) is not SentenceEncoder or type(model.encoder) is not Encoder:
        raise UserError(f"{name} is not served: it has no transformer encoder; give an encoder or a model folder")
