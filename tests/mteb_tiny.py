"""Tasks of one's own for mteb, with data in memory; a file as `evaluation.py --mteb FILE.py` takes it."""

import json
from pathlib import Path

import datasets
import mteb
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

PAIRS = [
    ("A man is playing a large flute.", "A man is playing a flute.", 4.6),
    ("Rain fell.", "Three dogs run over the wet grass.", 1.2),
    ("The cat sleeps on the warm stone.", "The cat sleeps.", 4.0),
    ("A woman slices an onion on a wooden board.", "Prices rose by three percent last year.", 0.0),
    ("He repaired the radio with a spoon and some wire.", "He repaired the radio.", 3.9),
    ("Nobody in the village knew where the key had gone.", "The key had gone.", 2.8),
    ("The old bridge was closed.", "She bought two tickets for the evening train.", 0.4),
    ("The committee postponed its decision until the spring.", "The committee postponed it.", 3.1),
]
"""Sentence, sentence, score."""


def metadata(name: str, kind: str, metric: str) -> TaskMetadata:
    """What mteb wants to know of a task."""
    unknown = ("reference", "date", "domains", "task_subtypes", "license", "annotations_creators", "dialect")
    return TaskMetadata(
        name=name,
        description="Made for a test.",
        dataset={"path": f"of-my-own/{name.lower()}", "revision": "1"},
        type=kind,
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=metric,
        sample_creation=None,
        bibtex_citation="",
        **dict.fromkeys(unknown),
    )


class TinySTS(AbsTaskSTS):
    """`PAIRS`."""

    metadata = metadata("TinySTS", "STS", "cosine_spearman")

    def load_data(self, **kwargs):
        columns = dict(zip(("sentence1", "sentence2", "score"), map(list, zip(*PAIRS, strict=True)), strict=True))
        self.dataset = {"test": datasets.Dataset.from_dict(columns)}
        self.data_loaded = True


class TinyRetrieval(AbsTaskRetrieval):
    """First sentences of `PAIRS` look for their second ones."""

    metadata = metadata("TinyRetrieval", "Retrieval", "ndcg_at_10")

    def load_data(self, **kwargs):
        rows = [{"id": f"q{i}", "text": first} for i, (first, _, _) in enumerate(PAIRS)]
        corpus = [{"id": f"d{i}", "title": "", "text": second} for i, (_, second, _) in enumerate(PAIRS)]
        split = {
            "queries": datasets.Dataset.from_list(rows),
            "corpus": datasets.Dataset.from_list(corpus),
            "relevant_docs": {f"q{i}": {f"d{i}": 1} for i in range(len(PAIRS))},
            "top_ranked": None,
        }
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


def write_multilingual(folder: Path, languages: list[str]) -> Path:
    """Write copies of the data of the task set multilingual, with `PAIRS` twice per language; return the folder."""
    for name in ("STS17", "STS22.v2", "Tatoeba"):
        task = mteb.get_task(name).filter_languages(languages)
        path = folder / Path(task.metadata.dataset["path"]).name
        path.mkdir(parents=True)
        rows = [
            {"sentence1": f"{first} {i} {mark}", "sentence2": f"{second} {i} {mark}", "score": gold, "lang": subset}
            for i, subset in enumerate(task.hf_subsets)
            for mark in "ab"
            for first, second, gold in PAIRS
        ]
        (path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return folder
