#!/usr/bin/env bash
# Installs into .venv, and runs every notebook of docs/notebooks whole, with data/encoder and data/sample.
# This takes some minutes on two CPU cores. Arguments are passed to benchmarks/notebooks.py, which describes them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
requirements=requirements-dev.txt
source .ci/install.sh
"$python" benchmarks/notebooks.py "$@"
echo "total time, with installation: $SECONDS s"
