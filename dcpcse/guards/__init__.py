"""What training watches: steps that are not finite."""

from .finite import NON_FINITE, Locate
from .watch import Guards

__all__ = ["NON_FINITE", "Guards", "Locate"]
