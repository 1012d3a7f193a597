#!/usr/bin/env bash
# Download the 1,000,000 Wikipedia sentences of the unsupervised setting (SimCSE's wiki1m_for_simcse.txt) to data/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source fetch.sh

check() {
    expect_count "$1" "$(awk 'END { print NR }' "$1")" 1000000 lines
}

fetch wiki1m_for_simcse.txt check
