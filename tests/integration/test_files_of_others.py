"""Files of the user, links and full disks: nothing is written through a link, lost, or left half-written."""

import contextlib
import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import files, refused, words

from dcpcse.cli.commands.encode import encode_command
from dcpcse.cli.commands.export import export_command
from dcpcse.cli.commands.hub import card_command
from dcpcse.cli.commands.plot import plot_command
from dcpcse.cli.commands.pretrain import corrupt_command
from dcpcse.cli.commands.report import report_command
from dcpcse.cli.commands.runs import runs_command
from dcpcse.cli.commands.search_templates import search_templates_command
from dcpcse.cli.commands.train import evaluate_command, train_command
from dcpcse.evaluation.embedding_cache import EmbeddingCache
from dcpcse.utils.errors import UserError

RECORDS = ("run.yaml", "metrics.jsonl", "environment.json", "trainer_state.json", "train_results.txt", "dcpcse.json")
GUESSED = (".run.yaml.part", "run.yaml.part", ".checkpoint-2.part", ".result.part", "README.md.part", ".metrics.part")


def test_a_run_folder_full_of_links_to_files_of_the_user(train, tiny, train_txt, tool, tmp_path):
    """A run killed before its first checkpoint, whose folder somebody else has prepared, is resumed."""
    mine, output = tmp_path / "thesis.txt", tmp_path / "out"
    mine.write_text("my thesis", encoding="utf-8")
    output.mkdir()
    for name in (*RECORDS[:5], "prompts.safetensors", "tokenizer.json", *GUESSED, ".dcpcse.lock"):
        (output / name).symlink_to(mine)
    argv = train.argv(tiny("bert"), train_txt, output, max_steps=2, save_strategy="steps", save_steps=1)
    refused(tool, train_command, [*argv, "--resume"], ".dcpcse.lock is a link")
    assert mine.read_text(encoding="utf-8") == "my thesis"
    (output / ".dcpcse.lock").unlink()
    assert tool(train_command, [*argv, "--resume"]).code == 0
    assert mine.read_text(encoding="utf-8") == "my thesis"
    assert not [name for name in RECORDS if (output / name).is_symlink()]
    assert [name for name in GUESSED if not (output / name).is_symlink()] == []
    assert sorted(path.name for path in output.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]


def test_files_in_which_something_is_changed_are_no_links(words_of_templates, tool, tmp_path):
    mine, folder = tmp_path / "mine", tmp_path / "out"
    folder.mkdir()
    mine.write_bytes(b"")
    (folder / ".dcpcse.lock").symlink_to(tmp_path / "missing")
    refused(tool, search_templates_command, words_of_templates, ".dcpcse.lock is a link")
    cache = EmbeddingCache(lambda sentences: None, folder, {"a": 1})
    cache.close()
    cache.path.unlink()
    cache.path.symlink_to(mine)
    with pytest.raises(UserError, match="is a link"):
        EmbeddingCache(lambda sentences: None, folder, {"a": 1})
    assert mine.read_bytes() == b""
    assert not (tmp_path / "missing").exists()


@pytest.fixture
def words_of_templates(tiny, sts_data, tmp_path) -> list[str]:
    (tmp_path / "candidates.yaml").write_text("relationships: ['']\nprefixes: ['{sentence}']\n", encoding="utf-8")
    places = {"candidates": tmp_path / "candidates.yaml", "output_dir": tmp_path / "out", "data_dir": sts_data}
    return words({"model_name_or_path": tiny("bert"), "custom_data": True, **places})


@pytest.fixture
def outputs(unsupervised, tiny, train_txt, sts_data) -> dict[str, tuple[Callable, Callable[[Path], list[object]]]]:
    """Command → its function, and its words for an output in a folder."""
    run, encoder = unsupervised.folder, tiny("bert")
    scores = ["--model_name_or_path", encoder, "--pooler", "avg", "--data_dir", sts_data, "--custom_data"]
    scores += ["--task_set", "na", "--tasks", "STSBenchmark"]
    corpus = ["--model_name_or_path", encoder, "--generator_name", encoder, "--train_file", train_txt]
    return {
        "report": (report_command, lambda d: [run, "--no_models", "--output", d / "r.html"]),
        "card": (card_command, lambda d: [run, "--output", d / "c.md"]),
        "runs": (runs_command, lambda d: [run, "--json", d / "l.json", "--csv", d / "l.csv"]),
        "plot": (plot_command, lambda d: ["curves", run, "--output", d / "p"]),
        "corrupt": (corrupt_command, lambda d: [*corpus, "--output_dir", d / "corpus", "--device", "cpu"]),
        "encode": (encode_command, lambda d: [encoder, train_txt, "--pooler", "avg", "--output", d / "v.npy"]),
        "evaluate": (
            evaluate_command,
            lambda d: [*scores, "--output_file", d / "s.json", "--similarities_file", d / "s.npz"],
        ),
        "export": (export_command, lambda d: [run, "--to", "peft", "--output", d / "exported"]),
    }


@pytest.mark.parametrize("name", ["report", "card", "runs", "plot", "corrupt", "encode", "evaluate", "export"])
def test_a_disk_that_is_full_is_left_as_it_was(name, outputs, tool, tmp_path):
    """The disk is full after 100 bytes of a file; the folder of the output does not exist before."""
    command, argv = outputs[name]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with contextlib.chdir(tmp_path):
            error = tool(command, [str(word) for word in argv(tmp_path / "new")]).err
    except Exception as raised:  # the writers of some libraries raise others than OSError
        error = str(raised)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.strerror(errno.EFBIG) in error
    left = {path: hashed for path, hashed in files(tmp_path).items() if path != "new" and not path.endswith(".parts")}
    assert set(left) <= ({"new/v.npy.parts/job.json"} if name == "encode" else set()), left


@pytest.mark.parametrize("name", ["report", "card", "runs", "plot", "encode", "evaluate"])
def test_neighbours_with_similar_names_are_the_users(name, outputs, tool, tmp_path):
    command, argv = outputs[name]
    given = [str(word) for word in argv(tmp_path)]
    names = [Path(word).name for word in given if word.startswith(str(tmp_path))]
    names += [f"{names[0]}.png", f"{names[0]}.svg"] if name == "plot" else []
    neighbours = [f"{one}{end}" for one in names for end in (".part", ".tmp", "~", ".bak", ".lock", ".partial")]
    for neighbour in (*neighbours, *(f".{one}.part" for one in names)):
        (tmp_path / neighbour).write_text("precious", encoding="utf-8")
    before = files(tmp_path)
    assert tool(command, given).code == 0
    after = files(tmp_path)
    assert {path: after.get(path) for path in before} == before


def test_a_guessed_name_does_not_stop_a_checkpoint(train, tiny, train_txt, tool, tmp_path):
    output = tmp_path / "out"
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    argv = train.argv(tiny("bert"), train_txt, output, **options)
    for name in (".checkpoint-1.part", ".checkpoint-2.replaced", ".checkpoint-1.deleted", ".result.part"):
        (output / name).mkdir(parents=True)
        (output / name / "notes").write_text("mine", encoding="utf-8")
    (output / "elsewhere").mkdir()
    (output / "elsewhere/notes").write_text("mine", encoding="utf-8")
    shutil.move(output / "elsewhere", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", output / "checkpoint-1")
    assert tool(train_command, [*argv, "--overwrite_output_dir"]).code == 0
    assert (tmp_path / "elsewhere/notes").read_text(encoding="utf-8") == "mine"
    assert len(list(output.glob(".*/notes"))) == 4
