"""Measure when prompts help on texts of a domain (the tables of docs/when-prompts-help.md).

    python benchmarks/domains.py --encoder sentence=ENCODER --encoder raw=data/encoder --data_dir DIR --output_dir OUT

The script trains on StackOverflow and biomedical titles, and tests on 4,000 other titles. It compares prompts, LoRA,
training of the whole encoder, and the trainer of sentence-transformers with its MultipleNegativesRankingLoss. Every
unit is one training with its test, in a separate process. Finished units are not run again. --report DIR prints the
tables of the finished units.

The tasks:

    few     train on 16 titles of each of the 20 classes, with their classes; test on other titles of these classes
    pairs   train on 1,000 pairs of titles of the same class, from 10 classes; test on the other 10 classes
    plain   train on 10,000 titles without classes
    mined   like pairs, with a hard negative that `dcpcse.mine` found among the titles of the 10 classes
    random  like pairs, with a random title of the 10 classes as the negative
    eight   train on 8 titles of each class; test a logistic regression on these titles, as in SetFit; also on the
            questions of TREC

For each way of training, the best of three learning rates is chosen with seed 0, on 400 other titles (dev) of the
classes in the training data. Seeds 1 and 2 use this learning rate.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

STEPS, BATCH = 50, 32
SEEDS = (0, 1, 2)
DEV, TEST = 400, 4000
Texts = list[str]
Embed = Callable[[Texts], np.ndarray]


@dataclass(frozen=True)
class Side:
    """A way to train. options: those of dcpcse.train; None for another library."""

    rates: tuple[float, ...]
    options: Mapping[str, object] | None = None


DEEP = {"method": "dcpcse", "tuning": "deep", "position_offset": 0, "prompt_dropout": 0.0, "pre_seq_len": 16}
LORA = {"method": "simcse", "tuning": "lora"}
LABELS = {"temp": 0.1}
# Two copies of a text are so similar that nothing is left to learn at a low temperature.
COPIES, CROPS = {"temp": 0.2}, {"temp": 0.2, "positive": "crop"}
SIDES = {
    "untouched": Side(()),
    "prompts": Side((3e-3, 1e-2, 3e-2), DEEP | LABELS),
    "LoRA": Side((3e-4, 1e-3, 3e-3), LORA | LABELS),
    "full": Side((1e-5, 3e-5, 1e-4), {"method": "simcse", **LABELS}),
    "shallow": Side((1e-3, 1e-2, 3e-2), {"method": "scpcse", "pooler_type": "mask", **LABELS}),
    "prompts, dropout": Side((1e-3, 3e-3, 1e-2), DEEP | COPIES),
    "prompts, crop": Side((1e-3, 3e-3, 1e-2), DEEP | CROPS),
    "LoRA, dropout": Side((1e-4, 3e-4, 1e-3), LORA | COPIES),
    "LoRA, crop": Side((1e-4, 3e-4, 1e-3), LORA | CROPS),
    "MNR": Side((1e-5, 3e-5, 1e-4)),
    "SetFit": Side((2e-5,)),
}
"""MNR and SetFit are trained by sentence-transformers: SetFit's body is trained with CosineSimilarityLoss."""

OURS = ["untouched", "prompts", "LoRA", "full"]
TASKS = {
    "few": [*OURS, "MNR", "shallow"],
    "pairs": [*OURS, "MNR"],
    "plain": ["untouched", "prompts, dropout", "prompts, crop", "LoRA, dropout", "LoRA, crop"],
    "mined": ["prompts"],
    "random": ["prompts"],
    "eight": [*OURS, "SetFit"],
}
"""Task → its sides."""

SAME_TEXTS = {"mined": "pairs", "random": "pairs"}
"""Task → the task whose texts and rates it has."""


@dataclass(frozen=True)
class Unit:
    """A training with its test. encoder, data: their names. side: a key of SIDES."""

    encoder: str
    data: str
    task: str
    side: str
    rate: float | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        rate = "" if self.rate is None else f"-{self.rate:g}"
        return f"{self.encoder}-{self.data}-{self.task}-{self.side.replace(', ', '-')}{rate}-{self.seed}"


@dataclass(frozen=True)
class Split:
    """The texts of a task. train: rows to train on. dev, test: texts and their classes. corpus: texts to mine from."""

    train: list[tuple[str, str]]
    dev: list[tuple[str, str]]
    test: list[tuple[str, str]]
    corpus: Texts


@cache
def labelled(path: Path) -> dict[str, Texts]:
    """Return the distinct texts of each class in random order, always the same. A text of two classes is left out."""
    lines = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()]
    classes: dict[str, set[str]] = {}
    for name, text in lines:
        classes.setdefault(text.strip(), set()).add(name)
    found: dict[str, Texts] = {}
    for text, names in sorted(classes.items()):
        if len(names) == 1 and text:
            found.setdefault(*names, []).append(text)
    for name in sorted(found, key=int):
        Random(f"{path.name} {name}").shuffle(found[name])
    return {name: found[name] for name in sorted(found, key=int)}


def split_of(path: Path, task: str) -> Split:
    """Return the texts of a task, the same for all sides and seeds."""
    classes = labelled(path)
    names, random = [*classes], Random(f"{path.name} {SAME_TEXTS.get(task, task)}")
    if task in ("few", "eight", "plain"):
        each = {"few": 16, "eight": 8, "plain": 500}[task]
        train = [(text, name) for name in names for text in classes[name][:each]]
        dev = [(text, name) for name in names for text in classes[name][500 : 500 + DEV // len(names)]]
        rest = [(text, name) for name in names for text in classes[name][500 + DEV // len(names) :]]
        return Split(random.sample(train, len(train)), dev, random.sample(rest, TEST), [])
    trained, others = names[::2], names[1::2]
    dev = [(text, name) for name in trained for text in classes[name][: DEV // len(trained)]]
    texts = {name: classes[name][DEV // len(trained) :] for name in trained}
    each = 1000 // len(trained)
    pairs = [pair for name in trained for pair in zip(texts[name][:each], texts[name][each : 2 * each], strict=True)]
    rest = [(text, name) for name in others for text in classes[name]]
    corpus = [text for name in trained for text in texts[name]]
    return Split(random.sample(pairs, len(pairs)), dev, random.sample(rest, TEST), corpus)


def trec(folder: Path) -> Split:
    """Return 8 questions of each class of TREC, and its test questions. There is no dev part."""

    def read(name: str) -> list[tuple[str, str]]:
        lines = (folder / name).read_text(encoding="latin-1").splitlines()
        return [(line.split(" ", 1)[1], line.split(":", 1)[0]) for line in lines if line.strip()]

    rows = read("train_5500.label")
    Random("TREC").shuffle(rows)
    train = [row for name in sorted({name for _, name in rows}) for row in [r for r in rows if r[1] == name][:8]]
    return Split(train, [], read("TREC_10.label"), [])


def mean_precision(embed: Embed, rows: list[tuple[str, str]]) -> np.ndarray:
    """Return the average precision of each text, as a search for the other texts of its class."""
    from dcpcse.experiments.adaptation.measures import own_class

    texts, names = zip(*rows, strict=True)
    return own_class("test", {"anchor": texts, "class": names}).outcomes(embed)


def clustering(vectors: np.ndarray, names: Sequence[str]) -> tuple[float, float]:
    """Return accuracy and NMI of K-means × 100, the mean of 5 runs with one start each."""
    from senteval.clustering import matched_accuracy
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    labels = np.unique(names, return_inverse=True)[1]
    runs = [KMeans(labels.max() + 1, n_init=1, random_state=seed).fit_predict(vectors) for seed in range(5)]
    accuracy = np.mean([matched_accuracy(labels, run) for run in runs])
    return 100 * float(accuracy), 100 * float(np.mean([normalized_mutual_info_score(labels, run) for run in runs]))


def examples_of(unit: Unit, split: Split, folder: Path, encoder: str) -> object:
    """Return the training data of a unit as an object that dcpcse.train takes."""
    if unit.task in ("few", "eight"):
        texts, names = zip(*split.train, strict=True)
        return {"sentence": list(texts), "class": [f"class {name}" for name in names]}
    if unit.task == "plain":
        return [text for text, _ in split.train]
    if unit.task == "random":
        random = Random(f"negatives {unit.seed}")
        return [(anchor, positive, random.choice(split.corpus)) for anchor, positive in split.train]
    if unit.task == "mined":
        import dcpcse

        pairs, output = split.train, folder / "mined.csv"
        options = {"relative_margin": 0.05, "range_max": 1000, "output": output, "show_progress": False}
        dcpcse.mine(dcpcse.load(encoder, pooler="avg"), pairs, corpus=split.corpus, **options)
        return str(output)
    return split.train


def train_here(unit: Unit, split: Split, folder: Path, encoder: str) -> tuple[Embed, dict[str, float]]:
    """Train with dcpcse, and return the encoder with trained parameters, bytes of the folder, and seconds."""
    import dcpcse

    data = examples_of(unit, split, folder, encoder)
    started = time.monotonic()
    result = dcpcse.train(
        encoder,
        data,
        output_dir=folder / "run",
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=unit.rate,
        seed=unit.seed,
        bf16=False,  # the precision of a CPU, also on a GPU
        disable_tqdm=True,
        save_strategy="no",
        report_to="none",
        **{"pooler_type": "avg", **SIDES[unit.side].options},
    )
    seconds = time.monotonic() - started
    trained = sum(p.numel() for p in result.trainer.step_module.model.parameters() if p.requires_grad)
    size = sum(file.stat().st_size for file in (folder / "run").glob("*.safetensors"))
    return lambda texts: result.model.encode(texts), {"trained": trained, "bytes": size, "seconds": seconds}


def class_pairs(split: Split, number: int, seed: int) -> list[tuple[str, str]]:
    """Return `number` pairs of texts of one class; every text is an anchor equally often."""
    random, pairs = Random(f"pairs {seed}"), []
    while len(pairs) < number:
        for text, name in random.sample(split.train, len(split.train)):
            pairs.append((text, random.choice([one for one, other in split.train if other == name and one != text])))
    return pairs[:number]


def train_there(unit: Unit, split: Split, folder: Path, encoder: str) -> tuple[Embed, dict[str, float]]:
    """Train the whole encoder with sentence-transformers, and return the same as `train_here`."""
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )

    torch.manual_seed(unit.seed)
    model = SentenceTransformer(encoder, device="cpu")
    steps, batch = STEPS, BATCH
    if unit.side == "SetFit":  # as SetFit with num_iterations=20: a pair of one class and one of two for each text
        random, batch = Random(unit.seed), 16
        rows = [(*pair, 1.0) for pair in class_pairs(split, 20 * len(split.train), unit.seed)]
        for text, name in split.train * 20:
            rows.append((text, random.choice([one for one, other in split.train if other != name]), 0.0))
        steps = len(rows) // batch
        names, loss = ("sentence1", "sentence2", "score"), losses.CosineSimilarityLoss
    else:
        rows = class_pairs(split, STEPS * BATCH, unit.seed) if unit.task == "few" else split.train
        names, loss = ("anchor", "positive"), losses.MultipleNegativesRankingLoss
    columns = {name: list(cells) for name, cells in zip(names, zip(*rows, strict=True), strict=True)}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "run"),
        max_steps=steps,
        per_device_train_batch_size=batch,
        learning_rate=unit.rate,
        seed=unit.seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    started = time.monotonic()
    SentenceTransformerTrainer(model, arguments, train_dataset=Dataset.from_dict(columns), loss=loss(model)).train()
    seconds = time.monotonic() - started
    numbers = sum(p.numel() for p in model.parameters())
    return lambda texts: model.encode(texts), {"trained": numbers, "bytes": 4 * numbers, "seconds": seconds}


def encoder_of(unit: Unit, split: Split, folder: Path, encoder: str) -> tuple[Embed, dict[str, float]]:
    """Return the encoder of a unit, trained if its side trains."""
    if unit.side == "untouched":
        import dcpcse

        model = dcpcse.load(encoder, pooler="avg")
        return lambda texts: model.encode(texts), {}
    train = train_there if SIDES[unit.side].options is None else train_here
    return train(unit, split, folder, encoder)


def run_unit(unit: Unit, split: Split, output: Path, encoder: str) -> None:
    """Train, test, and write the figures and the average precision of every test text."""
    from sklearn.linear_model import LogisticRegression

    with tempfile.TemporaryDirectory() as folder:
        embed, figures = encoder_of(unit, split, Path(folder), encoder)
        figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        texts = list(dict.fromkeys(text for text, _ in (*split.train, *split.dev, *split.test)))
        if unit.task != "eight":
            texts = list(dict.fromkeys(text for text, _ in (*split.dev, *split.test)))
        vectors = embed(texts)
        vectors = dict(zip(texts, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), strict=True))

    def of(some: Texts) -> np.ndarray:
        return np.stack([vectors[text] for text in some])

    names = [name for _, name in split.test]
    if unit.task == "eight":
        fitted = LogisticRegression(max_iter=1000).fit(of([t for t, _ in split.train]), [n for _, n in split.train])
        values = (fitted.predict(of([text for text, _ in split.test])) == np.array(names)).astype(float)
        figures["score"] = 100 * values.mean()
    else:
        values = mean_precision(of, split.test)
        figures["score"], figures["dev"] = 100 * values.mean(), 100 * mean_precision(of, split.dev).mean()
        figures["accuracy"], figures["nmi"] = clustering(of([text for text, _ in split.test]), names)
    np.save(output / f"{unit.name}.npy", values.astype(np.float32))
    written = output / f"{unit.name}.json.part"
    written.write_text(json.dumps({"unit": asdict(unit), **figures}, indent=1) + "\n", encoding="utf-8")
    os.replace(written, output / f"{unit.name}.json")


def finished(output: Path) -> dict[Unit, dict[str, float]]:
    """Return the figures of the units that are finished."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(output.glob("*.json"))]
    return {Unit(**one.pop("unit")): one for one in read}


def best_rate(done: Mapping[Unit, Mapping[str, float]], encoder: str, data: str, task: str, side: str) -> float | None:
    """Return the rate with the best dev score with seed 0, or None if not all rates were tried."""
    rates = SIDES[side].rates
    tried = {rate: done.get(Unit(encoder, data, task, side, rate)) for rate in rates}
    return max(rates, key=lambda rate: tried[rate]["dev"]) if rates and all(tried.values()) else None


def next_units(done: Mapping[Unit, object], encoder: str, data: str, task: str, side: str) -> list[Unit]:
    """Return the units of a side that can be run now: three rates, then two more seeds of the best."""
    if side == "untouched":
        return [Unit(encoder, data, task, side)]
    if task == "eight":
        other = "stackoverflow" if data == "trec" else data
        rate = 2e-5 if side == "SetFit" else best_rate(done, encoder, other, "few", side)
        return [] if rate is None else [Unit(encoder, data, task, side, rate)]
    source = SAME_TEXTS.get(task, task)
    rate = best_rate(done, encoder, data, source, side)
    if rate is None and source == task:
        return [Unit(encoder, data, task, side, one) for one in SIDES[side].rates]
    return [] if rate is None else [Unit(encoder, data, task, side, rate, seed) for seed in SEEDS]


def planned(args: argparse.Namespace, done: Mapping[Unit, object]) -> Iterator[Unit]:
    """Yield the units that are not finished and can be run, in the order of --tasks."""
    for encoder in args.encoders:
        for task in args.tasks:
            for data in [*args.data, *(["trec"] if task == "eight" and args.trec else [])]:
                for side in [side for side in TASKS[task] if side in args.sides]:
                    yield from (unit for unit in next_units(done, encoder, data, task, side) if unit not in done)


def compared(output: Path, first: Sequence[Unit], second: Sequence[Unit]) -> tuple[float, float, float]:
    """Return the mean score of the second units less that of the first, with its interval over texts and seeds."""
    from dcpcse.evaluation.significance import Outcomes, difference, resample

    values = [np.stack([np.load(output / f"{unit.name}.npy") for unit in units]) for units in (first, second)]
    seedless = [place for place, units in enumerate((first, second)) if units[0].side == "untouched"]
    found = difference(resample(Outcomes("mean", values, examples="texts")), 0, 1, seedless=seedless)
    return 100 * found.value, 100 * found.low, 100 * found.high


def rows_of(output: Path) -> list[dict[str, object]]:
    """Return a row for each encoder, task, data set and side: means over seeds, and the difference to untouched."""
    done = finished(output)
    rows = []
    for kind in dict.fromkeys((unit.encoder, unit.task, unit.data, unit.side) for unit in done):
        encoder, task, data, side = kind
        units = [unit for unit in done if (unit.encoder, unit.task, unit.data, unit.side) == kind]
        by_rate = {f"{unit.rate:g}": done[unit] for unit in units if unit.rate and unit.seed == 0}
        rate = best_rate(done, encoder, data, task, side) if task in ("few", "pairs", "plain") else units[0].rate
        units = [unit for unit in units if unit.rate == rate]
        if not units:
            continue
        figures = [done[unit] for unit in units]
        row = {"encoder": encoder, "task": task, "data": data, "side": side, "rate": rate, "seeds": len(units)}
        row |= {name: float(np.mean([one[name] for one in figures])) for name in figures[0]}
        row["scores"] = [one["score"] for one in figures]
        row["dev by rate"] = {rate: figures.get("dev") for rate, figures in by_rate.items()}
        row["test by rate"] = {rate: figures["score"] for rate, figures in by_rate.items()}
        source = SAME_TEXTS.get(task, task)
        untouched = Unit(encoder, data, source, "untouched")
        if side != "untouched" and untouched in done:
            row["less untouched"] = compared(output, [untouched], units)
        random = [Unit(encoder, data, "random", side, rate, seed) for seed in SEEDS]
        if task == "mined" and all(unit in done for unit in random):
            row["less random"] = compared(output, random, units)
        rows.append(row)
    order = {name: place for place, name in enumerate([*TASKS, *SIDES])}
    return sorted(rows, key=lambda row: (row["encoder"], order[row["task"]], row["data"], order[row["side"]]))


def interval(found: tuple[float, float, float] | None) -> str:
    """Return a difference with its interval."""
    return "" if found is None else f"{found[0]:+.2f} [{found[1]:+.2f}, {found[2]:+.2f}]"


def report(output: Path, target: Path) -> None:
    """Write the rows as json, and print a table of scores for each encoder and task, and one of costs."""
    rows = rows_of(output)
    target.mkdir(parents=True, exist_ok=True)
    (target / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for group in dict.fromkeys((row["encoder"], row["task"]) for row in rows):
        print(f"\n{' encoder, task '.join(group)}\n")
        print("| data | | rate | score | minus untouched | accuracy | NMI |\n|---|---|---|---|---|---|---|")
        for row in rows:
            if (row["encoder"], row["task"]) == group:
                spread = f" ± {np.std(row['scores'], ddof=1):.2f}" if row["seeds"] > 1 else ""
                rate = f"{row['rate']:g}" if row["rate"] else ""
                clusters = [f"{row[name]:.2f}" if name in row else "" for name in ("accuracy", "nmi")]
                cells = [row["data"], row["side"], rate, f"{row['score']:.2f}{spread}"]
                print("| " + " | ".join([*cells, interval(row.get("less untouched")), *clusters]) + " |")
                if "less random" in row:
                    print(f"mined minus random negatives, {row['data']}: {interval(row['less random'])}")
    print("\n| | trained | MB | seconds | peak MB |\n|---|---|---|---|---|")
    for row in rows:
        if row["rate"] and row["task"] == "few":
            name = f"{row['encoder']}, {row['data']}, {row['side']}"
            cost = f"{row['trained']:,.0f} | {row['bytes'] / 1e6:.2f} | {row['seconds']:.0f} | {row['peak_mb']:,.0f}"
            print(f"| {name} | {cost} |")
    draw_differences([row for row in rows if "less untouched" in row], target / "differences.png")
    draw_rates([row for row in rows if len(row["dev by rate"]) > 1], target / "rates.png")


TITLES = {
    "few": "16 titles of each class",
    "eight": "8 texts of each class",
    "pairs": "pairs, tested on other classes",
    "mined": "pairs, mined negative",
    "random": "pairs, random negative",
    "plain": "plain text",
}
"""Task → its words in the pictures, from top to bottom."""

DATA = {"stackoverflow": "StackOverflow", "biomedical": "biomedical titles", "trec": "TREC questions"}
COLOURS = {"prompts": "tab:blue", "LoRA": "tab:orange", "full": "tab:gray", "MNR": "tab:olive", "SetFit": "tab:brown"}
WORDS = {
    "full": "whole encoder",
    "MNR": "whole encoder, MNR loss",
    "SetFit": "SetFit's recipe",
    "shallow": "shallow prompts",
}
"""Side → its words in the pictures, if they are not its name."""


def draw_differences(rows: Sequence[Mapping[str, object]], picture: Path) -> None:
    """Draw the difference of each row to the untouched encoder as a point with its interval.

    There is a row of panels for each encoder, with a column for each data set.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    encoders = sorted({row["encoder"] for row in rows}, reverse=True)
    data = [name for name in DATA if any(row["data"] == name for row in rows)]
    order, sides = [*TITLES], [*SIDES]
    lines = {
        encoder: sorted(
            {(row["task"], row["side"]) for row in rows if row["encoder"] == encoder},
            key=lambda line: (order.index(line[0]), sides.index(line[1])),
        )
        for encoder in encoders
    }
    heights = [len(lines[encoder]) + 4 for encoder in encoders]
    size = (3.2 + 3.1 * len(data), 0.22 * sum(heights) + 0.4)
    figure, axes = plt.subplots(
        len(encoders), len(data), figsize=size, squeeze=False, sharey="row", height_ratios=heights
    )
    for encoder, panels in zip(encoders, axes, strict=True):
        places = {line: place for place, line in enumerate(lines[encoder])}
        for name, axis in zip(data, panels, strict=True):
            for row in rows:
                if (row["encoder"], row["data"]) == (encoder, name):
                    colour = COLOURS.get(row["side"].partition(",")[0], "tab:cyan")
                    place, (value, *interval) = places[row["task"], row["side"]], row["less untouched"]
                    axis.plot(interval, [place, place], color=colour, linewidth=2)
                    axis.plot(value, place, "o", color=colour, markersize=5)
            axis.axvline(0, color="black", linewidth=0.8)
            for (task, _), (following, _), place in zip(
                lines[encoder], lines[encoder][1:], places.values(), strict=False
            ):
                if task != following:
                    axis.axhline(place + 0.5, color="lightgray", linewidth=0.8)
            axis.set_title(f"{encoder} encoder, {DATA[name]}", fontsize=9)
            axis.set_xlabel("difference to the untouched encoder, 95 % interval", fontsize=8)
            axis.tick_params(labelsize=8)
            axis.set_visible(any((row["encoder"], row["data"]) == (encoder, name) for row in rows))
        panels[0].set_yticks([*places.values()], [f"{TITLES[task]}: {WORDS.get(side, side)}" for task, side in places])
        panels[0].set_ylim(len(places) - 0.5, -0.5)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def draw_rates(rows: Sequence[Mapping[str, object]], picture: Path) -> None:
    """Draw the dev and test scores of each side over the learning rate: a row of panels per encoder and task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    order = [*TITLES]
    groups = sorted(
        {(row["encoder"], row["task"]) for row in rows}, key=lambda one: (one[0] == "raw", order.index(one[1]))
    )
    data = [name for name in DATA if any(row["data"] == name for row in rows)]
    size = (4.2 * len(data), 2 * len(groups) + 0.9)
    figure, axes = plt.subplots(len(groups), len(data), figsize=size, squeeze=False, layout="constrained")
    panels = {(*group, name): axes[i, j] for i, group in enumerate(groups) for j, name in enumerate(data)}
    for (encoder, task, name), axis in panels.items():
        axis.set_xscale("log")
        axis.set_title(f"{encoder} encoder, {DATA[name]}: {TITLES[task]}", fontsize=8)
        axis.tick_params(labelsize=7)
    handles = {}
    for row in rows:
        side, _, view = row["side"].partition(", ")
        look = {"color": COLOURS.get(side, "tab:cyan"), "marker": "s" if view == "crop" else "o", "markersize": 3}
        for part, line in (("dev", "-"), ("test", "--")):
            points = sorted((float(rate), score) for rate, score in row[f"{part} by rate"].items())
            panels[row["encoder"], row["task"], row["data"]].plot(*zip(*points, strict=True), line, **look)
        handles[", ".join(filter(None, [WORDS.get(side, side), view]))] = Line2D([], [], **look)
    handles |= {part: Line2D([], [], color="black", linestyle=line) for part, line in (("dev", "-"), ("test", "--"))}
    for axis in axes[-1]:
        axis.set_xlabel("learning rate", fontsize=8)
    figure.supylabel("mean average precision x 100", fontsize=8)
    figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    figure.savefig(picture, dpi=110)


def work(unit: Unit, args: argparse.Namespace) -> None:
    """Run a unit in this process."""
    import torch

    torch.set_num_threads(1)
    data = trec(args.trec) if unit.data == "trec" else split_of(args.data_dir / f"{unit.data}.tsv", unit.task)
    run_unit(unit, data, args.output_dir, args.encoders[unit.encoder])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", action="append", required=True, help="NAME=FOLDER, once or more")
    parser.add_argument("--data_dir", type=Path, required=True, help="folder of stackoverflow.tsv and biomedical.tsv")
    parser.add_argument("--trec", type=Path, help="folder of TREC's questions")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=["stackoverflow", "biomedical"])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=[*SIDES])
    parser.add_argument("--report", type=Path, help="folder for the tables and the picture of what is finished")
    parser.add_argument("--jobs", type=int, default=2, help="number of units at a time, with one thread each")
    args = parser.parse_args()
    args.encoders = dict(one.split("=", 1) for one in args.encoder)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    if args.report:
        return report(args.output_dir, args.report)
    for module in (
        "sentence_transformers",
        "dcpcse.training.run",
    ):  # so that the forked processes need not import them
        importlib.import_module(module)

    context, running = multiprocessing.get_context("fork"), {}
    while True:
        todo = [unit for unit in planned(args, finished(args.output_dir)) if unit not in running]
        while todo and len(running) < args.jobs:
            unit = todo.pop(0)
            running[unit] = context.Process(target=work, args=(unit, args))
            running[unit].start()
        if not running:
            break
        time.sleep(0.5)
        for unit, process in [*running.items()]:
            if not process.is_alive():
                del running[unit]
                if process.exitcode:
                    raise SystemExit(f"{unit.name} failed; the units that are finished stay")
                figures = finished(args.output_dir)[unit]
                print(f"{unit.name}: {figures['score']:.2f}, {figures.get('seconds', 0):.0f} s", flush=True)


if __name__ == "__main__":
    main()
