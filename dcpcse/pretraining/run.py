"""The steps of `dcpcse pretrain`: read the text, make the tokenizer, train, and write the encoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from dcpcse.data.checks import MOST_UNKNOWN, REMEDY, describe_unknown
from dcpcse.encoders.backbones import quiet
from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.pretraining.encoder_folder import Picture, write_encoder
from dcpcse.pretraining.model import Base, architecture, build_model, load_base
from dcpcse.pretraining.record import RECORD, logged, read_record
from dcpcse.pretraining.sequences import (
    MEASURED_SHARE,
    PackedSequences,
    masked_batches,
    masked_tokens,
    masking_collator,
    unigram_figures,
)
from dcpcse.pretraining.text import Text, hold_out, read_lines
from dcpcse.pretraining.trainer import MaskedLMTrainer, Progress, last_complete_checkpoint, seconds_before
from dcpcse.pretraining.vocabulary import make_tokenizer, save_tokenizer, token_characters
from dcpcse.utils.console import notify, warn
from dcpcse.utils.distributed import launched
from dcpcse.utils.environment import system_info
from dcpcse.utils.errors import OptionError, UserError, same_call, spell
from dcpcse.utils.files import (
    file_sha256,
    remove,
    remove_leftovers,
    require_writable,
    staging_folder,
    write_json_atomic,
)
from dcpcse.utils.locks import exclusive_lock
from dcpcse.utils.private.arguments import OneGpuArguments
from dcpcse.utils.refusals import doing
from dcpcse.utils.run_files import checkpoints_in
from dcpcse.utils.signals import DeferredSignal, Interrupted

MEASURED_AT_ONCE = 64
"""Sequences per batch of a measurement. With other sizes, other tokens would be masked."""


@dataclass(frozen=True)
class PackedCorpus:
    """The tokenized text: sequences for training, masked batches for measuring, and what the record says of them.

    characters (vocabulary,): length of each token.
    """

    train: PackedSequences
    batches: list[dict[str, Tensor]]
    characters: np.ndarray
    facts: Mapping[str, Any]


def run_pretraining(text: str | Path, args: PretrainingArguments, picture: Picture) -> dict[str, Any]:
    """Pretrain an encoder on a text file, write it to `args.output_dir`, and return its record.

    picture: draws the curve. Raises UserError for a mistake of the user, and Interrupted after a signal, once the
    running step and a checkpoint are finished.
    """
    output = Path(args.output_dir)
    if launched() > 1:
        raise UserError("dcpcse pretrain runs in one process; start it without torchrun")
    require_output(output, args.resume)
    source = read_lines(Path(text), "the text")
    other = None if args.validation_file is None else read_lines(Path(args.validation_file), spell("validation_file"))
    if other and other.sha256 == source.sha256:
        raise UserError(
            f"{spell('validation_file', other.path)} has the same content as {source.path}; give a text that is not "
            "trained on, or leave it out, and a part of the text is held out"
        )
    parts = (source.lines, other.lines) if other else hold_out(source, args.share)
    with exclusive_lock(output, spell("output_dir", output)):
        remove_leftovers(output)
        before = require_same(output, args, source, other) if args.resume else None
        if before and before["finished"]:
            notify(f"{output} contains a finished pretraining; it remains unchanged")
            return before
        checkpoint = last_complete_checkpoint(output) if before else None
        base = None if args.model_name_or_path is None else load_base(args)
        tokenizer = _tokenizer(output, parts[0], args, base, before if checkpoint else None)
        corpus = build_corpus(*parts, tokenizer, args)
        model = build_model(args, tokenizer, corpus.train.counts()) if base is None else base.model
        record = {
            "finished": False,
            "options": args.recorded(),
            "text": source.facts(),
            "validation_text": other and other.facts(),
            "tokenizer": before["tokenizer"] if checkpoint else _saved_digest(output, tokenizer),
            "base": base and base.facts,
            "architecture": architecture(model),
            "causal_steps": args.causal_count,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "vocabulary_size": len(tokenizer),
            **corpus.facts,
        }
        if checkpoint is None:
            # The record comes first: a folder without it could not be resumed, and not be used again.
            write_json_atomic(output / RECORD, record)
            save_tokenizer(tokenizer, output)
        trained = _train(model, tokenizer, corpus, args, checkpoint)
        record |= {"finished": True, **trained, "environment": system_info()}
        with doing(f"while the encoder was written to {output}"):
            write_encoder(output, model, tokenizer, record, picture)
        for old in checkpoints_in(output).values():
            remove(old)
    _report(record, output)
    return record


def require_output(folder: Path, resume: bool) -> None:
    """Raise UserError unless --output_dir is new or empty or, with --resume, contains a pretraining."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{spell('output_dir', folder)} is a file; give a folder")
    if resume and not (folder / RECORD).is_file():
        raise OptionError(
            "resume",
            True,
            f"{folder} contains no pretraining ({RECORD})",
            f"leave out {spell('resume', True)} to start one",
        )
    if not resume and folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        or_resume = (
            f", or add {spell('resume', True)} to continue its pretraining" if (folder / RECORD).is_file() else ""
        )
        raise UserError(f"{spell('output_dir', folder)} is not empty; give a new or empty folder{or_resume}")
    require_writable(folder, spell("output_dir", folder))


def require_same(folder: Path, args: PretrainingArguments, text: Text, validation: Text | None) -> dict[str, Any]:
    """Return the record of a pretraining; raise UserError unless it has the same options and texts."""
    record, options = read_record(folder), args.recorded()
    for name in {**record["options"], **options}:
        old, new = record["options"].get(name), options.get(name)
        if old != new:
            before, now = (spell(name, value) if value is not None else f"no {spell(name)}" for value in (old, new))
            raise OptionError(
                "resume", True, f"{folder} was started with {before}, and not with {now}", "give the same options"
            )
    pairs = {
        "the text": (record["text"], text),
        spell("validation_file"): (record.get("validation_text"), validation),
    }
    for what, (old, new) in pairs.items():
        if old and new and old["sha256"] != new.sha256:
            raise OptionError(
                "resume",
                True,
                f"{what} {new.path} differs from that of {folder} (sha256 {new.sha256[:12]}…, not "
                f"{old['sha256'][:12]}…)",
                "give the same text",
            )
    return record


def _tokenizer(
    folder: Path,
    lines: list[str],
    args: PretrainingArguments,
    base: Base | None,
    before: Mapping[str, Any] | None,
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the run; of a run that is resumed, the one in its folder.

    Raises UserError if that one, or the one that --tokenizer names, or the model that is continued, is not that of
    the record.
    """

    def given() -> PreTrainedTokenizerFast:
        return make_tokenizer(lines, args) if base is None else base.tokenizer

    if before is None:
        return given()
    if _digest(folder) != before["tokenizer"]:
        raise OptionError(
            "resume", True, f"{folder / 'tokenizer.json'} has changed since the start", "start again in a new folder"
        )
    if base is not None and base.facts != before.get("base"):
        raise OptionError(
            "resume",
            True,
            f"the weights of {spell('model_name_or_path', args.model_name_or_path)} have changed since the start",
            "give the same model",
        )
    if args.tokenizer is not None or base is not None:
        option = "tokenizer" if base is None else "model_name_or_path"
        if _saved_digest(folder, given()) != before["tokenizer"]:
            raise OptionError(
                "resume",
                True,
                f"the tokenizer of {spell(option, getattr(args, option))} has changed since the start",
                "give the same tokenizer",
            )
    with quiet():
        return AutoTokenizer.from_pretrained(folder)


def _digest(folder: Path) -> dict[str, str]:
    """Return what the record says of the tokenizer in a folder."""
    return {"tokenizer.json": file_sha256(folder / "tokenizer.json")}


def _saved_digest(folder: Path, tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """Return what the record says of a tokenizer, which is saved inside `folder` for a moment."""
    with staging_folder(folder / "tokenizer") as part:
        save_tokenizer(tokenizer, part)
        return _digest(part)


def build_corpus(
    train: list[str], held_out: list[str], tokenizer: PreTrainedTokenizerFast, args: PretrainingArguments
) -> PackedCorpus:
    """Tokenize and pack both parts of a text; raise UserError if one of them gives no token to train or measure."""

    def packed(lines: list[str], words: bool) -> PackedSequences:
        return PackedSequences(lines, tokenizer, args.max_seq_length, args.short_seq_prob, args.seed, words=words)

    data, dev = packed(train, args.whole_word_mask), packed(held_out, False)
    batches = masked_batches(dev, tokenizer, MEASURED_SHARE, MEASURED_AT_ONCE)
    masked, characters = masked_tokens(batches).numpy(), token_characters(tokenizer)
    if data.special[data.tokens].all():
        raise UserError("the text contains no word that the tokenizer knows; give other text, or another tokenizer")
    if not characters[masked].sum():
        raise UserError(
            f"the held-out text is too short to measure a model: of its {len(dev.tokens)} tokens none was masked; "
            f"give more text, a larger {spell('validation_share')}, or {spell('validation_file')}"
        )
    facts = {
        "training": {"lines": len(train), "tokens": len(data.tokens), "sequences": len(data)},
        "held_out": {
            "lines": len(held_out),
            "tokens": len(dev.tokens),
            "sequences": len(dev),
            "masked_tokens": len(masked),
            "masked_characters": int(characters[masked].sum()),
        },
        "unigram": unigram_figures(data.tokens, data.special, masked, characters),
        "unknown_share": float((data.tokens == tokenizer.unk_token_id).mean()),
    }
    if facts["unknown_share"] > MOST_UNKNOWN:
        hint = (
            f"raise {spell('vocab_size')}, or choose {spell('model_type', 'roberta')}, whose tokenizer knows every "
            "byte"
        )
        remedy = REMEDY if args.tokenizer or args.model_name_or_path else hint
        warn(f"{describe_unknown(facts['unknown_share'], tokenizer.unk_token)}; {remedy}")
    return PackedCorpus(data, batches, characters, facts)


def trainer_arguments(args: PretrainingArguments, *, measures_first: bool) -> transformers.TrainingArguments:
    """Return the arguments of transformers' Trainer. measures_first: whether the model is measured before training."""
    same = (
        *("output_dir", "per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "learning_rate"),
        *("warmup_steps", "weight_decay", "adam_beta2", "adam_epsilon", "max_grad_norm", "seed", "fp16", "bf16"),
        *("use_cpu", "logging_steps", "eval_steps", "save_steps"),
    )
    schedule = "constant_with_warmup" if args.lr_scheduler_type == "constant" else args.lr_scheduler_type
    try:
        training_args = OneGpuArguments(
            **{name: getattr(args, name) for name in same},
            lr_scheduler_type=schedule,
            eval_strategy="steps",
            eval_on_start=measures_first,
            save_strategy="steps",
            save_total_limit=2,
            optim="adamw_torch_fused",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=torch.cuda.is_available() and not args.use_cpu,
            include_num_input_tokens_seen="non_padding",
        )
    except ValueError as error:  # mixed precision that the device lacks
        raise UserError(" ".join(str(error).split())) from error
    return training_args


def _train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    corpus: PackedCorpus,
    args: PretrainingArguments,
    checkpoint: Path | None,
) -> dict[str, Any]:
    """Train the model to the last step, and return the entries of the record about it."""
    stop = DeferredSignal()
    progress = Progress(stop, seconds_before(checkpoint) if checkpoint else 0.0)
    trainer = MaskedLMTrainer(
        model,
        trainer_arguments(args, measures_first=checkpoint is None),
        masking_collator(tokenizer, args.mlm_probability, args.whole_word_mask),
        corpus.train,
        batches=corpus.batches,
        characters=corpus.characters,
        causal_steps=args.causal_count,
        callbacks=[progress],
    )
    if checkpoint:
        notify(f"resuming from {checkpoint}")
        trainer.repeat_masks(checkpoint)
    else:
        notify(_summary(corpus, model, args))
    with stop.active(), quiet():  # transformers draws a bar for each file that it writes
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if stop.number and trainer.state.global_step < args.max_steps:
            raise Interrupted(
                stop.number,
                f"{Interrupted(stop.number).name}: stopped after step {trainer.state.global_step} of "
                f"{args.max_steps}; {same_call()} with {spell('resume', True)} continues from there",
            )
        if not any(line["step"] == args.max_steps for line in trainer.state.log_history if "eval_loss" in line):
            trainer.evaluate()
    history = logged(trainer.state.log_history, args.causal_count)
    figures = {name: value for name, value in history["curve"][-1].items() if name not in ("step", "tokens_seen")}
    return {
        **history,
        "figures": figures,
        "steps": trainer.state.global_step,
        "tokens_seen": trainer.state.num_input_tokens_seen,
        "seconds": progress.seconds,
    }


def _summary(corpus: PackedCorpus, model: PreTrainedModel, args: PretrainingArguments) -> str:
    training, held = corpus.facts["training"], corpus.facts["held_out"]
    causal = f"; next tokens until step {args.causal_count:,}, then masked tokens" if args.causal_count else ""
    sequences = args.max_steps * args.per_device_train_batch_size * args.gradient_accumulation_steps
    return (
        f"{training['lines']:,} lines for training ({training['tokens']:,} tokens, {training['sequences']:,} "
        f"sequences), {held['lines']:,} held out; {sum(p.numel() for p in model.parameters()):,} parameters; "
        f"{sequences / training['sequences']:.1f} passes through the text{causal}"
    )


def _report(record: Mapping[str, Any], folder: Path) -> None:
    figures, unigram = record["figures"], record["unigram"]
    notify(
        f"the encoder is in {folder}: masked accuracy {figures['masked_accuracy']:.2f} % (unigram model "
        f"{unigram['masked_accuracy']:.2f} %), {figures['bits_per_character']:.3f} bits per character (unigram model "
        f"{unigram['bits_per_character']:.3f})"
    )
