"""`dcpcse pretrain` (train a masked language model) and `dcpcse pretrain corrupt` (replace tokens before training)."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.utils.command_parser import CommandParser, Parser
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import atomic_folder, require_new_folder
from dcpcse.utils.option_fields import GENERATE_AT_CHOICES, GENERATION_CHOICES, SEED, Whole

if TYPE_CHECKING:
    import numpy as np

    from dcpcse.data.collator import ViewCollator
    from dcpcse.losses.generator import Corruption


def pretrain_command(argv: Sequence[str]) -> None:
    """Run `dcpcse pretrain`. Raises UserError for mistakes that the user can fix."""
    args, places = pretrain_parser().parse(argv)
    # Imported after the options are checked, as these imports take seconds.
    from dcpcse.analysis.plots.training_curves import curve_png
    from dcpcse.pretraining.run import run_pretraining

    run_pretraining(places.text, args, curve_png)


def pretrain_parser() -> Parser:
    """Return the parser of `dcpcse pretrain`."""
    parser = Parser(
        (PretrainingArguments,),
        prog="dcpcse pretrain",
        usage="dcpcse pretrain TEXT --output_dir FOLDER [--OPTION VALUE ...]",
        description="Pretrain a BERT or RoBERTa masked language model on a text file, with a tokenizer trained on it. "
        "The result is a Hugging Face folder that train.py takes as --model_name_or_path.",
    )
    parser.add_argument("text", metavar="TEXT", help="UTF-8 text, one sentence or paragraph per line.")
    return parser


def corrupt_command(argv: Sequence[str]) -> None:
    """Run `dcpcse pretrain corrupt`. Raises UserError for a user mistake."""
    args = corrupt_parser().parse_args(list(argv))
    if not 0 < args.masking_ratio < 1:
        raise UserError(f"--masking_ratio {args.masking_ratio}: must be above 0 and below 1, such as 0.3")
    require_new_folder(Path(args.output_dir), "output_dir")
    _corrupt(args)


def _corrupt(args: argparse.Namespace) -> None:
    # Imported after the options are checked, because this takes seconds.
    import torch

    from dcpcse.data.collator import ViewCollator
    from dcpcse.data.columns import CLASS
    from dcpcse.data.corrupted_corpus import Corpus
    from dcpcse.data.training_data import load_training_file
    from dcpcse.data.views import sentence_pair_views
    from dcpcse.encoders.backbones import load_tokenizer
    from dcpcse.encoders.identity import vocabulary_fingerprint
    from dcpcse.encoders.storage.load_options import LoadOptions
    from dcpcse.losses.generator import Corruption, load_generator
    from dcpcse.losses.token_masking import TokenMasking
    from dcpcse.utils.devices import pick_device

    folder = Path(args.output_dir)
    file = load_training_file(args.train_file, Path(args.cache_dir) / "dcpcse" if args.cache_dir else None)
    data, label = file.dataset, file.roles.label
    if label == CLASS:
        raise UserError(
            f"--train_file {args.train_file} has a column {label}, from which positives are drawn in every epoch, so "
            "they cannot be corrupted before the training; remove the column"
        )
    if len(positives := file.roles.positives) > 1:
        raise UserError(
            f"--train_file {args.train_file} has {len(positives)} columns of positives, and one is drawn in every "
            "epoch, so they cannot be corrupted before the training; keep one of them"
        )
    options = LoadOptions(cache_dir=args.cache_dir)
    tokenizer = load_tokenizer(args.model_name_or_path, options)
    generator = load_generator(args.generator_name, tokenizer, options)
    if args.max_seq_length > generator.max_tokens:
        room = generator.max_tokens
        raise UserError(
            f"--max_seq_length {args.max_seq_length} exceeds the {room} positions of the generator; use at most {room}"
        )
    masking = TokenMasking(tokenizer, args.masking_ratio)
    corruption = Corruption(masking, generator, args.generation, args.generate_at).to(pick_device(args.device))
    views = sentence_pair_views(data.column_names)
    collator = ViewCollator(tokenizer, views, args.max_seq_length, pad_to_max_length=True)
    shape = (len(data), len(views), args.max_seq_length)
    torch.manual_seed(args.seed)
    settings = {name: getattr(args, name) for name in ("masking_ratio", "generation", "generate_at", "seed")}
    record = {
        "shape": list(shape),
        "data": file.sha256,
        "vocabulary": vocabulary_fingerprint(tokenizer),
        "views": [view.name for view in views],
        "max_seq_length": args.max_seq_length,
        "generator": args.generator_name,
    }
    with atomic_folder(folder) as part:
        with Corpus.create(part, shape, len(tokenizer)) as add:
            share = _fill(add, data, collator, corruption, args.batch_size)
        Corpus.finish(part, {**record, **settings})
    notify(f"{len(data):,} examples in {folder}; {share:.1%} of their tokens are replaced")


def _fill(
    add: Callable[["np.ndarray"], None],
    data: Any,
    collator: "ViewCollator",
    corruption: "Corruption",
    batch_size: int,
) -> float:
    """Add the ids (n, views, L) of the corrupted examples batch by batch, and return the share of replaced tokens."""
    device = next(corruption.parameters()).device
    replaced = tokens = 0
    for start in tqdm(range(0, len(data), batch_size), desc="corrupt", mininterval=1, unit="batch"):
        batch = collator(data.__getitems__(list(range(start, min(start + batch_size, len(data))))))
        flat, mask = (batch[name].flatten(0, 1).to(device) for name in ("input_ids", "attention_mask"))
        corrupted = corruption(flat, mask)
        replaced, tokens = replaced + int((corrupted != flat).sum()), tokens + int(mask.sum())
        add(corrupted.cpu().numpy().reshape(batch["input_ids"].shape))
    return replaced / tokens


def corrupt_parser() -> CommandParser:
    """Return the parser of `dcpcse pretrain corrupt`."""
    parser = CommandParser(prog="dcpcse pretrain corrupt", description="Replace tokens once, before training.")
    parser.add_model("model_name_or_path", "Encoder to be trained.", metavar="ENCODER")
    parser.add_argument("--generator_name", required=True, help="Masked language model of its vocabulary (required)")
    parser.add_argument("--train_file", required=True, help="Training file, as for train.py (required)")
    parser.add_argument("--output_dir", required=True, help="Folder for the corpus, new or empty (required)")
    parser.add_argument("--max_seq_length", type=Whole(3), default=32, help="Tokens per sentence, as in training.")
    parser.add_argument("--masking_ratio", type=float, default=0.3, help="Share of the tokens that are masked.")
    parser.add_argument("--generation", choices=GENERATION_CHOICES, default="sample", help="How a token is chosen.")
    parser.add_argument("--generate_at", choices=GENERATE_AT_CHOICES, default="masked", help="Positions to replace.")
    parser.add_argument("--seed", type=SEED, default=42, help="Seed of the masks and the samples.")
    parser.add_argument("--batch_size", type=Whole(1), default=128, help="Batch size in examples.")
    parser.add_argument("--device", help="Device: cpu, cuda, ... Default: cuda if available.")
    parser.add_argument("--cache_dir", help="Folder for downloads and for the parsed training data.")
    return parser
