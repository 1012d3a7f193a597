"""Mistakes that users make, as data: what is given to which command, on a desk of small files and encoders.

On the desk lie the encoders bert, roberta, distilbert and albert, the results trained and other (deep prompts on
bert) and tuned (SimCSE), train.txt, pairs.csv, corpus.txt, and sts with small evaluation data. Each command has one or
more mistakes of a kind that reach its message on their own path; the tests of the modules have the others.
"""

import fcntl
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dcpcse.utils.files import write_files

TRAIN = (
    "--model_name_or_path bert --train_file train.txt --output_dir out --max_steps 1 --use_cpu --save_strategy no "
    "--disable_tqdm True --report_to none"
)
"""What a command that begins with `train ...` has besides."""

MEASURE = "--model_name_or_path bert --data_dir sts --custom_data --mode dev --pooler avg --device cpu"
"""And one that begins with `evaluate ...`."""


@dataclass(frozen=True)
class Case:
    """A mistake: its name, the command, and what the message must repeat, by default the last option.

    prepare: what is done to the desk before.
    """

    name: str
    command: str
    given: str = ""
    prepare: Callable[[Path], None] | None = None

    def __str__(self) -> str:
        return self.name

    def words(self, cache: str) -> list[str]:
        """The command line in full. cache: folder for the training data as read."""
        name, *rest = shlex.split(self.command)
        usual = {"train": f"{TRAIN} --cache_dir {shlex.quote(cache)}", "evaluate": MEASURE}
        if rest[:1] == ["..."]:
            return [name, *shlex.split(usual[name]), *rest[1:]]
        if name == "adapt":
            return [name, *rest, *([] if "--" in rest else ["--"]), "--cache_dir", cache]
        return [name, *rest]

    @property
    def named(self) -> str:
        return self.given or "--" + self.command.rpartition("--")[2].split()[0]


# What is done to folders


def _cut(desk: Path) -> None:
    file = Path(shutil.copytree(desk / "bert", desk / "copy")) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])


def _without_tokenizer(desk: Path) -> None:
    (Path(shutil.copytree(desk / "trained", desk / "copy")) / "tokenizer.json").unlink()


def _without_mask(desk: Path) -> None:
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    folder = Path(shutil.copytree(desk / "bert", desk / "copy"))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens), encoding="utf-8")


def _damaged(desk: Path) -> None:
    write_files({desk / "out/pretraining.json": '{"finished": 1}'})


_LOCKS: list[int] = []
"""Descriptors that stay open as long as this process."""


def _held(desk: Path) -> None:
    """A folder that another process writes into, as far as its lock tells."""
    (desk / "held").mkdir()
    _LOCKS.append(os.open(desk / "held/.dcpcse.lock", os.O_RDWR | os.O_CREAT))
    fcntl.flock(_LOCKS[-1], fcntl.LOCK_EX)
    os.write(_LOCKS[-1], json.dumps({"process": 4711, "host": "node7", "since": "2026-11-20T08:00:00+00:00"}).encode())


def _without_a_score(desk: Path) -> None:
    """The evaluation data in the folder data, where the second pair of the STS-B dev set has no gold score."""
    file = Path(shutil.copytree(desk / "sts", desk / "data")) / "downstream/STS/STSBenchmark/sts-dev.csv"
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[1] = lines[1].replace(lines[1].split("\t")[4], "", 1)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


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

GROUPS: Mapping[str, tuple[Case, ...]] = {
    "Training files": (
        Case("a NUL byte", "train ... --train_file nul.txt", "line 3"),
        Case("one class", "train ... --train_file one.csv", "'x'"),
        Case("classes of one sentence", "train ... --train_file single.csv", "'label'"),
        Case("classes for a queue", "train ... --train_file classes.csv --method esimcse", "--neg_size 0"),
        Case(
            "fewer classes than rows of a batch",
            "train ... --train_file classes.csv --batch_sampler no_duplicates",
            "at most 2",
        ),
        Case(
            "several positives corrupted ahead",
            f"{CORRUPT} --output_dir out --train_file several.csv",
            "2 columns of positives",
        ),
        Case("a file twice", "train ... --train_file two.csv two.csv", "is given twice"),
        Case(
            "sets with other columns",
            "train ... --train_file two.csv train.txt",
            "train has the columns anchor, another",
        ),
        Case("sets with other losses", "train ... --method sbert --train_file labelled.csv two.csv", "columns"),
        Case(
            "a weight too many", "train ... --train_file two.csv triples.csv --train_weights 1 2 3", "3 weights for 2"
        ),
        Case("weights of one file", "train ... --train_weights 1", "1 weight for 1"),
        Case("classes corrupted ahead", f"{CORRUPT} --output_dir out --train_file classes.csv", "column class"),
    ),
    "Files of options": (
        Case("no such file", f"train nowhere.yaml {TRAIN}", "nowhere.yaml"),
        Case("empty", f"train empty.yaml {TRAIN}", "empty.yaml"),
        Case("an unknown name", f"train run.yaml {TRAIN}", "--pre_seq_length"),
        Case("a list for a number", f"train list.yaml {TRAIN}", "--temp [1, 2]"),
        Case("code", f"train code.yaml {TRAIN}", "code.yaml"),
    ),
    "Training: numbers": (
        Case("temperature 0", "train ... --temp 0", "--temp 0"),
        Case("a batch of one", "train ... --per_device_train_batch_size 1", "--per_device_train_batch_size 1"),
        Case("a score that no pair has", f"{ANGLE} --train_file scores.csv --similar_from 6", "score is 5"),
        Case("scores that are all equal", f"{ANGLE} --train_file equal.csv", "score 3"),
        Case("losses of weight 0", f"{ANGLE} --cosine_weight 0 --in_batch_weight 0 --angle_weight 0", "all 0"),
        Case("sizes in another order", "train ... --matryoshka_dims 8,32", "largest first"),
        Case("sizes without the whole", "train ... --matryoshka_dims 16,8", "size of the embeddings, 32"),
        Case(
            "a size without halves",
            f"{ANGLE} --train_file triples.csv --matryoshka_dims 32,15",
            "--matryoshka_dims 15",
        ),
        Case("a weight too few", "train ... --matryoshka_dims 32,16 --matryoshka_weights 1", "one number for each"),
        Case(
            "sizes for a loss of whole embeddings",
            "train ... --train_file labelled.csv --method sbert --matryoshka_dims 32,16",
            "no loss of --method sbert",
        ),
    ),
    "Training: words": (
        Case("an option misspelt", "train ... --pre_seq_length 10"),
        Case("no data", "train --model_name_or_path bert --output_dir out", "--train_file"),
        Case("no place for the result", "train --model_name_or_path bert --train_file train.txt", "--output_dir"),
        Case("a compiler that there is not", "train ... --torch_compile_backend nope", "NOPE"),
        Case("layers twice", "train ... --tuning lora --lora_target_modules all-linear query"),
        Case("a schedule without what it needs", "train ... --lr_scheduler_type cosine_with_min_lr", "min_lr_rate"),
        Case("a schedule's options", "train ... --lr_scheduler_kwargs power"),
        Case("an optimiser's options", "train ... --optim_args fast", "--optim_args fast"),
        Case("an optimiser that is not installed", "train ... --optim adamw_bnb_8bit", "bitsandbytes"),
        Case("a reporter that is not installed", "train ... --report_to clearml", "pip install clearml"),
        Case("a tokenizer of old", "train ... --use_fast_tokenizer False"),
        Case("accelerate's options", "train ... --accelerator_config nowhere.json", "nowhere.json"),
        Case("batches dealt out", "train ... --accelerator_config '{\"split_batches\": true}'", "split_batches"),
        Case("a name that the Hub cannot have", "train ... --push_to_hub --hub_model_id prompts", "prompts"),
        Case("no teacher", "train ... --method rankcse", "--teacher is missing"),
        Case("three teachers", "train ... --method rankcse --teacher bert bert bert", "one or two encoders"),
    ),
    "Training: options that contradict each other, or have no effect": (
        Case("prompts of a tuned encoder", "train ... --method simcse --pre_seq_len 10"),
        Case(
            "batches that the file cannot fill", "train ... --per_device_train_batch_size 400 --dataloader_drop_last"
        ),
        Case("workers that stay, and none", "train ... --dataloader_persistent_workers"),
        Case("crops for a method that changes a view", "train ... --positive crop --method esimcse", "esimcse"),
        Case("sentences alone for ordered pairs", "train ... --method cosent", "scores or labels"),
        Case(
            "half precision of a trained encoder",
            "train ... --tuning full --encoder_dtype bfloat16",
            "--encoder_dtype bfloat16 needs a frozen encoder",
        ),
        Case("two precisions", "train ... --fp16 --bf16", "fp16 and bf16"),
        Case(
            "chunks of a compiled step", "train ... --gradient_cache_chunk 2 --torch_compile", "--gradient_cache_chunk"
        ),
        Case("chunks and an emptied cache", "train ... --gradient_cache_chunk 2 --torch_empty_cache_steps 3"),
        Case("attention kernels without a GPU", "train ... --attention triton", "--attention triton"),
        Case("neither training nor measuring", "train ... --do_train False", "--do_train False"),
    ),
    "Encoders": (
        Case("no such folder", "train ... --model_name_or_path ./nowhere", "./nowhere"),
        Case("one that recomputes nothing", "train ... --model_name_or_path albert --gradient_checkpointing"),
        Case("another's tokenizer", "train ... --tokenizer_name roberta", "roberta"),
        Case("weights cut short", "train ... --model_name_or_path copy", "copy", prepare=_cut),
    ),
    "Model folders": (
        Case("a name without end", f"info {'n' * 300}", "n" * 100),
        Case("no tokenizer", f"evaluate ... --model_name_or_path copy {STSB}", "copy", prepare=_without_tokenizer),
    ),
    "Evaluation data": (
        Case("no evaluation data", "train ... --do_eval --eval_data_dir nowhere", "nowhere"),
        Case("no files of a task", "evaluate ... --mode test --tasks MR", "tasks whose files exist"),
        Case("own labels: no such file", "evaluate ... --labels nowhere.csv", "nowhere.csv does not exist"),
        Case(
            "a gold score is missing",
            f"evaluate ... --data_dir data {STSB}",
            "sts-dev.csv:2",
            prepare=_without_a_score,
        ),
    ),
    "Evaluation: options": (
        Case("no encoder", "evaluate --mode dev", "--model_name_or_path"),
        Case("tasks and a set of tasks", "evaluate ... --tasks STS12 --task_set sts", "--tasks and --task_set sts"),
        Case("no tasks", "evaluate ... --task_set na", "--tasks"),
        Case(
            "a map of some embeddings",
            "evaluate ... --mode test --task_set frequent --postprocess whitening",
            "--postprocess whitening",
        ),
        Case("results that nobody writes are replaced", "evaluate ... --overwrite"),
        Case("MTEB in dev mode", "evaluate ... --mteb STSBenchmark", "their own splits"),
        Case(
            "denoising of a folder without a template",
            "evaluate --model_name_or_path trained --data_dir sts --custom_data --mode dev --denoise false",
            "without a template",
        ),
    ),
    "Places that are taken, or cannot be": (
        Case("a name without end", f"train ... --output_dir {'n' * 300}", "n" * 100),
        Case(
            "scores over a configuration",
            f"evaluate ... {STSB} --output_file bert/config.json --overwrite",
            "config.json",
        ),
        Case(
            "a list over prompts",
            "plot runs trained --csv trained/prompts.safetensors --overwrite",
            "prompts.safetensors",
        ),
        Case("a card over a record", "hub card trained --output trained/dcpcse.json --overwrite", "dcpcse.json"),
        Case("a folder that another run writes into", "train ... --output_dir held", "4711", prepare=_held),
        Case(
            "a folder that an adaptation writes into", "adapt bert mine.csv --output_dir held", "4711", prepare=_held
        ),
        Case("a folder with something else", "train ... --output_dir sts", "sts"),
        Case("a file for the folder", "train ... --output_dir corpus.txt", "corpus.txt"),
        Case("a folder below a file", "train ... --output_dir corpus.txt/out", "corpus.txt/out"),
        Case("the encoder's own folder", "train ... --output_dir bert --overwrite_output_dir", "bert"),
        Case("a cache below a file", "train ... --cache_dir corpus.txt", "corpus.txt"),
        Case("scores that are there", f"evaluate ... {STSB} --output_file trained/scores.json", "trained/scores.json"),
        Case("pairs over a text", f"evaluate ... {STSB} --similarities_file corpus.txt", "corpus.txt"),
        Case("scores below a file", f"evaluate ... {STSB} --output_file corpus.txt/s.json", "corpus.txt/s.json"),
        Case("a folder for the scores", f"evaluate ... {STSB} --output_file sts", "sts"),
        Case("a report over a text", "plot report trained --no_models --output corpus.txt", "corpus.txt"),
        Case("a picture that is there", "plot curves trained --output old", "old.png"),
        Case("a picture for a folder", "plot curves trained --output sts", "sts"),
        Case("a list over a text", "plot runs trained --csv corpus.txt", "corpus.txt"),
        Case("a card that is there", "hub card trained --output corpus.txt", "corpus.txt"),
        Case("vectors with a text's name", "encode bert corpus.txt --output corpus.txt", "corpus.txt"),
        Case("vectors below a file", "encode bert corpus.txt --output corpus.txt/v.npy", "corpus.txt/v.npy"),
        Case("a model over a model", "import bert --output trained", "trained"),
        Case("a model over its own checkpoint", "import bert --output bert", "bert"),
        Case("an export that is there", "export trained --to peft --output sts", "sts"),
        Case("a folder from the hub over another", "hub pull some/prompts --output sts", "sts"),
        Case("a corpus over other files", f"{CORRUPT} --output_dir sts", "sts"),
        Case("a search's folder is a file", f"{TEMPLATES} --output_dir corpus.txt", "corpus.txt"),
        Case("tries in a file", f"{TRY} corpus.txt", "corpus.txt"),
        Case("an index over other files", "search bert A --pooler avg --sentences corpus.txt --index sts", "sts"),
        Case("an adaptation over other files", "adapt bert mine.csv --output_dir sts", "sts"),
        Case("an adaptation in a file", "adapt bert mine.csv --output_dir corpus.txt", "corpus.txt"),
        Case("pretraining over other files", "pretrain corpus.txt --output_dir bert", "bert is not empty"),
        Case("pretraining in a file", "pretrain corpus.txt --output_dir train.txt", "train.txt is a file"),
        Case("negatives over their pairs", "mine bert two.csv --output two.csv --overwrite", "--output two.csv"),
    ),
    "Pretraining": (
        Case("no text", "pretrain --output_dir out", "TEXT"),
        Case("no output folder", "pretrain train.txt", "--output_dir"),
        Case("no such text", f"pretrain nowhere.txt {PRETRAINED}", "nowhere.txt"),
        Case("a folder for a text", f"pretrain bert {PRETRAINED}", "bert"),
        Case("an empty text", f"pretrain none.txt {PRETRAINED}", "none.txt"),
        Case("a text of one line", f"pretrain one.txt {PRETRAINED}", "1 line"),
        Case(
            "nothing to measure a model on",
            "pretrain corpus.txt --output_dir out --max_steps 1 --tokenizer bert --validation_file foreign.txt",
            "none was masked",
        ),
        Case("no known words", f"pretrain foreign.txt {PRETRAINED} --tokenizer bert", "no word"),
        Case("two texts to measure on", f"{TINY} --validation_file train.txt", "--validation_share"),
        Case(
            "the text itself to measure on",
            "pretrain corpus.txt --output_dir out --max_steps 1 --validation_file corpus.txt",
            "same content",
        ),
        Case("a hidden size of no whole heads", f"{TINY} --hidden_size 100", "--hidden_size 100"),
        Case("short windows that are longer", f"{TINY} --max_seq_length 16 --short_seq_length 32"),
        Case(
            "steps of minutes", "pretrain corpus.txt --output_dir out --minutes 1 --causal_steps 5", "--causal_steps 5"
        ),
        Case("another architecture", f"{CONTINUED} distilbert", "distilbert"),
        Case("more tokens than positions", f"{CONTINUED} bert --max_seq_length 5000", "--max_seq_length 5000"),
        Case("float16 on a CPU", f"{TINY} --fp16"),
        Case("lower case in RoBERTa", f"{TINY} --model_type roberta --lowercase"),
        Case("no mask token", f"{TINY} --tokenizer copy", "mask token", prepare=_without_mask),
        Case("nothing to resume", "pretrain corpus.txt --output_dir out --resume"),
        Case("a damaged record", f"{TINY} --resume", "pretraining.json", prepare=_damaged),
    ),
    "Other commands": (
        Case("a command that there is not", "trian --help", "trian"),
        Case("doctor: tokens of no training file", "doctor bert --max_seq_length 64"),
        Case("quickstart: no such data", "quickstart --base bert --data nowhere", "nowhere"),
        Case("adapt: no data", "adapt bert --output_dir out", "DATA"),
        Case("adapt: data before the encoder", "adapt mine.csv bert --output_dir out", "ENCODER mine.csv"),
        Case("adapt: a result of train.py", "adapt trained mine.csv --output_dir out", "trained"),
        *(
            Case(f"adapt: {name}", f"adapt bert mine.csv --output_dir out -- {options}", given)
            for name, options, given in (
                ("a seed of train.py", "--seed 1", "--seed"),
                ("a head", "--pooler_type cls", "--pooler_type cls"),
                ("all weights", "--tuning full", "--tuning full"),
                ("options of two tunings", "--pre_seq_len 8 --lora_r 4", "--pre_seq_len, --lora_r"),
            )
        ),
        Case("encode: no places", "encode", "MODEL, FILE"),
        Case("encode: no output", "encode bert corpus.txt", "--output"),
        Case("encode: a blank line", "encode bert blank.txt --output v.npy", "line 2"),
        Case("encode: nothing", "encode bert none.txt --output v.npy", "none.txt"),
        Case("similarity: a blank sentence", "search similarity bert 'A dog.' ' '", "empty"),
        Case("similarity: one sentence", "search similarity bert 'A dog.'", "at least two"),
        Case("search: nothing to look in", "search bert A", "--sentences FILE is missing"),
        Case("search: nothing to look for", "search bert --sentences corpus.txt", "no query"),
        Case("search: no index yet", "search bert A --index nowhere", "nowhere contains no index"),
        Case("search: vectors alone", "search bert A --index nowhere --vectors v.npy", "needs its text"),
        Case("search: overwriting nothing", "search bert A --sentences corpus.txt --overwrite"),
        Case("search: cells without ivf", "search bert A --sentences corpus.txt --num_cells 3"),
        Case("search: a blank query", "search bert ' ' --sentences corpus.txt", "empty"),
        Case("search: no such vectors", "search bert A --sentences corpus.txt --vectors nowhere.npy", "nowhere.npy"),
        Case("predict: a blank sentence", f"plot predictions ' ' {PREDICT}", "empty"),
        Case("predict: more than there are", f"plot predictions A {PREDICT} --top_k 1000000", "--top_k 1000000"),
        Case(
            "predict: two masks", f"plot predictions A {PREDICT} --template '{{sentence}} [MASK] [MASK]'", "2 [MASK]"
        ),
        Case("info: no such folder", "info nowhere", "nowhere"),
        Case("runs: no such folder", "plot runs nowhere", "nowhere"),
        Case("report: no run", "plot report bert --output r.html", "bert"),
        Case("plot: no such picture", "plot cosine", "cosine"),
        Case("plot: no run", "plot curves bert --output x", "bert"),
        Case("plot: the head of a result", "plot tokens trained --text corpus.txt --matrix mlm_head", "trained"),
        Case("serve: other machines without a key", "serve bert --host 0.0.0.0", "--host 0.0.0.0"),
        Case("serve: a watched file", "serve bert --watch corpus.txt", "corpus.txt"),
        Case("serve: two adapters of one name", "serve bert --adapters a=trained a=tuned", "'a'"),
        Case("demo: no such text", "serve demo bert --sentences nowhere.txt", "nowhere.txt"),
        Case("card: no result", "hub card bert", "bert"),
        Case("push: no owner", "hub push trained prompts", "prompts"),
        Case("pull: a place here", "hub pull trained --output out", "trained"),
        Case("export: what the format cannot hold", "export tuned --to peft --output out", "tuned"),
        Case("import: no such folder", "import nowhere --output out", "nowhere"),
        Case(
            "templates: no such candidates", f"{TEMPLATES} --output_dir out --candidates nowhere.yaml", "nowhere.yaml"
        ),
        Case("templates: a number without a T5", f"{TEMPLATES} --output_dir out --generate 9", "--t5"),
        Case("templates: no lists", f"{TEMPLATES} --output_dir out --candidates corpus.txt", "two lists"),
        Case("templates: a T5 without definitions", f"{TEMPLATES} --output_dir out --t5 t5-base", "--definitions"),
        Case("search: no such stage", f"{TRY} out --stages rate", "rate"),
        Case(
            "search: a stage for single sentences",
            "reproduce search --search d2cse --output_dir out --stages epochs -- --model_name_or_path bert "
            "--train_file pairs.csv --eval_data_dir sts --custom_eval_data",
            "--stages 'epochs'",
        ),
        Case("reproduce: no such row", "reproduce dcpcse/table9", "dcpcse/table9"),
        Case("reproduce: an option of the command", "reproduce dcpcse --set seed 1", "use --seeds"),
        Case("reproduce: the papers in miniature", "reproduce --miniature --only all", "benchmarks.miniature"),
        Case("verify: no such row", "reproduce verify trained --row dcpcse/table9/x", "dcpcse/table9/x"),
        Case("verify: a table", "reproduce verify trained --row dcpcse/table1", "dcpcse/table1 selects"),
        Case("mine: no output", "mine bert two.csv", "--output"),
        Case("mine: another format", "mine bert two.csv --output mined.json", "mined.json"),
        Case(
            "mine: a pooler that the guide lacks",
            "mine bert two.csv --pooler avg --output mined.csv --guide distilbert --guide_pooler cls",
            "choose --guide_pooler cls_before_pooler, avg",
        ),
    ),
}
"""Group → its cases."""

VALUES: Mapping[str, str] = {
    "train ...": (
        "--max_steps 0, --max_steps -2, --max_steps -1 --num_train_epochs 0, --max_steps -1 --num_train_epochs "
        "1e+300, --learning_rate 0, --learning_rate 1e+300, --temp nan, --temp -inf, --temp warm, --pre_seq_len 0, "
        "--pre_seq_len 1.5, --position_offset -1, --max_seq_length 2, --prompt_dropout 1, --weight_decay -1, "
        "--warmup_steps -5, --max_grad_norm -1, --adam_beta1 2, --per_device_train_batch_size 0, "
        "--per_device_eval_batch_size 0, --dataloader_prefetch_factor -1, --gradient_accumulation_steps 0, "
        "--gradient_cache_chunk 1, --loss_chunk 0, --dataloader_num_workers -1, --seed -1, --data_seed "
        "99999999999999, --save_strategy steps --save_steps 0, --save_total_limit 0, --logging_steps 0, "
        "--eval_strategy steps --eval_steps 0, --do_mlm --mlm_probability 1.5, --positive crop --crop_share 1, "
        "--method d2cse --masking_ratio 1, --method d2cse --lambda_decay_rate 1.1, --tuning lora --lora_r 0, "
        "--tuning lora --lora_alpha 0, --tuning lora --lora_dropout 1, --method dcpsce, --tuning prompt, "
        "--do_eval --eval_data_dir sts --custom_eval_data --metric_for_best_model sts"
    ),
    "evaluate ...": (
        "--truncate_dim 0, --batch_size 0, --task_set fewshot --shots 1, --mode exam, --postprocess whitening "
        "--whitening_dimensions 1, --postprocess flow --flow_seed 99999999999999999999, --mode test --mteb nowhere.py"
    ),
    TINY: "--size huge, --validation_share 0, --mlm_probability 1, --max_steps 0, --warmup_steps 5",
    "mine bert pairs.csv --output mined.csv": (
        "--num_negatives 0, --range_min -1, --absolute_margin 3, --relative_margin 2, --max_similarity 2"
    ),
    "encode bert corpus.txt --output v.npy": "--num_processes 0, --truncate_dim 0, --truncate_dim 8.5",
    "search bert A --sentences corpus.txt": "--threshold 2",
    "doctor train.txt": "--batch_size 1",
    "quickstart --base bert": "--seed -1",
    "adapt bert pairs.csv --output_dir out": "--minutes 0, --minutes ten",
    "plot embeddings bert roberta": "--count 1",
    "plot curves trained": "--output x.pdf",
    "hub card trained --output c.md": "--scores corpus.txt",
    "serve demo bert --sentences corpus.txt": "--port 99999",
    "export trained --output out": "--to tensorflow",
    f"{CORRUPT} --output_dir out": "--seed 99999999999",
    f"{TEMPLATES} --output_dir out": "--keep 0",
    f"{TRY} out": "--limit 0, --search simcse",
    "reproduce dcpcse": "--limit 0",
}
"""Command → values that the message repeats after the name of the option; before it, an option that it needs."""

UNUSED: Mapping[str, str] = {
    "train ...": (
        "--hard_negative_weight 1, --crop_share 0.3, --guide bert, --method rankcse --teacher bert --teacher_weight "
        "0.5, --method rankcse --teacher bert --teacher_temp 0.1, --method d2cse --lambda_weight 0 "
        "--lambda_decay_rate 0.9, --do_mlm --mlm_weight 0 --mlm_decay_rate 0.5, --eh_loss_margin 0.2, --tuning full "
        "--prefix_projection, --tuning full --prompt_form vectors, --tuning lora --pre_seq_len 10, --lora_r 8, "
        "--lora_alpha 16, --lora_target_modules query, --tuning full --lora_dropout 0.1, --method d2cse "
        "--lambda_decay_steps 50, --method d2cse --generator_name bert --discriminator_learning_rate 1e-5, "
        "--prefix_hidden_size 64, --mlm_weight 0.5, --lm_head new, --train_lm_head, --denoise, --freeze_prompts, "
        "--final_period"
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


def rows_of(table: Mapping[str, str]) -> Iterator[tuple[Case, str]]:
    """Each command of `VALUES` or `UNUSED`, and its last option with its value."""
    for command, rows in table.items():
        for row in rows.split(", "):
            yield Case(row, f"{command} {row}"), "--" + row.rpartition("--")[2]
