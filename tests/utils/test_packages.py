"""How optional packages are installed: messages and pages give one command, which keeps an editable installation."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from dcpcse.inference.index.nearest import load_faiss
from dcpcse.utils.errors import UserError
from dcpcse.utils.packages import install_command

ROOT = Path(__file__).parents[2]


def test_the_command_names_the_package_that_is_missing_and_what_needs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    message = 'this backend requires faiss; in the clone of dcpcse, run: pip install -e ".[faiss]"; numpy is exact'
    with pytest.raises(UserError, match=re.escape(message)):
        load_faiss()


def test_pages_install_extras_in_a_clone_and_know_them(monkeypatch):
    monkeypatch.setattr("setuptools.setup", lambda **options: None)
    extras = runpy.run_path(str(ROOT / "setup.py"))["EXTRAS"]
    found = {}
    for page in [ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        found |= dict.fromkeys(re.findall(r"pip\s+install[^`\n]*", text), page.name)
    assert found
    for command, page in found.items():
        (names,) = re.findall(r"\[(.*)\]", command) or [""]
        assert set(names.split(",")) <= set(extras), page
        assert " ".join(command.split()) == install_command(names), page
