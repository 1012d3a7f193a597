"""`dcpcse.adapt`: adapt an encoder to your data, and test whether the adapted encoder is better."""

from inspect import signature
from pathlib import Path
from typing import Any

from dcpcse.api.train import unchanged_process
from dcpcse.experiments.adaptation.parts import HOLD_OUT
from dcpcse.experiments.adaptation.result import Adaptation
from dcpcse.experiments.adaptation.run import Request, adapt_encoder
from dcpcse.training.options import python_options, training_option_parser
from dcpcse.training.setup import encoder_name
from dcpcse.utils.arguments import number, path, string, truth_value, whole_number
from dcpcse.utils.errors import parameter_names
from dcpcse.utils.option_fields import require


def adapt(
    encoder: str | Path,
    data: Any,
    *,
    output_dir: str | Path,
    dev: Any = None,
    test: Any = None,
    minutes: float = 10.0,
    seed: int = 42,
    keep: bool = False,
    hold_out: str = "rows",
    ray: str | None = None,
    show_progress: bool = True,
    **options: Any,
) -> Adaptation:
    """Adapt a sentence encoder to your data as `dcpcse adapt` does, and return the scores and the verdict.

    Several training settings are tried. An interruption (Ctrl-C) raises KeyboardInterrupt. The call does not change
    random states and environment variables.

    Args:
        encoder: Folder or hub id of a sentence-transformers or Hugging Face encoder. Its files are not changed.
        data: Training data in any form that `dcpcse.train` accepts: sentences, pairs that belong together (also with
            several positives or hard negatives), sentences with classes, or pairs with scores.
        output_dir: A new or empty folder, or the folder of an interrupted call, which is then resumed. The record
            adapt.json is saved there, and the adapted encoder if it is better.
        dev: Data on which the best setting is chosen. None: a part of `data`. Required if `data` are sentences without
            labels.
        test: Data on which the encoders before and after the adaptation are compared. None: half of `dev` if `dev` is
            given, otherwise a part of `data`.
        minutes: Maximum duration of the call, in minutes.
        seed: Seed for splitting the data, for the trainings and for resampling the test data.
        keep: Whether to save the adapted encoder even if it is not better.
        hold_out: "rows", or "classes" to hold out all rows of some classes, so that the training has no rows of the
            classes in the dev and the test part. The interval of the difference then covers classes.
        ray: Address of a Ray cluster (`auto`, `local` or `host:port`), on which several settings are tried at a time.
        show_progress: Whether to show a progress bar.
        options: Options of `dcpcse.train` that are the same in all settings, such as `per_device_train_batch_size=32`.

    Raises:
        UserError: If an argument or the data are not valid.
    """
    with parameter_names(model_name_or_path="encoder", train_file="data"):
        require(number("minutes", minutes) > 0, "minutes", minutes, "above 0")
        require(hold_out in HOLD_OUT, "hold_out", hold_out, "rows or classes")
        others = [name for name in signature(adapt).parameters if name != "options"]
        request = Request(
            encoder=encoder_name(encoder, "encoder"),
            data=data,
            output_dir=Path(path("output_dir", output_dir)),
            dev=dev,
            test=test,
            minutes=float(minutes),
            seed=whole_number("seed", seed, 0, 2**32 - 1),
            keep=truth_value("keep", keep),
            hold_out=hold_out,
            ray=None if ray is None else string("ray", ray),
            given=python_options("adapt", training_option_parser(), options, others=others),
            show_progress=truth_value("show_progress", show_progress),
        )
        with unchanged_process():
            return adapt_encoder(request)
