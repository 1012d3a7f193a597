"""Read the inputs of plots: encoders and scored pairs, score files, and folders of runs."""

import argparse
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils import schema
from dcpcse.utils.command_parser import MODEL_HELP, CommandParser
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.parsing import read_json
from dcpcse.utils.run_files import Scores, is_number

if TYPE_CHECKING:
    from senteval import ScoredPairs

    from dcpcse.encoders.sentence_encoder import SentenceEncoder

DATA_DIR = "SentEval/data"
STS_TASK = "STSBenchmark"


def labelled(words: Sequence[str], called: str = "label") -> dict[str, str]:
    """Return a dict from labels to paths or hub ids, from arguments of the form `LABEL=PLACE` or `PLACE`.

    Without LABEL, the name of the file, folder or encoder is the label.

    Args:
        called: The word for a label in messages, such as "label".

    Raises:
        UserError: If two arguments have the same label.
    """
    paths: dict[str, str] = {}
    for word in words:
        label, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            label, path = _name(word), word
        elif not (label and path):
            raise UserError(f"{word!r}: must be {called.upper()}=PLACE or PLACE (path or hub id)")
        if label in paths:
            raise UserError(
                f"{paths[label]} and {path} have the same {called} {label!r}; give one of them another {called}, as "
                f"in {label}-2={path}"
            )
        paths[label] = os.path.expanduser(path)
    return paths


def _name(source: str) -> str:
    path = Path(source).resolve() if Path(source).exists() else Path(source)
    if path.suffix == ".json":
        return path.stem
    return f"{path.parent.name}/{path.name}" if path.name.startswith("checkpoint-") else path.name


def read_family(path: Path, family: str, *others: str, needs: Sequence[str]) -> list[dict[str, Any]]:
    """Return the results of a task family from a file written by `evaluation.py --output_file`.

    Args:
        family: The kind of the tasks, such as "fewshot" or "geometry".
        others: Families to read instead, in this order, if the file contains no results of `family`.
        needs: Keys that each result must have.

    Raises:
        UserError: If the file contains no results of these families, or if a result lacks a key.
    """
    content = read_json(path)
    tasks = content.get("tasks") if isinstance(content, dict) else None
    if not isinstance(tasks, dict):
        raise UserError(f"{path} contains no scores; give a file of evaluation.py --output_file")
    with schema.explained(path):
        schema.check(Scores, content)
    of_families = ([task for task in tasks.values() if task.get("family") == wanted] for wanted in (family, *others))
    matches = next(filter(None, of_families), None)
    if matches is None:
        families = ", ".join(sorted({str(task.get("family")) for task in tasks.values()})) or "none"
        raise UserError(f"{path}: no {family} tasks (only: {families}); evaluate with --task_set {family}")
    for task, name in itertools.product(matches, needs):
        if task.get(name) is None:
            raise UserError(f"{path} is damaged: a task of the family {task['family']} lacks {name}; evaluate again")
    if not content.get("complete", True):
        notify(f"{path}: the evaluation has not finished; the file contains {plural(len(tasks), 'task')} so far")
    return matches


def read_task(path: Path, family: str, *others: str, needs: Sequence[str]) -> dict[str, Any]:
    """Return the result of `read_family` if there is exactly one. Raises UserError if there are several."""
    tasks = read_family(path, family, *others, needs=needs)
    if len(tasks) > 1:
        raise UserError(f"{path} contains {len(tasks)} {tasks[0]['family']} tasks; give a file with one of them")
    return tasks[0]


def numbers(values: Sequence[Any], owner: str) -> list[float]:
    """Return values from a file as floats. Raises UserError if there are no values, or if a value is not finite.

    Args:
        owner: A description of the values at the beginning of messages.
    """
    if not isinstance(values, list) or not values:
        raise UserError(f"{owner}: {values!r} is not a list of numbers; create the file again")
    for value in values:
        if not is_number(value):
            raise UserError(f"{owner}: {value!r} is not a finite number; create the file again")
    return [float(value) for value in values]


@dataclass(frozen=True, eq=False)
class PairScores:
    """Gold scores (N,) and cosines (N,) of the pairs of a split, and their Spearman correlation × 100."""

    gold: np.ndarray
    cosine: np.ndarray
    spearman: float


@dataclass(frozen=True, eq=False)
class EncodedPairs(PairScores):
    """Pairs with the embeddings (N, H) of their first and second sentences."""

    first: np.ndarray
    second: np.ndarray


def encode_pairs(
    model: "SentenceEncoder", task: str, sets: "Sequence[ScoredPairs]", options: EncodeOptions
) -> EncodedPairs:
    """Encode the pairs of all sets. Each distinct sentence is encoded once.

    Args:
        model: The model.
        task: Name of the task, for messages.
        sets: The sets of pairs.
        options: Options of encoding.

    Raises:
        DataError: If an embedding is zero or not finite, as in evaluation.
    """
    from senteval.embeddings import Embeddings
    from senteval.scores import correlate, similarities

    distinct = list(dict.fromkeys(text for pairs in sets for text in (*pairs.first, *pairs.second)))
    embed = Embeddings(distinct, model.encode(distinct, **{**options.given(), "show_progress": True}))
    cosine = np.concatenate([similarities(task, pairs, embed(pairs.first), embed(pairs.second)) for pairs in sets])
    gold = np.concatenate([pairs.gold for pairs in sets])
    first = np.concatenate([embed(pairs.first) for pairs in sets])
    second = np.concatenate([embed(pairs.second) for pairs in sets])
    return EncodedPairs(gold, cosine, 100 * correlate(task, cosine, gold).spearman, first, second)


def encode_by_each(
    places: Mapping[str, str], args: argparse.Namespace, task: str, sets: "Sequence[ScoredPairs]"
) -> Iterator[tuple[str, EncodedPairs]]:
    """Yield each label with the pairs that its model encoded. Only one model is in memory at a time.

    If some models are output folders of train.py or checkpoints of other code, and other models are not, the option
    --pooler applies only to the other models.

    Args:
        places: Label → path or hub id of a model.
        args: Options that say how to load the models and how to encode.
        task, sets: As in `encode_pairs`.
    """
    from dcpcse.inference.loading import has_representation, load_model

    encoder = encoder_arguments(args)
    trained = [path for path in places.values() if encoder.pooler_type and has_representation(path, encoder)]
    as_trained = trained if len(trained) < len(places) else []
    for label, path in places.items():
        notify(f"{label}: {path}")
        options = replace(encoder, pooler_type=None) if path in as_trained else encoder
        encoded = encode_pairs(load_model(path, options), task, sets, EncodeOptions.read(vars(args)))
        notify(f"{label}: {len(encoded.gold):,} pairs of {task} {args.split}, Spearman x 100 = {encoded.spearman:.2f}")
        yield label, encoded


def encoder_arguments(args: argparse.Namespace) -> EncoderArguments:
    """Return the options of a command that say how to load encoders."""
    return EncoderArguments(**{field.name: getattr(args, field.name) for field in fields(EncoderArguments)})


def add_models(parser: CommandParser) -> None:
    """Add the argument for one or several encoders to a parser."""
    parser.add_model("models", f"{MODEL_HELP} LABEL=FOLDER sets the label.", nargs="+", metavar="MODEL")


def add_data(parser: argparse.ArgumentParser, task: bool = True) -> None:
    """Add to a parser the options that choose the pairs on which encoders are evaluated.

    Args:
        task: Whether to add an option for the task. False: the task is STS-B, with the splits dev and test.
    """
    help = "Folder that contains downstream/ (default: %(default)s)."
    parser.add_argument("--data_dir", default=DATA_DIR, help=help)
    parser.add_argument("--custom_data", action="store_true", help="Do not require the official number of rows.")
    if task:
        parser.add_argument("--task", default=STS_TASK, help="STS task (default: %(default)s).")
    splits = ("train", "dev", "test") if task else ("dev", "test")
    parser.add_argument("--split", default="test", choices=splits, help="Split of the task (default: %(default)s).")


def add_pairs(parser: CommandParser) -> None:
    """Add the arguments of `add_models` and `add_data` to a parser."""
    add_models(parser)
    add_data(parser)


def load_sets(args: argparse.Namespace) -> "tuple[str, tuple[ScoredPairs, ...]]":
    """Return the name and the checked sets of the task that the options choose."""
    from senteval import load_pairs
    from senteval.names import find_by_name
    from senteval.sts import STS

    name = find_by_name(args.task, STS).name
    return name, load_pairs(name, args.data_dir, args.split, official=not args.custom_data)
