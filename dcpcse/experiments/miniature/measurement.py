"""What a unit of the miniature measured: cosines of all test pairs, scores, and the cost. Two small files."""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from huggingface_hub.dataclasses import strict
from senteval import load_suite, settings_of_mode

from dcpcse.evaluation.outcomes import packed
from dcpcse.utils import schema
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import write_files
from dcpcse.utils.parsing import read_bytes

SCORES, SIMILARITIES, FAILURE = "scores.json", "similarities.npz", "failed.json"
"""Files of a unit. The last one exists if its training failed for good, such as by losses that are not finite."""

DEV_TASK = "STSBenchmark"
"""The task whose dev pairs choose learning rates and checkpoints."""

STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
"""The tasks whose scores the papers average."""

RETRIEVAL = "STSBenchmark-retrieval"
"""The task of D2CSE's recall."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """What one unit gave: a variant with one seed.

    similarities: task → cosines (n,) float32 of its test pairs, in the order of `gold_scores`; for `RETRIEVAL` the
    reciprocal ranks (q,) of the answers to its queries, in the order of `senteval.retrieval`. scores: task → Spearman
    × 100; `avg`, their mean; `stsb_dev` (Spearman × 100); and, where they were measured, `alignment`, `uniformity` (of
    STS-B test; lower is better), `recall@1`, `recall@3` and `recall@5` (%). seconds: of the processor, for
    training and evaluation together. learning_rate: None if nothing was trained.
    """

    variant: str
    seed: int | None
    similarities: Mapping[str, np.ndarray]
    scores: Mapping[str, float]
    seconds: float
    learning_rate: float | None = None
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What else the record says, such as the number of steps and the digest of the unit's options."""

    @property
    def average(self) -> float:
        """Mean Spearman over the seven STS tasks × 100."""
        return self.scores["avg"]


@strict
@dataclass(kw_only=True)
class MeasurementRecord(schema.Open):
    """The content of `scores.json` of a unit."""

    variant: str
    seed: int | None
    scores: dict[str, float | int]
    seconds: float | int
    learning_rate: float | int | None = None


def write_measurement(folder: Path, measurement: Measurement) -> None:
    """Write the two files of a measurement; their size is at most 40 kB for the seven STS tasks.

    What is written of a cosine c is 1 − c in float16, whose precision is highest for small numbers: the cosines of an
    encoder without training lie close to 1.
    """
    distances = {task: (1 - cosines).astype(np.float16) for task, cosines in measurement.similarities.items()}
    record = {
        "variant": measurement.variant,
        "seed": measurement.seed,
        "scores": dict(measurement.scores),
        "seconds": measurement.seconds,
        "learning_rate": measurement.learning_rate,
        **measurement.facts,
    }
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    # The scores are written last: a folder that has them is complete.
    write_files({folder / SIMILARITIES: packed(distances), folder / SCORES: text})


def read_measurement(folder: Path) -> Measurement:
    """Read the measurement of a unit from its folder. Raises UserError if a file is missing or damaged."""
    with schema.explained(folder / SCORES):
        record = dict(schema.read(MeasurementRecord, folder / SCORES))
    names = ("variant", "seed", "seconds", "learning_rate")
    known = {name: record.pop(name, None) for name in names}
    scores = {name: float(score) for name, score in record.pop("scores").items()}
    return Measurement(similarities=_similarities(folder / SIMILARITIES), scores=scores, facts=record, **known)


def _similarities(path: Path) -> dict[str, np.ndarray]:
    damaged = f"{path} is damaged; delete the folder to run its unit again"
    with schema.explained(path):
        content = read_bytes(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            similarities = {task: 1 - file[task].astype(np.float32) for task in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(damaged) from error
    if not all(array.ndim == 1 and np.isfinite(array).all() for array in similarities.values()):
        raise UserError(damaged)
    return similarities


def read_measurements(folder: Path) -> list[Measurement]:
    """Read the measurements of all finished units below a folder, by variant and seed.

    folder: the output folder of `dcpcse reproduce --miniature`, whose units are in `units/VARIANT/seed-N` (or `once`).
    """
    measurements = [read_measurement(path.parent) for path in sorted(folder.glob(f"units/*/*/{SCORES}"))]
    return sorted(measurements, key=lambda run: (run.variant, -1 if run.seed is None else run.seed))


def best_untouched(measurements: Sequence[Measurement]) -> Measurement | None:
    """Return the measurement without training of the embedded encoder that has the highest score on STS-B dev."""
    untouched = [run for run in measurements if run.variant.startswith("untouched-")]
    return max(untouched, key=lambda run: run.scores["stsb_dev"], default=None)


@cache
def gold_scores(data_dir: str | Path, custom_data: bool = False) -> Mapping[str, np.ndarray]:
    """Return task → gold scores (n,) of its test pairs, in the order of `Measurement.similarities`.

    data_dir: the folder that contains downstream/. custom_data: its files are the user's own, of any size. Raises
    senteval.DataError if a task is missing.
    """
    suite = load_suite(STS_TASKS, data_dir, settings_of_mode("test", official=not custom_data))
    return {name: np.concatenate([pairs.gold for pairs in task.subsets]) for name, task in suite.tasks.items()}
