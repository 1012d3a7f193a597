"""The template search: greedy as Table 4, scored on STS-B dev, and resumable."""

import json
from pathlib import Path

import pytest
import yaml
from scipy.stats import spearmanr
from senteval import load_pairs
from senteval_tiny import cosine

from dcpcse.cli.commands.search_templates import search_templates_command
from dcpcse.cli.runner import run
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.encoders.templates import Template
from dcpcse.experiments.template_search import PREFIXES, RELATIONSHIPS, build_template

CANDIDATES = {"relationships": ["", "means"], "prefixes": ["{sentence}", 'The "{sentence}"', "It : {sentence}"]}


@pytest.fixture
def words(tiny, sts_data, tmp_path) -> list[str]:
    path = tmp_path / "candidates.yaml"
    path.write_text(yaml.safe_dump(CANDIDATES), encoding="utf-8")
    places = ["--output_dir", str(tmp_path / "out"), "--candidates", str(path), "--data_dir", sts_data]
    return ["--model_name_or_path", tiny("bert"), "--custom_data", *places]


def scores(tmp_path) -> dict[str, float]:
    return json.loads((tmp_path / "out/scores.json").read_text(encoding="utf-8"))["scores"]


def test_the_search_is_greedy_and_its_scores_are_those_of_a_plain_loop(words, tiny, sts_data, tmp_path, capsys):
    assert run(search_templates_command, words) == 0
    found = scores(tmp_path)
    first = [build_template("{sentence}", words) for words in CANDIDATES["relationships"]]
    best = max(first, key=lambda text: found[text])
    relationship = "means" if "means" in best else ""
    assert set(found) == {*first, *(build_template(prefix, relationship) for prefix in CANDIDATES["prefixes"])}
    backbone = load_backbone(tiny("bert"))
    (pairs,) = load_pairs("STSBenchmark", sts_data, "dev", official=False)
    for text, score in found.items():
        model = plain_encoder(backbone, "mask", Template.parse(text))
        cosines = [*map(cosine, model.encode(pairs.first), model.encode(pairs.second))]
        assert score == pytest.approx(100 * spearmanr(cosines, pairs.gold).statistic, abs=1e-3)
    kept = (tmp_path / "out/best.txt").read_text(encoding="utf-8").splitlines()
    assert kept == sorted(found, key=lambda text: -found[text])[:5]
    assert kept[0] in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--denoise"], ["--denoise", "--final_period"]])
def test_templates_are_scored_with_denoising_and_a_final_period_on_request(options, words, tiny, tmp_path, capsys):
    """The first sentences of the pairs have no full stop here."""
    folder = tmp_path / "data/downstream/STS/STSBenchmark"
    given = Path(words[words.index("--data_dir") + 1]) / "downstream/STS/STSBenchmark/sts-dev.csv"
    folder.mkdir(parents=True)
    (folder / "sts-dev.csv").write_text(given.read_text(encoding="utf-8").replace(".\t", "\t"), encoding="utf-8")
    words[words.index("--data_dir") + 1] = str(tmp_path / "data")
    assert run(search_templates_command, [*words, *options]) == 0
    (pairs,) = load_pairs("STSBenchmark", tmp_path / "data", "dev", official=False)
    assert not any(text.endswith(".") for text in pairs.first)
    denoise, ending = "--denoise" in options, "." if "--final_period" in options else ""
    for text, score in scores(tmp_path).items():
        model = plain_encoder(load_backbone(tiny("bert")), "mask", Template.parse(text), denoise)
        ended = ([text + ending * (not text.endswith(".")) for text in side] for side in (pairs.first, pairs.second))
        cosines = [*map(cosine, *map(model.encode, ended))]
        assert score == pytest.approx(100 * spearmanr(cosines, pairs.gold).statistic, abs=1e-3)
    capsys.readouterr()
    assert run(search_templates_command, [*words, *options]) == 0
    assert run(search_templates_command, words) == 2
    assert "was started with a different option (" in capsys.readouterr().err


def test_a_search_that_was_cut_off_goes_on_and_measures_nothing_twice(words, tiny, tmp_path, monkeypatch, capsys):
    real, calls, stop = SentenceEncoder.set_template, [], [3]

    def counting(self, template, *rest):
        calls.append(str(template))
        if len(calls) in stop:
            raise KeyboardInterrupt
        real(self, template, *rest)

    monkeypatch.setattr(SentenceEncoder, "set_template", counting)
    assert run(search_templates_command, words) == 130
    written = scores(tmp_path)
    calls.clear()
    stop.clear()
    assert run(search_templates_command, words) == 0
    assert not set(calls[1:]) & set(written) and set(written) < set(scores(tmp_path))
    # Scores of another encoder are not taken over.
    words[words.index("--model_name_or_path") + 1] = tiny("roberta")
    capsys.readouterr()
    assert run(search_templates_command, words) == 2
    assert "was started with a different encoder (" in capsys.readouterr().err


def test_candidates_that_make_no_template_are_one_line(words, tmp_path, capsys):
    for content, named in {
        "relationships: []\nprefixes: ['{sentence}']\n": "relationships",
        "relationships: [is]\nprefixes: [This]\n": "'This'",
        "relationships: [is]\nprefixes: ['[MASK] {sentence}']\n": "no [MASK]",
        "relationships: [\n": "is not valid YAML",
    }.items():
        (tmp_path / "candidates.yaml").write_text(content, encoding="utf-8")
        assert run(search_templates_command, words) == 2
        captured = capsys.readouterr().err
        assert named in captured and captured.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_every_built_in_candidate_makes_a_template_and_those_of_table_4_are_among_them():
    texts = {build_template(prefix, words) for prefix in PREFIXES for words in RELATIONSHIPS}
    assert all(Template.parse(text).masks == 1 for text in texts)
    assert {'This sentence : "{sentence}" means [MASK] .', "{sentence} [MASK] .", "{sentence} is [MASK] ."} <= texts
