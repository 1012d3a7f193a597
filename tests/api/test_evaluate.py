"""dcpcse.evaluate: any encoder, the scores of evaluation.py, results to look at and to keep, and one-line errors."""

import functools
import json
import logging
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from senteval import TASK_SETS
from senteval_tiny import hashed_encode, write_tiny_data
from torch import nn
from transformers import AutoModel

import dcpcse
from dcpcse import UserError
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Small files of all tasks."""
    return str(write_tiny_data(tmp_path_factory.mktemp("tiny-data")))


@pytest.fixture(scope="module")
def evaluate(data):
    """dcpcse.evaluate on the small files, without bars."""
    return functools.partial(dcpcse.evaluate, data_dir=data, official=False, show_progress=False)


@pytest.fixture(scope="module")
def ours(tiny):
    return plain_encoder(load_backbone(tiny("bert")), "avg")


def embed(sentences: list[str]) -> np.ndarray:
    return hashed_encode(sentences)


class Encoder(nn.Module):
    """An encoder of other code, with dropout in train mode, and a part that is always in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.layer = nn.Dropout(0.5).eval(), nn.Linear(8, 8)
        self.batches: list[int] = []

    def encode(self, sentences: list[str], batch_size: int = 2, show_progress_bar: bool = True) -> torch.Tensor:
        assert not show_progress_bar
        self.batches.append(batch_size)
        vectors = torch.tensor(hashed_encode(sentences), dtype=torch.float32)
        return self.layer(nn.functional.dropout(vectors, 0.5, self.training)).to(torch.bfloat16)


def test_a_name_an_object_and_a_function_are_evaluated_alike(evaluate, tiny):
    """The oracle encodes with transformers, one sentence at a time."""
    folder = tiny("bert", masked_lm=False)
    model = plain_encoder(load_backbone(folder), "cls")
    scores = evaluate(folder, "sts").scores
    assert evaluate(lambda sentences: model.encode(sentences), "sts").scores == pytest.approx(scores, abs=1e-4)
    assert evaluate(model, list(TASK_SETS["sts"])).scores == scores
    encoder = AutoModel.from_pretrained(folder).eval()

    def one_by_one(sentences: list[str]) -> torch.Tensor:
        batches = [model.tokenizer(sentence, return_tensors="pt") for sentence in sentences]
        rows = [encoder(**batch).pooler_output[0] for batch in batches]
        return torch.stack(rows)  # with gradients

    assert evaluate(one_by_one, ["STSBenchmark"]).average == pytest.approx(scores["STSBenchmark"], abs=1e-3)


def test_a_sentence_transformer_keeps_its_settings_and_its_mode(evaluate, tiny, ours, capfd, tmp_path):
    modules = [Transformer(tiny("bert")), Pooling(32, pooling_mode="mean"), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu").train()
    model[0].auto_model.encoder.eval()
    before = [module.training for module in model.modules()]
    capfd.readouterr()
    evaluation = evaluate(model, "sts")
    assert capfd.readouterr().err == "" and [module.training for module in model.modules()] == before
    model.save(str(tmp_path / "saved"))
    for other in (ours, tmp_path / "saved"):
        assert evaluation.scores == pytest.approx(evaluate(other, "sts").scores, abs=1e-3)
    facts = [evaluation.model[name] for name in ("modules", "name_or_path", "identity")]
    assert facts == [["Transformer", "Pooling", "Normalize"], tiny("bert"), {}]


def test_a_module_is_in_eval_mode_meanwhile_and_gets_the_batch_size(evaluate):
    model = Encoder().train()
    model.frozen.eval()
    once, again = evaluate(model, "sts", batch_size=5), evaluate(model, "sts", batch_size=7)
    assert once.scores == again.scores and {*model.batches} == {5, 7}  # dropout would change the scores
    assert model.training and model.layer.training and not model.frozen.training


def test_a_function_gets_lists_of_at_most_a_batch_and_may_return_rows_in_a_list(evaluate):
    given = []
    expected = evaluate(lambda s: given.append(s) or embed(s), "STSBenchmark", batch_size=3)
    assert all(type(batch) is list and 1 <= len(batch) <= 3 for batch in given)
    assert sum(map(len, given)) == expected.sentences == len({one for batch in given for one in batch})
    for rows in (lambda s: embed(s).tolist(), lambda s: [torch.tensor(row, requires_grad=True) for row in embed(s)]):
        assert evaluate(rows, "STSBenchmark").scores == pytest.approx(expected.scores)


def test_nothing_global_changes_and_a_second_call_gives_the_same(evaluate, ours, capfd):
    def state():
        loggers = {name: logging.getLogger(name) for name in ("", "dcpcse", "transformers", "sentence_transformers")}
        return (
            {name: (one.level, list(one.handlers), one.disabled) for name, one in loggers.items()},
            (torch.random.get_rng_state().tolist(), str(np.random.get_state())),
            (torch.get_num_threads(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()),
            (ours.device, [module.training for module in ours.modules()]),
        )

    ours.train()
    before, tasks = state(), ["sts", "MR", "STSBenchmark-geometry"]
    options = {"mode": "fasttest", "postprocess": "whitening", "whitening_dimensions": 4}
    first = evaluate(ours, tasks, **options)
    assert capfd.readouterr() == ("", "") and state() == before
    assert evaluate(ours, tasks, **options).scores == first.scores
    ours.eval()


def test_the_inside_and_the_identity_of_an_encoder_are_used(evaluate, ours, tmp_path, monkeypatch):
    task = "STSBenchmark-geometry"
    assert evaluate(ours, task).results[task].token_anisotropy is not None
    assert evaluate(ours.encode, task).results[task].token_anisotropy is None
    first = evaluate(ours, "STSBenchmark", cache_dir=tmp_path)
    monkeypatch.setattr(type(ours), "encode", lambda *_, **__: pytest.fail("encoded again"))
    assert evaluate(ours, "STSBenchmark", cache_dir=tmp_path).scores == first.scores


def test_a_data_frame_has_the_scores_of_all_families(evaluate):
    tasks = ["STSBenchmark", "MRPC", "AgNews", "STSBenchmark-retrieval", "STSBenchmark-geometry", "MR-fewshot"]
    evaluation = evaluate(embed, tasks, shots=4, draws=2, kmeans_runs=2)
    table = evaluation.to_pandas()
    main = table[table.family != "geometry"].groupby("task", sort=False).first()
    assert main.score.to_dict() == evaluation.scores
    metrics = {"STSBenchmark": "Spearman", "STSBenchmark-retrieval": "mean recall"}
    assert main.metric.to_dict() == metrics | dict.fromkeys(("MRPC", "AgNews", "MR-fewshot"), "accuracy")
    assert main.n["STSBenchmark"] == evaluation.results["STSBenchmark"].all.nsamples
    assert set(table[table.family == "geometry"].metric) == {"alignment", "uniformity", "anisotropy"}
    refused("average needs tasks of one family, but there are sts, transfer", lambda: evaluation.average)


def test_html_escapes_names_and_a_record_is_not_replaced_unasked(evaluate, tmp_path):
    (tmp_path / "<b>&.tsv").write_text("\n".join(f"{a}\t{b}\t{c}" for a, b, c in PAIRS) + "\n", encoding="utf-8")
    evaluation = evaluate(embed, ["sts", "STSBenchmark-geometry"], pairs=tmp_path / "<b>&.tsv")
    page = ElementTree.fromstring(f"<html>{evaluation._repr_html_()}</html>")
    assert "<b>&.tsv" in ["".join(cell.itertext()).strip() for cell in page.iter()]
    path = tmp_path / "s.json"
    text = evaluation.to_json(path)
    assert path.read_text(encoding="utf-8") == text == evaluation.to_json()
    refused(r"s\.json exists; give another path, or overwrite=True to replace it", lambda: evaluation.to_json(path))
    evaluation.to_json(str(path), overwrite=True)
    expected = {"kind": "function", "name": "embed", "module": __name__, "identity": {}}
    assert json.loads(text)["model"] == expected


PAIRS = [(f"first {i}", f"second {i * i}", 0.5 * (i * 5 % 12)) for i in range(12)]
LABELS = [(f"text {i}", "ab"[i % 2]) for i in range(20)]


def test_pairs_of_ones_own_are_scored_wherever_they_come_from(evaluate, tmp_path):
    first, second, gold = zip(*PAIRS, strict=True)
    one, other = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (embed([*first]), embed([*second])))
    expected = pytest.approx(100 * spearmanr((one * other).sum(1), gold).statistic)
    columns = {"left": [*first], "right": [*second], "score": [*gold]}
    (tmp_path / "own.tsv").write_text("\n".join(f"{a}\t{b}\t{c}" for a, b, c in PAIRS) + "\n", encoding="utf-8")
    for given in (PAIRS, columns, pandas.DataFrame(columns), iter(PAIRS)):
        assert evaluate(embed, given).scores == {"pairs": expected}
    for given in (tmp_path / "own.tsv", str(tmp_path / "own.tsv")):
        assert evaluate(embed, given).scores == {"own.tsv": expected}
    binary = [(a, b, int(score > 2)) for a, b, score in PAIRS]
    everything = evaluate(embed, "STSBenchmark", pairs=binary, labels=LABELS)
    table = everything.to_pandas().groupby("task").first()
    metrics = {"STSBenchmark": "Spearman", "pairs": "average precision", "labels": "accuracy"}
    assert table.metric.to_dict() == metrics and table.score.to_dict() == everything.scores
    assert (table.n["pairs"], table.n["labels"]) == (12, 20)


class Adapters:
    """An encoder that needs more than sentences."""

    def encode(self, sentences, adapter):
        return hashed_encode(sentences)


MODELS = (
    (5, "model 5: must be a model of dcpcse.load, the name of a model, a SentenceTransformer, an object"),
    (Encoder, "model is the class Encoder; give an object of it"),
    (Adapters(), "cannot be called with a list of sentences alone.*'adapter'.*give a function"),
    (lambda s: embed(s)[1:], r"the function <lambda> returned an array of shape \(5, 8\).*\(6, H\)"),
    (lambda s: [row[:i] for i, row in enumerate(embed(s))], "returned a list; expected a numpy array"),
    (lambda s: np.array([[one] for one in s]), "returned an array of <U"),
    (lambda s: embed(s)[:, : len(s)], r"returned an array of shape \(\d, \d\); expected .* of shape \(\d, 6\),"),
    (lambda s: embed(s) * np.nan, "the embedding of '.*' is not finite"),
    (lambda s: np.ones((len(s), 4)), "returned the same embedding for all 8 sentences"),
)


def refused(message: str, call) -> None:
    with pytest.raises((UserError, TypeError), match=rf"(?s)^(?!.*\n|.*--).*({message})"):
        call()


def test_what_is_not_an_encoder_is_refused_in_one_line(evaluate):
    for model, message in MODELS:
        refused(message, functools.partial(evaluate, model, "STSBenchmark", batch_size=6))


SCORED = pandas.DataFrame(PAIRS, columns=["a", "b", "score"])
CALLS = (
    ({"tasks": "STSB"}, "unknown task 'STSB'; did you mean STSBenchmark"),
    ({"tasks": []}, "tasks is empty; give a task set such as 'sts'"),
    ({"mode": "validation"}, "mode=\"validation\": unknown; did you mean 'dev'"),
    ({"official": True}, "expected 1379 .* for your own files give official=False$"),
    ({"nhid": 5}, "nhid has no effect without a transfer task; leave it out"),
    ({"modes": "dev"}, r"evaluate\(\) got an unexpected keyword argument 'modes'; did you mean 'mode'"),
    ({"cache_dir": "c"}, "cache_dir: the embeddings of embed cannot be cached"),
    ({"tasks": "frequent"}, "STS-frequent removes tokens.*embed gives only embeddings; leave the task out"),
    (
        {"pairs": SCORED.assign(split="x")},
        r'pairs: expected 3 columns but found 4 .*such as pairs\[\["a", "b", "score"\]\]',
    ),
    ({"tasks": {"text": ["a"], "label": ["x"]}}, "texts with their classes are labels, not pairs"),
    ({"tasks": PAIRS, "pairs": PAIRS}, "given twice, as the second argument and as pairs"),
)


def test_wrong_arguments_and_data_are_refused_in_the_words_of_python(evaluate):
    for options, message in CALLS:
        refused(message, functools.partial(evaluate, embed, **{"tasks": "STSBenchmark", **options}))
