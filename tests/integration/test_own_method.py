"""The guide to one's own method, step by step: its file, its commands, and what it promises of the result."""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from method_models import Collator
from runs import Run, refused, watching, words

from dcpcse.cli.commands.train import evaluate_command, train_command
from dcpcse.cli.runner import run
from dcpcse.losses import EncodedBatch, row_loss
from dcpcse.methods import METHODS
from dcpcse.utils.errors import UserError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/own-method.md").read_text(encoding="utf-8")
FILES = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
NAME, CODE = FILES[0]
COMMANDS = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)[1].replace("\\\n", " ").splitlines()
METHOD = re.compile(r'@register\(\s*"(\w+)"')
WORDS = [*shlex.split(COMMANDS[0])[2:], "--use_cpu"]

pytestmark = pytest.mark.usefixtures("methods_of_this_test")


@pytest.fixture
def desk(tiny, tmp_path, monkeypatch):
    """A folder with the file of the guide, the sample data and an encoder under the name that the guide gives it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).write_text(CODE, encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/sample").symlink_to(ROOT / "data/sample")
    (tmp_path / "sentence-transformers").mkdir()
    (tmp_path / "sentence-transformers/all-MiniLM-L6-v2").symlink_to(tiny("bert"))
    return tmp_path


def run_with(desk, number: int = 0, **options) -> Run:
    """A run of the method of a file of the guide."""
    name, code = FILES[number]
    (desk / name).write_text(code, encoding="utf-8")
    options = {"plugin": name, "method": METHOD.search(code)[1], "eval_strategy": "no", "logging_steps": 1, **options}
    record = Run(desk / "result/triplet")
    with watching(record):
        assert run(train_command, [*WORDS, *words(options)]) == 0
    return record


def test_its_commands_train_and_measure_it_and_the_result_needs_no_plugin(desk, sentences, tool, pairs):
    """Prompts alone are trained, the loss is that of a loop, and its metric and the guards' are in the log."""
    record = run_with(desk, max_steps=4)
    moved = {name for name, weight in record.final.items() if not torch.equal(weight, record.initial[name])}
    assert moved and all(name.startswith("model.encoder.prompt") for name in moved)
    step, rng = record.trainer.step_module.train(), torch.get_rng_state()
    batch = {name: value for name, value in record.batches[-1].items() if name != "rows"}
    loss = step(**batch)["triplet"]
    torch.set_rng_state(rng)
    views = step.encode(**batch).embeddings
    rows = zip(*(views[name].double() for name in ("anchor", "positive", "negative")), strict=True)
    gaps = [F.cosine_similarity(a, p, dim=0) - F.cosine_similarity(a, n, dim=0) for a, p, n in rows]
    assert loss.item() == pytest.approx(sum(max(0.0, 0.3 - gap.item()) for gap in gaps) / len(gaps), abs=1e-6)
    assert len(record.logged("violated")) == len(record.logged("effective_rank")) == 4
    vectors = step.model.encode(sentences)
    del METHODS["triplet"]
    assert tool(evaluate_command, shlex.split(COMMANDS[1])[2:]).code == 0
    program = "import dcpcse, sys, json; print(json.dumps(dcpcse.load(sys.argv[1]).encode(sys.argv[2:]).tolist()))"
    (desk / "program.py").write_text(program, encoding="utf-8")
    elsewhere = pairs.alone(desk / "program.py", desk / "result/triplet", *sentences)
    assert elsewhere.returncode == 0, elsewhere.stderr
    np.testing.assert_allclose(json.loads(elsewhere.stdout.splitlines()[-1]), vectors, atol=1e-6)


def test_another_tuning_and_a_gradient_cache_hold_for_it(desk):
    run_with(desk, tuning="full", gradient_cache_chunk=8, max_steps=1)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("return F.relu(self.margin - gap).mean()", "return F.relu(self.margin - gap)", "is a tensor of shape (32,)"),
        ("Term(TripletMargin(args.margin))", "TripletMargin(args.margin)", "is TripletMargin; use Term("),
        ("        super().__init__()\n", "", "Term(TripletMargin): the loss is not initialised; call super()"),
        ("margin=0.3,", "margins=0.3,", "unknown option; did you mean 'margin'?"),
    ],
    ids=lambda text: text[:40],
)
def test_a_mistake_in_the_file_is_told_in_a_line(right, wrong, message, desk, tool):
    assert right in CODE
    mistaken = CODE.replace(right, wrong)
    (desk / NAME).write_text(mistaken, encoding="utf-8")
    refused(tool, train_command, [*WORDS, "--eval_strategy", "no"], message)


def test_a_run_does_not_go_on_with_another_method_of_the_same_name(desk, tool):
    again = [*WORDS, *words({"max_steps": 2, "save_steps": 1, "eval_strategy": "no"})]
    assert run(train_command, again) == 0
    (desk / "elsewhere").mkdir()
    moved = (desk / NAME).rename(desk / "elsewhere" / NAME)
    again = [*again, "--resume", "--plugin", f"elsewhere/{NAME}"]
    for code in (CODE, CODE.replace("self.margin - gap", "2 * self.margin - gap")):
        moved.write_text(code, encoding="utf-8")
        (desk / "result/triplet/dcpcse.json").unlink()
        del sys.modules["triplet"], METHODS["triplet"]
        outcome = tool(train_command, again)
        assert outcome.code == (0 if code == CODE else 2)
    assert "was written with another file of the method" in outcome.err


def test_the_second_file_sees_all_rows(desk):
    record = run_with(desk, 1, max_steps=2, gradient_cache_chunk=8)
    loss_fn = record.trainer.method.terms["uniformity"].loss
    rows = torch.randn(5, 8, dtype=torch.float64)
    unit = [row / row.norm() for row in rows]
    pairs = [((unit[i] - unit[j]) ** 2).sum() for i in range(5) for j in range(i)]
    expected = torch.stack([torch.exp(-2 * pair) for pair in pairs]).mean().log()
    step = EncodedBatch(None, None, None, {"anchor": rows})
    torch.testing.assert_close(loss_fn(step), expected)
    assert len(record.logged("loss_uniformity")) == 2


def test_the_fourth_file_learns_the_cosines_of_a_second_encoder(desk, sentences, tiny):
    record = run_with(desk, 3, max_steps=1, gradient_cache_chunk=8, cosines_of=tiny("roberta"))
    method = record.trainer.method
    rows = [{"anchor": sentences[i], "positive": sentences[i + 1], "negative": sentences[i + 2]} for i in range(3)]
    step, batch = record.trainer.step_module.eval(), Collator.of(method, 32)(rows)
    own, other = ([*map(model.encode, zip(*map(dict.values, rows), strict=True))] for model in (
        method.model, method.guides["other"].model
    ))  # fmt: skip
    gaps = [cosine(*own[:2], i) - cosine(*other[:2], i) for i in range(3)]
    with torch.no_grad():
        assert step(**batch)["same_cosine"].item() == pytest.approx(np.square(gaps).mean(), abs=1e-6)


def test_a_guide_of_the_method_does_not_replace_that_of_the_option(desk, tiny, tool):
    name, code = FILES[3]
    (desk / name).write_text(code.replace('"other"', '"guide"'), encoding="utf-8")
    given = {"plugin": name, "method": "distil", "cosines_of": tiny("roberta"), "guide": tiny("roberta")}
    message = "--guide: --method distil already has a guide named guide; leave"
    refused(tool, train_command, [*WORDS, *words(given)], message)


def cosine(first, second, i):
    return first[i] @ second[i] / np.linalg.norm(first[i]) / np.linalg.norm(second[i])


def test_a_function_of_rows_gives_one_loss_per_row():
    views = {"anchor": torch.randn(4, 6, dtype=torch.float64), "positive": torch.randn(4, 6, dtype=torch.float64)}
    batch = EncodedBatch(None, torch.zeros(4, 2, 3), None, views)

    def distance(batch):
        return (batch.embeddings["anchor"] - batch.embeddings["positive"]).norm(dim=1)

    loss_fn = row_loss(distance)
    loss_fn.widths = [(2, 0.5), (6, 2.0)]
    gap = views["anchor"] - views["positive"]
    expected = 0.5 * gap[:, :2].norm(dim=1).mean() + 2 * gap.norm(dim=1).mean()
    torch.testing.assert_close(loss_fn(batch), expected)
    with pytest.raises(UserError, match=r"row_loss\(<lambda>\) returned shape \(\) for 4 rows; return one loss per"):
        row_loss(lambda batch: distance(batch).mean())(batch)


def test_the_third_file_orders_scored_pairs_with_a_scale_that_is_trained(desk, scored_csv, tool):
    options = {"train_file": scored_csv, "encoder_dropout": 0, "prompt_dropout": 0, "gradient_cache_chunk": 3}
    record = run_with(desk, 2, max_steps=3, **options)
    scales = record.logged("scale")
    assert scales[0] == pytest.approx(20) and len({*scales}) == 3
    views = {name: torch.randn(6, 5, dtype=torch.float64) for name in ("anchor", "positive")}
    scores = torch.tensor([1.0, 4, 2, 2, 0, 3])
    loss_fn, cosines = record.trainer.method.terms["order"].loss, F.cosine_similarity(*views.values())
    gaps = [cosines[j] - cosines[i] for i in range(6) for j in range(6) if scores[i] > scores[j]]
    expected = (1 + (torch.stack(gaps) * loss_fn.log_scale.exp()).exp().sum()).log()
    found = loss_fn(EncodedBatch(None, None, None, views, precomputed={"scores": scores}))
    torch.testing.assert_close(found, expected)
    given = {"plugin": FILES[2][0], "method": "ordered", "overwrite_output_dir": True}
    refused(tool, train_command, [*WORDS, *words(given)], "method ordered needs scores of pairs")
