"""Embeddings kept between evaluations, in one SQLite file for each encoder: what was encoded once is read back.

A file belongs to one identity: weights, representation, tokenizer, versions. Whatever changes a vector by more than
rounding makes another file. Vectors are written as they are made, so that a run that is cut off loses little.
"""

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dcpcse.utils.errors import UserError

QUERY = 500
"""Sentences asked for at once; SQLite allows some thousand."""

EncodeSentences = Callable[[list[str]], np.ndarray]


def embeddings_dir(cache_dir: str) -> Path:
    """Where the embeddings of a command's --cache_dir lie, beside its downloads."""
    return Path(cache_dir) / "embeddings"


class EmbeddingCache:
    """An encode function that encodes only what it has not seen; close it after use.

    folder: where the files lie; identity: JSON-ready facts that the vectors depend on. `hits` counts the sentences
    that were read back. Raises UserError if the file cannot be read or written.
    """

    def __init__(self, encode: EncodeSentences, folder: Path, identity: Mapping[str, Any]) -> None:
        self._encode = encode
        text = json.dumps(identity, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.sqlite"
        self.hits = 0
        with self._explained():
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=60)
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS vectors (sentence TEXT PRIMARY KEY, vector BLOB, crc INTEGER)"
            )
            self._database.execute("CREATE TABLE IF NOT EXISTS identity (text TEXT PRIMARY KEY)")
            self._database.execute("INSERT OR IGNORE INTO identity VALUES (?)", (text,))
            self._database.commit()

    def __call__(self, sentences: list[str]) -> np.ndarray:
        """Embeddings (n, H), float32, row i for sentence i."""
        found = dict(self._read(sentences))
        self.hits += len(found)
        missing = [sentence for sentence in dict.fromkeys(sentences) if sentence not in found]
        if missing:
            vectors = np.asarray(self._encode(missing), dtype=np.float32)
            found.update(zip(missing, vectors, strict=True))
            # Never kept: a diverged encoder's NaN is reported by the evaluation, now and the next time.
            finite = np.isfinite(vectors).all(axis=1)
            rows = zip(missing, vectors, finite, strict=True)
            with self._explained(), self._database:
                self._database.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
                    [(sentence, vector.tobytes(), _crc(sentence, vector)) for sentence, vector, good in rows if good],
                )
        return np.stack([found[sentence] for sentence in sentences])

    def close(self) -> None:
        self._database.close()

    def _read(self, sentences: list[str]) -> Iterator[tuple[str, np.ndarray]]:
        for start in range(0, len(sentences), QUERY):
            asked = sentences[start : start + QUERY]
            marks = ",".join("?" * len(asked))
            with self._explained():
                query = f"SELECT sentence, vector, crc FROM vectors WHERE sentence IN ({marks})"
                rows = self._database.execute(query, asked).fetchall()
                for sentence, vector, crc in rows:
                    # The database tells of damage to its own structure only.
                    if _crc(sentence, vector) != crc:
                        raise sqlite3.DatabaseError(f"the vector of {sentence[:40]!r} is damaged")
            for sentence, vector, _ in rows:
                yield sentence, np.frombuffer(vector, dtype=np.float32)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last from an error's own text
            raise UserError(
                f"the kept embeddings {self.path} cannot be used ({error}); delete that file, or leave --cache_dir out"
            ) from error


def _crc(sentence: str, vector: bytes | np.ndarray) -> int:
    return zlib.crc32(bytes(vector), zlib.crc32(sentence.encode("utf-8", "surrogatepass")))
