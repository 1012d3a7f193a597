"""`dcpcse pretrain TEXT --output_dir FOLDER`: pretrain a masked language model, from which methods can start."""

from collections.abc import Sequence

from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.utils.command_parser import Parser


def pretrain_command(argv: Sequence[str]) -> None:
    """Run the command. Raises UserError for mistakes that the user can fix."""
    args, places = pretrain_parser().parse(argv)
    # Imported after the options are checked, as these imports take seconds.
    from dcpcse.analysis.plots.training_curves import curve_png
    from dcpcse.pretraining.run import run_pretraining

    run_pretraining(places.text, args, curve_png)


def pretrain_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        (PretrainingArguments,),
        prog="dcpcse pretrain",
        usage="dcpcse pretrain TEXT --output_dir FOLDER [--OPTION VALUE ...]",
        description="Pretrain a BERT or RoBERTa masked language model on a text file, with a tokenizer trained on it. "
        "The result is a Hugging Face folder that train.py takes as --model_name_or_path.",
    )
    parser.add_argument("text", metavar="TEXT", help="UTF-8 text, one sentence or paragraph per line.")
    return parser
