"""A cache of embeddings between evaluations: one SQLite file per encoder.

Each file belongs to one identity: weights, representation, tokenizer, versions, and everything else that changes a
vector by more than rounding. Vectors are written while they are computed, so an interrupted run loses few of them.
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

from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import require_plain_file

QUERY = 500
"""Number of sentences in one SQL query; SQLite's limit is a few thousand."""

EncodeSentences = Callable[[list[str]], np.ndarray]


def embeddings_dir(cache_dir: str) -> Path:
    """Return the folder for embeddings inside the folder given by --cache_dir."""
    return Path(cache_dir) / "embeddings"


class EmbeddingCache:
    """An encode function that reads cached embeddings and encodes only the missing sentences. Close it after use.

    Args:
        encode: The function that encodes sentences.
        folder: The folder of the cache files.
        identity: What the vectors depend on, such as a digest of the weights; a JSON-serialisable dict. Encoders with
            different identities have different cache files.

    Attributes:
        hits: Number of sentences read from the cache.

    Raises:
        UserError: If the cache file cannot be read or written, or if a cached vector is damaged.
    """

    def __init__(self, encode: EncodeSentences, folder: Path, identity: Mapping[str, Any]) -> None:
        self._encode = encode
        text = json.dumps(identity, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.sqlite"
        self.hits = 0
        with self._explained():
            folder.mkdir(parents=True, exist_ok=True)
            require_plain_file(self.path)  # sqlite3 would follow a link
            self._database = sqlite3.connect(self.path, timeout=60)
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS vectors (sentence TEXT PRIMARY KEY, vector BLOB, crc INTEGER)"
            )
            self._database.execute("CREATE TABLE IF NOT EXISTS identity (text TEXT PRIMARY KEY)")
            self._database.execute("INSERT OR IGNORE INTO identity VALUES (?)", (text,))
            self._database.commit()

    def __call__(self, sentences: list[str]) -> np.ndarray:
        """Return the embeddings (n, H) of n sentences in float32, row i for sentence i."""
        embeddings = dict(self._read(sentences))
        self.hits += len(embeddings)
        missing = [sentence for sentence in dict.fromkeys(sentences) if sentence not in embeddings]
        if missing:
            vectors = np.asarray(self._encode(missing), dtype=np.float32)
            embeddings.update(zip(missing, vectors, strict=True))
            # NaN vectors of a diverged encoder are not cached; the evaluation reports them every time.
            finite = np.isfinite(vectors).all(axis=1)
            rows = zip(missing, vectors, finite, strict=True)
            with self._explained(), self._database:
                self._database.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
                    [(sentence, vector.tobytes(), _crc(sentence, vector)) for sentence, vector, good in rows if good],
                )
        with self._explained():
            if len(sizes := {vector.shape for vector in embeddings.values()}) > 1:
                raise sqlite3.DatabaseError(f"its vectors have different sizes: {sorted(size for (size,) in sizes)}")
        return np.stack([embeddings[sentence] for sentence in sentences])

    def close(self) -> None:
        self._database.close()

    def _read(self, sentences: list[str]) -> Iterator[tuple[str, np.ndarray]]:
        for start in range(0, len(sentences), QUERY):
            queried = sentences[start : start + QUERY]
            marks = ",".join("?" * len(queried))
            with self._explained():
                query = f"SELECT sentence, vector, crc FROM vectors WHERE sentence IN ({marks})"
                rows = self._database.execute(query, queried).fetchall()
                for sentence, vector, crc in rows:
                    # SQLite detects damage only to the structure of the file, and any column may have any type.
                    if not (isinstance(vector, bytes) and len(vector) % 4 == 0 and _crc(sentence, vector) == crc):
                        raise sqlite3.DatabaseError(f"the vector of {sentence[:40]!r} is damaged")
            for sentence, vector, _ in rows:
                yield sentence, np.frombuffer(vector, dtype=np.float32)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # SQLite's message may not decode
            raise UserError(
                f"the embedding cache {self.path} cannot be used ({error}); delete the file, or leave "
                f"{spell('cache_dir')} out"
            ) from error


def _crc(sentence: str, vector: bytes | np.ndarray) -> int:
    return zlib.crc32(bytes(vector), zlib.crc32(sentence.encode("utf-8", "surrogatepass")))
