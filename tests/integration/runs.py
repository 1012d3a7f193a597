"""What the tests of train.py and evaluation.py share: command lines, and looking at what a run did."""

import contextlib
import copy
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, DynamicCache, TrainerCallback

from dcpcse.cli.commands.train import train_command
from dcpcse.cli.runner import run
from dcpcse.training import run as training
from dcpcse.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
"""Options of `tiny` for an encoder without any randomness, as the prompts take their dropout from it."""

ENCODERS = ("model.safetensors", "backbone/model.safetensors")
"""Where a folder has its encoder, if that was trained."""

QUICK = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 0.03, "logging_steps": 1}
QUICK |= {"do_train": True, "save_strategy": "no", "use_cpu": True, "disable_tqdm": "True"}


def words(options: Mapping[str, Any]) -> list[str]:
    """A command line: True is a bare option, None or False leaves it out, a list gives several values."""
    out = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        out += [f"--{name}", *map(str, values)]
    return out


@dataclass
class Run:
    """What a run of train.py in this process went through, besides what lies in its folder."""

    folder: Path
    trainer: Trainer | None = None
    initial: dict[str, Tensor] = field(default_factory=dict)
    batches: list[dict[str, Tensor]] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)

    @property
    def final(self) -> dict[str, Tensor]:
        return dict(self.trainer.step_module.named_parameters())

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.folder / "trainer_state.json").read_text(encoding="utf-8"))

    def logged(self, key: str) -> list[float]:
        return [entry[key] for entry in self.state["log_history"] if key in entry]


class _Recorder(TrainerCallback):
    def __init__(self, record: Run) -> None:
        self.record = record

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        self.record.gradients.append(gradients)


class At(TrainerCallback):
    """Calls a function with the trainer once, in the middle of a step."""

    def __init__(self, step: int, action: Callable[[Trainer], object]) -> None:
        self.step, self.action = step, action

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            self.step = None
            self.action(self.trainer)


def at_step(step: int, action: Callable[[Trainer], object], patch: Callable[..., None] = setattr) -> None:
    """Let the first training that comes to this step call a function in the middle of it."""
    build, callback = training.build_trainer, At(step, action)

    def build_trainer(*args: Any, **kwargs: Any) -> Trainer:
        callback.trainer = build(*args, **kwargs)
        callback.trainer.add_callback(callback)
        return callback.trainer

    patch(training, "build_trainer", build_trainer)


def _press_ctrl_c(trainer: Trainer) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def watching(record: Run, interrupt_before: int | None = None) -> Iterator[None]:
    """Keep the trainer that train.py builds, its initial weights, batches and gradients in `record`.

    interrupt_before: press Ctrl-C in the step after so many finished ones.
    """
    build, compute = training.build_trainer, Trainer.compute_loss
    if interrupt_before is not None:
        at_step(interrupt_before + 1, _press_ctrl_c)
    with_callback = training.build_trainer

    def build_trainer(*args: Any, **kwargs: Any) -> Trainer:
        record.trainer = with_callback(*args, **kwargs)
        record.initial = {n: p.detach().clone() for n, p in record.trainer.step_module.named_parameters()}
        record.trainer.add_callback(_Recorder(record))
        return record.trainer

    def compute_loss(self, model, inputs, *args: Any, **kwargs: Any) -> Any:
        record.batches.append({name: copy.deepcopy(value) for name, value in inputs.items()})
        return compute(self, model, inputs, *args, **kwargs)

    training.build_trainer, Trainer.compute_loss = build_trainer, compute_loss
    try:
        yield
    finally:
        training.build_trainer, Trainer.compute_loss = build, compute


@dataclass(frozen=True)
class Launcher:
    """Starts train.py in this process with small defaults; a new folder for each run."""

    fresh: Callable[[], Path]
    cache_dir: str

    def argv(self, encoder: str, data: str, folder: Path, **options: Any) -> list[str]:
        places = {"model_name_or_path": encoder, "train_file": data, "output_dir": folder}
        return words({**places, "cache_dir": self.cache_dir, **QUICK, **options})

    def __call__(self, encoder: str, data: str, *, folder: Path | None = None, **options: Any) -> Run:
        """Train, expecting success; options override `QUICK`."""
        record = Run(folder or self.fresh())
        with watching(record):
            assert run(train_command, self.argv(encoder, data, record.folder, **options)) == 0
        return record

    def interrupted(self, step: int, encoder: str, data: str, *, folder: Path | None = None, **options: Any) -> Path:
        """Train until Ctrl-C after `step` finished steps; gives the folder as it was left."""
        record = Run(folder or self.fresh())
        with watching(record, interrupt_before=step):
            assert run(train_command, self.argv(encoder, data, record.folder, **options)) == 130
        return record.folder


@dataclass(frozen=True)
class Outcome:
    """How a tool ended, and all that it told the person at the terminal."""

    code: int
    out: str
    err: str
    said: str

    @property
    def table(self) -> dict[str, str]:
        """Column name → printed score of the table on stdout."""
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in self.out.splitlines() if "|" in line]
        assert len(rows) == 2, self.out
        return dict(zip(*rows, strict=True))


def refused(tool, main, argv, *expected: str) -> None:
    """A mistake of the user's: one line that holds the expected parts, and exit code 2."""
    outcome = tool(main, argv)
    lines = [line for line in outcome.err.splitlines() if line]
    assert outcome.code == 2, outcome.out + outcome.err
    assert sum(line.startswith("error: ") for line in lines) == 1, outcome.err
    assert "Traceback" not in outcome.err
    for part in expected:
        assert part in lines[-1], lines[-1]


def _environment() -> dict[str, str]:
    """The variables of a program of this project, which finds the package and the helpers of the tests."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "SentEval"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Pair:
    """How a program ended that ran as one or two processes: exit code and texts of each."""

    codes: list[int]
    out: list[str]
    err: list[str]

    @property
    def stdout(self) -> str:
        return "".join(self.out)

    @property
    def stderr(self) -> str:
        return "".join(self.err)


class Pairs:
    """Runs programs as one or two processes without starting Python and importing torch each time.

    A process that imports everything (pairs.py) starts at once, and forks itself for each program.
    """

    def __init__(self, fresh: Callable[[], Path]) -> None:
        """fresh: gives a new folder for the texts of each program."""
        self.fresh = fresh
        words = [sys.executable, str(Path(__file__).with_name("pairs.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.forking = subprocess.Popen(words, cwd=ROOT, env=_environment(), start_new_session=True, **pipes)

    def __call__(
        self,
        script: str | Path,
        *argv: Any,
        machines: int = 1,
        hit: tuple[int, int, int] | None = None,
        ends: bool = True,
    ) -> Pair:
        """Run a Python file as two processes, as torchrun does, and wait for it.

        machines: 2 numbers the processes as on two machines. hit: (rank, signal, step) sends a signal to a process in
        the middle of a step of its training. ends: the failure of one process ends the other by a SIGTERM, as
        torchrun does it; otherwise nobody does.
        """
        hits = [hit[1:] if hit and hit[0] == rank else None for rank in range(2)]
        return self._run([script, *argv], hits, machines=machines, ends=ends)

    def alone(self, script: str | Path, *argv: Any, cwd: Path = ROOT) -> subprocess.CompletedProcess:
        """Run a Python file as one process and wait for it."""
        done = self._run([script, *argv], [None], cwd=cwd)
        return subprocess.CompletedProcess([script, *argv], done.codes[0], done.stdout, done.stderr)

    def _run(self, words: Sequence[Any], hits: Sequence[Any], *, cwd: Path = ROOT, **how: Any) -> Pair:
        folder, (script, *argv), ranks = self.fresh(), words, range(len(hits))
        places = {"words": [str(ROOT / script), *map(str, argv)], "cwd": str(cwd), "folder": str(folder)}
        codes = self._ask({**places, "hits": hits, "machines": 1, "ends": True, **how})
        texts = [[(folder / f"rank{r}.{end}").read_text(encoding="utf-8") for r in ranks] for end in ("out", "err")]
        return Pair(codes, *texts)

    def _ask(self, request: Mapping[str, Any]) -> list[int]:
        late = threading.Timer(300, os.killpg, (self.forking.pid, signal.SIGKILL))
        late.start()
        try:
            self.forking.stdin.write(json.dumps(request) + "\n")
            self.forking.stdin.flush()
            answer = self.forking.stdout.readline()
        finally:
            late.cancel()
        assert answer, "a program did not end within 300 seconds, or the process that forks them has ended"
        return json.loads(answer)

    def close(self) -> None:
        """End the process that forks."""
        self.forking.stdin.close()
        self.forking.wait(60)
        self.forking.stdout.close()


def files(folder: Path) -> dict[str, str]:
    """Relative path → sha256 of every file below a folder; folders themselves → ''."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def weights(folder: Path) -> dict[str, Tensor]:
    """All trained tensors of a model folder, read from its files alone."""
    tensors: dict[str, Tensor] = {}
    for name in ("prompts.safetensors", "adapter_model.safetensors", "trained.safetensors", *ENCODERS):
        if (folder / name).is_file():
            tensors |= load_file(folder / name)
    trained = ("prompt_embeddings", "shallow.weight", "embeddings.word_embeddings.weight", "lora_A.weight")
    assert any(name.endswith(trained) for name in tensors), f"nothing trained in {folder}"
    return tensors


def assert_same_weights(first: Path, second: Path, atol: float = 0.0) -> None:
    """The trained tensors of two folders are equal, to the last bit by default."""
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


def cls_by_cache(encoder: str, folder: Path, texts: list[str], *, head: bool) -> np.ndarray:
    """[CLS] vectors by transformers' own cache of keys and values, and no line of this project's model code.

    The route of the published code: the saved table as past_key_values, the text after it in position.
    """
    record = json.loads((folder / "dcpcse.json").read_text(encoding="utf-8"))
    backbone = AutoModel.from_pretrained(encoder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tensors, config = weights(folder), backbone.config
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    table = tensors["prompt_embeddings"]
    length, vectors = len(table), []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        rows = table.view(length, 2 * layers, heads, -1).permute(1, 2, 0, 3).unsqueeze(1)
        cache = DynamicCache()
        for layer in range(layers):
            cache.update(rows[2 * layer], rows[2 * layer + 1], layer)
        first = config.pad_token_id + 1 if "roberta" in config.model_type else 0
        positions = torch.arange(ids.shape[1])[None] + first + record["position_offset"]
        mask = torch.ones(1, length + ids.shape[1])
        with torch.no_grad():
            output = backbone(ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        vectors.append(output.last_hidden_state[0, 0])
    cls = torch.stack(vectors)
    if head:
        cls = torch.tanh(cls @ tensors["head.dense.weight"].T + tensors["head.dense.bias"])
    return cls.numpy()


def contrastive_loss(embeddings: Tensor, temperature: float = 0.05, hard_negative_weight: float = 0.0) -> Tensor:
    """The loss of the paper in plain loops; embeddings (B, V, H) of anchors, positives and hard negatives."""
    losses = []
    for i in range(len(embeddings)):
        terms = []
        for j in range(len(embeddings)):
            for view in range(1, embeddings.shape[1]):
                cosine = F.cosine_similarity(embeddings[i, 0], embeddings[j, view], dim=0)
                own_hard = view >= 2 and i == j
                terms.append(torch.exp(cosine / temperature) * np.exp(hard_negative_weight if own_hard else 0.0))
        own = F.cosine_similarity(embeddings[i, 0], embeddings[i, 1], dim=0) / temperature
        losses.append(torch.stack(terms).sum().log() - own)
    return torch.stack(losses).mean()


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    """Until something holds; far longer than it takes, since machines are slow where tests share them."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.01)


def ray_processes(name: str) -> list[psutil.Process]:
    """Those that this process started, by the name that Ray gives them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            if f"ray::{name}" in words or (not name and "/ray/" in words):
                found.append(process)
    return found


def assert_a_compiled_run_trains_the_same(train: Launcher, encoder: str, data: str, **options: Any) -> None:
    """Without a compiler of C: what is traced runs as it stands."""
    options |= {"learning_rate": 1e-3, "max_seq_length": 16, "pad_to_max_length": True}
    plain = train(encoder, data, **options)
    torch._dynamo.reset()
    try:
        compiled = train(encoder, data, torch_compile=True, torch_compile_backend="eager", **options)
    finally:
        torch._dynamo.reset()
    assert_same_weights(plain.folder, compiled.folder, atol=1e-6)


def as_interrupted(whole: Path, folder: Path, step: int) -> Path:
    """A copy of the folder of a finished run, as if the run had been killed after its checkpoint of a step."""
    shutil.copytree(whole, folder)
    for path in folder.glob("checkpoint-*"):
        if int(path.name.partition("-")[2]) > step:
            shutil.rmtree(path)
    for name in ("dcpcse.json", "trainer_state.json", "train_results.txt"):
        (folder / name).unlink()
    return folder


def resumed_steps(folder: Path) -> list[int]:
    """The steps from which a run was resumed, by its environment.json."""
    calls = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    return [call["from_step"] for call in calls if call["from_step"]]


def train_loss(folder: Path) -> float:
    """The mean loss of a finished run, as train.py reports it."""
    lines = (folder / "train_results.txt").read_text(encoding="utf-8").splitlines()
    return float(dict(line.split(" = ") for line in lines)["train_loss"])


def comparable(entries: Sequence[Mapping[str, Any]], resumed: Collection[int]) -> list[dict[str, Any]]:
    """The log lines of a run that are equal with and without interruptions at these steps.

    Clock times and the summary of one call are left out; so are the means of a log line within whose steps the run was
    resumed, as it covers the steps since then only.
    """
    kept, last = [], 0
    for entry in entries:
        values = {name: value for name, value in entry.items() if "runtime" not in name and "second" not in name}
        if "train_loss" in values:
            continue
        if "loss" in values:
            if any(last < step < values["step"] for step in resumed):
                values = {name: values[name] for name in ("step", "epoch", "learning_rate", "grad_norm")}
            last = values["step"]
        kept.append(values)
    return kept
