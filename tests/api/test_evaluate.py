"""dcpcse.evaluate: any encoder, the scores of evaluation.py, results to look at and to keep, and one-line errors."""

import functools
import inspect
import json
import logging
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas
import pytest
import torch
from scipy.stats import spearmanr
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
    library = pytest.importorskip("sentence_transformers")
    modules = library.sentence_transformer.modules
    transformer = modules.Transformer(tiny("bert"))
    model = library.SentenceTransformer(
        modules=[transformer, modules.Pooling(32, pooling_mode="mean"), modules.Normalize()], device="cpu"
    )
    model.train()
    model[0].auto_model.encoder.eval()
    before = [module.training for module in model.modules()]
    capfd.readouterr()
    evaluation = evaluate(model, "sts")
    assert capfd.readouterr().err == ""
    assert [module.training for module in model.modules()] == before
    assert evaluation.scores == pytest.approx(evaluate(ours, "sts").scores, abs=1e-3)
    model.save(str(tmp_path / "saved"))
    assert evaluation.scores == pytest.approx(evaluate(tmp_path / "saved", "sts").scores, abs=1e-3)
    assert evaluation.model["modules"] == ["Transformer", "Pooling", "Normalize"]
    assert evaluation.model["name_or_path"] == tiny("bert")
    assert evaluation.model["identity"] == {}


def test_a_module_is_in_eval_mode_meanwhile_and_gets_the_batch_size(evaluate):
    model = Encoder().train()
    model.frozen.eval()
    once, again = evaluate(model, "sts", batch_size=5), evaluate(model, "sts", batch_size=7)
    assert once.scores == again.scores  # dropout would change them
    assert {*model.batches} == {5, 7}
    assert model.training and model.layer.training and not model.frozen.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_rows_in_a_list_are_those_of_an_array(evaluate):
    expected = evaluate(embed, "STSBenchmark").scores
    for rows in (
        lambda s: embed(s).tolist(),
        lambda s: tuple(embed(s)),
        lambda s: [torch.tensor(row, requires_grad=True) for row in embed(s)],
    ):
        assert evaluate(rows, "STSBenchmark").scores == pytest.approx(expected)


def test_a_function_gets_lists_of_at_most_a_batch(evaluate):
    given = []

    def note(sentences):
        given.append(sentences)
        return hashed_encode(sentences)

    evaluation = evaluate(note, "STSBenchmark", batch_size=3)
    assert all(type(batch) is list and 1 <= len(batch) <= 3 for batch in given)
    assert sum(map(len, given)) == evaluation.sentences == len({one for batch in given for one in batch})


def test_nothing_global_changes_and_a_second_call_gives_the_same(evaluate, ours, capfd):
    def state():
        loggers = {name: logging.getLogger(name) for name in ("", "dcpcse", "transformers", "sentence_transformers")}
        return (
            {name: (one.level, list(one.handlers), one.disabled) for name, one in loggers.items()},
            torch.random.get_rng_state().tolist(),
            str(np.random.get_state()),
            (torch.get_num_threads(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()),
            (ours.device, [module.training for module in ours.modules()]),
        )

    ours.train()
    before = state()
    options = {"mode": "fasttest", "postprocess": "whitening", "whitening_dimensions": 4}
    first = evaluate(ours, ["sts", "MR", "STSBenchmark-geometry"], **options)
    assert capfd.readouterr() == ("", "")
    assert state() == before
    assert evaluate(ours, ["sts", "MR", "STSBenchmark-geometry"], **options).scores == first.scores
    evaluate(embed, "STSBenchmark", show_progress=True)
    assert "encode: 100%" in capfd.readouterr().err
    assert state() == before
    ours.eval()


def test_the_inside_of_an_encoder_is_used_where_it_is_known(evaluate, ours):
    task = "STSBenchmark-geometry"
    assert evaluate(ours, task).results[task].token_anisotropy is not None
    assert evaluate(ours.encode, task).results[task].token_anisotropy is None


def test_embeddings_are_cached_for_a_model_with_an_identity(evaluate, ours, tmp_path, monkeypatch):
    first = evaluate(ours, "STSBenchmark", cache_dir=tmp_path)
    monkeypatch.setattr(type(ours), "encode", lambda *_, **__: pytest.fail("encoded again"))
    assert evaluate(ours, "STSBenchmark", cache_dir=tmp_path).scores == first.scores


def test_a_data_frame_has_the_scores_of_all_families(evaluate):
    tasks = ["STSBenchmark", "MRPC", "AgNews", "STSBenchmark-retrieval", "STSBenchmark-geometry", "MR-fewshot"]
    evaluation = evaluate(embed, tasks, shots=4, draws=2, kmeans_runs=2)
    table = evaluation.to_pandas()
    assert list(table.columns) == ["task", "family", "metric", "score", "n"]
    main = table[table.family != "geometry"].groupby("task", sort=False).first()
    assert main.score.to_dict() == evaluation.scores
    assert main.metric.to_dict() == {
        "STSBenchmark": "Spearman",
        "MRPC": "accuracy",
        "AgNews": "accuracy",
        "STSBenchmark-retrieval": "mean recall",
        "MR-fewshot": "accuracy",
    }
    assert main.n["STSBenchmark"] == evaluation.results["STSBenchmark"].all.nsamples
    assert set(table[table.family == "geometry"].metric) == {"alignment", "uniformity", "anisotropy"}
    with pytest.raises(UserError, match="average needs tasks of one family, but there are sts, transfer"):
        _ = evaluation.average


def test_the_html_has_the_cells_of_the_text_and_escapes_names(evaluate, tmp_path):
    (tmp_path / "<b>&.tsv").write_text("\n".join(f"{a}\t{b}\t{c}" for a, b, c in PAIRS) + "\n", encoding="utf-8")
    evaluation = evaluate(embed, ["sts", "STSBenchmark-geometry"], pairs=tmp_path / "<b>&.tsv")
    page = ElementTree.fromstring(f"<html>{evaluation._repr_html_()}</html>")
    cells = ["".join(cell.itertext()).strip() for cell in page.iter() if cell.tag in ("td", "th", "caption")]
    lines = [line.strip("|").split("|") for line in str(evaluation).splitlines() if line[0] == "|"]
    assert cells == [cell.strip() for line in lines for cell in line]
    assert {"<b>&.tsv", "STSBenchmark geometry", "Avg."} <= {*cells}
    assert page.find("p").text == "mode: test"


def test_the_record_is_not_replaced_unasked(evaluate, tmp_path):
    evaluation = evaluate(embed, "STSBenchmark")
    text = evaluation.to_json(tmp_path / "s.json")
    assert (tmp_path / "s.json").read_text(encoding="utf-8") == text == evaluation.to_json()
    with pytest.raises(UserError, match=r"s\.json exists; give another path, or overwrite=True to replace it"):
        evaluation.to_json(tmp_path / "s.json")
    evaluation.to_json(str(tmp_path / "s.json"), overwrite=True)
    assert json.loads(text)["model"] == {
        "kind": "function",
        "name": "embed",
        "module": __name__,
        "identity": {},
    }


PAIRS = [(f"first {i}", f"second {i * i}", 0.5 * (i * 5 % 12)) for i in range(12)]
LABELS = [(f"text {i}", "ab"[i % 2]) for i in range(20)]


def test_pairs_of_ones_own_are_scored_wherever_they_come_from(evaluate, tmp_path):
    first, second, gold = zip(*PAIRS, strict=True)
    one, other = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (embed([*first]), embed([*second])))
    expected = 100 * spearmanr((one * other).sum(1), gold).statistic
    columns = {"left": [*first], "right": [*second], "score": [*gold]}
    (tmp_path / "own.tsv").write_text("\n".join(f"{a}\t{b}\t{c}" for a, b, c in PAIRS) + "\n", encoding="utf-8")
    for given in (PAIRS, columns, pandas.DataFrame(columns), iter(PAIRS)):
        assert evaluate(embed, given).scores == {"pairs": pytest.approx(expected)}
    assert evaluate(embed, tmp_path / "own.tsv").scores == {"own.tsv": pytest.approx(expected)}
    assert evaluate(embed, str(tmp_path / "own.tsv")).scores == {"own.tsv": pytest.approx(expected)}
    binary = [(a, b, int(score > 2)) for a, b, score in PAIRS]
    everything = evaluate(embed, "STSBenchmark", pairs=binary, labels=LABELS)
    assert {task: result.family for task, result in everything.results.items()} == {
        "STSBenchmark": "sts",
        "pairs": "binary-pairs",
        "labels": "labels",
    }
    table = everything.to_pandas().groupby("task").first()
    assert table.metric.to_dict() == {
        "STSBenchmark": "Spearman",
        "pairs": "average precision",
        "labels": "accuracy",
    }
    assert (table.n["pairs"], table.n["labels"]) == (12, 20)
    assert table.score.to_dict() == everything.scores


class NoEncoder:
    """An object that does not encode."""


class Adapters:
    """An encoder that needs more than sentences."""

    def encode(self, sentences, adapter):
        return hashed_encode(sentences)


MODELS = {
    "a number": (5, "model 5: must be a model of dcpcse.load, the name of a model, a SentenceTransformer, an object"),
    "nothing": (None, "model None: must be a model of dcpcse.load"),
    "an object without encode": (NoEncoder(), "must be a model of dcpcse.load"),
    "a class": (Encoder, "model is the class Encoder; give an object of it"),
    "no name of a model": ("no/such-model", "no/such-model"),
    "more arguments": (Adapters(), "cannot be called with a list of sentences alone.*'adapter'.*give a function"),
    "a row too few": (lambda s: embed(s)[1:], r"the function <lambda> returned an array of shape \(5, 8\).*\(6, H\)"),
    "one vector": (lambda s: embed(s)[0], r"returned an array of shape \(8,\)"),
    "unequal rows": (lambda s: [row[:i] for i, row in enumerate(embed(s))], "returned a list; a numpy array"),
    "a list of strings": (lambda s: s, r"returned an array of shape \(6,\)"),
    "strings": (lambda s: np.array([[one] for one in s]), "returned an array of <U"),
    "nothing back": (lambda s: None, "returned a NoneType"),
    "other sizes": (lambda s: embed(s)[:, : len(s)], r"returned an array of shape \(\d, \d\).*\(\d, 6\) is expected"),
    "NaN": (lambda s: embed(s) * np.nan, "the embedding of '.*' is not finite"),
    "constant": (lambda s: np.ones((len(s), 4)), "returned the same embedding for all 8 sentences"),
}


@pytest.mark.parametrize(("model", "message"), MODELS.values(), ids=MODELS)
def test_what_is_no_encoder_is_refused_in_one_line(model, message, evaluate):
    with pytest.raises(UserError, match=message) as error:
        evaluate(model, "STSBenchmark", batch_size=6)
    assert "\n" not in str(error.value) and "--" not in str(error.value)


CALLS = {
    "unknown task": ({"tasks": "STSB"}, "unknown task 'STSB'; did you mean STSBenchmark"),
    "unknown task in a list": ({"tasks": ["sts", "transfr"]}, "unknown task 'transfr'; did you mean transfer"),
    "a missing file": ({"tasks": "pairs.tsv"}, "'pairs.tsv': there is no such file; give a file of scored pairs"),
    "no tasks": ({"tasks": []}, "tasks is empty; give a task set such as 'sts'"),
    "unknown mode": ({"mode": "validation"}, "mode=\"validation\": unknown; did you mean 'dev'"),
    "no dev sets": ({"tasks": "fewshot", "mode": "dev"}, "no task of the set fewshot has a dev split"),
    "missing data": ({"data_dir": "/nowhere"}, "there is no folder /nowhere/.*download.*downstream/ with data_dir$"),
    "own files": ({"official": True}, "officially has 1379; .* for your own files give official=False$"),
    "official is a number": ({"official": 1}, "official=1: must be True or False"),
    "show_progress is a word": ({"show_progress": "no"}, 'show_progress="no": must be True or False'),
    "an unused option": ({"nhid": 5}, "nhid has no effect without a transfer task; leave it out"),
    "batch_size": ({"batch_size": 0}, "batch_size=0: must be at least 1"),
    "unknown option": (
        {"modes": "dev"},
        r"evaluate\(\) got an unexpected keyword argument 'modes'; did you mean 'mode'",
    ),
    "cache of a function": ({"cache_dir": "c"}, "cache_dir: nothing identifies the embeddings of embed"),
    "frequent": ({"tasks": "frequent"}, "STS-frequent removes tokens.*embed gives only embeddings; leave it out"),
    "fit_on alone": ({"fit_on": ["a"]}, "fit_on has no effect without postprocess"),
    "fit_on of numbers": ({"postprocess": "whitening", "fit_on": ["a", 1]}, r"fit_on: sentence 1 is a int \(1\)"),
    "few to fit": ({"postprocess": "whitening", "fit_on": ["a"]}, "whitening to 0 dimensions: the 1 embeddings"),
}


@pytest.mark.parametrize(("options", "message"), CALLS.values(), ids=CALLS)
def test_wrong_arguments_are_refused_in_the_words_of_python(options, message, evaluate):
    with pytest.raises((UserError, TypeError), match=message) as error:
        evaluate(embed, **{"tasks": "STSBenchmark", **options})
    assert "\n" not in str(error.value) and "--" not in str(error.value)


SCORED = pandas.DataFrame(PAIRS, columns=["a", "b", "score"])
OWN = {
    "no pairs": ({"pairs": []}, "pairs: the list is empty"),
    "a NaN": ({"tasks": SCORED.assign(score=np.nan)}, "pairs: row 1: gold score nan found, a number expected"),
    "one score": ({"tasks": SCORED.assign(score=1.5)}, "pairs: every gold score is 1.5"),
    "missing column": (
        {"tasks": SCORED[["a", "score"]]},
        r"pairs: found 2 columns \['a', 'score'\], but 3 are expected",
    ),
    "too many": (
        {"pairs": SCORED.assign(split="x")},
        r'pairs: found 4 columns .*such as pairs\[\["a", "b", "score"\]\]',
    ),
    "texts and classes": (
        {"tasks": {"text": ["a"], "label": ["x"]}},
        "texts with their classes are labels, not pairs",
    ),
    "one class": ({"labels": [("a", "x"), ("b", "x")]}, "labels: every text has the class 'x'"),
    "twice": ({"tasks": PAIRS, "pairs": PAIRS}, "given twice, as the second argument and as pairs"),
    "no file": ({"labels": "nowhere.tsv"}, r"nowhere\.tsv does not exist"),
    "a number": ({"tasks": 3}, "pairs: expected rows but found the number 3"),
    "an unused option": ({"tasks": PAIRS, "nhid": 4}, "nhid has no effect without a transfer task"),
}


@pytest.mark.parametrize(("options", "message"), OWN.values(), ids=OWN)
def test_own_data_that_cannot_be_scored_are_refused(options, message, evaluate):
    with pytest.raises(UserError, match=message) as error:
        evaluate(embed, **options)
    assert "\n" not in str(error.value) and "--" not in str(error.value)


def test_the_former_positions_of_the_arguments_are_refused(data):
    with pytest.raises(TypeError, match=r"evaluate\(\) takes from 1 to 2 positional arguments but 4 were given"):
        dcpcse.evaluate(embed, ["STSBenchmark"], data, "dev")
    with pytest.raises(TypeError, match=r"evaluate\(\) missing 1 required positional argument: 'model'"):
        dcpcse.evaluate()
    assert list(inspect.signature(dcpcse.evaluate).parameters)[:3] == ["model", "tasks", "mode"]
