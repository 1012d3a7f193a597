#!/usr/bin/env bash
# From a bare machine to a better [CLS]: installs into .venv, takes a small encoder, trains deep prompts on the sample
# text in data/sample, measures before and after. Some minutes on two CPU cores.
#   --base PATH_OR_ID   another encoder     --supervised   the triplets instead of the sentences     --seed N
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source .ci/install.sh
"$python" -m dcpcse.cli.quickstart "$@"
echo "all in all, setting up included: $SECONDS s"
