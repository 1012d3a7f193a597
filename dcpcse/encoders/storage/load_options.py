"""Options for loading a checkpoint from the Hugging Face Hub: revision, cache and token."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading a checkpoint, named as in transformers' `from_pretrained`."""

    revision: str | None = None
    cache_dir: str | None = None
    token: str | bool | None = None

    @classmethod
    def from_args(cls, cache_dir: str | None, use_auth_token: bool, model_revision: str = "main") -> "LoadOptions":
        """Return the options given on a command line; the revision `main` is the default and counts as not given."""
        revision = None if model_revision == "main" else model_revision
        return cls(revision, cache_dir, True if use_auth_token else None)

    def kwargs(self) -> dict[str, Any]:
        """Return the options that are set, as keyword arguments."""
        return {key: value for key, value in asdict(self).items() if value is not None}
