"""Measure a model as a unit of the miniature needs it. Every distinct sentence is encoded once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from senteval import Suite, load_suite, settings_of_mode
from senteval.geometry import measure_pairs

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.experiments.miniature.measurement import DEV_TASK, RETRIEVAL, STS_TASKS
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model

Encode = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class Protocol:
    """The checked evaluation data of all units. test: None if only the dev score is measured."""

    dev: Suite
    test: Suite | None

    @property
    def files(self) -> dict[str, str]:
        """Name → sha256 of all files."""
        read = {**self.dev.files, **(self.test.files if self.test else {})}
        return {name: facts["sha256"] for name, facts in read.items()}


def load_protocol(data_dir: str | Path, *, custom_data: bool = False, dev_only: bool = False) -> Protocol:
    """Read and check the evaluation data. Raises senteval.DataError for faults in them.

    custom_data: the files are the user's own, of any size. dev_only: read only STS-B dev.
    """
    official = not custom_data
    dev = load_suite([DEV_TASK], data_dir, settings_of_mode("dev", official=official))
    if dev_only:
        return Protocol(dev, None)
    return Protocol(dev, load_suite([*STS_TASKS, RETRIEVAL], data_dir, settings_of_mode("test", official=official)))


def measure(
    protocol: Protocol, folder: str | Path, evaluation: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the cosines (n,) of each STS task, with the ranks of the retrieval, and the scores, as in `Measurement`.

    folder: the model. evaluation: options of evaluation.py that choose the representation. Alignment and uniformity
    are those of STS-B test; pairs with a score above 4 are positive, as in SimCSE. Raises UserError if the model
    cannot be loaded, and senteval.DataError if its embeddings are not finite or all equal.
    """
    return measure_model(protocol, load_model(str(folder), EncoderArguments(**evaluation)))


def measure_model(protocol: Protocol, model: SentenceEncoder) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return what `measure` returns, for a loaded model."""
    encode = _Once(model.encode)
    scores = {"stsb_dev": protocol.dev.measure(encode).results[DEV_TASK].points}
    if protocol.test is None:
        return {}, scores
    results = protocol.test.measure(encode).results
    sts = {task: results[task] for task in STS_TASKS}
    scores |= {task: result.points for task, result in sts.items()}
    scores["avg"] = float(np.mean([result.points for result in sts.values()]))
    (pairs,) = protocol.test.tasks[DEV_TASK].subsets
    geometry = measure_pairs(DEV_TASK, pairs, encode(pairs.first), encode(pairs.second))
    if geometry.alignment is not None:
        scores["alignment"] = geometry.alignment
    scores["uniformity"] = geometry.uniformity
    scores |= {f"recall@{cutoff}": recall for cutoff, recall in results[RETRIEVAL].recall.items()}
    similarities = {task: result.cosines for task, result in sts.items()}
    similarities[RETRIEVAL] = 1 / np.array([rank for _, _, rank in results[RETRIEVAL].ranks])
    return {task: values.astype(np.float32) for task, values in similarities.items()}, scores


class _Once:
    """A function from sentences to vectors that computes the vector of each sentence only once."""

    def __init__(self, encode: Encode) -> None:
        self._encode, self._vectors = encode, {}

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        if missing := [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]:
            self._vectors.update(zip(missing, self._encode(missing), strict=True))
        return np.stack([self._vectors[sentence] for sentence in sentences])
