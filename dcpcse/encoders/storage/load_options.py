"""How a checkpoint is reached: revision, cache, token."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LoadOptions:
    """How to reach a checkpoint; the names are those of transformers' `from_pretrained`."""

    revision: str | None = None
    cache_dir: str | None = None
    token: str | bool | None = None

    @classmethod
    def from_args(cls, cache_dir: str | None, use_auth_token: bool, model_revision: str = "main") -> "LoadOptions":
        """From the options of the command lines; the main branch is what is taken anyway."""
        revision = None if model_revision == "main" else model_revision
        return cls(revision, cache_dir, True if use_auth_token else None)

    def kwargs(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}
