#!/usr/bin/env bash
# Runs the tests that need a GPU and measures training steps, encoding and memory on it: one JSON file and a table.
#
#     bash benchmarks/gpu.sh [OUTPUT_DIR] [options of benchmarks/gpu.py]
#
# Needs a Python with torch and transformers ($PYTHON, by default .venv/bin/python if it exists, else python3). Wheels of
# packages that it lacks are installed, for this run only, from the folder .wheels if it exists. Where there is no network,
# make the folder elsewhere, for the Python there; `benchmarks/gpu_packages.py --help` says which packages it lists:
#
#     pip download --dest .wheels --no-deps --only-binary :all: --python-version 3.12 \
#         $(python benchmarks/gpu_packages.py)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export PYTHONPATH="$PWD:$PWD/SentEval${PYTHONPATH:+:$PYTHONPATH}"
if [ -d .wheels ]; then
    packages=$(mktemp -d)
    trap 'rm -rf "$packages"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-cache-dir --target "$packages" .wheels/*.whl
    export PYTHONPATH="$PYTHONPATH:$packages"
fi
output=result/gpu
if [ $# -gt 0 ] && [[ "$1" != --* ]]; then
    output=$1
    shift
fi
"$python" benchmarks/gpu.py --output_dir "$output" "$@"
