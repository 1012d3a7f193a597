"""`dcpcse reproduce --miniature`: test the claims of the papers on a small encoder.

This is a module of its own because the command has options of its own here.
"""

import argparse
import csv
import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prettytable import PrettyTable

from dcpcse.experiments.miniature.settings import (
    BASE,
    PAIRS,
    SMALL_ENCODERS,
    TRIPLETS,
    UNSUPERVISED,
    VARIANTS,
    Variant,
)
from dcpcse.experiments.reproduction.units import NLI_TRIPLETS, UNLABELLED
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.embedded import embedded_encoder
from dcpcse.utils.errors import UserError, did_you_mean, plural
from dcpcse.utils.files import file_sha256, require_output, require_writable, write_atomic, write_json_atomic
from dcpcse.utils.locks import exclusive_lock
from dcpcse.utils.option_fields import Whole

if TYPE_CHECKING:
    from dcpcse.experiments.miniature.units import MiniaturePlan

FLAG = "--miniature"
STARRED, ALL = "starred", "all"

DESCRIPTION = """Test the claims of the papers on a small encoder: train the methods for 150 steps each with several
seeds, choose their learning rates on STS-B dev, measure the seven STS tasks, and write a page with the claims that
hold. Finished trainings are not repeated: run the same command again after an interruption."""


def miniature_command(argv: Sequence[str]) -> None:
    """Run the command. Raises UserError or senteval.DataError for mistakes of the user."""
    args = miniature_parser().parse_args(list(argv))
    if args.rows:
        raise UserError(f"{FLAG} runs no rows of tables ({args.rows[0]}); leave out either the rows or {FLAG}")
    variants = _chosen(args.only)
    if args.list:
        print_result(variant_table(variants))
        return
    base, places = _places(args, variants)
    args.page = (args.page or args.output_dir / "miniature.md").resolve()
    # Imported here, since they import torch, which takes seconds.
    from dcpcse.experiments.miniature.settings import Sizes
    from dcpcse.experiments.miniature.units import DATA, SETTINGS, MiniaturePlan

    digests = {**_digests(base, places, variants), DATA: _data_digest(args)}
    sizes = Sizes() if args.limit is None else Sizes().at_most(args.limit)
    plan = MiniaturePlan(variants, args.output_dir, digests, sizes, args.custom_data)
    # Both raise UserError for units with other files or options before anything is written.
    settings = plan.settings()
    plan.next_units()
    if args.dry_run:
        print_result(plan_table(plan, args.jobs))
        return
    require_writable(args.output_dir, f"--output_dir {args.output_dir}")
    require_output(args.page, "page", overwrite=True)
    with exclusive_lock(args.output_dir, f"--output_dir {args.output_dir}"):
        write_json_atomic(args.output_dir / SETTINGS, settings)
        _run(args, plan, {**places, BASE: base, DATA: str(args.data_dir)})


def miniature_parser() -> CommandParser:
    """Return the parser of the command."""
    parser = CommandParser(f"dcpcse reproduce {FLAG}", description=DESCRIPTION)
    parser.add_argument(FLAG, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("rows", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[STARRED],
        metavar="VARIANT",
        help="variants to run: starred (what the headline claims need), all, or names of --list (default: starred)",
    )
    parser.add_argument("--list", action="store_true", help="list all variants, or those of --only")
    parser.add_argument(
        "--dry_run", "--dry-run", action="store_true", help="only print the plan, with estimated times"
    )
    parser.add_argument("--base", help="encoder: folder or hub id of a masked language model (default: data/encoder)")
    parser.add_argument("--unsup_file", type=Path, default=Path(UNLABELLED), help="training sentences, one per line")
    parser.add_argument("--sup_file", type=Path, default=Path(NLI_TRIPLETS), help="NLI triplets")
    parser.add_argument(
        "--data_dir", type=Path, default=Path("SentEval/data"), help="folder that contains downstream/ (%(default)s)"
    )
    parser.add_argument("--custom_data", action="store_true", help="the evaluation files are your own")
    parser.add_argument("--output_dir", type=Path, default=Path("result/miniature"), help="default: %(default)s")
    parser.add_argument("--page", type=Path, help="page to write (default: miniature.md in the output folder)")
    parser.add_argument(
        "--jobs",
        type=Whole(1),
        default=len(os.sched_getaffinity(0)),
        help="units to run at the same time; they share the cores (default: the number of cores)",
    )
    parser.add_argument("--limit", type=Whole(1), help="maximum number of optimiser steps of each training, for a try")
    parser.add_argument("--keep_models", action="store_true", help="keep the trained models after they are measured")
    return parser


def _chosen(names: Sequence[str]) -> list[Variant]:
    """Return the variants that are named. Raises UserError for an unknown name."""
    chosen: dict[str, Variant] = {}
    for name in names:
        if name in (STARRED, ALL):
            chosen |= {variant.name: variant for variant in VARIANTS.values() if name == ALL or variant.starred}
        elif name in VARIANTS:
            chosen[name] = VARIANTS[name]
        else:
            hint = did_you_mean(name, [STARRED, ALL, *VARIANTS]) or f"give {STARRED}, {ALL}, or names of variants;"
            raise UserError(f"--only {name} is unknown; {hint} --list --only all shows all variants")
    return [variant for name, variant in VARIANTS.items() if name in chosen]


def variant_table(variants: Sequence[Variant]) -> str:
    """Return a table of variants with their methods, seeds and options."""
    table = PrettyTable(["variant", "method", "seeds", "learning rate", "options"], align="l")
    for variant in variants:
        rate = "" if variant.method is None else "searched" if variant.search is None else f"of {variant.search}"
        options = {**variant.options, **variant.evaluation}
        words = ", ".join(f"{name} {value}" for name, value in options.items() if name != "train_file")
        seeds = "" if variant.method is None else len(variant.seeds)
        table.add_row(
            [f"{variant.name}{' *' if variant.starred else ''}", variant.method or "untouched", seeds, rate, words]
        )
    return f"{table}\n{plural(len(variants), 'variant')}; * headline claims need it"


def plan_table(plan: "MiniaturePlan", jobs: int) -> str:
    """Return a table of the units to do, with their estimated times, and the whole time on `jobs` cores."""
    from dcpcse.experiments.miniature.run import duration

    left = plan.estimates()
    table = PrettyTable(["unit", "seconds on one core"], align="l")
    table.align["seconds on one core"] = "r"
    for name, seconds in left.items():
        table.add_row([name, f"{seconds:,.0f}"])
    done = plan.total - len(left)
    time = f"about {duration(sum(left.values()) / jobs)} with {jobs} at the same time" if left else "nothing to do"
    return f"{table}\n{plural(plan.total, 'unit')}, {done} of them finished; {time}"


def _places(args: argparse.Namespace, variants: Sequence[Variant]) -> tuple[str, dict[str, str]]:
    """Return the encoder, and name in braces → path of each other file that the variants need.

    Raises UserError for files that do not exist. Paths are made absolute.
    """
    args.output_dir, args.data_dir = args.output_dir.resolve(), args.data_dir.resolve()
    if args.base is None:
        base = str(embedded_encoder())
    elif Path(args.base).is_dir():
        base = str(Path(args.base).resolve())
    elif args.base.startswith((".", "/", "~")):
        raise UserError(f"--base {args.base} does not exist; check the path")
    else:
        base = args.base
    used = {variant.options.get("train_file") for variant in variants}
    if any(variant.base in SMALL_ENCODERS for variant in variants):
        used.add(UNSUPERVISED)
    places = {}
    for option, names in {"unsup_file": (UNSUPERVISED,), "sup_file": (TRIPLETS, PAIRS)}.items():
        path = getattr(args, option)
        if used & {*names} and not path.is_file():
            raise UserError(f"--{option} {path} does not exist; give a file, or choose other variants by --only")
        places |= {name: str(path.resolve()) for name in names if name in used}
    if PAIRS in places:
        places[PAIRS] = str(args.output_dir / "pairs.csv")
        places.setdefault(TRIPLETS, str(args.sup_file.resolve()))
    places |= {f"{{{name}}}": str(args.output_dir / "encoders" / name / "encoder") for name in SMALL_ENCODERS}
    return base, places


def _digests(base: str, places: Mapping[str, str], variants: Sequence[Variant]) -> dict[str, str]:
    """Return name in braces → digest of the encoder and of the training files, which are checked.

    Raises UserError if the encoder cannot be loaded, or lacks the masked-LM head that a variant needs.
    """
    from dcpcse.encoders.backbones import load_backbone, vocabulary_fingerprint

    needs_head = any(_needs_lm_head(variant) for variant in variants if variant.base not in SMALL_ENCODERS)
    backbone = load_backbone(base, lm_head="checkpoint" if needs_head else None)
    encoder = f"{backbone.source.weights} {vocabulary_fingerprint(backbone.tokenizer)}"
    digests = {BASE: hashlib.sha256(encoder.encode()).hexdigest()}
    for name in (UNSUPERVISED, TRIPLETS):
        if name in places:
            digests[name] = file_sha256(places[name])
    if TRIPLETS in places:
        _require_triplets(Path(places[TRIPLETS]))
    return {**digests, PAIRS: digests[TRIPLETS]} if PAIRS in places else digests


def _needs_lm_head(variant: Variant) -> bool:
    """Return whether a variant uses the masked-LM head of its encoder."""
    is_used = variant.options.get("do_mlm") or variant.options.get("generator_name") == BASE
    return bool(is_used or variant.evaluation.get("pooler_type") in ("top_k", "static_lm_head"))


def _require_triplets(path: Path) -> None:
    from dcpcse.data.columns import ROLES
    from dcpcse.data.training_data import load_training_file

    columns = load_training_file(str(path)).roles
    if columns != ROLES:
        raise UserError(
            f"--sup_file {path} has the columns {', '.join(columns)}; give triplets: a sentence, one that follows "
            "from it, and a hard negative"
        )


def _data_digest(args: argparse.Namespace) -> str:
    """Return the digest of the evaluation data, which are checked. Raises senteval.DataError for faults in them."""
    from dcpcse.experiments.miniature.measure import load_protocol

    files = load_protocol(args.data_dir, custom_data=args.custom_data).files
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _write_pairs(triplets: str, target: Path) -> None:
    """Write the triplets without their hard negatives."""
    from dcpcse.data.training_data import load_training_file

    rows = load_training_file(triplets).dataset
    first, second = rows.column_names[:2]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["sent0", "sent1"])
    writer.writerows(zip(rows[first], rows[second], strict=True))
    write_atomic(target, text.getvalue())


def _run(args: argparse.Namespace, plan: "MiniaturePlan", places: Mapping[str, str]) -> None:
    """Run all units, write the page, and print the claims. Raises UserError for units that did not finish."""
    from dcpcse.experiments.miniature.page import claims_table, write_page
    from dcpcse.experiments.miniature.run import duration, process_starter, run_units

    if PAIRS in places:
        _write_pairs(places[TRIPLETS], Path(places[PAIRS]))
    left = plan.estimates()
    time = f"; about {duration(sum(left.values()) / args.jobs)}" if left else ""
    notify(f"{plural(plan.total, 'unit')}, {plan.total - len(left)} of them finished{time}")
    threads = max(1, len(os.sched_getaffinity(0)) // args.jobs)
    failures = run_units(plan, args.jobs, process_starter(places, threads, args.keep_models))
    if all(plan.pretraining(name).is_done for name in SMALL_ENCODERS):
        _store_tokens(plan, places)
    results = write_page(plan.output, args.page, args.data_dir, custom_data=args.custom_data, base=args.base)
    print_result(claims_table(results.answers))
    notify(f"the page is {args.page}")
    if failures:
        raise UserError(f"{plural(len(failures), 'unit')} failed: {'; '.join(failures.values())}")


def _store_tokens(plan: "MiniaturePlan", places: Mapping[str, str]) -> None:
    """Write what the page shows of the token embeddings of the small encoders, unless this is done."""
    from dcpcse.experiments.miniature.pictures import TOKENS, store_tokens

    if not (plan.output / TOKENS).is_file() and UNSUPERVISED in places:
        encoders = {name: Path(places[f"{{{name}}}"]) for name in SMALL_ENCODERS}
        store_tokens(plan.output, encoders, Path(places[UNSUPERVISED]))
