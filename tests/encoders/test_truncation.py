"""`tokenize` returns what the tokenizer returns with truncation=True, without using or changing its settings."""

import copy
from itertools import product

import pytest
from tiny_encoders import SENTENCES, make_tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from dcpcse.encoders.truncation import tokenize

TEXTS = [
    *SENTENCES[:5],
    " ".join(SENTENCES),
    "",
    "  blanks \t in\u00a0front",
    "[SEP] [CLS] of [MASK] and [SEP]",
    "<s> the <mask>, </s></s>",
    "zebra fish sleeps on zebra fish",
    "Ünïcödé … 😀 ﬁ",
    "dog " * 60,
]


def unigram(single: str) -> PreTrainedTokenizerFast:
    """A tokenizer like those of SentencePiece, with special tokens as in `single`."""
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    letters = sorted({*"".join(SENTENCES)} - {" "})
    pieces = [(token, 0.0) for token in (*special, "▁")] + [(f"▁{w}", -2.0) for w in ("the", "dog", "on")]
    words = Tokenizer(models.Unigram(pieces + [(letter, -5.0) for letter in letters], unk_id=3))
    words.add_special_tokens(list(special))
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    ids = [(token, words.token_to_id(token)) for token in special]
    words.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


def changed(kind: str, change) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer(kind)
    change(tokenizer)
    return tokenizer


def _add_words(tokenizer) -> None:
    tokenizer.add_tokens(["zebra fish", AddedToken("sleeps", single_word=True, lstrip=True)])
    tokenizer.add_special_tokens({"additional_special_tokens": ["on"]}, replace_extra_special_tokens=False)


def _processor(processor):
    return lambda tokenizer: setattr(tokenizer.backend_tokenizer, "post_processor", processor)


TOKENIZERS = {
    **{kind: lambda kind=kind: make_tokenizer(kind) for kind in ("bert", "roberta", "modernbert")},
    "unigram": lambda: unigram("<s> $A </s>"),
    "only a suffix": lambda: unigram("$A </s> </s>"),
    "from the left": lambda: changed("bert", lambda own: setattr(own, "truncation_side", "left")),
    "added words": lambda: changed("bert", _add_words),
    "special tokens are text": lambda: changed("bert", lambda own: setattr(own, "split_special_tokens", True)),
    "no special tokens": lambda: changed("bert", _processor(None)),
    "BertProcessing": lambda: changed("bert", _processor(processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)))),
    "RobertaProcessing": lambda: changed("roberta", _processor(processors.RobertaProcessing(("</s>", 2), ("<s>", 0)))),
    "prefix space": lambda: changed(
        "roberta", lambda own: setattr(own.backend_tokenizer, "pre_tokenizer", pre_tokenizers.ByteLevel())
    ),
    "Python": ByT5Tokenizer,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_ids_are_those_of_the_tokenizer_at_every_length(name):
    ours, oracle, lengths = TOKENIZERS[name](), TOKENIZERS[name](), (*range(2, 9), 23, 60, 61, 62, 5000)
    for special, length in product((True, False), lengths if name != "Python" else (2, 60)):
        whole = [len(ids) for ids in oracle(TEXTS, add_special_tokens=special, verbose=False)["input_ids"]]
        expected = [oracle(t, truncation=True, max_length=length, add_special_tokens=special) for t in TEXTS]
        ids, truncated = tokenize(ours, TEXTS, length, special=special)
        assert ids == [one["input_ids"] for one in expected]
        assert truncated == sum(tokens > length for tokens in whole)


def test_settings_of_the_tokenizer_are_neither_used_nor_changed():
    tokenizer = make_tokenizer("bert")
    expected, own = tokenize(tokenizer, TEXTS, 30), tokenizer.backend_tokenizer
    own.enable_truncation(4, stride=1)
    own.enable_padding(length=50)
    own.encode_special_tokens = True
    before = own.to_str()
    assert tokenize(tokenizer, TEXTS, 30) == expected == tokenize(copy.deepcopy(tokenizer), TEXTS, 30)
    assert own.to_str() == before
    tokenizer = make_tokenizer("bert")
    tokenize(tokenizer, TEXTS, 10)
    tokenizer.add_tokens(["zebra fish"])  # a word added later is used
    assert tokenize(tokenizer, ["zebra fish"], 10)[0] == [tokenizer("zebra fish")["input_ids"]]
