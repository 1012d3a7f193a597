"""What training watches: steps that are not finite, gradients that do not arrive, collapse, frozen weights."""

from dcpcse.training.guards.finite import NON_FINITE, Locate
from dcpcse.training.guards.guards import Guards

__all__ = ["NON_FINITE", "Guards", "Locate"]
