"""Build the parts of a run: the method on its encoder, the collator and the dataset."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import transformers
import yaml
from torch import nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from dcpcse.data.collator import ViewCollator
from dcpcse.data.column_choice import chosen_columns
from dcpcse.data.corrupted_corpus import Corpus, CorruptedDataset
from dcpcse.data.examples import NextLinePairs
from dcpcse.data.mixture import AnyTrainingData, TrainingSets, is_several, make_mixture
from dcpcse.data.tables import describe
from dcpcse.data.training_data import load_training_data
from dcpcse.encoders.backbones import Backbone, load_backbone
from dcpcse.encoders.identity import (
    ROUNDING_ONLY_KEYS,
    EncoderSource,
    combined_digest,
    configuration,
    identity,
    named_digest,
    training_configuration,
    vocabulary_fingerprint,
    weight_digest,
)
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_guide
from dcpcse.inference.public_checkpoints.read import find_checkpoint
from dcpcse.losses.guide import FALSE_NEGATIVES, Guide, GuideSource
from dcpcse.methods import Method, arguments_class, build_resolved, fill_defaults
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import prompts_of_columns
from dcpcse.methods.plugins import code_digest
from dcpcse.methods.registry import (
    Builder,
    find_method,
    option_fields,
    recipe_of,
    require_complete,
    require_own_options,
)
from dcpcse.training.arguments import DataArguments, TrainingArguments
from dcpcse.training.gradient_cache import require_repeatable
from dcpcse.training.resolve_arguments import (
    HUB_OPTIONS,
    NEEDS,
    fill_precision,
    fill_recipe,
    fill_representation,
    fill_workers,
    keep_prompts,
    load_options,
    report_representation,
    sentence_folder,
    warn_of_another_method,
)
from dcpcse.training.validate_setup import (
    require_data,
    require_distinct_rows,
    require_fitting,
    require_prompted_columns,
    require_weights,
    warn_of_no_effect,
    warn_of_unknown_tokens,
)
from dcpcse.utils.arguments import location
from dcpcse.utils.console import notify, warn
from dcpcse.utils.errors import UserError, did_you_mean, spell
from dcpcse.utils.files import write_atomic

ALWAYS_RECORDED = ("seed", "learning_rate", "per_device_train_batch_size", "num_train_epochs")
ALWAYS_RECORDED += ("max_steps", "fp16", "bf16")
"""Options that are always recorded in `run.yaml`."""

NEVER_RECORDED = ("resume", "resume_from_checkpoint", "overwrite_output_dir", "push_to_hub", *HUB_OPTIONS)
"""Options that are never recorded in `run.yaml`, because they belong to one call and not to the run."""

_OF_LOADING = ("config_name", "tokenizer_name", "lm_head", "cache_dir", "model_revision", "use_auth_token")


@dataclass(frozen=True)
class Setup:
    """What `dcpcse.Trainer` needs for a run.

    Args:
        method: The method with its model.
        options: Options of the model. Options that are not given have the defaults of the method.
        collator: The collator of the batches.
        dataset: The examples; None without training data.
        made_of: Fingerprints of the inputs of the run without its options and encoder, by their names in messages.
    """

    method: Method
    options: ModelArguments
    collator: ViewCollator
    dataset: Dataset | None
    made_of: Mapping[str, Any]


def model_options(model: Any, method: Any, values: Mapping[str, Any]) -> ModelArguments:
    """Return the options of the model and its method from the arguments of `dcpcse.Trainer`.

    Args:
        model: As in `dcpcse.Trainer`.
        method: As in `dcpcse.Trainer`.
        values: `method_options` of `dcpcse.Trainer`.

    Raises:
        UserError: If the encoder or the method has a wrong type, or if an option is unknown or has no effect.
    """
    known = option_fields().keys() - {"model_name_or_path", "method", "preset", "plugin"}
    if unknown := next((name for name in values if name not in known), None):
        hint = did_you_mean(unknown, known)
        raise UserError(f"unknown option {unknown}{hint and f'; {hint}'}")
    if isinstance(method, Method):
        return options_of_built(model, method, values)
    kind, name = require_own_options(method, values), find_method(method)[0]
    options = kind(method=name, model_name_or_path=encoder_name(model), **values)
    if isinstance(model, Backbone):
        if unread := next((name for name in _OF_LOADING if name in values), None):
            raise UserError(f"{unread} has no effect on a loaded encoder; leave it out, or give the encoder's folder")
        if (options.do_mlm or options.org_mlp) and model.lm_head is None:
            raise UserError("do_mlm and org_mlp need a masked-LM head; give the encoder by its name or folder")
    return options


def options_of_built(model: Any, method: Method, option_names: Collection[str]) -> ModelArguments:
    """Return the options of a method that was built with `build_method`.

    Args:
        model: The encoder argument of the user. It must be None, since the method contains its encoder.
        method: The method.
        option_names: Names of the options of the model that the user has given. There must be none.

    Raises:
        UserError: If an encoder or an option of the model is given.
    """
    if model is not None:
        raise UserError("method was built with an encoder (build_method) and contains it; leave out model")
    if option_names:
        raise UserError(
            f"{next(iter(option_names))} has no effect on a method that was built with build_method; leave it out, or "
            "build the method with it"
        )
    encoder = method.model
    kind = arguments_class(method)
    known = {field.name for field in fields(kind)}
    made_from = {name: value for name, value in (encoder.arguments or {}).items() if name in known}
    return kind(**{**made_from, "method": encoder.method, "model_name_or_path": encoder.source.name_or_path})


def encoder_name(model: Any, parameter: str = "model") -> str:
    """Return the name or folder of an encoder. Raises UserError for anything else, such as a loaded model.

    Args:
        model: The name or folder that the user gave, or a loaded `Backbone`.
        parameter: Name of the parameter, for messages.
    """
    if isinstance(model, Backbone):
        return model.source.name_or_path
    if model is None:
        raise UserError(f"{parameter} is missing; give an encoder as a Hugging Face folder or hub id")
    if isinstance(model, str | PathLike) and isinstance(fspath(model), str) and fspath(model):
        return location(parameter, model)
    kinds = {cls.__name__ for cls in type(model).__mro__}
    remedy = "give the name or the folder of an encoder, as a string or a path"
    if "SentenceEncoder" in kinds:
        remedy = "give the name or the folder of its encoder, and its own folder as init_from to keep its weights"
    elif "PreTrainedModel" in kinds or "SentenceTransformer" in kinds:
        remedy = "give the name or the folder that it was loaded from, or save it and give the folder"
    raise UserError(f"{parameter} is {describe(model)}; {remedy}")


def open_train_dataset(
    data: Any, args: ModelArguments, data_args: DataArguments, name: str = "train_dataset"
) -> AnyTrainingData | None:
    """Return training data, read from a path or a Python object, or from a dict of several paths or objects.

    Args:
        data: The path, the object or the dict. Data that are read already and None are returned unchanged.
        args: Options of the model, of which `cache_dir` and `positive` are used.
        data_args: Options of the data: the columns, and whether a file is read again even if it is cached.
        name: Name of the object in messages.
    """
    if data is None or isinstance(data, AnyTrainingData):
        return data
    cache = Path(args.cache_dir) / "dcpcse" if args.cache_dir else None
    reading = {"refresh": data_args.overwrite_cache, "columns": chosen_columns(data_args.columns)}
    reading["documents"] = args.positive == "next"
    if not is_several(data):
        return load_training_data(data, cache, name=name, **reading)
    sets = {key: load_training_data(of, cache, name=f"{name}[{key!r}]", **reading) for key, of in data.items()}
    return TrainingSets.of(sets) if len(sets) > 1 else next(iter(sets.values()))


def build(
    model: Any,
    method: str | Builder | Method,
    options: ModelArguments,
    data_args: DataArguments,
    run: TrainingArguments,
    data: AnyTrainingData | None,
) -> Setup:
    """Build the method on the encoder, and check that data, encoder, method and options fit together.

    Args:
        model: As in `dcpcse.Trainer`.
        method: As in `dcpcse.Trainer`.
        options: Result of `model_options`.
        data_args: Options of the data.
        run: Options of the run, in which the learning rate, the batch size and the precision are filled in.
        data: The training data; None if the run does not train.

    Raises:
        UserError: If data, encoder, method and options do not fit together.
    """
    columns, dataset = make_mixture(data, run.seed, options.positive) if data else (["anchor"], None)
    entry = None if isinstance(method, Method) else find_method(method)[1]
    if entry:
        folder = sentence_folder(options, loaded=isinstance(model, Backbone))
        options = fill_defaults(fill_representation(options, columns, entry, folder), columns, entry)
    recipe = recipe_of(entry, options.tuning)
    fill_recipe(run, recipe, options)
    if isinstance(method, str) and options.tuning and run.trains:
        warn_of_another_method(run, recipe, options)
    fill_precision(run, options)
    fill_workers(run)
    sets = data.sets if data else {}
    require_weights(data_args, len(sets), run)
    for part, examples in zip(sets.values(), dataset.parts if data else (), strict=True):
        require_data(part, len(examples), options, run)
        require_distinct_rows(examples, run)
    if data:
        warn_of_no_effect(options, run)
    if run.gradient_cache_chunk:
        require_repeatable(run)
    transformers.set_seed(run.seed)
    if entry:
        code = code_digest(entry.build)
        backbone = _unchanged(model) if isinstance(model, Backbone) else load_encoder(options)
        if folder:
            folder.prepare_tokenizer(backbone.tokenizer)
        method = build_resolved(backbone, options, columns, entry)
        if folder:
            folder.limit_length(method.model)
            keep_prompts(method.model, folder, options)
            if data and run.trains:
                report_representation(method.model, folder)
    else:
        code = {"built method": _described(method)}
        require_complete(method, options.method, columns)
    sources = {FALSE_NEGATIVES: GuideSource(options.guide)} if options.guide else {}
    method = replace(method, guides=_load_guides({**sources, **method.guides}, method, options))
    for part in sets.values() if run.trains else ():
        warn_of_unknown_tokens(part, method)
    require_prompted_columns(options, method.views)
    require_fitting(method, columns, dataset, data_args, run)
    for loss_fn in method.losses:
        loss_fn.row_chunk = run.loss_chunk
    corpus = _read_corpus(options, data_args, data, method) if data else None
    dataset = CorruptedDataset(data.dataset, corpus) if corpus else dataset
    collator = ViewCollator(
        method.model.tokenizer,
        method.views,
        data_args.max_seq_length,
        templates=method.model.templates,
        prefix=method.model.text_prefix,
        prompts=prompts_of_columns(options),
        width=method.model.dimension,
        seed=run.seed,
        guides={name: guide.model for name, guide in method.guides.items()},
        pad_to_max_length=data_args.pad_to_max_length,
    )
    made_of = _made_of(data, run, method, corpus) | code
    if documents := [part.digest for part in (dataset.parts if data else ()) if isinstance(part, NextLinePairs)]:
        made_of["documents"] = " ".join(documents)
    return Setup(method, options, collator, dataset, made_of)


def load_encoder(args: ModelArguments) -> Backbone:
    """Load the encoder, with a masked-LM head if the MLM loss or --org_mlp needs the head.

    If the folder is a checkpoint of other training code, only its encoder is loaded, and a warning names the parts
    that are left out.
    """
    options = load_options(args)
    backbone = load_backbone(
        args.model_name_or_path,
        tokenizer=args.tokenizer_name,
        config=args.config_name,
        lm_head=args.lm_head if args.do_mlm or args.org_mlp else None,
        options=options,
    )
    if checkpoint := find_checkpoint(args.model_name_or_path, options):
        unused = " and ".join(part for part in checkpoint.parts if part != "encoder")
        warn(f"{checkpoint}: training starts from the encoder in this checkpoint, without its {unused}")
    return backbone


def _load_guides(guides: Mapping[str, Guide | GuideSource], method: Method, args: ModelArguments) -> dict[str, Guide]:
    """Return the guides by name. A guide that is given as a folder or hub id is loaded."""
    how = EncoderArguments(device="cpu", cache_dir=args.cache_dir, use_auth_token=args.use_auth_token)
    loaded = {}
    for name, guide in guides.items():
        if isinstance(guide, GuideSource):
            notify(f"the {name.replace('_', ' ')} is {guide.encoder}")
            model = load_guide(guide.encoder, replace(how, pooler_type=guide.pooler), guide.option)
            guide = Guide(model, method.views, name)
        loaded[name] = guide
    return loaded


def _unchanged(backbone: Backbone) -> Backbone:
    """Return a loaded encoder. Raises UserError if its weights have changed since it was loaded."""
    source = backbone.source
    current = EncoderSource.of(backbone.model, source.name_or_path, source.revision, source.weights_file)
    if current.fingerprint != source.fingerprint:
        raise UserError("model was changed after loading, for example by an earlier training; load it again")
    return backbone


def _read_corpus(
    args: ModelArguments, data_args: DataArguments, data: AnyTrainingData, method: Method
) -> Corpus | None:
    """Return the corrupted corpus, or None if it is not given. Raises UserError if it does not fit the run."""
    if getattr(args, "corrupted_corpus", None) is None:
        return None
    if method.model.text_prefix or args.prompts:
        raise UserError(
            f"{spell('corrupted_corpus')}: its sentences do not begin with the text prompt of the encoder; train "
            f"without this prompt: give {spell('prompt')} ''"
        )
    if args.positive == "next":
        raise UserError(
            f"{spell('corrupted_corpus')} contains copies of sentences, not the lines that follow them; leave out "
            f"{spell('positive', 'next')}"
        )
    if any(view.augmentation for view in method.views):
        raise UserError(
            f"{spell('corrupted_corpus')}: its tokens were replaced in the original sentences, but "
            f"{spell('method', args.method)} changes sentences in each epoch; leave out {spell('corrupted_corpus')}"
        )
    corpus = Corpus.read(args.corrupted_corpus)
    corpus.require(
        data=data.sha256,
        vocabulary=vocabulary_fingerprint(method.model.tokenizer),
        views=[view.name for view in method.views],
        max_seq_length=data_args.max_seq_length,
    )
    return corpus


def _made_of(
    data: AnyTrainingData | None, run: TrainingArguments, method: Method, corpus: Corpus | None
) -> dict[str, Any]:
    """Return the inputs of a run without its options, encoder and code, by their names in error messages."""
    losses = nn.ModuleList(method.losses)
    made_of: dict[str, Any] = {"processes": run.world_size}
    if data:
        made_of["training file"] = data.sha256
    made_of["configuration for training"] = training_configuration(method.model.encoder.backbone.config)
    if frozen := {name: weight_digest(param) for name, param in losses.named_parameters() if not param.requires_grad}:
        made_of["generator or LM head"] = combined_digest(frozen.values())
        models = [module for module in losses.modules() if isinstance(module, PreTrainedModel)]
        settings = [configuration(model, head=True) | training_configuration(model.config) for model in models]
        # Not in checkpoints of earlier versions, which identified the weights without their names.
        made_of["generator or LM head, with names and configuration"] = named_digest(frozen, settings)
    for name, guide in method.guides.items():
        facts = {key: fact for key, fact in identity(guide.model).items() if key not in ROUNDING_ONLY_KEYS}
        made_of[name.replace("_", " ")] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    if corpus:
        made_of["corrupted corpus"] = corpus.fingerprint
    return made_of


def _described(method: Method) -> str:
    """Describe in one line the views and terms of a built method, since its code cannot be identified."""
    views = ", ".join(f"{view.name} of {view.column}" for view in method.views)
    terms = ", ".join(f"{term.weight:g} {name} ({type(term.loss).__name__})" for name, term in method.terms.items())
    return f"views {views}; terms {terms}"


def resolved(
    model: ModelArguments, data: DataArguments, run: TrainingArguments, option_names: Collection[str]
) -> dict[str, Any]:
    """Return the options of a run with their final values. Defaults that have an effect are included.

    Args:
        model: Options of the model.
        data: Options of the data.
        run: Options of the run.
        option_names: Names of the options that the user has set.
    """
    # Of transformers' hundred options, only options that were given or are always recorded are kept.
    values = {name: value for name, value in run.to_dict().items() if name in option_names or name in ALWAYS_RECORDED}
    options = {**vars(model), **vars(data), **values, "output_dir": run.output_dir, "do_train": run.trains}
    # A run with this file would report each of them as an option without effect.
    unused = {name for name, need in NEEDS.items() if name not in option_names and not need.holds(run)}
    return {
        name: value
        for name, value in options.items()
        if value not in (None, []) and name not in (*NEVER_RECORDED, *unused)
    }


def write_run(path: Path, options: Mapping[str, Any]) -> None:
    """Write resolved options to a YAML file that train.py can read.

    Args:
        path: The file.
        options: The values by option.
    """
    write_atomic(path, yaml.safe_dump(dict(options), sort_keys=True, allow_unicode=True))
