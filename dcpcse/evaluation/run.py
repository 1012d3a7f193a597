"""The steps of an evaluation, for evaluation.py and dcpcse.evaluate: load the tasks, evaluate a model, report."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from senteval import Evaluation, Result, Settings, Suite, load_suite, settings_of_mode
from senteval.tasks import Task
from tqdm.contrib.logging import logging_redirect_tqdm

from dcpcse.data.training_data import distinct_sentences
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.advice import OF_EVALUATION, advice
from dcpcse.evaluation.arguments import MULTILINGUAL, EvaluationArguments
from dcpcse.evaluation.embedding_cache import embeddings_dir
from dcpcse.evaluation.evaluation_result import EvaluationResult, as_json, head_of
from dcpcse.evaluation.evaluator import described, evaluate_sizes
from dcpcse.evaluation.foreign_encoder import ForeignEncoder
from dcpcse.evaluation.mteb_encoder import read_prompts
from dcpcse.evaluation.mteb_tasks import (
    MtebResult,
    MtebTasks,
    evaluate_mteb_tasks,
    find_benchmark,
    find_tasks,
    in_languages,
    load_data,
    multilingual_tasks,
)
from dcpcse.evaluation.outcomes import write_similarities
from dcpcse.evaluation.own_data import own_tasks
from dcpcse.evaluation.postprocessing import Fitting
from dcpcse.evaluation.retrieval_data import retrieval_tasks
from dcpcse.evaluation.tables import headline
from dcpcse.inference.arguments import PublishedEvaluationArguments
from dcpcse.inference.loading import load_model, local_folder
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.distributed import (
    destroy_process_group,
    init_process_group,
    is_main_process,
    local_device,
    require_same_in_all_processes,
)
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import require_output, require_writable, write_atomic
from dcpcse.utils.run_files import read_scores

TRAINING_OPTIONS = ("temp", "hard_negative_weight", "do_mlm", "mlm_weight")
"""Options of the papers' evaluation scripts that have an effect in training only."""


@dataclass(frozen=True)
class Plan:
    """The checked data and options of an evaluation. One plan can evaluate any number of encoders.

    Args:
        args: The options.
        suite: The loaded tasks of senteval and of the user's data.
        mteb: Tasks of mteb, or None. They are evaluated after the tasks of the suite.
        fitting: The postprocessor, or None.
        prompts: The prompts of --mteb_prompts, or None.
    """

    args: EvaluationArguments
    suite: Suite
    mteb: MtebTasks | None
    fitting: Fitting | None
    prompts: Mapping[str, str] | None = None

    def head(self, model: SentenceEncoder | ForeignEncoder) -> dict[str, Any]:
        """Return the part of the JSON file that does not depend on scores (see `head_of`)."""
        head = head_of(model, self.args.mode, self.suite.settings, self.fitting)
        return head | described(self.args.options.with_prompt(model))


def run_evaluation(args: EvaluationArguments, published: PublishedEvaluationArguments) -> None:
    """Run evaluation.py with the parsed options.

    Args:
        args: Options of evaluation.
        published: Options of the papers' evaluation scripts that evaluation.py also accepts.

    Raises:
        UserError: If options, output files or data are unusable. They are checked before the model is loaded.
        DataError: If evaluation data of senteval are unusable.
    """
    _require_writable_outputs(args)
    for name in TRAINING_OPTIONS:
        if getattr(published, name) not in (None, False):
            notify(f"{spell(name)} is a training option and has no effect on the evaluation")
    args.show_progress = True
    plan = load_plan(args, read_own_data(args, args.pairs, args.labels))
    join_processes(plan)
    args = replace(args, device=local_device(args.device))
    model = load_model(args.model_name_or_path, args, published)
    head = plan.head(model)
    output = Path(args.output_file) if args.output_file and is_main_process() else None
    at_size: dict[int | None, dict[str, Result | MtebResult]] = {}

    def on_result(size: int | None, result: Result | MtebResult) -> None:
        at_size.setdefault(size, {})[result.task] = result
        notify(f"{result.task}: {headline(result)}" + (f" (first {size} values)" if size else ""))
        if output:
            write_atomic(output, as_json(head, at_size))

    folder = local_folder(args.model_name_or_path, args) if plan.mteb else None
    evaluation = evaluate_plan(plan, model, head, folder=folder, on_result=on_result)
    if is_main_process():
        print_result(str(evaluation))
        _notify_summary(evaluation)
        if args.similarities_file:
            write_similarities(args.similarities_file, evaluation.results)
    if output:
        write_atomic(output, evaluation.to_json())
    destroy_process_group()


def read_own_data(args: EvaluationArguments, pairs: Any, labels: Any) -> list[Task]:
    """Return the tasks of the user's own data (pairs, labelled texts, retrieval), which are read and checked.

    Args:
        args: Options of evaluation.
        pairs: A file or Python object with scored pairs, or None.
        labels: A file or Python object with labelled texts, or None.
    """
    data = {"pairs": pairs, "labels": labels}
    tasks: list[Task] = own_tasks(data, args.columns, "columns", args.metric)
    return tasks + retrieval_tasks(args.retrieval or [], "dev" if args.mode == "dev" else "test")


def load_plan(args: EvaluationArguments, extra: Sequence[Task], fit_on: Sequence[str] | None = None) -> Plan:
    """Load and check the data and options of an evaluation, so errors are raised before a model is loaded.

    Args:
        args: Options of evaluation.
        extra: Tasks of the user's own data (see `read_own_data`).
        fit_on: Distinct sentences to use instead of the file of --fit_on.
    """
    settings = protocol_settings(args)
    chosen = args.chosen_tasks()
    with advice(OF_EVALUATION, spell("tasks", ["STSBenchmark"])):
        suite = (
            load_suite(chosen, args.data_dir, settings, extra=extra) if chosen or extra else Suite({}, settings, {})
        )
    mteb = None
    if args.task_set == MULTILINGUAL:
        mteb = multilingual_tasks()
    elif args.mteb_option:
        mteb = find_benchmark(args.mteb_benchmark) if args.mteb_benchmark else find_tasks(args.mteb)
    if args.mteb_languages:
        mteb = in_languages(mteb, args.mteb_languages)
    prompts = read_prompts(args.mteb_prompts) if args.mteb_prompts else None
    if mteb:
        load_data(mteb, args.mteb_data_dir)
    return Plan(args, suite, mteb, build_fitting(args, fit_on), prompts)


def join_processes(plan: Plan) -> None:
    """Initialise the process group if a launcher, such as torchrun, started several processes.

    Raises UserError if the processes read different evaluation data.
    """
    init_process_group()
    require_same_in_all_processes({"evaluation data": plan.suite.files})


def evaluate_plan(
    plan: Plan,
    model: SentenceEncoder | ForeignEncoder,
    head: Mapping[str, Any],
    *,
    folder: Path | None = None,
    on_result: Callable[[int | None, Result | MtebResult], None] = lambda size, result: None,
) -> EvaluationResult:
    """Evaluate a model on all tasks of a plan; all processes must call this function, and all return the result.

    Args:
        plan: The plan.
        model: The model.
        head: The result of `plan.head(model)`.
        folder: The local folder of the model, for tasks of MTEB (see `MTEBEncoder`).
        on_result: A function that is called with the size of the embeddings (None: not shortened) and each result as
            soon as it is computed.

    Raises:
        UserError: If a size in the options is larger than the size of the model's embeddings.
    """
    sizes, options = plan.args.sizes, plan.args.options
    for size in sizes:
        if isinstance(model, SentenceEncoder):
            model.require_size(replace(options, truncate_dim=size))
    how = {
        "cache_dir": embeddings_dir(plan.args.cache_dir) if plan.args.cache_dir else None,
        "on_result": on_result,
    }
    evaluations = {size: Evaluation({}, plan.suite.settings, 0) for size in sizes}
    mteb_results: dict[str, MtebResult] = {}
    seconds: dict[str, float] = {}
    with logging_redirect_tqdm() if options.show_progress else nullcontext():
        if plan.suite.tasks:
            evaluations = evaluate_sizes(model, plan.suite, sizes, options=options, fitting=plan.fitting, **how)
        if plan.mteb:
            (size,) = sizes
            mteb_results, seconds = evaluate_mteb_tasks(
                model,
                plan.mteb,
                prompts=plan.prompts,
                folder=folder,
                results_dir=plan.args.mteb_results,
                **how,
                **replace(options, truncate_dim=size).given(),
            )
    first = next(iter(evaluations.values()))
    scoring = {
        name: sum(evaluation.seconds[name] for evaluation in evaluations.values())
        for name in first.seconds
        if name != "encode"
    }
    return EvaluationResult(
        at_size={size: {**evaluation.results, **mteb_results} for size, evaluation in evaluations.items()},
        mode=plan.args.mode,
        sentences=first.sentences,
        seconds={**first.seconds, **scoring, **seconds},
        files=first.files,
        record=head,
    )


def build_fitting(args: EvaluationArguments, fit_on: Sequence[str] | None = None) -> Fitting | None:
    """Return the postprocessor of --postprocess with the sentences of --fit_on; None without --postprocess.

    Args:
        args: Options of evaluation.
        fit_on: Distinct sentences to use instead of the file of --fit_on.
    """
    if args.postprocess is None:
        return None
    settings = {"whitening": {"dimensions": args.whitening_dimensions}}
    settings["flow"] = {"epochs": args.flow_epochs, "learning_rate": args.flow_learning_rate, "seed": args.flow_seed}
    chosen = settings[args.postprocess]
    if args.fit_on is None:
        notify(f"{args.postprocess} is fitted to the sentences of each task, without their gold scores")
        return Fitting(args.postprocess, chosen)
    sentences = distinct_sentences(args.fit_on) if fit_on is None else tuple(fit_on)
    notify(f"{args.postprocess} is fitted to the {len(sentences):,} distinct sentences of {args.fit_on}")
    return Fitting(args.postprocess, chosen, sentences, args.fit_on)


def protocol_settings(args: EvaluationArguments) -> Settings:
    """Return senteval's settings for --mode, changed by options such as --shots and --nhid."""
    settings = settings_of_mode(
        args.mode,
        official=not args.custom_data,
        use_torch=args.classifier == "torch",
        shots=args.shots,
        draws=args.draws,
        kmeans_runs=args.kmeans_runs,
        identical=args.retrieval_identical,
        sample_file=args.geometry_sentences,
        sample_size=args.geometry_sample,
    )
    return replace(settings, classifier=replace(settings.classifier, nhid=args.nhid))


def _require_writable_outputs(args: EvaluationArguments) -> None:
    """Raise UserError if the result files or the embedding cache cannot be written."""
    for option in ("output_file", "similarities_file"):
        if (path := getattr(args, option)) is not None:
            require_output(Path(path), option, args.overwrite or _is_unfinished(Path(path)))
    if args.mteb_results:
        require_writable(Path(args.mteb_results), spell("mteb_results", args.mteb_results))
    if args.cache_dir:
        require_writable(embeddings_dir(args.cache_dir), spell("cache_dir", args.cache_dir))


def _is_unfinished(path: Path) -> bool:
    """Return whether a file contains the scores of an interrupted evaluation."""
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        scores = read_scores(path)
    except UserError:  # the file does not contain scores, so it must not be replaced
        return False
    return scores is not None and scores.get("complete") is False


def _notify_summary(evaluation: EvaluationResult) -> None:
    """Log the times, and the data files whose contents differ from the known files."""
    if "encode" not in evaluation.seconds:  # only mteb tasks, which are encoded one by one
        notify(f"tasks evaluated in {sum(evaluation.seconds.values()):.1f} s")
        return
    scoring = sum(seconds for name, seconds in evaluation.seconds.items() if name != "encode")
    notify(
        f"{evaluation.sentences:,} distinct sentences: encoded in {evaluation.seconds['encode']:.1f} s, "
        f"scored in {scoring:.1f} s"
    )
    official = [name for name in evaluation.files if name.startswith(("downstream/", "clustering/"))]
    if unknown := [name for name in official if not evaluation.files[name]["known"]]:
        notify(
            f"{len(unknown)} of {len(official)} data files are valid but differ from the known files, so scores may "
            f"differ from documented ones: {', '.join(unknown[:3])}{' ...' if len(unknown) > 3 else ''}"
        )
