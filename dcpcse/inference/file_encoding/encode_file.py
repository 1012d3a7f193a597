"""Encode a text file: check the input, encode the missing chunks, and join all chunks to the output file."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm.auto import tqdm

from dcpcse.data.checks import warn_of_format
from dcpcse.data.text_file import TextFile, write_column
from dcpcse.encoders.encode_options import PrecisionOptions
from dcpcse.encoders.quantization import WITH_RANGES
from dcpcse.encoders.tokenization import default_batch_size
from dcpcse.inference.arguments import EncoderArguments, EncodingArguments
from dcpcse.inference.file_encoding.encode_job import Chunk, EncodeJob
from dcpcse.inference.file_encoding.formats import writer_for
from dcpcse.inference.file_encoding.shards import Shards, parts_folder
from dcpcse.utils.arguments import path
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import require_file, require_writable, staging_folder
from dcpcse.utils.work_units import InProcess, Outcomes, workers


@dataclass(frozen=True)
class EncodedFile:
    """A finished output file of `encode_file`.

    Args:
        output: The path of the file.
        rows: Number of vectors.
        dimension: Number of values of a vector, or of bytes with the precisions binary and ubinary.
        truncated: Number of truncated texts.
        encoded: Number of lines that this call encoded, without lines that an earlier call had encoded.
        seconds: Time in seconds that this call needed to encode and write.
    """

    output: Path
    rows: int
    dimension: int
    truncated: int
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
    """Encode every line of a UTF-8 text file and write the vectors to `args.output`, where row i is line i.

    With `args.column`, the file is a table, and row i of the output belongs to row i of the table.

    The vectors are the same as from `SentenceEncoder.encode`, and memory use does not grow with the file. If a call is
    killed, the same call resumes the work and writes the same bytes. With several processes, the calling script needs
    `if __name__ == "__main__":`.

    Args:
        model: Output folder of train.py, Hugging Face folder or hub id.
        file: The text file, or the table.
        args: Options for the output file and for the processes.
        encoder: Options for loading the model. None: the defaults.
        show_progress: Whether to show a progress bar.

    Raises:
        UserError: If a line cannot be encoded, if the output cannot be written, or if an existing output was written
            with a different model, text or options.
    """
    model = str(path("model", model))
    if not isinstance(args, EncodingArguments):
        raise UserError(f"args of type {type(args).__name__}: must be EncodingArguments(output=...)")
    encoder, output = encoder or EncoderArguments(), Path(args.output)
    write = writer_for(output, args.with_sentences)
    require_file(output, "output")
    for folder in (output.parent, parts_folder(output)):
        require_writable(folder, spell("output", output))
    # In records of outputs, False has always meant the setting of the model.
    options = PrecisionOptions(**{**args.given(), "normalize": args.normalize or None, "show_progress": False})
    job = EncodeJob(model, encoder, options, args.dtype)
    with _read_texts(file, args) as text, workers(args.ray, args.num_processes, encoder.device) as team:
        if args.precision in WITH_RANGES and args.calibration is None:
            first = list(islice(chain.from_iterable(text.read_chunks()), CALIBRATION_LINES))
            job = replace(job, options=replace(options, calibration=first))
        model = job.load(team.local)
        job, dimension = job.identify(model, team.type)
        if not isinstance(team, InProcess):
            model = None  # each worker loads its own model
        missing, started = [], time.perf_counter()

        def shape(number: int) -> tuple[int, int]:
            return text.size(number), dimension

        shards = Shards(output, _made_of(job, text, args), text.chunks, shape, job.dtype)

        def write_output(file: BinaryIO, vectors: Iterator[np.ndarray]) -> None:
            sentences = text.read_chunks() if args.with_sentences else None
            write(file, vectors, sentences, (text.lines, dimension), job.dtype)
            text.require_unchanged()

        with shards.lock():
            record = shards.finished()
            if record is None:
                missing = shards.start(args.overwrite)
                chunks = map(Chunk, missing, text.read_chunks(missing))
                with contextlib.closing(team.run(partial(job.start, model=model), chunks)) as outcomes:
                    _save(outcomes, text, missing, shards, show_progress)
                record = shards.join(write_output)
        with contextlib.suppress(OSError):  # another process may already be using the folder
            shards.folder.rmdir()
        encoded = sum(map(text.size, missing))
        return EncodedFile(output, text.lines, dimension, record["truncated"], encoded, time.perf_counter() - started)


@contextlib.contextmanager
def _read_texts(file: str | Path, args: EncodingArguments) -> Iterator[TextFile]:
    """Read and check the text file, or a temporary text file with the texts of the chosen column of a table."""
    if args.column is None:
        text = TextFile.read(file, args.chunk_size, option="column")
        warn_of_format(text.path)
        yield text
        return
    # A text file, since chunks are read in any order, and vectors of a file that changes would not be of its texts.
    with staging_folder(Path(f"{args.output}.text")) as folder:
        write_column(file, args.column, folder / "column.txt")
        yield TextFile.read(folder / "column.txt", args.chunk_size)


CALIBRATION_LINES = 1_000
"""Number of first lines from which the ranges of int8 and uint8 are computed without a calibration."""

ENCODER_OPTIONS = ("packing", "bf16")
"""Options of the encoder that affect vectors, in addition to the batch size."""


def _made_of(job: EncodeJob, text: TextFile, args: EncodingArguments) -> dict[str, Any]:
    """Return everything on which the bytes of the output depend. They do not depend on the number of processes."""
    recorded = job.options.recorded()
    # Under these two names, and even without a value, since earlier versions recorded them like this.
    recorded |= {"normalize": recorded.pop("normalize", False), "max_seq_length": recorded.pop("max_length", None)}
    return {
        "format": 1,
        "model": dict(job.identity),
        "text": {"lines": text.lines, "sha256": text.sha256},
        "options": {name: getattr(args, name) for name in ("dtype", "with_sentences", "chunk_size")}
        | recorded
        | ({} if job.encoder.attention is None else {"attention": job.encoder.attention})
        | {name: getattr(job.encoder, name) for name in ENCODER_OPTIONS}
        | {"batch_size": job.options.batch_size or default_batch_size(job.identity["device"])},
    }


def _save(outcomes: Outcomes, text: TextFile, missing: list[int], shards: Shards, show_progress: bool) -> None:
    """Save the encoded chunks as shards. Raises UserError if a vector is not finite."""
    done = text.lines - sum(map(text.size, missing))
    with tqdm(
        total=text.lines, initial=done, desc="encode", unit=" sentences", mininterval=1, disable=not show_progress
    ) as bar:
        for (number, _), chunk in outcomes:
            if isinstance(chunk, UserError):
                raise chunk
            text.require_unchanged()  # vectors of a changed file must not be saved
            if len(bad := np.flatnonzero(~np.isfinite(chunk.vectors).all(axis=1))):
                line = text.first_line(number) + int(bad[0])
                is_half = shards.dtype == np.float16
                remedy = f"use {spell('dtype', 'float32')}" if is_half else "check the weights of the model"
                raise UserError(f"{text.path}, line {line}: its vector is not finite in {shards.dtype}; {remedy}")
            shards.save(number, chunk)
            bar.update(text.size(number))
