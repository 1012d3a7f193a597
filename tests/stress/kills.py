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
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


@dataclass
class Places:
    """What the runs need: encoder, training file, evaluation data, cache."""

    root: Path

    def argv(self, recipe: str, output: Path) -> list[str]:
        places = {"model_name_or_path": self.root / "encoder", "train_file": self.root / "train.txt"}
        places |= {"output_dir": output, "cache_dir": self.root / "cache", "eval_data_dir": self.root / "data"}
        options = {**places, **COMMON, **RECIPES[recipe]}
        return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def build(root: Path) -> None:
    """A tiny random BERT, 24 sentences, and an STS-B dev set of 12 pairs."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    from dcpcse.pretraining.vocabulary import BERT_SPECIAL, ROLES

    draw = random.Random(0)
    words = [a + b + c for a in "blmr" for b in "aeo" for c in "nst"]
    sentences = [" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(24)]
    (root / "train.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*BERT_SPECIAL, *words])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(ROLES, BERT_SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(root / "encoder")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(BERT_SPECIAL) + len(words), max_position_embeddings=64, **size)
    BertForMaskedLM(config).save_pretrained(root / "encoder")
    folder = root / "data/downstream/STS/STSBenchmark"
    folder.mkdir(parents=True)
    rows = [
        f"g\tf\t2017\t{i}\t{draw.random() * 5:.2f}\t{sentences[i]}\t{sentences[(i * 5 + 1) % 24]}" for i in range(12)
    ]
    for split in ("train", "dev", "test"):
        (folder / f"sts-{split}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


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
    from dcpcse.cli.commands.train import train_command
    from dcpcse.cli.runner import run

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
    code = run(train_command, argv)
    if count:
        count.write_text(str(seen[0]), encoding="utf-8")
    return code


@dataclass
class Tally:
    """What the kills of a run met with."""

    kills: Counter = field(default_factory=Counter)
    resumed: int = 0
    lost: int = 0
    calls: int = 0
    trainings: int = 0
    problems: list[str] = field(default_factory=list)


def steps_of(output: Path) -> list[int]:
    """Steps of the folders that are named as checkpoints."""
    return sorted(int(path.name.split("-")[1]) for path in output.glob("checkpoint-*"))


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


def inspect(output: Path, steps_done: int, tally: Tally) -> int:
    """After a kill: every checkpoint by name is whole, and the newest is late enough; gives its step."""
    from dcpcse.training.checkpoints import newest_whole

    steps = steps_of(output)
    newest = newest_whole(output)
    found = newest.step if newest else 0
    if steps and found != steps[-1]:
        tally.problems.append(f"{output}/checkpoint-{steps[-1]} is not whole")
    lost = steps_done - found
    tally.lost = max(tally.lost, lost)
    if lost > SAVE:
        tally.problems.append(f"{output}: {lost} steps were lost")
    return found


def finished_steps(log: Path) -> int:
    """The last step that a killed process has told of."""
    found = re.findall(rb"^step (\d+)$", log.read_bytes(), flags=re.MULTILINE) if log.exists() else []
    return int(found[-1]) if found else 0


def telling_steps() -> None:
    """Write a line after every optimiser step, before anything is saved."""
    from dcpcse.training import run as training

    original = training.build_trainer

    def build_trainer(*args, **kwargs):
        from transformers import TrainerCallback

        class Tell(TrainerCallback):
            def on_optimizer_step(self, args, state, control, **kwargs):
                os.write(1, f"\nstep {state.global_step + 1}\n".encode())

        trainer = original(*args, **kwargs)
        trainer.add_callback(Tell())
        return trainer

    training.build_trainer = build_trainer


def outcome(output: Path, resumed: Collection[int] = ()) -> dict[str, object]:
    """All that must be equal in the end with and without interruptions at these steps."""
    from runs import comparable

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


def uninterrupted(places: Places, recipe: str) -> Reference:
    output, log, count = (places.root / f"{recipe}{end}" for end in ("", ".log", ".count"))
    started = time.monotonic()
    child = forked(lambda: call(places.argv(recipe, output), output, None, count), log)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"the uninterrupted run failed:\n{log.read_text(encoding='utf-8')}")
    seconds = time.monotonic() - started
    return Reference(output, outcome(output), seconds, int(count.read_text(encoding="utf-8")))


def one_run(places: Places, recipe: str, name: str, reference: Reference, kills: int, draw: random.Random) -> Tally:
    """So many kills, and the end; a training that comes to its end before the last kill is begun anew."""
    output, log, tally = places.root / name, places.root / f"{name}.log", Tally()
    argv, expected = places.argv(recipe, output), 0
    while sum(tally.kills.values()) < kills:
        status = killed_call(argv, output, log, reference, kills, draw)
        tally.calls += 1
        check_start(log, expected, tally)
        if os.WIFSIGNALED(status):
            tally.kills[phase(output)] += 1
        elif status:
            tally.problems.append(f"{name}: {log.read_text(encoding='utf-8').splitlines()[-1]}")
            return tally
        if output.exists():
            expected = inspect(output, max(expected, finished_steps(log)), tally)
        if (output / "dcpcse.json").exists():
            if not same_weights(output, reference):
                tally.problems.append(f"{name}: a result that is no result")
            to_the_end(argv, output, log, expected, reference, tally)
            shutil.rmtree(output)
            expected = 0
    to_the_end(argv, output, log, expected, reference, tally)
    return tally


def killed_call(
    argv: list[str], output: Path, log: Path, reference: Reference, kills: int, draw: random.Random
) -> int:
    """A call that is killed at a random moment; how it ended, which may be well, if the moment came too late."""
    by_time = draw.random() < 0.5
    # A call gets no further than a few saves, so that the kills come all along the training.
    at = None if by_time else draw.randint(1, max(2, 3 * reference.operations // kills))
    child = forked(lambda: call(argv, output, at), log)
    if by_time:
        end = time.monotonic() + draw.uniform(0, reference.seconds)
        while time.monotonic() < end and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def to_the_end(argv: list[str], output: Path, log: Path, expected: int, reference: Reference, tally: Tally) -> None:
    """A last call, which nobody kills, and the comparison of what it leaves."""
    _, status = os.waitpid(forked(lambda: call(argv, output, None), log), 0)
    check_start(log, expected, tally)
    tally.trainings += 1
    if status:
        tally.problems.append(f"{output}: {log.read_text(encoding='utf-8').splitlines()[-1]}")
        return
    from runs import resumed_steps

    resumed = resumed_steps(output)
    found, expected_outcome = outcome(output, resumed), outcome(reference.folder, resumed)
    differing = [key for key, value in expected_outcome.items() if found.get(key) != value]
    tally.problems += [f"{output}: {key} differs" for key in differing]
    tally.problems += [f"{output}: {path.name} is left" for path in output.glob(".*")]


def same_weights(output: Path, reference: Reference) -> bool:
    names = [name for name in reference.outcome if name.endswith(".safetensors")]
    return all((output / name).is_file() and (output / name).read_bytes() == reference.outcome[name] for name in names)


def check_start(log: Path, expected: int, tally: Tally) -> None:
    """A call that came to its training has gone on from where it should."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if match := re.search(r"resuming from \S*checkpoint-(\d+)", text):
        tally.resumed += 1
        if int(match[1]) != expected:
            tally.problems.append(f"{log}: went on from step {match[1]}, not from {expected}")
    elif "training starts from the beginning" in text and expected:
        tally.problems.append(f"{log}: began anew behind step {expected}")
    if "skipped:" in text or "Traceback" in text:
        tally.problems.append(f"{log}: {text.strip().splitlines()[-1]}")


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
    import dcpcse.training  # noqa: F401 - before the forks, which are many

    telling_steps()
    root.mkdir(parents=True, exist_ok=True)
    _, status = os.waitpid(forked(lambda: build(root) or 0, root / "build.log"), 0)
    if status:
        raise SystemExit((root / "build.log").read_text(encoding="utf-8"))
    places, totals, problems = Places(root), Counter(), []
    references = {recipe: uninterrupted(places, recipe) for recipe in recipes[:runs]}
    print("| run | recipe | kills | where | resumed | most steps lost | problems |\n|---|---|---|---|---|---|---|")
    resumed, trainings = 0, 0
    for number in range(runs):
        recipe = recipes[number % len(recipes)]
        draw = random.Random(seed * 1000 + number)
        tally = one_run(places, recipe, f"run{number}", references[recipe], kills, draw)
        where = ", ".join(f"{count} {place}" for place, count in tally.kills.most_common())
        cells = [number, recipe, sum(tally.kills.values()), where, tally.resumed, tally.lost, len(tally.problems)]
        print("|", " | ".join(map(str, cells)), "|", flush=True)
        totals += tally.kills
        resumed, trainings = resumed + tally.resumed, trainings + tally.trainings
        problems += tally.problems
    for problem in problems:
        print("problem:", problem)
    where = ", ".join(f"{count} {place}" for place, count in totals.most_common())
    print(
        f"{sum(totals.values())} kills in {runs} runs ({where}); {resumed} calls went on from a checkpoint; "
        f"{len(problems)} problems; weights, logs and states at the end of {trainings} trainings "
        f"{'differ' if problems else 'equal those of uninterrupted ones to the last bit'}"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""})
    sys.path[:0] = [str(ROOT), str(ROOT / "SentEval"), str(ROOT / "tests/integration")]
    sys.exit(main())
