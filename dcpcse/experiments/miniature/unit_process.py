"""The work of one unit, which a process of its own does: it trains a model, measures it, and deletes it."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from senteval import DataError

from dcpcse.experiments.miniature.measure import load_protocol, measure
from dcpcse.experiments.miniature.measurement import FAILURE, SCORES, Measurement, write_measurement
from dcpcse.experiments.miniature.units import ENCODER, MODEL, PRETRAINED, RECORD, UNIT
from dcpcse.pretraining.record import RECORD as PRETRAINING_RECORD
from dcpcse.pretraining.record import read_record
from dcpcse.training.guards import NON_FINITE
from dcpcse.utils import schema
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import remove, write_json_atomic

PRECISION = ("--bf16", "False")
"""Options of every command. All units of a study have the precision of a CPU, since its results are compared."""


@strict
@dataclass(kw_only=True)
class Task(schema.Open):
    """What a unit does, in its record.

    commands: commands and their arguments. measured: variant, seed, learning_rate, model, evaluation (options that
    choose the representation), data_dir, custom_data, facts (added to the result), and dev_only (measure only STS-B
    dev); empty if nothing is measured.
    """

    commands: list[list[str]]
    measured: dict
    digest: str


def work(folder: Path, places: Mapping[str, str], keep_model: bool, call: Callable[[Sequence[str]], None]) -> None:
    """Do the work of the unit in a folder.

    places: name in braces → path. call: runs a command of dcpcse with its arguments. Raises the error of a command,
    and DataError if the embeddings are not finite or all equal; if the training itself has failed, this is recorded.
    """
    task = schema.read(Task, folder / RECORD)
    places = {**places, UNIT: str(folder)}
    # Seconds of the processor, since other units and other programs may run at the same time.
    started = time.process_time()
    measured = _filled(task["measured"], places)
    dev_only = measured.pop("dev_only", False)
    data_dir, custom_data = measured.pop("data_dir", None), measured.pop("custom_data", False)
    protocol = load_protocol(data_dir, custom_data=custom_data, dev_only=dev_only) if measured else None
    loaded = time.process_time()
    try:
        for words in task["commands"]:
            call(_resumed([*_filled(words, places), *PRECISION], folder))
        trained = time.process_time()
        if protocol is None:
            seconds = read_record(folder / ENCODER)["seconds"]  # of all its parts, if it was interrupted
            write_json_atomic(folder / PRETRAINED, {"seconds": seconds, "digest": task["digest"]})
            return
        similarities, scores = measure(protocol, measured.pop("model"), measured.pop("evaluation"))
    except (UserError, DataError) as error:
        # An evaluation during training makes a UserError of a DataError.
        if isinstance(error.__cause__ or error, DataError) or (folder / MODEL / NON_FINITE).exists():
            seconds = time.process_time() - started
            write_json_atomic(folder / FAILURE, {"reason": str(error).replace(str(folder), "."), "seconds": seconds})
            remove(folder / MODEL)
        raise
    seconds = time.process_time() - started
    costs = {"training": trained - loaded, "measurement": seconds - (trained - loaded)}
    facts = {**measured.pop("facts", {}), "digest": task["digest"], "seconds_of": costs}
    if dev_only:
        write_json_atomic(folder / SCORES, {**measured, "scores": scores, "seconds": seconds, **facts})
    else:
        write_measurement(
            folder, Measurement(**measured, similarities=similarities, scores=scores, seconds=seconds, facts=facts)
        )
    if not keep_model or dev_only:
        remove(folder / MODEL)


def _filled(content: Any, places: Mapping[str, str]) -> Any:
    """Return JSON content in which names in braces are replaced by paths."""
    text = json.dumps(content)
    for placeholder, path in places.items():
        text = text.replace(placeholder, json.dumps(path)[1:-1])
    return json.loads(text)


def _resumed(words: list[str], folder: Path) -> list[str]:
    """Return a command, with --resume if it pretrains an encoder and has been interrupted."""
    begun = words[0] == "pretrain" and (folder / ENCODER / PRETRAINING_RECORD).is_file()
    return [*words, "--resume"] if begun else words
