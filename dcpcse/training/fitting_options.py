"""Fill in the learning rate and the batch size that fit the method and the encoder."""

from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.inference.st_folder import is_sentence_encoder
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.recipes import Recipe
from dcpcse.training.arguments import TrainingArguments
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError


def fill_recipe(run: TrainingArguments, recipe: Recipe, model: ModelArguments) -> None:
    """Set the learning rate and the batch size if they are not given, and say so if the run trains.

    model: the options of the model, which name the encoder. Values that were filled in for an earlier trainer with the
    same arguments are filled in again.
    """
    names = ("learning_rate", "per_device_train_batch_size")
    missing = {name for name in names if getattr(run, name) is None or name in run.filled}
    if not missing:
        return
    depends = "learning_rate" in missing and recipe.on_sentence_encoder is not None
    trained_before = depends and _is_sentence_encoder(model)
    values = (recipe.rate(sentence_encoder=trained_before), recipe.batch_size)
    found = {name: value for name, value in zip(names, values, strict=True) if name in missing}
    for name, value in found.items():
        setattr(run, name, value)
    run.filled = frozenset(missing)
    if run.do_train:
        filled = " and ".join(f"--{name} {value:g}" for name, value in found.items())
        of = f"--method {model.method}{f' with --tuning {model.tuning}' if model.tuning else ''}"
        kind = f" on an encoder that was {'' if trained_before else 'not '}trained for sentences" if depends else ""
        notify(f"{filled}: filled in, as the default of {of}{kind}")


def _is_sentence_encoder(model: ModelArguments) -> bool:
    try:
        return is_sentence_encoder(model.model_name_or_path, load_options(model))
    except UserError:  # an encoder that was built in memory, or one that cannot be loaded, which is reported later
        return False


def load_options(model: ModelArguments) -> LoadOptions:
    """Return the options with which the encoder is loaded."""
    return LoadOptions.from_args(model.cache_dir, model.use_auth_token, model.model_revision)
