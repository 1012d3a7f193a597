"""Find model folders on the Hugging Face Hub, and download only the files that belong to them."""

import contextlib
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo, errors, hf_hub_download, snapshot_download

from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import (
    CONFIG,
    MODEL_FOLDER_FILE,
    MODULES,
    PEFT_CONFIG,
    TOKENIZER_FILES,
    file_names,
    read_record,
)
from dcpcse.utils.arguments import path
from dcpcse.utils.errors import UserError, first_line

logger = logging.getLogger(__name__)

TIMEOUT = 20
"""Seconds to wait for the Hub's answer about a repository."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class UnreachableError(UserError):
    """Raised if the Hub cannot be reached and its cache does not contain the requested files."""


def is_hub_id(name: str | Path) -> bool:
    """Return whether a name is a repository id: it has the form of an id and is not an existing local path."""
    return isinstance(name, str) and bool(_ID.fullmatch(name)) and not Path(name).exists()


def has_owner(name: str) -> bool:
    """Return whether a name has the form ORGANISATION/NAME. Pushing to the Hub requires this form."""
    return "/" in name and bool(_ID.fullmatch(name))


def resolve_model_folder(name: str, options: LoadOptions) -> tuple[str, LoadOptions]:
    """Return the local copy of a model folder on the Hub, and the options for loading the base of the folder.

    The returned options have no revision, since the folder records the revision of its base. A name that does not
    belong to a model folder is returned unchanged. If the Hub cannot be reached and the cache contains a plain encoder
    of this name, the name is also returned unchanged, and a message is logged.

    Args:
        name: Hub id, or any other name.
        options: Revision of the folder, cache and token.

    Raises:
        UserError: If the Hub cannot be reached and the cache contains neither a model folder nor an encoder of this
            name.
    """
    try:
        folder = find_model_folder(name, options)
    except UnreachableError:
        _require_cached_encoder(name, options)
        logger.info("the Hub cannot be reached; using the encoder %s from its cache instead of an output folder", name)
        return name, options
    return (name, options) if folder is None else (str(folder), replace(options, revision=None))


def require_model_folder(name: str | Path, options: LoadOptions | None) -> tuple[str | Path, LoadOptions | None]:
    """Do the same as `resolve_model_folder`, but raise UserError if the repository does not contain a model folder.

    Args:
        name: As in `resolve_model_folder`.
        options: As in `resolve_model_folder`. None: the default options.
    """
    name = path("folder", name)
    if not is_hub_id(name):
        return name, options
    options = options or LoadOptions()
    folder = find_model_folder(str(name), options)
    if folder is None:
        raise UserError(
            f"{name} on the Hub has no {MODEL_FOLDER_FILE}, so it is not an output folder of a training; dcpcse "
            "evaluate and encode accept plain encoders"
        )
    return folder, replace(options, revision=None)


def require_known(name: str, options: LoadOptions) -> None:
    """Raise UserError if neither the Hub nor the cache contains an encoder of this name.

    Without this check, transformers would try again for half a minute.

    Args:
        name: Hub id.
        options: Revision, cache and token.
    """
    if is_hub_id(name):
        try:
            model_info(name, options)
        except UnreachableError:
            _require_cached_encoder(name, options)


def _require_cached_encoder(name: str, options: LoadOptions) -> None:
    with explain_hub_errors(name):
        hf_hub_download(name, CONFIG, local_files_only=True, **options.kwargs())


def find_model_folder(name: str, options: LoadOptions, more: Collection[str] = ()) -> Path | None:
    """Return the local copy of a model folder on the Hub, or None for a local path or a different repository.

    Only the files of the model and the files in `more` are downloaded. If the Hub cannot be reached, the copy in the
    cache is returned.

    Args:
        name: Hub id or path.
        options: Revision, cache and token.
        more: Names of files to download in addition to the files of the model.

    Raises:
        UserError: If the repository or revision is unknown.
        UnreachableError: If the Hub cannot be reached and the cache does not contain the folder.
    """
    if not is_hub_id(name) or ((files := _files(name, options)) is not None and MODEL_FOLDER_FILE not in files):
        return None
    offline = files is None
    with explain_hub_errors(name):
        # Downloaded by branch name, so that the cache records the branch's commit for later use without a network.
        record = hf_hub_download(name, MODEL_FOLDER_FILE, local_files_only=offline, **options.kwargs())
        folder = Path(record).parent
        commit = replace(options, revision=folder.name)
        wanted = [*file_names(read_record(folder)), *more]
        snapshot_download(name, allow_patterns=wanted, local_files_only=offline, **commit.kwargs())
    return folder


def download_checkpoint(name: str, weights: Sequence[str], options: LoadOptions) -> Path:
    """Return the local copy of an encoder on the Hub, or of a checkpoint in a paper's format (docs/formats.md).

    Only the configuration, the tokenizer and one file of weights are downloaded. If the Hub cannot be reached, the
    copy in the cache is returned.

    Args:
        name: Hub id.
        weights: Possible names of the file of weights. The first file that exists is downloaded.
        options: Revision, cache and token.

    Raises:
        UserError: If the repository or revision is unknown.
    """
    files = _files(name, options)
    present = [weight for weight in weights if files is not None and weight in files]
    return _download(name, [CONFIG, PEFT_CONFIG, MODULES, *TOKENIZER_FILES, *present[:1]], options, files is None)


def download_files(name: str, files: Sequence[str], options: LoadOptions) -> Path:
    """Download some files of a repository on the Hub, and return the folder that contains them.

    If the Hub cannot be reached, the copy in the cache is returned.

    Args:
        name: Hub id.
        files: Names of the files.
        options: Revision, cache and token.
    """
    return _download(name, list(files), options, _files(name, options) is None)


def _download(name: str, patterns: list[str], options: LoadOptions, offline: bool) -> Path:
    with explain_hub_errors(name):
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=offline, **options.kwargs()))


def download_first(name: str, files: Collection[str], options: LoadOptions) -> Path | None:
    """Download one file of a repository on the Hub, and return its local path.

    Returns None if the repository contains none of the files. If the Hub cannot be reached, the cached copy is used.

    Args:
        name: Hub id.
        files: Possible names of the file. The first name that exists is downloaded.
        options: Revision, cache and token.
    """
    available = _files(name, options)
    for file in files:
        if available is None or file in available:
            with contextlib.suppress(errors.LocalEntryNotFoundError):
                return Path(hf_hub_download(name, file, local_files_only=available is None, **options.kwargs()))
    return None


def _files(name: str, options: LoadOptions) -> set[str] | None:
    """Return the names of the files of a repository. None if the Hub cannot be reached."""
    try:
        return {file.rfilename for file in model_info(name, options).siblings or ()}
    except UnreachableError:
        return None


def model_info(name: str, options: LoadOptions) -> ModelInfo:
    """Return the Hub's description of a repository at a revision: commit, files and visibility.

    Args:
        name: Hub id.
        options: Revision and token.
    """
    with explain_hub_errors(name):
        return HfApi(token=options.token).model_info(name, revision=options.revision, timeout=TIMEOUT)


@contextlib.contextmanager
def explain_hub_errors(name: str) -> Iterator[None]:
    """Convert exceptions of huggingface_hub to a UserError of one line."""
    try:
        yield
    except UserError:
        raise
    except errors.GatedRepoError:
        raise UserError(f"{name} on the Hub is gated; request access on its page, and run hf auth login") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{name} is not a folder, and the Hub has no such model, or it is private; check the name, or run hf auth "
            "login"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name} on the Hub has no such branch, tag or commit; check the revision") from None
    except errors.LocalTokenNotFoundError:
        raise UserError(f"{name}: the Hub requires a login; run hf auth login, or set HF_TOKEN") from None
    except errors.LocalEntryNotFoundError:
        raise UnreachableError(
            f"{name} is not a folder, the Hub cannot be reached, and its cache does not contain {name}; give a "
            "folder, or a Hub id that was downloaded before"
        ) from None
    except errors.HfHubHTTPError as error:
        reason = error.server_message or first_line(error)
        if error.response.status_code >= 500:
            raise UnreachableError(f"{name}: the Hub fails ({reason}); try again later") from None
        raise UserError(f"{name}: the Hub rejected the request ({reason}); check the name and your token") from None
    except (errors.OfflineModeIsEnabled, errors.HTTPError) as error:
        raise UnreachableError(
            f"{name}: the Hub cannot be reached ({first_line(error)}); check the connection, or give a local folder"
        ) from None
    except ValueError as error:  # raised for an invalid repository name or invalid card metadata
        raise UserError(f"{name}: {' '.join(str(error).split())}") from None
