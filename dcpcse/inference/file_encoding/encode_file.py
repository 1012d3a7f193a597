"""A whole file to vectors: what is checked first, what is left to do, and the order of writing."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from dcpcse.data.text_file import TextFile
from dcpcse.inference.arguments import EncoderArguments, EncodingArguments
from dcpcse.inference.file_encoding.chunk_encoder import EncodedChunk, EncodeJob
from dcpcse.inference.file_encoding.formats import Format, format_of
from dcpcse.inference.file_encoding.journal import ResumableFile
from dcpcse.inference.file_encoding.ray_workers import RayWorkers
from dcpcse.inference.file_encoding.workers import InProcess, WorkerProcesses
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_writable


@dataclass(frozen=True)
class EncodedFile:
    """A finished file: rows × dimension numbers; texts cut; lines that this call encoded itself, and in what time."""

    output: Path
    rows: int
    dimension: int
    cut: int
    encoded: int
    seconds: float


def encode_file(
    model: str,
    file: str | Path,
    args: EncodingArguments,
    encoder: EncoderArguments | None = None,
    *,
    show_progress: bool = False,
) -> EncodedFile:
    """Write the vector of every line of a UTF-8 text file to `args.output`; row i is line i.

    model: output folder of train.py, Hugging Face folder or hub id; encoder: how it is read. The vectors are those of
    `SentenceEncoder.encode`, and the memory that is used does not grow with the file. A call that was killed is gone
    on with by the same call, to the same bytes. With several processes the caller needs `if __name__ == "__main__":`.
    UserError for a file that cannot be encoded whole, a place that cannot be written, and the result of another call.
    """
    encoder, output = encoder or EncoderArguments(), Path(args.output)
    kind = format_of(output)
    _require_place(output)
    text = TextFile.read(file, args.chunk_size)
    job = EncodeJob(model, encoder, args.dtype, args.normalize, args.max_seq_length, args.bf16)
    with _place(args, encoder) as place:
        facts = place.facts(job)
        job = replace(job, identity=facts.identity)
        shape = kind(text.lines, facts.dimension, args.dtype, args.with_sentences)
        made_of = _made_of(job, text, args)
        output.parent.mkdir(parents=True, exist_ok=True)
        with ResumableFile(output, made_of, text.chunks, shape.opening, shape.closing, args.overwrite) as result_file:
            begun, started = result_file.finished, time.perf_counter()
            if not result_file.complete:
                _write(result_file, place, job, text, shape, args.with_sentences, show_progress)
            encoded = text.lines - min(begun * args.chunk_size, text.lines)
            return EncodedFile(
                output, text.lines, facts.dimension, result_file.cut, encoded, time.perf_counter() - started
            )


def _require_place(output: Path) -> None:
    if output.is_dir():
        raise UserError(f"--output {output} is a folder; give a file")
    require_writable(output.parent, f"--output {output}")


def _place(args: EncodingArguments, encoder: EncoderArguments) -> AbstractContextManager:
    if args.ray:
        return RayWorkers(args.ray, args.num_processes, encoder.device)
    if (args.num_processes or 1) > 1:
        return WorkerProcesses(args.num_processes, encoder.device)
    return InProcess(encoder.device)


ENCODER_OPTIONS = ("batch_size", "packing", "flex_attention")
"""Options of the encoder that `identity` does not know; they decide the last bits."""


def _made_of(job: EncodeJob, text: TextFile, args: EncodingArguments) -> dict[str, Any]:
    """All that the bytes of the result follow from. How many processes there are is not among it."""
    options = ("dtype", "with_sentences", "normalize", "max_seq_length", "bf16", "chunk_size")
    return {
        "format": 1,
        "model": dict(job.identity),
        "text": {"lines": text.lines, "sha256": text.sha256},
        "options": {name: getattr(args, name) for name in options}
        | {n: getattr(job.encoder, n) for n in ENCODER_OPTIONS},
    }


def _write(
    result_file: ResumableFile,
    place: Any,
    job: EncodeJob,
    text: TextFile,
    shape: Format,
    with_sentences: bool,
    show_progress: bool,
) -> None:
    """Encode and write what is left."""
    numbers = range(result_file.finished, text.chunks)
    done = min(result_file.finished * text.chunk_size, text.lines)
    bar = tqdm(
        total=text.lines, initial=done, desc="encode", unit=" sentences", mininterval=1, disable=not show_progress
    )
    with bar:
        for number, vectors in zip(numbers, place.vectors(job, text, numbers), strict=True):
            _require_whole(text, number, vectors, job.dtype)
            result_file.append(shape.piece(vectors.rows, text.chunk(number) if with_sentences else None), vectors.cut)
            bar.update(len(vectors.rows))
    text.require_unchanged()
    result_file.finish()


def _require_whole(text: TextFile, number: int, vectors: EncodedChunk, dtype: str) -> None:
    """UserError unless there is a finite vector for every line of the chunk."""
    if len(vectors.rows) != text.size(number):
        text.require_unchanged()
        raise AssertionError(f"{len(vectors.rows)} vectors for {text.size(number)} lines")
    if len(bad := np.flatnonzero(~np.isfinite(vectors.rows).all(axis=1))):
        line = text.first_line(number) + int(bad[0])
        raise UserError(f"{text.path}, line {line}: its vector is not finite in {dtype}; is the model whole?")
