"""Plot the figures of a pretraining over its steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dcpcse.analysis.plots import style
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {"bits_per_character": "bits per character", "masked_accuracy": "masked accuracy, %"}


@style.styled
def draw(record: Mapping[str, Any]) -> "Figure":
    """Draw bits per character and masked accuracy of the held-out text, each beside the unigram model's.

    The steps in which the model was trained to predict next tokens are shaded. record: the content of
    `pretraining.json`.
    """
    figure = style.figure(style.PAGE, 2.1)
    steps = [point["step"] for point in record["curve"]]
    causal = record.get("causal_steps", 0)
    for panel, (name, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        look = style.series_style(0).line()
        (line,) = panel.plot(steps, [point[name] for point in record["curve"]], markersize=3, **look)
        unigram = panel.axhline(record["unigram"][name], color=style.GREY, linestyle="--")
        shown = [line, unigram]
        if causal:
            shown.append(panel.axvspan(0, min(causal, steps[-1]), color=style.GREY, alpha=0.2, linewidth=0))
        panel.set_title(label)
        panel.set_xlabel("step")
        panel.set_ylim(0, 1.08 * max(record["unigram"][name], *(point[name] for point in record["curve"])))
        panel.locator_params(nbins=5)
        panel.xaxis.get_major_locator().set_params(integer=True)
    names = ["the model", "unigram model", "steps of training on next tokens"]
    style.legend_below(figure, shown, names[: len(shown)])
    return figure


def curve_png(record: Mapping[str, Any]) -> bytes | None:
    """Return the plot of a record as PNG; None, with a line in the log, if matplotlib is not installed."""
    try:
        return style.png(draw(record))
    except UserError as error:
        notify(f"no picture of the curve: {error}")
        return None
