#!/usr/bin/env bash
# Download the evaluation data (SimCSE's senteval.tar) to this folder. The lines of all files are counted before they are
# moved here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../../../data/fetch.sh

# File and number of lines, with the header if it has one.
COUNTS="
MR/rt-polarity.pos 5331
MR/rt-polarity.neg 5331
CR/custrev.pos 2407
CR/custrev.neg 1368
SUBJ/subj.objective 5000
SUBJ/subj.subjective 5000
MPQA/mpqa.pos 3312
MPQA/mpqa.neg 7294
SST/binary/sentiment-train 67349
SST/binary/sentiment-dev 872
SST/binary/sentiment-test 1821
SST/fine/sentiment-train 8544
SST/fine/sentiment-dev 1101
SST/fine/sentiment-test 2210
TREC/train_5500.label 5452
TREC/TREC_10.label 500
MRPC/msr_paraphrase_train.txt 4077
MRPC/msr_paraphrase_test.txt 1726
SICK/SICK_train.txt 4501
SICK/SICK_trial.txt 501
SICK/SICK_test_annotated.txt 4928
STS/STSBenchmark/sts-train.csv 5749
STS/STSBenchmark/sts-dev.csv 1500
STS/STSBenchmark/sts-test.csv 1379
"
# Folder and number of scored pairs: lines of STS.gs.*.txt that are not empty, of the sets that have sentences.
PAIRS="
STS/STS12-en-test 3108
STS/STS13-en-test 1500
STS/STS14-en-test 3750
STS/STS15-en-test 3000
STS/STS16-en-test 1186
"

scored_pairs() {
    local folder=$1 gold total=0
    for gold in "$folder"/STS.gs.*.txt; do
        case $gold in *.ALL.txt) continue ;; esac
        if [ -e "${gold/STS.gs./STS.input.}" ]; then
            total=$((total + $(grep -c '[0-9]' "$gold" || true)))
        fi
    done
    echo "$total"
}

# check_folder FOLDER DELETE
check_folder() {
    local root=$1 delete=$2 name expected
    while read -r name expected; do
        [ -z "$name" ] && continue
        [ -f "$root/$name" ] || stop "$root/$name is missing; delete $delete and run this again"
        expect_count "$root/$name" "$(awk 'END { print NR }' "$root/$name")" "$expected" lines "$delete"
    done <<< "$COUNTS"
    while read -r name expected; do
        [ -z "$name" ] && continue
        expect_count "$root/$name" "$(scored_pairs "$root/$name")" "$expected" "scored pairs" "$delete"
    done <<< "$PAIRS"
}

check_archive() {
    tar -tf "$1" > /dev/null 2>&1 || stop "$1 is not a complete tar archive; delete it and run this again"
}

if [ -d STS ]; then
    check_folder . "the folders here"
    echo "the evaluation data already exist, and all counts are correct"
    exit 0
fi
fetch senteval.tar check_archive
rm -rf unpacked.part
"${PYTHON:-python3}" ../../../data/unpack.py senteval.tar unpacked.part
root=$(dirname "$(find unpacked.part -type d -name STS | head -n 1)")
[ -d "$root/STS" ] || stop "senteval.tar does not contain a folder STS; delete it and run this again"
check_folder "$root" senteval.tar
for folder in "$root"/*/; do
    rm -rf "./$(basename "$folder")"
    mv "$folder" .
done
rm -rf unpacked.part senteval.tar
echo "the evaluation data are in $(pwd), and all counts are correct"
