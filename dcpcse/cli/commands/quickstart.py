"""`dcpcse quickstart`: train deep prompts of a small encoder on the sample, and compare them with the encoder."""

import shlex
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import print_result
from dcpcse.utils.embedded import EMBEDDED_ENCODER, embedded_encoder
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_encoder_path
from dcpcse.utils.option_fields import SEED
from dcpcse.utils.signals import Interrupted

if TYPE_CHECKING:
    from dcpcse.encoders.sentence_encoder import SentenceEncoder

UNTOUCHED_CLS, TRAINED_CLS, TRAINED_MEAN = "untouched [CLS]", "trained [CLS]", "trained mean"
READ_BY_MEAN = "prompts trained for [CLS], mean"

COMMON: Mapping[str, Any] = {
    "method": "dcpcse",
    "temp": 0.03,
    "per_device_train_batch_size": 32,
    "max_seq_length": 16,
    "max_steps": 40,
    "position_offset": 0,
    "save_strategy": "no",
    "logging_steps": 10,
}
"""Options of every training. docs/quickstart.md, "Why these settings", has the figures by which they were chosen."""

ROWS: Mapping[str, Mapping[str, Any]] = {
    TRAINED_CLS: {"learning_rate": 0.2, "pooler_type": "cls_before_pooler"},
    TRAINED_MEAN: {"learning_rate": 3e-3, "pooler_type": "avg"},
}
"""Row of the table → its other options."""

PRE_SEQ_LEN, SUPERVISED_PRE_SEQ_LEN = 16, 12
"""Prompt lengths of DCPCSE's Table 3 for BERT-base."""

SAMPLE = EMBEDDED_ENCODER.with_name("sample")
"""Training text and scored pairs; like the encoder, they are part of a clone only."""

SENTENCES, TRIPLETS, PAIRS = "sentences.txt", "triplets.csv", "downstream/STS/STSBenchmark"

QUERIES = (
    "Someone is preparing a meal.",
    "The journey took longer than expected because of the weather.",
    "I forgot my password.",
)


def quickstart_command(argv: Sequence[str]) -> None:
    """Run the quickstart. Raises UserError for a user mistake."""
    args = quickstart_parser().parse_args(list(argv))
    _find_inputs(args)
    # Imported here, because this takes seconds.
    from dcpcse.data.training_file import distinct_sentences
    from dcpcse.encoders.sentence_encoder import SentenceEncoder
    from dcpcse.experiments.sample_scores import compare_with_untouched, load_sample_pairs, nearest_listing

    pairs = load_sample_pairs(args.data)
    folders = {TRAINED_CLS: args.output_dir, TRAINED_MEAN: args.output_dir / "mean"}
    words = {name: _training_words(args, name, folder) for name, folder in folders.items()}
    seconds = {name: _train(words[name]) for name in folders}
    models = {name: SentenceEncoder.load(folder) for name, folder in folders.items()}
    models[READ_BY_MEAN] = SentenceEncoder.load(args.output_dir)
    models[READ_BY_MEAN].pooling = "avg"
    report = compare_with_untouched(args.base, models, pairs)
    print_result(str(report))
    for name, other in ((TRAINED_CLS, UNTOUCHED_CLS), (report.best_trained, report.best)):
        print_result(report.gain_line(name, other))
    print_result(_cost_report(models[TRAINED_CLS], args.output_dir, seconds))
    print_result(f"the same training: {shlex.join([sys.executable, '-m', 'dcpcse', 'train', *words[TRAINED_CLS]])}")
    print_result(
        f"\nThe sentences of the sample that are nearest to three others, with their cosines, by {TRAINED_CLS}:"
    )
    print_result(nearest_listing(models[TRAINED_CLS], QUERIES, distinct_sentences(args.data / SENTENCES)))
    print_result(f"\n{report.conclusion(TRAINED_CLS, UNTOUCHED_CLS)}")


def quickstart_parser() -> CommandParser:
    """Return the parser of the command."""
    parser = CommandParser(
        prog="dcpcse quickstart",
        description="Train deep prompts on the sample sentences, once for [CLS] and once for mean pooling, and "
        "compare them with the untouched encoder on scored pairs.",
    )
    help = "Encoder: Hugging Face folder or hub id. Default: data/encoder, which is part of a clone."
    parser.add_argument("--base", help=help)
    help = "Folder with training text and scored pairs, laid out as data/sample, which is part of a clone (default)."
    parser.add_argument("--data", type=Path, help=help)
    parser.add_argument("--supervised", action="store_true", help="Train on the triplets instead of the sentences.")
    help = "Folder for the trained model; an earlier model in it is deleted. Default: %(default)s"
    parser.add_argument("--output_dir", type=Path, default=Path("result/quickstart"), help=help)
    parser.add_argument("--seed", type=SEED, default=0, help="Seed of the training. Default: %(default)s")
    return parser


def _find_inputs(args: Namespace) -> None:
    """Set the defaults of --base and --data.

    Raises UserError if one of them is not given and this is no clone, or if the data are incomplete.
    """
    if args.data is None and not SAMPLE.is_dir():
        encoder = "" if args.base else "an encoder as --base, and "
        raise UserError(
            f"{SAMPLE} does not exist, since it is part of a clone only; give {encoder}a folder with {SENTENCES}, "
            f"{TRIPLETS} and {PAIRS} as --data"
        )
    args.data = args.data or SAMPLE
    for name in (TRIPLETS if args.supervised else SENTENCES, PAIRS):
        if not (args.data / name).exists():
            raise UserError(
                f"--data {args.data} does not contain {name}; give a folder with the layout of data/sample"
            )
    args.base = args.base or str(embedded_encoder())
    require_encoder_path(args.base, "--base")


def _training_words(args: Namespace, row: str, folder: Path) -> list[str]:
    """Return the options of train.py for the training of a row."""
    file = args.data / (TRIPLETS if args.supervised else SENTENCES)
    length = SUPERVISED_PRE_SEQ_LEN if args.supervised else PRE_SEQ_LEN
    options = {**COMMON, **ROWS[row], "pre_seq_len": length, "seed": args.seed}
    options |= {"model_name_or_path": args.base, "train_file": file, "output_dir": folder}
    return [*(word for name, value in options.items() for word in (f"--{name}", str(value))), "--overwrite_output_dir"]


def _train(words: Sequence[str]) -> float:
    """Run train.py, and return the seconds that it took. Raises Interrupted after a signal."""
    from dcpcse.cli.main import find_command

    started = time.perf_counter()
    try:
        find_command("train")(words)
    except KeyboardInterrupt as error:  # its message recommends --resume, which this command does not have
        stop = Interrupted(getattr(error, "number", signal.SIGINT))
        raise Interrupted(stop.number, f"{stop.name}: stopped; the same command starts again") from error
    return time.perf_counter() - started


def _cost_report(model: "SentenceEncoder", folder: Path, seconds: Mapping[str, float]) -> str:
    """Return the number of trained parameters and the size of the folder of a model, and the time of each training."""
    from dcpcse.training.summary import count_parameters

    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    total = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    times = ", ".join(f"{name} {time:.0f} s" for name, time in seconds.items())
    return (
        f"trained parameters: {count_parameters(model.encoder.prompt):,} of prompts\n"
        f"saved in {folder}: {size / 1e6:.2f} MB of weights, {total / 1e6:.2f} MB with tokenizer and reports\n"
        f"time of the trainings: {times}"
    )
