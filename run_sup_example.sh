#!/usr/bin/env bash
# Train supervised DCPCSE on RoBERTa-large with the setting of the public script: two GPUs with 256 examples each.
# NUM_GPU sets the number of GPUs, or of CPU processes on a machine without GPUs. Options given here override the others.
# Download the data first: bash data/download_nli.sh; bash SentEval/data/downstream/download_dataset.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

NUM_GPU=${NUM_GPU:-2}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}

"${PYTHON:-python}" -m torch.distributed.run --standalone --nproc_per_node "$NUM_GPU" train.py \
    --model_name_or_path roberta-large \
    --train_file data/nli_for_simcse.csv \
    --output_dir result/my-sup-dcpcse-roberta-large \
    --num_train_epochs 5 \
    --per_device_train_batch_size 256 \
    --learning_rate 5e-3 \
    --max_seq_length 32 \
    --eval_strategy steps \
    --metric_for_best_model stsb_spearman \
    --load_best_model_at_end \
    --eval_steps 125 \
    --pooler_type cls \
    --pre_seq_len 10 \
    --overwrite_output_dir \
    --temp 0.05 \
    --do_train \
    --do_eval \
    --fp16 \
    "$@"
