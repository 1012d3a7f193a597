"""Write model cards from the template `model_card.md.j2`, and push model folders to the hub or pull them."""

import json
import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    EvalResult,
    HfApi,
    ModelCard,
    ModelCardData,
    ModelInfo,
)
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from dcpcse.encoders.identity import differences, trained_digest
from dcpcse.encoders.storage import hub, manifest
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import count_trained
from dcpcse.methods import METHODS
from dcpcse.training.run_history import find_scores, require_run
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import atomic_folder, require_inside, require_new_folder, write_atomic
from dcpcse.utils.parsing import read_bytes, read_text
from dcpcse.utils.run_files import ENVIRONMENT, METRICS, RUN_FILE, require_scores

CARD = "README.md"
"""The file that the Hub shows as the page of a repository."""

TEMPLATE = Path(__file__).with_name("model_card.md.j2")

TASK_AND_METRIC: Mapping[str, tuple[str, str]] = {
    "sts": ("sts", "cosine_spearman"),
    "pairs": ("sts", "cosine_spearman"),
    "binary-pairs": ("pair-classification", "cosine_ap"),
    "labels": ("text-classification", "accuracy"),
    "beir": ("retrieval", "ndcg_at_10"),
    "finetune": ("sts", "spearman"),
    "transfer": ("text-classification", "accuracy"),
    "fewshot": ("text-classification", "accuracy"),
    "clustering": ("clustering", "accuracy"),
    "retrieval": ("retrieval", "recall"),
    "mteb": ("mteb", "main_score"),
}
"""Family of an evaluation task → its task type on the Hub, and the metric of its score."""

_DIGEST_ROW = "SHA-256 digest of the trained weights"

_PARTS = {"prompt": "deep prompts", "shallow": "input vectors", "cls_prompt": "[CLS] vectors", "backbone": "encoder"}
_PARTS["lora"] = "LoRA adapter"
"""Name of a part of a model in its files → name in the card. Other parts keep their names."""


def write_card(folder: str | Path, name: str | None = None, scores: Sequence[str | Path] = ()) -> str:
    """Return the text of a model card (README.md) for a model folder.

    Args:
        folder: The model folder.
        name: Name of the model, also used in the example that loads it. None: the name of the folder.
        scores: Files that `evaluation.py --output_file` wrote. (): the score files in the folder.

    Raises:
        UserError: If a file contains the scores of a different model.
    """
    folder = Path(folder)
    record = manifest.read_record(folder)
    digest = trained_digest(folder)
    reports = _read_scores(folder, _identity(record) | {"trained": digest}, [Path(path) for path in scores])
    run = require_run(folder) if (folder / RUN_FILE).is_file() else None
    method, base = record["method"], record["base"]["name_or_path"]
    on_hub = not Path(base).is_absolute()
    name = name or folder.resolve().name
    metadata = ModelCardData(
        model_name=name,
        library_name="dcpcse",
        pipeline_tag="sentence-similarity",
        tags=["sentence-embeddings", *([method] if method else [])],
        base_model=base if on_hub else None,
        base_model_relation=("finetune" if record["backbone"] else "adapter") if on_hub else None,
        eval_results=[result for report in reports.values() for result in report["results"]] or None,
    )
    card = ModelCard.from_template(
        metadata,
        template_path=str(TEMPLATE),
        name=name,
        record=record,
        base_name=base if on_hub else Path(base).name,
        base_on_hub=on_hub,
        opens_in_peft=record["prompts_file"] == manifest.PEFT_WEIGHTS,
        digest_row=_DIGEST_ROW,
        digest=digest,
        parameters={_PARTS.get(part, part): number for part, number in count_trained(folder, record).items()},
        run=run,
        options=run and yaml.safe_dump(dict(run.options), sort_keys=True, allow_unicode=True),
        scores=reports,
        citation=METHODS[method].citation if method in METHODS else None,
    )
    return f"{card}\n"


def digest_in(card: str) -> str | None:
    """Return the digest of the weights for which a card was written; None if dcpcse did not write the card."""
    match = re.search(rf"^\| {_DIGEST_ROW} \| ([0-9a-f]{{64}}) \|$", card, flags=re.MULTILINE)
    return match and match[1]


def _read_scores(folder: Path, expected: Mapping[str, Any], paths: Sequence[Path]) -> dict[str, Mapping[str, Any]]:
    """Return the contents of the score files by file name. An entry `results` is added to each content.

    Args:
        folder: The model folder.
        expected: Entries of the model's identity.
        paths: The score files; if empty, the score files in the folder are used.

    Raises:
        UserError: If a score file has other entries than `expected`.
    """

    def damaged(line: str) -> None:
        raise UserError(line)

    reports = {path: require_scores(path) for path in paths} if paths else find_scores(folder, damaged)
    for path, report in reports.items():
        evaluated = report.get("model", {}).get("identity", {})
        if others := [key for key in differences(expected, evaluated) if key in expected]:
            raise UserError(
                f"{path} contains the scores of another model, not of the model in {folder} (different: "
                f"{', '.join(others)}); give scores of this model"
            )
        if not report.get("complete"):
            raise UserError(f"{path} contains the scores of an interrupted evaluation; run the evaluation to the end")
        families = {name: report.get("tasks", {}).get(name, {}).get("family") for name in report["scores_x100"]}
        if odd := [name for name, family in families.items() if family not in TASK_AND_METRIC]:
            raise UserError(
                f"{path} is damaged: the task {odd[0]} has the unknown family {families[odd[0]]}; evaluate again"
            )
    return {path.name: {**report, "results": _results(report)} for path, report in reports.items()}


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the model's `identity` that can be read from the record of its folder."""
    later = {name: record["base"][name] for name in ("weights", "configuration") if record["base"].get(name)}
    return {
        **later,
        "base": record["base"]["fingerprint"],
        "pooling": record["pooling"],
        "head_at_inference": bool(record["head"] and record["head"]["at_inference"]),
        "position_offset": record["position_offset"],
        "reading": {"template": record["template"], "denoising": record["denoising"]},
    }


def _results(report: Mapping[str, Any]) -> list[EvalResult]:
    return [
        EvalResult(
            task_type=kind,
            dataset_type=name,
            dataset_name=name,
            dataset_split=report["tasks"][name].get("split"),
            metric_type=report["tasks"][name].get("metric", metric),
            metric_name=f"{metric} x 100",
            metric_value=round(value, 2),
        )
        for name, value in report["scores_x100"].items()
        if value is not None
        for kind, metric in [TASK_AND_METRIC[report["tasks"][name]["family"]]]
    ]


logger = logging.getLogger(__name__)

EXTRA_FILES = (CARD, RUN_FILE, METRICS, ENVIRONMENT)
"""Files that are pushed with the model: the card, and the records from which it is written."""

LAST_PUSH_FILE = "hub.json"
"""A local file with the repository, branch and commit of the last push from a folder or pull to it."""

HUB_FILES = frozenset({".gitattributes"})
"""Files that the Hub itself adds to a new repository."""


@dataclass(frozen=True)
class PushTarget:
    """The repository and branch to which a folder is pushed.

    Args:
        repo_id: ORGANISATION/NAME.
        branch: Name of the branch.
        private: True requires a private repository. With None, a new repository is public, and an existing repository
            stays as it is.
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
    """Check that a folder may be pushed; return the Hub's description of the branch, or None if it does not exist.

    Args:
        folder: The folder, which need not exist yet.
        target: The repository and branch to which it is pushed.
        overwrite: Whether to replace the content of the branch even if it is not the version that was last pushed
            from this folder or pulled to it.

    Raises:
        UserError: If the user is not logged in, if the Hub cannot be reached, or if `overwrite` is False and the
            branch contains another version.
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

    A card is written if the folder has no card. Files on the branch that are not in this folder are removed in the
    same commit. They remain in the history of the repository.

    Args:
        folder: The model folder.
        target: The repository and branch to which it is pushed.
        message: Message of the commit; None for the default.
        overwrite: Whether to replace a branch that does not contain an earlier version of this folder.
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
            logger.info(
                "%s: deleting %s from the repository, since the published folder does not contain it",
                target.repo_id,
                name,
            )
        # Not upload_folder, which may split a push into several commits, of which only the first checks its parent.
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
    """Copy a model folder, with its card and records, from the Hub to a new local folder; return the local folder.

    The local folder is written atomically.

    Args:
        repo_id: ORGANISATION/NAME.
        output: The new local folder.
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
    """Remove the card of a folder whose weights will be replaced. A card that dcpcse did not write stays."""
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
    """Write a card if the folder has no card. Raises UserError if an existing card was written for other weights."""
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
    """Return the content of `LAST_PUSH_FILE` for a commit on a branch."""
    content = {"repo_id": target.repo_id, "branch": target.branch, "commit": commit}
    return f"{json.dumps(content, indent=2)}\n".encode()
