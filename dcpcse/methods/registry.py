"""The registry of methods: functions that register a method, fill in default options and build the method."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dcpcse.data.columns import CLASS, LABEL, SCORE, Columns
from dcpcse.data.tables import describe
from dcpcse.data.views import Crop, View
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import set_frozen_dtype
from dcpcse.encoders.identity import base_differences, tell_unrecorded, tokenizer_differences
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import hub, model_folder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import METHOD_NAME
from dcpcse.losses import Loss, Term
from dcpcse.losses.guide import FALSE_NEGATIVES, Guide, GuideSource
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.tunings import RECIPES, TUNINGS, Recipe
from dcpcse.utils.console import warn
from dcpcse.utils.errors import OptionError, UserError, did_you_mean, invalid_choice, spell
from dcpcse.utils.option_fields import require_effect
from dcpcse.utils.packages import require_packages
from dcpcse.utils.run_files import read_beside_training
from dcpcse.utils.tensor_files import TORCH_DTYPES


@dataclass(frozen=True)
class Adversary:
    """Adversarial views: copies of views with ε · g / ‖g‖ added to each token embedding (ConSERT, section 3.3).

    g is the gradient of a loss term with respect to the token embedding.

    Args:
        term: Name of the loss term. The loss must be a `PerRowLoss` on views that are not adversarial.
        epsilon: Length ε of the step that is added to the output of the embedding layer.
        views: For each name of an adversarial view, the name of the copied view.
    """

    term: str
    epsilon: float
    views: Mapping[str, str]


@dataclass(frozen=True)
class ParameterGroup:
    """Trained parameters with a learning rate or warm-up that differs from the other parameters.

    Args:
        name: Name of the group. The log contains the learning rate of the group as `learning_rate_NAME`.
        parameters: The parameters.
        learning_rate: The highest learning rate. None: --learning_rate.
        warmup_steps: Number of steps of the linear warm-up, or, if below 1, the share of all steps. After the warm-up,
            the group follows the schedule of the run. None: --warmup_steps.
    """

    name: str
    parameters: tuple[nn.Parameter, ...]
    learning_rate: float | None = None
    warmup_steps: float | None = None


@dataclass(frozen=True)
class Method:
    """A training method: the model, the views of an example, and the weighted loss terms.

    Args:
        model: The model that is trained.
        views: The views of an example.
        terms: The weighted loss terms by name.
        adversary: The adversarial views. None: there are no adversarial views.
        groups: The parameters with a different learning rate or warm-up.
        guides: Frozen encoders that the losses use, by name, such as `teacher`. Training loads each guide that is a
            `GuideSource`, and adds the encoder of --guide under the name `guide`.
    """

    model: SentenceEncoder
    views: tuple[View, ...]
    terms: Mapping[str, Term]
    adversary: Adversary | None = None
    groups: tuple[ParameterGroup, ...] = ()
    guides: Mapping[str, Guide | GuideSource] = field(default_factory=dict)

    @property
    def losses(self) -> list[Loss]:
        """The losses, in the order of `terms`."""
        return [term.loss for term in self.terms.values()]

    @property
    def anchors(self) -> Tensor | None:
        """The embeddings (B, H) of the B anchors of the last batch, for checks; None if no loss provides them."""
        return next((loss_fn.anchors for loss_fn in self.losses if loss_fn.anchors is not None), None)

    def negatives(self, batch: int) -> int | None:
        """Return the number of negatives per anchor in the first loss with negatives. None if no loss has negatives.

        Args:
            batch: The number of examples in a batch, over all processes.
        """
        views = [view.name for view in self.views]
        counts = (loss_fn.negatives(batch, views) for loss_fn in self.losses)
        return next((count for count in counts if count is not None), None)

    def loss_state(self) -> dict[str, Tensor]:
        """Return the tensors of the losses that are saved in checkpoints.

        Trained parameters are named `TERM.NAME`. Tensors of `Loss.persistent_state` are named `kept.TERM.NAME`.
        """
        state: dict[str, Tensor] = {}
        for term, part in self.terms.items():
            parameters = part.loss.named_parameters()
            state |= {f"{term}.{name}": parameter for name, parameter in parameters if parameter.requires_grad}
            state |= {f"kept.{term}.{name}": tensor for name, tensor in part.loss.persistent_state().items()}
        return state


Builder = Callable[[Backbone, ModelArguments, Sequence[str]], Method]
Defaults = Callable[[ModelArguments, Sequence[str]], Mapping[str, Any]]


@dataclass(frozen=True)
class Entry:
    """A registered method.

    Args:
        build: The function that builds the method.
        defaults: The function that returns values for options that were left out.
        parts: The dataclasses with the options of the method that not all methods have.
        citation: The paper that introduced the method.
        labels: The columns among `label`, `score` and `class` that the method uses.
        recipes: The learning rate and batch size by tuning, for tunings for which the method does not use the general
            defaults (`RECIPES`).
    """

    build: Builder
    defaults: Defaults
    parts: tuple[type, ...] = ()
    citation: str | None = None
    labels: tuple[str, ...] = ()
    recipes: Mapping[str, Recipe] = field(default_factory=dict)

    @property
    def options(self) -> frozenset[str]:
        """The names of the options in `parts`."""
        return frozenset(field.name for part in self.parts for field in fields(part))


METHODS: dict[str, Entry] = {}


def register(
    name: str,
    *,
    options: type | tuple[type, ...] = (),
    defaults: Defaults | None = None,
    citation: str | None = None,
    labels: Sequence[str] = (),
    recipes: Mapping[str, Recipe] | None = None,
    **fixed: Any,
) -> Callable[[Builder], Builder]:
    """Return a decorator that registers a function as `--method NAME`. The function must return a `Method`.

    The registered function gets three arguments: the loaded encoder, the options of the method, and the columns of the
    training data. For rows with classes, the columns include `positive`.

    Args:
        name: Name of the method.
        options: One or several dataclasses with the options of the method. Declare the options with `option` and
            `flag` of `dcpcse.utils.option_fields`. The default of every option must be None, which means that the
            option was left out. Methods may share a dataclass. A dataclass may have a method `defaults(columns)`. It
            is called after the values of `fixed` and of the argument `defaults` are filled in.
        defaults: A function of the options and the columns that returns values for options that were left out. These
            values take precedence over `fixed`.
        citation: The paper, for the model card.
        labels: The columns that the method uses in addition to the sentences: `label`, `score`, `class` or several of
            them.
        recipes: The default learning rate and batch size by tuning, for tunings for which the method does not use
            `dcpcse.methods.tunings.RECIPES`.
        fixed: Values, by the name of the option, for options that were left out.

    Raises:
        ValueError: If the name of the method is invalid or already registered, if the name of an option in `options`
            already exists, if a name in `fixed` is unknown, if a tuning in `recipes` is unknown, or if an option has a
            default other than None.
    """
    parts = options if isinstance(options, tuple) else (options,)

    def decorator(builder: Builder) -> Builder:
        if name in METHODS and not _is_run_again(builder, METHODS[name].build):
            owner = METHODS[name].build.__module__
            raise ValueError(f"the method name {name!r} is already registered, by {owner}; choose another name")
        if not _NAME.fullmatch(name):
            raise ValueError(f"the method name {name!r} is invalid; use lower-case letters, digits, '.', '_' and '-'")
        for part in parts:
            _require_valid_options(part, replaced=name)
        known = {field.name for part in (ModelArguments, *parts) for field in fields(part)}
        if unknown := sorted(set(fixed) - known):
            hint = did_you_mean(unknown[0], known)
            raise ValueError(f"register({name!r}, {unknown[0]}=...): unknown option{hint and '; ' + hint}")
        if unknown := sorted(set(recipes or {}) - set(TUNINGS)):
            raise ValueError(
                f"register({name!r}, recipes=...): unknown tuning {unknown[0]!r}; use {', '.join(TUNINGS)}"
            )
        METHODS[name] = Entry(builder, _with_fixed(defaults, fixed), parts, citation, tuple(labels), recipes or {})
        return builder

    return decorator


_NAME = re.compile(METHOD_NAME)


def _is_run_again(builder: Builder, registered: Builder) -> bool:
    """Return whether a notebook or an interactive session defines a registered function again."""
    names = [(function.__module__, function.__qualname__) for function in (builder, registered)]
    return names[0] == names[1] and builder.__module__ == "__main__"


def find_method(method: str | Builder | Method) -> tuple[str, Entry]:
    """Return the name and the entry of a method.

    A function need not be registered. The name of the function is then the name of the method. The method has the
    options and the defaults of `dcpcse` (deep prompts, [CLS] pooling) and may use labels. For a built method with a
    name that is not registered, the entry of `dcpcse` is returned.

    Args:
        method: Name of a registered method, a function that builds a method, or a built method.

    Raises:
        UserError: If there is no such method, or if the name of a function is invalid or belongs to another method.
    """
    if isinstance(method, str):
        if method not in METHODS:
            raise invalid_choice("method", method, sorted(METHODS))
        return method, METHODS[method]
    if isinstance(method, Method):
        name = method.model.method
        return name, METHODS.get(name) or METHODS[ModelArguments.method]
    registered = next((name for name, entry in METHODS.items() if entry.build is method), None)
    if registered is not None:
        return registered, METHODS[registered]
    if not inspect.isfunction(method):
        raise UserError(
            f"method is {describe(method)}; give a name, a function (backbone, args, columns) -> Method, or a "
            "dcpcse.methods.Method"
        )
    name = method.__name__
    if not _NAME.fullmatch(name):
        raise UserError(
            f"method: the function {name} gives the method its name, which may have lower-case letters, digits, '.', "
            "'_' and '-'; define it with def and such a name"
        )
    if name in METHODS:
        raise UserError(f"method: the function {name} has the name of a registered method; rename it")
    fixed = {"tuning": "deep", "pooler_type": "cls"}
    parts = METHODS[ModelArguments.method].parts
    return name, Entry(method, _with_fixed(None, fixed), parts, labels=(LABEL, SCORE, CLASS))


def recipe_of(entry: Entry | None, tuning: str | None) -> Recipe:
    """Return the learning rate and the batch size for a method with a given tuning.

    Args:
        entry: The entry of the method. None for a method that is not registered.
        tuning: "deep", "shallow", "lora" or "full". None if it is not known which parameters the method trains. Then
            the recipe for "full" is returned, which has the lowest learning rate.
    """
    recipes = entry.recipes if entry else {}
    return {**RECIPES, **recipes}[tuning or "full"]


def _with_fixed(defaults: Defaults | None, fixed: Mapping[str, Any]) -> Defaults:
    return lambda args, columns: {**fixed, **(defaults(args, columns) if defaults else {})}


def _require_valid_options(part: type, replaced: str) -> None:
    """Raise ValueError if the name of an option in the dataclass already exists or if its default is not None.

    Args:
        replaced: The name of a method that is registered again. The names of its options may be used again.
    """
    others = option_parts(without=replaced)
    taken = {field.name: known.__module__ for known in (ModelArguments, *others) for field in fields(known)}
    for opt in fields(part):
        if part not in others and opt.name in taken:
            raise ValueError(
                f"the option {spell(opt.name)} of {part.__module__} already exists in {taken[opt.name]}; rename it"
            )
        if opt.default is not None:
            raise ValueError(
                f"the option {spell(opt.name)} must be None by default; set its value in register(..., {opt.name}=...)"
            )


def option_parts(without: str | None = None) -> tuple[type, ...]:
    """Return the option dataclasses of all registered methods, each dataclass once.

    Args:
        without: Name of a method. Dataclasses that only this method has are left out.
    """
    entries = [entry for name, entry in METHODS.items() if name != without]
    return tuple(dict.fromkeys(part for entry in entries for part in entry.parts))


def option_fields() -> dict[str, Field]:
    """Return the options of `ModelArguments` and of all registered methods, by name."""
    return {field.name: field for part in (ModelArguments, *option_parts()) for field in fields(part)}


def arguments_class(method: str | Builder | Method = ModelArguments.method) -> type[ModelArguments]:
    """Return the dataclass with the options of a method: the options of all methods, and the method's own options.

    Args:
        method: Name of a registered method, a function that builds a method, or a built method.

    Raises:
        UserError: If there is no such method.
    """
    return _combined(find_method(method)[1].parts)


@functools.cache
def _combined(parts: tuple[type, ...]) -> type[ModelArguments]:
    def check_all(self: ModelArguments) -> None:
        ModelArguments.__post_init__(self)
        for part in parts:
            if "__post_init__" in vars(part):  # a dataclass of a plugin may have one
                part.__post_init__(self)

    return make_dataclass("ModelArguments", (), bases=(ModelArguments, *parts), namespace={"__post_init__": check_all})


def require_own_options(method: str | Builder | Method | None, option_names: Collection[str]) -> type[ModelArguments]:
    """Return `arguments_class(method)`. Raise UserError if one of the given options belongs only to other methods.

    Args:
        method: Name of a method, a function that builds a method, or a built method. None: the default method.
        option_names: Names of options. Options that belong to no method are ignored.

    Raises:
        UserError: If there is no such method, or if an option belongs only to other methods.
    """
    method_name, method_entry = find_method(method or ModelArguments.method)
    for name in sorted(set(option_names) - method_entry.options):
        if owners := [owner for owner, entry in METHODS.items() if name in entry.options]:
            raise UserError(
                f"{spell(name)} is an option of {spell('method')} {' and '.join(owners)} and has no effect on "
                f"{method_name}; leave it out"
            )
    return _combined(method_entry.parts)


def model_arguments(method: str | Builder = ModelArguments.method, **options: Any) -> ModelArguments:
    """Return the options of a method.

    Args:
        method: Name of a registered method, or a function that builds a method.
        options: Options by name. All other options have their default values.

    Raises:
        UserError: If the method is unknown, or if an option belongs to another method or has a value that is not
            allowed.
        TypeError: If no method has an option of this name.
    """
    return require_own_options(method, options)(method=find_method(method)[0], **options)


def fill_defaults(args: ModelArguments, columns: Sequence[str] | None, entry: Entry | None = None) -> ModelArguments:
    """Return the options with a value for every option that was left out.

    Args:
        args: The options.
        columns: The columns of the training data. None: the columns are not known yet. The values are then the
            defaults for single sentences, and contradictions that depend on the columns are not found.
        entry: The entry of the method. None: the entry that is registered as `args.method`.

    Raises:
        UserError: If the method is unknown, if an option has no effect, or if options cannot be combined.
    """
    entry = entry or find_method(args.method)[1]
    known, columns = columns, Columns.of(columns or ["anchor"])
    _require_labels_used(args.method, entry, columns.label)
    filled = _filled(args, entry.defaults(args, columns))
    for part in entry.parts:
        filled = _filled(filled, part.defaults(filled, columns) if hasattr(part, "defaults") else {})
    require_effect(filled, known and columns.kinds)
    _require_fitting_encoder(filled)
    return _filled(filled, _common(filled))


def _require_labels_used(method: str, entry: Entry, label: str | None) -> None:
    """Raise UserError if the data have a label column that the method does not use."""
    if label is None or label in entry.labels:
        return
    users = ", ".join(name for name, entry in sorted(METHODS.items()) if label in entry.labels)
    rename = "rename it if it contains positives" if label == CLASS else "rename it if it contains hard negatives"
    raise UserError(
        f"{spell('method', method)} does not use the column {label} of {spell('train_file')}; remove the column, "
        f"{rename}, or choose a method that uses it ({users})"
    )


def _filled(args: ModelArguments, defaults: Mapping[str, Any]) -> ModelArguments:
    return replace(args, **{name: value for name, value in defaults.items() if getattr(args, name) is None})


def _common(args: ModelArguments) -> dict[str, Any]:
    """Return the values that all methods use for options that were left out."""
    flags = ("mlp_only_train", "org_mlp", "batchnorm", "cls_prompt")
    flags += ("final_period", "denoise", "denoise_at_inference")
    denoising = {"denoise_by": "template"} if args.denoise or args.denoise_at_inference else {}
    in_dev = {"denoise_in_dev": bool(args.denoise_at_inference)}
    crop = {"crop_share": 0.5} if args.positive == "crop" else {}
    return {**TUNINGS[args.tuning].defaults(args), **dict.fromkeys(flags, False), **denoising, **in_dev, **crop}


def _require_fitting_encoder(args: ModelArguments) -> None:
    """Raise UserError if --encoder_dtype, --tuning or --pooler_type contradicts other options."""
    if args.tuning is None:
        raise OptionError(
            "tuning",
            reason=f"is missing, and {spell('method', args.method)} has no default",
            remedy=f"give {' or '.join(TUNINGS)}",
        )
    tuning = TUNINGS[args.tuning]
    if tuning.package:
        require_packages(spell("tuning", args.tuning), (tuning.package,), extra=tuning.package)
    if args.encoder_dtype != "float32" and not tuning.frozen:
        raise UserError(
            f"{spell('encoder_dtype', args.encoder_dtype)} needs a frozen encoder; with "
            f"{spell('tuning', args.tuning)} use {spell('bf16', True)}, which computes in bfloat16 and keeps the "
            "trained weights in float32"
        )
    if tuning.needs_template and args.template is None:
        raise UserError(
            f"{spell('tuning', args.tuning)} trains the input vectors of a template's tokens; give {spell('template')}"
        )
    if args.pooler_type == "mask" and args.template is None:
        raise UserError(f"{spell('pooler_type', 'mask')} needs a template with [MASK]; give {spell('template')}")


def build_method(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build the method `args.method` on a loaded encoder.

    Args:
        backbone: The loaded encoder.
        args: Options of the method.
        columns: The columns of the training data.

    Raises:
        UserError: If the method cannot be built with these options and columns.
    """
    return build_resolved(backbone, fill_defaults(args, columns), columns)


def build_resolved(
    backbone: Backbone, args: ModelArguments, columns: Sequence[str], entry: Entry | None = None
) -> Method:
    """Build a method like `build_method`, from options without missing values.

    Args:
        backbone: The loaded encoder.
        args: Options that `fill_defaults` returned for the same columns and entry.
        columns: The columns of the training data.
        entry: The entry of the method. None: the entry that is registered as `args.method`.
    """
    columns, entry = Columns.of(columns), entry or find_method(args.method)[1]
    method = entry.build(backbone, args, columns)
    require_complete(method, args.method, columns)
    if args.guide and FALSE_NEGATIVES in method.guides:
        raise UserError(
            f"{spell('guide')}: {spell('method', args.method)} already has a guide named "
            f"{FALSE_NEGATIVES}; leave {spell('guide')} out, or rename the guide of the method"
        )
    if args.positive == "crop":
        method = _with_crops(method, args)
    if args.no_blank_in_training:
        method = _without_blanks(method)
    if args.matryoshka_dims:
        _set_widths(method, args)
    if args.init_from:
        options = LoadOptions.from_args(args.cache_dir, args.use_auth_token)

        def load() -> None:
            folder, _ = hub.require_model_folder(args.init_from, options)
            _require_compatible(method.model, folder)
            method.model.load_trained(folder)

        try:
            read_beside_training(args.init_from, load)
        except UserError as error:
            raise UserError(f"{spell('init_from')} {error}") from error  # the message starts with the folder
    for module in (method.model, *method.losses):
        set_frozen_dtype(module, TORCH_DTYPES[args.encoder_dtype])
    return method


def _with_crops(method: Method, args: ModelArguments) -> Method:
    """Return the method with random spans of a text as anchor and positive.

    Raises UserError if the method does not compare a text with itself, or if it changes the text in another way.
    """
    views = {view.name: view for view in method.views}
    for name in ("anchor", "positive"):
        if name not in views or views[name].column != "anchor" or views[name].augmentation:
            raise OptionError(
                "positive",
                "crop",
                f"{spell('method', args.method)} does not compare two unchanged views of a text with these options "
                "and data",
                "leave it out, or choose another method, such as dcpcse or simcse",
            )
        views[name] = replace(views[name], augmentation=Crop(args.crop_share))
    return replace(method, views=tuple(views.values()))


def _set_widths(method: Method, args: ModelArguments) -> None:
    """Let the losses also train the first values of the embeddings (Matryoshka). Raise UserError if no loss can."""
    dims, size = args.matryoshka_dims, method.model.source.hidden_size
    if dims[0] != size:
        raise OptionError(
            "matryoshka_dims", ",".join(map(str, dims)), f"the largest must be the size of the embeddings, {size}"
        )
    losses = [loss_fn for loss_fn in method.losses if loss_fn.has_widths]
    if not losses:
        raise OptionError(
            "matryoshka_dims",
            reason=(
                f"has no effect: no loss of {spell('method', args.method)} can be computed from a part of the "
                "embeddings with these data"
            ),
            remedy="leave it out",
        )
    for loss_fn in losses:
        loss_fn.widths = [*zip(dims, args.matryoshka_weights or [1.0] * len(dims), strict=True)][::-1]


def _without_blanks(method: Method) -> Method:
    """Return the method with views in which the templates have no space before the sentence."""
    if not any(template.lead_matters for template in method.model.templates):
        warn(
            f"{spell('no_blank_in_training', True)} has no effect: the tokenizer of {method.model.source.model_type} "
            "ignores the space before the sentence, or the templates have none"
        )
    return replace(method, views=tuple(replace(view, blank=False) for view in method.views))


def require_complete(method: Any, name: str, columns: Sequence[str]) -> None:
    """Raise UserError if a method cannot be trained on data with these columns.

    Args:
        method: The return value of a builder, possibly of a plugin.
        name: Name of the method, for messages.
        columns: The columns of the training data.
    """
    if not isinstance(method, Method):
        raise UserError(
            f"the builder of {spell('method', name)} returned {type(method).__name__}; return Method(model, views, "
            "terms)"
        )
    if not method.terms or not method.views:
        raise UserError(
            f"the builder of {spell('method', name)} returned no {'views' if method.terms else 'terms'}; return at "
            "least one"
        )
    for term, part in method.terms.items():
        if not isinstance(part, Term):
            raise UserError(
                f"the term {term} of {spell('method', name)} is {type(part).__name__}; use Term(loss, weight)"
            )
    for view in method.views:
        if view.column not in columns:
            raise UserError(
                f"the view {view.name} of {spell('method', name)} uses the column {view.column}, but the columns of "
                f"{spell('train_file')} are {', '.join(columns)}; give a file with that column"
            )


def _require_compatible(model: SentenceEncoder, folder: str | Path) -> None:
    """Raise UserError if the trained weights in a folder do not fit the model."""
    saved, ours = model_folder.read_contents(folder).record, model.record()
    tell_unrecorded(folder, saved)
    texts = [record["template"] and record["template"]["text"] for record in (saved, ours)]
    differences = {
        "the tokenizer": any(tokenizer_differences(saved, ours)),
        "the frozen encoder": not model.encoder.tuned and any(base_differences(saved["base"], model.source)),
        "the template": ours["shallow"] is not None and texts[0] != texts[1],
    }
    for part, differs in differences.items():
        if differs:
            raise UserError(
                f"{part} of {folder} differs from {part} of this training; give a folder in which it is the same"
            )
