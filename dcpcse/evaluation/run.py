"""The main steps of evaluation.py: loading tasks and the model, evaluating, printing tables and writing files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from senteval import Evaluation, Result, Settings, Suite, load_suite, settings_of_mode
from tqdm.contrib.logging import logging_redirect_tqdm

from dcpcse.data.training_file import distinct_sentences
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.arguments import EvaluationArguments
from dcpcse.evaluation.embedding_cache import embeddings_dir
from dcpcse.evaluation.evaluator import evaluate_suite
from dcpcse.evaluation.mteb_tasks import MtebResult, evaluate_mteb_tasks, load_tasks
from dcpcse.evaluation.own_data import own_labels, own_pairs
from dcpcse.evaluation.postprocessing import POSTPROCESSORS, Fitting
from dcpcse.evaluation.results_file import Report, write_similarities
from dcpcse.evaluation.tables import headline, tables
from dcpcse.inference.arguments import PublishedEvaluationArguments
from dcpcse.inference.loading import load_model
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.distributed import (
    destroy_process_group,
    init_process_group,
    is_main_process,
    local_device,
    require_same_in_all_processes,
)
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_output, require_writable
from dcpcse.utils.run_files import read_scores

TRAINING_OPTIONS = ("temp", "hard_negative_weight", "do_mlm", "mlm_weight")
"""Options of the papers' evaluation scripts that have an effect in training only."""

NO_BENCHMARK: Mapping[str, Any] = MappingProxyType({})


def run_evaluation(args: EvaluationArguments, published: PublishedEvaluationArguments) -> None:
    """Run evaluation.py with the parsed options.

    Raises UserError or senteval.DataError before the model is loaded if options, output files or data are unusable.
    """
    settings = protocol_settings(args)
    _require_writable_outputs(args)
    for name in TRAINING_OPTIONS:
        if getattr(published, name) not in (None, False):
            notify(f"--{name} is a training option and has no effect on the evaluation")
    # The data are loaded first, so that a missing file is reported before the model is loaded.
    own = [*([own_pairs(args.pairs)] if args.pairs else []), *([own_labels(args.labels)] if args.labels else [])]
    chosen = args.chosen_tasks()
    suite = load_suite(chosen, args.data_dir, settings, extra=own) if chosen or own else Suite({}, settings, {})
    benchmark = load_tasks(args.mteb, args.mteb_data_dir) if args.mteb else {}
    init_process_group()
    require_same_in_all_processes({"evaluation data": suite.files})
    args = replace(args, device=local_device(args.device))
    fitting = build_fitting(args)
    model = load_model(args.model_name_or_path, args, published)
    output = args.output_file if is_main_process() else None
    report = Report(output, model, args.mode, settings, fitting) if output else None
    evaluation = evaluate_and_report(args, model, suite, report, fitting, benchmark)
    if is_main_process():
        print_result(tables(evaluation.results, args.mode))
        _notify_summary(evaluation)
        if args.similarities_file:
            write_similarities(args.similarities_file, evaluation.results)
    if report:
        report.write(evaluation.results, evaluation)
    destroy_process_group()


def build_fitting(args: EvaluationArguments) -> Fitting | None:
    """Return the postprocessor of --postprocess and the sentences of --fit_on; None without --postprocess."""
    if args.postprocess is None:
        return None
    settings = {"whitening": {"dimensions": args.whitening_dimensions}}
    settings["flow"] = {"epochs": args.flow_epochs, "learning_rate": args.flow_learning_rate, "seed": args.flow_seed}
    postprocessor = POSTPROCESSORS[args.postprocess](**settings[args.postprocess])
    if args.fit_on is None:
        notify(f"{args.postprocess} is fitted to the sentences of each task, without their gold scores")
        return Fitting(postprocessor)
    sentences = distinct_sentences(args.fit_on)
    notify(f"{args.postprocess} is fitted to the {len(sentences):,} distinct sentences of {args.fit_on}")
    return Fitting(postprocessor, sentences, args.fit_on)


def evaluate_and_report(
    args: EvaluationArguments,
    model: SentenceEncoder,
    suite: Suite,
    report: Report | None,
    fitting: Fitting | None = None,
    benchmark: Mapping[str, Any] = NO_BENCHMARK,
) -> Evaluation:
    """Evaluate all tasks; each result is printed and written to the report as soon as it is computed.

    benchmark: mteb tasks, which are evaluated last.
    """
    results: dict[str, Result | MtebResult] = {}

    def on_result(result: Result | MtebResult) -> None:
        results[result.task] = result
        notify(f"{result.task}: {headline(result)}")
        if report:
            report.write(results)

    options = {
        "batch_size": args.batch_size,
        "cache_dir": embeddings_dir(args.cache_dir) if args.cache_dir else None,
        "show_progress": True,
        "on_result": on_result,
    }
    with logging_redirect_tqdm():
        evaluation = Evaluation({}, suite.settings, 0)
        if suite.tasks:
            evaluation = evaluate_suite(model, suite, fitting=fitting, **options)
        if not benchmark:
            return evaluation
        found, seconds = evaluate_mteb_tasks(model, benchmark, **options)
    return replace(evaluation, results=evaluation.results | found, seconds=evaluation.seconds | seconds)


def protocol_settings(args: EvaluationArguments) -> Settings:
    """Return the settings of --mode with the changes that other options make."""
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
        if (given := getattr(args, option)) is not None:
            require_output(Path(given), f"--{option}", args.overwrite or _is_unfinished(Path(given)))
    if args.cache_dir:
        require_writable(embeddings_dir(args.cache_dir), f"--cache_dir {args.cache_dir}")


def _is_unfinished(path: Path) -> bool:
    """Return whether a file contains the scores of an interrupted evaluation."""
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        scores = read_scores(path)
    except UserError:  # the file does not contain scores, so it must not be replaced
        return False
    return scores is not None and scores.get("complete") is False


def _notify_summary(evaluation: Evaluation) -> None:
    """Log the times, and the data files whose contents differ from those of the known files."""
    if "encode" not in evaluation.seconds:  # there are only mteb tasks, which are encoded one by one
        notify(f"tasks in {sum(evaluation.seconds.values()):.1f} s")
        return
    scoring = sum(seconds for name, seconds in evaluation.seconds.items() if name != "encode")
    notify(
        f"{evaluation.sentences:,} distinct sentences: encoded in {evaluation.seconds['encode']:.1f} s, "
        f"tasks in {scoring:.1f} s"
    )
    official = [name for name in evaluation.files if name.startswith(("downstream/", "clustering/"))]
    if unknown := [name for name in official if name in evaluation.unknown_files]:
        notify(
            f"{len(unknown)} of {len(official)} data files pass all checks but differ from the known files: "
            f"{', '.join(unknown[:3])}{' ...' if len(unknown) > 3 else ''}"
        )
