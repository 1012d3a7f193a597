"""What evaluation.py does: load a model, settle its representation, measure, print, write."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from senteval import Evaluation, Result, Settings, Suite, load_suite, settings_of_mode
from senteval.pairs import PairsTask
from tqdm.contrib.logging import logging_redirect_tqdm

from . import checkpoints
from .backbones import LoadOptions, load_backbone, require_trained_head
from .cli import parse_evaluation, say
from .distributed import is_first, join_launched, leave_launched, own_device
from .encoder import set_packed
from .errors import UserError
from .evaluation_arguments import EvaluationArguments, PublishedEvaluationArguments
from .evaluator import measure
from .folder import is_model_folder
from .models import SentenceEncoder, pick_device
from .paths import require_writable
from .pooling import POOLERS, UNTRAINED
from .report import Report
from .representations import REPRESENTATIONS, Choice, build_representation
from .tables import headline, tables
from .templates import Template

TRAINING_OPTIONS = ("temp", "hard_negative_weight", "do_mlm", "mlm_weight")
"""Options of the papers' evaluation scripts that only ever mattered in training."""


def evaluation(argv: Sequence[str]) -> None:
    """The whole of evaluation.py; raises UserError or DataError for what the user can mend."""
    evaluate_with(*parse_evaluation(argv))


def evaluate_with(args: EvaluationArguments, published: PublishedEvaluationArguments) -> None:
    """What evaluation.py does once its options are read."""
    settings = settings_of(args)
    _require_places(args)
    for name in TRAINING_OPTIONS:
        if getattr(published, name) not in (None, False):
            say(f"--{name} belongs to training and has no effect on a score")
    # Before the encoder is loaded: a missing file should not cost a minute.
    own = [PairsTask(Path(args.pairs))] if args.pairs else []
    suite = load_suite(args.chosen_tasks(), args.data_dir, settings, extra=own)
    join_launched()
    model = load_model(replace(args, device=own_device(args.device)), published)
    set_packed(model, args.packing)
    report = Report(args.output_file, model, args.mode, settings) if args.output_file and is_first() else None
    measured = measure_and_say(args, model, suite, report)
    if is_first():
        print(tables(measured.results, args.mode))
        _say_closing(measured)
    if report:
        report.write(measured.results, measured)
    leave_launched()


def measure_and_say(
    args: EvaluationArguments, model: SentenceEncoder, suite: Suite, report: Report | None
) -> Evaluation:
    """Measure all tasks; each result is said, and written to the report, when it is there."""
    results: dict[str, Result] = {}

    def on_result(result: Result) -> None:
        results[result.task] = result
        say(f"{result.task}: {headline(result)}")
        if report:
            report.write(results)

    with logging_redirect_tqdm():
        return measure(
            model,
            suite,
            batch_size=args.batch_size,
            cache_dir=_kept_embeddings(args) if args.cache_dir else None,
            show_progress=True,
            on_result=on_result,
        )


def settings_of(args: EvaluationArguments) -> Settings:
    """The protocol of the mode with what the options change in it."""
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


def _require_places(args: EvaluationArguments) -> None:
    """UserError where results or embeddings could not be written."""
    if args.output_file:
        if Path(args.output_file).is_dir():
            raise UserError(f"--output_file {args.output_file} is a folder; give a file")
        require_writable(Path(args.output_file).parent, f"--output_file {args.output_file}")
    if args.cache_dir:
        require_writable(_kept_embeddings(args), f"--cache_dir {args.cache_dir}")


def _kept_embeddings(args: EvaluationArguments) -> Path:
    return Path(args.cache_dir) / "embeddings"


def _say_closing(measured: Evaluation) -> None:
    """Time, and files that are not those whose figures are known."""
    scoring = sum(seconds for name, seconds in measured.seconds.items() if name != "encode")
    say(
        f"{measured.sentences:,} distinct sentences: encoded in {measured.seconds['encode']:.1f} s, "
        f"tasks in {scoring:.1f} s"
    )
    ours = [name for name in measured.files if name.startswith(("downstream/", "clustering/"))]
    if unknown := [name for name in ours if name in measured.unknown_files]:
        say(
            f"{len(unknown)} of {len(ours)} data files pass every check but are not byte for byte the known "
            f"ones: {', '.join(unknown[:3])}{' ...' if len(unknown) > 3 else ''}"
        )


def load_model(args: EvaluationArguments, published: PublishedEvaluationArguments) -> SentenceEncoder:
    """The model with the representation that the options ask for."""
    options = LoadOptions.asked(args.cache_dir, args.use_auth_token, args.model_revision)
    if not is_model_folder(args.model_name_or_path):
        _refuse_unfinished(Path(args.model_name_or_path))
        _refuse_folder_options(args, published)
        return _untrained(args, options)
    _refuse_untrained_options(args)
    model = SentenceEncoder.load(args.model_name_or_path, args.base, device=args.device, options=options)
    _require_agreement(model, published)
    _require_same_reading(model, args)
    _settle_representation(model, args.pooler_type, published.mlp_only_train)
    return model


def _untrained(args: EvaluationArguments, options: LoadOptions) -> SentenceEncoder:
    device = pick_device(args.device)
    name = args.pooler_type or ("mask" if args.template else "cls")
    choice = Choice(
        template=Template.parse(args.template) if args.template else None,
        denoise=args.denoise,
        final_period=args.final_period,
        remove=tuple(args.remove or ()),
        top_k=args.top_k,
    )
    representation = REPRESENTATIONS[name]
    if args.lm_head != "checkpoint" and not representation.needs_lm_head:
        raise UserError(f"--lm_head has no effect on --pooler {name}; leave it out")
    require_trained_head(args.lm_head)
    lm_head = args.lm_head if representation.needs_lm_head else None
    backbone = load_backbone(args.model_name_or_path, lm_head=lm_head, options=options)
    return build_representation(name, backbone, choice).to(device)


def _refuse_untrained_options(args: EvaluationArguments) -> None:
    changed = args.changed()
    for name in ("top_k", "remove", "lm_head"):
        if name in changed:
            raise UserError(f"--{name} is of encoders as they are; {args.model_name_or_path} is trained; leave it out")
    if args.pooler_type in UNTRAINED:
        raise UserError(
            f"--pooler {args.pooler_type} is of encoders as they are; {args.model_name_or_path} is trained"
        )


def _require_same_reading(model: SentenceEncoder, args: EvaluationArguments) -> None:
    """UserError for a way of reading texts that is not the folder's: it would be the score of another model."""
    found = model.template
    own = {
        "template": found and Template.parse(str(found.template)),
        "denoise": model.denoising.inference,
        "final_period": model.final_period,
    }
    asked = {"template": args.template and Template.parse(args.template)}
    asked |= {name: getattr(args, name) for name in ("denoise", "final_period")}
    for name, value in asked.items():
        if value and value != own[name]:
            was = f"with the template {found.template}" if found and name == "template" else "without"
            raise UserError(f"--{name}: {args.model_name_or_path} was trained {was}, and knows it; leave it out")
    if model.pooling != args.pooler_type == "mask" and found is None:
        raise UserError(f"--pooler mask: {args.model_name_or_path} was trained without a template; leave it out")


def _refuse_unfinished(folder: Path) -> None:
    newest = checkpoints.last(folder)
    if newest and (folder / checkpoints.RUN_FILE).is_file():
        raise UserError(
            f"the training in {folder} has not ended; go on with --resume_from_checkpoint True, or measure one of "
            f"its checkpoints, such as {newest}"
        )


def _settle_representation(model: SentenceEncoder, pooler: str | None, mlp_only_train: bool) -> None:
    head = " with its head" if model.head_at_inference else " before its head" if model.head else ""
    trained = f"{model.pooling}{head}"
    if mlp_only_train and model.head_at_inference:
        say(f"representation: {model.pooling} before its head (--mlp_only_train) instead of the folder's ({trained})")
        model.head_at_inference = False
    elif pooler in (None, "cls"):
        say(f"representation: {trained}, as trained")
    else:
        say(f"representation: {pooler} instead of the folder's ({trained})")
        model.pooling, model.head_at_inference = pooler, False
        if not POOLERS[pooler].needs_template:  # there is no [MASK] vector to take the template's from
            model.denoising = replace(model.denoising, inference=False)


def _require_agreement(model: SentenceEncoder, published: PublishedEvaluationArguments) -> None:
    """UserError for prompts that are not the folder's."""
    prompt = model.encoder.prompt
    own = {} if prompt is None else {"pre_seq_len": prompt.shape.length, "prefix_hidden_size": prompt.projection}
    own["prefix_projection"] = prompt is not None and prompt.projection is not None
    for name in ("pre_seq_len", "prefix_projection", "prefix_hidden_size"):
        asked, found = getattr(published, name), own.get(name)
        # The size was given in old scripts whether there was a projection or not.
        given = asked not in (None, False) and (name != "prefix_hidden_size" or own["prefix_projection"])
        if given and asked != found:
            raise UserError(f"--{name} {asked}: the folder has {found if found else 'none'}; leave it out")


def _refuse_folder_options(args: EvaluationArguments, published: PublishedEvaluationArguments) -> None:
    given = {"base": args.base, **vars(published)}
    for name in ("base", "pre_seq_len", "prefix_projection", "prefix_hidden_size", "mlp_only_train"):
        if given[name] not in (None, False):
            raise UserError(
                f"--{name} speaks of an output folder of train.py; {args.model_name_or_path} is not one; leave it out"
            )
