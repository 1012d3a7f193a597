"""Plots: their content, their formats, and reproducible bytes."""

import io
import json
from collections import Counter
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image
from tables import check_rows
from transformers import AutoTokenizer

from dcpcse.analysis.plots import alignment_uniformity, cosines, inputs, projections, scores, style, training_curves
from dcpcse.analysis.plots.alignment_uniformity import Point
from dcpcse.utils.errors import UserError

ROOT = Path(__file__).parents[2]
RANDOM = np.random.default_rng(0)
GOLD = np.round(RANDOM.uniform(0, 5, 200), 1)
SCORED = {
    "one": inputs.PairScores(GOLD, np.clip(GOLD / 6 + RANDOM.normal(0, 0.2, 200), -1, 1), 81.234),
    "a trained one": inputs.PairScores(GOLD, GOLD / 5, 99.5),
    "two": inputs.PairScores(GOLD, np.clip(RANDOM.normal(0.5, 0.2, 200), -1, 1), 3.5),
}
POINTS = [
    Point("base", 0.2, -1.5, 60.0),
    Point("unknown", 0.3, -2.5),
    *(Point("run", 0.3 - 0.01 * step, -2 - 0.1 * step, 60 + step, step) for step in (10, 5, 0)),
]
PROJECTED = {
    "cls": projections.ProjectedPairs(
        {name: tuple(RANDOM.normal(size=(2, n, 2))) for name, n in (("gold 0", 5), ("gold 3", 4), ("gold 5", 6))},
        ("component 1", "component 2"),
    )
}
MODELS = (
    {name: RANDOM.normal(size=(30, 2)) + i for i, name in enumerate(("one", "two", "three"))},
    ("t-SNE 1", "t-SNE 2"),
)
TOKENS = [
    projections.Tokens(
        label, matrix, RANDOM.normal(size=(size, 2)), np.arange(size), np.arange(size) < 7, np.arange(size) % 5 < 2,
        ("component 1 (25.0%)", "component 2 (12.5%)"),
    )
    for label, matrix, size in (
        ("untied", "input embeddings", 50), ("untied", "MLM head", 50), ("tied", "input embeddings = MLM head", 2000),
    )
]  # fmt: skip
LENGTHS = {8: [77.0, 78.0, 78.5], 4: [75.5], 16: [78.0, 79.0]}
DRAWS = {"ours": {"MR": [60.0, 62.5, 61.0], "CR": [70.0, 71.0]}, "theirs": {"MR": [55.0, 55.0]}}
LEFT_OUT = {"avg": {0: 82.0, 1: 81.0, 10: 75.5}, "cls": {0: 60.0, 1: 61.0}}
RUNS = {
    "a": [
        {"step": 5, "epoch": 0.1, "loss": 2.0, "loss_crtd": 1.0, "learning_rate": 0.1, "grad_norm": None},
        {"step": 5, "epoch": 0.1, "eval_stsb_spearman": 0.75},
        {"step": 10, "loss": 1.0, "loss_crtd": None, "learning_rate": 0.05, "grad_norm": 3.0},
        {"step": 15, "loss": 0.5, "loss_crtd": 0.25, "learning_rate": 0.0, "grad_norm": 2.0},
        {"step": 15, "train_runtime": 3.5, "train_loss": 1.2, "total_flos": 0.0},
    ],
    "b": [{"step": 5, "loss": 3.0}],
}

PLOTS = {
    "cosines": (lambda: cosines.draw_cosines(SCORED), "one; Spearman × 100 = 81.23; gold score bin, pairs (n = 200)"),
    "cosines only": (lambda: cosines.draw_cosines(SCORED, bins=False), "two; gold score; cosine similarity"),
    "densities": (lambda: cosines.draw_densities(SCORED), "one; a trained one; density; cosine similarity"),
    "embeddings": (lambda: projections.draw_embeddings(*MODELS), "one; two; three; t-SNE 1"),
    "plane": (lambda: alignment_uniformity.draw(POINTS), "base (60.00); unknown; run (70.00); step 0; step 10"),
    "pairs": (lambda: projections.draw_pairs(PROJECTED), "cls; gold 0 (n = 5); gold 3 (n = 4); gold 5 (n = 6)"),
    "tokens": (lambda: projections.draw_tokens(TOKENS[:1], "wiki.txt"), "starts a word, with a capital letter"),
    "matrices": (lambda: projections.draw_tokens(TOKENS, "wiki.txt"), "component 1 (25.0%); 10k"),
    "prompt length": (lambda: scores.draw_prompt_lengths(LENGTHS, {4: 76.5}, comparable=False), "4; 8; 16; one seed"),
    "fewshot": (lambda: scores.draw_fewshot(DRAWS), "MR; CR; ours; theirs; accuracy, %"),
    "frequent": (lambda: scores.draw_frequent(LEFT_OUT), "avg; cls; 10; Spearman × 100"),
    "curves": (lambda: training_curves.draw(RUNS), "loss; loss_crtd; learning rate; dev: stsb_spearman; a; b"),
}


def nodes(svg: bytes, tag: str) -> list[ElementTree.Element]:
    return [node for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("}" + tag)]


def texts(svg: bytes) -> set[str]:
    """All texts of a plot; the lines of one text are joined by a blank."""
    return {" ".join("".join(node.itertext()).split()) for node in nodes(svg, "text")}


def marks(figure, color: str) -> list[tuple[float, float]]:
    """The positions of all markers of a fill colour, in units of the SVG: x to the right, y downwards."""
    uses = nodes(style.svg(figure), "use")
    found = [node for node in uses if f"fill: {color.lower()}" in node.get("style", "")]
    return [(float(node.get("x")), float(node.get("y"))) for node in found]


def assert_on_a_line(shown, values, rising: bool) -> None:
    """Check that positions are an affine function of the values, as on a linear axis."""
    slope, start = np.polyfit(values, shown, 1)
    np.testing.assert_allclose(slope * np.asarray(values) + start, shown, atol=1e-3)
    assert (slope > 0) == rising


def test_every_plot_has_its_labels():
    def check(name):
        draw, labels = PLOTS[name]
        assert {*labels.split("; ")} <= {text.replace(";", ",") for text in texts(style.svg(draw()))}

    check_rows(PLOTS, check)


@pytest.mark.parametrize("name", ["densities", "plane", "frequent"])
def test_a_plot_repeats_its_bytes_whatever_the_settings_of_matplotlib(name):
    figures = [PLOTS[name][0]()]
    with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "path", "axes.grid": False, "savefig.dpi": 50}):
        figures.append(PLOTS[name][0]())
        again = style.svg(figures[1]), style.png(figures[1])
    svg, png = style.svg(figures[0]), style.png(figures[0])
    assert again == (svg, png)
    image = Image.open(io.BytesIO(png))
    assert image.size == tuple(int(inches * 240) for inches in figures[0].get_size_inches())
    assert np.asarray(image.convert("L")).std() > 5


def test_labels_are_drawn_literally():
    figure = scores.draw_frequent({"_hidden": {0: 1.0, 1: 2.0}, "$a_b$ & c<d\x00\udcff": {0: 2.0, 1: 3.0}})
    assert {"\N{ZERO WIDTH SPACE}_hidden", r"$a_b$ & c<d\u0000\udcff"} <= texts(style.svg(figure))


def test_nothing_is_written_if_one_of_the_files_cannot_be_rendered(tmp_path, monkeypatch):
    monkeypatch.setattr(style, "svg", lambda figure: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        style.save(scores.draw_frequent(LEFT_OUT), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_bins_hold_each_pair_once_and_the_last_one_its_end():
    gold = np.array([0.0, 0.99, 1.0, 3.9, 4.0, 5.0, 5.0])
    found = cosines.binned(inputs.PairScores(gold, np.arange(7) / 10, 0.0))
    expected = {(0, 1): [0.0, 0.1], (1, 2): [0.2], (3, 4): [0.3], (4, 5): [0.4, 0.5, 0.6]}
    assert {ends: pytest.approx(values.tolist()) for ends, values in found.items()} == expected


def test_the_hexagons_count_every_pair_once_and_bins_say_how_many():
    figure = cosines.draw_cosines(SCORED)
    hexagons = [shown for axes in figure.axes for shown in axes.collections if shown.get_label() == "pairs"]
    assert [shown.get_array().sum() for shown in hexagons] == [200, 200, 200]
    naive = Counter(min(int(gold), 4) for gold in GOLD)
    assert {*map(str, naive.values()), "0–1", "4–5"} <= texts(style.svg(figure))


def test_the_curve_of_each_model_is_the_sum_of_a_gaussian_kernel_at_every_cosine():
    curves = cosines.draw_densities(SCORED).axes[0].lines
    assert len(curves) == len(SCORED)
    for curve, scored in zip(curves, SCORED.values(), strict=True):
        x, height = curve.get_xdata(), curve.get_ydata()
        values = scored.cosine.tolist()
        width = stdev(values) * len(values) ** (-1 / 5)  # Scott's rule
        naive = [mean(np.exp(-((at - one) ** 2) / (2 * width**2)) for one in values) for at in x]
        np.testing.assert_allclose(height, np.array(naive) / (width * np.sqrt(2 * np.pi)), rtol=1e-9)
        assert np.trapezoid(height, x) == pytest.approx(1, abs=1e-4)


def test_every_distinct_sentence_is_sampled_once():
    texts = [f"sentence {i}" for i in range(8)]
    sets = [SimpleNamespace(first=texts[:3], second=[texts[0], texts[3], texts[1]])]
    sets += [SimpleNamespace(first=texts[4:6], second=[texts[2], texts[6]])]
    order = [text for pairs in sets for text in pairs.first] + [text for pairs in sets for text in pairs.second]
    rows = projections.sample_sentences(sets, 10, seed=0)
    assert [order[row] for row in rows] == list(dict.fromkeys(order))
    some = [projections.sample_sentences(sets, 3, seed).tolist() for seed in (0, 0, 1)]
    assert some[0] == some[1] != some[2]
    assert set(some[0]) < set(rows)


def test_points_of_the_plane_are_at_their_coordinates_and_runs_are_paths_in_the_order_of_their_steps():
    # Without scores: hollow ones, so that all marks have one colour.
    points = [Point(f"m{i}", 0.1 * i, -3 + 0.7 * i**2) for i in range(5)]
    x, y = zip(*marks(alignment_uniformity.draw(points), "#ffffff"), strict=True)
    assert_on_a_line(x, [point.uniformity for point in points], rising=True)
    assert_on_a_line(y, [point.alignment for point in points], rising=False)
    arrows = [text for text in alignment_uniformity.draw(POINTS).axes[0].texts if text.arrow_patch]
    ways = [[*arrow.xyann, *arrow.xy] for arrow in arrows]
    np.testing.assert_allclose(ways, [[-2, 0.3, -2.5, 0.25], [-2.5, 0.25, -3, 0.2]])


def test_the_sentences_of_a_pair_are_joined_by_lines_that_differ_between_groups():
    (axes,) = projections.draw_pairs(PROJECTED).axes
    places = [np.stack([first, second], axis=1) for first, second in PROJECTED["cls"].groups.values()]
    np.testing.assert_allclose([line.get_xydata() for line in axes.lines], np.concatenate(places))
    looks = list(dict.fromkeys((line.get_color(), line.get_linestyle()) for line in axes.lines))
    assert looks == [("#D55E00", "--"), ("#0072B2", "-"), ("#009E73", "-.")]  # 0 orange, 3 blue, 5 green (ConPVP)


def test_pairs_of_the_groups_and_of_no_other_are_sampled():
    gold = np.array([0.5, 1.0, 2.0, 4.0, 4.1, 5.0, 0.0, 3.0])
    sampled = projections.sample_pairs(projections.grouped(gold), 10, seed=0)
    assert {name: [*rows] for name, rows in sampled.items()} == {"gold at most 1": [0, 1, 6], "gold above 4": [4, 5]}
    many = np.tile(gold, 50)
    rows, again, other = (
        projections.sample_pairs(projections.grouped(many, given), 10, seed)
        for given, seed in (([5, 0, 3], 0), ([0, 3, 5], 0), ([0, 3, 5], 1))
    )
    assert list(rows) == ["gold 0", "gold 3", "gold 5"]
    for name, own in rows.items():
        assert set(many[own]) == {float(name[-1])} and len(set(own)) == 10
        assert np.array_equal(own, again[name]) and not np.array_equal(own, other[name])
    with pytest.raises(UserError, match=r"no pair with gold above 4; .* --task or --split"):
        projections.grouped(np.array([1.0, 2.0]))


def test_pca_gives_the_two_main_directions():
    vectors = RANDOM.normal(size=(40, 6)) * [5, 3, 1, 1, 1, 1]
    places, names = projections.project(vectors, "pca", seed=0)
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    np.testing.assert_allclose(abs(places), abs(left[:, :2] * sizes[:2]), atol=1e-8)
    assert names[0] == f"component 1 ({sizes[0] ** 2 / sum(sizes**2):.1%})"


def test_t_sne_keeps_clusters_together_and_repeats_itself():
    centres = np.repeat(np.eye(3) * 9, 8, axis=0)
    vectors = centres + RANDOM.normal(0, 0.1, centres.shape)
    places, _ = projections.project(vectors, "tsne", seed=3)
    np.testing.assert_array_equal(places, projections.project(vectors, "tsne", seed=3)[0])
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1) + np.diag(np.full(24, np.inf))
    assert (apart.argmin(1) // 8).tolist() == np.repeat([0, 1, 2], 8).tolist()


def test_each_matrix_has_a_panel_by_rank_and_one_by_class():
    panels = projections.draw_tokens(TOKENS, "wiki.txt").axes[: 2 * len(TOKENS)]
    kinds = {(False, False): "#0072b2", (False, True): "#d55e00", (True, False): "#e69f00", (True, True): "#cc79a7"}
    for tokens, by_rank, by_class in zip(TOKENS, panels[:3], panels[3:], strict=True):
        absent, seen = by_rank.collections
        np.testing.assert_array_equal(absent.get_offsets(), tokens.places[tokens.rank == 0])
        # The most frequent token is drawn last, and the ranks belong to their tokens.
        np.testing.assert_array_equal(seen.get_array(), sorted(tokens.rank[tokens.rank > 0], reverse=True))
        np.testing.assert_array_equal(seen.get_offsets(), tokens.places[1:][::-1])
        shown = {matplotlib.colors.to_hex(dots.get_facecolor()): dots.get_offsets() for dots in by_class.collections}
        for (subword, capital), color in kinds.items():
            own = tokens.places[(tokens.subword == subword) & (tokens.capital == capital)]
            assert {tuple(place) for place in shown[color]} == {tuple(place) for place in own}
    assert len({panel.collections[1].norm for panel in panels[:3]}) == 1  # one scale for all panels


def test_ranks_count_every_token_of_a_text_without_blank_lines(tiny, sentences, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny("bert"))
    lines = [*sentences, *sentences[:5], sentences[0]]
    ranks = projections.frequency_ranks(tokenizer, lines, len(tokenizer) + 3)
    counts = Counter(token for line in lines for token in tokenizer.encode(line, add_special_tokens=False))
    ordered = [token for _, token in sorted((-count, token) for token, count in counts.items())]
    assert [int(ranks[token]) for token in ordered] == list(range(1, len(ordered) + 1))
    assert (ranks > 0).sum() == len(counts)
    (tmp_path / "t").write_text("one\n\n  \ntwo\nthree\n", encoding="utf-8")
    assert projections.read_lines(tmp_path / "t", 2) == ["one", "two"]


def test_lengths_show_mean_deviation_and_every_seed():
    axes = scores.draw_prompt_lengths(LENGTHS, {8: 78.49, 32: 80.0}).axes[0]
    ((line, _, (bars,)),) = axes.containers
    assert line.get_ydata() == pytest.approx([mean(LENGTHS[length]) for length in (4, 8, 16)])
    ends = [path.vertices[:, 1] for path in bars.get_paths()]
    assert [high - low for low, high in ends[1:]] == pytest.approx([2 * stdev(LENGTHS[8]), 2 * stdev(LENGTHS[16])])
    assert not np.isfinite(ends[0]).any()  # of one seed there is no deviation
    assert len(axes.lines[0].get_ydata()) == 6
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8", "16", "32"]
    printed = scores.draw_prompt_lengths({1: [70.0], 16: [75.0]}, {1: 76.5, 16: 78.49}).axes[0].lines[-1]
    assert (printed.get_xdata().tolist(), printed.get_ydata().tolist()) == ([0, 1], [76.5, 78.49])
    assert printed.get_linestyle() == "None"


def answer(folder: Path, rows: dict[str, list], comparable: bool = True) -> Path:
    cell = {"published": 70.5, "comparable": comparable}
    content = {"rows": [{"name": name, "cells": {"avg": {**cell, "values": v}}} for name, v in rows.items()]}
    content["rows"].append({"name": "y/length-9", "cells": {}})  # a row that was not run
    (folder / "answer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder / "answer.json"


def test_lengths_are_read_from_the_rows_that_name_one(tmp_path):
    path = answer(tmp_path, {"x/figure2/length-16": [77.5, 78], "x/figure2/length-4": [76], "x/table1": [1]})
    lengths = {4: [76.0], 16: [77.5, 78.0]}
    assert scores.read_prompt_lengths(path, "x/figure2", "avg") == (lengths, {4: 70.5, 16: 70.5}, True)
    path = answer(tmp_path, {"x/length-1": [1], "y/length-2": [2]}, comparable=False)
    assert scores.read_prompt_lengths(path, "y", "avg") == ({2: [2.0]}, {2: 70.5}, False)


def test_lengths_that_cannot_be_read_are_refused(tmp_path):
    for rows, study, cell, message in (
        ({"x/length-1": [1], "y/length-1": [2]}, None, "avg", "choose one with --study: x, y"),
        ({"x/length-1": [1], "y/length-1": [2]}, "z", "avg", r"--study z: .* x, y"),
        ({"y/length-1": [2]}, "y", "stsb", r"--cell stsb: .*length 1; choose from: avg"),
        ({"x/length-1": [1, None]}, "x", "avg", "length 1: None is not a finite number"),
        ({"x/length-1": []}, "x", "avg", r"length 1: \[\] is not a list of numbers"),
    ):
        with pytest.raises(UserError, match=message):
            scores.read_prompt_lengths(answer(tmp_path, rows), study, cell)


def test_every_draw_is_marked_once_at_its_height():
    figure = scores.draw_fewshot(DRAWS)
    shown = marks(figure, style.COLOURS[0])
    assert_on_a_line([y for _, y in shown], [60.0, 62.5, 61.0, 70.0, 71.0], rising=False)
    assert len({x for x, _ in shown}) == 5
    assert len(marks(figure, style.COLOURS[1])) == 2


def test_panels_are_ordered_and_bookkeeping_is_left_out():
    logged = ["eval_avg", "grad_norm", "epoch", "step", "loss_b", "replaced", "loss", "train_loss", "learning_rate"]
    names = training_curves.metric_names({"a": [dict.fromkeys(logged, 1.0)], "b": [{"loss_a": 1.0}]})
    assert names == ["loss", "loss_b", "loss_a", "learning_rate", "grad_norm", "replaced", "eval_avg"]


def test_values_that_are_not_finite_are_gaps():
    steps, values = training_curves.series(RUNS["a"], "loss_crtd")
    assert steps.tolist() == [5, 10, 15]
    np.testing.assert_array_equal(values, [1.0, np.nan, 0.25])
    (line,) = training_curves.draw({"a": RUNS["a"]}).axes[1].lines
    assert np.isnan(line.get_ydata()).tolist() == [False, True, False]
    with pytest.raises(UserError, match="no values that can be drawn"):
        training_curves.draw({"a": [{"step": 3, "train_runtime": 1.0}]})


def test_labels_are_given_or_the_names_of_the_places(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "a=b").mkdir()
    words = [f"{run}/", f"{run}/checkpoint-5", f"ours={run}", f"{tmp_path}/a=b", "org/model-1.5", "x/scores.json"]
    assert list(inputs.labelled(words)) == ["run", "run/checkpoint-5", "ours", "a=b", "model-1.5", "scores"]
    assert inputs.labelled(words)["ours"] == str(run)
    with pytest.raises(UserError, match="have the same label 'm'; give one of them another label, as in m-2=y/m"):
        inputs.labelled(["x/m", "y/m"])
    with pytest.raises(UserError, match="must be LABEL=PLACE"):
        inputs.labelled(["label="])


def test_characters_that_the_font_lacks_are_named_once_and_are_in_the_svg(caplog, recwarn, tmp_path):
    @style.styled
    def drawn():
        figure = style.figure(3, 2)
        style.title(figure.subplots(), "模型 Ёж ไทย العربية")
        return figure

    _, svg = style.save(drawn(), tmp_path / "plot")
    assert caplog.messages == [
        "the font of plots has no 模, 型, ไ, ท, ย: the PNG shows boxes in their place; the SVG contains the text"
    ]
    assert "模型 Ёж ไทย العربية" in svg.read_text(encoding="utf-8")
    assert not list(recwarn)
