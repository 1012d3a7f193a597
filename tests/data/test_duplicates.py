"""What is counted while a training file is read: rows that repeat, and pairs that teach nothing."""

import random
import shutil
from itertools import combinations
from pathlib import Path

import pytest

from dcpcse.cli.commands.train import train_command
from dcpcse.cli.runner import run
from dcpcse.data import duplicates
from dcpcse.data.columns import ROLES
from dcpcse.data.duplicates import Duplicates
from dcpcse.utils import files


def counted(rows, roles=None, chunk=1000):
    repeats = Duplicates(ROLES[: len(rows[0])] if roles is None else roles)
    for start in range(0, len(rows), chunk):
        repeats.add(list(enumerate(rows[start : start + chunk], start=start + 1)))
    return repeats.found()


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize(("positives", "negatives"), [(0, 0), (1, 0), (1, 1), (2, 0), (3, 2)])
def test_every_repeat_is_counted_as_two_loops_over_all_rows_count_it(positives, negatives, in_parts, monkeypatch):
    if in_parts:  # from a file, in several parts, each read in several chunks
        monkeypatch.setattr(files, "MEMORY_BYTES", 64)
        monkeypatch.setattr(duplicates, "PART_ROWS", 8)
        monkeypatch.setattr(duplicates, "READ_ROWS", 3)
    roles = ("anchor", *(f"positive_{i}" for i in range(positives)), *(f"negative_{i}" for i in range(negatives)))
    random.seed(len(roles))
    rows = [[random.choice("abcdef") for _ in roles] for _ in range(40)]
    for row in rows[::3]:  # with fewer positives and hard negatives than others
        row[3:] = [None for _ in row[3:]]
    found = counted(rows, roles)
    again = [i for i, row in enumerate(rows, start=1) if row in rows[: i - 1]]
    own = slice(1, 1 + positives)
    pairs = [(one, other) for one, other in combinations(rows, 2)]
    assert found.pairs == sum((a[0] == b[0]) + len({*a[own]} & {*b[own]} - {None}) for a, b in pairs)
    identical = [i for i, row in enumerate(rows, start=1) if row[0] in row[own]]
    contradictory = [i for i, row in enumerate(rows, start=1) if {*row[: own.stop]} & {*row[own.stop :]} - {None}]
    for part, lines in ((found.duplicates, again), (found.identical, identical), (found.contradictory, contradictory)):
        assert (part.count, list(part.lines)) == (len(lines), lines[:5])
    assert found.relabelled.count == 0


@pytest.mark.parametrize("part_rows", [duplicates.PART_ROWS, 8])
def test_a_pair_with_another_label_is_found_as_a_loop_finds_it(part_rows, monkeypatch):
    monkeypatch.setattr(duplicates, "PART_ROWS", part_rows)
    random.seed(1)
    rows = [[random.choice("abc"), random.choice("ab"), random.choice(["neutral", "entailment"])] for _ in range(40)]
    found, first = counted(rows, ("anchor", "positive", "label"), chunk=7), {}
    relabelled = [i for i, row in enumerate(rows, start=1) if first.setdefault(tuple(row[:2]), row[2]) != row[2]]
    again = [i for i, row in enumerate(rows, start=1) if row in rows[: i - 1]]
    for part, lines in ((found.relabelled, relabelled), (found.duplicates, again)):
        assert (part.count, list(part.lines)) == (len(lines), lines[:5])
    assert (found.rows, found.pairs, found.identical.count, found.contradictory.count) == (40, 0, 0, 0)


def test_the_expected_share_of_batches_is_that_of_drawn_batches():
    random.seed(1)
    rows = [[str(i)] for i in range(400)] + [[str(i)] for i in range(60)]
    drawn = [len({row[0] for row in random.sample(rows, 32)}) < 32 for _ in range(3000)]
    assert counted(rows).share(32) == pytest.approx(sum(drawn) / len(drawn), abs=0.03)
    assert counted([["a"], ["b"]]).share(2) == 0
    assert counted([["a"], ["a"], ["b"]]).share(3) == 1  # the batch is the file


def test_training_reports_repeats_before_a_model_is_loaded(write, tiny, tmp_path, caplog, capsys):
    broken = Path(shutil.copytree(tiny("bert"), tmp_path / "broken"))  # which only loading it shows
    (broken / "model.safetensors").write_bytes(b"damaged")
    table = write("pairs.csv", "a,b,c\na,b,c\nx,x,c\na,b,c\ny,z,y\n\nq,r,s\n")
    for file in (table, write("clean.txt", "one\ntwo\nthree\n")):
        words = ["--model_name_or_path", str(broken), "--train_file", str(file)]
        words += ["--output_dir", str(tmp_path / "out"), "--cache_dir", str(tmp_path / "cache")]
        assert run(train_command, words) == 2
        assert "cannot load the encoder" in capsys.readouterr().err
    (said,) = (message for message in caplog.messages if "dcpcse doctor" in message)
    assert said.startswith(f"{table}: of 5 rows, 1 repeat an earlier row (line 4), 1 have the same sentence as anchor")
    assert "100.0 % of batches of 64 contain a false negative" in said
