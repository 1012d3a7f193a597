#!/usr/bin/env bash
# Download the 275,601 NLI triplets of the supervised setting (SimCSE's nli_for_simcse.csv) to data/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source fetch.sh

check() {
    local rows
    rows=$("${PYTHON:-python3}" -c 'import csv, sys
with open(sys.argv[1], encoding="utf-8", newline="") as file:
    print(sum(1 for row in csv.reader(file)) - 1)' "$1")
    expect_count "$1" "$rows" 275601 rows
}

fetch nli_for_simcse.csv check
