"""A web page that shows side by side which sentences several models find nearest to a typed sentence."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import gradio as gr
import numpy as np
from markupsafe import Markup
from starlette.applications import Starlette

from dcpcse.analysis.report import Neighbour, embed_all, render, top_neighbours
from dcpcse.data.text_file import read_sentences
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.evaluation.embedding_cache import embeddings_dir
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, plural, printable

if TYPE_CHECKING:
    from dcpcse.encoders.sentence_encoder import SentenceEncoder


@dataclass(frozen=True, eq=False)
class DemoModel:
    """A model of the demo page, and its embeddings of the sentences that are searched.

    Args:
        label: Name of the model on the page.
        about: Path or name of the model, and its pooling if the user chose a pooling.
        encode: A function that returns the embeddings (N, H) of sentences.
        directions: The float32 embeddings (C, H) of the searched sentences, scaled to unit length. Rows of zeros stay
            zero.
    """

    label: str
    about: str
    encode: Callable[[Sequence[str]], np.ndarray]
    directions: np.ndarray

    def nearest_sentences(self, query: str, sentences: Sequence[str], count: int) -> list[Neighbour]:
        """Return the `count` sentences nearest to the query, the nearest one first. The query itself is left out.

        Raises UserError if the embedding of the query is zero or not finite.
        """
        direction = unit_directions(self.encode([query]))[0]
        if not (np.isfinite(direction).all() and direction.any()):
            raise UserError("the embedding of this sentence is zero or not finite, so it has no cosines")
        cosines = np.where(self.directions.any(axis=1), self.directions @ direction, -np.inf)
        return top_neighbours(cosines, sentences, count, query)


def load_demo_model(
    label: str, path: str, args: EncoderArguments, options: EncodeOptions, sentences: Sequence[str], file: Path
) -> DemoModel:
    """Load a model for the demo page, and encode each sentence of a file once.

    A trained model keeps the pooling of its folder, even if `args` contains a pooling. If `args.cache_dir` is set,
    embeddings are cached there as in evaluation. Raises DataError if embeddings are not finite.

    Args:
        label: Name of the model on the page.
        path: Path or hub id of the model.
        args: Options for loading the model.
        options: Options of encoding.
        sentences: The lines of the file.
        file: The file, for messages.
    """
    from senteval.lines import Line

    from dcpcse.evaluation.evaluator import cached_encode
    from dcpcse.inference.loading import has_representation, load_model

    notify(f"{label}: {path}")
    trained = has_representation(path, args)
    model = load_model(path, replace(args, pooler_type=None) if trained else replace(args, base=None))
    about = path if trained or args.pooler_type is None else f"{path}, {args.pooler_type}"
    folder = embeddings_dir(args.cache_dir) if args.cache_dir else None
    with cached_encode(options.encode_with(model), model, folder, options) as encode:
        located = ((sentence, Line(file, number, "")) for number, sentence in enumerate(sentences, start=1))
        directions = unit_directions(embed_all(label, encode, located)(sentences))
    zeros = len(sentences) - int(directions.any(axis=1).sum())
    if zeros:
        notify(f"{label}: the embedding of {plural(zeros, 'sentence')} is zero; they are never listed as neighbours")
    return DemoModel(label, about, model.encode, directions)


def unit_directions(vectors: np.ndarray) -> np.ndarray:
    """Return the rows (N, H) scaled to unit length, as float32. Rows of zeros stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors, dtype=np.float32), where=lengths > 0)


TITLE = "Nearest sentences"
CSS = """
.gradio-container { --soft: color-mix(in srgb, var(--body-text-color) 70%, transparent); }
.gradio-container { max-width: 90rem !important; margin: 0 auto; }
.about, .query, .sides .note { margin: 0 0 0.75rem; color: var(--soft); overflow-wrap: anywhere; }
.query strong { color: var(--body-text-color); }
#sentence .input-container { align-items: center; gap: 0.5rem; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem 2rem; }
.sides section { min-width: 0; }
.sides h2 { margin: 0; font-size: 1.1rem; overflow-wrap: anywhere; }
.sides table { width: 100%; margin: 0; border-collapse: collapse; font-size: 0.95rem; line-height: 1.4; }
.sides caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
#found :is(table, thead, tr) { border: 0; }
.sides th, .sides td { padding: 0.35rem 0.5rem; text-align: left; vertical-align: top; color: var(--body-text-color);
  border: 0; border-bottom: 1px solid var(--border-color-primary); }
.sides th { width: 3rem; font-weight: 400; color: var(--soft); }
.sides thead th:nth-child(2) { width: auto; }
.sides .number, .sides th:last-child { text-align: right; font-variant-numeric: tabular-nums; }
.sides td[dir="auto"] { overflow-wrap: anywhere; }
"""


PAGE_OPTIONS = {
    "theme": gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
    "css": CSS,
    "footer_links": [],
    "run_history": False,
    "max_file_size": 0,  # no uploads
    **dict.fromkeys(("enable_monitoring", "ssr_mode", "pwa", "mcp_server"), False),
}
"""The arguments of gradio for the page. With them, the page loads nothing from other hosts."""


def build_page(models: Sequence[DemoModel], sentences: Sequence[str], file: str, count: int) -> gr.Blocks:
    """Return the demo page: a text box and, below it, the `count` nearest sentences that each model finds."""
    about = (
        f"The nearest of {len(sentences):,} distinct sentences of {printable(file)}, by cosine. Ranks can be compared "
        "between models, cosines cannot. A sentence is never listed as its own neighbour."
    )
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(Markup("<h1>{}</h1><p class='about'>{}</p>").format(TITLE, about))
        sentence = gr.Textbox(label="Sentence", autofocus=True, submit_btn="Search", elem_id="sentence")
        output = gr.HTML(elem_id="found")
        sentence.submit(partial(results_html, models, sentences, count), sentence, output, api_visibility="private")
    return blocks


def results_html(models: Sequence[DemoModel], sentences: Sequence[str], count: int, typed: str | None) -> str:
    """Return HTML that lists, for each model, the `count` of `sentences` nearest to the sentence `typed`."""
    from senteval.lines import single_blanks

    query, columns = single_blanks(typed or ""), []  # a request that is not from the page may have no text
    for model in models if query else ():
        try:
            columns.append((model, model.nearest_sentences(query, sentences, count), ""))
        except UserError as error:
            columns.append((model, [], str(error)))
    return render("serving/nearest.html.j2", query=query, columns=columns)


def serve_page(blocks: gr.Blocks, host: str, port: int) -> None:
    """Serve the demo page until Ctrl-C."""
    # At the start, gradio requests its own page; a proxy could not reach it.
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), host, "localhost", "127.0.0.1"]))
    blocks.queue(default_concurrency_limit=1)  # one query at a time, since a query uses all cores
    blocks.launch(
        server_name=host, server_port=port, share=False, quiet=True, prevent_thread_lock=True, **PAGE_OPTIONS
    )
    notify(f"the page is at {blocks.local_url} (press Ctrl-C to stop)")
    blocks.block_thread()


MOST_MODELS = 8
"""Maximum number of models that the page of a server shows: the plain encoder and the first adapters."""

HITS = 10
"""Number of sentences that the page of a server shows for a model."""


def add_demo(
    app: Starlette,
    path: str,
    models: Mapping[str, "SentenceEncoder"],
    encode: Callable[[str, Sequence[str]], np.ndarray],
    options: EncodeOptions,
    file: Path,
) -> None:
    """Add the demo page to the application of a server. The sentences of the file are encoded during this call.

    Args:
        app: The application.
        path: The path of the page, such as /demo.
        models: The models that the page compares, by name.
        encode: A function that is called with the name of a model and sentences, and returns their vectors. It is
            called in threads of gradio while the server runs.
        options: Options for encoding the sentences of the file.
        file: Text file with one sentence per line.
    """
    sentences = read_sentences(file, "demo_sentences")
    shown = []
    for name, model in list(models.items())[:MOST_MODELS]:
        directions = unit_directions(model.encode(sentences, **options.given()))
        shown.append(DemoModel(name, name, partial(encode, name), directions))
    page = build_page(shown, sentences, file.name, HITS)
    gr.mount_gradio_app(app, page, path=path, show_error=False, **PAGE_OPTIONS)
