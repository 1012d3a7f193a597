"""Train, load and check the tokenizer of a masked language model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import BertTokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from dcpcse.encoders.backbones import load_tokenizer
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.utils.errors import UserError, spell

BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
MIN_FREQUENCY = 2
"""Minimum number of occurrences of a token, as in BERT's and RoBERTa's vocabularies."""


def make_tokenizer(lines: Iterable[str], args: PretrainingArguments) -> PreTrainedTokenizerFast:
    """Load the tokenizer that `args` names, or train a tokenizer on the lines.

    Raises UserError if the tokenizer lacks a special token.
    """
    if args.tokenizer is not None:
        loaded = require_masking(load_tokenizer(args.tokenizer, LoadOptions()), spell("tokenizer", args.tokenizer))
        return prepared(loaded, args.max_seq_length)
    if args.model_type == "bert":
        tokenizer = train_word_piece(lines, args.vocab_size, args.lowercase)
    else:
        tokenizer = train_byte_level_bpe(lines, args.vocab_size)
    return prepared(tokenizer, args.max_seq_length)


def prepared(tokenizer: PreTrainedTokenizerFast, positions: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer, changed so that it fits a model with this number of positions.

    Truncation and padding are switched off.
    """
    tokenizer.model_max_length = positions
    tokenizer.backend_tokenizer.no_truncation()  # a loaded tokenizer may have been saved with these settings
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def require_masking(tokenizer: PreTrainedTokenizerFast, source: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer. Raises UserError unless it is a fast tokenizer with the special tokens of pretraining.

    Args:
        source: The option that names the tokenizer, and its value.
    """
    if not tokenizer.is_fast:
        raise UserError(f"{source} has no tokenizer.json; give a folder with a fast tokenizer (tokenizer.json)")
    if missing := [role.replace("_", " ") for role in ROLES if getattr(tokenizer, f"{role}_id") is None]:
        raise UserError(f"{source} has no {', '.join(missing)}; give the tokenizer of a BERT or RoBERTa model")
    return tokenizer


def train_word_piece(lines: Iterable[str], size: int, lowercase: bool) -> PreTrainedTokenizerFast:
    """Return BERT's tokenizer with a WordPiece vocabulary of at most `size` tokens."""
    # A letter takes two entries: one at the start of a word, and one inside it. Rare letters would fill a small
    # vocabulary.
    letters = min(1000, max(size // 20, min(100, size // 3)))
    new = BertTokenizer(vocab=_numbered(BERT_SPECIAL), do_lower_case=lowercase)
    return _trained(new, lines, size, limit_alphabet=letters)


def train_byte_level_bpe(lines: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Return RoBERTa's tokenizer with a byte-level BPE vocabulary of at most `size` tokens, at least 261."""
    return _trained(RobertaTokenizer(vocab=_numbered(ROBERTA_SPECIAL), merges=[]), lines, size)


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _trained(
    tokenizer: PreTrainedTokenizerFast, lines: Iterable[str], size: int, **options: Any
) -> PreTrainedTokenizerFast:
    options |= {"min_frequency": MIN_FREQUENCY, "show_progress": False}
    return tokenizer.train_new_from_iterator(lines, size, **options)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save a tokenizer without the entries that transformers adds when a tokenizer is loaded."""
    for name in ("is_local", "local_files_only", "name_or_path"):
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(folder)
