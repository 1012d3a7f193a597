"""What training watches: steps that are not finite, gradients that do not arrive, collapse, frozen weights."""

from .finite import NON_FINITE, Locate
from .watch import Guards

__all__ = ["NON_FINITE", "Guards", "Locate"]
