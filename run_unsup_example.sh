#!/usr/bin/env bash
# Train unsupervised DCPCSE on BERT-base with the setting of the public script. Options given here override the others.
# Download the data first: bash data/download_wiki.sh; bash SentEval/data/downstream/download_dataset.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

"${PYTHON:-python}" train.py \
    --model_name_or_path bert-base-uncased \
    --train_file data/wiki1m_for_simcse.txt \
    --output_dir result/my-unsup-dcpcse-bert-base-uncased \
    --num_train_epochs 1 \
    --per_device_train_batch_size 256 \
    --learning_rate 3e-2 \
    --max_seq_length 32 \
    --eval_strategy steps \
    --metric_for_best_model stsb_spearman \
    --load_best_model_at_end \
    --eval_steps 125 \
    --pooler_type cls \
    --mlp_only_train \
    --pre_seq_len 16 \
    --overwrite_output_dir \
    --temp 0.05 \
    --do_train \
    --do_eval \
    --fp16 \
    "$@"
