"""What evaluation.py does: load a model, settle its representation, measure, print, write."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from senteval import MODES, STS_TASKS

from .backbones import LoadOptions, load_backbone
from .cli import Parser, say
from .errors import UserError
from .evaluator import METRIC_NAMES, evaluate, table, write_scores
from .folder import is_model_folder
from .models import SentenceEncoder, plain_encoder
from .pooling import POOLERS, describe_poolers

DEV_TASKS = tuple(METRIC_NAMES)

TRAINING_OPTIONS = ("temp", "hard_negative_weight", "mlm_weight")
"""Options of the papers' evaluation scripts that only ever mattered in training."""


def build_parser() -> Parser:
    """Options of evaluation.py; those of the papers' scripts keep their names."""
    parser = Parser(description="Measure an encoder on STS tasks.", allow_abbrev=False,
                    formatter_class=argparse.HelpFormatter)  # fmt: skip
    add = parser.add_argument
    add(
        "--model_name_or_path",
        required=True,
        help="Output folder of train.py, Hugging Face folder or hub id.",
    )
    add(
        "--pooler",
        "--pooler_type",
        choices=list(POOLERS),
        help="Sentence representation. On an output folder of "
        "train.py leave it out: the folder knows ('cls' means its trained representation, any other one overrides "
        f"it). On another encoder the default is cls, its pretrained pooler. {describe_poolers()}.".replace("%", "%%"),
    )
    add("--base", help="Where the frozen encoder of the output folder is now.")
    add(
        "--mode",
        choices=list(MODES),
        default="test",
        help="test: test sets; dev: dev sets (STS-B, SICK-R); "
        "fasttest: the same as test for STS (default: %(default)s).",
    )
    add(
        "--task_set",
        choices=["sts", "na"],
        default="sts",
        help="sts: all seven (in dev mode the two with a dev set); na: those of --tasks (default: %(default)s).",
    )
    add("--tasks", nargs="+", default=None, help=f"Tasks, with --task_set na: {', '.join(STS_TASKS)}.")
    add("--data_dir", default="SentEval/data", help="Folder that holds downstream/ (default: %(default)s).")
    add(
        "--custom_data",
        action="store_true",
        help="The files are your own in SentEval's format: do not ask for the official counts.",
    )
    add("--output_file", help="Write all scores, of every subset, to this JSON file.")
    add("--batch_size", type=int, default=128, help="Sentences a batch (default: %(default)s).")
    add("--device", help="cpu, cuda, cuda:1 … (default: cuda if there is one).")
    add("--cache_dir", help="Folder for downloads.")
    add("--model_revision", default="main", help="Branch, tag or commit on the hub (default: %(default)s).")
    add("--use_auth_token", action="store_true", help="Use the stored hub token.")
    add("--debug", action="store_true", help="Show the traceback of a user error.")
    _add_published(parser)
    return parser  # fmt: skip


def _add_published(parser: Parser) -> None:
    group = parser.add_argument_group("options of the papers' script that the folder answers now")
    group.add_argument("--pre_seq_len", type=int, help="Checked against the folder.")
    group.add_argument("--prefix_projection", action="store_true", help="Checked against the folder.")
    group.add_argument("--prefix_hidden_size", type=int, help="Checked against the folder.")
    group.add_argument("--mlp_only_train", action="store_true", help="Evaluate [CLS] before the MLP.")
    group.add_argument("--do_mlm", action="store_true", help="Of training; no effect on a score, and said so.")
    for name in TRAINING_OPTIONS:
        group.add_argument(f"--{name}", type=float, help="Of training; no effect on a score, and said so.")


def evaluation(argv: Sequence[str]) -> None:
    """The whole of evaluation.py; raises UserError or DataError for what the user can mend."""
    parser = build_parser()
    args, unknown = parser.parse_known_args(list(argv))
    parser.refuse_unknown(unknown)
    tasks = chosen_tasks(args)
    if args.batch_size < 1:
        raise UserError(f"--batch_size {args.batch_size}: must be at least 1")
    for name in (*TRAINING_OPTIONS, "do_mlm"):
        if getattr(args, name) not in (None, False):
            say(f"--{name} belongs to training and has no effect on a score")
    model = load_model(args)
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


def chosen_tasks(args: argparse.Namespace) -> tuple[str, ...]:
    """Tasks of `--task_set` and `--tasks`; UserError where the two contradict each other."""
    if args.task_set == "na":
        if not args.tasks:
            raise UserError("--task_set na measures the tasks of --tasks; give some")
        return tuple(args.tasks)
    if args.tasks:
        raise UserError(f"--tasks {' '.join(args.tasks)} only counts with --task_set na; add it")
    return DEV_TASKS if args.mode == "dev" else STS_TASKS


def load_model(args: argparse.Namespace) -> SentenceEncoder:
    """The model with the representation that the options ask for."""
    revision = None if args.model_revision == "main" else args.model_revision
    options = LoadOptions(revision, args.cache_dir, True if args.use_auth_token else None)
    if is_model_folder(args.model_name_or_path):
        model = SentenceEncoder.load(args.model_name_or_path, args.base, device=args.device, options=options)
        _require_agreement(model, args)
        _settle_representation(model, args)
        return model
    _refuse_folder_options(args)
    backbone = load_backbone(args.model_name_or_path, options=options)
    return plain_encoder(backbone, args.pooler or "cls").to(args.device or _default_device())


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _settle_representation(model: SentenceEncoder, args: argparse.Namespace) -> None:
    trained = f"{model.pooling}{' with its head' if model.head_at_inference else ' before the head'}"
    if args.mlp_only_train and model.head_at_inference:
        say("--mlp_only_train: [CLS] before the head instead of the folder's representation")
        model.head_at_inference = False
    if args.pooler is None or args.pooler == model.pooling == "cls" or args.pooler == "cls":
        say(f"representation: {trained}, as the folder says")
        return
    say(f"representation: {args.pooler} instead of the folder's ({trained})")
    model.pooling, model.head_at_inference = args.pooler, False


def _require_agreement(model: SentenceEncoder, args: argparse.Namespace) -> None:
    prompt = model.encoder.prompt
    if args.pre_seq_len not in (None, prompt.shape.length):
        raise UserError(
            f"--pre_seq_len {args.pre_seq_len}: the folder has {prompt.shape.length} prompts; leave it out"
        )
    if args.prefix_projection and prompt.projection is None:
        raise UserError("--prefix_projection: the folder's prompts have none; leave it out")
    if args.prefix_hidden_size not in (None, prompt.projection) and prompt.projection is not None:
        raise UserError(
            f"--prefix_hidden_size {args.prefix_hidden_size}: the folder has {prompt.projection}; leave it out"
        )


def _refuse_folder_options(args: argparse.Namespace) -> None:
    if not Path(args.model_name_or_path).exists() and args.base:
        raise UserError(f"{args.model_name_or_path} is not a folder of train.py, which --base speaks of")
    for name in ("base", "pre_seq_len", "prefix_projection", "prefix_hidden_size", "mlp_only_train"):
        if getattr(args, name):
            raise UserError(
                f"--{name} speaks of an output folder of train.py; {args.model_name_or_path} is a plain encoder"
            )
