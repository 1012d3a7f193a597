"""The record of an adaptation, adapt.json, from which an interrupted one is resumed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict

from dcpcse.experiments.adaptation.trial import CUT, FAILED, FINISHED, PRUNED, STOPPED, FinishedTrial
from dcpcse.utils import schema
from dcpcse.utils.environment import system_info
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import write_json_atomic

RECORD = "adapt.json"

RUNNING, INTERRUPTED, DONE = "running", "interrupted", "finished"


@strict
@dataclass(kw_only=True)
class _TrialRecord(schema.Open):
    setting: dict
    outcome: str = schema.one_of((FINISHED, STOPPED, PRUNED, CUT, FAILED))
    scores: dict[str, int | float] = schema.finite()
    steps: int = schema.count()
    seconds: int | float = schema.finite()
    reason: str | None = None

    def validate_scores_by_step(self) -> None:
        """Raise ValueError unless the keys of the scores are steps."""
        if wrong := [step for step in self.scores if not (step.isdecimal() and len(step) < 16)]:
            raise ValueError(f"scores has the key {wrong[0]!r:.40}; expected a step")


@strict
@dataclass(kw_only=True)
class AdaptationRecord(schema.Open):
    """The content of `adapt.json`. made_of: what a call must have in common with the one that it resumes."""

    format: int = schema.version(1)
    state: str = schema.one_of((RUNNING, INTERRUPTED, DONE))
    made_of: dict
    trials: list[_TrialRecord]
    seconds: int | float = schema.finite()
    result: dict | None = None


@dataclass
class Record:
    """What is known of an adaptation so far, and the file that it is written to.

    made_of: what identifies it. facts: what else is recorded. untouched: dev score × 100 of the untouched encoder.
    seconds: of all calls.
    """

    folder: Path
    made_of: Mapping[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    trials: list[FinishedTrial] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def path(self) -> Path:
        return self.folder / RECORD

    @property
    def best(self) -> FinishedTrial | None:
        """The trial with the best dev score, the first one of equal scores; None if no trial has a score."""
        scored = [trial for trial in self.trials if trial.score is not None]
        return max(scored, key=lambda trial: trial.score, default=None)

    def resume(self) -> bool:
        """Take over the trials of an interrupted call in this folder, if there are any, and return whether there are.

        Raises UserError if the folder has a finished adaptation, or one of other data, encoder or options.
        """
        if not self.path.is_file():
            return False
        record = schema.read(AdaptationRecord, self.path)
        if record["state"] == DONE:
            raise UserError(f"{spell('output_dir', self.folder)} contains a finished adaptation; give another folder")
        names = [*self.made_of, *record["made_of"]]
        if changed := [name for name in names if self.made_of.get(name) != record["made_of"].get(name)]:
            raise UserError(
                f"{spell('output_dir', self.folder)} contains an interrupted adaptation with another {changed[0]}; "
                "give the same, or another folder"
            )
        for trial in record["trials"]:
            scores = {int(step): score for step, score in trial["scores"].items()}
            self.trials.append(
                FinishedTrial(
                    trial["setting"], trial["outcome"], scores, trial["steps"], trial["seconds"], trial.get("reason")
                )
            )
        self.seconds = record["seconds"]
        return True

    def write(self, state: str, result: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write the record, and return its content."""
        content = {
            "format": 1,
            "state": state,
            "made_of": dict(self.made_of),
            **self.facts,
            "trials": [
                {
                    "setting": dict(trial.setting),
                    "outcome": trial.outcome,
                    "score": trial.score,
                    "step": trial.step,
                    "scores": {str(step): score for step, score in trial.scores.items()},
                    "steps": trial.steps,
                    "seconds": round(trial.seconds, 1),
                    "reason": trial.reason,
                }
                for trial in self.trials
            ],
            "tried": len(self.trials),
            "seconds": round(self.seconds, 1),
            "environment": system_info(),
            "result": None if result is None else dict(result),
        }
        write_json_atomic(self.path, content)
        return content
