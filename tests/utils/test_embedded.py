"""The encoder that is part of a clone: where it is, and what an installed package says."""

import pytest

from dcpcse.utils import packages
from dcpcse.utils.errors import UserError


def test_without_the_folder_one_line_says_what_to_give(monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "EMBEDDED_ENCODER", tmp_path / "data/encoder")
    with pytest.raises(UserError, match=r"^.*data/encoder does not exist, since it is part of a clone only; give an "):
        packages.embedded_encoder()
    (tmp_path / "data/encoder").mkdir(parents=True)
    assert packages.embedded_encoder() == tmp_path / "data/encoder"
