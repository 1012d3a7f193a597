"""python .ci/audit.py: known vulnerabilities of the pinned requirements, by pip-audit, and `pip check`.

Exit 0 where every requirement was looked up and none has a known vulnerability, and, with a loud line, where the
database was out of reach; 1 for a vulnerability that .ci/accepted.txt does not name, for packages that do not fit
together, and with AUDIT_REQUIRED=1 also for a requirement that could not be looked up.
"""

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TOOL = "pip-audit==2.10.1"
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt")
SERVICES = ("osv", "pypi")
SECONDS = 300


def main() -> int:
    environment = Path(sys.prefix) / "audit"  # its own: the tool's requirements are not the project's
    fits = subprocess.run([sys.executable, "-m", "pip", "check"], check=False).returncode == 0
    names = set().union(*(pinned((ROOT / name).read_text(encoding="utf-8")) for name in REQUIREMENTS))
    reports = [] if (tool := _install(environment)) is None else [_ask(tool, service) for service in SERVICES]
    code, lines = verdict(names, [report for report in reports if report], accepted(ROOT / ".ci/accepted.txt"))
    print("\n".join(lines), file=sys.stderr if code else sys.stdout, flush=True)
    required = os.environ.get("AUDIT_REQUIRED") == "1"
    return int(not fits or code == 1 or (code == 2 and required))


def pinned(text: str) -> set[str]:
    """Names of the requirements, as package indexes normalise them."""
    names = re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*\])?==", text, flags=re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


def accepted(path: Path) -> set[str]:
    """Identifiers of vulnerabilities that were looked at: `ID reason` a line."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


def verdict(names: set[str], reports: Sequence[Mapping[str, Any]], known: set[str]) -> tuple[int, list[str]]:
    """0 all looked up and clean, 1 vulnerable, 2 not all looked up; and what there is to say.

    pip-audit calls a requirement that its service does not know clean, and so all of them behind a mirror.
    """
    looked_up, found = set(), set()
    for one in (one for report in reports for one in report["dependencies"]):
        if "vulns" in one:
            looked_up.add(re.sub(r"[-_.]+", "-", one["name"]).lower())
            found |= {(one["name"], one["version"], bug["id"], ", ".join(bug["fix_versions"])) for bug in one["vulns"]}
    bad = sorted(bug for bug in found if bug[2] not in known)
    lines = [f"VULNERABLE: {name} {version}: {bug} (mended in {fix or 'none'})" for name, version, bug, fix in bad]
    if missing := names - looked_up:
        listed = ", ".join(sorted(missing)) if looked_up else "the advisory database is out of reach"
        lines.append(f"NOT AUDITED: {len(missing)} of {len(names)} requirements ({listed}); nothing is known of them")
    else:
        lines.append(f"audited: {len(names)} requirements, {len(found) - len(bad)} accepted vulnerabilities")
    return (1 if bad else 2 if missing else 0), lines


def _install(environment: Path) -> Path | None:
    """pip-audit in an environment of its own; None where it cannot be had."""
    tool = environment / "bin/pip-audit"
    if not tool.is_file():
        venv.create(environment, with_pip=True)
        command = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", TOOL]
        subprocess.run(command, check=False)
    return tool if tool.is_file() else None


def _ask(tool: Path, service: str) -> Mapping[str, Any] | None:
    """What a service knows of the requirements; None where it does not answer."""
    command = [tool, "--requirement", ROOT / "requirements-dev.txt", "--no-deps", "--disable-pip", "--format", "json"]
    try:
        done = subprocess.run(
            [*command, "--vulnerability-service", service], capture_output=True, check=False, timeout=SECONDS
        )
        return json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired):
        return None


if __name__ == "__main__":
    sys.exit(main())
