"""Atomic writes: complete or not at all, and nothing else is left in the folder."""

import pytest

from dcpcse.utils.files import PART, atomic_folder, atomic_path, write_atomic, write_json_atomic


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_and_folders_appear_at_the_end_and_can_be_read_by_others(tmp_path):
    write_atomic(tmp_path / "new/a.txt", "ä\n")
    write_json_atomic(tmp_path / "new/a.json", {"ä": [1]})
    assert (tmp_path / "new/a.txt").read_bytes() == "ä\n".encode()
    assert (tmp_path / "new/a.json").read_text(encoding="utf-8") == '{\n  "ä": [\n    1\n  ]\n}\n'
    assert names(tmp_path / "new") == ["a.json", "a.txt"]
    assert (tmp_path / "new/a.txt").stat().st_mode & 0o777 == _mode_of_a_new_file(tmp_path)
    with atomic_folder(tmp_path / "folder") as part:
        (part / "a.txt").write_text("a")
        assert not (tmp_path / "folder").exists()
        assert PART.fullmatch(part.name)
    assert names(tmp_path / "folder") == ["a.txt"]


def _mode_of_a_new_file(folder) -> int:
    (folder / "plain").touch()
    return (folder / "plain").stat().st_mode & 0o777


@pytest.mark.parametrize("write", [atomic_path, atomic_folder])
def test_a_failure_leaves_what_was_there_and_no_temporary_file(write, tmp_path):
    (tmp_path / "a").write_text("before")
    with pytest.raises(KeyboardInterrupt), write(tmp_path / "a") as part:
        (part / "b" if part.is_dir() else part).write_text("half")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "before"
    with pytest.raises(UnicodeEncodeError):
        write_atomic(tmp_path / "a", "\ud800")
    assert names(tmp_path) == ["a"]
