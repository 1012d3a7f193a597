"""`dcpcse.train`: train a method from Python, with the options of train.py as keywords."""

import atexit
import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from transformers import TrainerCallback

from dcpcse.data.tables import describe
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.advice import OF_TRAINING, advice
from dcpcse.evaluation.own_data import describe_object
from dcpcse.methods import Method
from dcpcse.methods.plugins import load_plugins
from dcpcse.methods.registry import Builder
from dcpcse.training.callbacks import require_callbacks
from dcpcse.training.checkpoints import resume_hint
from dcpcse.training.options import python_options, require_valid, resolve_options, training_option_parser
from dcpcse.training.run import Inputs, run_training
from dcpcse.training.run_history import Gain, read_run
from dcpcse.training.setup import encoder_name
from dcpcse.training.trainer import Trainer
from dcpcse.utils.arguments import location, path
from dcpcse.utils.console import warn
from dcpcse.utils.distributed import launched
from dcpcse.utils.errors import OptionError, UserError, parameter_names, spell
from dcpcse.utils.files import require_new_folder
from dcpcse.utils.locks import LOCK
from dcpcse.utils.run_files import last_checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_OPTIONS = {"model": "model_name_or_path", "train_data": "train_file"}
"""A dict from parameters of `train` to the options of train.py that have different names."""


class TrainingResult:
    """The result of `dcpcse.train`.

    Args:
        trainer: The `dcpcse.Trainer` of the run.
        folder: The output folder of the run, with the same files as after train.py. `dcpcse.load(folder)` loads the
            model.

    Attributes:
        history: The logged values, as in metrics.jsonl: one dict per log entry, with its `step`. A value that is not
            finite is None.
        gains: One `dcpcse.training.run_history.Gain` for `eval_pairs` and one for `eval_labels`, if they were given:
            the scores × 100 of the encoder before and after training, and the 95 % confidence interval of their
            difference.
    """

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        self.trainer = trainer
        self.folder = folder
        self._run = read_run(folder)
        self.history: list[dict[str, Any]] = [dict(line) for line in self._run.metrics]
        self.gains: list[Gain] = [*self._run.gains]

    @property
    def model(self) -> SentenceEncoder:
        """The trained encoder in eval mode: the last step, or the best one with `load_best_model_at_end=True`."""
        return self.trainer.step_module.model.eval()

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The figures of the run by name.

        The figures include `train_loss`, `train_runtime` (in seconds), and for each dev score NAME the last value
        `eval_NAME` and the best value `best_eval_NAME`. The best value may be the score before training. Spearman
        correlations are fractions, accuracies are × 100.
        """
        logged = {name: value for line in self.history for name, value in line.items()}
        metrics = {name: value for name, value in logged.items() if name.startswith("train_")}
        for name, score in self._run.dev_scores.items():
            metrics |= {f"eval_{name}": score.last, f"best_eval_{name}": score.best}
        return metrics

    def plot(self) -> "Figure":
        """Draw all logged values over the steps. Raises UserError if matplotlib is not installed."""
        from dcpcse.analysis.plots.training_curves import draw

        # The name of a temporary folder is random and has no meaning.
        label = self.model.method if self.folder in _temporary else self.folder.name
        return draw({label or "run": self.history})

    def save(self, folder: str | Path) -> Path:
        """Copy the output folder, with its records and checkpoints, to a new folder, which becomes `self.folder`.

        Args:
            folder: The new folder. If it exists, it must be empty.
        """
        target = Path(path("folder", folder))
        require_new_folder(target, "folder")
        shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns(LOCK), dirs_exist_ok=True)
        if self.folder in _temporary:  # a temporary folder is private, and copytree copies its mode
            mask = os.umask(0)
            os.umask(mask)
            target.chmod(0o777 & ~mask)
        self.folder = target
        return target

    def __repr__(self) -> str:
        figures = "".join(f", {name}={value:.4g}" for name, value in self.metrics.items() if _is_shown(name))
        gone = " (removed when Python ends; save(folder) keeps it)" if self.folder in _temporary else ""
        return f"<TrainingResult of {self.model.method}: folder={str(self.folder)!r}{gone}{figures}>"


def _is_shown(metric: str) -> bool:
    return metric == "train_loss" or metric.startswith(("eval_", "best_"))


def train(
    model: str | Path | None,
    train_data: Any,
    *,
    method: str | Builder | Method | None = None,
    preset: str | None = None,
    output_dir: str | Path | None = None,
    eval_pairs: Any = None,
    eval_labels: Any = None,
    callbacks: Sequence[TrainerCallback | type[TrainerCallback]] = (),
    trainer_class: type[Trainer] = Trainer,
    plugin: str | Path | Sequence[str | Path] = (),
    **options: Any,
) -> TrainingResult:
    """Train sentence embeddings as train.py does, and return the model, the figures of the run and its folder.

    The call does not change random states, environment variables and signal handlers. An interruption (Ctrl-C, or of
    the kernel of a notebook) saves a checkpoint after the running step and raises `KeyboardInterrupt`, whose message
    names the checkpoint.

    Args:
        model: Hugging Face folder or hub id of the encoder. None if `method` is a built `Method`, which already
            contains its encoder. A built method is trained in place, so a second training continues with its weights.
        train_data: Sentences, pairs, triples or sentences with classes: a list, a dict of columns, a pandas or polars
            DataFrame, a `datasets.Dataset`, or the path of a training file. A dict of several training sets by name
            trains on all sets: each batch comes from one set, drawn in proportion to its size or to the option
            `train_weights`.
        method: The name of a method, a function that is called with (backbone, args, columns) and returns a `Method`,
            or a built `Method`. None: the method of the preset, or dcpcse.
        preset: Name of a published setting, such as `dcpcse/unsup-bert-base`.
        output_dir: Folder of the run. It must be new or empty, unless `resume=True` or `overwrite_output_dir=True` is
            given. None: a temporary folder that is removed when this Python process ends.
        eval_pairs: Pairs with scores, or with 0 and 1, in any form of `train_data`. The encoder is evaluated on them
            during training, in addition to `eval_tasks`.
        eval_labels: Texts with classes, in any form of `train_data`, on which the encoder is evaluated too.
        callbacks: As in `transformers.Trainer`.
        trainer_class: A subclass of `dcpcse.Trainer`.
        plugin: Modules or files (.py) that register methods.
        options: The other options of train.py with the same names and defaults, such as `learning_rate=3e-2` or
            `pre_seq_len=16`. `disable_tqdm=True` hides the progress bar.

    Raises:
        UserError: If an argument or the data are not valid.
    """
    with parameter_names(**{option: name for name, option in _OPTIONS.items()}), advice(OF_TRAINING):
        if train_data is None:
            raise UserError("train_data is None; give sentences or pairs as a list or a table, or a training file")
        if renamed := [name for name, option in _OPTIONS.items() if option in options]:
            raise UserError(f"{_OPTIONS[renamed[0]]} is called {renamed[0]} in dcpcse.train; give {renamed[0]}")
        _require_types(method, callbacks, trainer_class)
        inputs = {"train_data": train_data, "eval_pairs": eval_pairs, "eval_labels": eval_labels, "method": method}
        paths = {name: value for name, value in inputs.items() if isinstance(value, str | os.PathLike)}
        objects = {name: value for name, value in inputs.items() if value is not None and name not in paths}
        settings = {_OPTIONS.get(name, name): value for name, value in paths.items()}
        # The options contain the recorded descriptions of objects; evaluation data of the user imply other options in
        # both forms.
        settings |= {name: describe_object(objects[name]) for name in ("eval_pairs", "eval_labels") if name in objects}
        if isinstance(method, Method) and preset is not None:
            raise UserError(
                "preset has no effect on a method that was built with build_method; leave it out, and give the "
                "training options of the preset"
            )
        encoder = None if model is None and isinstance(method, Method) else encoder_name(model)
        settings |= {"model_name_or_path": encoder, "preset": preset, "output_dir": output_dir, **options}
        settings["plugin"] = _plugins(plugin) or None
        load_plugins(settings["plugin"] or ())
        parser = training_option_parser()
        values = python_options(
            "train", parser, settings, others=[name for name in signature(train).parameters if name != "options"]
        )
        with unchanged_process(), _output_folder(values) as folder:
            resolved, names = resolve_options(parser, values, objects.get("method"))
            require_valid(resolved, names, objects)
            all_callbacks = [*callbacks, *([_SayTemporary(folder)] if output_dir is None else [])]
            inputs = Inputs(**objects, callbacks=all_callbacks, trainer_class=trainer_class, prints_log=False)
            with _explained_interruption(folder):
                trainer = run_training(resolved, names, inputs)
        return TrainingResult(trainer, folder)


def _plugins(value: Any) -> list[str]:
    plugins = [value] if isinstance(value, str | os.PathLike) else value
    if not isinstance(plugins, list | tuple):
        raise UserError(f"plugin is {describe(value)}; give modules or .py files as a list of strings")
    return [location("plugin", plugin) for plugin in plugins]


def _require_types(method: Any, callbacks: Any, trainer_class: Any) -> None:
    """Raise UserError unless the method, the callbacks and the trainer class have valid types."""
    if not (method is None or isinstance(method, str | Method) or callable(method)):
        raise UserError(f"method is {describe(method)}; give a name, or a function that returns a Method")
    require_callbacks(callbacks)
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, Trainer)):
        raise UserError(f"trainer_class {trainer_class!r:.60}: must be a subclass of dcpcse.Trainer")


_temporary: dict[Path, int] = {}
"""A dict from temporary output folders to the id of the process that removes the folder when this process ends."""


@atexit.register
def _remove_temporary_folders() -> None:
    for folder, process in _temporary.items():
        if process == os.getpid():  # a forked process leaves the folders of its parent
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _output_folder(values: dict[str, Any]) -> Iterator[Path]:
    """Set `output_dir` to a temporary folder if it is missing. This folder is removed if it is empty at the end."""
    if "output_dir" in values:
        yield Path(path("output_dir", values["output_dir"]))
        return
    if without_effect := next((name for name in ("resume", "overwrite_output_dir") if values.get(name)), None):
        raise OptionError(without_effect, reason=f"needs {spell('output_dir')}", remedy="give the folder of the run")
    if launched() > 1:
        raise UserError(f"output_dir is missing; give one folder for all {launched()} processes of the run")
    folder = Path(
        tempfile.mkdtemp(prefix="training-")
    )  # a folder named after a method would count as chosen by the user
    _temporary[folder] = os.getpid()
    values["output_dir"] = str(folder)
    try:
        yield folder
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            _temporary.pop(folder, None)


class _SayTemporary(TrainerCallback):
    """Warn that the output folder is temporary, after all checks, when training starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        gone = "removed when Python ends; give output_dir to keep it"
        warn(f"the model is saved in the temporary folder {self.folder}, which is {gone}")


@contextlib.contextmanager
def _explained_interruption(folder: Path) -> Iterator[None]:
    """Add to the message of an interruption which checkpoint was saved, and keep a temporary folder."""
    try:
        yield
    except KeyboardInterrupt as error:
        if folder in _temporary and not any(folder.iterdir()):
            error.args = ("interrupted before the training started; nothing was written",)
            raise
        text = str(error) or resume_hint(folder)
        newest = last_checkpoint(folder)
        if newest and str(newest) in text:  # not at the end, when the folder itself has the model
            text += f"; dcpcse.load({str(newest)!r}) loads the model so far"
        if folder in _temporary:
            del _temporary[folder]
            text += f"; the temporary folder is kept: output_dir={str(folder)!r} resumes in it"
        error.args = (text,)
        raise


@contextlib.contextmanager
def unchanged_process() -> Iterator[None]:
    """Restore random states, environment variables and library settings when the context ends."""
    environment, verbosity = dict(os.environ), transformers.logging.get_verbosity()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    tf32 = torch.backends.fp32_precision
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        transformers.logging.set_verbosity(verbosity)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for device, state in enumerate(devices):
            torch.cuda.set_rng_state(state, device)
        torch.backends.fp32_precision = tf32
        torch.use_deterministic_algorithms(deterministic[0])
        torch.backends.cudnn.deterministic = deterministic[1]
