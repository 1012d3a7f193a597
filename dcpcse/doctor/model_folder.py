"""Checks of a model folder, which may be the folder of a run or a checkpoint."""

from pathlib import Path

from dcpcse.doctor.encoder_folder import check_tensors
from dcpcse.doctor.findings import CheckSettings, Findings, fault, note, ok, warning
from dcpcse.encoders.storage import manifest
from dcpcse.interop.folder_contents import find_base, require_shapes
from dcpcse.training.run_history import find_scores, is_checkpoint, read_run
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import RUN_FILE, STATE, checkpoints_in


def check(path: Path, settings: CheckSettings) -> Findings:
    """Check the manifest, checksums and tensors, and whether the model can be loaded with its base."""
    try:
        record = manifest.read_record(path)
    except UserError as error:
        yield fault("record", str(error))
        return
    yield ok("record", f"format {record['format']}, method {record['method']}, pooling {record['pooling']}")
    whole = True
    for finding in (*_checksums(path, record), *_tensors(path, record)):
        whole = whole and finding.level != "fault"
        yield finding
    yield from _base(path, record, settings, whole)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    yield ok("size", f"{size / 1e6:,.1f} MB")


def _checksums(path: Path, record: dict) -> Findings:
    changed = list(manifest.changed_files(path, record))
    for text in changed:
        yield fault("checksum", text)
    if "sha256" not in record:
        yield note("checksum", "the folder has no checksums (earlier version); save the model again to add them")
    elif not changed:
        yield ok("checksum", f"{len(record['sha256'])} files are unchanged")


def _tensors(path: Path, record: dict) -> Findings:
    names = [name for name in (manifest.adapter_file(record), manifest.TRAINED) if name]
    files = [path / name for name in names if (path / name).is_file() or name != manifest.TRAINED]
    if record["backbone"] is not None:
        files.append(manifest.backbone_path(path, record["backbone"]) / manifest.WEIGHTS)
    for file in files:
        yield from check_tensors(file, "weights")
    try:
        require_shapes(path, record)
    except UserError as error:
        yield fault("shapes", str(error))


def _base(path: Path, record: dict, settings: CheckSettings, whole: bool) -> Findings:
    """Check that the model loads with its base, if the base is available; loading fails for a different base."""
    base = find_base(path, record)
    if settings.base is None and base["found"] is not True:
        level = note if base["found"] is None else warning
        yield level("base", f"{record['base']['name_or_path']}: {base['where']}; its fingerprint was not compared")
        return
    if not whole:
        yield note("base", "not loaded, since the folder is damaged")
        return
    from dcpcse.encoders.sentence_encoder import SentenceEncoder  # imports torch, which takes seconds
    from dcpcse.encoders.templates import missing_cls

    try:
        model = SentenceEncoder.load(path, None if record["backbone"] is not None else settings.base, device="cpu")
    except UserError as error:
        yield fault("base", str(error))
        return
    where = "the encoder in the folder" if record["backbone"] else settings.base or record["base"]["name_or_path"]
    yield ok("base", f"loads; {where} has the recorded fingerprint")
    if model.pooler.reads_cls and (missing := missing_cls(model.tokenizer)) is not None:
        yield warning("tokenizer", missing)


def check_run(path: Path, settings: CheckSettings) -> Findings:
    """Check the records and the checkpoints of a run; without these, yield nothing."""
    if not any((path / name).is_file() for name in (RUN_FILE, STATE)):
        return
    found = read_run(path)
    damaged: list[str] = list(found.problems)
    find_scores(path, damaged.append)
    for problem in dict.fromkeys(damaged):
        yield fault("run record", problem)
    if (path / RUN_FILE).is_file() and not damaged:
        planned = "?" if found.steps_planned is None else found.steps_planned
        end = "finished" if found.finished else "not finished"
        yield ok("run", f"{found.steps_done} of {planned} steps, {end}")
    if is_checkpoint(path):
        yield from _checkpoint(path)
        return
    for folder in checkpoints_in(path).values():
        found = list(_checkpoint(folder))
        if folder.is_dir():  # otherwise a running training has removed it since it was listed
            yield from found


def _checkpoint(folder: Path) -> Findings:
    from dcpcse.training.checkpoints import require_whole  # imports torch; it opens only pickles of tensors

    try:
        step = require_whole(folder).step
    except UserError as error:
        yield fault("checkpoint", f"training cannot resume from {folder.name}: {error}")
        return
    yield ok("checkpoint", f"{folder.name} is complete (step {step})")
