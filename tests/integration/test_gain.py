"""The closing line of a training with own evaluation data: untouched encoder, trained model and their difference."""

import re
from itertools import combinations

import numpy as np
import pytest
import torch
from runs import as_interrupted, assert_same_weights
from scipy.stats import spearmanr
from sentence_folders import write_sentence_folder
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse.cli.commands.info import info_command
from dcpcse.cli.commands.report import report_command
from dcpcse.training import gain
from dcpcse.training.run_history import read_run
from dcpcse.utils.run_files import GAIN, read_gains

LINE = re.compile(
    r"^(?P<data>\S+) \((?P<size>\d+) (pairs|texts), (?P<metric>.+) x 100\): untouched (?P<untouched>\S+) "
    r"\((?P<representation>.*?)\), trained (?P<trained>\S+), difference (?P<difference>\S+) "
    r"\((95 % interval (?P<low>\S+) to (?P<high>\S+), which covers (pairs|texts), not seeds|there are too few .*)\)"
    r"(?P<chose>; these (pairs|texts) also chose the checkpoint)?$"
)


@pytest.fixture(scope="module")
def rows(sentences) -> list[tuple[str, str, float]]:
    """40 different pairs with scores: more than an interval needs."""
    pairs, scores = list(combinations(sentences, 2))[:40], np.random.default_rng(5).permutation(40)
    return [(first, second, float(score)) for (first, second), score in zip(pairs, scores, strict=True)]


@pytest.fixture(scope="module")
def own(tmp_path_factory, sentences, rows) -> dict[str, str]:
    """Files of own data by kind."""
    folder = tmp_path_factory.mktemp("own")
    contents = {
        "pairs.tsv": "".join(f"{first}\t{second}\t{score}\n" for first, second, score in rows),
        "few.tsv": "".join(f"{first}\t{second}\t{score}\n" for first, second, score in rows[:6]),
        "binary.tsv": "".join(f"{first}\t{second}\t{int(score > 20)}\n" for first, second, score in rows),
        "labels.tsv": "text\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(sentences)),
    }
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return {name.partition(".")[0]: str(folder / name) for name in contents}


def gains(caplog) -> list[re.Match]:
    """The closing lines in the log."""
    return [found for line in caplog.messages if (found := LINE.match(line))]


def mean_or_cls(encoder: str, texts: list[str], mean: bool) -> np.ndarray:
    """Unit vectors by transformers alone, one text at a time."""
    model, tokenizer = AutoModel.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)
    with torch.no_grad():
        hidden = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    vectors = torch.stack([one.mean(0) if mean else one[0] for one in hidden])
    return torch.nn.functional.normalize(vectors, dim=-1).numpy().astype(float)


def cosines(vectors: np.ndarray) -> np.ndarray:
    half = len(vectors) // 2
    return (vectors[:half] * vectors[half:]).sum(1)


def both_sides(rows) -> list[str]:
    return [first for first, _, _ in rows] + [second for _, second, _ in rows]


def naive_error(before: np.ndarray, after: np.ndarray, gold: np.ndarray) -> float:
    """The standard error × 100 of a difference of Spearman correlations: the same pairs are drawn for both."""
    draw, found = np.random.default_rng(1), []
    for _ in range(600):
        rows = draw.integers(len(gold), size=len(gold))
        found.append(spearmanr(after[rows], gold[rows]).statistic - spearmanr(before[rows], gold[rows]).statistic)
    return 100 * float(np.std(found))


@pytest.mark.parametrize("is_sentence_encoder", [False, True])
def test_the_closing_line_compares_with_the_encoder_by_its_own_representation(
    is_sentence_encoder, tiny, train, train_txt, own, rows, tmp_path, caplog, tool
):
    encoder = tiny("bert")
    if is_sentence_encoder:
        encoder = write_sentence_folder(tmp_path / "encoder", encoder, normalize=False)
    run = train(encoder, train_txt, eval_pairs=own["pairs"], eval_steps=2, learning_rate=1e-3)
    (found,) = gains(caplog)
    assert caplog.messages[-1] == found[0] and not found["chose"]
    gold, texts = np.array([score for _, _, score in rows]), both_sides(rows)
    before = cosines(mean_or_cls(str(encoder), texts, is_sentence_encoder))
    after = cosines(dcpcse.load(str(run.folder), device="cpu").encode(texts, normalize=True).astype(float))
    scores = [100 * spearmanr(one, gold).statistic for one in (before, after)]
    assert [float(found[name]) for name in ("untouched", "trained")] == pytest.approx(scores, abs=0.006)
    assert float(found["difference"]) == pytest.approx(scores[1] - scores[0], abs=0.006)
    low, high = float(found["low"]), float(found["high"])
    assert (low + high) / 2 == pytest.approx(scores[1] - scores[0], abs=0.02)
    assert (high - low) / 2 / 1.96 == pytest.approx(naive_error(before, after, gold), rel=0.1)
    assert found["representation"] == ("mean pooling" if is_sentence_encoder else "pooler cls_before_pooler")
    assert (found["data"], found["size"], found["metric"]) == ("pairs.tsv", "40", "Spearman")

    (entry,) = read_gains(run.folder)
    np.testing.assert_allclose(entry["outcomes"], before, atol=1e-5)
    (recorded,) = read_run(run.folder).gains
    assert str(recorded) == found[0]
    assert found[0] in tool(info_command, [str(run.folder)]).out
    page = tmp_path / "report.html"
    assert tool(report_command, [str(run.folder), "--output", str(page), "--no_models"]).code == 0
    assert found[0] in page.read_text(encoding="utf-8")


def test_each_kind_of_data_has_a_line_in_its_own_metric(tiny, train, train_txt, own, caplog):
    common = {"eval_steps": 2, "learning_rate": 0.05}
    train(tiny("bert"), train_txt, eval_pairs=own["binary"], eval_labels=own["labels"], **common)
    first, second = gains(caplog)
    assert (first["metric"], second["metric"]) == ("average precision", "accuracy")
    assert (first["size"], second["size"]) == ("40", "12")
    caplog.clear()
    chosen = {"load_best_model_at_end": True, "save_strategy": None}
    run = train(tiny("bert"), train_txt, eval_pairs=own["few"], eval_labels=own["labels"], **common, **chosen)
    first, second = gains(caplog)
    assert "there are too few pairs for an interval" in first[0] and second["low"]
    assert (bool(first["chose"]), bool(second["chose"])) == (True, False)  # the pairs select the best checkpoint
    best = max(run.logged("eval_pairs_spearman")[1:])
    assert float(first["trained"]) == pytest.approx(100 * best, abs=0.006)


def test_with_a_template_the_untouched_encoder_is_asked_by_the_same_one(tiny, train, train_txt, own, rows, caplog):
    train(tiny("bert"), train_txt, eval_pairs=own["pairs"], eval_steps=4, method="promptbert", final_period=True)
    (found,) = gains(caplog)
    template = 'This sentence of "{sentence}" means [MASK].'
    assert found["representation"] == f"pooler mask in the template {template}"
    model = dcpcse.load(tiny("bert"), pooler="mask", template=template, final_period=True, device="cpu")
    score = spearmanr(cosines(model.encode(both_sides(rows), normalize=True)), [score for *_, score in rows]).statistic
    assert float(found["untouched"]) == pytest.approx(100 * score, abs=0.006)


def test_a_resumed_run_prints_the_same_line_from_the_record(
    tiny, train, train_txt, own, caplog, monkeypatch, tmp_path, pairs
):
    """And so do two processes, of which the first prints."""
    options = {"eval_pairs": own["pairs"], "eval_labels": own["labels"], "eval_steps": 2, "learning_rate": 0.05}
    options |= {"save_strategy": "steps", "save_steps": 2}
    whole = train(tiny("bert"), train_txt, **options)
    expected = [found[0] for found in gains(caplog)]
    done = pairs("train.py", *train.argv(tiny("bert"), train_txt, tmp_path / "two", **options))
    assert done.codes == [0, 0], done.stderr
    lines = [found for line in done.stderr.splitlines() if (found := LINE.match(line.strip()))]
    assert [one["untouched"] for one in lines] == [LINE.match(line)["untouched"] for line in expected]
    assert [str(one) for one in read_run(tmp_path / "two").gains] == [found[0] for found in lines]
    folder = as_interrupted(whole.folder, tmp_path / "out", 2)
    assert len(read_gains(folder)) == 2
    for _ in range(2):  # the second time, the run has finished
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setattr(gain, "_load_untouched", lambda *args: pytest.fail("it is measured again"))
            train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
        assert [found[0] for found in gains(caplog)] == expected
    assert_same_weights(folder, whole.folder)
    folder = as_interrupted(whole.folder, tmp_path / "damaged", 2)
    (folder / GAIN).write_text('[{"data": 3}]', encoding="utf-8")
    train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
    assert f"{folder / GAIN} is damaged" in caplog.text and len(read_gains(folder)) == 2


def test_measuring_changes_no_weight_and_overwriting_takes_the_record_away(tiny, train, train_txt, own):
    common = {"method": "esimcse", "learning_rate": 1e-3, "max_steps": 2}  # draws of its own in the collator
    plain = train(tiny("bert"), train_txt, **common)
    measured = train(tiny("bert"), train_txt, eval_pairs=own["pairs"], eval_labels=own["labels"], **common)
    assert_same_weights(plain.folder, measured.folder)
    assert (measured.folder / GAIN).is_file() and not (plain.folder / GAIN).exists()
    train(tiny("bert"), train_txt, folder=measured.folder, overwrite_output_dir=True, **common)
    assert not (measured.folder / GAIN).exists()


def test_from_python_the_result_holds_the_gains(tiny, train, train_txt, own, rows, caplog):
    options = {"eval_steps": 2, "max_steps": 4, "use_cpu": True, "disable_tqdm": True, "cache_dir": train.cache_dir}
    options |= {"per_device_train_batch_size": 4, "learning_rate": 0.03, "save_strategy": "no", "report_to": "none"}
    with caplog.at_level("INFO", logger="dcpcse"):
        objects = dcpcse.train(tiny("bert"), train_txt, eval_pairs=rows, **options)
    (found,), (result,) = gains(caplog), objects.gains
    assert str(result) == found[0] and result.data == "eval_pairs"
    assert result.difference == result.trained - result.untouched
    files = dcpcse.train(tiny("bert"), train_txt, eval_pairs=own["pairs"], **options)
    assert (files.gains[0].untouched, files.gains[0].interval) == (result.untouched, result.interval)
    del options["cache_dir"]
    built = dcpcse.train(None, train_txt, method=files.trainer.method, eval_pairs=rows, **options)
    assert built.gains[0].untouched == pytest.approx(result.untouched)
