"""The steps of `dcpcse pretrain`: read the text, make the tokenizer, train, and write the encoder."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from dcpcse.encoders.backbones import quiet
from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.pretraining.data import Batches, Masking, PackedCorpus, Text, build_corpus, hold_out, read_lines
from dcpcse.pretraining.model import architecture, build_model, load_base
from dcpcse.pretraining.record import FORMAT, RECORD, Picture, logged, read_record, write_encoder
from dcpcse.pretraining.trainer import MaskedLMTrainer, Progress, trainer_arguments
from dcpcse.pretraining.vocabulary import make_tokenizer, save_tokenizer
from dcpcse.utils.console import notify
from dcpcse.utils.distributed import launched
from dcpcse.utils.environment import system_info
from dcpcse.utils.errors import OptionError, UserError, doing, same_call, spell
from dcpcse.utils.files import (
    file_sha256,
    remove,
    remove_leftovers,
    require_writable,
    staging_folder,
    write_json_atomic,
)
from dcpcse.utils.locks import exclusive_lock
from dcpcse.utils.run_files import checkpoints_in, read_state
from dcpcse.utils.signals import DeferredSignal, Interrupted


def run_pretraining(text: str | Path, args: PretrainingArguments, picture: Picture) -> dict[str, Any]:
    """Pretrain an encoder on a text file, write it to `args.output_dir`, and return its record.

    Args:
        picture: The function that draws the curve.

    Raises:
        UserError: If the text, an option or a file cannot be used.
        Interrupted: If a signal was received. The running step is first finished, and a checkpoint is saved.
    """
    output = Path(args.output_dir)
    if launched() > 1:
        raise UserError("dcpcse pretrain runs in one process; start it without torchrun")
    require_output(output, args.resume)
    source = read_lines(Path(text), "the text")
    other = None if args.validation_file is None else read_lines(Path(args.validation_file), spell("validation_file"))
    if other and other.sha256 == source.sha256:
        raise UserError(
            f"{spell('validation_file', other.path)} has the same content as {source.path}; give another text, or "
            "leave this option out to hold out a part of the training text"
        )
    train, held_out = (source.lines, other.lines) if other else hold_out(source, args.share)
    with exclusive_lock(output, spell("output_dir", output)):
        remove_leftovers(output)
        texts = {"text": source, "validation_text": other}
        before = require_same(output, args, texts) if args.resume else None
        if before and before["finished"]:
            notify(f"{output} contains a finished pretraining; it remains unchanged")
            return before
        checkpoint = next(reversed(checkpoints_in(output).values()), None) if before else None
        training_args = trainer_arguments(args, measures_first=checkpoint is None)
        model, base = None, None
        if checkpoint:
            read_state(checkpoint)  # raises UserError if it is damaged
            require_tokenizer(output, before)
            with quiet():
                model = AutoModelForMaskedLM.from_pretrained(checkpoint, dtype=torch.float32)
                tokenizer = AutoTokenizer.from_pretrained(output)
        elif args.model_name_or_path is not None:
            model, tokenizer, base = load_base(args)
        else:
            tokenizer = make_tokenizer(train, args)
        corpus = build_corpus(train, held_out, tokenizer, args, training_args.device)
        if model is None:
            counts = np.bincount(corpus.tokens, minlength=len(tokenizer))
            model = build_model(args, tokenizer, torch.from_numpy(counts))
        if checkpoint:
            record = before
        else:
            record = {
                "format": FORMAT,
                "finished": False,
                "command": shlex.join(["dcpcse", "pretrain", source.path.name, *args.words()]),
                "options": args.recorded(),
                **{name: text and text.facts() for name, text in texts.items()},
                "base": base,
                "architecture": architecture(model),
                "parameters": sum(weight.numel() for weight in model.parameters()),
                "vocabulary_size": len(tokenizer),
                **corpus.facts,
            }
            _write_start(output, record, tokenizer)
        trained = _train(model, tokenizer, corpus, args, training_args, checkpoint)
        record = {**record, "finished": True, **trained, "environment": system_info()}
        with doing(f"while the encoder was written to {output}"):
            write_encoder(output, model, tokenizer, record, picture)
        for old in checkpoints_in(output).values():
            remove(old)
    unigram = "masked accuracy {masked_accuracy:.2f} %, {bits_per_character:.3f} bits per character"
    notify(f"the encoder is in {output}; for comparison, a unigram model has {unigram.format(**record['unigram'])}")
    return record


def require_output(folder: Path, resume: bool) -> None:
    """Raise UserError unless --output_dir is new or empty. With --resume, it must contain a pretraining instead."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{spell('output_dir', folder)} is a file; give a folder")
    begun = (folder / RECORD).is_file()
    if resume and not begun:
        remedy = f"leave out {spell('resume', True)} to start one"
        raise OptionError("resume", True, f"{folder} contains no pretraining ({RECORD})", remedy)
    if not resume and folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        or_resume = f", or add {spell('resume', True)} to continue its pretraining" if begun else ""
        raise UserError(f"{spell('output_dir', folder)} is not empty; give a new or empty folder{or_resume}")
    require_writable(folder, spell("output_dir", folder))


def require_same(folder: Path, args: PretrainingArguments, texts: Mapping[str, Text | None]) -> dict[str, Any]:
    """Return the record of a pretraining to resume. Raises UserError if its options or texts differ from this call.

    Args:
        folder: The folder of the pretraining.
        args: The options of this call.
        texts: The texts of this call, by the names of their entries in the record.
    """
    record, options = read_record(folder), args.recorded()

    def refuse(reason: str, remedy: str) -> NoReturn:
        raise OptionError("resume", True, reason, remedy)

    if record.get("format") != FORMAT and not record["finished"]:
        what = f"the pretraining in {folder} was started by a version of dcpcse that masks the text differently"
        refuse(what, "start again in a new folder, or finish it with that version")
    for name in {**record["options"], **options} if record.get("format") == FORMAT else ():
        old, new = record["options"].get(name), options.get(name)
        if old != new:
            before, now = (spell(name, value) if value is not None else f"no {spell(name)}" for value in (old, new))
            refuse(f"{folder} was started with {before}, and not with {now}", "give the same options")
    for name, text in texts.items():
        if text and record.get(name) and record[name]["sha256"] != text.sha256:
            refuse(f"{text.path} differs from the text of {folder}", "give the same text")
    return record


def require_tokenizer(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise UserError if tokenizer.json in the folder has changed since the pretraining was started."""
    if _digest(folder) != record["tokenizer"]:
        reason = f"{folder / 'tokenizer.json'} has changed since the start"
        raise OptionError("resume", True, reason, "start again in a new folder")


def _write_start(folder: Path, record: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> None:
    """Add the digest of the tokenizer to the record, then write the record and the tokenizer to the folder.

    The record is written first, since a folder without a record could be neither resumed nor used again.
    """
    with staging_folder(folder / "tokenizer") as part:
        save_tokenizer(tokenizer, part)
        record["tokenizer"] = _digest(part)
        write_json_atomic(folder / RECORD, record)
        for path in part.iterdir():
            os.replace(path, folder / path.name)


def _digest(folder: Path) -> dict[str, str]:
    """Return the digest of the tokenizer in a folder, as an entry of the record."""
    return {"tokenizer.json": file_sha256(folder / "tokenizer.json")}


def _train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    corpus: PackedCorpus,
    args: PretrainingArguments,
    training_args: Any,
    checkpoint: Path | None,
) -> dict[str, Any]:
    """Train the model to the end, and return the entries about the training for the record."""
    device, stop = training_args.device, DeferredSignal()
    progress = Progress(args, stop)
    count = training_args.max_steps * args.gradient_accumulation_steps
    trainer = MaskedLMTrainer(
        model,
        training_args,
        Batches(corpus, tokenizer, args, device, count),
        progress=progress,
        masking=Masking(tokenizer, args.mlm_probability, device),
        batches=corpus.batches,
        bits=corpus.bits,
    )
    if args.torch_compile:
        for layer in model.base_model.encoder.layer:
            layer.compile(dynamic=False)
    notify(f"resuming from {checkpoint}" if checkpoint else _summary(corpus, model, args))
    with stop.active(), quiet():  # transformers draws a bar for each file that it writes
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        step, history = trainer.state.global_step, trainer.state.log_history
        if stop.number and progress.done(step) < 1:
            name = Interrupted(stop.number).name
            raise Interrupted(
                stop.number,
                f"{name}: stopped after step {step}; {same_call()} with {spell('resume', True)} continues from there",
            )
        seconds = progress.seconds
        if not any(line["step"] == step for line in history if "eval_loss" in line):
            trainer.evaluate()
    lines = logged(history, progress.causal_steps)
    figures = {name: value for name, value in lines["curve"][-1].items() if name not in ("step", "tokens_seen")}
    return {
        **lines,
        "figures": figures,
        "causal_steps": progress.causal_steps,
        "steps": step,
        "tokens_seen": trainer.state.num_input_tokens_seen,
        "seconds": seconds,
    }


def _summary(corpus: PackedCorpus, model: PreTrainedModel, args: PretrainingArguments) -> str:
    training, held = corpus.facts["training"], corpus.facts["held_out"]
    causal = f"; next tokens in the first {100 * args.causal_share:.3g} %, then masked tokens" * (
        args.causal_share > 0
    )
    length = f"{args.minutes:g} minutes" if args.max_steps is None else f"{args.max_steps:,} steps"
    return (
        f"{training['lines']:,} lines for training ({training['tokens']:,} tokens), {held['lines']:,} held out; "
        f"{sum(p.numel() for p in model.parameters()):,} parameters; {length}{causal}"
    )
