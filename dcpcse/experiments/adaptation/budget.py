"""The time that an adaptation may take, and what of it is left."""

import time
from dataclasses import dataclass, field

from dcpcse.utils.errors import OptionError


@dataclass
class Budget:
    """A number of seconds, of which some are spent already, and some are reserved for the end.

    spent: seconds of an earlier call that was interrupted. reserved: seconds to measure and write the result.
    """

    seconds: float
    spent: float = 0.0
    reserved: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Seconds that are spent, of all calls."""
        return self.spent + time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds that are left for trials."""
        return self.seconds - self.reserved - self.elapsed


def require_minutes(minutes: float) -> None:
    """Raise UserError unless a number of minutes is above 0."""
    if not minutes > 0:
        raise OptionError("minutes", minutes, "must be above 0")
