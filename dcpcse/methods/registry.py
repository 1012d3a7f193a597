"""Name → method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..arguments import ModelArguments
from ..backbones import Backbone
from ..errors import UserError
from ..models import SentenceEncoder
from ..objectives import Term
from ..views import View


@dataclass(frozen=True)
class Method:
    """What is trained and how: a model, the views of an example, and named, weighted objectives."""

    model: SentenceEncoder
    views: tuple[View, ...]
    terms: Mapping[str, Term]

    def trained_objectives(self) -> dict[str, Tensor]:
        """Parameters that the objectives own and train, by `<term>.<name>`."""
        return {
            f"{term}.{name}": parameter
            for term, part in self.terms.items()
            for name, parameter in part.objective.named_parameters()
            if parameter.requires_grad
        }


Builder = Callable[[Backbone, ModelArguments, Sequence[str]], Method]
METHODS: dict[str, Builder] = {}


def register(name: str) -> Callable[[Builder], Builder]:
    """Make a builder known as `--method NAME`; ValueError if the name is taken."""

    def remember(builder: Builder) -> Builder:
        if name in METHODS:
            raise ValueError(f"the method name {name!r} is already registered, by {METHODS[name].__module__}")
        METHODS[name] = builder
        return builder

    return remember


def build_method(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build the method that `args.method` names on a frozen encoder, for data with these columns."""
    if args.method not in METHODS:
        raise UserError(f"unknown method {args.method!r}; choose one of {sorted(METHODS)}")
    return METHODS[args.method](backbone, args, columns)
