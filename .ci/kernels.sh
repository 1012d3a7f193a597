#!/usr/bin/env bash
# bash .ci/kernels.sh: runs the tests of the Triton kernels in Triton's interpreter, without a GPU, in the environment
# .versions/kernels, which is made if it does not exist. On request only: Triton takes 700 MB, and the tests minutes.
#
# Triton 3.6, which torch 2.11 needs on a GPU, cannot interpret loops beside numpy 2.4.
# PYTHON is the Python to use (default: python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=.versions/kernels
python=$environment/bin/python
if [ ! -f "$environment/installed" ] || [ -n "$(find requirements.txt requirements-dev.txt setup.py .ci/kernels.sh -newer "$environment/installed")" ]; then
    echo "installing Triton into $environment"
    "${PYTHON:-python3}" -m venv --clear "$environment"
    "$python" -m pip install --quiet --disable-pip-version-check --requirement requirements.txt triton==3.7.1 \
        $(grep -E '^(pytest(-xdist)?|peft)==' requirements-dev.txt)
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --editable .
    touch "$environment/installed"
fi
export TRITON_INTERPRET=1 OMP_NUM_THREADS=1
"$python" -m pytest -q -n "$(nproc)" "$@" tests/encoders/test_*kernel*.py tests/training/test_host_waits.py
