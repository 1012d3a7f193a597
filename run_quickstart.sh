#!/usr/bin/env bash
# Install into .venv, train deep prompts of the encoder in data/encoder on the sample in data/sample, without and with labels,
# and compare them with the untouched encoder. Nothing is downloaded but packages. After their installation it takes about
# three minutes on two idle CPU cores. Options are those of `dcpcse quickstart`: --base PATH_OR_ID (another encoder), --data FOLDER,
# --output_dir FOLDER (default: result/quickstart; earlier models in it are deleted), --seed N.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# Threads that wait for each other sleep. If they spin and other programs use the cores, a step takes six times as long.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
source .ci/install.sh
"$python" -m dcpcse quickstart "$@"
echo "total time, with installation: $SECONDS s; source .venv/bin/activate makes the command dcpcse available"
