"""A subclass of transformers' Trainer that trains a model with the losses of a method."""

import contextlib
import logging
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput

from dcpcse.data.collator import ByValue, ViewCollator
from dcpcse.data.examples import without_index
from dcpcse.data.sampling import set_order
from dcpcse.data.tables import describe
from dcpcse.data.token_table import open_token_tables
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.frozen_layers import prepacked
from dcpcse.encoders.half_precision import frozen_stacks, in_half_precision
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import manifest
from dcpcse.losses import Loss
from dcpcse.losses.base import Metrics
from dcpcse.methods import Method
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Builder
from dcpcse.training import atomic_save, checkpoints
from dcpcse.training.arguments import NO_DUPLICATES, DataArguments, TrainingArguments, as_training_arguments
from dcpcse.training.callbacks import AfterStep, MetricsFile, ResumeCallback, close_bars, require_callbacks
from dcpcse.training.checkpoints import EVAL_RESULTS, clear_run, resume_hint
from dcpcse.training.eval_datasets import ComputeMetrics, compute_scores, open_eval_dataset
from dcpcse.training.gradient_cache import Replay, joint, per_row_losses, run_in_chunks
from dcpcse.training.guards import Guards
from dcpcse.training.optimizer import UncorrectedAdamW, own_rates, split_groups, with_own_warmups
from dcpcse.training.publish import CARD, write_card
from dcpcse.training.resolve_arguments import resolve_arguments
from dcpcse.training.setup import (
    build,
    model_options,
    open_train_dataset,
    options_of_built,
    resolved,
    write_run,
)
from dcpcse.training.step import TrainingStep
from dcpcse.training.summary import planned_steps
from dcpcse.training.validate_setup import batch_sizes
from dcpcse.utils.console import notify, warn
from dcpcse.utils.devices import release_memory, uses_kernels
from dcpcse.utils.distributed import DistributedBatchSampler, all_reduce_max, require_same_in_all_processes, world_size
from dcpcse.utils.errors import (
    UserError,
    invalid_choice,
    no_effect,
    parameter_names,
    plural,
    same_call,
    spell,
)
from dcpcse.utils.files import write_atomic
from dcpcse.utils.locks import exclusive_lock
from dcpcse.utils.private.trainer import ExportableState, HookedTrainer
from dcpcse.utils.run_files import RUN_FILE, STATE, checkpoints_in, count_without_gain, read_state
from dcpcse.utils.signals import DeferredSignal, Interrupted, ignore_signals

logger = logging.getLogger(__name__)


class Trainer(HookedTrainer):
    """A transformers Trainer that trains sentence embeddings with the losses of a method.

    The trainer weights and logs the loss terms, computes the metrics of the evaluation data, and stops or warns if the
    training fails (`dcpcse.training.guards`). Its checkpoints contain only the trained weights, never the frozen
    encoder. Callbacks, `report_to` and overridden methods work as in transformers. An overridden `compute_loss` gets
    the `TrainingStep` as `model`, and `model(**inputs)` returns the unweighted loss terms by name.

    The constructor builds the method on its encoder, and checks that method, data and options fit together.

    For example:

        args = dcpcse.TrainingArguments("out", learning_rate=3e-2, eval_strategy="epoch")
        trainer = dcpcse.Trainer(
            "bert-base-uncased", "dcpcse", args, train_dataset=sentences, eval_dataset=scored_pairs, pre_seq_len=16
        )
        trainer.train()
        trainer.save_model("model")  # dcpcse.load("model") reads it

    Args:
        model: An encoder, as a Hugging Face folder, a hub id or a loaded `Backbone`; None if `method` is built.
        method: The name of a registered method, a function (backbone, args, columns) → `Method`, or a built `Method`.
            A function need not be registered; its name becomes the name of the method. None: `dcpcse`.
        args: `dcpcse.TrainingArguments` or transformers' `TrainingArguments`. Options that are not given in the former
            class are filled in. All values of the latter class are used. The object is not changed: `trainer.args` is
            a copy with the values that were filled in.
        train_dataset: Sentences, pairs, triples or sentences with classes in any form that
            `dcpcse.data.training_data.load_training_data` reads, such as a list or a file, or a dict of several such
            data by name. Each batch then has rows of one of them. None if the trainer only evaluates.
        eval_dataset: Pairs with scores, texts with classes, names of tasks with a dev set (such as `["STSBenchmark"]`,
            with files in `eval_data_dir`), or a `senteval.Suite`. Several sets of data are given as a dict from names
            to such data; a metric METRIC of the data NAME is then called NAME_METRIC. None: no evaluation.
        callbacks: As in transformers.
        compute_metrics: Function of a `transformers.EvalPrediction` that returns a dict of numbers. The function is
            called for each set of evaluated pairs, with the cosines (n,) as `predictions` and the gold scores (n,) as
            `label_ids`, as NumPy arrays. It is not called for labelled texts. A metric NAME is added as `eval_NAME`,
            and may be used as `metric_for_best_model`. The default of `metric_for_best_model` is the first score of
            the evaluation data.
        data_collator: Replaces the `ViewCollator` that tokenises the views. The collator gets a list of dicts with the
            sentences by their roles (`anchor`, `positive`, …), and must return the same kind of batch as
            `ViewCollator`.
        optimizers: As in transformers.
        max_seq_length: Maximum number of tokens of a training sentence.
        pad_to_max_length: Whether to pad every batch to `max_seq_length`.
        columns: The columns of `train_dataset` to read, by their roles, such as {"anchor": "question", "positive":
            "answer"}. None: all columns.
        train_weights: The weights by which the batches of an epoch are divided among several training data.
        eval_data_dir: Folder with the files of tasks that `eval_dataset` names.
        custom_eval_data: Whether the files in `eval_data_dir` may have other sizes than the official data.
        options: All options of the model and of the data as objects. They replace the six preceding arguments and
            `method_options`.
        method_options: Options of the model and of the method, by the names that `train.py --help all` lists, such as
            `temp=0.05`.

    Attributes:
        method: The method, with its losses and views.
        model_options: The options of the method, with the defaults of the method filled in.
        run_options: All options, as checkpoints record them.
        made_of: The inputs that must be the same when the run is resumed, such as the digest of the training data.

    Raises:
        UserError: If an argument is not allowed, or if encoder, method, data and options do not fit together.
    """

    @parameter_names(model_name_or_path="model", train_file="train_dataset")
    def __init__(
        self,
        model: str | Path | Backbone | None = None,
        method: str | Builder | Method | None = None,
        args: transformers.TrainingArguments | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        callbacks: Sequence[TrainerCallback | type[TrainerCallback]] | None = None,
        compute_metrics: ComputeMetrics | None = None,
        data_collator: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LRScheduler | None] = (None, None),
        max_seq_length: int = 32,
        pad_to_max_length: bool = False,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        train_weights: Sequence[float] | None = None,
        eval_data_dir: str | Path = "SentEval/data",
        custom_eval_data: bool = False,
        options: tuple[ModelArguments, DataArguments] | None = None,
        **method_options: Any,
    ) -> None:
        args, chosen = as_training_arguments(args), set() if method is None else {"method"}
        method = ModelArguments.method if method is None else method
        if options is None:
            model_args = model_options(model, method, method_options)
            data_args = DataArguments(
                max_seq_length=max_seq_length,
                pad_to_max_length=pad_to_max_length,
                columns=columns,
                train_weights=train_weights,
                eval_data_dir=eval_data_dir,
                custom_eval_data=custom_eval_data,
            )
        else:
            model_args, data_args = options
            if isinstance(method, Method):
                built_from = options_of_built(model, method, model_args.given())
                model_args = replace(built_from, preset=model_args.preset, plugin=model_args.plugin)
        self._require_supported(args, optimizers)
        require_callbacks(callbacks or ())
        if compute_metrics is not None and not callable(compute_metrics):
            raise UserError(f"compute_metrics is {describe(compute_metrics)}; give a function that returns a dict")
        if not args.is_resolved:
            resolve_arguments(args, None, args.given | method_options.keys() | chosen)
            args.trains = train_dataset is not None
        self._suites = open_eval_dataset(eval_dataset, data_args)
        if (args.eval_strategy != "no" or args.eval_on_start) and not self._suites:
            raise UserError(f"eval_dataset is missing; give evaluation data, or leave {spell('eval_strategy')} out")
        data = open_train_dataset(train_dataset, model_args, data_args)
        if data:
            names = [part.name for part in data.sets.values()]
            data_args.train_file = names if len(names) > 1 else names[0]
        built = build(model, method, model_args, data_args, args, data)
        files = {name: suite.files for name, suite in self._suites.items()}
        require_same_in_all_processes({**built.made_of, "evaluation data": files})
        # Processes draw different dropout masks (see below), but must agree on the order of the examples.
        args.data_seed = args.seed if args.data_seed is None else args.data_seed
        others: dict[str, Any] = {}
        if not args.adam_bias_correction:
            settings = {
                "lr": args.learning_rate,
                "betas": (args.adam_beta1, args.adam_beta2),
                "eps": args.adam_epsilon,
            }
            others["optimizer_cls_and_kwargs"] = UncorrectedAdamW, settings
        super().__init__(
            TrainingStep(built.method),
            args,
            data_collator or built.collator,
            built.dataset,
            self._suites or None,
            compute_metrics=compute_metrics,
            callbacks=list(callbacks or ()),
            optimizers=optimizers,
            **others,
        )
        self.method = built.method
        self.model_options = built.options
        self.data_options = data_args
        self.run_options: Mapping[str, Any] = resolved(built.options, data_args, args, args.given)
        self.made_of = built.made_of
        self.step_module: TrainingStep = self.model
        kernels = uses_kernels(args.attention, args.device, args.packing, compiled=args.torch_compile)
        set_packed(self.step_module, args.packing, kernels)
        self.metrics_file = MetricsFile(Path(args.output_dir))
        self.add_callback(self.metrics_file)
        self.add_callback(AfterStep(self.method))
        self.add_callback(ResumeCallback(self))
        if args.early_stopping_patience and args.eval_strategy != "no":
            self.add_callback(EarlyStoppingCallback(args.early_stopping_patience, args.early_stopping_threshold))
        self.stop = DeferredSignal()
        self.is_prepared = False  # set by `run_training`, which has already checked and prepared the output folder
        self.resumed_from: Path | None = None
        self._term_sums: dict[str, Tensor] = {}
        self._metric_sums: dict[str, Tensor] = {}
        self._batches_since_log = 0
        self.epoch_is_over = False
        self._saved_step = 0
        self._set_loss_sum(0.0)
        self._limit = args.save_total_limit
        self.guards = Guards(self.step_module, self.method, args, data and data.locate)
        for callback in self.guards.callbacks:
            self.add_callback(callback)
        self._terms: dict[str, Tensor] = {}
        self._passes = 0
        self._rates: dict[str, float] = {}

    def _require_supported(self, args: TrainingArguments, optimizers: Sequence[Any]) -> None:
        """Raise UserError for options that the constructor does not support."""
        if args.push_to_hub:
            raise UserError(
                f"{spell('push_to_hub', True)} is not supported here; leave it out, and push the saved folder "
                "with dcpcse hub push"
            )
        if type(self).compute_loss is not Trainer.compute_loss and args.gradient_cache_chunk:
            raise UserError(
                f"{spell('gradient_cache_chunk')} would not call your own compute_loss; leave out one of them"
            )
        if optimizers[0] is not None and not args.adam_bias_correction:
            raise no_effect("adam_bias_correction", "on an optimizer of your own")

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """The model that is trained."""
        return self.method.model

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as in transformers, and return the number of steps, the mean loss and the metrics of the training.

        With the option `prepack`, frozen weights are kept in a layout that is faster on a CPU.

        Args:
            resume_from_checkpoint: A folder checkpoint-N, or True for the newest complete checkpoint in `output_dir`.
                None: the value of the option `resume_from_checkpoint`. If the checkpoint was saved after the last
                step, it is loaded without further training, and the returned metrics are empty.

        Raises:
            UserError: If the run differs from the run that wrote the checkpoint, or if `output_dir` contains an
                earlier run that is neither resumed nor replaced (`overwrite_output_dir`).
        """
        if self.train_dataset is None:
            raise UserError("train_dataset is missing; give training data")
        output = Path(self.args.output_dir)
        with contextlib.ExitStack() as stack:
            if not self.is_prepared:
                stack.enter_context(atomic_save.explain_disk_errors(output, lambda: resume_hint(output)))
                if self.args.process_index == 0:
                    stack.enter_context(exclusive_lock(output, spell("output_dir", output)))
                resume_from_checkpoint = self._prepare(resume_from_checkpoint)
            if (done := self._restore_if_done(resume_from_checkpoint)) is not None:
                return done
            return self._train(str(resume_from_checkpoint) if resume_from_checkpoint else None, *args, **kwargs)

    def _prepare(self, asked: str | Path | bool | None) -> Path | None:
        """Check the output folder, and return the checkpoint to resume from."""
        checkpoint = checkpoints.find_checkpoint(self.args, None if asked is None else str(asked))
        if checkpoint is not None:
            self.require_resumable(checkpoint)
            return checkpoint.folder
        output = Path(self.args.output_dir)
        if (
            self.args.process_index == 0
            and not self.args.resume
            and (checkpoints_in(output) or manifest.is_model_folder(output))
        ):
            if not self.args.overwrite_output_dir:
                raise UserError(
                    f"{spell('output_dir', output)} contains an earlier run; give another folder, "
                    f"{spell('overwrite_output_dir', True)} to replace it, or resume_from_checkpoint=True to continue "
                    "it"
                )
            clear_run(output)
        return None

    def require_resumable(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Raise UserError unless the checkpoint was written by a run with the same options and inputs."""
        checkpoint.require_same(self.run_options, self.made_of, self.method)
        if self.args.load_best_model_at_end:
            checkpoint.require_best(Path(self.args.output_dir))

    @property
    def early_stopping(self) -> list[EarlyStoppingCallback]:
        """The callbacks that stop the training early."""
        return [part for part in self.callback_handler.callbacks if isinstance(part, EarlyStoppingCallback)]

    def is_over(self, state: Mapping[str, Any]) -> bool:
        """Return whether a run with this state (trainer_state.json) has made all its steps or has stopped early."""
        patience = min((part.early_stopping_patience for part in self.early_stopping), default=math.inf)
        return state["global_step"] >= planned_steps(self) or count_without_gain(state) >= patience

    def _restore_if_done(self, folder: str | Path | None) -> TrainOutput | None:
        """Load the checkpoint if it was saved after the last step. transformers would train one more step."""
        if not folder or not self.is_over(state := read_state(Path(folder))):
            return None
        notify(f"{folder} was saved at the end of the run, after {plural(state['global_step'], 'step')}")
        self.restore(Path(folder))
        return TrainOutput(self.state.global_step, math.nan, {})

    def _train(self, resume_from_checkpoint: str | None, *args: Any, **kwargs: Any) -> TrainOutput:
        half = torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else None
        compiled = self.args.torch_compile  # the compiled graph uses the original weights
        layout = prepacked(self.step_module, self.args.prepack and not (compiled or half))
        # The guide computes in float32.
        cast = nn.ModuleList([self.sentence_encoder, self.step_module.losses])
        self.resumed_from = resume_from_checkpoint and Path(resume_from_checkpoint)
        self._set_loss_sum(0.0)
        # Random numbers drawn since the constructor have no effect, and every process draws different dropout masks.
        torch.manual_seed(self.args.seed + self.args.process_index)
        start = self.args.eval_on_start
        # transformers deletes checkpoints in place, even the last one, so `_save_checkpoint` deletes old ones instead.
        # A resumed run was already evaluated at its start.
        self.args.save_total_limit, self.args.eval_on_start = None, start and not resume_from_checkpoint
        try:
            half = None if compiled else half
            # Denoising subtracts vectors that can be nearly equal; autocast keeps more of their digits.
            whole = half == torch.bfloat16 and not self.sentence_encoder.denoising.training
            if whole and any(frozen_stacks(cast)):
                notify("frozen layers are computed in bfloat16 by kernels")
            with layout, in_half_precision(cast, half, whole=whole):
                return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            close_bars(self.callback_handler.callbacks)
            self.args.save_total_limit, self.args.eval_on_start = self._limit, start

    def get_train_dataloader(self) -> DataLoader:
        """Return a data loader in which each row of an epoch belongs to exactly one process.

        The loader of accelerate would repeat rows to fill up the last step.
        """
        loader, args = super().get_train_dataloader(), self.args
        self._tokenize_ahead()
        parts, distinct = self.train_dataset.parts, args.batch_sampler == NO_DUPLICATES
        sizes = [batch_sizes(part, args) for part in parts] if distinct or len(parts) > 1 else None
        set_order(loader, sizes, distinct=distinct, weights=self.data_options.train_weights)
        loader.base_dataloader.worker_init_fn = partial(ignore_signals, loader.worker_init_fn)
        if args.dataloader_num_workers:
            loader.base_dataloader.collate_fn = ByValue(loader.collate_fn)
        if world_size() > 1:
            shard = loader.batch_sampler
            shard.batch_sampler, shard.batch_size = DistributedBatchSampler(shard.batch_sampler, world_size()), None
        elif len(parts) > 1:
            # The last batch of each set is smaller. A data loader does not allow an assignment to this attribute.
            vars(loader.base_dataloader)["batch_sampler"] = DistributedBatchSampler(loader.batch_sampler, 1)
        return loader

    def _tokenize_ahead(self) -> None:
        """Tokenise all training sentences in advance, or open the file with their token ids, if this saves time.

        This saves time if the run uses at least as many examples as the data have. It is not done with a data collator
        of the user, which needs the texts.
        """
        collator, dataset, args = self.data_collator, self.train_dataset, self.args
        rows = args.max_steps * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        reads_all = rows >= len(dataset) if args.max_steps > 0 else args.num_train_epochs >= 1
        reads_ids = type(collator) is ViewCollator and collator.tokenizer.is_fast
        if dataset.parts[0].tables or not reads_all or not reads_ids:
            return
        with args.main_process_first(desc="tokenisation"):
            for part in dataset.parts:
                part.tables = open_token_tables(
                    part.rows,
                    collator.tokenizer,
                    collator.tokenizations,
                    refresh=self.data_options.overwrite_cache and args.local_process_index == 0,
                    show_progress=not args.disable_tqdm,
                )

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimiser as in transformers, with separate learning rates of the groups in `method.groups`."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new:
            split_groups(optimizer, self.method.groups)
        return optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Create the learning-rate schedule as in transformers, with separate warm-ups of groups in `method.groups`.

        Args:
            num_training_steps: Number of optimiser steps.
            optimizer: As in transformers.
        """
        is_new = self.lr_scheduler is None
        schedule = super().create_scheduler(num_training_steps, optimizer)
        if is_new and any(group.warmup_steps is not None for group in self.method.groups):
            self.lr_scheduler = with_own_warmups(schedule, self.method.groups, self.args, num_training_steps)
        return self.lr_scheduler

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss: the sum of all terms, each multiplied by its weight at the current optimiser step.

        Args:
            model: The `TrainingStep`, which may be wrapped.
            inputs: A batch of the collator.
            return_outputs: Whether to return the unweighted terms too, by name.
            num_items_in_batch: Not used.
        """
        terms = model(**inputs)
        loss = self._weighted(terms)
        self.guards.gradient_flow.require_graph(loss)
        self._keep_terms(terms)
        self._add_metrics(self.step_module.losses)
        return (loss, terms) if return_outputs else loss

    def training_step(
        self, model: nn.Module, inputs: Mapping[str, Tensor], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Run the forward and the backward pass of a batch, and return the loss.

        With `--gradient_cache_chunk`, the passes run in chunks.

        Args:
            model: The `TrainingStep`, which may be wrapped.
            inputs: A batch of the collator.
            num_items_in_batch: As in transformers.
        """
        self._passes += 1
        release_memory(self.args.device, self._passes)
        batch, rows = without_index(inputs)
        run = self._at_once if self.args.gradient_cache_chunk is None else self._in_chunks
        self._terms = {}
        loss = run(model, batch, num_items_in_batch)
        self._add_loss(loss.detach())
        # An overridden `compute_loss` need not compute terms.
        self.guards.observe(rows, batch, self._terms or {"compute_loss": loss})
        if len(self.train_dataset.parts) > 1 and rows and self._terms:
            of_batch = self._weighted(self._terms)
            self._add_counts({f"loss_on_{self.train_dataset.name_of(rows[0])}": (of_batch, torch.ones_like(of_batch))})
        if self.accelerator.sync_gradients:
            settings = {"learning_rate": float(self.optimizer.param_groups[0]["lr"]), "weights": self._weights()}
            scaled = self.accelerator.scaler is not None
            self._rates = own_rates(self.optimizer)
            self.guards.before_optimizer(self.state.global_step + 1, settings, scaled=scaled)
        return loss

    def _at_once(self, *args: Any) -> Tensor:
        return super().training_step(*args)

    def _in_chunks(self, model: nn.Module, inputs: Mapping[str, Tensor], _: Any) -> Tensor:
        model.train()
        if hasattr(self.optimizer, "train") and callable(self.optimizer.train):  # schedule-free optimisers
            self.optimizer.train()
        inputs, share = self.to_device(inputs), 1 / self.current_gradient_accumulation_steps
        weights = {name: weight * share for name, weight in self._weights().items()}

        def run(chunk: Mapping[str, Tensor], replay: Replay, last: bool) -> dict[str, Tensor]:
            # Processes exchange gradients only once per batch, after its last chunk.
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                with self.compute_loss_context_manager():
                    terms = model(replay=replay, **chunk)
                self.accelerator.backward(sum(weights.get(name, 1.0) * term for name, term in terms.items()))
            self._add_metrics(per_row_losses(self.step_module.losses))
            return terms

        # The first pass does not use the module that accelerate has wrapped in autocast.
        chunk, precision = self.args.gradient_cache_chunk, self.accelerator.autocast
        terms = run_in_chunks(self.step_module, inputs, chunk, weights, run, precision)
        self._keep_terms(terms)
        self._add_metrics(joint(self.step_module.losses))
        return self._weighted(terms) * share

    def _weighted(self, terms: Mapping[str, Tensor]) -> Tensor:
        weights = self._weights()
        return sum(weights[name] * term for name, term in terms.items())

    def _keep_terms(self, terms: Mapping[str, Tensor]) -> None:
        """Keep the terms for the log and for the guards."""
        self._terms = {name: term.detach() for name, term in terms.items()}
        for name, term in self._terms.items():
            self._term_sums[name] = self._term_sums.get(name, 0) + term
        self._batches_since_log += 1

    def _add_metrics(self, losses: Mapping[str, Loss]) -> None:
        """Add the metrics that these losses computed for the last batch or chunk to the sums for the log.

        If the metrics of two terms have the same name, the name of the second metric is prefixed with its term.
        """
        counts: Metrics = {}
        for term, loss_fn in losses.items():
            for figure, count in loss_fn.metrics.items():
                counts[f"{term}_{figure}" if figure in counts else figure] = count
        self._add_counts(counts)

    def _add_counts(self, counts: Metrics) -> None:
        for name, count in counts.items():
            self._metric_sums[name] = self._metric_sums.get(name, 0) + torch.stack(count).float()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write a log entry. If it contains `loss`, add mean loss terms, mean metrics and scheduled weights.

        In the last entry, `train_loss` is replaced by the mean over all steps of the run, including the steps before
        the run was resumed.

        Args:
            logs: The entry, which is changed.
            start_time: As in transformers.
        """
        self.guards.flush()
        if "train_loss" in logs:
            logs["train_loss"] = self._mean_loss()
        if "loss" in logs:
            logs |= self._drain_terms() | self._drain_counts() | self._figures() | self._rates
            logs |= {f"weight_{n}": self._weights()[n] for n, t in self.step_module.terms.items() if t.schedule}
        super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: Sequence[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Compute the metrics of the evaluation data, log them, and return them with names such as `eval_NAME`.

        All processes encode the sentences. They use the scores of the main process, so all processes agree on the best
        step.

        Args:
            eval_dataset: Evaluation data as in the constructor. None: the data given to the constructor.
            ignore_keys: Not used.
            metric_key_prefix: Prefix of the names of the metrics, without the underscore that follows it.

        Raises:
            UserError: If there are no evaluation data.
        """
        suites = self._suites if eval_dataset is None else open_eval_dataset(eval_dataset, self.data_options)
        if not suites:
            raise UserError("there is no evaluation data; give eval_dataset")
        if not self.is_in_train:
            self.metrics_file.follow(self.state)  # an interrupted earlier call may have logged this evaluation
        self.guards.flush()
        model, in_dev = self.sentence_encoder, self.model_options.denoise_in_dev
        with model.denoised(model.denoising.inference if in_dev is None else in_dev):
            scores = compute_scores(model, suites, self.args.per_device_eval_batch_size, self.compute_metrics)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        if self.is_in_train:
            self._require_best_metric(scores)
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _require_best_metric(self, scores: Mapping[str, float]) -> None:
        """Set `metric_for_best_model` to the first score if it is not given; raise UserError if it is not computed."""
        asked = self.args.metric_for_best_model
        if asked == "loss" and "loss" not in scores:  # transformers' default, which no evaluation computes here
            self.args.metric_for_best_model, self.args.greater_is_better = next(iter(scores)), True
            if self.args.load_best_model_at_end:
                warn(
                    f"{spell('metric_for_best_model', next(iter(scores)))}: filled in; it selects the best checkpoint"
                )
        elif asked and asked.removeprefix("eval_") not in scores:
            raise invalid_choice("metric_for_best_model", asked, scores)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Raise UserError, since `sentence_encoder.encode(sentences)` computes embeddings."""
        raise UserError("predict is not supported; encode sentences by trainer.sentence_encoder.encode(sentences)")

    def push_to_hub(self, *args: Any, **kwargs: Any) -> str:
        """Raise UserError, since `dcpcse hub push` pushes a folder that `save_model` wrote."""
        raise UserError(
            "push_to_hub is not supported; call save_model(folder), then run dcpcse hub push FOLDER ORG/NAME"
        )

    def create_model_card(self, *, model_name: str | None = None, **others: Any) -> None:
        """Write the model card to README.md in `output_dir`, as `dcpcse hub card` does.

        The card describes the model in `output_dir`. If that folder contains no model, the card describes the current
        model.

        Args:
            model_name: Name of the model. None: the name of `output_dir`.
            others: Further arguments of transformers' method. They have no effect, and a warning names them.
        """
        if unused := [name for name, value in others.items() if value is not None]:
            warn(f"create_model_card ignores {', '.join(unused)}; write this information to {CARD} yourself")
        if not self.is_world_process_zero():
            return
        output = Path(self.args.output_dir)
        name = model_name or output.resolve().name
        with tempfile.TemporaryDirectory() as aside:
            folder = output
            if not manifest.is_model_folder(output):
                folder = Path(aside)
                self.sentence_encoder.save(folder)
                write_run(folder / RUN_FILE, self.run_options)
            card = write_card(folder, name)
        output.mkdir(parents=True, exist_ok=True)
        write_atomic(output / CARD, card)

    def _weights(self) -> dict[str, float]:
        return {name: term.weight_at(self.state.global_step) for name, term in self.step_module.terms.items()}

    def _set_loss_sum(self, value: float, unknown_until: int = 0) -> None:
        """Set the sum of the losses of all steps after step `unknown_until`.

        The sum is on the device, so a step need not wait for the device.
        """
        dtype = torch.float32 if self.args.device.type == "mps" else torch.float64
        self._loss_sum, self._unknown_until = torch.tensor(value, dtype=dtype, device=self.args.device), unknown_until

    def _add_loss(self, loss: Tensor) -> None:
        """Add the loss of a pass to the sum.

        With `--logging_nan_inf_filter`, a loss that is not finite is replaced by the mean of the losses so far.
        """
        if self.args.logging_nan_inf_filter:
            so_far = self._loss_sum / max(self.state.global_step - self._unknown_until, 1)
            loss = torch.where(loss.isfinite(), loss, so_far)
        self._loss_sum = self._loss_sum + loss

    def _read_loss_sum(self) -> float:
        """Return the sum of the losses, averaged over all processes."""
        return self.accelerator.reduce(self._loss_sum, reduction="mean").item()

    def _mean_loss(self) -> float:
        """Return the mean loss of all steps of the run, or of the steps with known losses after a resume."""
        if self._unknown_until:
            logger.warning(
                "train_loss is the mean over the steps after step %d, because %s was written by an earlier version "
                "of dcpcse, which did not record losses",
                self._unknown_until,
                self.resumed_from,
            )
        return self._read_loss_sum() / max(self.state.global_step - self._unknown_until, 1)

    def _drain_terms(self) -> dict[str, float]:
        if not self._term_sums:  # an overridden `compute_loss` need not compute terms
            return {}
        totals = torch.stack([term.float() for term in self._term_sums.values()]) / self._batches_since_log
        means = self.accelerator.reduce(totals, reduction="mean").tolist()
        names = list(self._term_sums)
        self._term_sums, self._batches_since_log = {}, 0
        if len(names) == 1:  # the only term is the loss itself
            return {}
        return {f"loss_{name}": mean for name, mean in zip(names, means, strict=True)}

    def _drain_counts(self) -> dict[str, float]:
        """Return the mean of each metric since the last log entry. Metrics without items are left out."""
        names, counts = list(self._metric_sums), list(self._metric_sums.values())
        self._metric_sums = {}
        if not counts:
            return {}
        totals = self.accelerator.reduce(torch.stack(counts), reduction="sum").tolist()
        return {name: total / number for name, (total, number) in zip(names, totals, strict=True) if number}

    def _figures(self) -> dict[str, float]:
        """Return the metrics of the guards (effective rank), averaged over processes."""
        figures = self.guards.figures()
        means = self.accelerator.reduce(torch.tensor([*figures.values()], device=self.args.device), reduction="mean")
        return dict(zip(figures, means.tolist(), strict=True))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as in transformers.

        Args:
            output_dir: The folder. None: `output_dir` of the options.
            _internal_call: As in transformers.

        Raises:
            UserError: If a weight is not finite.
        """
        self.guards.before_saving(self.state.global_step)
        super().save_model(output_dir, _internal_call)

    def restore(self, folder: Path) -> None:
        """Load the model and the trainer's state from the checkpoint of the last step of a run."""
        self.load_checkpoint(folder)
        self.state = TrainerState.load_from_json(str(folder / STATE))
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            self.load_best_model()

    def restore_result(self) -> None:
        """Load the model and the trainer's state of the finished run in the output folder."""
        output = Path(self.args.output_dir)
        self.step_module.model.load_trained(output)
        self.state = TrainerState.load_from_json(str(output / STATE))

    def save_result(self, texts: Mapping[str, str]) -> None:
        """Save the trained model, the trainer's state and text files to the output folder, atomically.

        Args:
            texts: The content of each text file by its name, such as `train_results.txt`.
        """
        if not self.args.should_save:
            return
        with atomic_save.atomic_result(Path(self.args.output_dir)) as aside:
            self.save_model(str(aside), _internal_call=True)
            self._save_state(aside)
            for name, text in texts.items():
                write_atomic(aside / name, text)
            (Path(self.args.output_dir) / EVAL_RESULTS).unlink(
                missing_ok=True
            )  # the file belongs to an earlier result
        if self.args.load_best_model_at_end and self._limit == 1 and self.state.best_global_step:
            for step, path in checkpoints_in(Path(self.args.output_dir)).items():
                if self.state.best_global_step != step <= self.state.global_step:
                    atomic_save.delete_checkpoint(path)

    def save_weights(self, folder: Path) -> None:
        """Save the model as a folder that `dcpcse.load` reads."""
        if self.args.should_save:
            self.step_module.model.save(folder)

    def save_checkpoint(self) -> None:
        """Save a checkpoint atomically, with the files of all processes, and delete old checkpoints."""
        output, step, best = Path(self.args.output_dir), self.state.global_step, self.state.best_global_step
        self.store_flos()
        if best and (best == step or (output / f"checkpoint-{best}").is_dir()):
            self.state.best_model_checkpoint = str(output / f"checkpoint-{best}")
        first, meet, loss_sum = self.args.should_save, self.accelerator.wait_for_everyone, self._read_loss_sum()
        with atomic_save.atomic_checkpoint(output, step, self.made_of, first=first, meet=meet) as aside:
            self.save_model(str(aside), _internal_call=True)
            if first:
                self._write_shared_state(aside)
                if not self._unknown_until and math.isfinite(loss_sum):
                    checkpoints.save_loss_sum(aside, loss_sum)
            # A checkpoint saved because of a signal must be resumable, whatever --save_only_model says.
            if self.stop.number or not self.args.save_only_model:
                self.save_training_state(aside)
        self._saved_step = step
        if first:
            atomic_save.rotate_checkpoints(output, self._limit, newest=step, best=best)

    def _write_shared_state(self, folder: Path) -> None:
        """Write the files of a checkpoint that exist once for all processes, except the weights."""
        checkpoints.save_loss_state(folder, self.method.loss_state())
        write_run(folder / RUN_FILE, self.run_options)
        self._save_state(folder, self.control)

    def _save_state(self, folder: Path, *parts: ExportableState) -> None:
        """Write the state, with the states of the callbacks and of further parts."""
        for part in (*self.callback_handler.callbacks, *parts):
            if isinstance(part, ExportableState):
                self.state.stateful_callbacks[type(part).__name__] = part.state()
        self.state.save_to_json(str(folder / STATE))

    def after_step_is_saved(self) -> None:
        """Stop the training if a signal, such as SIGTERM, was received.

        After the last step of an epoch, the training stops only when the evaluation of the epoch is done.
        """
        ends_epoch = float(self.state.epoch).is_integer()
        if self.state.global_step < self.state.max_steps and self.epoch_is_over == ends_epoch:
            self._stop_if_signalled()

    def _stop_if_signalled(self) -> None:
        """Stop all processes if one has received a signal; if necessary, first save a checkpoint of this step."""
        number = all_reduce_max(self.stop.number)
        if not number:
            return
        self.stop.number = number
        path = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if self._saved_step != self.state.global_step or self.args.save_only_model:
            self.save_checkpoint()
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()
        raise Interrupted(
            number,
            f"{Interrupted(number).name} after step {self.state.global_step} of {self.state.max_steps}: saved to "
            f"{path}; add {spell('resume', True)} to {same_call()} to continue from there",
        )

    def load_checkpoint(self, folder: Path) -> None:
        """Load the weights, the tensors that losses keep, and the sum of the losses so far from a checkpoint."""
        self.step_module.model.load_trained(folder)
        checkpoints.load_loss_state(folder, self.method.loss_state())
        loss_sum = checkpoints.read_loss_sum(folder)
        self._set_loss_sum(loss_sum or 0.0, read_state(folder)["global_step"] if loss_sum is None else 0)

    def load_best_model(self) -> None:
        """Load the weights of the best checkpoint."""
        logger.info(
            "best checkpoint: %s (%s %.4f)",
            self.state.best_model_checkpoint,
            self.args.metric_for_best_model,
            self.state.best_metric,
        )
        best = Path(self.state.best_model_checkpoint)
        # The folder of a run may have been moved or copied since the path was recorded.
        checkpoint = Path(self.args.output_dir) / best.name
        self.step_module.model.load_trained(checkpoint if checkpoint.is_dir() else best)
