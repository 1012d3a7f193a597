#!/usr/bin/env bash
# Install into .venv, train deep prompts of a small encoder on the sample in data/sample, and evaluate [CLS] before and
# after training. This takes some minutes on two CPU cores.
# Options: --base PATH_OR_ID (a different encoder), --supervised (train on triplets instead of sentences),
# --output_dir FOLDER (default: result/quickstart; an earlier model in it is deleted), --seed N.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source .ci/install.sh
"$python" -m dcpcse.cli.quickstart "$@"
echo "total time, with installation: $SECONDS s"
