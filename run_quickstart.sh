#!/usr/bin/env bash
# Install into .venv, train deep prompts of the encoder in data/encoder on the sample in data/sample, and compare them with
# the untouched encoder. Nothing is downloaded but packages. After their installation it takes a minute on two CPU cores.
# Options are those of `dcpcse quickstart`: --base PATH_OR_ID (another encoder), --supervised (train on triplets instead of
# sentences), --output_dir FOLDER (default: result/quickstart; an earlier model in it is deleted), --seed N, --data FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source .ci/install.sh
"$python" -m dcpcse quickstart "$@"
echo "total time, with installation: $SECONDS s; source .venv/bin/activate makes the command dcpcse available"
