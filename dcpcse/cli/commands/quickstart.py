"""`dcpcse quickstart`: train deep prompts with and without labels, and compare them with their encoder."""

import os
import signal
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_encoder_path
from dcpcse.utils.option_fields import SEED
from dcpcse.utils.packages import EMBEDDED_ENCODER, embedded_encoder
from dcpcse.utils.signals import Interrupted

if TYPE_CHECKING:
    from dcpcse.encoders.sentence_encoder import SentenceEncoder

COMMON: Mapping[str, Any] = {
    "method": "dcpcse",
    "pooler_type": "cls_before_pooler",
    "temp": 0.05,
    "learning_rate": 3e-2,
    "per_device_train_batch_size": 32,
    "max_seq_length": 16,
    "max_steps": 85,
    "position_offset": 0,
    "save_strategy": "no",
    "logging_steps": 50,
}
"""Options of both trainings. docs/quickstart.md, "Why these settings", shows the scores by which they were chosen."""

SENTENCES, TRIPLETS, PAIRS = "sentences.txt", "triplets.csv", "downstream/STS/STSBenchmark"

WITHOUT_LABELS, WITH_LABELS = "trained without labels", "trained with labels"

ROWS: Mapping[str, Mapping[str, Any]] = {
    WITHOUT_LABELS: {"train_file": SENTENCES, "pre_seq_len": 16, "output_dir": "without-labels"},
    WITH_LABELS: {"train_file": TRIPLETS, "pre_seq_len": 12, "output_dir": "with-labels"},
}
"""A dict from rows of the table to their options, with a file in --data and a folder in --output_dir.

The prompt lengths come from DCPCSE's Tables 3 and 4 for BERT-base.
"""

READ_WITH = "avg"
"""Pooler of the trained models. They are trained for [CLS], but the mean of the tokens scores higher on dev."""

SAMPLE = EMBEDDED_ENCODER.with_name("sample")
"""Training text and scored pairs. Like the encoder, they are only part of a clone."""

QUERIES = ("Prices have gone up again.", "A dog is running on the beach.", "My phone battery is empty.")

NEXT_COMMANDS = """
Next, train on your own data, take another encoder, and compare models:
  dcpcse train {folder}/run.yaml --train_file YOUR_FILE --output_dir result/own
  dcpcse quickstart --base YOUR_ENCODER --output_dir result/other
  dcpcse compare {base} {folder} --pooler avg --tasks STSBenchmark --data_dir {data} --custom_data"""


def quickstart_command(argv: Sequence[str]) -> None:
    """Run `dcpcse quickstart`. Raises UserError for a user mistake."""
    args = quickstart_parser().parse_args(list(argv))
    _find_inputs(args)
    # Imported here, because this takes seconds.
    from dcpcse.data.training_data import distinct_sentences
    from dcpcse.experiments.sample_scores import (
        SampleReport,
        load_sample_pairs,
        measure_pairs,
        nearest_listing,
        untouched_rows,
    )

    pairs = load_sample_pairs(args.data)
    folders = {row: args.output_dir / options["output_dir"] for row, options in ROWS.items()}
    started = time.perf_counter()
    trained = {row: _train(args, row, folder) for row, folder in folders.items()}
    seconds = time.perf_counter() - started
    models = untouched_rows(args.base, pairs["dev"]) | trained
    costs = {row: _cost(model, folders[row]) for row, model in trained.items()}
    scores = {row: measure_pairs(model, pairs) for row, model in models.items()}
    report = SampleReport(scores, costs, pairs["test"].gold)
    counts = " and ".join(f"{len(scored)} {split}" for split, scored in pairs.items())
    print_result(f"\nAgreement of cosines with the judged similarity of {counts} pairs:\n{report}")
    print_result("\nDifferences of the test scores, with 95 % intervals:")
    best = report.best_untouched
    for row, over in ((WITHOUT_LABELS, best), (WITH_LABELS, best), (WITH_LABELS, WITHOUT_LABELS)):
        print_result(f"  {report.gain_line(row, over)}")
    print_result(f"\nThe two trainings took {seconds:.0f} s; the models are in {args.output_dir}.")
    sentences = [*distinct_sentences(args.data / SENTENCES), *dict.fromkeys(pairs["test"].first)]
    print_result(f"\nThe nearest of {len(sentences):,} sentences, by the best untouched and the best trained row:")
    shown = {"untouched": models[best], "trained": models[report.best_trained]}
    print_result(nearest_listing(shown, QUERIES, sentences))
    print_result(f"\n{report.conclusion()}")
    print_result(NEXT_COMMANDS.format(folder=folders[report.best_trained], base=args.base, data=args.data))


def quickstart_parser() -> CommandParser:
    """Return the parser of `dcpcse quickstart`."""
    parser = CommandParser(
        prog="dcpcse quickstart",
        description="Train deep prompts on the sample, once without labels (sentences) and once with labels "
        "(triplets), and compare them with the untouched encoder on scored pairs.",
    )
    help = "Encoder: Hugging Face folder or hub id. Default: data/encoder, which is part of a clone."
    parser.add_argument("--base", help=help)
    help = "Folder with training text and scored pairs, laid out as data/sample, which is part of a clone (default)."
    parser.add_argument("--data", type=Path, help=help)
    help = "Folder for the two trained models; earlier ones in it are deleted. Default: %(default)s"
    parser.add_argument("--output_dir", type=Path, default=Path("result/quickstart"), help=help)
    parser.add_argument("--seed", type=SEED, default=0, help="Seed of the trainings. Default: %(default)s")
    return parser


def _find_inputs(args: Namespace) -> None:
    """Set the defaults of --base and --data.

    Raises UserError if one of these options is missing outside of a clone, or if the data are incomplete.
    """
    if args.data is None and not SAMPLE.is_dir():
        encoder = "" if args.base else "an encoder as --base, and "
        raise UserError(
            f"{SAMPLE} does not exist, since only a clone contains it; give {encoder}a folder with {SENTENCES}, "
            f"{TRIPLETS} and {PAIRS} as --data"
        )
    args.data = args.data or Path(os.path.relpath(SAMPLE))
    for name in (SENTENCES, TRIPLETS, PAIRS):
        if not (args.data / name).exists():
            raise UserError(
                f"--data {args.data} does not contain {name}; give a folder with the layout of data/sample"
            )
    args.base = args.base or os.path.relpath(embedded_encoder())
    require_encoder_path(args.base, "base")


def _train(args: Namespace, row: str, folder: Path) -> "SentenceEncoder":
    """Run train.py, record `READ_WITH` in its folder, and return the model.

    Raises Interrupted after a signal.
    """
    from dcpcse.cli.main import find_command
    from dcpcse.encoders.sentence_encoder import SentenceEncoder

    options = {**COMMON, **ROWS[row], "seed": args.seed, "model_name_or_path": args.base, "output_dir": folder}
    options["train_file"] = args.data / options["train_file"]
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    notify(f"training {row} on {options['train_file']}")
    try:
        find_command("train")([*words, "--overwrite_output_dir"])
    except KeyboardInterrupt as error:  # its message recommends --resume, which this command does not have
        stop = Interrupted(getattr(error, "number", signal.SIGINT))
        raise Interrupted(stop.number, f"{stop.name}: stopped; run the same command to start again") from error
    model = SentenceEncoder.load(folder)
    model.pooling = READ_WITH
    model.save(folder)
    return model


def _cost(model: "SentenceEncoder", folder: Path) -> tuple[int, float]:
    """Return the number of trained parameters of a model, and the size of their file in megabytes."""
    from dcpcse.training.summary import count_parameters

    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return count_parameters(model.encoder.prompt), size / 1e6
