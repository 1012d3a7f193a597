"""Mistakes that users make, as data: the command, and what its message must repeat.

On the desk lie the encoders bert, roberta, distilbert and albert, damaged copies of bert, the results trained (deep
prompts on bert) and tuned (SimCSE), train.txt, pairs.csv, corpus.txt, and sts with small evaluation data. Each command
has one or more mistakes of a kind that reach its message on their own path; the tests of the modules have the others.
"""

import shlex
from collections.abc import Iterator, Mapping

TRAIN = (
    "--model_name_or_path bert --train_file train.txt --output_dir out --max_steps 1 --use_cpu --save_strategy no "
    "--disable_tqdm True --report_to none"
)
"""What a command that begins with `train ...` has besides."""

MEASURE = "--model_name_or_path bert --data_dir sts --custom_data --mode dev --pooler avg --device cpu"
"""And one that begins with `evaluate ...`."""


def words_of(command: str, cache: str) -> list[str]:
    """The command line in full. cache: folder for the training data as read."""
    name, *rest = shlex.split(command)
    usual = {"train": f"{TRAIN} --cache_dir {shlex.quote(cache)}", "evaluate": MEASURE}
    if rest[:1] == ["..."]:
        return [name, *shlex.split(usual[name]), *rest[1:]]
    if name == "adapt":
        return [name, *rest, *([] if "--" in rest else ["--"]), "--cache_dir", cache]
    return [name, *rest]


FILES = {
    "nul.txt": "A dog.\nA cat.\nA \0.\n",
    "blank.txt": "a\n\nb\n",
    "none.txt": "",
    "one.txt": "A dog.\n",
    "foreign.txt": "日本\n" * 12,
    "one.csv": "text,class\na,x\nb,x\n",
    "single.csv": "text,label\na,x\nb,y\n",
    "classes.csv": "text,class\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(20)),
    "several.csv": "a,pos_1,pos_2\n" + "".join(f"anchor {i},one {i},two {i}\n" for i in range(9)),
    "labelled.csv": "a,b,label\nx,y,entailment\nz,w,neutral\n",
    "scores.csv": "a,b,score\nx,y,5\nz,w,1\n",
    "equal.csv": "a,b,score\nx,y,3\nz,w,3\n",
    "triples.csv": "a,b,c\nx,y,z\nu,v,w\n",
    "mine.csv": "\n".join(["a,b", *(f"one {i},two {i}" for i in range(60)), ""]),
    "two.csv": "anchor,positive\nRain fell.,It rained.\nA cat sleeps.,The cat is asleep.\n",
    "empty.yaml": "",
    "run.yaml": "pre_seq_length: 3\n",
    "list.yaml": "temp: [1, 2]\n",
    "code.yaml": "temp: !!python/object/apply:os.getcwd []\n",
    "old.png": "picture",
    "CR": "a\tb\t1\nc\td\t2\n",
    "labels/CR": "a\tx\nb\ty\n" * 5,
    "trained/scores.json": "{}",
    "damaged/pretraining.json": '{"finished": 1}',
}
"""Further files on the desk, by name."""

STSB = "--tasks STSBenchmark"
ANGLE = "train ... --method angle"
CORRUPT = "pretrain corrupt --model_name_or_path bert --generator_name bert --train_file train.txt"
TEMPLATES = "reproduce templates --model_name_or_path bert"
TRY = "reproduce search --search dcpcse --output_dir"
PRETRAINED = "--output_dir out --size tiny --max_steps 1 --use_cpu --validation_share 0.2"
TINY = f"pretrain corpus.txt {PRETRAINED}"
CONTINUED = (
    "pretrain corpus.txt --output_dir out --max_steps 1 --use_cpu --validation_share 0.2 --max_seq_length 16 "
    "--model_name_or_path"
)
PREDICT = "--model_name_or_path bert"
PAIRS = f"{PREDICT} --train_file pairs.csv --eval_data_dir sts"

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Training files": {
        "train ... --train_file nul.txt": "line 3",
        "train ... --train_file one.csv": "'x'",
        "train ... --train_file single.csv": "'label'",
        "train ... --train_file classes.csv --method esimcse": "--neg_size 0",
        "train ... --train_file classes.csv --batch_sampler no_duplicates": "at most 2",
        f"{CORRUPT} --output_dir out --train_file several.csv": "2 columns of positives",
        "train ... --train_file two.csv two.csv": "is given twice",
        "train ... --train_file two.csv train.txt": "train has the columns anchor, but another",
        "train ... --method sbert --train_file labelled.csv two.csv": "columns",
        "train ... --train_file two.csv triples.csv --train_weights 1 2 3": "3 weights for 2",
        "train ... --train_weights 1": "1 weight for 1",
        f"{CORRUPT} --output_dir out --train_file classes.csv": "column class",
    },
    "Files of options": {
        f"train nowhere.yaml {TRAIN}": "nowhere.yaml",
        f"train empty.yaml {TRAIN}": "empty.yaml",
        f"train run.yaml {TRAIN}": "--pre_seq_length",
        f"train list.yaml {TRAIN}": "--temp [1, 2]",
        f"train code.yaml {TRAIN}": "code.yaml",
    },
    "Training: numbers": {
        "train ... --temp 0": "--temp 0",
        "train ... --per_device_train_batch_size 1": "--per_device_train_batch_size 1",
        f"{ANGLE} --train_file scores.csv --similar_from 6": "highest is 5",
        f"{ANGLE} --train_file equal.csv": "score 3",
        f"{ANGLE} --cosine_weight 0 --in_batch_weight 0 --angle_weight 0": "all 0",
        "train ... --matryoshka_dims 8,32": "largest first",
        "train ... --matryoshka_dims 16,8": "size of the embeddings, 32",
        f"{ANGLE} --train_file triples.csv --matryoshka_dims 32,15": "--matryoshka_dims 15",
        "train ... --matryoshka_dims 32,16 --matryoshka_weights 1": "one number for each",
        "train ... --train_file labelled.csv --method sbert --matryoshka_dims 32,16": "no loss of --method sbert",
    },
    "Training: names of options and values": {
        "train ... --pre_seq_length 10": "",
        f"train {PREDICT} --output_dir out": "--train_file",
        f"train {PREDICT} --train_file train.txt": "--output_dir",
        "train ... --tuning lora --lora_target_modules all-linear query": "",
        "train ... --early_stopping_patience 2": "--eval_strategy steps",
        "train ... --lr_scheduler_type cosine_with_min_lr": "min_lr_rate",
        "train ... --lr_scheduler_kwargs power": "",
        "train ... --optim_args fast": "--optim_args fast",
        "train ... --optim adamw_bnb_8bit": "bitsandbytes",
        "train ... --report_to clearml": "pip install clearml",
        "train ... --use_fast_tokenizer False": "",
        "train ... --accelerator_config nowhere.json": "nowhere.json",
        "train ... --accelerator_config '{\"split_batches\": true}'": "split_batches",
        "train ... --push_to_hub --hub_model_id prompts": "prompts",
        "train ... --method rankcse": "--teacher is missing",
        "train ... --method rankcse --teacher bert bert bert": "one or two encoders",
    },
    "Training: options that contradict each other, or have no effect": {
        "train ... --method simcse --pre_seq_len 10": "",
        "train ... --per_device_train_batch_size 400 --dataloader_drop_last": "",
        "train ... --dataloader_persistent_workers": "",
        "train ... --positive crop --method esimcse": "esimcse",
        "train ... --method cosent": "scores or labels",
        "train ... --tuning full --encoder_dtype bfloat16": "--encoder_dtype bfloat16 needs a frozen encoder",
        "train ... --fp16 --bf16": "fp16 and bf16",
        "train ... --gradient_cache_chunk 2 --torch_compile": "--gradient_cache_chunk",
        "train ... --gradient_cache_chunk 2 --torch_empty_cache_steps 3": "",
        "train ... --attention triton": "--attention triton",
        "train ... --do_train False": "--do_train False",
    },
    "Encoders": {
        "train ... --model_name_or_path ./nowhere": "./nowhere",
        "train ... --model_name_or_path albert --gradient_checkpointing": "",
        "train ... --tokenizer_name roberta": "roberta",
        "train ... --model_name_or_path cut": "cut",
    },
    "Model folders": {
        f"evaluate ... --model_name_or_path copy {STSB}": "copy",
    },
    "Evaluation data": {
        "train ... --do_eval --eval_data_dir nowhere": "nowhere",
        "evaluate ... --mode test --tasks MR": "tasks whose files exist",
        f"evaluate ... --data_dir data {STSB}": "sts-dev.csv:2",
    },
    "Evaluation: options": {
        "evaluate --mode dev": "--model_name_or_path",
        "evaluate ... --tasks STS12 --task_set sts": "--tasks and --task_set sts",
        "evaluate ... --task_set na": "--tasks",
        "evaluate ... --mode test --task_set frequent --postprocess whitening": "--postprocess whitening",
        "evaluate ... --overwrite": "",
        "evaluate ... --mode test --pairs CR --tasks CR": "the same name as another task",
        "evaluate ... --pairs CR --labels labels/CR": "another task, CR; rename",
        "evaluate ... --shots 8": "--shots has no effect without a fewshot task",
        "evaluate ... --mode test --retrieval_identical keep": "--retrieval_identical",
        "evaluate ... --task_set geometry --geometry_sample 5": "--geometry_sentences",
        "evaluate ... --final_period": "--template",
        "evaluate ... --lm_head elsewhere": "--lm_head",
        "evaluate ... --postprocess whitening --flow_epochs 3": "",
        "evaluate ... --truncate_dim 33": "truncate_dim 33: must be between 1 and 32",
        "evaluate ... --truncate_dim 4 16 --similarities_file x.npz": "--similarities_file supports only one",
        "evaluate ... --mteb STSBenchmark": "their own splits",
        "evaluate trained --data_dir sts --custom_data --mode dev --denoise false": "without a template",
    },
    "Output paths that exist, or cannot be written": {
        f"train ... --output_dir {'n' * 300}": "n" * 100,
        f"evaluate ... {STSB} --output_file bert/config.json --overwrite": "config.json",
        "plot runs trained --csv trained/prompts.safetensors --overwrite": "prompts.safetensors",
        "hub card trained --output trained/dcpcse.json --overwrite": "dcpcse.json",
        "train ... --output_dir held": "4711",
        "train ... --output_dir held --resume": "4711",
        "adapt bert mine.csv --output_dir held": "4711",
        "train ... --output_dir sts": "sts",
        "train ... --output_dir sts --resume": "contains files that are not from a run",
        "train ... --resume --overwrite_output_dir": "",
        "train ... --resume --resume_from_checkpoint True": "",
        "train ... --output_dir corpus.txt/out": "corpus.txt/out",
        "train ... --output_dir bert --overwrite_output_dir": "bert",
        "train ... --cache_dir corpus.txt": "corpus.txt",
        f"evaluate ... {STSB} --output_file trained/scores.json": "trained/scores.json",
        f"evaluate ... {STSB} --similarities_file corpus.txt": "corpus.txt",
        "plot report trained --no_models --output corpus.txt": "corpus.txt",
        "plot curves trained --output old": "old.png",
        "plot runs trained --csv corpus.txt": "corpus.txt",
        "hub card trained --output corpus.txt": "corpus.txt",
        "encode bert corpus.txt --output corpus.txt": "corpus.txt",
        "encode bert corpus.txt --output corpus.txt/v.npy": "corpus.txt/v.npy",
        "import bert --output trained": "trained",
        "import bert --output bert": "bert",
        "export trained --to peft --output sts": "sts",
        "hub pull some/prompts --output sts": "sts",
        f"{CORRUPT} --output_dir sts": "sts",
        f"{CORRUPT} --output_dir out --max_seq_length 600": "exceeds the 96 positions",
        f"{TEMPLATES} --output_dir corpus.txt": "corpus.txt",
        f"{TRY} corpus.txt": "corpus.txt",
        "search bert A --pooler avg --sentences corpus.txt --index sts": "sts",
        "adapt bert mine.csv --output_dir sts": "sts",
        "pretrain corpus.txt --output_dir bert": "bert is not empty",
        "pretrain corpus.txt --output_dir train.txt": "train.txt is a file",
        "mine bert two.csv --output two.csv --overwrite": "--output two.csv",
    },
    "Pretraining": {
        "pretrain train.txt": "--output_dir",
        f"pretrain none.txt {PRETRAINED}": "none.txt",
        f"pretrain one.txt {PRETRAINED}": "1 line",
        "pretrain corpus.txt --output_dir out --max_steps 1 --tokenizer bert --validation_file foreign.txt": "masked",
        f"pretrain foreign.txt {PRETRAINED} --tokenizer bert": "no word",
        f"{TINY} --validation_file train.txt": "--validation_share",
        "pretrain corpus.txt --output_dir out --max_steps 1 --validation_file corpus.txt": "same content",
        f"{TINY} --hidden_size 100": "--hidden_size 100",
        f"{TINY} --max_seq_length 16 --short_seq_length 32": "",
        "pretrain corpus.txt --output_dir out --minutes 1 --causal_steps 5": "--causal_steps 5",
        f"{CONTINUED} distilbert": "distilbert",
        f"{CONTINUED} bert --max_seq_length 5000": "--max_seq_length 5000",
        f"{TINY} --fp16": "",
        f"{TINY} --model_type roberta --lowercase": "",
        f"{TINY} --tokenizer maskless": "mask token",
        "pretrain corpus.txt --output_dir out --resume": "",
        f"{TINY.replace('--output_dir out', '--output_dir damaged')} --resume": "pretraining.json",
    },
    "Other commands": {
        "trian --help": "trian",
        "doctor bert --max_seq_length 64": "",
        "adapt mine.csv bert --output_dir out": "ENCODER mine.csv",
        "adapt trained mine.csv --output_dir out": "trained",
        "adapt bert mine.csv --output_dir out -- --seed 1": "--seed",
        "adapt bert pairs.csv --output_dir out --columns anchor=nowhere": "'nowhere'",
        "adapt bert pairs.csv --output_dir out --columns anchor=a -- --columns anchor=b": "is given twice",
        "adapt bert mine.csv --output_dir out -- --pooler_type cls": "--pooler_type cls",
        "adapt bert mine.csv --output_dir out -- --tuning full": "--tuning full",
        "adapt bert mine.csv --output_dir out -- --pre_seq_len 8 --lora_r 4": "--pre_seq_len, --lora_r",
        "encode": "MODEL, FILE",
        "encode bert blank.txt --output v.npy": "line 2",
        "encode bert sts --output v.npy": "folder",
        "encode bert corpus.txt --output v.npy --with_sentences": ".arrow",
        "search similarity bert 'A dog.'": "at least two",
        "search bert A": "--sentences FILE is missing",
        "search bert --sentences corpus.txt": "no query",
        "search bert A --index nowhere --vectors v.npy": "needs the sentences",
        "search bert A --sentences corpus.txt --overwrite": "",
        "search bert A --sentences corpus.txt --num_cells 3": "",
        "search bert ' ' --sentences corpus.txt": "empty",
        f"plot predictions A {PREDICT} --top_k 1000000": "--top_k 1000000",
        f"plot predictions A {PREDICT} --template '{{sentence}} [MASK] [MASK]'": "2 [MASK]",
        "plot cosine": "cosine",
        "plot tokens trained --text corpus.txt --matrix mlm_head": "trained",
        "serve bert --host 0.0.0.0": "--host 0.0.0.0",
        "serve bert --watch corpus.txt": "corpus.txt",
        "serve bert --adapters a=trained a=tuned": "'a'",
        "serve demo bert --sentences corpus.txt --host no.such.host.invalid": "cannot serve at this address",
        "serve demo a=bert a=trained --sentences corpus.txt": "have the same label 'a'",
        "serve demo bert --sentences corpus.txt --base bert": "applies to output folders of train.py",
        "serve demo trained --sentences corpus.txt --pooler avg": "--pooler avg",
        "serve demo bert --sentences corpus.txt --cache_dir corpus.txt": "--cache_dir",
        "hub card bert": "bert",
        "hub push trained prompts": "prompts",
        "hub pull trained --output out": "trained",
        "export tuned --to peft --output out": "tuned",
        f"{TEMPLATES} --output_dir out --generate 9": "--t5",
        f"{TEMPLATES} --output_dir out --candidates corpus.txt": "two lists",
        f"{TEMPLATES} --output_dir out --t5 t5-base": "--definitions",
        f"{TRY} out --stages rate": "rate",
        f"reproduce search --search d2cse --output_dir out --stages epochs -- {PAIRS} --custom_eval_data": "'epochs'",
        "reproduce dcpcse/table9": "dcpcse/table9",
        "reproduce dcpcse --set seed 1": "use --seeds",
        "reproduce --miniature --only all": "benchmarks.miniature",
        "reproduce verify trained --row dcpcse/table1": "dcpcse/table1 selects",
        "mine bert two.csv --pooler avg --output mined.csv --guide distilbert --guide_pooler cls": "choose --guide",
    },
}
"""Kind of mistake → command → what the message must repeat; if empty, the last option."""

VALUES: Mapping[str, str] = {  # whole numbers have their bounds in tests/utils/test_command_parser.py
    "train ...": (
        "--max_steps 0, --max_steps -1 --num_train_epochs 0, --learning_rate 0, --learning_rate 1e+300, --temp -inf, "
        "--temp warm, --prompt_dropout 1, --weight_decay -1, --adam_beta1 2, --gradient_cache_chunk 1, "
        "--save_strategy steps --save_steps 0, --eval_strategy steps --eval_steps 0, --do_mlm --mlm_probability 1.5, "
        "--positive crop --crop_share 1, --tuning lora --lora_alpha 0, --tuning lora --lora_dropout 1, "
        "--method dcpsce, --tuning big, --do_eval --eval_data_dir sts --custom_eval_data --metric_for_best_model sts"
    ),
    "evaluate ...": (
        "--truncate_dim 0, --batch_size 0, --task_set fewshot --shots 1, --mode exam, --postprocess whitening "
        "--whitening_dimensions 1, --postprocess flow --flow_seed 99999999999999999999, --mode test --mteb nowhere.py"
    ),
    TINY: "--size huge, --validation_share 0, --mlm_probability 1, --max_steps 0, --warmup_steps 5",
    "mine bert pairs.csv --output mined.csv": "--absolute_margin 3, --relative_margin 2, --max_similarity 2",
    "encode bert corpus.txt --output v.npy": "--truncate_dim 0, --truncate_dim 8.5",
    "search bert A --sentences corpus.txt": "--threshold 2",
    "adapt bert pairs.csv --output_dir out": "--minutes 0, --minutes ten",
    "plot curves trained": "--output x.pdf",
    "hub card trained --output c.md": "--scores corpus.txt",
    "serve demo bert --sentences corpus.txt": "--port 99999",
    "export trained --output out": "--to tensorflow",
    f"{TRY} out": "--search simcse",
}
"""Command → values that the message repeats after the name of the option; before it, an option that it needs."""

UNUSED: Mapping[str, str] = {  # options of methods are in tests/methods/test_methods.py
    "train ...": (
        "--crop_share 0.3, --guide bert, --method rankcse --teacher bert --teacher_weight 0.5, --method rankcse "
        "--teacher bert --teacher_temp 0.1, --eh_loss_margin 0.2, --tuning full --prefix_projection, --tuning full "
        "--prompt_form vectors, --tuning lora --pre_seq_len 10, --lora_r 8, --lora_alpha 16, --lora_target_modules "
        "query, --tuning full --lora_dropout 0.1, --method d2cse --generator_name bert --discriminator_learning_rate "
        "1e-5, --lm_head new"
    ),
    "evaluate ...": (
        "--classifier sklearn --nhid 3, --fit_on train.txt, --mteb_data_dir sts, --mode test --task_set clustering "
        "--similarities_file pairs.npz"
    ),
    "plot tokens bert --text corpus.txt": "--lm_head bert",
    "plot report trained --output r.html --no_models": "--top_k 3",
    "mine bert pairs.csv --output mined.csv": "--seed 3, --guide_margin 0.1, --guide_pooler avg",
}
"""Command → options that have no effect, each behind options that do not change that."""


def rows_of(table: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each command of `VALUES` or `UNUSED`, and its last option with its value."""
    for command, rows in table.items():
        for row in rows.split(", "):
            yield f"{command} {row}", "--" + row.rpartition("--")[2]
