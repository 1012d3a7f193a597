"""`dcpcse mine`: its file trains and equals that of `dcpcse.mine`."""

import pytest
from runs import words

import dcpcse
from dcpcse.cli.commands.mine import mine_command


@pytest.fixture(scope="module")
def pairs(sentences, tmp_path_factory) -> str:
    """Twelve pairs; the first and the last have the same anchor."""
    rows = [(sentence, f"{sentence} 1") for sentence in (*sentences[:11], sentences[0])]
    path = tmp_path_factory.mktemp("data") / "pairs.csv"
    path.write_text("anchor,positive\n" + "".join(f'"{a}","{b}"\n' for a, b in rows), encoding="utf-8")
    return str(path)


def test_the_file_is_that_of_python_and_trains(tiny, pairs, train, train_txt, tool, tmp_path):
    output = tmp_path / "mined.csv"
    how = {"corpus": train_txt, "num_negatives": 3, "sampling": "random", "seed": 3, "guide_margin": -0.5}
    places = {"output": output, "guide": tiny("roberta"), "guide_pooler": "max", "pooler": "avg", "device": "cpu"}
    outcome = tool(mine_command, [tiny("bert"), pairs, *words({**how, **places})])
    assert outcome.code == 0, outcome.err
    how |= {"guide": dcpcse.load(tiny("roberta"), pooler="max"), "output": tmp_path / "python.csv"}
    result = dcpcse.mine(dcpcse.load(tiny("bert"), pooler="avg"), pairs, **how, show_progress=False)
    assert output.read_bytes() == result.output.read_bytes()
    assert outcome.out == f"{result}\n"
    assert f"wrote {result.rows} rows to {output}" in outcome.said
    assert "12 pairs with 11 anchors; 40 sentences in the index" in outcome.said
    run = train(tiny("bert"), str(output), max_steps=2)
    assert len(run.logged("loss")) == 2
    assert run.batches[0]["input_ids"].shape[1] == 5  # anchor, positive and three negatives


def test_a_plain_encoder_as_guide_is_averaged_as_in_training(tiny, pairs, train_txt, tool, tmp_path):
    written, usual = {}, ["--corpus", train_txt, "--guide_margin", "0.1", "--pooler", "avg", "--device", "cpu"]
    for name, pooler in {"default": [], "avg": ["--guide_pooler", "avg"], "max": ["--guide_pooler", "max"]}.items():
        path = tmp_path / f"{name}.csv"
        argv = [tiny("bert"), pairs, *usual, "--output", str(path), "--guide", tiny("distilbert"), *pooler]
        assert "the guide left out" in tool(mine_command, argv).said
        written[name] = path.read_bytes()
    assert written["default"] == written["avg"] != written["max"]
