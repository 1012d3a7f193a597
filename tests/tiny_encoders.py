"""Tiny encoders and tokenizers, built in memory from a few sentences."""

import string
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedTokenizerFast

from dcpcse.pretraining.vocabulary import BERT_SPECIAL, ROBERTA_SPECIAL, ROLES

SENTENCES = [
    "A man is playing a large flute.",
    "A man is playing a flute in the garden while the children listen to him.",
    "Three dogs run over the wet grass.",
    "The committee postponed its decision until the spring.",
    "Rain fell.",
    "She bought two tickets for the evening train to the coast.",
    "The old bridge was closed after the storm had damaged its pillars.",
    "Nobody in the village knew where the key had gone.",
    "A woman slices an onion on a wooden board.",
    "Prices rose by three percent last year, the bank reported.",
    "The cat sleeps on the warm stone.",
    "He repaired the radio with a spoon and some wire.",
]

SIZE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
CONFIGS = {
    "bert": {"max_position_embeddings": 96},
    "roberta": {"max_position_embeddings": 98, "pad_token_id": 1, "type_vocab_size": 1},
    "xlm-roberta": {"max_position_embeddings": 98, "pad_token_id": 1, "type_vocab_size": 1},
    "electra": {"max_position_embeddings": 96, "embedding_size": 16},
    "modernbert": {
        "max_position_embeddings": 96,
        "local_attention": 8,
        "global_attn_every_n_layers": 3,
        **dict.fromkeys(("cls_token_id", "bos_token_id"), 2),
        **dict.fromkeys(("sep_token_id", "eos_token_id"), 3),
    },
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 96},
    "albert": {"max_position_embeddings": 96, "embedding_size": 16},
    "deberta-v2": {"max_position_embeddings": 96, "relative_attention": True, "pos_att_type": "p2c|c2p"},
    "deberta": {"max_position_embeddings": 96, "relative_attention": True, "pos_att_type": "p2c|c2p"},
    "mpnet": {"max_position_embeddings": 98, "pad_token_id": 1},
}
# Fewer heads for keys than for queries, of another size than hidden_size / num_attention_heads.
DECODER = {"max_position_embeddings": 96, "num_key_value_heads": 2, "head_dim": 12}
CONFIGS |= {
    **dict.fromkeys(("qwen3", "qwen2", "llama", "mistral", "gemma"), DECODER),
    # A window shorter than the texts, in layers 0 and 2 of 3.
    "gemma3_text": {**DECODER, "sliding_window": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 12},
}
FRAMES = {
    **dict.fromkeys(("qwen3", "qwen2"), "$A <|endoftext|>"),  # as Qwen3-Embedding, whose padding is the same token
    **dict.fromkeys(("llama", "mistral"), "<s> $A"),
    **dict.fromkeys(("gemma", "gemma3_text"), "<s> $A </s>"),
}
"""For each type of decoders, a text with its special tokens."""


def make_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """WordPiece, or byte-level BPE, of `SENTENCES`; special tokens and their ids as in the real ones."""
    if kind in FRAMES:
        return _decoder_tokenizer(FRAMES[kind])
    roberta = "roberta" in kind or kind == "mpnet"
    special = ROBERTA_SPECIAL if roberta else BERT_SPECIAL
    names = dict(zip(ROLES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>") if roberta else BERT_SPECIAL, strict=True))
    tokenizer = _byte_level_bpe(special) if roberta or kind == "modernbert" else _word_piece(special)
    cls, sep = names["cls_token"], names["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(t, tokenizer.token_to_id(t)) for t in (cls, sep)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _decoder_tokenizer(frame: str) -> PreTrainedTokenizerFast:
    """Texts are padded on the left, as generation needs it."""
    tokenizer = _byte_level_bpe(("<pad>", "<s>", "</s>", "<unk>", "<|endoftext|>"))
    special = [(token, tokenizer.token_to_id(token)) for token in frame.replace("$A", "").split()]
    tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=special)
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    if "<s>" not in frame:
        names |= dict.fromkeys(("eos_token", "pad_token"), "<|endoftext|>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **names)


def _byte_level_bpe(special: tuple[str, ...]) -> Tokenizer:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges = _learn_merges([word for s in SENTENCES for word, _ in split.pre_tokenize_str(s)], 140)
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # As in the real one, <mask> takes the blank before it.
    tokenizer.add_special_tokens([AddedToken(t, lstrip=True, special=True) if t == "<mask>" else t for t in special])
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _learn_merges(words: list[str], count: int) -> list[tuple[str, str]]:
    """Byte-pair merges, ties broken by name: the library's trainer breaks them differently in every process."""
    pieces, merges = [list(word) for word in words], []
    while len(merges) < count:
        pairs = Counter(pair for word in pieces for pair in pairwise(word))
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        pieces = [_merge(word, best) for word in pieces]
    return merges


def _merge(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in word:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def _word_piece(special: tuple[str, ...]) -> Tokenizer:
    normalizer, split = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = {word for s in SENTENCES for word, _ in split.pre_tokenize_str(normalizer.normalize_str(s))}
    letters = sorted({*"".join(words), *string.ascii_lowercase, *string.digits})
    tokens = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *sorted(words)])
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token=special[1]))
    tokenizer.add_special_tokens(list(special))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, split
    return tokenizer


def make_encoder(folder: Path, kind: str, *, masked_lm: bool = True, seed: int = 0, **changes) -> Path:
    """A Hugging Face folder with a random tiny encoder: with its LM head, or with its pooler if it has one."""
    tokenizer = make_tokenizer(kind)
    size = {} if kind == "distilbert" else SIZE
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    settings = {**ids, **size, **CONFIGS[kind], **changes}
    config = AutoConfig.for_model(kind, **settings)
    torch.manual_seed(seed)
    has_head = masked_lm and kind not in FRAMES
    model = (AutoModelForMaskedLM if has_head else AutoModel).from_config(config)
    with torch.no_grad():  # livelier than N(0, 0.02): differences between paths become visible
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "position" not in name:
                parameter.mul_(4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
