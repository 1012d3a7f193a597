"""Folders of training runs as train.py leaves them, without any training, for the tests beside this file."""

import json

import yaml

OPTIONS = {
    "method": "dcpcse",
    "model_name_or_path": "bert-base-uncased",
    "max_steps": 4,
    "num_train_epochs": 3.0,
    "seed": 7,
    "learning_rate": 0.03,
}
METRICS = [
    {"step": 1, "loss": 2.0},
    {"step": 2, "eval_stsb_spearman": 0.75, "eval_sickr_spearman": 0.5},
    {"step": 3, "eval_stsb_spearman": 0.7, "eval_sickr_spearman": 0.625},
    {"step": 4, "loss": None, "epoch": 1.5},
]
VERSIONS = {"python": "3.11.7", "torch": "2.13.0"}
CALL = {"from_step": 0, "versions": VERSIONS, "hardware": {"threads": 2, "gpus": []}, "commit": "c" * 40}
STATE = {"global_step": 4, "max_steps": 4, "num_train_epochs": 2, "log_history": []}


def make_run(folder, options=None, metrics=METRICS, calls=(CALL,), state=STATE):
    """A folder as a training leaves it; None leaves a file out."""
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(OPTIONS | (options or {})), encoding="utf-8")
    if metrics is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")
    if calls is not None:
        (folder / "environment.json").write_text(json.dumps(list(calls)), encoding="utf-8")
    if state is not None:
        (folder / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    return folder
