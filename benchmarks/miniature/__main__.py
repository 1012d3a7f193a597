"""Run the unfinished units of the miniature, several at the same time, and write the page."""

import argparse
import csv
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from subprocess import Popen

from senteval import DataError

import dcpcse
from benchmarks.miniature import page, pictures, units
from benchmarks.miniature.unit import load_data, write
from benchmarks.miniature.units import BASE, DATA, PAIRS, TRIPLETS, UNSUPERVISED, VARIANTS, Plan, Unit, Variant
from dcpcse.utils.environment import system_info

ROOT = Path(__file__).parents[2]

# Name in braces → option that gives the file; --sup_file gives the others.
OPTIONS = {BASE: "--base", DATA: "--data_dir", UNSUPERVISED: "--unsup_file"}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser("python -m benchmarks.miniature", description=__doc__)
    names = "starred (what the headline claims need), all, or names in variants.yaml (default: starred)"
    parser.add_argument("--only", nargs="+", default=["starred"], metavar="VARIANT", help=names)
    parser.add_argument("--base", help="encoder: folder or hub id of a masked language model (default: data/encoder)")
    parser.add_argument("--unsup_file", type=Path, help="training sentences, one per line")
    parser.add_argument("--sup_file", type=Path, help="NLI triplets: a CSV file of three columns with a header")
    parser.add_argument("--data_dir", type=Path, default=Path("SentEval/data"), help="folder with downstream/ in it")
    parser.add_argument("--custom_data", action="store_true", help="the evaluation files are your own")
    parser.add_argument("--output_dir", type=Path, default=Path("result/miniature"), help="default: %(default)s")
    parser.add_argument("--page", type=Path, help="page to write (default: miniature.md in the output folder)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="units at the same time (default: number of cores)")
    parser.add_argument("--limit", type=int, help="maximum number of optimiser steps of each training, for a try")
    parser.add_argument("--keep_models", action="store_true", help="keep the trained models after they are measured")
    return parser


def chosen(names: Sequence[str]) -> list[Variant]:
    """Return the variants that are named, in the order of `VARIANTS`. Ends the program for an unknown name."""
    if unknown := set(names) - {*VARIANTS, "starred", "all"}:
        raise SystemExit(f"error: --only {min(unknown)} is unknown; give starred, all, or names in variants.yaml")
    kept = {*names} | ({*VARIANTS} if "all" in names else set())
    return [one for one in VARIANTS.values() if one.name in kept or ("starred" in names and one.starred)]


def find_files(args: argparse.Namespace, variants: Sequence[Variant]) -> tuple[dict[str, str], dict[str, str]]:
    """Return name in braces → path, and → digest, of all that the variants use; faults in the data end the program."""
    base = args.base or str(ROOT / "data/encoder")
    places = {BASE: str(Path(base).resolve()) if Path(base).is_dir() else base, DATA: str(args.data_dir.resolve())}
    places |= {f"{{{name}}}": str(args.output_dir / "encoders" / name / "encoder") for name in units.SMALL_ENCODERS}
    encoder = dcpcse.load(places[BASE], pooler="avg")
    vocabulary = hashlib.sha256(repr(sorted(encoder.tokenizer.get_vocab().items())).encode()).hexdigest()
    digests = {BASE: hashlib.sha256(f"{encoder.source.weights} {vocabulary}".encode()).hexdigest()}
    suites = load_data(args.data_dir, args.custom_data)
    digests[DATA] = units.json_digest({name: facts["sha256"] for one in suites for name, facts in one.files.items()})
    trained = {name for one in variants if one.method for name in (one.name, one.family)}
    used = {VARIANTS[name].options["train_file"] for name in trained}
    used |= {UNSUPERVISED for one in variants if one.base != BASE}
    for name in used:
        path = args.unsup_file if name == UNSUPERVISED else args.sup_file
        if path is None or not path.is_file():
            raise SystemExit(
                f"error: {OPTIONS.get(name, '--sup_file')} {path} does not exist; give a file, or change --only"
            )
        places[name], digests[name] = str(path.resolve()), hashlib.sha256(path.read_bytes()).hexdigest()
    if PAIRS in used or TRIPLETS in used:
        with args.sup_file.open(encoding="utf-8", newline="") as file:
            rows = [*csv.reader(file)]
        if {len(row) for row in rows} != {3}:
            raise SystemExit(f"error: --sup_file {args.sup_file}: rows need two sentences and a hard negative")
        places[PAIRS] = str(args.output_dir / "pairs.csv")
        with open(places[PAIRS], "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["sent0", "sent1"], *(row[:2] for row in rows[1:])])
    return places, digests


def require_same(plan: Plan) -> None:
    """Record sizes and digests. Ends the program if earlier units of the folder, which the page shows, had others."""
    sizes, earlier = dict(plan.sizes), units.read_json(plan.output / units.SETTINGS) or {}
    inputs = {**earlier.get("inputs", {}), **plan.inputs}
    other = [
        OPTIONS.get(name, "--sup_file") for name, digest in earlier.get("inputs", {}).items() if inputs[name] != digest
    ]
    if earlier.get("sizes", sizes) != sizes:
        other.append("--limit")
    if other:
        raise SystemExit(
            f"error: {plan.output} contains units with another {other[0]}; give the same, or another --output_dir"
        )
    write(plan.output / units.SETTINGS, {"sizes": sizes, "inputs": inputs})


def run_units(plan: Plan, jobs: int, places: Mapping[str, str], keep_models: bool = False) -> list[str]:
    """Run all units that are not finished, `jobs` at the same time. Returns the names of those that did not finish.

    A unit that ends with an error is not run again by this call; the others continue. The processes end if this
    function is interrupted.
    """
    threads = str(max(1, len(os.sched_getaffinity(0)) // jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    recorded = system_info()
    recorded["hardware"]["threads"] = int(threads)  # of each unit, not of this process
    facts = json.dumps({"places": dict(places), "parent": os.getpid(), "keep_models": keep_models})
    running: dict[Path, tuple[Unit, Popen, float]] = {}
    broken, estimated, actual = [], 0.0, 0.0
    try:
        while True:
            waiting = [unit for unit in plan.ready() if unit.folder not in running and unit.name not in broken]
            for unit in waiting[: jobs - len(running)]:
                write(unit.folder / units.RECORD, {**unit.record, "environment": recorded})
                command = [sys.executable, "-m", "benchmarks.miniature.unit", str(unit.folder), facts]
                with (unit.folder / units.LOG).open("a") as log:
                    process = Popen(command, stdout=log, stderr=log, env=environment, cwd=ROOT)
                running[unit.folder] = unit, process, time.monotonic()
            if not running:
                return broken
            while not (ended := [job for job in running.values() if job[1].poll() is not None]):
                time.sleep(0.2)
            for unit, _, started in ended:
                del running[unit.folder]
                broken += [] if unit.is_done else [unit.name]
                estimated, actual = estimated + unit.seconds, actual + time.monotonic() - started
                progress = plan.progress()
                left = sum(seconds for seconds, is_done in progress if not is_done) * actual / estimated / jobs
                done, time_left = sum(is_done for _, is_done in progress), timedelta(seconds=round(left))
                print(f"{done} of {len(progress)}: {unit.name}: {outcome(unit)}; about {time_left} left", flush=True)
    finally:
        for _, process, _ in running.values():
            process.terminate()


def outcome(unit: Unit) -> str:
    """Return the main scores of a unit that has ended, or why it failed."""
    if failure := units.read_json(unit.folder / units.FAILURE):
        return f"failed: {failure['reason']}"
    if not unit.is_done:
        lines = (unit.folder / units.LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        return f"ended with an error, see {unit.folder / units.LOG}: {lines[-1] if lines else ''}"
    scores = (units.read_json(unit.folder / units.SCORES) or {"scores": {}})["scores"]
    return ", ".join(f"{name} {scores[name]:.2f}" for name in ("avg", "stsb_dev") if name in scores) or "finished"


def main() -> None:
    """Run the command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args = parser().parse_args()
    variants, args.output_dir = chosen(args.only), args.output_dir.resolve()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    lock = (args.output_dir / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # waits for the end of another run in this folder
    places, inputs = find_files(args, variants)
    limited = {name: min(size, args.limit or size) for name, size in units.SIZES.items() if name.endswith("steps")}
    plan = Plan(variants, args.output_dir, inputs, {**units.SIZES, **limited}, args.custom_data)
    require_same(plan)
    broken = run_units(plan, max(1, args.jobs), places, args.keep_models)
    tokens, encoders = plan.output / "tokens.png", {name: places[f"{{{name}}}"] for name in units.SMALL_ENCODERS}
    if not tokens.is_file() and all(Path(place, "model.safetensors").is_file() for place in encoders.values()):
        models = [f"{name}={place}" for name, place in encoders.items()]
        pictures.plot("tokens", [*models, "--matrix", "input", "mlm_head", "--text", places[UNSUPERVISED]], tokens)
    target = (args.page or args.output_dir / "miniature.md").resolve()
    answers = page.write_page(plan.output, target, args.data_dir, custom_data=args.custom_data, base=args.base)
    print(f"{page.claims_table(answers)}\nthe page is {target}")
    if broken:
        raise SystemExit(f"error: {len(broken)} units did not finish: {', '.join(broken)}; see their {units.LOG}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; finished units are kept: run the same command again to go on")
    except (dcpcse.UserError, DataError) as error:
        sys.exit(f"error: {error}")
