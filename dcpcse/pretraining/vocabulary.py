"""Train, load and check the tokenizer of a masked language model."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from dcpcse.encoders.backbones import load_tokenizer
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.utils.errors import OptionError, UserError, spell

BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
MIN_FREQUENCY = 2
"""A token must occur this many times, as in BERT's and RoBERTa's vocabularies."""


def make_tokenizer(lines: Iterable[str], args: PretrainingArguments) -> PreTrainedTokenizerFast:
    """Load the tokenizer of `args`, or train it on the lines.

    Raises UserError if a tokenizer lacks a special token, or if the text has too few words for the vocabulary.
    """
    if args.tokenizer is not None:
        loaded = require_masking(load_tokenizer(args.tokenizer, LoadOptions()), spell("tokenizer", args.tokenizer))
        return prepared(loaded, args.max_position_embeddings)
    if args.model_type == "bert":
        tokenizer = train_word_piece(lines, args.vocab_size, args.lowercase)
    else:
        tokenizer = train_byte_level_bpe(lines, args.vocab_size)
    if len(tokenizer) < args.vocab_size:
        raise OptionError(
            "vocab_size",
            args.vocab_size,
            f"the text gives only {len(tokenizer):,} tokens that occur at least {MIN_FREQUENCY} times",
            f"lower {spell('vocab_size')} to at most {len(tokenizer)}, or give more text",
        )
    if len(tokenizer) > args.vocab_size:
        raise OptionError(
            "vocab_size", args.vocab_size, f"the letters and special tokens alone are {len(tokenizer)}", "raise it"
        )
    return prepared(tokenizer, args.max_position_embeddings)


def prepared(tokenizer: PreTrainedTokenizerFast, positions: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer for a model of so many positions that neither truncates nor pads the lines to be packed."""
    tokenizer.model_max_length = positions
    tokenizer.backend_tokenizer.no_truncation()  # a loaded tokenizer may have been saved with it
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def require_masking(tokenizer: PreTrainedTokenizerFast, source: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer; raise UserError unless it is a fast one with all special tokens that pretraining needs.

    source: the option that names it, and its value.
    """
    if not tokenizer.is_fast:
        raise UserError(f"{source} has no tokenizer.json; give the tokenizer of the library tokenizers")
    if missing := [role.replace("_", " ") for role in ROLES if getattr(tokenizer, f"{role}_id") is None]:
        raise UserError(f"{source} has no {', '.join(missing)}; give the tokenizer of a BERT or RoBERTa model")
    return tokenizer


def train_word_piece(lines: Iterable[str], size: int, lowercase: bool) -> PreTrainedTokenizerFast:
    """Return BERT's tokenizer with a WordPiece vocabulary of at most `size` tokens."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # A letter takes two entries: at the start of a word, and after it. Rare letters would fill a small vocabulary.
    letters = min(1000, max(size // 20, min(100, size // 3)))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(BERT_SPECIAL),
        limit_alphabet=letters,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=lowercase)


def train_byte_level_bpe(lines: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Return RoBERTa's tokenizer with a byte-level BPE vocabulary of at most `size` tokens, at least 261."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(ROBERTA_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    # The library has no other access to the merges.
    model = json.loads(tokenizer.to_str())["model"]
    return RobertaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def token_characters(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Return the number of characters (vocabulary,) of each token, 0 for special tokens.

    The sign of a continued word (##) and the blank before a word are not counted. A token of a byte-level tokenizer
    may end within a character; such a character counts for the token with its first byte.
    """
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    of_bytes = isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel)
    counts = np.array([_first_bytes(token) if of_bytes else len(_without_sign(token)) for token in tokens])
    counts[tokenizer.all_special_ids] = 0
    return counts


def _without_sign(token: str) -> str:
    return token.removeprefix("##").removeprefix("▁")


def _first_bytes(token: str) -> int:
    """Return how many characters begin in a token of byte-level BPE: UTF-8 continues a character by 10xxxxxx."""
    return sum(_BYTES.get(letter, 0) & 0xC0 != 0x80 for letter in token.removeprefix("Ġ"))


_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
"""The bytes that byte-level BPE, as in GPT-2, writes as the characters of these numbers; the others follow 255."""

_OTHERS = sorted({*range(256)} - {*_PRINTED})
_BYTES = {chr(byte): byte for byte in _PRINTED} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save a tokenizer without the facts about its own loading that transformers adds."""
    for name in ("is_local", "local_files_only", "name_or_path"):
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(folder)
