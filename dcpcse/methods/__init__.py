"""Training methods. A method defines the trained parameters, the views, the representation and the losses.

A view selects a column of the data, a template and an augmentation. Typical views are `anchor` and `positive`.

Each method has a module that registers it, and importing this package imports all methods. `dcpcse.methods.plugins`
loads the methods of other packages. The code of a custom method needs only the names that `dcpcse.methods` and
`dcpcse.losses` export.
"""

import importlib
import pkgutil

from dcpcse.data.views import Augmentation, View, sentence_pair_views
from dcpcse.methods.arguments import refuse_contrastive_options
from dcpcse.methods.building import contrastive, sentence_encoder
from dcpcse.methods.registry import (
    METHODS,
    Adversary,
    Method,
    ParameterGroup,
    arguments_class,
    build_method,
    build_resolved,
    fill_defaults,
    model_arguments,
    option_parts,
    register,
)
from dcpcse.methods.shared.prototypes import PrototypeOptions, prototypes_of, with_prototypes
from dcpcse.methods.tunings import Recipe
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.option_fields import Need, Options, flag, needs_given, needs_value, option, require

__all__ = [
    "METHODS",
    "Adversary",
    "Augmentation",
    "Method",
    "Need",
    "OptionError",
    "Options",
    "ParameterGroup",
    "PrototypeOptions",
    "Recipe",
    "UserError",
    "View",
    "arguments_class",
    "build_method",
    "build_resolved",
    "contrastive",
    "fill_defaults",
    "flag",
    "model_arguments",
    "needs_given",
    "needs_value",
    "option",
    "option_parts",
    "prototypes_of",
    "refuse_contrastive_options",
    "register",
    "require",
    "sentence_encoder",
    "sentence_pair_views",
    "spell",
    "with_prototypes",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_module.name}", __name__)
