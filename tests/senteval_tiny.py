"""Small evaluation data in the real formats, and encoders by hashing, for the tests beside this file."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from senteval import STS, DataError, Settings, evaluate, settings_of_mode

SHARED = "every set has this sentence"
SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
MRPC_HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
SICK_CLASSES = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")

# Folder, and files of each split, under downstream/: a copy independent of the tables under test. A split of two
# files has one for each class, from class 0 on.
SST = {split: (f"sentiment-{split}",) for split in ("train", "dev", "test")}
SICK = {"train": ("SICK_train.txt",), "dev": ("SICK_trial.txt",), "test": ("SICK_test_annotated.txt",)}
TRANSFER_FILES = {
    "MR": ("MR", {"all": ("rt-polarity.neg", "rt-polarity.pos")}),
    "CR": ("CR", {"all": ("custrev.neg", "custrev.pos")}),
    "SUBJ": ("SUBJ", {"all": ("subj.subjective", "subj.objective")}),
    "MPQA": ("MPQA", {"all": ("mpqa.neg", "mpqa.pos")}),
    "SST2": ("SST/binary", SST),
    "SST5": ("SST/fine", SST),
    "TREC": ("TREC", {"train": ("train_5500.label",), "test": ("TREC_10.label",)}),
    "MRPC": ("MRPC", {split: (f"msr_paraphrase_{split}.txt",) for split in ("train", "test")}),
    "SICKEntailment": ("SICK", SICK),
}
CLASSES = {"SST5": 5, "TREC": 6, "SICKEntailment": 3}  # the others have 2
SETS = ("AgNews", "SearchSnippets", "StackOverflow", "Biomedical", "Tweet")
SETS += ("GoogleNews-T", "GoogleNews-S", "GoogleNews-TS")
CLUSTERING_FILES = {name: f"{name.lower().replace('-', '_')}.tsv" for name in SETS}


def write(path: Path, content: str | bytes) -> Path:
    """Write content as it is, without any change of line ends, and return path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def tiny_pairs(name: str, set_name: str, count: int) -> list[tuple[str, str, str]]:
    """Pairs of a set with their scores as written.

    The first pair starts with the sentence that all sets share, the last one has the highest score that there is.
    """
    generator = np.random.default_rng(zlib.crc32(f"{name} {set_name}".encode()))
    firsts = [SHARED] + [f"{name} {set_name} first {'x' * number}" for number in range(1, count)]
    seconds = [f"{name} {set_name} second {number}" for number in range(count)]
    scores = [f"{1 + 4 * generator.random():.3f}" for _ in range(count - 1)] + ["5.000"]
    return list(zip(firsts, seconds, scores, strict=True))


def write_tiny_task(data_dir: Path, name: str, split: str, count: int = 4) -> None:
    """Write one split of a similarity task; its sets have count, count + 1, ... pairs."""
    task = STS[name]
    for number, one in enumerate(task.splits[split], start=count):
        pairs = tiny_pairs(name, one.name, number)
        paths = [data_dir / "downstream" / task.folder / file for file in one.files]
        if len(paths) == 2:
            write(paths[0], "".join(f"{first}\t{second}\n" for first, second, _ in pairs))
            write(paths[1], "".join(f"{gold}\n" for _, _, gold in pairs))
        elif name == "STSBenchmark":
            write(paths[0], "".join(f"g\tf\ty\t0\t{gold}\t{first}\t{second}\n" for first, second, gold in pairs))
        else:
            rows = "".join(f"1\t{first}\t{second}\t{gold}\tNEUTRAL\n" for first, second, gold in pairs)
            write(paths[0], SICK_HEADER + rows)


def tiny_texts(name: str, split: str, count: int) -> list[tuple[int, tuple[str, ...]]]:
    """Labels with their text or their pair of texts: `count` of each class, the classes in turn, of all lengths.

    Of a single text a word tells the class. MRPC's paraphrases share their words, its other pairs hardly any; in SICK
    a contradiction adds a "not", an entailment takes the word "red" away, and a neutral pair hardly shares a word.
    """
    examples = []
    for number in range(count):
        for label in range(CLASSES.get(name, 2)):
            text = f"{name} {split} thing{number} is red" + " indeed" * (number % 4)
            unlike = f"caf\u00e9 thing{number + 100} sat" + ' " so' * (1 + number % 3)
            if name == "MRPC":
                texts = text, (" ".join(reversed(text.split())) if label else unlike)
            elif name == "SICKEntailment":
                texts = text, (f"{text} not", unlike, text.replace(" red", ""))[label]
            else:
                texts = (f'{text} class{label} class{label} " caf\u00e9',)
            examples.append((label, texts))
    return examples


# Name -> the line of an example, for the tasks that have the labels in their files.
ROWS = {
    "SST2": lambda label, text: f"{text} \t{label}\n",
    "SST5": lambda label, text: f"{label} {text}\n",
    "TREC": lambda label, text: f"{TREC_CLASSES[label]}:sort {text}\n",
    "MRPC": lambda label, first, second: f"{label}\t702876\t702977\t{first}\t{second}\n",
    "SICKEntailment": lambda label, first, second: (
        f"1\t{first}\t{second}\t{1 + label + len(second) % 10 / 5:.1f}\t{SICK_CLASSES[label]}\n"
    ),
}


def write_tiny_transfer(data_dir: Path, name: str, count: int = 20) -> Path:
    """Write all files of a transfer task, `count` examples of each class in each split; returns its folder.

    As in the published files CR and MPQA have blank lines, one a class, which come on top; TREC is ISO-8859-1, MRPC
    starts with a byte-order mark. SICK's files serve SICKRelatedness as well.
    """
    place, splits = TRANSFER_FILES[name]
    folder = data_dir / "downstream" / place
    for split, files in splits.items():
        examples = tiny_texts(name, split, count)
        if len(files) == 2:
            for label, file in enumerate(files):
                lines = [text for found, (text,) in examples if found == label]
                if name in ("CR", "MPQA"):
                    lines.insert(3, "")
                write(folder / file, "".join(f"{line}\n" for line in lines))
        else:
            rows = "".join(ROWS[name](label, *texts) for label, texts in examples)
            content = {"MRPC": MRPC_HEADER, "SICKEntailment": SICK_HEADER}.get(name, "") + rows
            write(folder / files[0], content.encode("latin-1" if name == "TREC" else "utf-8"))
    return folder


def write_tiny_clustering(data_dir: Path, name: str, clusters: int = 3, count: int = 8) -> Path:
    """Write a clustering set of `count` texts for each label, the labels in turn; returns its path."""
    texts = [(label, number) for number in range(count) for label in range(clusters)]
    content = "".join(f"{10 - label}\ttopic{label} topic{label} word{number}\n" for label, number in texts)
    return write(data_dir / "clustering" / CLUSTERING_FILES[name], content)


def write_tiny_data(data_dir: Path) -> Path:
    """Write a complete data folder: every split of every task; returns it."""
    for name, task in STS.items():
        for split in task.splits:
            if name != "SICKRelatedness":
                write_tiny_task(data_dir, name, split)
    for name in TRANSFER_FILES:
        write_tiny_transfer(data_dir, name)
    for name in CLUSTERING_FILES:
        write_tiny_clustering(data_dir, name)
    return data_dir


def hashed_embedding(sentence: str, width: int = 8) -> np.ndarray:
    """A vector (width,) that depends on the sentence alone."""
    return np.random.default_rng(zlib.crc32(sentence.encode())).standard_normal(width)


def hashed_encode(sentences: list[str]) -> np.ndarray:
    return np.stack([hashed_embedding(sentence) for sentence in sentences]).astype(np.float32)


def bag_encode(sentences: list[str]) -> np.ndarray:
    """Sums (n, 32) of word vectors and of some noise: what `tiny_texts` hides in words can be learnt from them."""
    bags = [sum(hashed_embedding(word, 32) for word in sentence.split()) for sentence in sentences]
    return np.stack([bag + 0.3 * hashed_embedding(s, 32) for bag, s in zip(bags, sentences, strict=True)], dtype="f")


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


class RecordingEncoder:
    """Encodes by hashing and keeps the list of every call."""

    def __init__(self):
        self.calls = []

    def __call__(self, sentences):
        self.calls.append(list(sentences))
        return hashed_encode(sentences)


class FakeInside:
    """An encoder that can be asked for more; without empty_from tokens or more, all sentences are the same to it."""

    def __init__(self, empty_from: int = 1000):
        self.empty_from, self.asked = empty_from, []

    def encode_without_frequent(self, sentences, count, counted):
        self.asked.append((sentences, count, counted))
        return np.stack([self.vector(text, count) for text in sentences])

    def vector(self, text, count):
        return hashed_embedding("same" if count >= self.empty_from else f"{text} without {count}")


def unofficial(mode: str = "test", **changes) -> Settings:
    """The settings of a mode for files of any size."""
    return settings_of_mode(mode, official=False, **changes)


def refusal(action, *arguments, **options) -> str:
    """The message of the DataError that action raises; it must be one line."""
    with pytest.raises(DataError) as caught:
        action(*arguments, **options)
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


def refusal_before_encoding(tasks, data_dir, mode: str = "test", **options) -> str:
    """The message of the DataError that evaluating tasks raises, which must come before anything is encoded."""
    encode = RecordingEncoder()
    message = refusal(evaluate, encode, tasks, data_dir, mode, **options)
    assert encode.calls == []
    return message
