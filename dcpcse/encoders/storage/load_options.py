"""Options for loading a checkpoint from the Hugging Face Hub: revision, cache and token."""

import os
from dataclasses import asdict, dataclass
from typing import Any

from dcpcse.utils.errors import UserError


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading a checkpoint, named as in transformers' `from_pretrained`.

    Args:
        revision: Branch, tag or commit on the Hub. None: the default branch.
        cache_dir: Folder for downloads. None: the cache of the Hub.
        token: Token for the Hub. True: the stored token.
    """

    revision: str | None = None
    cache_dir: str | None = None
    token: str | bool | None = None

    def __post_init__(self) -> None:
        for name, kinds in {"revision": str, "cache_dir": str | os.PathLike, "token": str | bool}.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                raise UserError(f"{name} of type {type(value).__name__}: must be a string")
        if self.cache_dir is not None:
            object.__setattr__(self, "cache_dir", os.path.expanduser(self.cache_dir))

    @classmethod
    def from_args(cls, cache_dir: str | None, use_auth_token: bool, model_revision: str = "main") -> "LoadOptions":
        """Return the options given on a command line.

        Args:
            cache_dir: Value of --cache_dir.
            use_auth_token: Value of --use_auth_token.
            model_revision: Value of --model_revision. The default `main` means that the option was not given.
        """
        revision = None if model_revision == "main" else model_revision
        return cls(revision, cache_dir, True if use_auth_token else None)

    def kwargs(self) -> dict[str, Any]:
        """Return the options that are not None, as keyword arguments for `from_pretrained`."""
        return {key: value for key, value in asdict(self).items() if value is not None}
