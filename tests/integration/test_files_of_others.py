"""Files of the user, links and full disks: nothing is written through a link, lost, or left half-written."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import files, refused

from dcpcse.cli.commands.train import train_command
from dcpcse.cli.main import main
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


def test_an_embedding_cache_that_is_a_link_is_not_written_through(tmp_path):
    mine = tmp_path / "mine"
    mine.write_bytes(b"")
    cache = EmbeddingCache(lambda sentences: None, tmp_path / "cache", {"a": 1})
    cache.close()
    cache.path.unlink()
    cache.path.symlink_to(mine)
    with pytest.raises(UserError, match="is a link"):
        EmbeddingCache(lambda sentences: None, tmp_path / "cache", {"a": 1})
    assert mine.read_bytes() == b""


SCORES = "--pooler avg --data_dir DATA --custom_data --task_set na --tasks STSBenchmark --output_file OUT/s.json"
CORPUS = "--model_name_or_path BERT --generator_name BERT --train_file TEXT --output_dir OUT/corpus --device cpu"
OUTPUTS = {
    "report": "plot report RUN --no_models --output OUT/r.html",
    "card": "hub card RUN --output OUT/c.md",
    "runs": "plot runs RUN --json OUT/l.json --csv OUT/l.csv",
    "plot": "plot curves RUN --output OUT/p",
    "encode": "encode BERT TEXT --pooler avg --output OUT/v.npy",
    "evaluate": f"evaluate BERT {SCORES} --similarities_file OUT/s.npz",
    "corrupt": f"pretrain corrupt {CORPUS}",
    "export": "export RUN --to peft --output OUT/exported",
}
"""Commands with outputs in the folder OUT; the last two write folders."""


@pytest.fixture
def words_of(unsupervised, tiny, train_txt, sts_data) -> Callable[[str, Path], list[str]]:
    """words_of(name, folder) → the command of `OUTPUTS`, with the folder for OUT."""
    places = {"RUN": str(unsupervised.folder), "BERT": tiny("bert"), "TEXT": train_txt, "DATA": sts_data}
    return lambda name, out: [places.get(word, word).replace("OUT/", f"{out}/") for word in OUTPUTS[name].split()]


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_disk_that_is_full_is_left_as_it_was(name, words_of, tool, largest_file, tmp_path):
    """The disk is full after 100 bytes of a file; the folder of the output does not exist before."""
    words = words_of(name, tmp_path / "new")
    try:
        with largest_file(100), contextlib.chdir(tmp_path):
            error = tool(main, words).err
    except Exception as raised:  # the writers of some libraries raise others than OSError
        error = str(raised)
    assert os.strerror(errno.EFBIG) in error
    left = {path: hashed for path, hashed in files(tmp_path).items() if path != "new" and not path.endswith(".parts")}
    assert set(left) <= ({"new/v.npy.parts/job.json"} if name == "encode" else set()), left


@pytest.mark.parametrize("name", [*OUTPUTS][:-2])
def test_neighbours_with_similar_names_are_the_users(name, words_of, tool, tmp_path):
    words = words_of(name, tmp_path)
    names = [Path(word).name for word in words if word.startswith(str(tmp_path))]
    names += [f"{names[0]}.png", f"{names[0]}.svg"] if name == "plot" else []
    neighbours = [f"{one}{end}" for one in names for end in (".part", ".tmp", "~", ".bak", ".lock", ".partial")]
    for neighbour in (*neighbours, *(f".{one}.part" for one in names)):
        (tmp_path / neighbour).write_text("precious", encoding="utf-8")
    before = files(tmp_path)
    assert tool(main, words).code == 0
    assert before.items() <= files(tmp_path).items()


def test_a_guessed_name_does_not_stop_a_checkpoint(train, tiny, train_txt, tool, tmp_path):
    output = tmp_path / "out"
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    argv = train.argv(tiny("bert"), train_txt, output, **options)
    for name in (".checkpoint-1.part", ".checkpoint-2.replaced", ".checkpoint-1.deleted", ".result.part"):
        (output / name).mkdir(parents=True)
        (output / name / "notes").write_text("mine", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/notes").write_text("mine", encoding="utf-8")
    os.symlink(tmp_path / "elsewhere", output / "checkpoint-1")
    assert tool(train_command, [*argv, "--overwrite_output_dir"]).code == 0
    assert (tmp_path / "elsewhere/notes").read_text(encoding="utf-8") == "mine"
    assert len(list(output.glob(".*/notes"))) == 4
