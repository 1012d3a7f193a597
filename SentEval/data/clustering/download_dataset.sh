#!/usr/bin/env bash
# Download the eight short-text sets of the SCCL paper to this folder, as files of label<TAB>text lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
MIRROR=${MIRROR:-https://raw.githubusercontent.com/rashadulrakib/short-text-clustering-enhancement/f363b66e6fd51f9dd1db679d2a9ce55538ab9868/data}
source ../../../data/fetch.sh

# Local file, file at the source, sha256 of the source file.
SOURCES="
agnews.tsv agnewsdataraw-8000 9a3ecfb3d5daef1cdef2fa1cc23d1f1c23784220116c39072d6d8422f5781c06
searchsnippets.tsv search_snippets/search_snippets_true_text e39dbcb5d956c2a34d1a68727c18b05646dfd4921857f7f61beccf6481e94787
stackoverflow.tsv stackoverflow/stackoverflow_true_text e683a764d1c05828ee13828695fb273c3d61991b853af716da383061356e9ff5
biomedical.tsv biomedical/biomedical_true_text a52cc072e35bfac1a971880ff3222239438cea24571b8910dd549f1831b34a04
tweet.tsv tweet-original-order.txt bd63058a56d4b2ff35eca50db6fdbdf51d4dbc222e16604cbcaad813c2831479
googlenews_ts.tsv TS a2bd94663542b849477b0a2a95a23626a7c8af50d50978056159997ddd800065
googlenews_t.tsv T 4b4a5feeaa35e7e96e08203fe44f0b5b136c7d1e01eba3a282d25ae4ecae8f8c
googlenews_s.tsv S 004e6210fbfcd11414f27b8bb6a83df6051bb8449c063b9d77955e2df0294082
"

check_source() {
    require_sha256 "$1" "$expected"
}

# Replace runs of blanks by one blank, strip both ends, and write the label before a tab.
clean() {
    "${PYTHON:-python3}" -c 'import sys
with open(sys.argv[1], encoding="utf-8", newline="\n") as source, open(sys.argv[2], "w", encoding="utf-8", newline="\n") as clean:
    for line in source:
        label, _, text = line.partition("\t")
        clean.write(f"{label.strip()}\t{chr(32).join(text.split())}\n")' "$1" "$2"
}

while read -r name place expected; do
    [ -z "$name" ] && continue
    if [ -e "$name" ]; then
        echo "$name already exists"
        continue
    fi
    mkdir -p "$(dirname "$place")"
    fetch "$place" check_source
    clean "$place" "$name.part"
    mv "$name.part" "$name"
    rm "$place"
    rmdir "$(dirname "$place")" 2> /dev/null || true
done <<< "$SOURCES"
echo "the clustering sets are in $(pwd)"
