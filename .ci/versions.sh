#!/usr/bin/env bash
# bash .ci/versions.sh lowest|newest|image: runs a core of the tests with other versions than those of requirements.txt,
# in the environment .versions/NAME, which is made if it does not exist.
#
# lowest: the lowest versions that setup.py allows; torch is the pinned one, whose CPU build is small. .ci/run calls it.
# newest: the newest versions that setup.py allows. If all tests pass, .ci/newest.sha256 records the files that define
#   the ranges; .ci/run calls it if one of them has changed since.
# image: the versions of a usual GPU image with Python 3.12. On request only: it downloads 5 GB.
#
# PYTHON is the Python to use (default: python3, and python3.12 for image).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
name=${1:-}
ranges=dcpcse/doctor/supported.txt
files=("$ranges" setup.py requirements.txt requirements-dev.txt)
default=python3
case $name in
    lowest)
        versions=$(sed -nE 's/^([^>]+)>=([^,]+).*/\1==\2/p' "$ranges" | grep -vE '^(python|torch)=='
            grep -oE "(peft|sentence-transformers)>=[^,\"]+" setup.py | sed 's/>=/==/'
            grep '^torch==' requirements.txt) ;;
    newest) versions= ;;
    image)
        default=python3.12
        versions="torch==2.11.0 transformers==5.17.0 huggingface_hub==1.33.0 accelerate==1.15.0
            sentence-transformers==6.0.1 numpy==2.4.*" ;;
    *) echo "usage: bash .ci/versions.sh lowest|newest|image" >&2; exit 2 ;;
esac

environment=.versions/$name
python=$environment/bin/python
if [ ! -f "$environment/installed" ] || [ -n "$(find "${files[@]}" .ci/versions.sh -newer "$environment/installed")" ]; then
    echo "installing $name into $environment"
    "${PYTHON:-$default}" -m venv --clear "$environment"
    printf '%s\n' $versions > "$environment/constraints.txt"
    # pip refuses versions that do not fit together or lie outside of the ranges.
    "$python" -m pip install --quiet --disable-pip-version-check --constraint "$environment/constraints.txt" \
        --editable ".[peft,st]" $(grep -E '^pytest(-xdist)?==' requirements-dev.txt)
    touch "$environment/installed"
fi
"$python" -m pip list --disable-pip-version-check |
    grep -iE "^($(sed -nE 's/>=.*//p' "$ranges" | tr '\n' '|' | sed 's/_/[-_]/g')peft|sentence-transformers) "

# Training of every method and its vectors on the CPU; resuming; dcpcse.Trainer; encode; evaluation; the gain on the
# sample data; exports to sentence-transformers.
core="test_cuda or test_trainer or bit_for_bit or train_loss or row_i_of or resumes or every_task or dcpcse_evaluate"
OMP_NUM_THREADS=1 DCPCSE_TEST_DEVICE=cpu "$python" -m pytest --numprocesses 2 --dist worksteal -p no:cacheprovider \
    tests/integration/{test_cuda,test_resume,test_encode,test_evaluation,test_science}.py \
    tests/training/test_trainer.py tests/interop/test_export.py \
    -k "($core or points_ahead or sentence_transformer) and not killed"
if [ "$name" = newest ]; then
    sha256sum "${files[@]}" > .ci/newest.sha256
fi
