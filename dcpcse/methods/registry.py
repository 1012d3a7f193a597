"""Name → method, and what a method fills in where an option was left out."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dcpcse.data.labels import Columns
from dcpcse.data.views import View
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import set_frozen_dtype
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import hub, model_folder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import METHOD_NAME
from dcpcse.losses import Loss, Term
from dcpcse.methods.arguments import ModelArguments
from dcpcse.utils.errors import UserError, did_you_mean
from dcpcse.utils.option_fields import require_effect
from dcpcse.utils.safetensors_io import TORCH_DTYPES


@dataclass(frozen=True)
class Adversary:
    """Views that are others again, a step uphill in a loss: ε · g / ‖g‖ at each token (ConSERT, section 3.3).

    term: of the loss, a mean over rows, which all views without the step give. epsilon: length of the step behind the
    embedding layer. views: which view is which other one again.
    """

    term: str
    epsilon: float
    views: Mapping[str, str]


@dataclass(frozen=True)
class Method:
    """What is trained and how: a model, the views of an example, and named, weighted losses."""

    model: SentenceEncoder
    views: tuple[View, ...]
    terms: Mapping[str, Term]
    adversary: Adversary | None = None

    @property
    def losses(self) -> list[Loss]:
        """The losses of the terms, in their order."""
        return [term.loss for term in self.terms.values()]

    @property
    def anchors(self) -> Tensor | None:
        """Embeddings (B, H) of the last batch that the guards look at; None where no loss shows some."""
        return next((loss_fn.anchors for loss_fn in self.losses if loss_fn.anchors is not None), None)

    def negatives(self, batch: int) -> int | None:
        """Negatives of an anchor in a batch of all processes, in the first term that has any notion of them."""
        views = [view.name for view in self.views]
        found = (loss_fn.negatives(batch, views) for loss_fn in self.losses)
        return next((number for number in found if number is not None), None)

    def loss_state(self) -> dict[str, Tensor]:
        """What checkpoints hold of the losses: trained parameters by `<term>.<name>`, what is kept by `kept.…`."""
        found: dict[str, Tensor] = {}
        for term, part in self.terms.items():
            parameters = part.loss.named_parameters()
            found |= {f"{term}.{name}": parameter for name, parameter in parameters if parameter.requires_grad}
            found |= {f"kept.{term}.{name}": tensor for name, tensor in part.loss.persistent_state().items()}
        return found


Builder = Callable[[Backbone, ModelArguments, Sequence[str]], Method]
Defaults = Callable[[ModelArguments, Sequence[str]], Mapping[str, Any]]


@dataclass(frozen=True)
class Entry:
    """A registered method.

    build: makes it. defaults: what it takes for options that are left out. parts: dataclasses of its own options.
    citation: the paper that it is from. labels: which of the columns `label` and `score` it reads.
    """

    build: Builder
    defaults: Defaults
    parts: tuple[type, ...] = ()
    citation: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def options(self) -> frozenset[str]:
        """Names of its own options."""
        return frozenset(field.name for part in self.parts for field in fields(part))


METHODS: dict[str, Entry] = {}


def register(
    name: str,
    *,
    options: type | tuple[type, ...] = (),
    defaults: Defaults | None = None,
    citation: str | None = None,
    labels: Sequence[str] = (),
    **fixed: Any,
) -> Callable[[Builder], Builder]:
    """Make a builder known as `--method NAME`; ValueError for a name, or one of its options, that is taken.

    options: dataclasses of options that not all methods read, made by `dcpcse.utils.option_fields.option` and `flag`;
    methods may share one. Each is None by default, which means that it was left out. fixed: values of options that are
    left out;
    defaults: those that hang on other options and on the data's columns, taken before the fixed ones. A dataclass may
    have a method `defaults(columns)` too, for what all methods that share it take: it sees the method's filled in.
    labels: what it reads in the data besides sentences: the column `label`, the column `score`, or either.
    """
    parts = options if isinstance(options, tuple) else (options,)

    def remember(builder: Builder) -> Builder:
        if name in METHODS:
            raise ValueError(f"the method name {name!r} is already registered, by {METHODS[name].build.__module__}")
        if not _NAME.fullmatch(name):
            raise ValueError(f"the method name {name!r} is none; use small letters, digits, . _ and -")
        for part in parts:
            _require_new(part)
        known = {field.name for part in (ModelArguments, *parts) for field in fields(part)}
        if unknown := sorted(set(fixed) - known):
            hint = did_you_mean(unknown[0], known)
            raise ValueError(
                f"register({name!r}, {unknown[0]}=...): there is no such option{hint and '; ' + hint.strip()}"
            )
        METHODS[name] = Entry(builder, _with_fixed(defaults, fixed), parts, citation, tuple(labels))
        return builder

    return remember


_NAME = re.compile(METHOD_NAME)


def _with_fixed(defaults: Defaults | None, fixed: Mapping[str, Any]) -> Defaults:
    return lambda args, columns: {**fixed, **(defaults(args, columns) if defaults else {})}


def _require_new(part: type) -> None:
    """ValueError for options that are not ours to have: of a name that is taken, or with a value of their own."""
    taken = {field.name: known.__module__ for known in (ModelArguments, *option_parts()) for field in fields(known)}
    for field in fields(part):
        if part not in option_parts() and field.name in taken:
            raise ValueError(f"the option --{field.name} of {part.__module__} is one of {taken[field.name]} already")
        if field.default is not None:
            raise ValueError(f"the option --{field.name} must be None by default; give register({field.name}=...)")


def option_parts() -> tuple[type, ...]:
    """The dataclasses of own options of all registered methods."""
    return tuple(dict.fromkeys(part for entry in METHODS.values() for part in entry.parts))


def arguments_class() -> type[ModelArguments]:
    """ModelArguments with the own options of all methods that are registered now."""
    return _joined(option_parts())


@functools.cache
def _joined(parts: tuple[type, ...]) -> type[ModelArguments]:
    def check(self: ModelArguments) -> None:
        for part in (ModelArguments, *parts):
            getattr(part, "__post_init__", lambda self: None)(self)

    return make_dataclass("ModelArguments", (), bases=(ModelArguments, *parts), namespace={"__post_init__": check})


def model_arguments(**given: Any) -> ModelArguments:
    """Options of a method by name, its own among them; UserError for values that cannot be."""
    return arguments_class()(**given)


def fill_defaults(args: ModelArguments, columns: Sequence[str]) -> ModelArguments:
    """The options with everything filled in that was left out, for data with these columns.

    UserError for an unknown method, for options that have no effect together, and for what cannot be combined.
    """
    if args.method not in METHODS:
        hint = did_you_mean(args.method.lower(), METHODS)
        raise UserError(f"--method {args.method}: {hint}choose one of {', '.join(sorted(METHODS))}")
    entry = METHODS[args.method]
    for name in sorted(set().union(*(other.options for other in METHODS.values())) - entry.options):
        if getattr(args, name) is not None:
            owners = " and ".join(method for method, other in METHODS.items() if name in other.options)
            raise UserError(f"--{name} is of --method {owners} and has no effect on {args.method}; leave it out")
    _require_labels_read(args.method, Columns.of(columns).label)
    filled = _filled(args, entry.defaults(args, columns))
    for part in entry.parts:
        filled = _filled(filled, part.defaults(filled, columns) if hasattr(part, "defaults") else {})
    require_effect(filled)
    _require_fitting_encoder(filled)
    return _filled(filled, _common(filled))


def _require_labels_read(method: str, label: str | None) -> None:
    """UserError for labels in the data that the method would not look at."""
    if label is None or label in METHODS[method].labels:
        return
    readers = ", ".join(name for name, entry in sorted(METHODS.items()) if label in entry.labels)
    raise UserError(
        f"--method {method} does not read the column {label} of the training file; leave the column out, or name it "
        "otherwise if it holds hard negatives" + (f"; methods that read a {label}: {readers}" if readers else "")
    )


def _filled(args: ModelArguments, defaults: Mapping[str, Any]) -> ModelArguments:
    return replace(args, **{name: value for name, value in defaults.items() if getattr(args, name) is None})


def _common(args: ModelArguments) -> dict[str, Any]:
    """What every method takes for options that are still open."""
    deep = {"pre_seq_len": 10, "prefix_projection": False} if args.tuning == "deep" else {}
    inner = {"prefix_hidden_size": 512} if args.prefix_projection else {}
    flags = ("mlp_only_train", "org_mlp", "batchnorm", "cls_prompt")
    flags += ("final_period", "denoise", "denoise_at_inference")
    ways = {"denoise_by": "template"} if args.denoise or args.denoise_at_inference else {}
    in_dev = {"denoise_in_dev": bool(args.denoise_at_inference)}
    return {**deep, **inner, **dict.fromkeys(flags, False), **ways, **in_dev}


def _require_fitting_encoder(args: ModelArguments) -> None:
    """UserError for a representation, or a type of weights, that the encoder cannot have as it is trained."""
    if args.encoder_dtype != "float32" and args.tuning == "full":
        raise UserError(
            f"--encoder_dtype {args.encoder_dtype} is of frozen encoders; with --tuning full, --bf16 computes in "
            "bfloat16 and keeps the trained weights in float32"
        )
    if args.tuning == "shallow" and args.template is None:
        raise UserError("--tuning shallow trains input vectors in the places of a template's tokens; give --template")
    if args.pooler_type == "mask" and args.template is None:
        raise UserError("--pooler_type mask is the [MASK] of a template; give --template")


DEFAULTS = {field.name: field.default for field in fields(ModelArguments)}


def build_method(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build the method that `args.method` names on a loaded encoder, for data with these columns."""
    return build_resolved(backbone, fill_defaults(args, columns), columns)


def build_resolved(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """As `build_method`, with options that `fill_defaults` has returned for these columns."""
    columns = Columns.of(columns)
    method = METHODS[args.method].build(backbone, args, columns)
    _require_whole(method, args.method, columns)
    if args.init_from:
        options = LoadOptions.from_args(args.cache_dir, args.use_auth_token)
        try:
            folder, _ = hub.require_model_folder(args.init_from, options)
            _require_begins_alike(method.model, folder)
            method.model.load_trained(folder)
        except UserError as error:
            raise UserError(f"--init_from {args.init_from}: {error}") from error
    for module in (method.model, *method.losses):
        set_frozen_dtype(module, TORCH_DTYPES[args.encoder_dtype])
    return method


def _require_whole(method: Any, name: str, columns: Sequence[str]) -> None:
    """UserError for what a builder gave that cannot be trained: it may be a stranger's."""
    if not isinstance(method, Method):
        raise UserError(
            f"the builder of --method {name} gave {type(method).__name__}; return Method(model, views, terms)"
        )
    if not method.terms or not method.views:
        raise UserError(
            f"the builder of --method {name} gave no {'views' if method.terms else 'terms'}; give one at least"
        )
    for term, part in method.terms.items():
        if not isinstance(part, Term):
            raise UserError(f"the term {term} of --method {name} is {type(part).__name__}; write Term(loss, weight)")
    for view in method.views:
        if view.column not in columns:
            raise UserError(
                f"the view {view.name} of --method {name} reads the column {view.column}; the training file has "
                f"{', '.join(columns)}"
            )


def _require_begins_alike(model: SentenceEncoder, folder: str | Path) -> None:
    """UserError for the folder of a model whose trained numbers mean something else."""
    saved, ours = model_folder.read_contents(folder).record, model.record()
    texts = [record["template"] and record["template"]["text"] for record in (saved, ours)]
    differing = {
        "the vocabulary": saved["vocabulary"] != ours["vocabulary"],
        "the frozen encoder": not model.encoder.tuned and saved["base"]["fingerprint"] != ours["base"]["fingerprint"],
        "the template": ours["shallow"] is not None and texts[0] != texts[1],
    }
    for what, differs in differing.items():
        if differs:
            raise UserError(f"{what} of {folder} is another one; give the folder of a model built alike")
