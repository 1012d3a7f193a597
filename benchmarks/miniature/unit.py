"""Run one unit in a separate process: train a model, measure it, and delete it.

    python -m benchmarks.miniature.unit FOLDER FACTS

FACTS is a JSON object with three keys: `places`, a dict from names in braces to paths; `parent`, the id of the process
with which this process ends; and `keep_models`.
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from senteval import DataError, Suite, load_suite, settings_of_mode
from senteval.geometry import measure_pairs

import dcpcse
from benchmarks.miniature.units import DEV_TASK, FAILURE, PRETRAINED, RECORD, SCORES, SIMILARITIES, UNIT

# The tasks whose scores the papers average.
STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")

# The task of D2CSE's recall.
RETRIEVAL = "STSBenchmark-retrieval"


def load_data(data_dir: str | Path, custom_data: bool) -> tuple[Suite, Suite]:
    """Read and check STS-B dev and all test pairs. Raises senteval.DataError for faults in them."""
    tasks = {"dev": [DEV_TASK], "test": [*STS_TASKS, RETRIEVAL]}
    dev, test = (load_suite(tasks[mode], data_dir, settings_of_mode(mode, official=not custom_data)) for mode in tasks)
    return dev, test


def measure(dev: Suite, test: Suite | None, model: Any) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the cosines (n,) of the test pairs of each task, and all scores; without test data the dev score alone.

    For `RETRIEVAL` the reciprocal ranks (q,) of the answers are returned. Scores: Spearman × 100 of each task, their
    mean `avg`, `stsb_dev`, recalls (%), and alignment and uniformity of STS-B test. Every distinct sentence is encoded
    once. Raises senteval.DataError if embeddings are not finite or all equal.
    """
    vectors: dict[str, np.ndarray] = {}

    def encode(sentences: list[str]) -> np.ndarray:
        if missing := [text for text in dict.fromkeys(sentences) if text not in vectors]:
            vectors.update(zip(missing, model.encode(missing), strict=True))
        return np.stack([vectors[text] for text in sentences])

    scores = {"stsb_dev": dev.measure(encode).results[DEV_TASK].points}
    if test is None:
        return {}, scores
    results = test.measure(encode).results
    scores |= {task: results[task].points for task in STS_TASKS}
    scores["avg"] = float(np.mean([scores[task] for task in STS_TASKS]))
    (pairs,) = test.tasks[DEV_TASK].subsets
    geometry = measure_pairs(DEV_TASK, pairs, encode(pairs.first), encode(pairs.second))
    scores |= {} if geometry.alignment is None else {"alignment": geometry.alignment}
    scores["uniformity"] = geometry.uniformity
    scores |= {f"recall@{cutoff}": recall for cutoff, recall in results[RETRIEVAL].recall.items()}
    similarities = {task: results[task].cosines for task in STS_TASKS}
    similarities[RETRIEVAL] = 1 / np.array([rank for _, _, rank in results[RETRIEVAL].ranks])
    return {task: values.astype(np.float32) for task, values in similarities.items()}, scores


def work(folder: Path, places: Mapping[str, str], keep_model: bool) -> None:
    """Do the work of the unit whose record is in a folder, and write its result.

    A training that fails for good, by values that are not finite or equal embeddings, is recorded, and its error is
    raised as all others are.
    """
    text = (folder / RECORD).read_text(encoding="utf-8")
    for name, path in {**places, UNIT: str(folder)}.items():
        text = text.replace(name, json.dumps(path)[1:-1])
    unit = json.loads(text)
    options, measured = unit["options"], unit["measured"]
    # Seconds of the processor, since other units and other programs may run at the same time.
    started = time.process_time()
    dev_only = measured.pop("dev_only", False)
    data = load_data(measured.pop("data_dir"), measured.pop("custom_data")) if measured else ()
    try:
        # All units have the precision of a CPU, since their results are compared.
        if unit["commands"] and not measured:
            begun = (folder / "encoder/pretraining.json").is_file()
            result = dcpcse.pretrain(unit["commands"][0][1], **options, bf16=False, resume=begun)
            # The record has the seconds of all parts, if it was interrupted.
            write(folder / PRETRAINED, {"seconds": result.record["seconds"], "digest": unit["digest"]})
            return
        if unit["commands"]:
            dcpcse.train(options.pop("model_name_or_path"), options.pop("train_file"), **options, bf16=False)
        evaluation = measured.pop("evaluation")
        pooler = evaluation.pop("pooler_type", None)
        model = dcpcse.load(measured.pop("model"), pooler=pooler, **evaluation)
        similarities, scores = measure(data[0], None if dev_only else data[1], model)
    except (dcpcse.UserError, DataError) as error:
        # An evaluation during a training makes a UserError of a DataError.
        if isinstance(error.__cause__ or error, DataError) or (folder / "model/non-finite").exists():
            seconds = time.process_time() - started
            write(folder / FAILURE, {"reason": str(error).replace(str(folder), "."), "seconds": seconds})
            shutil.rmtree(folder / "model", ignore_errors=True)
        raise
    seconds = time.process_time() - started
    facts = {**measured.pop("facts", {}), "digest": unit["digest"]}
    if not dev_only:
        # What is written of a cosine c is 1 − c in float16, whose precision is highest for small numbers: the cosines
        # of an encoder without training lie close to 1.
        distances = {task: (1 - values).astype(np.float16) for task, values in similarities.items()}
        np.savez_compressed(folder / SIMILARITIES, **distances)
    # The scores are written last: a folder that has them is complete.
    write(folder / SCORES, {**measured, "scores": scores, "seconds": seconds, **facts})
    if not keep_model or dev_only:
        shutil.rmtree(folder / "model", ignore_errors=True)


def write(path: Path, content: Any) -> None:
    """Write JSON, the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(part, path)


def end_with(parent: int) -> None:
    """End this process as soon as its parent has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    facts = json.loads(sys.argv[2])
    threading.Thread(target=end_with, args=(facts["parent"],), daemon=True).start()
    try:
        work(Path(sys.argv[1]), facts["places"], facts["keep_models"])
    except ValueError as error:  # UserError and DataError, whose messages say what to do
        sys.exit(f"error: {error}")
