"""Options that fit the method, the encoder and the device: what a run takes if nothing is given, and advice."""

from dcpcse.encoders.pooling import POOLERS
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import MODULES
from dcpcse.inference.st_folder import is_sentence_encoder, read_representation
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.recipes import Recipe
from dcpcse.training.arguments import TrainingArguments
from dcpcse.utils.console import notify
from dcpcse.utils.devices import has_bfloat16_units
from dcpcse.utils.distributed import all_reduce_max
from dcpcse.utils.errors import UserError

WORKERS_ON_GPU = 2
"""Number of processes that collate the batches of a training on a GPU, for each process that trains."""


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
    run.filled |= missing
    if run.do_train:
        filled = " and ".join(f"--{name} {value:g}" for name, value in found.items())
        of = f"--method {model.method}{f' with --tuning {model.tuning}' if model.tuning else ''}"
        kind = f" on an encoder that was {'' if trained_before else 'not '}trained for sentences" if depends else ""
        notify(f"{filled}: filled in, as the default of {of}{kind}")


def fill_precision(run: TrainingArguments, model: ModelArguments) -> None:
    """Set `bf16` if no precision is given, and say so if it is on and the run trains.

    It is on if every process has a GPU with units for bfloat16; all processes must call this function. model: the
    options of the model, of which `encoder_dtype` is a precision too.
    """
    if run.bf16 is not None:
        return
    by_launcher = run.mixed_precision  # that of accelerate launch, unless --fp16 is given
    given = by_launcher != "no" or "fp16" in run.given or model.encoder_dtype != ModelArguments.encoder_dtype
    run.set_bf16(by_launcher == "bf16" or not (given or all_reduce_max(int(not has_bfloat16_units(run.device)))))
    if run.bf16 and not given:
        run.filled |= {"bf16"}
        if run.do_train:
            notify("--bf16 True: filled in, as the default on this GPU; --bf16 False trains in float32")


def fill_workers(run: TrainingArguments) -> None:
    """Set the number of processes that collate batches if it is not given, and say so if there are any."""
    if run.dataloader_num_workers is None:
        run.dataloader_num_workers = WORKERS_ON_GPU if run.do_train and run.device.type == "cuda" else 0
        if run.dataloader_num_workers:
            notify(f"--dataloader_num_workers {WORKERS_ON_GPU}: filled in, as the default on a GPU")


def _is_sentence_encoder(model: ModelArguments) -> bool:
    try:
        return is_sentence_encoder(model.model_name_or_path, load_options(model))
    except UserError:  # an encoder that was built in memory, or one that cannot be loaded, which is reported later
        return False


def load_options(model: ModelArguments) -> LoadOptions:
    """Return the options with which the encoder is loaded."""
    return LoadOptions.from_args(model.cache_dir, model.use_auth_token, model.model_revision)


def advise_on_representation(model: SentenceEncoder, given: ModelArguments) -> None:
    """Say which options fit an encoder whose folder has the modules of sentence-transformers.

    Nothing is said if the options fit already, or if the user has chosen others. model: what is trained. given: the
    options of the model as the user gave them.
    """
    name = model.source.name_or_path
    try:
        own = read_representation(name, load_options(given))
    except UserError:  # settings that cannot be reproduced here
        return
    if own is not None and (words := fitting_options(model, given, own.pooling)):
        notify(f"{name} is a sentence encoder ({own}, as {MODULES} says); {words} keeps this representation")


def fitting_options(model: SentenceEncoder, given: ModelArguments, pooling: str) -> str:
    """Return the options that fit an encoder that was trained for sentences, as words of a command line.

    Options that the user has given, or that have no effect, are left out. model: what is trained. pooling: the pooler
    with which the encoder was trained.
    """
    found = []
    own, other = POOLERS[model.pooling], POOLERS[pooling]
    if given.pooler_type is None and not model.templates and (own.layers, own.reduce) != (other.layers, other.reduce):
        found.append(f"--pooler_type {pooling}")
    if given.position_offset is None and model.encoder.position_offset:
        found.append("--position_offset 0")
    return " ".join(found)
