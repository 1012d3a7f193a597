"""Model folders on the Hugging Face hub: found by their `dcpcse.json`, and only their own files downloaded."""

import contextlib
import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import MODEL_FOLDER_FILE, file_names, read_record
from dcpcse.utils.errors import UserError, first_line

logger = logging.getLogger(__name__)

TIMEOUT = 20
"""Seconds to wait for the hub's answer about a repository."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class UnreachableError(UserError):
    """The hub does not answer, so that nothing is known of a repository."""


@dataclass(frozen=True)
class Remote:
    """A repository at one of its commits."""

    commit: str
    files: frozenset[str]
    private: bool = False


def resolve_model_folder(name: str, options: LoadOptions) -> tuple[str, LoadOptions]:
    """The local copy of a model folder on the hub, and how its base is reached; any other name stays as it is.

    A revision is that of the folder; the folder knows the one of its base. Where the hub is out of reach, and its
    cache holds an encoder of that name, it stays, which is said; UserError where the cache has nothing of it.
    """
    try:
        found = find_model_folder(name, options)
    except UnreachableError as error:
        _require_encoder_in_cache(name, options, error, "an output folder of train.py, a Hugging Face folder")
        logger.info("%s; %s is taken for a plain encoder, not for an output folder of train.py", error, name)
        return name, options
    return (name, options) if found is None else (str(found), replace(options, revision=None))


def _require_encoder_in_cache(name: str, options: LoadOptions, error: UnreachableError, instead: str) -> None:
    """UserError for a name that the hub's cache does not hold: transformers would ask again for half a minute."""
    if not isinstance(_in_cache(name, "config.json", options), str):
        raise UserError(
            f"{name} is not a folder here, and {error}; give {instead}, or a hub id that was downloaded before"
        ) from None  # the answer of a library below says nothing more


def require_known(name: str, options: LoadOptions) -> None:
    """UserError at once for an encoder that neither the hub nor its cache knows; transformers would try for long."""
    if not is_hub_id(name):
        return
    try:
        with explain_hub_errors(name):
            fetch_remote(name, options)
    except UnreachableError as error:
        _require_encoder_in_cache(name, options, error, "a Hugging Face folder")


def require_model_folder(name: str | Path, options: LoadOptions | None) -> tuple[str | Path, LoadOptions | None]:
    """As `resolve_model_folder`, where the name must mean a model folder; UserError for a repository that is none."""
    if not is_hub_id(name):
        return name, options
    options = options or LoadOptions()
    try:
        found = find_model_folder(str(name), options)
    except UnreachableError as error:
        raise UnreachableError(f"{name} is not a folder, and {error}; give the output folder of train.py") from None
    except UserError as error:
        raise error from None
    if found is None:
        raise UserError(
            f"{name} on the hub has no {MODEL_FOLDER_FILE}: it is no output folder of train.py; evaluation.py and "
            "encode take it as the plain encoder that it may be"
        )
    return found, replace(options, revision=None)


def has_form_of_id(name: str) -> bool:
    """Whether a name can be a repository's that somebody pushes to: with its owner."""
    return "/" in name and bool(_ID.fullmatch(name))


def is_hub_id(name: str | Path) -> bool:
    """Whether a name can only mean a repository: it has the form of one, and there is no such place here."""
    return isinstance(name, str) and bool(_ID.fullmatch(name)) and not Path(name).exists()


def find_model_folder(name: str, options: LoadOptions, more: Collection[str] = ()) -> Path | None:
    """The local copy of the model folder on the hub that a name means; None for a place here or another repository.

    Of its files only those are downloaded that a model folder has, and `more`. UserError for a repository or a
    revision that there is not, UnreachableError where neither the hub nor its cache can tell.
    """
    if not is_hub_id(name):
        return None
    with explain_hub_errors(name):
        try:
            remote = fetch_remote(name, options)
        except UnreachableError:
            return _cached(name, options)
        if MODEL_FOLDER_FILE not in remote.files:
            return None
        return _download(name, remote, options, more)


def fetch_remote(name: str, options: LoadOptions) -> Remote:
    """What a repository holds, at the newest commit of its revision."""
    from huggingface_hub import HfApi

    with explain_hub_errors(name):
        info = HfApi(token=options.token).model_info(name, revision=options.revision, timeout=TIMEOUT)
    return Remote(info.sha, frozenset(file.rfilename for file in info.siblings or ()), bool(info.private))


def _download(name: str, remote: Remote, options: LoadOptions, more: Collection[str]) -> Path:
    from huggingface_hub import hf_hub_download

    # By the branch's name: the cache then knows, without a network, at which commit it is.
    folder = Path(hf_hub_download(name, MODEL_FOLDER_FILE, **options.kwargs())).parent
    at_commit = {**options.kwargs(), "revision": folder.name}
    if folder.name != remote.commit:  # pushed to in this moment
        remote = fetch_remote(name, replace(options, revision=folder.name))
    wanted = {*file_names(read_record(folder)), *more}
    for file in sorted(wanted & remote.files):
        hf_hub_download(name, file, **at_commit)
    return folder


def _cached(name: str, options: LoadOptions) -> Path | None:
    """The copy in the hub's cache; None where it knows that the repository is no model folder."""
    found = _in_cache(name, MODEL_FOLDER_FILE, options)
    if found is None:
        raise UnreachableError(f"the hub is out of reach, and its cache here has no {name}")
    return Path(found).parent if isinstance(found, str) else None


def _in_cache(name: str, file: str, options: LoadOptions) -> Any:
    """The path of a file in the hub's cache; None if nothing is known of it, another object if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    return try_to_load_from_cache(name, file, cache_dir=options.cache_dir, revision=options.revision or "main")


@contextlib.contextmanager
def explain_hub_errors(name: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into one line."""
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    except errors.GatedRepoError as error:
        raise UserError(f"{name} on the hub is gated; ask its owner for access, and log in (hf auth login)") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{name} is not a folder, and the hub has no model of that name, or a private one: hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{name} on the hub has no such branch, tag or commit ({first_line(error)})") from error
    except errors.LocalTokenNotFoundError as error:
        raise UserError(f"{name}: the hub wants to know who you are; hf auth login, or set HF_TOKEN") from error
    except errors.HfHubHTTPError as error:
        if error.response.status_code >= 500:
            raise UnreachableError(f"the hub fails on {name} ({first_line(error)})") from error
        raise UserError(f"{name}: the hub refused ({first_line(error)})") from error
    except (errors.OfflineModeIsEnabled, errors.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise UnreachableError(f"the hub is out of reach for {name} ({first_line(error)})") from error
    except errors.HFValidationError as error:
        raise UserError(f"{name} is no name of a repository on the hub: ORGANISATION/NAME") from error
