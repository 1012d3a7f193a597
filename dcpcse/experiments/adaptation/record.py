"""The record of an adaptation, adapt.json, from which an interrupted adaptation is resumed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict

from dcpcse.experiments.adaptation.trial import CUT, FAILED, FINISHED, PRUNED, STOPPED, FinishedTrial
from dcpcse.utils import schema
from dcpcse.utils.environment import system_info
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.job_folder import JobFolder, JobRecord

RECORD = "adapt.json"

RUNNING, INTERRUPTED, DONE = "running", "interrupted", "finished"


@strict
@dataclass(kw_only=True)
class _TrialRecord(schema.Open):
    number: int | None = schema.count(default=None)
    setting: dict
    outcome: str = schema.one_of((FINISHED, STOPPED, PRUNED, CUT, FAILED))
    scores: dict[str, int | float] = schema.finite()
    steps: int = schema.count()
    seconds: int | float = schema.finite()
    reason: str | None = None

    def validate_scores_by_step(self) -> None:
        """Raise ValueError unless the keys of the scores are steps."""
        if wrong := [step for step in self.scores if not (step.isdecimal() and len(step) < 16)]:
            raise ValueError(f"scores has the key {wrong[0]!r:.40}; expected the number of a step")


@strict
@dataclass(kw_only=True)
class AdaptationRecord(JobRecord):
    """The content of `adapt.json`, by which an adaptation is resumed: the finished trials and the result."""

    format: int = schema.version(1)
    state: str = schema.one_of((RUNNING, INTERRUPTED, DONE))
    trials: list[_TrialRecord]
    seconds: int | float = schema.finite()
    result: dict | None = None


class Record:
    """The state of an adaptation, and the job folder that contains it.

    Args:
        made_of: The encoder, the data and the options of the adaptation, as in `JobRecord`.
        facts: The entries of the record that do not change, such as the sizes of the parts.

    Attributes:
        trials: The finished trial of each setting, by the number of the setting.
        seconds: The total duration of all calls.
    """

    def __init__(self, folder: Path, made_of: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.job = JobFolder(folder, RECORD, made_of, spell("output_dir", folder), kind=AdaptationRecord)
        self.folder, self.facts = folder, facts
        self.trials: dict[int, FinishedTrial] = {}
        self.seconds = 0.0

    @property
    def best(self) -> int | None:
        """The number of the setting with the best dev score; None if no setting has a score.

        Among settings with equal scores, the first one is the best.
        """
        scored = [number for number in sorted(self.trials) if self.trials[number].score is not None]
        return max(scored, key=lambda number: self.trials[number].score, default=None)

    def resume(self) -> bool:
        """Load the trials of an interrupted call from the folder. Return whether there was such a call.

        Raises UserError if the adaptation in the folder is finished, or if it has other data, another encoder or other
        options.
        """
        record = self.job.read()
        if record is None:
            return False
        if record["state"] == DONE:
            raise UserError(f"{spell('output_dir', self.folder)} contains a finished adaptation; give another folder")
        for position, trial in enumerate(record["trials"]):
            # In earlier versions, all settings before the setting of a trial were tried too.
            number = position if trial.get("number") is None else trial["number"]
            values = {one.name: trial.get(one.name) for one in fields(FinishedTrial)}
            scores = {int(step): score for step, score in trial["scores"].items()}
            self.trials[number] = FinishedTrial(**{**values, "scores": scores})
        self.seconds = record["seconds"]
        return True

    def write(self, state: str, result: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write the record, and return its content.

        Args:
            state: The state of the adaptation, such as "finished".
            result: The scores and the verdict, if the adaptation is finished.
        """
        trials = [
            {
                **{"number": number, **asdict(trial), "score": trial.score, "step": trial.step},
                "scores": {str(step): score for step, score in trial.scores.items()},
                "seconds": round(trial.seconds, 1),
            }
            for number, trial in self.trials.items()
        ]
        facts = {"format": 1, "state": state, **self.facts, "trials": trials, "tried": len(trials)}
        return self.job.write(
            {**facts, "seconds": round(self.seconds, 1), "environment": system_info(), "result": result}
        )
