"""Small evaluation data in the real formats, for the tests beside this file."""

import zlib
from pathlib import Path

import numpy as np
from senteval import TASKS

SHARED = "every set has this sentence"


def write(path: Path, content: str | bytes) -> Path:
    """Write content as it is, without any change of line ends, and return path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def tiny_pairs(name: str, set_name: str, count: int) -> list[tuple[str, str, str]]:
    """Pairs of a set with their scores as written; the first pair starts with the sentence that all share."""
    generator = np.random.default_rng(zlib.crc32(f"{name} {set_name}".encode()))
    firsts = [SHARED] + [f"{name} {set_name} first {'x' * number}" for number in range(1, count)]
    seconds = [f"{name} {set_name} second {number}" for number in range(count)]
    return [(one, two, f"{1 + 4 * generator.random():.3f}") for one, two in zip(firsts, seconds, strict=True)]


def write_tiny_task(data_dir: Path, name: str, split: str) -> None:
    """Write one split of a task; its sets have 4, 5, 6, ... pairs."""
    task = TASKS[name]
    for count, one in enumerate(task.splits[split], start=4):
        pairs = tiny_pairs(name, one.name, count)
        paths = [data_dir / "downstream" / task.folder / file for file in one.files]
        if len(paths) == 2:
            write(paths[0], "".join(f"{first}\t{second}\n" for first, second, _ in pairs))
            write(paths[1], "".join(f"{gold}\n" for _, _, gold in pairs))
        elif name == "STSBenchmark":
            write(paths[0], "".join(f"g\tf\ty\t0\t{gold}\t{first}\t{second}\n" for first, second, gold in pairs))
        else:
            rows = "".join(f"1\t{first}\t{second}\t{gold}\tNEUTRAL\n" for first, second, gold in pairs)
            write(paths[0], "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n" + rows)


def hashed_embedding(sentence: str) -> np.ndarray:
    """A vector (8,) that depends on the sentence alone."""
    return np.random.default_rng(zlib.crc32(sentence.encode())).standard_normal(8)


def hashed_encode(sentences: list[str]) -> np.ndarray:
    return np.stack([hashed_embedding(sentence) for sentence in sentences]).astype(np.float32)
