"""The page itself, by gradio; it loads nothing from elsewhere."""

import os
from collections.abc import Sequence
from functools import partial

import gradio as gr

from dcpcse.analysis.demo.models import DemoModel
from dcpcse.analysis.html_report.html import Markup, join, number, remark, row, table, tag
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError

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
.sides .wide { overflow-x: auto; }
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


def build_page(models: Sequence[DemoModel], sentences: Sequence[str], file: str, count: int) -> gr.Blocks:
    """The page: a line to type into, and below it the nearest sentences under each model."""
    about = (
        f"The nearest of {len(sentences):,} different sentences of {file}, by cosine. Ranks of several models can be "
        "compared, cosines cannot. No sentence is its own neighbour."
    )
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(join(tag("h1", TITLE), tag("p", about, class_="about")))
        sentence = gr.Textbox(label="Sentence", autofocus=True, submit_btn="Search", elem_id="sentence")
        found = gr.HTML(elem_id="found")
        sentence.submit(partial(results_html, models, sentences, count), sentence, found, api_visibility="private")
    return blocks


def results_html(models: Sequence[DemoModel], sentences: Sequence[str], count: int, typed: str) -> str:
    """The nearest sentences of what was typed, as HTML, under each model."""
    from senteval.lines import single_blanks

    query = single_blanks(typed)
    if not query:
        return remark("Type a sentence.")
    asked = tag("p", "Nearest to: ", tag("strong", query, dir="auto"), class_="query")
    return join(asked, tag("div", *(_column(model, query, sentences, count) for model in models), class_="sides"))


def _column(model: DemoModel, query: str, sentences: Sequence[str], count: int) -> Markup:
    try:
        nearest = model.nearest_sentences(query, sentences, count)
    except UserError as error:
        return tag("section", _head(model), remark(str(error)))
    rows = [
        row(rank, [tag("td", one.sentence, dir="auto"), number(f"{one.cosine:.4f}")])
        for rank, one in enumerate(nearest, start=1)
    ]
    caption = f"{model.label}, nearest to: {query}"  # for those who hear the page
    return tag("section", _head(model), table(caption, ["rank", "sentence", "cosine"], rows))


def _head(model: DemoModel) -> Markup:
    return join(tag("h2", model.label), tag("p", model.about, class_="note") if model.about != model.label else "")


def serve_page(blocks: gr.Blocks, host: str, port: int) -> None:
    """Serve the page until Ctrl-C."""
    # gradio looks for its own page before it says that it is there, which no proxy can do for it.
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), host, "localhost", "127.0.0.1"]))
    theme = gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    blocks.queue(default_concurrency_limit=1)  # one at a time: models read texts by settings of their own
    blocks.launch(
        server_name=host, server_port=port, share=False, quiet=True, prevent_thread_lock=True, footer_links=[],
        theme=theme, css=CSS, enable_monitoring=False, ssr_mode=False, pwa=False, mcp_server=False,
        run_history=False, max_file_size=0,  # nothing is uploaded
    )  # fmt: skip
    notify(f"the page is at {blocks.local_url} (Ctrl-C ends)")
    blocks.block_thread()
