"""The page of the miniature is written from the files of units: what is on it, without pictures, and from nothing."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from test_miniature_claims import GOLD, run_of

from dcpcse.analysis.plots import style, token_projection
from dcpcse.experiments.miniature import page as page_module
from dcpcse.experiments.miniature import pictures
from dcpcse.experiments.miniature.claims import CLAIMS
from dcpcse.experiments.miniature.measurement import (
    STS_TASKS,
    Measurement,
    gold_scores,
    read_measurements,
    write_measurement,
)
from dcpcse.experiments.miniature.page import PICTURES, claims_table, collect, write_page
from dcpcse.experiments.miniature.search import search_record
from dcpcse.experiments.miniature.settings import VARIANTS
from dcpcse.experiments.miniature.units import read_trials
from dcpcse.utils.errors import UserError

MEASURED = {"dcpcse": 0.6, "simcse": 1.2, "dcpcse-length-1": 1.0, "untouched-cls": 3.0, "untouched-mean": 2.0}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Some finished units, a failed one, a search, and the encoders of figure 2."""
    random = np.random.default_rng(7)
    for name, noise in MEASURED.items():
        for seed in VARIANTS[name].seeds:
            run = run_of(name, seed, noise, random)
            scores = {**run.scores, "stsb_dev": run.scores["STSBenchmark"], "alignment": 0.2, "recall@1": 50.0}
            facts = {**run.facts, "steps": None if seed is None else 70}
            own = type(run)(name, seed, run.similarities, scores, 30.0, run.learning_rate, facts)
            write_measurement(tmp_path / "units" / name / ("once" if seed is None else f"seed-{seed}"), own)
    (tmp_path / "units/sbert/seed-0").mkdir(parents=True)
    (tmp_path / "units/sbert/seed-0/failed.json").write_text('{"reason": "losses are not finite", "seconds": 3.0}')
    (tmp_path / "encoders/tied").mkdir(parents=True)
    (tmp_path / "encoders/tied/pretrained.json").write_text('{"seconds": 1800}')
    for rate, score in {"0.0001": 40.0, "0.001": 45.0, "0.01": 60.0, "0.1": 50.0, "0.03": 61.5}.items():
        trial = tmp_path / f"search/dcpcse/rate-{rate}"
        trial.mkdir(parents=True)
        (trial / "scores.json").write_text(json.dumps({"scores": {"stsb_dev": score}, "seconds": 60.0}))
    monkeypatch.setitem(style.RC, "savefig.dpi", 40)  # a fine picture takes seconds
    monkeypatch.setattr(page_module, "gold_scores", lambda data_dir, custom_data: GOLD)
    answer = page_module.answer_claims
    monkeypatch.setattr(page_module, "answer_claims", lambda runs, gold: answer(runs, gold, samples=40))
    return tmp_path


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    table = re.search(r"(?:^\|.*\n)+", page.split(f"\n## {heading}\n")[1], re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_page_has_every_claim_and_the_figures_of_the_files(folder, tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "docs/miniature.md"
    target.parent.mkdir()
    results = write_page(folder, target)
    page = target.read_text(encoding="utf-8")
    claims = rows_of(page, "The claims")
    assert [row[0].removeprefix("★ ") for row in claims] == [claim.title for claim in CLAIMS]
    assert [row[0].startswith("★ ") for row in claims] == [claim.starred for claim in CLAIMS]
    verdicts = {claim.key: row[-1] for claim, row in zip(CLAIMS, claims, strict=True)}
    assert verdicts["prompts-over-full"] == verdicts["prompts-over-untouched-cls"] == "holds"
    assert {verdicts[key] for key in ("d2cse-over-dcpcse", "sbert", "case")} == {"not run"}
    assert claims[2][2:4] == ["76.25 → 78.49", f"{average('simcse', folder):.2f} → {average('dcpcse', folder):.2f}"]
    trained = {row[0].split("`")[1]: row for row in rows_of(page, "Scores of the trained variants")}
    assert list(trained) == ["dcpcse", "dcpcse-length-1", "simcse"], "the best one is first"
    values = [run.average for run in read_measurements(folder) if run.variant == "simcse"]
    assert trained["simcse"][-2] == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert trained["simcse"][1:3] == ["5", "0.001"]
    assert [row[0] for row in rows_of(page, "The untouched encoder")] == ["`untouched-mean`", "`untouched-cls`"]
    (search,) = rows_of(page, "The learning rates")
    assert search[:7] == ["`dcpcse`", "40.00", "45.00", "60.00", "**61.50**", "50.00", "5.0"]
    assert [row[0] for row in rows_of(page, "The length of the prompt")] == ["1", "16"]
    assert "The pretraining of the small encoders took 30 (tied) minutes." in " ".join(page.split())
    assert "trained for 70 steps" in page and "- sbert, seed-0 failed: losses are not finite" in page
    assert "`dcpcse`" not in page.split("## Not run")[1] and "`sbert` (3 of 3 seeds)" in page
    figures = json.loads((tmp_path / "docs/miniature/miniature.json").read_text(encoding="utf-8"))
    assert [one["verdict"] for one in figures["claims"]] == [row[-1] for row in claims]
    assert figures["variants"]["simcse"]["scores"]["avg"] == pytest.approx(values)
    table = claims_table(results.answers)
    assert "* DCPCSE: prompts beat training the whole encoder" in table and f"{len(CLAIMS)} claims: " in table


def average(variant: str, folder: Path) -> float:
    """The mean over seeds and tasks of the correlations of the stored cosines, by scipy."""
    runs = [run for run in read_measurements(folder) if run.variant == variant]
    each = [stats.spearmanr(run.similarities[task], GOLD[task]).statistic for run in runs for task in STS_TASKS]
    return 100 * float(np.mean(each))


def test_pictures_are_those_that_can_be_drawn(folder, tmp_path):
    pytest.importorskip("matplotlib")
    target, beside = tmp_path / "miniature.md", tmp_path / "miniature"
    beside.mkdir()
    (beside / "tokens.png").write_bytes(b"of an earlier page")
    write_page(folder, target)
    names = ["claims", "scores", "lengths"]
    assert {path.name for path in beside.iterdir()} == {*(f"{name}.png" for name in names), "miniature.json"}
    assert all((beside / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
    shown = {name: f"miniature/{name}.png" for name in names}
    text = target.read_text(encoding="utf-8")
    assert re.findall(r"!\[.+\]\((.+)\)", text) == list(shown.values())
    assert page_module.page(collect(folder), shown) == text, "the same files give the same page"


def test_without_matplotlib_the_page_says_so(folder, tmp_path, monkeypatch, caplog):
    def missing() -> None:
        raise UserError("plots need matplotlib")

    monkeypatch.setattr(page_module, "require_matplotlib", missing)
    write_page(folder, tmp_path / "miniature.md")
    page = (tmp_path / "miniature.md").read_text(encoding="utf-8")
    assert "No pictures: plots need matplotlib" in page and "![" not in page
    assert "the page is written without pictures: plots need matplotlib" in caplog.text
    assert {path.name for path in (tmp_path / "miniature").iterdir()} == {"miniature.json"}


def test_the_page_of_an_empty_folder_is_valid_and_needs_no_data(tmp_path):
    results = write_page(tmp_path / "nothing", tmp_path / "miniature.md", tmp_path / "no data")
    page = (tmp_path / "miniature.md").read_text(encoding="utf-8")
    assert {row[-1] for row in rows_of(page, "The claims")} == {"not run"}
    assert "Nothing has been measured yet" in page and "![" not in page and not results.measurements


def test_the_page_in_the_repository_has_the_claims_of_this_version():
    page = (ROOT / "docs/miniature.md").read_text(encoding="utf-8")
    assert [row[0].removeprefix("★ ") for row in rows_of(page, "The claims")] == [claim.title for claim in CLAIMS]
    shown = set(re.findall(r"!\[.+\]\(miniature/(.+)\.png\)", page))
    assert shown <= set(PICTURES) and all((ROOT / f"docs/miniature/{name}.png").is_file() for name in shown)


def test_the_figures_in_the_repository_are_those_of_the_stored_units(tmp_path):
    """Whoever continues the miniature unpacks these units, whose cosines the answers are computed from."""
    shutil.unpack_archive(ROOT / "docs/miniature/units.tar.xz", tmp_path, filter="data")
    runs: dict[str, list[Measurement]] = {}
    for one in read_measurements(tmp_path):
        runs.setdefault(one.variant, []).append(one)
    figures = json.loads((ROOT / "docs/miniature/miniature.json").read_text(encoding="utf-8"))
    shown = {
        name: (of["seeds"], of["learning_rates"], of["scores"]["avg"]) for name, of in figures["variants"].items()
    }
    stored = {
        name: ([run.seed for run in of], [run.learning_rate for run in of], [run.average for run in of])
        for name, of in runs.items()
    }
    assert stored == shown
    assert figures["search"] == search_record(read_trials(tmp_path))


def test_the_stored_cosines_give_the_scores_on_the_real_data(real_data, tmp_path):
    shutil.unpack_archive(ROOT / "docs/miniature/units.tar.xz", tmp_path, filter="data")
    gold = gold_scores(real_data)
    for run in read_measurements(tmp_path)[::7]:
        each = [stats.spearmanr(run.similarities[task], gold[task]).statistic for task in STS_TASKS]
        assert 100 * np.mean(each) == pytest.approx(run.average, abs=0.05)


def test_units_of_variants_that_are_gone_are_named(folder, caplog):
    old = folder / "units/untouched-mean"
    old.rename(folder / "units/old")
    record = json.loads((folder / "units/old/once/scores.json").read_text())
    (folder / "units/old/once/scores.json").write_text(json.dumps({**record, "variant": "old"}))
    assert "untouched-mean" not in collect(folder).runs
    assert "contains old, which is no variant of this version" in caplog.text


def test_the_token_embeddings_are_stored_and_drawn_without_the_encoders(tiny, train_txt, tmp_path):
    pytest.importorskip("matplotlib")
    pictures.store_tokens(tmp_path, {"untied": Path(tiny("bert")), "tied": Path(tiny("bert"))}, Path(train_txt))
    panels, text = pictures.read_tokens(tmp_path)
    assert text == Path(train_txt).name and {panel.label for panel in panels} == {"untied", "tied"}
    from dcpcse.inference.arguments import EncoderArguments
    from dcpcse.inference.loading import load_model

    model = load_model(tiny("bert"), EncoderArguments(pooler_type="static_lm_head"))
    lines = token_projection.read_lines(Path(train_txt), 100)
    (own, *_) = token_projection.token_panels("untied", model, ["input", "mlm_head"], lines)
    np.testing.assert_allclose(panels[0].places, own.places, rtol=2e-3, atol=1e-4)
    for name in ("rank", "subword", "capital"):
        np.testing.assert_array_equal(getattr(panels[0], name), getattr(own, name))
    assert panels[0].axes == own.axes
    assert style.png(pictures.draw_tokens(tmp_path)).startswith(b"\x89PNG")
    (tmp_path / pictures.TOKENS).write_bytes(b"damaged")
    with pytest.raises(UserError, match="is damaged; delete it"):
        pictures.read_tokens(tmp_path)
