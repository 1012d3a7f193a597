#!/usr/bin/env bash
# Installs into .venv, and runs every notebook of docs/notebooks whole, with all-MiniLM-L6-v2 and the data in data/sample.
# This takes some minutes on two CPU cores. Arguments are passed to benchmarks/notebooks.py, which describes them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
requirements=requirements-dev.txt
source .ci/install.sh
"$python" benchmarks/notebooks.py "$@"
echo "total time, with installation: $SECONDS s"
