"""Methods: each file registers one, as a value on the axes trained × views × representation × objectives."""

from .conpvp import conpvp
from .d2cse import d2cse
from .dcpcse import dcpcse
from .diffcse import diffcse
from .promptbert import promptbert
from .registry import METHODS, Method, build_method, register, settle
from .scpcse import scpcse
from .simcse import simcse

__all__ = [
    "METHODS",
    "Method",
    "build_method",
    "conpvp",
    "d2cse",
    "dcpcse",
    "diffcse",
    "promptbert",
    "register",
    "scpcse",
    "settle",
    "simcse",
]
