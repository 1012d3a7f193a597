"""Model folders to the hub and back: only a folder's own files, and never over what is not its earlier version."""

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpcse.encoders.fingerprint import trained_digest
from dcpcse.encoders.storage import hub, manifest
from dcpcse.encoders.storage.hub import Remote
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.training.model_card import CARD, digest_in, write_card
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import atomic_folder, require_inside, require_writable, write_atomic
from dcpcse.utils.parsing import parse_json
from dcpcse.utils.run_files import ENVIRONMENT, METRICS, RUN_FILE

logger = logging.getLogger(__name__)

EXTRA_FILES = (CARD, RUN_FILE, METRICS, ENVIRONMENT)
"""What a folder has on the hub besides its model: the card, and the records that it is written from."""

LAST_PUSH_FILE = "hub.json"
"""In a folder: the repository, branch and commit that it was last pushed to or pulled from. It is not pushed."""

HUB_FILES = frozenset({".gitattributes"})
"""What the hub itself puts into a new repository."""


@dataclass(frozen=True)
class PushTarget:
    """Where a folder is pushed to. private: None leaves a repository as it is; a new one is then public."""

    repo_id: str
    branch: str = "main"
    private: bool | None = None
    token: str | bool | None = None

    @property
    def options(self) -> LoadOptions:
        return LoadOptions(revision=self.branch, token=self.token)


def own_files(folder: str | Path) -> list[str]:
    """Relative paths of the files of a folder that go to the hub; UserError for a link that leads out of it."""
    folder = Path(folder)
    names = {*manifest.file_names(manifest.read_record(folder)), *EXTRA_FILES}
    found = sorted(name for name in names if (folder / name).is_file())
    for name in found:
        require_inside(folder, name)  # else a link would publish a file of this machine
    return found


def require_pushable(folder: str | Path, target: PushTarget, *, overwrite: bool = False) -> Remote | None:
    """What the repository holds, or None where there is no such branch yet; the folder need not be there yet.

    UserError where nobody is logged in, where the hub is out of reach, and for a repository that holds anything but
    the version that this folder was last pushed to or pulled from, unless `overwrite`.
    """
    if not hub.has_form_of_id(target.repo_id):
        raise UserError(f"{target.repo_id} is no name of a repository on the hub: give ORGANISATION/NAME")
    with hub.explain_hub_errors(target.repo_id):
        _api(target).whoami()
    remote = _fetch_remote(target)
    if remote is None:
        return None
    _require_private(remote, target)
    if not remote.files - HUB_FILES:
        return remote
    last = _read_last(Path(folder))
    if not overwrite and last != _last(target, remote.commit):
        raise UserError(
            f"{target.repo_id} ({target.branch}) holds something else than an earlier version of {folder}; give "
            "another name, pull it and look (dcpcse pull), or --overwrite to replace it"
        )
    return remote


def push_to_hub(folder: str | Path, target: PushTarget, *, message: str | None = None, overwrite: bool = False) -> str:
    """Push a model folder as one commit; gives its address.

    The folder gets a card if it has none. What the repository had of an earlier version, or of anything else where
    `overwrite`, is removed in the same commit; its history keeps it.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    folder = Path(folder)
    own_files(folder)  # before the card tells what lies in them
    digest = trained_digest(folder)  # reads every weight
    remote = require_pushable(folder, target, overwrite=overwrite)
    _require_card(folder, digest, target.repo_id)
    names = own_files(folder)
    api = _api(target)
    with hub.explain_hub_errors(target.repo_id):
        remote = remote or _create(api, target)
        gone = sorted(remote.files - set(names) - HUB_FILES)
        for name in gone:
            logger.info("%s: %s is removed, which this folder does not have", target.repo_id, name)
        done = api.create_commit(
            target.repo_id,
            [
                *(CommitOperationAdd(name, str(folder / name)) for name in names),
                *(CommitOperationDelete(name) for name in gone),
            ],
            commit_message=message or "A model folder of dcpcse",
            revision=target.branch,
            parent_commit=remote.commit,  # refused by the hub where someone else has pushed meanwhile
        )
    _write_last(folder, target, done.oid)
    return done.commit_url


def pull_from_hub(repo_id: str, output: str | Path, options: LoadOptions) -> Path:
    """Write a model folder on the hub, with card and records, as a new folder here; whole or not at all."""
    output = Path(output)
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"--output {output} is there already; give a new or empty folder")
    require_writable(output.absolute().parent, f"--output {output}")
    if not hub.is_hub_id(repo_id):
        raise UserError(f"{repo_id} is a place here, or no name of a repository on the hub: ORGANISATION/NAME")
    found = hub.find_model_folder(repo_id, options, EXTRA_FILES)
    if found is None:
        raise UserError(f"{repo_id} on the hub holds no folder of train.py")
    trained_digest(found)  # reads every weight
    with atomic_folder(output) as aside:
        for name in own_files(found):
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found / name, aside / name)
        _write_last(aside, PushTarget(repo_id, options.revision or "main"), found.name)
    return output


def _api(target: PushTarget) -> Any:
    from huggingface_hub import HfApi

    return HfApi(token=target.token)


def _fetch_remote(target: PushTarget) -> Remote | None:
    """What the branch holds; None where the repository or the branch is not there."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return hub.fetch_remote(target.repo_id, target.options)
    except UserError as error:
        absent = isinstance(error.__cause__, (RepositoryNotFoundError, RevisionNotFoundError))
        if absent and not isinstance(error.__cause__, GatedRepoError):
            return None
        raise


def _create(api: Any, target: PushTarget) -> Remote:
    """Make the repository and the branch, as far as they are not there; a new branch begins as main is."""
    api.create_repo(target.repo_id, private=target.private, exist_ok=True)
    if target.branch != "main":
        api.create_branch(target.repo_id, branch=target.branch, exist_ok=True)
    remote = hub.fetch_remote(target.repo_id, target.options)
    _require_private(remote, target)
    return remote


def _require_private(remote: Remote, target: PushTarget) -> None:
    if target.private and not remote.private:
        raise UserError(f"--private: {target.repo_id} is there already, and public; change that on its page")


def _require_card(folder: Path, digest: str, repo_id: str) -> None:
    """Write the card of a folder that has none; UserError for one that was written of other weights."""
    card = folder / CARD
    if not card.is_file():
        write_atomic(card, write_card(folder, repo_id))
        logger.info("the card is in %s", card)
    elif digest_in(card.read_text(encoding="utf-8")) not in (None, digest):
        raise UserError(f"{card} was written of other weights; write it anew: dcpcse card {folder} --overwrite")


def remove_old_card(folder: Path) -> None:
    """Remove a card that was written of the weights that are about to be replaced; one by another hand stays."""
    card = folder / CARD
    if card.is_file() and digest_in(card.read_text(encoding="utf-8")):
        card.unlink()


def _last(target: PushTarget, commit: str) -> dict[str, str]:
    return {"repo_id": target.repo_id, "branch": target.branch, "commit": commit}


def _read_last(folder: Path) -> Any:
    try:
        return parse_json((folder / LAST_PUSH_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{folder / LAST_PUSH_FILE} is damaged ({error}); remove it") from error


def _write_last(folder: Path, target: PushTarget, commit: str) -> None:
    write_atomic(folder / LAST_PUSH_FILE, json.dumps(_last(target, commit), indent=2) + "\n")
