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


def looked_up(name: str, *vulnerabilities: dict) -> dict:
    return {"name": name, "version": "1", "vulns": [*vulnerabilities]}


BAD = {"id": "PYSEC-1", "fix_versions": ["2"]}


SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited"}


def test_only_what_was_looked_up_is_called_clean(audit):
    torch, other, bad = looked_up("torch"), looked_up("Scikit_Learn"), looked_up("torch", BAD)
    for reports, known, code, message in (
        ([[torch, other]], set(), 0, "audited: 2 requirements"),
        ([[SKIPPED, other]], set(), 2, "NOT AUDITED: 1 of 2 requirements (torch)"),
        ([], set(), 2, "NOT AUDITED: 2 of 2 requirements (the advisory database is out of reach)"),
        ([[SKIPPED, other], [torch]], set(), 0, "audited: 2"),
        ([[bad, other]], set(), 1, "VULNERABLE: torch 1: PYSEC-1 (mended in 2)"),
        ([[bad]], {"PYSEC-1"}, 2, "NOT AUDITED: 1 of 2"),
        ([[bad, other]], {"PYSEC-1"}, 0, "1 accepted"),
    ):
        found, lines = audit.verdict({"torch", "scikit-learn"}, [{"dependencies": one} for one in reports], known)
        assert found == code and message in "\n".join(lines)


def test_every_requirement_is_pinned_and_known_to_the_audit(audit, tmp_path):
    lines = [line for name in audit.REQUIREMENTS for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
    wanted = [line for line in lines if line and not line.startswith(("#", "-r requirements.txt"))]
    pinned = audit.pinned("\n".join(wanted))
    assert len(pinned) == len(wanted) and {"torch", "ray", "pyyaml"} <= pinned
    (tmp_path / "accepted.txt").write_text("# looked at\nPYSEC-1 not reached from here\n\n", encoding="utf-8")
    assert audit.accepted(tmp_path / "accepted.txt") == {"PYSEC-1"} and audit.accepted(tmp_path / "none") == set()


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
