"""Checks of a folder with retrieval data in the layout of BEIR: each split is read as for evaluation."""

from pathlib import Path

from senteval.errors import DataError

from dcpcse.doctor.findings import CheckSettings, Findings, fault, note, ok
from dcpcse.utils.errors import UserError, plural


def check(path: Path, settings: CheckSettings) -> Findings:
    """Check that the documents, the queries and the judgements of each split can be read and fit together."""
    from dcpcse.evaluation.retrieval_data import QRELS, own_retrieval  # imported here because it is slow

    splits = sorted(file.stem for file in (path / QRELS).glob("*.tsv"))
    if not splits:
        yield fault("judgements", f"{QRELS} contains no SPLIT.tsv; add the judgements, such as {QRELS}/test.tsv")
    for split in settings.progress(splits, len(splits), "splits"):
        try:
            task = own_retrieval(f"{path}:{split}")
        except (DataError, UserError) as error:
            yield fault(split, str(error))
            continue
        documents = plural(len(task.documents), "document")
        yield ok(split, f"{documents}; queries with a relevant document: {len(task.queries):,}")
        if task.queries_left_out:
            yield note(split, f"queries without a relevant document, which are not scored: {task.queries_left_out:,}")
