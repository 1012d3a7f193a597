"""Methods: each file registers one, as a value on the axes trained × views × representation × objectives."""

from .dcpcse import dcpcse
from .registry import METHODS, Method, build_method, register

__all__ = ["METHODS", "Method", "build_method", "dcpcse", "register"]
