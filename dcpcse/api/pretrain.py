"""`dcpcse.pretrain`: pretrain a masked language model from Python."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.analysis.plots.training_curves import curve_png, draw_pretraining
from dcpcse.api.train import unchanged_process
from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.pretraining.run import run_pretraining
from dcpcse.utils.arguments import path, unknown_argument

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PretrainingResult:
    """The result of `dcpcse.pretrain`.

    Args:
        folder: The Hugging Face folder of the encoder.
        figures: Loss (nats per token), masked accuracy (in percent) and bits per character on the held-out text at the
            end of the pretraining.
        curve: One dict per measurement, with the same figures, the `step`, and the number of `tokens_seen` so far.
        record: The content of pretraining.json.
    """

    folder: Path
    figures: dict[str, float]
    curve: list[dict[str, float]]
    record: dict[str, Any]

    def plot(self) -> "Figure":
        """Draw `curve` over the steps, with the figures of a unigram language model for comparison.

        Raises UserError if matplotlib is not installed.
        """
        return draw_pretraining(self.record)


def pretrain(text: str | Path, *, output_dir: str | Path, **options: Any) -> PretrainingResult:
    """Pretrain a BERT or RoBERTa masked language model on a text file, as `dcpcse pretrain` does.

    With the same tokenizer, the weights are the same bit for bit as with the command. The call does not change random
    states and signal handlers. An interruption (Ctrl-C) saves a checkpoint after the running step and raises
    `KeyboardInterrupt`.

    Args:
        text: A UTF-8 file with a sentence or paragraph per line.
        output_dir: A new or empty folder for the encoder or, with `resume=True`, the folder of an interrupted
            pretraining.
        options: The options of `dcpcse pretrain` with the same names and defaults, such as `size="mini"`,
            `vocab_size=8000` or `max_steps=10_000`.

    Raises:
        UserError: If an argument or the text is not valid.
        TypeError: If `options` contains an unknown name.
    """
    known = [field.name for field in fields(PretrainingArguments)]
    if unknown := next((name for name in options if name not in known), None):
        raise unknown_argument("pretrain", unknown, known)
    args = PretrainingArguments(output_dir=str(path("output_dir", output_dir)), **options)
    with unchanged_process():
        record = run_pretraining(path("text", text), args, curve_png)
    return PretrainingResult(Path(args.output_dir), dict(record["figures"]), list(record["curve"]), record)
