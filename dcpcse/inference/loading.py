"""Load the encoder that the options of a command select.

The encoder is an output folder of train.py, a checkpoint of other code, a plain encoder or a file of word vectors.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from dcpcse.encoders.backbones import load_backbone, require_trained_head
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.pooling import POOLERS, UNTRAINED
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import hub
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import MODULES, is_model_folder
from dcpcse.encoders.storage.st_modules import MODEL_CONFIG, read_size
from dcpcse.encoders.templates import Template
from dcpcse.encoders.untrained import REPRESENTATIONS, Choice, build_representation, load_word_vectors
from dcpcse.inference.arguments import EncoderArguments, PublishedEvaluationArguments
from dcpcse.inference.public_checkpoints.build import EncoderPlace, load_checkpoint
from dcpcse.inference.public_checkpoints.choices import Choices
from dcpcse.inference.public_checkpoints.read import checkpoint_folder, find_checkpoint, read_checkpoint
from dcpcse.inference.st_folder import SentenceFolder, modules_folder, settle_modules
from dcpcse.utils.arguments import location, texts_by_name
from dcpcse.utils.console import notify, warn
from dcpcse.utils.devices import pick_device, uses_kernels
from dcpcse.utils.errors import OptionError, UserError, no_effect, spell
from dcpcse.utils.run_files import last_checkpoint, read_beside_training

OWN_POOLER = "avg"
"""Default pooling of a guide or of an encoder to adapt, used if its folder does not name a pooling."""

NO_PUBLISHED_OPTIONS = PublishedEvaluationArguments()
"""The default of every option of the papers' evaluation scripts."""


@dataclass(frozen=True)
class CheckpointArguments:
    """Arguments of `dcpcse.load` that apply only to checkpoints of other code. No command has such options.

    Args:
        layout: As in `dcpcse.load`.
        tokenizer: As in `dcpcse.load`.
        denoise_from_zero: As in `dcpcse.load`.
        position_offset: As in `dcpcse.load`.
    """

    layout: str | None = None
    tokenizer: str | None = None
    denoise_from_zero: bool | None = None
    position_offset: int | None = None


NO_CHECKPOINT_ARGUMENTS = CheckpointArguments()


def load_model(
    name: str,
    args: EncoderArguments,
    published: PublishedEvaluationArguments = NO_PUBLISHED_OPTIONS,
    *,
    options: LoadOptions | None = None,
    of_checkpoint: CheckpointArguments = NO_CHECKPOINT_ARGUMENTS,
) -> SentenceEncoder:
    """Load an encoder with the requested representation, in eval mode, onto the requested device.

    Args:
        name: Output folder of train.py, checkpoint of other code, folder or hub id of a Hugging Face or
            sentence-transformers encoder, or file of word vectors.
        args: Options for loading the encoder.
        published: Options of the papers' evaluation scripts.
        options: Revision, cache and access token for the Hub. None: the values in `args`.
        of_checkpoint: Arguments for checkpoints of other code.

    Raises:
        UserError: If an option in `args`, `published` or `of_checkpoint` does not apply to this encoder.
    """
    options = options or LoadOptions.from_args(args.cache_dir, args.use_auth_token, args.model_revision)
    name = location("model", name)
    model = read_beside_training(name, lambda: _load(name, args, published, options, of_checkpoint))
    return _computed_as(model, args)


def load_plain(name: str, args: EncoderArguments, options: LoadOptions) -> SentenceEncoder:
    """Load only the encoder of a folder, without a head or prompts of other code that the folder may contain.

    Args:
        name: Folder or hub id of the encoder.
        args: Options for loading the encoder.
        options: Revision, cache and access token for the Hub.
    """
    return _computed_as(_untrained(name, args, options), args)


def _computed_as(model: SentenceEncoder, args: EncoderArguments) -> SentenceEncoder:
    set_packed(model, args.packing, uses_kernels(args.attention, model.device, args.packing))
    model.bf16 = args.bf16
    if args.prompt is not None:
        model.text_prefix = args.prompt
    model.prompts |= texts_by_name(args.prompts)
    return model


def load_guide(name: str, args: EncoderArguments, option: str = "guide") -> SentenceEncoder:
    """Load a guide (a second encoder that filters negatives), with mean pooling as the default for plain encoders.

    Mean pooling is used if the folder of the encoder does not name a pooling and `args.pooler_type` is None. All else
    is as in `load_model`.

    Args:
        name: As in `load_model`.
        args: Options for loading the encoder.
        option: Name of the option that contains `name`, for messages.

    Raises:
        UserError: If there is no encoder `name`, or if an option in `args` does not apply to this encoder.
    """
    options = LoadOptions.from_args(args.cache_dir, args.use_auth_token)
    try:
        if args.pooler_type is None and not Path(name).is_file():
            hub.require_known(name, options)
            if not has_representation(name, args) and modules_folder(name, options) is None:
                args = replace(args, pooler_type=OWN_POOLER)
        return load_model(name, args, options=options)
    except UserError as error:
        raise UserError(f"{spell(option)}: {error}") from error


def _load(
    name: str,
    args: EncoderArguments,
    published: PublishedEvaluationArguments,
    options: LoadOptions,
    of_checkpoint: CheckpointArguments,
) -> SentenceEncoder:
    original, is_file = name, Path(name).is_file()
    if not is_file:
        name, options = hub.resolve_model_folder(name, options)
        if not is_model_folder(name):
            _refuse_unfinished(Path(name))
            if of_checkpoint.layout is not None or find_checkpoint(name, options) is not None:
                return _public_checkpoint(name, args, published, options, of_checkpoint)
    _refuse_checkpoint_arguments(original, of_checkpoint)
    if is_file:
        return _word_vectors(name, args, published)
    if not is_model_folder(name):
        _refuse_folder_options(name, args, published)
        return _untrained(name, args, options)
    _refuse_untrained_options(original, args, "an output folder")
    model = SentenceEncoder.load(name, args.base, device=args.device, options=options)
    _require_agreement(model, published)
    _require_same_reading(model, original, args)
    _settle_representation(model, args.pooler_type, published.mlp_only_train)
    _settle_denoising(model, original, args.denoise)
    return model


def _public_checkpoint(
    name: str,
    args: EncoderArguments,
    published: PublishedEvaluationArguments,
    options: LoadOptions,
    of_checkpoint: CheckpointArguments,
) -> SentenceEncoder:
    """Convert a checkpoint of other code in memory."""
    _refuse_untrained_options(name, args, "a checkpoint of other code")
    choices = Choices(
        pooler_type=args.pooler_type,
        mlp_only_train=published.mlp_only_train,
        template=args.template,
        final_period=args.final_period,
        denoise_at_inference=args.denoise,
        denoise_from_zero=of_checkpoint.denoise_from_zero,
        position_offset=of_checkpoint.position_offset,
    )
    model, _ = load_checkpoint(
        read_checkpoint(checkpoint_folder(name, options)),
        EncoderPlace(args.base, of_checkpoint.tokenizer, options),
        of_checkpoint.layout,
        choices,
    )
    _require_agreement(model, published)
    return model.to(pick_device(args.device))


def has_representation(name: str, args: EncoderArguments) -> bool:
    """Return whether a name refers to an output folder of train.py or to a checkpoint of other code.

    Args:
        name: As in `load_model`.
        args: As in `load_model`.
    """
    options = LoadOptions.from_args(args.cache_dir, args.use_auth_token, args.model_revision)
    return is_trained(name, args) or find_checkpoint(name, options) is not None


def is_trained(name: str, args: EncoderArguments) -> bool:
    """Return whether a name refers to an output folder of train.py, local or on the hub.

    Args:
        name: As in `load_model`.
        args: As in `load_model`.
    """
    options = LoadOptions.from_args(args.cache_dir, args.use_auth_token, args.model_revision)
    return is_model_folder(read_beside_training(name, lambda: hub.resolve_model_folder(name, options)[0]))


def local_folder(name: str, args: EncoderArguments) -> Path | None:
    """Return the local folder of a loaded model, or None if the model has no folder (for example word vectors).

    Args:
        name: As in `load_model`.
        args: As in `load_model`.
    """
    options = LoadOptions.from_args(args.cache_dir, args.use_auth_token, args.model_revision)
    folder = Path(hub.resolve_model_folder(name, options)[0])
    return folder if folder.is_dir() else modules_folder(name, options)


def _untrained(name: str, args: EncoderArguments, options: LoadOptions) -> SentenceEncoder:
    device = pick_device(args.device)
    require_trained_head(args.lm_head)
    folder = SentenceFolder.find(name, options)
    if folder is None:
        return _represented(name, args, options).to(device)
    asked = args.pooler_type is not None or args.template is not None
    if not asked:
        args = replace(args, pooler_type=folder.pooling.pooling)
    if hub.is_hub_id(name) and folder.modules[0].path:
        raise UserError(
            f"{name} has its encoder in a subfolder; download it (hf download {name}), and give the folder"
        )
    model = _represented(name if hub.is_hub_id(name) else str(folder.encoder), args, options)
    folder.prepare_tokenizer(model.tokenizer)
    if args.template is None:
        model.text_prefix, model.prompts = folder.texts.prefix, folder.prompts
    folder.limit_length(model)
    if asked:
        notify(
            f"representation: {model.pooling} instead of the pooling in {MODULES}; the folder's other settings are "
            "used"
        )
    else:
        settle_modules(model, folder.pooling)
        if (size := read_size(folder.folder)) is not None:
            warn(f"{MODEL_CONFIG} shortens embeddings to {size} values, which is not applied: give truncate_dim")
    return model.to(device)


def _represented(name: str, args: EncoderArguments, options: LoadOptions) -> SentenceEncoder:
    """Load a plain encoder, with the representation that the options select."""
    pooler = args.pooler_type or ("mask" if args.template else "cls")
    choice = Choice(
        template=Template.parse(args.template) if args.template else None,
        denoise=bool(args.denoise),
        final_period=bool(args.final_period),
        remove=tuple(args.remove or ()),
        top_k=args.top_k,
    )
    representation = REPRESENTATIONS[pooler]
    if args.lm_head != "checkpoint" and not representation.needs_lm_head:
        raise no_effect("lm_head", f"on {spell('pooler', pooler)}")
    lm_head = args.lm_head if representation.needs_lm_head else None
    return build_representation(pooler, load_backbone(name, lm_head=lm_head, options=options), choice)


def _word_vectors(name: str, args: EncoderArguments, published: PublishedEvaluationArguments) -> SentenceEncoder:
    """Return a model that averages the word vectors in a file.

    Raises UserError if the file contains the weights of a model, or if a given option applies only to encoders.
    """
    if Path(name).suffix == ".safetensors":
        raise UserError(f"{name} contains weights of a model; give the folder that contains this file")
    _refuse_folder_options(name, args, published)
    of_encoders = {"template", "prompt", "denoise", "final_period", "top_k", "remove", "lm_head", "bf16"}
    for option in sorted(of_encoders & args.changed()):
        raise OptionError(
            option, reason=f"applies only to encoders; {name} is a file of word vectors", remedy="leave it out"
        )
    if args.pooler_type not in (None, "avg"):
        raise OptionError("pooler", args.pooler_type, "word vectors are always averaged", "leave it out")
    return load_word_vectors(name).to(pick_device(args.device))


def _refuse_checkpoint_arguments(name: str, of_checkpoint: CheckpointArguments) -> None:
    for argument, value in vars(of_checkpoint).items():
        if value is not None:
            raise OptionError(
                argument, reason=f"applies only to checkpoints of other code; {name} is not one", remedy="leave it out"
            )


def _refuse_untrained_options(name: str, args: EncoderArguments, kind: str) -> None:
    options = [spell(option) for option in sorted({"top_k", "remove", "lm_head"} & args.changed())]
    options += [spell("pooler", args.pooler_type)] if args.pooler_type in UNTRAINED else []
    if options:
        raise UserError(f"{options[0]} applies only to plain encoders, but {name} is {kind}; leave it out")


def _require_same_reading(model: SentenceEncoder, folder: str, args: EncoderArguments) -> None:
    """Raise UserError if an option would prepare sentences differently than in training."""
    template = model.template
    settings = {
        "template": template and Template.parse(str(template.template)),
        "final_period": model.final_period,
    }
    asked = {"template": args.template and Template.parse(args.template), "final_period": args.final_period}
    for name, value in asked.items():
        if value and value != settings[name]:
            was = f"with the template {template.template}" if template and name == "template" else "without it"
            raise UserError(f"{spell(name)}: {folder} was trained {was}; leave it out")
    needing = {
        spell("pooler", "mask"): args.pooler_type == "mask",
        spell("denoise", True): args.denoise is not None,
    }
    for name, enabled in needing.items():
        if enabled and template is None:
            raise UserError(f"{name}: {folder} was trained without a template; leave it out")


def _refuse_unfinished(folder: Path) -> None:
    newest = last_checkpoint(folder)
    if newest and is_model_folder(newest):
        raise UserError(
            f"{folder} contains checkpoints of a training, but not its result; use one of them, for example {newest}, "
            f"or finish the training with {spell('resume', True)}"
        )


def _settle_representation(model: SentenceEncoder, pooler: str | None, mlp_only_train: bool | None) -> None:
    head = " with its head" if model.head_at_inference else " before its head" if model.head else ""
    trained = f"{model.pooling}{head}"
    if mlp_only_train and model.head_at_inference:
        notify(
            f"representation: {model.pooling} before its head ({spell('mlp_only_train', True)}) instead of the "
            f"folder's ({trained})"
        )
        model.head_at_inference = False
    elif pooler in (None, "cls"):
        notify(f"representation: {trained}, as trained")
    else:
        notify(f"representation: {pooler} instead of the folder's ({trained})")
        model.pooling, model.head_at_inference = pooler, False
        if not POOLERS[pooler].needs_template:  # there is no [MASK] vector to denoise
            model.denoising = replace(model.denoising, inference=False)


def _settle_denoising(model: SentenceEncoder, folder: str, denoise: bool | None) -> None:
    """Apply the option --denoise to a model with a template. None keeps the recorded setting of the folder."""
    if denoise is None or denoise == model.denoising.inference:
        return
    if denoise and not POOLERS[model.pooling].needs_template:
        raise OptionError(
            "denoise",
            True,
            f"{folder} is used with the pooler {model.pooling}, and denoising subtracts from the vector of [MASK]",
            f"add {spell('pooler', 'mask')}, or leave {spell('denoise', True)} out",
        )
    notify(
        f"template denoising: {'on' if denoise else 'off'} ({spell('denoise', True)}) instead of the folder's setting"
    )
    model.denoising = replace(model.denoising, inference=denoise)


def _require_agreement(model: SentenceEncoder, published: PublishedEvaluationArguments) -> None:
    """Raise UserError if the options describe other prompts than the folder contains."""
    prompt = model.encoder.prompt
    settings = {} if prompt is None else {"pre_seq_len": prompt.shape.length, "prefix_hidden_size": prompt.projection}
    settings["prefix_projection"] = prompt is not None and prompt.projection is not None
    for name in ("pre_seq_len", "prefix_projection", "prefix_hidden_size"):
        asked, actual = getattr(published, name), settings.get(name)
        # Old scripts give the size even without a projection.
        is_set = asked not in (None, False) and (name != "prefix_hidden_size" or settings["prefix_projection"])
        if is_set and asked != actual:
            raise OptionError(name, asked, f"the folder has {actual if actual else 'none'}", "leave it out")


def _refuse_folder_options(name: str, args: EncoderArguments, published: PublishedEvaluationArguments) -> None:
    options = {"base": args.base, **vars(published)}
    for option in ("base", "pre_seq_len", "prefix_projection", "prefix_hidden_size", "mlp_only_train"):
        if options[option] not in (None, False):
            raise OptionError(
                option,
                reason=f"applies only to output folders of a training; {name} is not one",
                remedy="leave it out",
            )
