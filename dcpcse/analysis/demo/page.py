"""Build and serve the demo page with gradio; the page loads nothing from other hosts."""

import os
from collections.abc import Sequence
from functools import partial

import gradio as gr
from markupsafe import Markup

from dcpcse.analysis.demo.models import DemoModel
from dcpcse.analysis.rendering import render
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, printable

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


PAGE_STYLE = {
    "theme": gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
    "css": CSS,
}
"""The arguments of gradio for the look of the page; no font comes from another host."""


def build_page(models: Sequence[DemoModel], sentences: Sequence[str], file: str, count: int) -> gr.Blocks:
    """Return the page: a text box, and below it the nearest sentences found by each model."""
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
    """Return HTML that lists, for each model, the sentences nearest to the typed one."""
    from senteval.lines import single_blanks

    query, columns = single_blanks(typed or ""), []  # a request that is not from the page may have no text
    for model in models if query else ():
        try:
            columns.append((model, model.nearest_sentences(query, sentences, count), ""))
        except UserError as error:
            columns.append((model, [], str(error)))
    return render("demo/results.html.j2", query=query, columns=columns)


def serve_page(blocks: gr.Blocks, host: str, port: int) -> None:
    """Serve the page until Ctrl-C."""
    # At the start, gradio requests its own page; a proxy could not reach it.
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), host, "localhost", "127.0.0.1"]))
    blocks.queue(default_concurrency_limit=1)  # one query at a time, which uses all cores
    blocks.launch(
        server_name=host, server_port=port, share=False, quiet=True, prevent_thread_lock=True, footer_links=[],
        **PAGE_STYLE, enable_monitoring=False, ssr_mode=False, pwa=False, mcp_server=False,
        run_history=False, max_file_size=0,  # no uploads
    )  # fmt: skip
    notify(f"the page is at {blocks.local_url} (press Ctrl-C to stop)")
    blocks.block_thread()
