"""Mistakes that users make, as data: what is given to which command, on a desk of small files and encoders.

On the desk lie the encoders bert, roberta, distilbert, albert and deberta, the results trained and other (deep
prompts on bert), tuned (SimCSE's) and adapted (LoRA), train.txt, pairs.csv, corpus.txt, and sts with small evaluation
data.
"""

import fcntl
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from model_folders import write_sealed
from safetensors.torch import load_file, save_file

from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.loading import load_model
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
    """A mistake: its name, the command, and what the message must repeat.

    files: that are put on the desk before, by name. prepare: what else is done to the desk. program: where it is tried
    in a process of its own, the script or module. missing: a package that is not installed then. offline: whether the
    Hub cannot be reached.
    """

    name: str
    command: str
    given: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    prepare: Callable[[Path], None] | None = None
    program: str | None = None
    missing: str | None = None
    offline: bool = False

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

    def lay_out(self, desk: Path) -> None:
        for name, content in self.files.items():
            (desk / name).write_bytes(content.encode() if isinstance(content, str) else content)
        if self.prepare:
            self.prepare(desk)


def with_data(name: str, content: str | bytes, file: str, given: str = "") -> Case:
    """A training file that cannot be trained on."""
    return Case(name, f"train ... --train_file {file}", given or file, files={file: content})


def with_options(name: str, content: str | bytes, given: str, file: str = "run.yaml") -> Case:
    """A file of options that train.py refuses; it stands first."""
    return Case(name, f"train {file} {TRAIN}", given, files={file: content})


def mining(
    name: str, options: str, given: str, files: Mapping[str, str] | None = None, pairs: str = "two.csv"
) -> Case:
    """A call of `dcpcse mine` for the two pairs of two.csv."""
    two = {"two.csv": "anchor,positive\nRain fell.,It rained.\nA cat sleeps.,The cat is asleep.\n"}
    return Case(f"mine: {name}", f"mine bert {pairs} --pooler avg {options}".strip(), given, {**two, **(files or {})})


# What is done to folders


def _index_of_8(desk: Path) -> None:
    model = load_model(str(desk / "bert"), EncoderArguments(pooler_type="avg", device="cpu"))
    SentenceIndex.build(model, ["A dog.", "A cat."], desk / "short", truncate_dim=8)


def _copied(name: str, to: str, change: Callable[[Path], object]) -> Callable[[Path], None]:
    def prepare(desk: Path) -> None:
        change(Path(shutil.copytree(desk / name, desk / to)))

    return prepare


QRELS = "query-id\tcorpus-id\tscore\n"
DOCUMENT = '{"_id": "d1", "title": "", "text": "Rain fell."}\n'
QUERY = '{"_id": "q1", "text": "rain"}\n'
SAME = f"{QRELS}d1\td1\t1\n"
"""A document with the id of its query is relevant."""


def _beir(
    corpus: str = DOCUMENT, queries: str | None = QUERY, qrels: str | None = f"{QRELS}q1\td1\t1\n"
) -> Callable[[Path], None]:
    """Retrieval data in the layout of BEIR with the split test; None leaves a file out."""

    def prepare(desk: Path) -> None:
        (desk / "beir/qrels").mkdir(parents=True)
        files = {"corpus.jsonl": corpus, "queries.jsonl": queries, "qrels/test.tsv": qrels}
        for name, content in files.items():
            if content is not None:
                (desk / "beir" / name).write_text(content, encoding="utf-8")

    return prepare


def _cut(file: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-50])


def _without(file: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).unlink()


def _with_text(file: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(content, encoding="utf-8")


def _in_record(*path: str, value: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        record = json.loads((folder / "dcpcse.json").read_text(encoding="utf-8"))
        place = record
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        write_sealed(folder / "dcpcse.json", record)

    return change


def _in_prompts(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        (file,) = (path for path in folder.glob("*.safetensors") if "prompt_embeddings" in load_file(path))
        save_file({"prompt_embeddings": change(load_file(file)["prompt_embeddings"]).contiguous()}, file)

    return rewrite


def _with_prompts(folder: Path) -> None:
    record = json.loads((folder.parent / "trained/dcpcse.json").read_text(encoding="utf-8"))
    for name in ("prompt", "prompts_file"):
        _in_record(name, value=record[name])(folder)


def _without_a_layer(folder: Path) -> None:
    kept = {n: t for n, t in load_file(folder / "model.safetensors").items() if ".layer.1." not in n}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def _without_lm_head(folder: Path) -> None:
    kept = {n: t for n, t in load_file(folder / "model.safetensors").items() if not n.startswith("cls.")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def _without_attention(layer: int) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        tensors, part = load_file(folder / "model.safetensors"), f".layer.{layer}.attention.output.dense.weight"
        (name,) = (name for name in tensors if name.endswith(part))
        save_file({**tensors, name: 0 * tensors[name]}, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def _all_zero(folder: Path) -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(zeros, folder / "model.safetensors", metadata={"format": "pt"})


def _not_finite(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if "word_embeddings" in name)
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


_LOCKS: list[int] = []
"""Descriptors that stay open as long as this process."""


def _german_copies(desk: Path) -> None:
    """Copies of the data of the task set multilingual that are in German only."""
    for name in ("sts17-crosslingual-sts", "sts22-crosslingual-sts", "tatoeba-bitext-mining"):
        (desk / "multilingual" / name).mkdir(parents=True)
        row = '{"sentence1": "a", "sentence2": "b", "score": 1, "lang": "de"}\n'
        (desk / "multilingual" / name / "test.jsonl").write_text(row, encoding="utf-8")


def _held(desk: Path) -> None:
    """A folder that another process writes into, as far as its lock tells."""
    (desk / "held").mkdir()
    _LOCKS.append(os.open(desk / "held/.dcpcse.lock", os.O_RDWR | os.O_CREAT))
    fcntl.flock(_LOCKS[-1], fcntl.LOCK_EX)
    os.write(_LOCKS[-1], json.dumps({"process": 4711, "host": "node7", "since": "2026-11-20T08:00:00+00:00"}).encode())


def _adapted(state: str) -> Callable[[Path], None]:
    """A folder with the record of an adaptation of other data."""
    made_of = {"encoder": "x", "data": "y", "seed": 42, "minutes": 10.0}
    content = {"format": 1, "state": state, "made_of": made_of, "trials": [], "seconds": 1.5, "result": None}

    def prepare(desk: Path) -> None:
        (desk / "out").mkdir()
        (desk / "out/adapt.json").write_text(json.dumps(content), encoding="utf-8")

    return prepare


def _pairs_of(first: int, count: int, *, third: str = "") -> str:
    """A csv file of pairs, of which no two share a text."""
    rows = [f"one {i},two {i}" + (",1" if third else "") for i in range(first, first + count)]
    return "\n".join(["a,b" + (f",{third}" if third else ""), *rows, ""])


def _nan(prompts: torch.Tensor) -> torch.Tensor:
    prompts[0, 0] = torch.nan
    return prompts


def _dev_file(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    """The evaluation data in the folder data, with another STS-B dev set."""

    def prepare(desk: Path) -> None:
        file = Path(shutil.copytree(desk / "sts", desk / "data")) / "downstream/STS/STSBenchmark/sts-dev.csv"
        lines = file.read_text(encoding="utf-8").splitlines()
        file.write_text("\n".join(change(lines)) + "\n", encoding="utf-8")

    return prepare


def _only_stsb(desk: Path) -> None:
    shutil.copytree(desk / "sts/downstream/STS", desk / "part/downstream/STS")


def _link(desk: Path) -> None:
    (desk / "link.txt").symlink_to("moved-away.txt")


STSB = "--tasks STSBenchmark"
GUIDED = "train ... --train_file pairs.csv --guide bert"
ADAPT = "adapt bert --output_dir out"
MINE = {"mine.csv": _pairs_of(0, 60)}


def _mine(encoder: str, options: str = "") -> str:
    """Adapt an encoder to mine.csv. options: of train.py."""
    place = "" if "--output_dir" in encoder else " --output_dir out"
    return f"adapt {encoder} mine.csv{place}{options and f' -- {options}'}"


SEVERAL = {"several.csv": "a,pos_1,pos_2\n" + "".join(f"anchor {i},one {i},two {i}\n" for i in range(9))}
LABELLED = {
    "nli.csv": "a,b,label\n" + "".join(f"{i},x {i},{'neutral' if i % 2 else 'entailment'}\n" for i in range(9))
}
CORRUPT = "pretrain corrupt --model_name_or_path bert --generator_name {} --train_file train.txt --output_dir out"
TRY = "reproduce search --search dcpcse --output_dir out"
ROW = "reproduce dcpcse/table1/unsupervised/SimCSE-BERT-base --unsup_file train.txt --base bert --output_dir out"
PRETRAINED = "--output_dir out --size tiny --max_steps 1 --use_cpu --validation_share 0.2"
CONTINUED = "--output_dir out --max_steps 1 --use_cpu --validation_share 0.2 --max_seq_length 16 --model_name_or_path"
NO_MASK = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "pad_token": "[PAD]"})
VERIFIED = "dcpcse/table1/unsupervised/SimCSE-BERT-base"
DEV = f"evaluate ... --data_dir data {STSB}"
MODEL = f"evaluate ... --model_name_or_path copy {STSB}"
TRAINED = "evaluate --data_dir sts --custom_data --mode dev --device cpu --model_name_or_path"

GROUPS: Mapping[str, tuple[Case, ...]] = {
    "Training files": (
        Case("no such file", "train ... --train_file nowhere.txt", "nowhere.txt"),
        Case("a folder for a file", "train ... --train_file bert", "bert"),
        Case("a device", "train ... --train_file /dev/null", "/dev/null"),
        Case("a link that leads nowhere", "train ... --train_file link.txt", "link.txt", prepare=_link),
        Case("an address", "train ... --train_file https://some.where/train.txt", "some.where/train.txt"),
        with_data("empty", "", "train.csv"),
        with_data("blank lines only", "\n \n\n", "blank.txt"),
        with_data("a byte-order mark and one sentence", b"\xef\xbb\xbfA dog.\n", "one.txt"),
        with_data("one sentence", "A dog.\n", "one.txt"),
        with_data("a header and no row", "sent0,sent1\n", "header.csv"),
        with_data("Latin-1", "Ein Käse.\nNoch einer.\n".encode("latin-1"), "latin.txt", "line 1"),
        with_data("UTF-16", "A dog.\nA cat.\n".encode("utf-16"), "wide.txt", "iconv -f UTF-16"),
        with_data("UTF-16, Chinese", "狗跑。\n猫睡。\n".encode("utf-16"), "宽.txt", "iconv -f UTF-16"),
        with_data("Windows-1251", "Пёс бежит.\nКот спит.\n".encode("cp1251"), "пёс.txt", "WINDOWS-1251"),
        with_data("a NUL byte", b"A dog.\nA cat.\nA \0.\n", "nul.txt", "line 3"),
        with_data("a binary file", b'X\0\0\0\0\0\0\0{"a":{}}', "binary.txt", "binary.txt is not a text file"),
        with_data("four columns", "a,b,c,d\n1,2,3,4\n", "four.csv"),
        with_data("a label that is no class", "a,b,label\nx,y,neutral\nz,w,2\n", "labels.csv", "line 3"),
        with_data("a method that does not read scores", "a,b,same\nx,y,0\nz,w,1\n", "zero.csv", "sbert"),
        with_data("a column of 0 and 1 with another cell", "a,b,same\nx,y,0\nz,w,2\n", "two.csv", "line 3"),
        with_data("a class in the first column", "class,text\nx,a\ny,b\n", "class.csv", "second of two"),
        with_data("a class that is a decimal number", "text,label\na,x\nb,0.5\n", "decimal.csv", "line 3: found 0.5"),
        with_data("one class", "text,class\na,x\nb,x\n", "one.csv", "'x'"),
        with_data("classes of one sentence", "text,label\na,x\nb,y\n", "single.csv", "'label'"),
        with_data("a list as a class", '{"text": "a", "class": ["x"]}\n', "list.jsonl", "class"),
        Case(
            "classes for a method that contrasts no pairs",
            "train ... --train_file classes.csv --method sbert",
            "simcse",
            files={"classes.csv": "text,class\na,x\nb,x\nc,y\n"},
        ),
        Case(
            "classes for a queue that has none",
            "train ... --train_file classes.csv --method esimcse",
            "--neg_size 0",
            files={"classes.csv": "text,class\na,x\nb,x\nc,y\n"},
        ),
        Case(
            "fewer classes than rows of a batch without duplicates",
            "train ... --train_file classes.csv --batch_sampler no_duplicates",
            "at most 2",
            files={"classes.csv": "text,class\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(20))},
        ),
        with_data("numbers as hard negatives", "a,b,sim\nx,y,3.5\nz,w,2\n", "sim.csv", "'sim'"),
        with_data("a column beside hard negatives", "a,b,neg_1,source\nx,y,z,w\n", "source.csv", "'source'"),
        with_data("a column between positives", "a,pos_1,text,pos_2\nx,y,z,w\n", "between.csv", "'text'"),
        with_data("an anchor behind its positives", "positive_1,positive_2,anchor\nx,y,z\n", "last.csv", "the anchor"),
        with_data("an anchor behind its positive", "positive,anchor\nx,y\n", "swapped.csv", "'positive'"),
        with_data("a column before the anchor", "id,anchor,positive\n1,x,y\n", "id.csv", "remove the column 'id'"),
        with_data("a positive behind a negative", "a,pos_1,neg,pos_2\nx,y,z,w\n", "order.csv", "'pos_2'"),
        with_data("a second positive behind another name", "q,answer,pos_2\nx,y,z\n", "second.csv", "'pos_2'"),
        with_data("scores beside several positives", "a,pos_1,pos_2,score\nx,y,z,5\n", "both.csv", "'score'"),
        with_data("a blank positive in all rows", "a,pos_1,pos_2\nx,y,\nz,,w\n", "partly.csv", "blank cells"),
        Case(
            "several positives for a method of labels",
            "train ... --train_file several.csv --method sbert",
            "labelled pairs or hard negatives",
            files=SEVERAL,
        ),
        Case(
            "drawn positives, and workers that stay",
            "train ... --train_file several.csv --dataloader_num_workers 1 --dataloader_persistent_workers",
            "positives are drawn",
            files=SEVERAL,
        ),
        Case(
            "several positives that are corrupted ahead",
            f"{CORRUPT.format('bert')} --train_file several.csv",
            "2 columns of positives",
            files=SEVERAL,
        ),
        Case(
            "classes that are corrupted ahead",
            f"{CORRUPT.format('bert')} --train_file classes.csv",
            "column class",
            files={"classes.csv": "text,class\na,x\nb,x\nc,y\n"},
        ),
        with_data("scores that are labels", "a,b,score\nx,y,Neutral\n", "words.csv", "label"),
        with_data("a list as a score", '{"a": "x", "b": "y", "score": [1]}\n', "listed.jsonl", "number"),
        with_data("a score that is no number", "a,b,score\nx,y,3.5\nz,w,high\n", "scores.csv", "line 3"),
        with_data("a label in the first column", "label,a,b\nneutral,x,y\nneutral,z,w\n", "first.csv", "third"),
        with_data("labels that the method does not read", "a,b,label\nx,y,neutral\nz,w,neutral\n", "nli.csv", "label"),
        Case("sentences alone for a method of pairs", "train ... --method sbert --train_file train.txt", "label"),
        with_data("a column without a name", "sent0,\na,b\n", "unnamed.csv", "sent0"),
        with_data("two columns of one name", "sent,sent \na,b\n", "same.csv", "'sent' twice"),
        with_data("a quote that is open for a million characters", 's,t\n"a,b\n' + "c,d\n" * 270_000, "open.csv", "2"),
        with_data("semicolons between columns", "sent0;sent1\na;b\n", "german.csv", "sent0;sent1"),
        with_data("tabs in a csv file", "sent0\tsent1\na\tb\n", "tabs.csv", ".tsv"),
        with_data("commas in a tsv file", "sent0,sent1\na,b\n", "commas.tsv"),
        with_data("a row too short", "sent0,sent1\na,b\nc\n", "ragged.csv", "line 3"),
        with_data("a row too long", "sent0,sent1\na,b\nc,d,e\n", "ragged.csv", "line 3"),
        with_data("an open quote", 'sent0,sent1\na,b\n"c,d\n', "quote.csv", "line 3"),
        with_data("text behind a quote", '"a"b,c\nd,e\n', "quote.csv", "line 1"),
        with_data("all cells blank", 'a,b\n"",""\n" ",""\n', "blank.csv"),
        with_data("broken JSON", '{"a": "b"}\n{"a": \n', "broken.jsonl", "line 2"),
        with_data("a JSON array that ends early", '[{"a": "b"},', "broken.json", "line 1"),
        with_data("a number for a sentence", '{"a": "b"}\n{"a": 3}\n', "number.jsonl", "line 2"),
        with_data("a list for a sentence", '{"a": ["b"]}\n', "list.jsonl", "line 1"),
        with_data("a string for an object", '"a"\n"b"\n', "strings.jsonl", "line 1"),
        with_data("other keys in a later row", '{"a": "b"}\n{"c": "d"}\n', "keys.jsonl", "line 2"),
        with_data("a key twice", '{"a": "b", "a": "c"}\n', "twice.jsonl", "line 1"),
        with_data("an object without keys", "{}\n", "none.jsonl", "line 1"),
        with_data("an empty array", "[]", "none.json"),
        with_data("half a character", '{"a": "\\ud800"}\n{"a": "b"}\n', "half.jsonl", "\\ud800"),
        with_data("brackets without end", "[" * 100_000, "deep.json", "line 1"),
        with_data("nothing but null", '{"a": null}\n{"a": null}\n', "null.jsonl"),
        with_data("a packed file", b"\x1f\x8b", "train.txt.gz", ".gz"),
        with_data("another format", b"PAR1", "train.parquet", ".parquet"),
        with_data("a page of text", "# Title\n", "README.md", ".md"),
        with_data("no extension", "a\nb\n", "sentences"),
    ),
    "Files of options": (
        Case("no such file", f"train nowhere.yaml {TRAIN}", "nowhere.yaml"),
        Case("a folder", f"train run.yaml {TRAIN}", "run.yaml", prepare=lambda desk: (desk / "run.yaml").mkdir()),
        Case("behind the options", "train ... run.yaml", "run.yaml", files={"run.yaml": "temp: 0.1\n"}),
        with_options("empty", "", "run.yaml"),
        with_options("a list", "- temp\n- 0.1\n", "run.yaml"),
        with_options("a name twice", "temp: 0.1\ntemp: 0.2\n", "temp"),
        with_options("a name twice in JSON", '{"temp": 0.1, "temp": 0.2}', "temp", "run.json"),
        with_options("an unknown name", "pre_seq_length: 3\n", "--pre_seq_length"),
        with_options("options below a heading", "model:\n  temp: 0.1\n", "--model"),
        with_options("a list for a number", "temp: [1, 2]\n", "--temp [1, 2]"),
        with_options("an object for a number", "temp: {a: 1}\n", "--temp"),
        with_options("a word for a number", "temp: warm\n", "--temp warm"),
        with_options("a word for true or false", "do_mlm: maybe\n", "maybe"),
        with_options("an empty value", 'init_from: ""\n', "--init_from"),
        with_options("a date for a number", "seed: 2020-01-01\n", "2020-01-01"),
        with_options("true for a number", "seed: true\n", "--seed True"),
        with_options("not finite", '{"temp": NaN}', "nan", "run.json"),
        with_options("JSON that ends early", '{"temp": 0.1', "run.json", "run.json"),
        with_options("tabs in YAML", "temp:\t0.1\n\tseed: 2\n", "run.yaml"),
        with_options("code in YAML", "temp: !!python/object/apply:os.getcwd []\n", "run.yaml"),
        with_options("Latin-1", "preset: Käse\n".encode("latin-1"), "run.yaml"),
        with_options("a preset that there is not", "preset: dcpcse/unsup-bert-bas\n", "dcpcse/unsup-bert-bas"),
    ),
    "Training: numbers": (
        Case("no steps", "train ... --max_steps 0", "--max_steps 0"),
        Case("fewer steps than none", "train ... --max_steps -2", "--max_steps -2"),
        Case("epochs without end", "train ... --max_steps -1 --num_train_epochs 1e300", "--num_train_epochs"),
        Case("a learning rate beyond all numbers", "train ... --learning_rate 1e300", "--learning_rate"),
        Case("temperature 0", "train ... --temp 0", "--temp 0"),
        Case("temperature NaN", "train ... --temp nan", "--temp nan"),
        Case("temperature infinite", "train ... --temp inf", "--temp inf"),
        Case("a word for a number", "train ... --temp warm", "--temp warm"),
        Case("half a prompt", "train ... --pre_seq_len 1.5", "--pre_seq_len 1.5"),
        Case("no value", "train ... --temp", "--temp"),
        Case("an empty value", "train ... --temp ''", "--temp"),
        Case("no prompts", "train ... --pre_seq_len 0", "--pre_seq_len 0"),
        Case("prompts below 0", "train ... --pre_seq_len -1", "--pre_seq_len -1"),
        Case("prompts beyond the positions", "train ... --pre_seq_len 600", "600"),
        Case("prompts that leave too little room", "train ... --pre_seq_len 70", "--max_seq_length 32"),
        Case("an offset beyond the positions", "train ... --position_offset 95", "95"),
        Case("an offset below 0", "train ... --position_offset -1", "--position_offset -1"),
        Case("texts of two tokens", "train ... --max_seq_length 2", "--max_seq_length 2"),
        Case("texts beyond the positions", "train ... --max_seq_length 97", "--max_seq_length 97"),
        Case("dropout of 1", "train ... --prompt_dropout 1", "--prompt_dropout 1"),
        Case("learning rate 0", "train ... --learning_rate 0", "--learning_rate 0"),
        Case("learning rate infinite", "train ... --learning_rate inf", "--learning_rate inf"),
        Case("weight decay below 0", "train ... --weight_decay -1", "--weight_decay -1"),
        Case("warm-up below 0", "train ... --warmup_steps -5", "--warmup_steps -5"),
        Case("warm-up NaN", "train ... --warmup_steps nan", "--warmup_steps nan"),
        Case("gradient norm below 0", "train ... --max_grad_norm -1", "--max_grad_norm -1"),
        Case("Adam's beta of 2", "train ... --adam_beta1 2", "--adam_beta1 2"),
        Case("no epochs", "train ... --max_steps -1 --num_train_epochs 0", "--num_train_epochs 0"),
        Case("epochs without end", "train ... --max_steps -1 --num_train_epochs inf", "--num_train_epochs inf"),
        Case("an empty batch", "train ... --per_device_train_batch_size 0", "--per_device_train_batch_size 0"),
        Case("a batch of one", "train ... --per_device_train_batch_size 1", "--per_device_train_batch_size 1"),
        Case("an empty batch of dev sentences", "train ... --per_device_eval_batch_size 0", "eval_batch_size 0"),
        Case(
            "fetching ahead by less than 0",
            "train ... --dataloader_prefetch_factor -1",
            "--dataloader_prefetch_factor -1",
        ),
        Case("accumulation over 0", "train ... --gradient_accumulation_steps 0", "--gradient_accumulation_steps 0"),
        Case("chunks of one", "train ... --gradient_cache_chunk 1", "--gradient_cache_chunk 1"),
        Case("row chunks of none", "train ... --loss_chunk 0", "--loss_chunk 0"),
        Case("workers below 0", "train ... --dataloader_num_workers -1", "--dataloader_num_workers -1"),
        Case("infinite below 0", "train ... --temp -inf", "--temp -inf"),
        Case("seed below 0", "train ... --seed -1", "--seed -1"),
        Case("seed of the data too large", "train ... --data_seed 99999999999999", "--data_seed 99999999999999"),
        Case("saving every 0 steps", "train ... --save_strategy steps --save_steps 0", "--save_steps 0"),
        Case("keeping no checkpoint", "train ... --save_total_limit 0", "--save_total_limit 0"),
        Case("logging every 0 steps", "train ... --logging_steps 0", "--logging_steps 0"),
        Case("measuring every 0 steps", "train ... --eval_strategy steps --eval_steps 0", "--eval_steps 0"),
        Case(
            "a weight of hard negatives that the file does not have", "train ... --hard_negative_weight 1", "negatives"
        ),
        Case("masking everything", "train ... --do_mlm --mlm_probability 1.5", "--mlm_probability 1.5"),
        Case("MLM weight infinite", "train ... --do_mlm --mlm_weight inf", "--mlm_weight inf"),
        Case("an unknown positive", "train ... --positive crops", "crop"),
        Case("following lines of pairs", "train ... --train_file pairs.csv --positive next", "--positive next"),
        Case("crops for a method that changes a view", "train ... --positive crop --method esimcse", "esimcse"),
        Case("crops for a method of prototypes", "train ... --positive crop --method conpvp", "conpvp"),
        Case("following lines for a method of labels", "train ... --positive next --method sbert", "sbert"),
        Case("a share of crops without crops", "train ... --crop_share 0.3", "--positive crop"),
        Case(
            "a crop of the whole text",
            "train ... --positive crop --crop_share 1",
            "--crop_share 1: must be above 0 and below 1",
        ),
        Case(
            "no line that follows another one",
            "train ... --train_file apart.txt --positive next",
            "3 lines in 3 documents",
            files={"apart.txt": "a\n\nb\n\nc\n"},
        ),
        Case("a guide that does not exist", "train ... --train_file pairs.csv --guide nowhere/guide", "nowhere/guide"),
        Case("a guide for sentences alone", "train ... --guide bert", "pairs of sentences"),
        Case("a guide for a loss that compares no rows", f"{GUIDED} --method sbert", "no contrastive loss"),
        Case(
            "row chunks of a loss that compares no rows",
            "train ... --train_file pairs.csv --method sbert --loss_chunk 2",
            "compares no rows",
        ),
        Case("a guide for copies of a sentence", f"{GUIDED} --method consert", "--guide"),
        Case("a guide for a queue", f"{GUIDED} --method esimcse", "--neg_size 0"),
        Case("a hard negative's weight NaN", "train ... --hard_negative_weight nan", "--hard_negative_weight nan"),
        Case("no teacher", "train ... --method rankcse", "--teacher is missing"),
        Case("three teachers", "train ... --method rankcse --teacher bert bert bert", "one or two encoders"),
        Case(
            "a teacher that does not exist", "train ... --method rankcse --teacher nowhere/t", "--teacher: nowhere/t"
        ),
        Case(
            "a share of one teacher",
            "train ... --method rankcse --teacher bert --teacher_weight 0.5",
            "without two teachers",
        ),
        Case(
            "a temperature of teachers whose order alone counts",
            "train ... --method rankcse --teacher bert --teacher_temp 0.1",
            "--ranking listnet",
        ),
        Case("a teacher of another method", "train ... --method simcse --teacher bert", "--method rankcse"),
        Case("an unknown ranking", "train ... --method rankcse --teacher bert --ranking listnett", "listnet"),
        Case("sentences alone for a method of ordered pairs", "train ... --method cosent", "scores or labels"),
        Case(
            "scores that are all equal",
            "train ... --train_file equal.csv --method angle",
            "all rows have the score 3",
            files={"equal.csv": "a,b,score\nx,y,3\nz,w,3\n"},
        ),
        Case(
            "a score that no pair has",
            "train ... --train_file scores.csv --method angle --similar_from 6",
            "the highest score is 5",
            files={"scores.csv": "a,b,score\nx,y,5\nz,w,1\n"},
        ),
        Case(
            "three losses of weight 0",
            "train ... --method angle --cosine_weight 0 --in_batch_weight 0 --angle_weight 0",
            "all 0",
        ),
        Case(
            "a temperature of angles that have no weight",
            "train ... --train_file triples.csv --method angle --angle_weight 0 --angle_temp 2",
            "without --angle_weight above 0",
            files={"triples.csv": "a,b,c\nx,y,z\nu,v,w\n"},
        ),
        Case(
            "a least score of in-batch negatives that have no weight",
            "train ... --train_file scores.csv --method angle --in_batch_weight 0 --similar_from 3",
            "without --in_batch_weight above 0",
            files={"scores.csv": "a,b,score\nx,y,5\nz,w,1\n"},
        ),
        Case(
            "a temperature of cosines that have no weight",
            "train ... --train_file triples.csv --method angle --cosine_weight 0 --in_batch_weight 0 --temp 0.1",
            "--temp has no effect",
            files={"triples.csv": "a,b,c\nx,y,z\nu,v,w\n"},
        ),
        Case(
            "labels without an entailment",
            "train ... --train_file labelled.csv --method angle",
            "no row has the label entailment",
            files={"labelled.csv": "a,b,label\nx,y,contradiction\nz,w,neutral\n"},
        ),
        Case("sizes in another order", "train ... --matryoshka_dims 8,32", "largest first"),
        Case("sizes without that of the embeddings", "train ... --matryoshka_dims 16,8", "size of the embeddings, 32"),
        Case(
            "a size without halves",
            "train ... --train_file triples.csv --method angle --matryoshka_dims 32,15",
            "--matryoshka_dims 15",
            files={"triples.csv": "a,b,c\nx,y,z\nu,v,w\n"},
        ),
        Case("sizes that are no numbers", "train ... --matryoshka_dims 32,small", "small"),
        Case("a size of 0", "train ... --matryoshka_dims 32,0", "at least 1"),
        Case(
            "a weight too few for the sizes",
            "train ... --matryoshka_dims 32,16,8 --matryoshka_weights 1,1",
            "one number for each",
        ),
        Case(
            "sizes for a loss of whole embeddings",
            "train ... --train_file labelled.csv --method sbert --matryoshka_dims 32,16",
            "no loss of --method sbert",
            files={"labelled.csv": "a,b,label\nx,y,entailment\nz,w,neutral\n"},
        ),
        Case("replacing everything", "train ... --method d2cse --masking_ratio 1", "--masking_ratio 1"),
        Case("a weight that grows", "train ... --method d2cse --lambda_decay_rate 1.1", "--lambda_decay_rate 1.1"),
        Case(
            "a weight of 0 that falls",
            "train ... --method d2cse --lambda_weight 0 --lambda_decay_rate 0.9",
            "without --lambda_weight above 0",
        ),
        Case(
            "an MLM weight of 0 that falls",
            "train ... --do_mlm --mlm_weight 0 --mlm_decay_rate 0.5",
            "without --mlm_weight above 0",
        ),
    ),
    "Training: words": (
        Case(
            "an optimiser without bias correction",
            "train ... --optim sgd --adam_bias_correction False",
            "--adam_bias_correction False",
        ),
        Case("a compiler that there is not", "train ... --torch_compile_backend nope", "NOPE"),
        Case("a value of blanks", "train ... --run_name ' '", "--run_name"),
        Case("no encoder", "train --train_file train.txt --output_dir out", "--model_name_or_path"),
        Case("no data", "train --model_name_or_path bert --output_dir out", "--train_file"),
        Case("no place for the result", "train --model_name_or_path bert --train_file train.txt", "--output_dir"),
        Case("an option misspelt", "train ... --pre_seq_length 10", "--pre_seq_length"),
        Case("an option that there is not", "train ... --quickly", "--quickly"),
        Case("a word too many", "train ... quickly", "quickly"),
        Case("method misspelt", "train ... --method dcpsce", "dcpsce"),
        Case("method in capitals", "train ... --method SimCSE", "SimCSE"),
        Case("pooler", "train ... --pooler_type median", "--pooler_type median"),
        Case("tuning", "train ... --tuning prompt", "--tuning prompt"),
        Case("an adapter without peft", "train ... --tuning lora", 'pip install -e ".[peft]"', missing="peft"),
        Case("an adapter of no rank", "train ... --tuning lora --lora_r 0", "--lora_r 0"),
        Case("an adapter of no effect", "train ... --tuning lora --lora_alpha 0", "--lora_alpha 0"),
        Case("an adapter dropped out", "train ... --tuning lora --lora_dropout 1", "--lora_dropout 1"),
        Case(
            "an adapter of a layer that there is not",
            "train ... --tuning lora --lora_target_modules q_proj",
            "--lora_target_modules q_proj",
        ),
        Case(
            "an adapter of embeddings",
            "train ... --tuning lora --lora_target_modules word_embeddings",
            "--lora_target_modules word_embeddings",
        ),
        Case(
            "an adapter of all layers and one",
            "train ... --tuning lora --lora_target_modules all-linear query",
            "--lora_target_modules",
        ),
        Case(
            "a template without a sentence",
            "train ... --method promptbert --template 'It means [MASK] .'",
            "{sentence}",
        ),
        Case(
            "a template with two sentences",
            "train ... --method promptbert --template '{sentence} {sentence} [MASK]'",
            "2",
        ),
        Case("a template without a mask", "train ... --method promptbert --template '{sentence} .'", "[MASK]"),
        Case("a preset that there is not", "train ... --preset bert", "--preset bert"),
        Case("a schedule that there is not", "train ... --lr_scheduler_type linaer", "linaer"),
        Case(
            "a schedule without what it needs",
            "train ... --lr_scheduler_type cosine_with_min_lr",
            "min_lr_rate",
        ),
        Case(
            "a schedule's options that are no object", "train ... --lr_scheduler_kwargs power", "--lr_scheduler_kwargs"
        ),
        Case("a schedule's option that it has not", "train ... --lr_scheduler_kwargs '{\"speed\": 1}'", "speed"),
        Case("an optimiser misspelt", "train ... --optim adamw_torhc", "adamw_torhc"),
        Case("an optimiser's options", "train ... --optim_args fast", "--optim_args fast"),
        Case("a reporter that there is not", "train ... --report_to paper", "paper is not supported"),
        Case("an optimiser that is not installed", "train ... --optim adamw_bnb_8bit", "bitsandbytes"),
        Case("a reporter that is not installed", "train ... --report_to clearml", "pip install clearml"),
        Case("a tokenizer of old", "train ... --use_fast_tokenizer False", "--use_fast_tokenizer"),
        Case("a batch sampler that is unknown", "train ... --batch_sampler no_duplicate", "no_duplicates"),
        Case("accelerate's options", "train ... --accelerator_config nowhere.json", "nowhere.json"),
        Case("an option that accelerate has not", "train ... --accelerator_config '{\"speed\": 1}'", "speed"),
        Case("batches dealt out", "train ... --accelerator_config '{\"split_batches\": true}'", "split_batches"),
        Case("neither yes nor no", "train ... --do_train maybe", "maybe"),
        Case("the score misspelt", "train ... --do_eval --metric_for_best_model sts --eval_data_dir sts", "sts"),
        Case("own pairs without a file", "train ... --eval_strategy epoch --eval_pairs nowhere.csv", "nowhere.csv"),
        Case(
            "own pairs that do not have the score asked for",
            "train ... --eval_strategy epoch --eval_pairs my.csv --metric_for_best_model pairs_ap",
            "--metric_for_best_model pairs_ap",
            files={"my.csv": "first,second,score\na,b,1\nc,d,2\n"},
        ),
        Case(
            "own retrieval without a folder",
            "train ... --eval_strategy epoch --eval_retrieval nowhere",
            "nowhere does not exist",
        ),
        Case(
            "own retrieval without a dev split",
            "train ... --eval_strategy epoch --eval_retrieval beir",
            "there is no split dev in qrels, which has test",
            prepare=_beir(),
        ),
        Case(
            "the score of pairs beside own retrieval",
            "train ... --do_eval --eval_retrieval beir:test --metric_for_best_model pairs_spearman",
            "retrieval_ndcg_at_10",
            prepare=_beir(),
        ),
        Case(
            "the score of a task beside own pairs",
            "train ... --eval_strategy epoch --eval_pairs my.csv --metric_for_best_model stsb_spearman",
            "--metric_for_best_model stsb_spearman",
            files={"my.csv": "first,second,score\na,b,1\nc,d,2\n"},
        ),
        Case("a task without a dev set", "train ... --do_eval --eval_tasks STS12", "STS12"),
        Case("generator of another vocabulary", "train ... --method d2cse --generator_name roberta", "roberta"),
        Case("corpus that there is not", "train ... --method d2cse --corrupted_corpus nowhere", "nowhere"),
        Case(
            "prototypes that there are not",
            "train ... --method conpvp --prototype_templates nowhere.yaml",
            "nowhere.yaml",
        ),
        Case("an option of the hub without a name", "train ... --push_to_hub", "--push_to_hub"),
        Case("a name that the hub cannot have", "train ... --push_to_hub --hub_model_id prompts", "prompts"),
    ),
    "Training: options that contradict each other, or have no effect": (
        Case(
            "prototypes without a [MASK] to compare with them",
            "train ... --prototypes both",
            "--prototypes both",
        ),
        Case("a margin of no hinge", "train ... --eh_loss_margin 0.2", "--eh_loss_margin"),
        Case("the hinge for sentences alone", "train ... --do_eh_loss", "--do_eh_loss"),
        Case(
            "the hinge for labelled pairs",
            "train ... --train_file nli.csv --method d2cse --do_eh_loss",
            "--do_eh_loss",
            files=LABELLED,
        ),
        Case(
            "a temperature for labelled pairs",
            "train ... --train_file nli.csv --method d2cse --temp 0.1",
            "--temp",
            files=LABELLED,
        ),
        Case(
            "batches that the file cannot fill",
            "train ... --per_device_train_batch_size 400 --dataloader_drop_last",
            "--dataloader_drop_last",
        ),
        Case(
            "workers that stay, and none",
            "train ... --dataloader_persistent_workers",
            "--dataloader_persistent_workers",
        ),
        Case("prompts of a tuned encoder", "train ... --method simcse --pre_seq_len 10", "--pre_seq_len"),
        Case("projection without prompts", "train ... --tuning full --prefix_projection", "--prefix_projection"),
        Case("a form of prompts without prompts", "train ... --tuning full --prompt_form vectors", "--prompt_form"),
        Case("prompts of an adapter", "train ... --tuning lora --pre_seq_len 10", "--pre_seq_len"),
        Case("a rank without an adapter", "train ... --lora_r 8", "--lora_r"),
        Case("a factor without an adapter", "train ... --lora_alpha 16", "--lora_alpha"),
        Case("layers without an adapter", "train ... --lora_target_modules query", "--lora_target_modules"),
        Case("an adapter's dropout without it", "train ... --tuning full --lora_dropout 0.1", "--lora_dropout"),
        Case(
            "dropout of an adapter, and none",
            "train ... --method consert --tuning lora --no_dropout --lora_dropout 0.1",
            "--lora_dropout 0.1",
        ),
        Case(
            "a learning rate for a discriminator that is not trained",
            "train ... --method d2cse --generator_name bert --discriminator_learning_rate 1e-5",
            "--discriminator_learning_rate",
        ),
        Case(
            "steps of a decay that there is not",
            "train ... --method d2cse --lambda_decay_steps 50",
            "--lambda_decay_steps",
        ),
        Case("inner size without a projection", "train ... --prefix_hidden_size 64", "--prefix_hidden_size"),
        Case("MLM numbers without MLM", "train ... --mlm_weight 0.5", "--mlm_weight"),
        Case("an LM head without MLM", "train ... --lm_head new", "--lm_head"),
        Case("training an LM head without MLM", "train ... --train_lm_head", "--train_lm_head"),
        Case("another method's option", "train ... --masking_ratio 0.3", "--masking_ratio"),
        Case("denoising without a mask", "train ... --denoise", "--denoise"),
        Case("frozen input vectors that there are not", "train ... --freeze_prompts", "--freeze_prompts"),
        Case(
            "further templates of trained tokens",
            "train ... --method promptbert --tuning shallow --further_templates '[MASK] {sentence}'",
            "--further_templates",
        ),
        Case(
            "further templates of crops",
            "train ... --method promptbert --positive crop --further_templates '[MASK] {sentence}'",
            "--positive crop",
        ),
        Case("a full stop without a template", "train ... --final_period", "--final_period"),
        Case("the mask without a template", "train ... --pooler_type mask", "--pooler_type mask"),
        Case("half precision of a trained encoder", "train ... --tuning full --encoder_dtype bfloat16", "bfloat16"),
        Case("two precisions", "train ... --fp16 --bf16", "fp16 and bf16"),
        Case("transfer scores that nobody measures", "train ... --eval_transfer", "--eval_transfer"),
        Case(
            "the best model that nobody can know",
            "train ... --load_best_model_at_end --eval_strategy steps",
            "--load_best_model_at_end",
        ),
        Case("a split encoder", "train ... --fsdp True", "--fsdp"),
        Case(
            "chunks of a compiled step", "train ... --gradient_cache_chunk 2 --torch_compile", "--gradient_cache_chunk"
        ),
        Case(
            "chunks and an emptied cache",
            "train ... --gradient_cache_chunk 2 --torch_empty_cache_steps 3",
            "--torch_empty_cache_steps",
        ),
        Case("to go on, and to replace", "train ... --resume --overwrite_output_dir", "--overwrite_output_dir"),
        Case(
            "batch normalisation in chunks", "train ... --batchnorm --gradient_cache_chunk 2", "--gradient_cache_chunk"
        ),
        Case("attention kernels without a GPU", "train ... --attention triton", "--attention triton"),
        Case("compiled layers", "train ... --compile_layers", "--compile_layers was removed in 0.2.0"),
        Case("neither training nor measuring", "train ... --do_train False", "--do_train False"),
        Case("a branch without a push", "train ... --hub_model_id some/prompts", "--hub_model_id"),
        Case("an old option that cannot work", "train ... --group_by_length", "--group_by_length"),
        Case("DeepSpeed", "train ... --deepspeed ds.json", "--deepspeed"),
        Case("a token for all to read", "train ... --hub_token secret", "--hub_token"),
    ),
    "Encoders": (
        Case("an attention of its own", "train ... --model_name_or_path deberta", "deberta"),
        Case("no such folder", "train ... --model_name_or_path ./nowhere", "./nowhere"),
        Case("a file", "train ... --model_name_or_path train.txt", "train.txt"),
        Case("a folder without an encoder", "train ... --model_name_or_path sts", "sts"),
        Case("a name that no encoder can have", "train ... --model_name_or_path 'my encoder'", "my encoder"),
        Case(
            "a layer that ignores its prompts",
            "train ... --model_name_or_path copy",
            "bert encoders cannot take deep prompts: the prompts of layers [1]",
            prepare=_copied("bert", "copy", _without_attention(1)),
        ),
        Case(
            "an encoder that recomputes nothing",
            "train ... --model_name_or_path albert --gradient_checkpointing",
            "--gradient_checkpointing",
        ),
        Case("trained prompts for an encoder", "train ... --model_name_or_path trained", "trained"),
        Case(
            "weights cut short",
            "train ... --model_name_or_path copy",
            "copy",
            prepare=_copied("bert", "copy", _cut("model.safetensors")),
        ),
        Case(
            "a layer is missing",
            "train ... --model_name_or_path copy",
            "copy",
            prepare=_copied("bert", "copy", _without_a_layer),
        ),
        Case(
            "no weights",
            "train ... --model_name_or_path copy",
            "copy",
            prepare=_copied("bert", "copy", _without("model.safetensors")),
        ),
        Case(
            "configuration cut short",
            "train ... --model_name_or_path copy",
            "copy",
            prepare=_copied("bert", "copy", _cut("config.json")),
        ),
        Case(
            "no vocabulary",
            "train ... --model_name_or_path copy",
            "copy",
            prepare=_copied("bert", "copy", _without("tokenizer.json")),
        ),
        Case("another's tokenizer", "train ... --tokenizer_name roberta", "roberta"),
        Case("another's configuration", "train ... --config_name roberta", "bert"),
        Case("an LM head of another size", "train ... --do_mlm --lm_head roberta", "roberta"),
        Case("to start from nothing", "train ... --init_from ./nowhere", "nowhere"),
        Case("to start from an encoder", "train ... --init_from bert", "bert"),
        Case("to start from another method's result", "train ... --init_from tuned", "tuned"),
        Case("to start from prompts of another length", "train ... --pre_seq_len 3 --init_from trained", "trained"),
        Case("to start prompts from an adapter", "train ... --init_from adapted", "adapted"),
        Case("to start from another rank", "train ... --tuning lora --lora_r 4 --init_from adapted", "rank 4"),
        Case("a checkpoint that does not exist", "train ... --resume_from_checkpoint nowhere", "nowhere"),
        Case("an encoder in place of a checkpoint", "train ... --resume_from_checkpoint bert", "bert"),
        Case("to go on in two ways", "train ... --resume --resume_from_checkpoint True", "--resume_from_checkpoint"),
        Case("to go on where nothing was begun", "train ... --resume_from_checkpoint True", "out"),
    ),
    "Model folders": (
        Case(
            "weights without their checksum",
            MODEL,
            "copy/prompts.safetensors",
            prepare=_copied("trained", "copy", _in_record("sha256", value={})),
        ),
        Case("a name without end", f"info {'n' * 300}", "n" * 100),
        Case("prompts cut short", MODEL, "copy", prepare=_copied("trained", "copy", _cut("prompts.safetensors"))),
        Case("prompts with NaN", MODEL, "copy", prepare=_copied("trained", "copy", _in_prompts(_nan))),
        Case(
            "fewer prompts than recorded",
            MODEL,
            "copy",
            prepare=_copied("trained", "copy", _in_prompts(lambda p: p[:-1])),
        ),
        Case(
            "prompts of fewer layers",
            MODEL,
            "copy",
            prepare=_copied("trained", "copy", _in_prompts(lambda p: p[:, :64])),
        ),
        Case("no prompts", MODEL, "copy", prepare=_copied("trained", "copy", _without("prompts.safetensors"))),
        Case("no head", MODEL, "copy", prepare=_copied("trained", "copy", _without("trained.safetensors"))),
        Case("no tokenizer", MODEL, "copy", prepare=_copied("trained", "copy", _without("tokenizer.json"))),
        Case("record cut short", MODEL, "copy", prepare=_copied("trained", "copy", _cut("dcpcse.json"))),
        Case(
            "record of a later program",
            MODEL,
            "copy",
            prepare=_copied("trained", "copy", _in_record("format", value=99)),
        ),
        Case(
            "a word for a number in the record",
            MODEL,
            "copy",
            prepare=_copied("trained", "copy", _in_record("prompt", "length", value="ten")),
        ),
        Case(
            "record that is no object",
            MODEL,
            "copy",
            prepare=_copied("trained", "copy", _with_text("dcpcse.json", "[]")),
        ),
        Case(
            "the encoder was moved",
            MODEL,
            "copy",
            prepare=_copied("trained", "copy", _in_record("base", "name_or_path", value="./nowhere")),
        ),
        Case(
            "an adapter cut short",
            MODEL,
            "copy/adapter_model.safetensors",
            prepare=_copied("adapted", "copy", _cut("adapter_model.safetensors")),
        ),
        Case(
            "no adapter",
            MODEL,
            "copy/adapter_model.safetensors",
            prepare=_copied("adapted", "copy", _without("adapter_model.safetensors")),
        ),
        Case(
            "an adapter of layers that there are not",
            MODEL,
            "copy",
            prepare=_copied("adapted", "copy", _in_record("lora", "target_modules", value=["q_proj"])),
        ),
        Case(
            "an adapter of no layers",
            MODEL,
            "copy",
            prepare=_copied("adapted", "copy", _in_record("lora", "target_modules", value=[])),
        ),
        Case(
            "an adapter, and prompts",
            MODEL,
            "copy",
            prepare=_copied("adapted", "copy", _with_prompts),
        ),
        Case("another encoder for an adapter", f"{TRAINED} adapted --base roberta", "roberta"),
        Case("another encoder", f"{TRAINED} trained --base roberta", "roberta"),
        Case("a file for the encoder", f"{TRAINED} trained --base train.txt", "train.txt"),
        Case("an encoder for one that has its own", f"{TRAINED} tuned --base bert", "tuned"),
        Case("another prompt length", f"{TRAINED} trained --pre_seq_len 9", "--pre_seq_len 9"),
        Case("another template", f"{TRAINED} trained --template '{{sentence}} [MASK]'", "--template"),
        Case("the mask without a template", f"{TRAINED} trained --pooler mask", "--pooler mask"),
        Case("an option of plain encoders", f"{TRAINED} trained --top_k 4", "--top_k"),
        Case("weights with NaN", MODEL, "not finite", prepare=_copied("bert", "copy", _not_finite)),
        Case(
            "the same vector for every sentence",
            MODEL,
            "the same embedding",
            prepare=_copied("bert", "copy", _all_zero),
        ),
    ),
    "Evaluation data": (
        Case("no evaluation data", "train ... --do_eval --eval_data_dir nowhere", "nowhere"),
        Case(
            "no data of one dev task",
            "train ... --do_eval --eval_data_dir part --custom_eval_data",
            "--eval_tasks STSB",
            prepare=_only_stsb,
        ),
        Case("not all dev data", "train ... --do_eval --eval_data_dir sts", "give --custom_eval_data"),
        Case(
            "own pairs with tabs in a csv file",
            "train ... --do_eval --eval_pairs tabs.csv",
            "name the file .tsv",
            files={"tabs.csv": "a\tb\t1\nc\td\t0\n"},
        ),
        Case("no data", "evaluate ... --data_dir nowhere", "nowhere"),
        Case("a file for the folder", "evaluate ... --data_dir train.txt", "train.txt"),
        Case("a year is missing", "evaluate ... --mode test", "--tasks STSBenchmark"),
        Case(
            "not all of it", f"evaluate --model_name_or_path bert --data_dir sts --mode dev --pooler avg {STSB}", "12 "
        ),
        Case(
            "a gold score is missing",
            DEV,
            "sts-dev.csv:2",
            prepare=_dev_file(lambda lines: [lines[0], lines[1].replace(lines[1].split("\t")[4], "", 1)]),
        ),
        Case(
            "a word for a gold score",
            DEV,
            "sts-dev.csv:1",
            prepare=_dev_file(lambda lines: ["g\tf\t1\t0\thigh\ta\tb", *lines]),
        ),
        Case("columns are missing", DEV, "sts-dev.csv:1", prepare=_dev_file(lambda lines: ["a\tb", *lines])),
        Case(
            "one gold score for all",
            DEV,
            "sts-dev.csv",
            prepare=_dev_file(
                lambda lines: ["\t".join([*line.split("\t")[:4], "3", *line.split("\t")[5:]]) for line in lines]
            ),
        ),
        Case("an empty file", DEV, "sts-dev.csv", prepare=_dev_file(lambda lines: [])),
        Case("own pairs: no such file", "evaluate ... --pairs nowhere.tsv", "nowhere.tsv"),
        Case("own pairs: without scores", "evaluate ... --pairs my.tsv", "my.tsv:1", files={"my.tsv": "a\tb\nc\td\n"}),
        Case(
            "own pairs: a word for a score",
            "evaluate ... --pairs my.tsv",
            "my.tsv:2",
            files={"my.tsv": "a\tb\t1\nc\td\tx\n"},
        ),
        Case(
            "own pairs: a score that is no number",
            "evaluate ... --pairs my.tsv",
            "nan",
            files={"my.tsv": "a\tb\tnan\nc\td\t1\n"},
        ),
        Case("own pairs: one", "evaluate ... --pairs my.tsv", "my.tsv", files={"my.tsv": "a\tb\t1\n"}),
        Case(
            "own pairs: one score for all",
            "evaluate ... --pairs my.csv",
            "my.csv: every gold score is 1",
            files={"my.csv": "a,b,score\nc,d,1\ne,f,1\n"},
        ),
        Case(
            "own pairs: further columns",
            "evaluate ... --pairs my.csv",
            "my.csv:1",
            files={"my.csv": "id,first,second,score\n1,a,b,3\n"},
        ),
        Case(
            "own pairs: a number for a sentence",
            "evaluate ... --pairs my.jsonl",
            "my.jsonl, line 1",
            files={"my.jsonl": '{"first": 3, "second": "b", "score": 1}\n'},
        ),
        Case("own labels: no such file", "evaluate ... --labels nowhere.csv", "nowhere.csv"),
        Case(
            "own labels: one class",
            "evaluate ... --labels my.csv",
            "my.csv: every text has the class 'x'",
            files={"my.csv": "text,label\na,x\nb,x\n"},
        ),
        Case(
            "own labels: a rare class",
            "evaluate ... --labels my.csv",
            "my.csv:12: the class 'z'",
            files={"my.csv": "text,label\n" + "a,x\nb,y\n" * 5 + "c,z\n"},
        ),
        Case(
            "own labels: a blank text",
            "evaluate ... --labels my.csv",
            "my.csv:3",
            files={"my.csv": "text,label\na,x\n ,y\n"},
        ),
        *(
            Case(
                f"own retrieval: {name}",
                f"evaluate ... --mode test --retrieval {given}",
                place,
                prepare=_beir(**files),
            )
            for name, given, place, files in (
                ("no such folder", "nowhere", "nowhere does not exist", {}),
                ("a file for the folder", "train.txt", "train.txt is not a folder", {}),
                ("no queries.jsonl", "beir", "queries.jsonl not found", {"queries": None}),
                ("a split that does not exist", "beir:dev", "no split dev", {}),
                ("no judgements", "beir", "no qrels/test.tsv", {"qrels": None}),
                ("a broken line", "beir", "beir/corpus.jsonl:2", {"corpus": DOCUMENT + '{"_id": "d2", "text"\n'}),
                ("a blank text", "beir", "beir/corpus.jsonl:2", {"corpus": DOCUMENT + '{"_id": "d2", "text": " "}\n'}),
                ("an id twice", "beir", "beir/corpus.jsonl:2", {"corpus": DOCUMENT + DOCUMENT}),
                ("an unknown query", "beir", "beir/qrels/test.tsv:2", {"qrels": f"{QRELS}q9\td1\t1\n"}),
                ("an unknown document", "beir", "beir/qrels/test.tsv:2", {"qrels": f"{QRELS}q1\td9\t1\n"}),
                ("a word for a score", "beir", "beir/qrels/test.tsv:2", {"qrels": f"{QRELS}q1\td1\tx\n"}),
                ("no header", "beir", "beir/qrels/test.tsv:1", {"qrels": "q1\td1\t1\n"}),
                ("nothing is relevant", "beir", "beir/qrels/test.tsv", {"qrels": f"{QRELS}q1\td1\t0\n"}),
                ("a query with the id of its document", "beir", "different ids", {"queries": DOCUMENT, "qrels": SAME}),
            )
        ),
        Case("NanoBEIR set misspelt", "evaluate ... --retrieval NanoNFCorpu", "did you mean 'NanoNFCorpus'"),
        Case("NanoBEIR set without its data", "evaluate ... --retrieval NanoNFCorpus", "mteb/NanoNFCorpusRetrieval"),
        Case(
            "geometry of nothing",
            "evaluate ... --mode test --task_set geometry --geometry_sentences nowhere.txt",
            "nowhere.txt",
        ),
        Case(
            "whitening fitted to nothing", "evaluate ... --postprocess whitening --fit_on nowhere.txt", "nowhere.txt"
        ),
        Case(
            "word vectors of unequal length",
            "evaluate --data_dir sts --model_name_or_path my.vec --custom_data --mode dev",
            "my.vec:2",
            files={"my.vec": "the 0.1 0.2\nof 0.3\n"},
        ),
        Case(
            "a text for word vectors",
            "evaluate --data_dir sts --model_name_or_path train.txt --custom_data --mode dev",
            "train.txt:1",
        ),
    ),
    "Evaluation: options": (
        Case("no encoder", "evaluate --mode dev", "--model_name_or_path"),
        Case("an option misspelt", "evaluate ... --task STS12", "--task"),
        Case("no value of the embeddings", "evaluate ... --truncate_dim 0", "--truncate_dim 0"),
        Case("more values than there are", f"evaluate ... {STSB} --truncate_dim 8 33", "33"),
        Case("a size twice", "evaluate ... --truncate_dim 8 8", "8"),
        Case("sizes for a map", "evaluate ... --truncate_dim 8 --postprocess whitening", "--postprocess whitening"),
        Case("sizes for one file", "evaluate ... --truncate_dim 8 4 --similarities_file o.npz", "--similarities_file"),
        Case("pooler", "evaluate ... --pooler mean", "--pooler"),
        Case("mode", "evaluate ... --mode train", "--mode train"),
        Case("task set", "evaluate ... --task_set sst", "--task_set sst"),
        Case("a task misspelt", "evaluate ... --task_set na --tasks STSB", "STSB"),
        Case("tasks and a set of tasks", "evaluate ... --tasks STS12 --task_set sts", "--tasks and --task_set sts"),
        Case("no tasks", "evaluate ... --task_set na", "--tasks"),
        Case("a task without a dev set", "evaluate ... --task_set na --tasks STS12", "STS12"),
        Case("STS without frequent tokens in dev mode", "evaluate ... --task_set frequent", "frequent"),
        Case(
            "a map of embeddings of which some are left out",
            "evaluate ... --mode test --task_set frequent --postprocess whitening",
            "--postprocess whitening",
        ),
        Case("a device that is not here", "evaluate ... --device tpu9", "tpu9"),
        Case("an empty batch", "evaluate ... --batch_size 0", "--batch_size 0"),
        Case("shots of no task", "evaluate ... --shots 8", "--shots"),
        Case("one shot", "evaluate ... --task_set fewshot --shots 1", "--shots 1"),
        Case("hidden units of no network", "evaluate ... --nhid 3 --classifier sklearn", "--nhid"),
        Case("whitening's dimensions alone", "evaluate ... --whitening_dimensions 3", "--whitening_dimensions"),
        Case("whitening to one dimension", "evaluate ... --postprocess whitening --whitening_dimensions 1", "1"),
        Case("a flow that learns at NaN", "evaluate ... --postprocess flow --flow_learning_rate nan", "nan"),
        Case(
            "a flow's seed beyond reason",
            "evaluate ... --postprocess flow --flow_seed 99999999999999999999",
            "--flow_seed 99999999999999999999",
        ),
        Case(
            "pairs that nobody measures",
            "evaluate ... --mode test --task_set clustering --similarities_file pairs.npz",
            "--similarities_file",
        ),
        Case("the mask without a template", "evaluate ... --pooler mask", "mask"),
        Case("no pooler in the checkpoint", "evaluate ... --pooler cls", "--pooler cls"),
        Case(
            "denoising of a folder without a template",
            "evaluate --model_name_or_path trained --data_dir sts --custom_data --mode dev --denoise false",
            "--denoise",
        ),
        Case("denoising of no mask", "evaluate ... --denoise", "--denoise"),
        Case("a new head that predicts nothing", "evaluate ... --pooler top_k --lm_head new", "--lm_head new"),
        Case("another encoder for a plain one", "evaluate ... --base elsewhere", "--base"),
        Case("prompts of a plain encoder", "evaluate ... --pre_seq_len 10", "--pre_seq_len"),
        Case("MTEB in dev mode", "evaluate ... --mteb STSBenchmark", "--mteb"),
        Case("data of MTEB alone", "evaluate ... --mteb_data_dir sts", "--mteb_data_dir"),
        Case("tasks of MTEB in no file", "evaluate ... --mode test --mteb nowhere.py", "nowhere.py"),
        Case("a benchmark with a typo", "evaluate ... --mode test --mteb_benchmark 'MTEB(eng, 2)'", "MTEB(eng, v2)"),
        Case(
            "a benchmark without its data",
            "evaluate ... --mode test --mteb_benchmark 'BuiltBench(eng)' --mteb_data_dir sts",
            "into sts",
        ),
        Case(
            "a language that no task has",
            "evaluate ... --mode test --task_set multilingual --mteb_languages de",
            "--mteb_languages de",
        ),
        Case(
            "a language that the data lack",
            "evaluate ... --mode test --task_set multilingual --mteb_languages kor --mteb_data_dir multilingual",
            "ko-ko",
            prepare=_german_copies,
        ),
        Case(
            "a prompt for a task that does not exist",
            "evaluate ... --mode test --mteb STS12 --mteb_prompts prompts.yaml",
            "'STSBenchmrk'",
            files={"prompts.yaml": "STSBenchmrk: 'query: '\n"},
        ),
        Case("results that nobody writes are replaced", "evaluate ... --overwrite", "--overwrite"),
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
        Case("a folder with something else", "train ... --output_dir sts", "sts"),
        Case("a file for the folder", "train ... --output_dir corpus.txt", "corpus.txt"),
        Case("a folder below a file", "train ... --output_dir corpus.txt/out", "corpus.txt/out"),
        Case("a folder of the system", "train ... --output_dir /proc/out", "/proc/out"),
        Case("the encoder's own folder", "train ... --output_dir bert --overwrite_output_dir", "bert"),
        Case("a cache below a file", "train ... --cache_dir corpus.txt", "corpus.txt"),
        Case("scores that are there", f"evaluate ... {STSB} --output_file trained/scores.json", "trained/scores.json"),
        Case("scores over a text", f"evaluate ... {STSB} --output_file corpus.txt", "corpus.txt"),
        Case("pairs over a text", f"evaluate ... {STSB} --similarities_file corpus.txt", "corpus.txt"),
        Case("scores below a file", f"evaluate ... {STSB} --output_file corpus.txt/s.json", "corpus.txt/s.json"),
        Case("a folder for the scores", f"evaluate ... {STSB} --output_file sts", "sts"),
        Case("embeddings below a file", f"evaluate ... {STSB} --cache_dir corpus.txt", "corpus.txt"),
        Case("a report over a text", "plot report trained --no_models --output corpus.txt", "corpus.txt"),
        Case("a picture that is there", "plot curves trained --output old", "old.png", files={"old.png": b"picture"}),
        Case("a picture for a folder", "plot curves trained --output sts", "sts"),
        Case("a list over a text", "plot runs trained --csv corpus.txt", "corpus.txt"),
        Case("a card that is there", "hub card trained --output corpus.txt", "corpus.txt"),
        Case("vectors with a text's name", "encode bert corpus.txt --output corpus.txt", "corpus.txt"),
        Case("vectors below a file", "encode bert corpus.txt --output corpus.txt/v.npy", "corpus.txt/v.npy"),
        Case("a model over a model", "import bert --output trained", "trained"),
        Case("a model over its own checkpoint", "import bert --output bert", "bert"),
        Case("an export that is there", "export trained --to peft --output sts", "sts"),
        Case("a folder from the hub over another", "hub pull some/prompts --output sts", "sts"),
        Case(
            "a corpus over other files",
            "pretrain corrupt --model_name_or_path bert --generator_name bert --train_file train.txt --output_dir sts",
            "sts",
        ),
        Case(
            "a search's folder is a file",
            "reproduce templates --model_name_or_path bert --output_dir corpus.txt",
            "corpus.txt",
        ),
        Case("tries in a file", "reproduce search --search dcpcse --output_dir corpus.txt", "corpus.txt"),
        Case("an index over other files", "search bert A --pooler avg --sentences corpus.txt --index sts", "sts"),
    ),
    "Pretraining": (
        Case("no text", "pretrain --output_dir out", "TEXT"),
        Case("no output folder", "pretrain train.txt", "--output_dir"),
        Case("no such text", f"pretrain nowhere.txt {PRETRAINED}", "nowhere.txt"),
        Case("a folder for a text", f"pretrain bert {PRETRAINED}", "bert"),
        Case("an empty text", f"pretrain none.txt {PRETRAINED}", "none.txt", files={"none.txt": ""}),
        Case("a blank text", f"pretrain blank.txt {PRETRAINED}", "blank.txt", files={"blank.txt": "\n \n\n"}),
        Case("a text of one line", f"pretrain one.txt {PRETRAINED}", "1 line", files={"one.txt": "A dog.\n"}),
        Case(
            "a text that is not UTF-8",
            f"pretrain latin.txt {PRETRAINED}",
            "line 1",
            files={"latin.txt": "Ein Käse.\n".encode("latin-1")},
        ),
        Case(
            "the text as validation text",
            "pretrain corpus.txt --output_dir out --size tiny --max_steps 1 --use_cpu --validation_file corpus.txt",
            "--validation_file corpus.txt has the same content",
        ),
        Case(
            "nothing to measure a model on",
            "pretrain corpus.txt --output_dir out --max_steps 1 --tokenizer bert --validation_file short.txt",
            "none was masked",
            files={"short.txt": "日本\n"},
        ),
        Case(
            "no words that the tokenizer knows",
            f"pretrain other.txt {PRETRAINED} --tokenizer bert",
            "no word",
            files={"other.txt": "日本\n" * 12},
        ),
        Case(
            "a share of nothing", "pretrain corpus.txt --output_dir out --validation_share 0", "--validation_share 0"
        ),
        Case("a share of all", "pretrain corpus.txt --output_dir out --validation_share 1", "--validation_share 1"),
        Case(
            "two texts to measure on",
            f"pretrain corpus.txt {PRETRAINED} --validation_file train.txt",
            "--validation_share",
        ),
        Case(
            "a hidden size of no whole heads",
            f"pretrain corpus.txt {PRETRAINED} --hidden_size 100",
            "--hidden_size 100",
        ),
        Case(
            "short windows that are longer",
            f"pretrain corpus.txt {PRETRAINED} --max_seq_length 16 --short_seq_length 32",
            "--short_seq_length 32",
        ),
        Case(
            "minutes and steps",
            "pretrain corpus.txt --output_dir out --minutes 1 --max_steps 5",
            "--max_steps has no effect",
        ),
        Case(
            "steps of minutes", "pretrain corpus.txt --output_dir out --minutes 1 --causal_steps 5", "--causal_steps 5"
        ),
        Case(
            "an option of an earlier version", f"pretrain corpus.txt {PRETRAINED} --final_dropout 0", "--final_dropout"
        ),
        Case("a size that there is not", f"pretrain corpus.txt {PRETRAINED} --size huge", "--size huge"),
        Case("a word for true or false", f"pretrain corpus.txt {PRETRAINED} --whole_word_mask maybe", "maybe"),
        Case("a mask for every token", f"pretrain corpus.txt {PRETRAINED} --mlm_probability 1", "--mlm_probability 1"),
        Case("no steps", f"pretrain corpus.txt {PRETRAINED} --max_steps 0", "--max_steps 0"),
        Case("more warm-up than steps", f"pretrain corpus.txt {PRETRAINED} --warmup_steps 5", "--warmup_steps 5"),
        Case("no steps for masks", f"pretrain corpus.txt {PRETRAINED} --causal_steps 1", "--causal_steps 1"),
        Case("a size for a given model", f"pretrain corpus.txt {PRETRAINED} --model_name_or_path bert", "--size"),
        Case("no such model to continue", f"pretrain corpus.txt {CONTINUED} nowhere", "nowhere"),
        Case("another architecture", f"pretrain corpus.txt {CONTINUED} distilbert", "distilbert"),
        Case(
            "a model without a masked-LM head",
            f"pretrain corpus.txt {CONTINUED} copy",
            "masked language model",
            prepare=_copied("bert", "copy", _without_lm_head),
        ),
        Case(
            "more tokens than the given model has positions",
            f"pretrain corpus.txt {CONTINUED} bert --max_seq_length 5000",
            "--max_seq_length 5000",
        ),
        Case("float16 on a CPU", f"pretrain corpus.txt {PRETRAINED} --fp16", "--fp16"),
        Case(
            "a tokenizer and its size",
            f"pretrain corpus.txt {PRETRAINED} --tokenizer bert --vocab_size 99",
            "--vocab_size",
        ),
        Case(
            "lower case in RoBERTa",
            f"pretrain corpus.txt {PRETRAINED} --model_type roberta --lowercase",
            "--lowercase",
        ),
        Case("no such tokenizer", f"pretrain corpus.txt {PRETRAINED} --tokenizer nowhere", "nowhere"),
        Case(
            "a tokenizer without a mask token",
            f"pretrain corpus.txt {PRETRAINED} --tokenizer copy",
            "mask token",
            prepare=_copied("bert", "copy", _with_text("tokenizer_config.json", NO_MASK)),
        ),
        Case("a folder that is not empty", "pretrain corpus.txt --output_dir bert", "bert is not empty"),
        Case("a file for a folder", "pretrain corpus.txt --output_dir train.txt", "train.txt is a file"),
        Case("nothing to resume", "pretrain corpus.txt --output_dir out --resume", "--resume"),
        Case(
            "a damaged record",
            f"pretrain corpus.txt {PRETRAINED} --resume",
            "pretraining.json",
            prepare=lambda desk: write_files({desk / "out/pretraining.json": '{"finished": 1}'}),
        ),
    ),
    "Other commands": (
        Case("doctor: nothing there", "doctor nowhere.txt", "nowhere.txt"),
        Case(
            "doctor: an unknown kind of file",
            "doctor train.txt picture.png",
            "picture.png",
            {"picture.png": b"\x89PNG"},
        ),
        Case("doctor: an empty folder", "doctor empty", "empty", prepare=lambda desk: (desk / "empty").mkdir()),
        Case("doctor: no tokenizer", "doctor train.txt --tokenizer sts", "--tokenizer sts"),
        Case("doctor: tokens of no training file", "doctor bert --max_seq_length 64", "--max_seq_length"),
        Case("doctor: an encoder for no model folder", "doctor train.txt --base bert", "--base"),
        Case("doctor: a batch of one", "doctor train.txt --batch_size 1", "--batch_size 1"),
        Case("a command that there is not", "trian --help", "trian"),
        Case("quickstart: no such encoder", "quickstart --base nowhere", "nowhere"),
        Case("quickstart: a model of train.py for an encoder", "quickstart --base trained", "trained"),
        Case(
            "quickstart: a damaged encoder",
            "quickstart --base copy",
            "copy",
            prepare=_copied("bert", "copy", _cut("model.safetensors")),
        ),
        Case("quickstart: no such data", "quickstart --base bert --data nowhere", "nowhere"),
        Case("quickstart: data without sentences", "quickstart --base bert --data sts", "sentences.txt"),
        Case("quickstart: a file for the folder", "quickstart --base bert --output_dir corpus.txt", "corpus.txt"),
        Case("quickstart: a folder of the system", "quickstart --base bert --output_dir /proc/out", "/proc/out"),
        Case("quickstart: a seed below 0", "quickstart --seed -1", "-1"),
        Case("adapt: no data", "adapt bert --output_dir out", "DATA"),
        Case("adapt: no such data", f"{ADAPT} nowhere.csv", "nowhere.csv"),
        Case("adapt: no time", f"{ADAPT} pairs.csv --minutes 0", "--minutes 0"),
        Case("adapt: minutes in words", f"{ADAPT} pairs.csv --minutes ten", "--minutes ten"),
        Case("adapt: rows that share their texts", f"{ADAPT} pairs.csv", "pairs.csv"),
        Case("adapt: too few rows", f"{ADAPT} few.csv", "few.csv", files={"few.csv": _pairs_of(0, 40)}),
        Case("adapt: sentences and no labels", f"{ADAPT} train.txt", "train.txt"),
        Case("adapt: a dev file of sentences", f"{ADAPT} train.txt --dev corpus.txt", "corpus.txt"),
        Case(
            "adapt: a dev file of another kind",
            f"{ADAPT} mine.csv --dev dev.csv",
            "dev.csv",
            files={"mine.csv": _pairs_of(0, 60), "dev.csv": _pairs_of(100, 30, third="score")},
        ),
        Case(
            "adapt: a text in two files",
            f"{ADAPT} mine.csv --dev dev.csv",
            "dev.csv, line 2",
            files={"mine.csv": _pairs_of(0, 60), "dev.csv": _pairs_of(59, 30)},
        ),
        Case(
            "adapt: relations of pairs",
            f"{ADAPT} nli.csv",
            "nli.csv",
            files={"nli.csv": "a,b,label\nRain.,Water.,neutral\n"},
        ),
        Case(
            "adapt: one score",
            f"{ADAPT} mine.csv",
            "the score 1",
            files={"mine.csv": _pairs_of(0, 60, third="score")},
        ),
        Case(
            "adapt: classes of one text",
            f"{ADAPT} mine.csv",
            "give about 10 texts of each class",
            files={"mine.csv": "text,class\n" + "".join(f"one {i},class {i}\n" for i in range(60))},
        ),
        Case(
            "adapt: anchors that are their positives",
            f"{ADAPT} mine.csv",
            "mine.csv",
            files={"mine.csv": "a,b\n" + "".join(f"one {i},one {i}\n" for i in range(60))},
        ),
        Case(
            "adapt: one class",
            f"{ADAPT} mine.csv",
            "of mine.csv have the class 'class'",
            files={"mine.csv": "text,class\n" + "".join(f"one {i},class\n" for i in range(60))},
        ),
        Case(
            "adapt: one class to test on",
            f"{ADAPT} mine.csv --test test.csv",
            "the test part of test.csv have the class 'class 1'",
            files={
                "mine.csv": "text,class\n" + "".join(f"one {i},class {i % 2}\n" for i in range(60)),
                "test.csv": "text,class\n" + "".join(f"other {i},class 1\n" for i in range(60)),
            },
        ),
        Case("adapt: one file twice", f"{ADAPT} mine.csv --dev mine.csv", "--dev has the same content", files=MINE),
        Case(
            "adapt: a method of its own",
            _mine("bert", "--method sbert"),
            "dcpcse adapt itself sets --temp 0.1",
            files=MINE,
        ),
        Case(
            "adapt: classes, and a dev file of pairs",
            f"{ADAPT} mine.csv --dev dev.csv",
            "dev.csv has pairs, but mine.csv has sentences with classes",
            files={
                "mine.csv": "text,class\n" + "".join(f"one {i},class {i % 2}\n" for i in range(60)),
                "dev.csv": _pairs_of(100, 30),
            },
        ),
        Case("adapt: data before the encoder", "adapt mine.csv bert --output_dir out", "ENCODER mine.csv", files=MINE),
        Case(
            "adapt: no such guide",
            _mine("bert", "--guide ./nowhere"),
            "--guide: cannot load the encoder './nowhere'",
            files=MINE,
        ),
        Case("adapt: an adapter of no rank", _mine("bert", "--tuning lora --lora_r 0"), "--lora_r 0", files=MINE),
        Case("adapt: no such encoder", _mine("./nowhere"), "./nowhere", files=MINE),
        Case("adapt: a result of train.py", _mine("trained"), "trained", files=MINE),
        Case("adapt: a folder that is not empty", _mine("bert --output_dir sts"), "sts", files=MINE),
        Case("adapt: a file for the folder", _mine("bert --output_dir corpus.txt"), "corpus.txt", files=MINE),
        Case("adapt: a folder in use", _mine("bert --output_dir held"), "held", files=MINE, prepare=_held),
        Case("adapt: a finished adaptation", _mine("bert"), "out", files=MINE, prepare=_adapted("finished")),
        Case("adapt: other data than before", _mine("bert"), "out", files=MINE, prepare=_adapted("interrupted")),
        Case("adapt: an option misspelt", _mine("bert", "--learning_rte 0.1"), "--learning_rte", files=MINE),
        Case("adapt: a seed of train.py", _mine("bert", "--seed 1"), "--seed", files=MINE),
        Case("adapt: a head", _mine("bert", "--pooler_type cls"), "--pooler_type cls", files=MINE),
        Case("adapt: all weights", _mine("bert", "--tuning full"), "--tuning full", files=MINE),
        Case(
            "adapt: options of two tunings",
            _mine("bert", "--pre_seq_len 8 --lora_r 4"),
            "--pre_seq_len, --lora_r",
            files=MINE,
        ),
        Case("encode: no places", "encode", "MODEL, FILE"),
        Case("encode: no output", "encode bert corpus.txt", "--output"),
        Case("encode: an option misspelt", "encode bert corpus.txt --outptu v.npy", "--outptu"),
        Case("encode: no such text", "encode bert nowhere.txt --output v.npy", "nowhere.txt"),
        Case(
            "encode: a blank line", "encode bert blank.txt --output v.npy", "line 2", files={"blank.txt": "a\n\nb\n"}
        ),
        Case("encode: nothing", "encode bert none.txt --output v.npy", "none.txt", files={"none.txt": ""}),
        Case(
            "encode: Latin-1",
            "encode bert latin.txt --output v.npy",
            "line 1",
            files={"latin.txt": "Käse\n".encode("latin-1")},
        ),
        Case("encode: no processes", "encode bert corpus.txt --output v.npy --num_processes 0", "--num_processes 0"),
        Case("encode: no room", "encode bert corpus.txt --output v.npy --pooler avg --max_seq_length 500", "500"),
        Case("encode: no value", "encode bert corpus.txt --output v.npy --truncate_dim 0", "--truncate_dim 0"),
        Case("encode: more values", "encode bert corpus.txt --output v.npy --pooler avg --truncate_dim 33", "33"),
        Case("encode: half a value", "encode bert corpus.txt --output v.npy --truncate_dim 8.5", "--truncate_dim 8.5"),
        Case(
            "similarity: more values", "search similarity bert A B --pooler avg --truncate_dim 33", "truncate_dim 33"
        ),
        Case(
            "similarity: a name of the Hub, offline",
            "search similarity some/prompts A B",
            "some/prompts",
            offline=True,
        ),
        Case("similarity: one sentence", "search similarity bert 'A dog.'", "at least two"),
        Case("similarity: a blank sentence", "search similarity bert 'A dog.' ' '", "blank"),
        Case("similarity: sentences and a file", "search similarity bert A B --pairs corpus.txt", "--pairs"),
        Case("similarity: no tab", "search similarity bert --pairs corpus.txt", "corpus.txt, line 1"),
        Case("search: nothing to look in", "search bert A", "--sentences"),
        Case("search: nothing to look for", "search bert --sentences corpus.txt", "--queries"),
        Case("search: a blank query", "search bert ' ' --sentences corpus.txt", "blank"),
        Case("search: no such text", "search bert A --sentences nowhere.txt", "nowhere.txt"),
        Case("search: a cosine of 2", "search bert A --sentences corpus.txt --threshold 2", "--threshold 2"),
        Case("search: cells without ivf", "search bert A --sentences corpus.txt --num_cells 3", "--num_cells"),
        Case(
            "search: an index of another size",
            "search bert A --pooler avg --index short --truncate_dim 16",
            "--truncate_dim 16",
            prepare=_index_of_8,
        ),
        Case("search: no index yet", "search bert A --index nowhere", "nowhere"),
        Case("search: no such vectors", "search bert A --sentences corpus.txt --vectors nowhere.npy", "nowhere.npy"),
        Case(
            "search: other vectors",
            "search bert A --pooler avg --sentences corpus.txt --vectors my.npy",
            "my.npy",
            files={"my.npy": b"no array"},
        ),
        Case("predict: a blank sentence", "plot predictions ' ' --model_name_or_path bert", "blank"),
        Case(
            "predict: more tokens than there are",
            "plot predictions A --model_name_or_path bert --top_k 1000000",
            "--top_k 1000000",
        ),
        Case(
            "predict: a template without a mask",
            "plot predictions A --model_name_or_path bert --template '{sentence}'",
            "[MASK]",
        ),
        Case(
            "predict: two masks",
            "plot predictions A --model_name_or_path bert --template '{sentence} [MASK] [MASK]'",
            "2 [MASK]",
        ),
        Case("predict: an option shortened", "plot predictions A --model bert", "--model"),
        Case(
            "corrupt: seed beyond reason",
            CORRUPT.format("bert") + " --seed 99999999999",
            "--seed 99999999999",
        ),
        Case(
            "corrupt: another vocabulary",
            CORRUPT.format("roberta"),
            "roberta",
        ),
        Case("info: no such folder", "info nowhere", "nowhere"),
        Case("info: a file", "info corpus.txt", "corpus.txt"),
        Case("info: nothing known", "info sts", "sts"),
        Case("info: an option misspelt", "info trained --jsno", "--jsno"),
        Case("runs: no such folder", "plot runs nowhere", "nowhere"),
        Case("runs: no run", "plot runs sts", "sts"),
        Case("runs: one to compare", "plot runs --compare trained", "--compare trained"),
        Case("runs: a run twice", "plot runs --compare trained trained", "twice"),
        Case("runs: an order that there is not", "plot runs trained --sort wirtten", "--sort wirtten"),
        Case("report: no run", "plot report bert --output r.html", "bert"),
        Case("report: no scores", "plot report trained --output r.html --no_models --scores corpus.txt", "corpus.txt"),
        Case(
            "report: neighbours without models", "plot report trained --output r.html --no_models --top_k 3", "--top_k"
        ),
        Case("plot: no such picture", "plot cosine", "cosine"),
        Case("plot: no run", "plot curves bert --output x", "bert"),
        Case("plot: another form", "plot curves trained --output x.pdf", "x.pdf"),
        Case("plot: a gold score of no pair", "plot pairs bert --data_dir sts --custom_data --scores 0.7", "0.7"),
        Case("plot: a seed below 0", "plot pairs bert --data_dir sts --custom_data --seed -1", "--seed -1"),
        Case("plot: one sentence", "plot embeddings bert roberta --count 1", "--count 1"),
        Case("plot: the head of a result", "plot tokens trained --text corpus.txt --matrix mlm_head", "trained"),
        Case("plot: a head without its matrix", "plot tokens bert --text corpus.txt --lm_head bert", "--lm_head"),
        Case("serve: other machines without a key", "serve bert --host 0.0.0.0", "--host 0.0.0.0"),
        Case("serve: no such adapter", "serve bert --adapters nowhere/", "nowhere/"),
        Case("serve: two adapters of one name", "serve bert --adapters a=trained a=other", "'a'"),
        Case(
            "serve: an adapter of another encoder",
            "serve roberta --pooler avg --adapters trained --port 0",
            "is not the encoder that",
        ),
        Case("serve: a watched file", "serve bert --watch corpus.txt", "corpus.txt"),
        Case("demo: no such text", "serve demo bert --sentences nowhere.txt", "nowhere.txt"),
        Case("demo: a port that there is not", "serve demo bert --sentences corpus.txt --port 99999", "--port 99999"),
        Case("demo: a name twice", "serve demo a=bert a=roberta --sentences corpus.txt", "roberta"),
        Case("card: no result", "hub card bert", "bert"),
        Case("card: no scores", "hub card trained --output c.md --scores corpus.txt", "corpus.txt"),
        Case("card: other JSON", "hub card trained --output c.md --scores bert/config.json", "bert/config.json"),
        Case(
            "card: another model's scores",
            "hub card other --output c.md --scores trained/scores.json",
            "trained/scores.json",
        ),
        Case("push: no owner", "hub push trained prompts", "prompts"),
        Case("push: blanks in the name", "hub push trained 'some/my prompts'", "my prompts"),
        Case("push: no result", "hub push bert some/prompts", "bert"),
        Case("pull: a place here", "hub pull trained --output out", "trained"),
        Case("export: to nowhere", "export trained --to tensorflow --output out", "--to tensorflow"),
        Case("export: what the format cannot hold", "export tuned --to peft --output out", "tuned"),
        Case("export: more values", "export trained --to onnx --output out --truncate_dim 33", "truncate_dim 33"),
        Case("export: a size for peft", "export trained --to peft --output out --truncate_dim 8", "--truncate_dim"),
        Case("export: an encoder", "export bert --to peft --output out", "bert"),
        Case("import: no such folder", "import nowhere --output out", "nowhere"),
        Case("import: a file", "import corpus.txt --output out", "corpus.txt"),
        Case("import: no weights", "import sts --output out", "sts"),
        Case("import: a model folder", "import trained --output out", "trained"),
        Case("import: an encoder for one that has its own", "import bert --base roberta --output out", "--base"),
        Case(
            "search-templates: no such candidates",
            "reproduce templates --model_name_or_path bert --output_dir out --candidates nowhere.yaml",
            "nowhere.yaml",
        ),
        Case(
            "search-templates: no lists",
            "reproduce templates --model_name_or_path bert --output_dir out --candidates corpus.txt",
            "corpus.txt",
        ),
        Case(
            "search-templates: a T5 without definitions",
            "reproduce templates --model_name_or_path bert --output_dir out --t5 t5-base",
            "--definitions",
        ),
        Case(
            "search-templates: a number of templates without a T5",
            "reproduce templates --model_name_or_path bert --output_dir out --generate 9",
            "--t5",
        ),
        Case(
            "search-templates: keeping none",
            "reproduce templates --model_name_or_path bert --output_dir out --keep 0",
            "--keep 0",
        ),
        Case(
            "search-hyperparameters: whose",
            "reproduce search --search simcse --output_dir out",
            "--search simcse",
        ),
        Case(
            "search-hyperparameters: no such stage",
            f"{TRY} --stages rate",
            "rate",
        ),
        Case(
            "search-hyperparameters: a stage for single sentences",
            "reproduce search --search d2cse --output_dir out --stages epochs -- --model_name_or_path bert "
            "--train_file pairs.csv --eval_data_dir sts --custom_eval_data",
            "--stages 'epochs'",
        ),
        Case(
            "search-hyperparameters: no tries",
            f"{TRY} --limit 0",
            "--limit 0",
        ),
        Case(
            "search-hyperparameters: no data for the tries",
            f"{TRY} -- --model_name_or_path bert --train_file nowhere.txt",
            "nowhere.txt",
        ),
        Case(
            "search-hyperparameters: an option of train.py",
            f"{TRY} -- --tmp 0.1",
            "--tmp",
        ),
        Case("reproduce: no such row", "reproduce dcpcse/table9", "dcpcse/table9"),
        Case(
            "reproduce: seeds without end",
            "reproduce dcpcse --seeds 0..99999999999 --dry_run",
            "--seeds 0..99999999999",
        ),
        Case("verify: no such row", "reproduce verify trained --row dcpcse/table9/x", "dcpcse/table9/x"),
        Case("verify: a table", "reproduce verify trained --row dcpcse/table1", "dcpcse/table1"),
        Case("verify: another method's row", f"reproduce verify trained --row {VERIFIED}", "trained"),
        Case("verify: no figures", "reproduce verify trained --row dcpcse/figure2/length-2", "length-2"),
        Case("verify: no checkpoint", f"reproduce verify nowhere/at/all --row {VERIFIED}", "nowhere/at/all"),
        mining("no output", "", "--output"),
        mining("another format", "--output mined.json", "mined.json"),
        mining("the output exists", "--output old.csv", "old.csv", {"old.csv": "a,b\nc,d\n"}),
        mining("the output is read", "--output two.csv --overwrite", "--output two.csv"),
        mining("no such pairs", "--output mined.csv", "nowhere.csv", pairs="nowhere.csv"),
        mining("hard negatives already", "--output mined.csv", "pairs.csv", pairs="pairs.csv"),
        mining("several positives", "--output mined.csv", "positive_1, positive_2", SEVERAL, pairs="several.csv"),
        mining("no such corpus", "--output mined.csv --corpus nowhere.txt", "nowhere.txt"),
        mining("a folder without an index", "--output mined.csv --corpus sts", "--corpus sts"),
        mining("no negatives", "--output mined.csv --num_negatives 0", "--num_negatives 0"),
        mining("too few ranks", "--output mined.csv --range_min 99 --num_negatives 5", "--range_max 100"),
        mining("more negatives than ranks", "--output mined.csv --num_negatives 200", "--num_negatives 200: must be"),
        mining("no ranks", "--output mined.csv --range_min 200", "--range_max 100: must be above --range_min 200"),
        mining("a negative rank", "--output mined.csv --range_min -1", "--range_min -1"),
        mining("a margin of 3", "--output mined.csv --absolute_margin 3", "--absolute_margin 3"),
        mining("a margin of 200 %", "--output mined.csv --relative_margin 2", "--relative_margin 2"),
        mining("a cosine of 2", "--output mined.csv --max_similarity 2", "--max_similarity 2"),
        mining("a way to sample", "--output mined.csv --sampling bottom", "--sampling bottom"),
        mining("a layout", "--output mined.csv --output_format list", "--output_format list"),
        mining("a seed of nothing random", "--output mined.csv --seed 3", "--seed"),
        mining("a margin of no guide", "--output mined.csv --guide_margin 0.1", "--guide_margin"),
        mining("a pooler of no guide", "--output mined.csv --guide_pooler avg", "--guide_pooler"),
        mining("no such guide", "--output mined.csv --guide ./nowhere", "./nowhere"),
        mining(
            "a pooler that the guide lacks",
            "--output mined.csv --guide distilbert --guide_pooler cls",
            "choose --guide_pooler cls_before_pooler, avg",
        ),
        mining("nothing is so dissimilar", "--output mined.csv --max_similarity -1", "two.csv"),
        mining(
            "a negative that no cell can have",
            "--output mined.csv --corpus long.txt",
            "mined.csv",
            {"long.txt": "a" * 2**20 + "a\n"},
        ),
        Case("reproduce: seeds backwards", "reproduce dcpcse --seeds 9..0 --dry_run", "--seeds 9..0"),
        Case("reproduce: no such data", "reproduce dcpcse --unsup_file nowhere.txt", "nowhere.txt"),
        Case("reproduce: no steps", "reproduce dcpcse --limit 0", "--limit 0"),
        Case(
            "reproduce: no evaluation data",
            f"{ROW} --data_dir nowhere --limit 1",
            "nowhere",
        ),
        Case("reproduce: an option of the command", "reproduce dcpcse --set seed 1", "--seeds"),
        Case("reproduce: the papers in miniature", "reproduce --miniature --only all", "--miniature"),
    ),
    "In a process of its own": (
        Case("train.py: temperature", "train ... --temp -1", "--temp -1", program="train.py"),
        Case("train.py: an option misspelt", "train ... --pre_seq_length 10", "--pre_seq_len", program="train.py"),
        Case("evaluation.py: mode", "evaluate ... --mode exam", "--mode exam", program="evaluation.py"),
        Case("evaluation.py: a file of options", "evaluate options.yaml", "options.yaml", program="evaluation.py"),
        Case("dcpcse: a command that there is not", "pulll some/prompts", "pulll", program="dcpcse"),
        Case("dcpcse plot runs: no run", "plot runs sts", "sts", program="dcpcse"),
        Case("dcpcse info: a file", "info corpus.txt", "corpus.txt", program="dcpcse"),
        Case(
            "dcpcse search: an option misspelt", "search bert A --sentence corpus.txt", "--sentence", program="dcpcse"
        ),
        Case("dcpcse plot predictions: no sentence", "plot predictions A", "SENTENCE", program="dcpcse"),
    ),
}
"""Group → its cases."""
