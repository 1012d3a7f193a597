"""Kill a training again and again, go on with --resume each time, and compare the end with an uninterrupted run.

    python tests/stress/kills.py                       # 20 runs of 10 kills
    python tests/stress/kills.py --runs 1 --kills 3    # a few seconds

Half of the kills (SIGKILL) come at a random time, half right before a random one of the operations on files in the
output folder, which are opening, renaming, making and deleting: so they fall into the writing, the putting in place
and the rotation of checkpoints and of the result. After each kill every folder that is named as a checkpoint must be
whole, and the next call must go on from the newest, having lost no more than the steps since the last save. In the
end weights, log and state must be those of the run that nobody has killed, to the last bit.
A process that has imported everything forks one for each call, since importing takes longer than the training.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""})
sys.path[:0] = [str(ROOT / place) for place in (".", "SentEval", "tests", "tests/integration")]

from runs import comparable, resumed_steps
from senteval_tiny import write_tiny_task
from tiny_encoders import SENTENCES, make_encoder
from transformers import TrainerCallback

from dcpcse.cli.commands.train import train_command
from dcpcse.cli.runner import run as run_command
from dcpcse.training import run as training
from dcpcse.training.checkpoints import newest_whole

STEPS, SAVE = 24, 2
COMMON = {
    **{"max_steps": STEPS, "save_steps": SAVE, "save_strategy": "steps", "save_total_limit": 2, "logging_steps": 3},
    **{"per_device_train_batch_size": 4, "learning_rate": 0.03, "pre_seq_len": 3, "disable_tqdm": True},
    **{"use_cpu": True, "custom_eval_data": True, "resume": True},
}
RECIPES = {
    "mlm": {"do_mlm": True},
    "accumulation": {"gradient_accumulation_steps": 2, "prefix_projection": True, "prefix_hidden_size": 8},
    "best": {
        **{"eval_strategy": "steps", "eval_steps": SAVE, "load_best_model_at_end": True, "mlp_only_train": True},
        **{"metric_for_best_model": "stsb_spearman", "eval_tasks": "STSBenchmark"},
    },
}
CHANGING = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate"}
"""Audit events of Python that come before something is changed on the disk."""


def argv_of(root: Path, recipe: str, output: Path) -> list[str]:
    """The words of a training with what `build` has written."""
    places = {"model_name_or_path": root / "encoder", "train_file": root / "train.txt", "output_dir": output}
    options = {**places, "cache_dir": root / "cache", "eval_data_dir": root / "data", **COMMON, **RECIPES[recipe]}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def build(root: Path) -> int:
    """A tiny random BERT, 24 sentences, and an STS-B dev set of 12 pairs."""
    make_encoder(root / "encoder", "bert")
    (root / "train.txt").write_text(
        "".join(f"{text}\n" for text in [*SENTENCES, *(f"{text} 2" for text in SENTENCES)])
    )
    write_tiny_task(root / "data", "STSBenchmark", "dev", count=12)
    return 0


def forked(work: Callable[[], int], log: Path) -> int:
    """Do something in a forked process, which says all that it says into a file; gives the process's number."""
    log.write_bytes(b"")  # a child that is killed at once must not seem to have said what the one before it said
    child = os.fork()
    if child:
        return child
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os._exit(work())
    finally:
        os._exit(99)


def call(argv: list[str], output: Path, kill_at: int | None, count: Path | None = None) -> int:
    """train.py with these words; killed before an operation on files of the output folder, or all are counted."""
    seen = [0]

    def watch(event: str, details: tuple) -> None:
        if event not in CHANGING or not str(details[0]).startswith(str(output)):
            return
        if event == "open" and not set(str(details[1] or "")) & set("wax+"):
            return
        seen[0] += 1
        if seen[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    code = run_command(train_command, argv)
    if count:
        count.write_text(str(seen[0]), encoding="utf-8")
    return code


def phase(output: Path) -> str:
    """Where a kill has come, by what it left."""
    if (output / "dcpcse.json").exists():
        return "after the result"
    left = [path.name.rsplit(".", 1)[-1] for path in output.glob(".checkpoint-*")]
    if list(output.glob(".model.*.part")):
        return "in the result"
    if left:
        return {"part": "in a save", "deleted": "in the rotation", "replaced": "in a save"}[left[0]]
    return "between saves" if output.exists() and (output / "run.yaml").exists() else "before the training"


class Tell(TrainerCallback):
    """Writes a line after every optimiser step, before anything is saved."""

    def on_optimizer_step(self, args, state, control, **kwargs):
        os.write(1, f"\nstep {state.global_step + 1}\n".encode())


def build_trainer(*args, original=training.build_trainer, **kwargs):
    trainer = original(*args, **kwargs)
    trainer.add_callback(Tell())
    return trainer


def outcome(output: Path, resumed: Collection[int] = ()) -> dict[str, object]:
    """All that must be equal in the end with and without interruptions at these steps."""
    weights = {p.name: p.read_bytes() for p in output.glob("*.safetensors")}
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    state = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    kept = {name: state[name] for name in ("global_step", "best_global_step", "best_metric", "epoch")}
    logs = {"metrics": comparable(lines, resumed), "log": comparable(state["log_history"], resumed)}
    return {**weights, **logs, "state": kept}


@dataclass(frozen=True)
class Reference:
    """The run that is never killed: its folder, outcome, seconds, and number of operations on files."""

    folder: Path
    outcome: dict[str, object]
    seconds: float
    operations: int


def uninterrupted(root: Path, recipe: str) -> Reference:
    output, log, count = (root / f"{recipe}{end}" for end in ("", ".log", ".count"))
    started = time.monotonic()
    child = forked(lambda: call(argv_of(root, recipe, output), output, None, count), log)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"the uninterrupted run failed:\n{log.read_text(encoding='utf-8')}")
    seconds = time.monotonic() - started
    return Reference(output, outcome(output), seconds, int(count.read_text(encoding="utf-8")))


class Run:
    """A training that is killed, and what its kills met with."""

    def __init__(self, root: Path, recipe: str, name: str, reference: Reference) -> None:
        self.output, self.log, self.reference = root / name, root / f"{name}.log", reference
        self.argv = argv_of(root, recipe, self.output)
        self.kills, self.problems = Counter(), []
        self.expected = self.resumed = self.lost = self.trainings = 0

    def kill(self, times: int, draw: random.Random) -> None:
        """So many kills, and the end; a training that comes to its end before the last kill is begun anew."""
        while self.kills.total() < times:
            status = self._killed_call(times, draw)
            self._check_start()
            if os.WIFSIGNALED(status):
                self.kills[phase(self.output)] += 1
            elif status:
                self.problems.append(self._last_line())
                return
            if self.output.exists():
                self._inspect()
            if (self.output / "dcpcse.json").exists():
                weights = {name: of for name, of in self.reference.outcome.items() if name.endswith(".safetensors")}
                if {p.name: p.read_bytes() for p in self.output.glob("*.safetensors")} != weights:
                    self.problems.append(f"{self.output}: a result that is no result")
                self._to_the_end()
                shutil.rmtree(self.output)
                self.expected = 0
        self._to_the_end()

    def _killed_call(self, times: int, draw: random.Random) -> int:
        """A call that is killed at a random moment; how it ended, which may be well, if the moment came too late."""
        by_time = draw.random() < 0.5
        # A call gets no further than a few saves, so that the kills come all along the training.
        at = None if by_time else draw.randint(1, max(2, 3 * self.reference.operations // times))
        child = forked(lambda: call(self.argv, self.output, at), self.log)
        if by_time:
            end = time.monotonic() + draw.uniform(0, self.reference.seconds)
            while time.monotonic() < end and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                time.sleep(0.002)
            os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]

    def _to_the_end(self) -> None:
        """A last call, which nobody kills, and the comparison of what it leaves."""
        _, status = os.waitpid(forked(lambda: call(self.argv, self.output, None), self.log), 0)
        self._check_start()
        self.trainings += 1
        if status:
            self.problems.append(self._last_line())
            return
        steps = resumed_steps(self.output)
        found, expected = outcome(self.output, steps), outcome(self.reference.folder, steps)
        self.problems += [f"{self.output}: {key} differs" for key, of in expected.items() if found.get(key) != of]
        self.problems += [f"{self.output}: {path.name} is left" for path in self.output.glob(".*")]

    def _inspect(self) -> None:
        """After a kill: every checkpoint by name is whole, and the newest, from which it goes on, is late enough."""
        told = re.findall(rb"^step (\d+)$", self.log.read_bytes(), flags=re.MULTILINE)
        done, newest = max(self.expected, *map(int, told[-1:]), 0), newest_whole(self.output)
        self.expected = newest.step if newest else 0
        last = max((int(path.name.split("-")[1]) for path in self.output.glob("checkpoint-*")), default=self.expected)
        self.lost = max(self.lost, done - self.expected)
        if last != self.expected:
            self.problems.append(f"{self.output}/checkpoint-{last} is not whole")
        if done - self.expected > SAVE:
            self.problems.append(f"{self.output}: {done - self.expected} steps were lost")

    def _check_start(self) -> None:
        """A call that came to its training has gone on from where it should."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"resuming from \S*checkpoint-(\d+)", text):
            self.resumed += 1
            if int(match[1]) != self.expected:
                self.problems.append(f"{self.log}: went on from step {match[1]}, not from {self.expected}")
        elif "training starts from the beginning" in text and self.expected:
            self.problems.append(f"{self.log}: began anew behind step {self.expected}")
        if "skipped:" in text or "Traceback" in text:
            self.problems.append(self._last_line())

    def _last_line(self) -> str:
        return f"{self.output}: {self.log.read_text(encoding='utf-8', errors='replace').splitlines()[-1]}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10, help="in each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--folder", help="for the runs; a temporary one by default")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        return stress(Path(asked.folder or temporary), asked.runs, asked.kills, asked.seed, asked.recipes)


def stress(root: Path, runs: int, kills: int, seed: int, recipes: list[str]) -> int:
    """All runs, with a line for each; 1 where anything was lost."""
    training.build_trainer = build_trainer
    root.mkdir(parents=True, exist_ok=True)
    _, status = os.waitpid(forked(lambda: build(root), root / "build.log"), 0)
    if status:
        raise SystemExit((root / "build.log").read_text(encoding="utf-8"))
    references, done = {recipe: uninterrupted(root, recipe) for recipe in recipes[:runs]}, []
    print("| run | recipe | kills | resumed | most steps lost | problems |\n|---|---|---|---|---|---|")
    for number in range(runs):
        recipe = recipes[number % len(recipes)]
        run = Run(root, recipe, f"run{number}", references[recipe])
        run.kill(kills, random.Random(seed * 1000 + number))
        cells = [number, recipe, run.kills.total(), run.resumed, run.lost, len(run.problems)]
        print("|", " | ".join(map(str, cells)), "|", flush=True)
        done.append(run)
    totals, problems = sum((run.kills for run in done), Counter()), [text for run in done for text in run.problems]
    for problem in problems:
        print("problem:", problem)
    where = ", ".join(f"{count} {place}" for place, count in totals.most_common())
    print(
        f"{totals.total()} kills in {runs} runs ({where}); {sum(run.resumed for run in done)} calls went on from a "
        f"checkpoint; {len(problems)} problems; weights, logs and states at the end of "
        f"{sum(run.trainings for run in done)} trainings "
        f"{'differ' if problems else 'equal those of uninterrupted ones to the last bit'}"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
