"""What train.py can say of its options before anything of training is imported, which takes seconds."""

from collections.abc import Collection
from pathlib import Path

from dcpcse.data.readers import reader_of
from dcpcse.methods import fill_defaults
from dcpcse.methods.arguments import ModelArguments
from dcpcse.training.arguments import DataArguments, RunArguments
from dcpcse.utils.errors import UserError


def require_sensible(options: tuple[ModelArguments, DataArguments, RunArguments], given: Collection[str]) -> None:
    """UserError for places that are missing or cannot be, and for options of a method that contradict each other."""
    model, data, run = options
    if "output_dir" not in given:  # transformers would take ./trainer_output
        raise UserError("--output_dir is missing: the folder for the result")
    if Path(run.output_dir).is_file():
        raise UserError(f"--output_dir {run.output_dir} is a file; give a folder")
    require_encoder_and_file(model, data)
    reader_of(Path(data.train_file))  # is it there, and of a known kind?
    _require_encoder(model.model_name_or_path)
    if not run.do_train and not run.do_eval and "do_train" in given:
        raise UserError("--do_train False, and no --do_eval: there is nothing to do; leave it out, or add --do_eval")
    fill_defaults(model, ["anchor"])  # options that contradict each other do so whatever columns the data have


def require_encoder_and_file(model: ModelArguments, data: DataArguments) -> None:
    """UserError without an encoder or without data."""
    if not model.model_name_or_path:
        raise UserError("--model_name_or_path is missing: the encoder, a Hugging Face folder or hub id")
    if not data.train_file:
        raise UserError("--train_file is missing: txt, csv, tsv, json or jsonl")


def _require_encoder(name: str) -> None:
    place = Path(name)
    if place.is_file():
        raise UserError(f"--model_name_or_path {name} is a file; give the folder that holds it")
    if not place.exists() and (place.is_absolute() or name.startswith((".", "~"))):
        raise UserError(f"--model_name_or_path {name}: there is no such folder")
