"""What evaluation.py does: load a model, settle its representation, measure, print, write."""

from collections.abc import Sequence
from pathlib import Path

from senteval import STS_TASKS

from . import checkpoints
from .arguments import EvaluationArguments, PublishedEvaluationArguments
from .backbones import LoadOptions, load_backbone
from .cli import parse_evaluation, say
from .errors import UserError
from .evaluator import METRIC_NAMES, check_data, evaluate, table, write_scores
from .folder import is_model_folder
from .models import SentenceEncoder, pick_device, plain_encoder
from .paths import require_writable

DEV_TASKS = tuple(METRIC_NAMES)

TRAINING_OPTIONS = ("temp", "hard_negative_weight", "do_mlm", "mlm_weight")
"""Options of the papers' evaluation scripts that only ever mattered in training."""


def evaluation(argv: Sequence[str]) -> None:
    """The whole of evaluation.py; raises UserError or DataError for what the user can mend."""
    args, published = parse_evaluation(argv)
    tasks = chosen_tasks(args)
    if args.output_file and Path(args.output_file).is_dir():
        raise UserError(f"--output_file {args.output_file} is a folder; give a file")
    if args.output_file:
        require_writable(Path(args.output_file).parent, f"--output_file {args.output_file}")
    for name in TRAINING_OPTIONS:
        if getattr(published, name) not in (None, False):
            say(f"--{name} belongs to training and has no effect on a score")
    # Before the encoder is loaded: a missing file should not cost a minute.
    check_data(tasks, args.data_dir, args.mode, not args.custom_data)
    model = load_model(args, published)
    results = evaluate(
        model,
        tasks,
        args.data_dir,
        args.mode,
        batch_size=args.batch_size,
        official=not args.custom_data,
        show_progress=True,
    )
    print(table(results, args.mode))
    if args.output_file:
        write_scores(args.output_file, model, results, args.mode)


def chosen_tasks(args: EvaluationArguments) -> tuple[str, ...]:
    """Tasks of `--task_set` and `--tasks`; UserError where the two contradict each other."""
    if args.task_set == "na":
        if not args.tasks:
            raise UserError("--task_set na measures the tasks of --tasks; give some")
        return tuple(args.tasks)
    if args.tasks:
        raise UserError(f"--tasks {' '.join(args.tasks)} only counts with --task_set na; add it")
    return DEV_TASKS if args.mode == "dev" else STS_TASKS


def load_model(args: EvaluationArguments, published: PublishedEvaluationArguments) -> SentenceEncoder:
    """The model with the representation that the options ask for."""
    revision = None if args.model_revision == "main" else args.model_revision
    options = LoadOptions(revision, args.cache_dir, True if args.use_auth_token else None)
    if not is_model_folder(args.model_name_or_path):
        _refuse_unfinished(Path(args.model_name_or_path))
        _refuse_folder_options(args, published)
        device = pick_device(args.device)
        backbone = load_backbone(args.model_name_or_path, options=options)
        return plain_encoder(backbone, args.pooler_type or "cls").to(device)
    model = SentenceEncoder.load(args.model_name_or_path, args.base, device=args.device, options=options)
    _require_agreement(model, published)
    _settle_representation(model, args.pooler_type, published.mlp_only_train)
    return model


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


def _require_agreement(model: SentenceEncoder, published: PublishedEvaluationArguments) -> None:
    prompt = model.encoder.prompt
    if published.pre_seq_len not in (None, prompt.shape.length):
        raise UserError(
            f"--pre_seq_len {published.pre_seq_len}: the folder has {prompt.shape.length} prompts; leave it out"
        )
    if published.prefix_projection and prompt.projection is None:
        raise UserError("--prefix_projection: the folder's prompts have none; leave it out")
    if prompt.projection is not None and published.prefix_hidden_size not in (None, prompt.projection):
        raise UserError(
            f"--prefix_hidden_size {published.prefix_hidden_size}: the folder has {prompt.projection}; leave it out"
        )


def _refuse_folder_options(args: EvaluationArguments, published: PublishedEvaluationArguments) -> None:
    given = {"base": args.base, **vars(published)}
    for name in ("base", "pre_seq_len", "prefix_projection", "prefix_hidden_size", "mlp_only_train"):
        if given[name]:
            raise UserError(
                f"--{name} speaks of an output folder of train.py; {args.model_name_or_path} is not one; leave it out"
            )
