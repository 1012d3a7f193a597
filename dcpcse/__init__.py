"""DCPCSE: sentence embeddings by deep continuous prompts on frozen encoders."""

from typing import TYPE_CHECKING, Any

from .errors import UserError

if TYPE_CHECKING:
    from .models import SentenceEncoder

__version__ = "0.1.0"
__all__ = ["UserError", "__version__", "load"]


def load(folder: str, base: str | None = None, *, device: Any = None) -> "SentenceEncoder":
    """Load an output folder of train.py, ready to `encode`; nothing has to be repeated.

    base: where the frozen encoder is now, if not where it was in training (checked by fingerprint).
    device: default cuda if there is one. Raises UserError for a wrong base or a damaged folder.
    """
    from .models import SentenceEncoder

    return SentenceEncoder.load(folder, base, device=device)
