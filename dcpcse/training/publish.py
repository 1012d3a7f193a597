"""Push model folders to the Hugging Face Hub and pull them.

Only the files of a model folder are transferred, and a push does not overwrite a newer version by default.
"""

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelInfo
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from dcpcse.encoders.identity import trained_digest
from dcpcse.encoders.storage import hub, manifest
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.training.model_card import CARD, digest_in, write_card
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import atomic_folder, require_inside, require_new_folder, write_atomic
from dcpcse.utils.parsing import read_bytes, read_text
from dcpcse.utils.run_files import ENVIRONMENT, METRICS, RUN_FILE

logger = logging.getLogger(__name__)

EXTRA_FILES = (CARD, RUN_FILE, METRICS, ENVIRONMENT)
"""Files that are pushed with the model: the card, and the records from which it is written."""

LAST_PUSH_FILE = "hub.json"
"""A local file with the repository, branch and commit that a folder was last pushed to or pulled from."""

HUB_FILES = frozenset({".gitattributes"})
"""Files that the Hub itself adds to a new repository."""


@dataclass(frozen=True)
class PushTarget:
    """The repository and branch that a folder is pushed to.

    Args:
        repo_id: ORGANISATION/NAME.
        branch: Name of the branch.
        private: True requires a private repository; None creates a public one, or leaves an existing one unchanged.
    """

    repo_id: str
    branch: str = "main"
    private: bool | None = None


def own_files(folder: str | Path) -> list[str]:
    """Return the relative paths of the files to push. Raises UserError if a link leads out of the folder."""
    folder = Path(folder)
    names = {*manifest.file_names(manifest.read_record(folder)), *EXTRA_FILES}
    files = sorted(name for name in names if (folder / name).is_file())
    for name in files:
        require_inside(folder, name)  # a link would publish another file of this machine
    return files


def require_pushable(folder: str | Path, target: PushTarget, *, overwrite: bool = False) -> ModelInfo | None:
    """Return the Hub's description of the branch, or None if it does not exist.

    Args:
        folder: The folder, which need not exist yet.
        target: Where it is pushed to.
        overwrite: Whether the branch may contain anything except the version that this folder was last pushed to or
            pulled from.

    Raises:
        UserError: If the user is not logged in or the Hub cannot be reached, or unless `overwrite` is set, if the
            branch contains anything else.
    """
    if not hub.has_owner(target.repo_id):
        raise UserError(f"{target.repo_id} is not a repository id; give ORGANISATION/NAME")
    api = HfApi()
    with hub.explain_hub_errors(target.repo_id):
        api.whoami()
        try:
            remote = api.model_info(target.repo_id, revision=target.branch, timeout=hub.TIMEOUT)
        except GatedRepoError:
            raise
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return None
    _require_private(remote, target)
    last = Path(folder) / LAST_PUSH_FILE
    earlier = last.is_file() and read_bytes(last) == _last_push(target, remote.sha)
    if _files(remote) and not earlier and not overwrite:
        raise UserError(
            f"{target.repo_id} ({target.branch}) contains something other than an earlier version of {folder}; choose "
            f"another name, inspect it with dcpcse hub pull, or add {spell('overwrite', True)} to replace it"
        )
    return remote


def push_to_hub(folder: str | Path, target: PushTarget, *, message: str | None = None, overwrite: bool = False) -> str:
    """Push a model folder as one commit and return the address of the commit.

    A card is written if the folder has none. Files on the branch that are not in this folder are removed in the same
    commit; the history of the repository keeps them.

    Args:
        folder: The model folder.
        target: Where it is pushed to.
        message: Message of the commit; None for the default.
        overwrite: Also replace a branch that does not contain an earlier version of this folder.
    """
    folder = Path(folder)
    own_files(folder)  # rejects links before a card describes the files behind them
    digest = trained_digest(folder)  # reads every weight
    remote = require_pushable(folder, target, overwrite=overwrite)
    _require_card(folder, digest, target.repo_id)
    names = own_files(folder)
    api = HfApi()
    with hub.explain_hub_errors(target.repo_id):
        if remote is None:
            # Fails if somebody else has just created the same repository or branch.
            api.create_repo(target.repo_id, private=target.private, exist_ok=target.branch != "main")
            if target.branch != "main":
                api.create_branch(target.repo_id, branch=target.branch)
            remote = api.model_info(target.repo_id, revision=target.branch, timeout=hub.TIMEOUT)
            _require_private(remote, target)
        removed = sorted(_files(remote) - set(names))
        for name in removed:
            logger.info("%s: removing %s, which is not in this folder", target.repo_id, name)
        # Not upload_folder: it may split a push into several commits, and only the first would check its parent.
        commit = api.create_commit(
            target.repo_id,
            [
                *(CommitOperationAdd(name, str(folder / name)) for name in names),
                *(CommitOperationDelete(name) for name in removed),
            ],
            commit_message=message or "A model folder of dcpcse",
            revision=target.branch,
            parent_commit=remote.sha,  # the Hub rejects the commit if the branch has changed since then
        )
    write_atomic(folder / LAST_PUSH_FILE, _last_push(target, commit.oid))
    return commit.commit_url


def pull_from_hub(repo_id: str, output: str | Path, options: LoadOptions) -> Path:
    """Copy a model folder, with its card and records, from the Hub to a new local folder, and return this folder.

    The local folder is written atomically.

    Args:
        repo_id: ORGANISATION/NAME.
        output: The new folder.
        options: Revision, cache and token for the Hub.
    """
    output = Path(output)
    require_new_folder(output, "output")
    if not hub.is_hub_id(repo_id):
        raise UserError(f"{repo_id} is not the id of a repository; give ORGANISATION/NAME, not a local path")
    folder = hub.find_model_folder(repo_id, options, EXTRA_FILES)
    if folder is None:
        raise UserError(
            f"{repo_id} on the Hub does not contain an output folder of a training; give another repository"
        )
    trained_digest(folder)  # reads every weight
    with atomic_folder(output) as temporary:
        for name in own_files(folder):
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, temporary / name)
        target = PushTarget(repo_id, options.revision or "main")
        write_atomic(temporary / LAST_PUSH_FILE, _last_push(target, folder.name))
    return output


def remove_old_card(folder: Path) -> None:
    """Remove a card whose weights are about to be replaced, unless dcpcse did not write the card."""
    card = folder / CARD
    if card.is_file() and digest_in(read_text(card)):
        card.unlink()


def _files(remote: ModelInfo) -> set[str]:
    return {file.rfilename for file in remote.siblings or ()} - HUB_FILES


def _require_private(remote: ModelInfo, target: PushTarget) -> None:
    if target.private and not remote.private:
        raise UserError(
            f"{spell('private')}: {target.repo_id} exists already and is public; leave {spell('private')} out, or "
            "change the visibility on its page"
        )


def _require_card(folder: Path, digest: str, repo_id: str) -> None:
    """Write a card if the folder has none. Raises UserError if an existing card was written for other weights."""
    card = folder / CARD
    if not card.is_file():
        write_atomic(card, write_card(folder, repo_id))
        logger.info("the model card is in %s", card)
    elif digest_in(read_text(card)) not in (None, digest):
        raise UserError(
            f"{card} was written for other weights; replace it with dcpcse hub card {folder} "
            f"{spell('overwrite', True)}"
        )


def _last_push(target: PushTarget, commit: str) -> bytes:
    """Return the content of `LAST_PUSH_FILE`."""
    content = {"repo_id": target.repo_id, "branch": target.branch, "commit": commit}
    return f"{json.dumps(content, indent=2)}\n".encode()
