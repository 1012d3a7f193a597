"""The audit of the requirements does not call clean what it could not look up."""

import importlib.util
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def audit():
    specification = importlib.util.spec_from_file_location("audit", ROOT / ".ci/audit.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def clean(name: str) -> dict:
    return {"name": name, "version": "1", "vulns": []}


def bad(name: str) -> dict:
    return {"name": name, "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}


SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited"}


@pytest.mark.parametrize(
    ("reports", "known", "code", "said"),
    [
        ([[clean("torch"), clean("Scikit_Learn")]], set(), 0, "audited: 2 requirements"),
        ([[SKIPPED, clean("scikit-learn")]], set(), 2, "NOT AUDITED: 1 of 2 requirements (torch)"),
        ([], set(), 2, "NOT AUDITED: 2 of 2 requirements (the advisory database is out of reach)"),
        ([[SKIPPED, clean("scikit-learn")], [clean("torch")]], set(), 0, "audited: 2"),
        ([[bad("torch"), clean("scikit-learn")]], set(), 1, "VULNERABLE: torch 1: PYSEC-1 (mended in 2)"),
        ([[bad("torch")]], {"PYSEC-1"}, 2, "NOT AUDITED: 1 of 2"),
        ([[bad("torch"), clean("scikit-learn")]], {"PYSEC-1"}, 0, "1 accepted"),
    ],
)
def test_only_what_was_looked_up_is_called_clean(reports, known, code, said, audit):
    found = audit.verdict({"torch", "scikit-learn"}, [{"dependencies": one} for one in reports], known)
    assert found[0] == code
    assert said in "\n".join(found[1])


def test_every_requirement_is_pinned_and_known_to_the_audit(audit):
    lines = [line for name in audit.REQUIREMENTS for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
    wanted = [line for line in lines if line and not line.startswith(("#", "-r requirements.txt"))]
    assert len(audit.pinned("\n".join(wanted))) == len(wanted)
    assert {"torch", "ray", "pyyaml"} <= audit.pinned("\n".join(wanted))


def test_the_pins_of_training_lie_in_the_ranges_of_the_package(audit):
    """requirements.txt has exactly what setup.py requires, within its ranges."""
    ranges = (ROOT / "dcpcse/doctor/supported.txt").read_text(encoding="utf-8").split()
    wanted = {one.name: one.specifier for one in map(Requirement, ranges) if one.name != "python"}
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = {one.name: one for one in map(Requirement, (line for line in lines if not line.startswith("#")))}
    assert set(pins) == set(wanted)
    for name, pin in pins.items():
        (exact,) = pin.specifier
        assert exact.operator == "==" and wanted[name].contains(exact.version), name


def test_accepted_vulnerabilities_are_named_with_a_reason(audit, tmp_path):
    (tmp_path / "accepted.txt").write_text("# looked at\nPYSEC-1 not reached from here\n\n", encoding="utf-8")
    assert audit.accepted(tmp_path / "accepted.txt") == {"PYSEC-1"}
    assert audit.accepted(tmp_path / "none") == set()
