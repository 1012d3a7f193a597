"""Check options of train.py early, without importing the modules that train, whose import takes seconds."""

from collections.abc import Collection
from pathlib import Path

from dcpcse.data.readers import reader_of
from dcpcse.methods import fill_defaults
from dcpcse.methods.arguments import ModelArguments
from dcpcse.training.arguments import DataArguments, TrainingArguments
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.files import require_encoder_path


def require_valid(
    options: tuple[ModelArguments, DataArguments, TrainingArguments],
    option_names: Collection[str],
    objects: Collection[str] = (),
) -> None:
    """Raise UserError if a path is missing or cannot be used, or if options of the method contradict each other.

    Args:
        options: Options of the model, the data and the run.
        option_names: Names of the options that the user has set.
        objects: Names of inputs that are Python objects instead of options, such as `train_data` and `method`.
    """
    model, data, run = options
    if "output_dir" not in option_names:  # transformers would take ./trainer_output
        raise OptionError("output_dir", reason="is missing", remedy="give a folder for the trained model")
    if Path(run.output_dir).is_file():
        raise UserError(f"{spell('output_dir', run.output_dir)} is a file; give a folder")
    has_encoder = "method" in objects and not model.model_name_or_path  # that of a built method
    if not has_encoder:
        require_encoder(model)
    if "train_data" not in objects:
        require_file(data)
        reader_of(Path(data.train_file))  # raises UserError if the file does not exist or has an unknown format
    if not has_encoder:
        require_encoder_path(model.model_name_or_path, "model_name_or_path")
    if not run.do_train and not run.do_eval and "do_train" in option_names:
        raise UserError(
            f"{spell('do_train', False)} leaves nothing to do without {spell('do_eval', True)}; leave it out, or add "
            f"{spell('do_eval', True)}"
        )
    if "method" not in objects:
        fill_defaults(model, None)


def require_encoder_and_file(model: ModelArguments, data: DataArguments) -> None:
    """Raise UserError if the option for the encoder or for the training file is missing.

    Args:
        model: Options of the model.
        data: Options of the data.
    """
    require_encoder(model)
    require_file(data)


def require_encoder(model: ModelArguments) -> None:
    """Raise UserError if the option for the encoder is missing."""
    if not model.model_name_or_path:
        raise OptionError(
            "model_name_or_path", reason="is missing", remedy="give an encoder as a Hugging Face folder or hub id"
        )


def require_file(data: DataArguments) -> None:
    """Raise UserError if the option for the training file is missing."""
    if not data.train_file:
        raise OptionError("train_file", reason="is missing", remedy="give a txt, csv, tsv, json or jsonl file")
