"""Generate templates with T5 from words and their definitions (PromptBERT, section 4.2; Gao et al., 2021).

A good template has a [MASK] that a word with the meaning of the sentence can fill. Therefore a definition stands for
the sentence, and the defined word stands for the [MASK]. T5 fills the two gaps around the word, which have one of two
forms: `<X> word <Y> definition` and `definition <X> word <Y>`. One beam search over the sum of the log-probabilities
of all examples finds the gap texts that fit all examples.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dcpcse.encoders.safe_loading import NO_CODE
from dcpcse.encoders.templates import MASK, SENTENCE, Template
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.parsing import read_text

SENTINELS = ("<extra_id_0>", "<extra_id_1>", "<extra_id_2>")
MAX_GAP_TOKENS = 20
"""Maximum number of tokens of both gaps together, including sentinels."""


@dataclass(frozen=True)
class Example:
    """A word and its definition."""

    word: str
    definition: str


def read_definitions(path: str | Path) -> list[Example]:
    """Read a file with lines of the form word<TAB>definition. Raises UserError if a line has another form."""
    try:
        # str.splitlines would also split at U+2028 and other characters inside a definition.
        text = read_text(path)
        lines = text.removesuffix("\n").split("\n") if text else []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the definitions {path}: {error}") from error
    examples = []
    for number, line in enumerate(lines, start=1):
        word, tab, definition = line.partition("\t")
        if not (tab and word.strip() and definition.strip()):
            raise UserError(f"{path}, line {number}: expected word<TAB>definition but found {line[:60]!r}")
        examples.append(Example(word.strip(), definition.strip()))
    if not examples:
        raise UserError(f"{path} is empty; write one word<TAB>definition per line")
    return examples


def load_t5(name_or_path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a T5 model and its tokenizer. Raises UserError if the vocabulary has no sentinel tokens."""
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(
            name_or_path, dtype=torch.float32, use_safetensors=True, **NO_CODE
        ).eval()
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, **NO_CODE)
    except (OSError, ValueError) as error:
        raise UserError(f"--t5 {name_or_path} cannot be loaded ({first_line(error)}); give a T5 model") from error
    if any(tokenizer.convert_tokens_to_ids(gap) == tokenizer.unk_token_id for gap in SENTINELS):
        raise UserError(f"--t5 {name_or_path} has no token {SENTINELS[0]} in its vocabulary; choose a T5 model")
    return model, tokenizer


def generate_templates(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], count: int
) -> list[Template]:
    """Return the `count` best templates that T5 generates, with [MASK] before or after the sentence, best first."""
    scores: dict[Template, float] = {}
    for texts, build in _forms(examples):
        for score, first, second in fill_gaps(model, tokenizer, texts, beams=count):
            template = build(first, second)
            scores[template] = max(score, scores.get(template, score))
    return sorted(scores, key=lambda template: -scores[template])[:count]


def _forms(examples: Sequence[Example]) -> Iterator[tuple[list[str], Callable[[str, str], Template]]]:
    def word_first(first: str, second: str) -> Template:
        return Template.parse(_spaced(first, f"{MASK}{second}", SENTENCE))

    def word_last(first: str, second: str) -> Template:
        return Template.parse(_spaced(SENTENCE, first, f"{MASK}{second}"))

    yield [f"{SENTINELS[0]} {example.word} {SENTINELS[1]} {example.definition}" for example in examples], word_first
    yield [f"{example.definition} {SENTINELS[0]} {example.word} {SENTINELS[1]}" for example in examples], word_last


def _spaced(*parts: str) -> str:
    return " ".join(part for part in parts if part)


@torch.inference_mode()
def fill_gaps(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], beams: int
) -> list[tuple[float, str, str]]:
    """Fill both gaps of all texts with the same tokens, by beam search.

    Returns up to `beams` fillings, best first. A filling is (sum of log-probabilities, text of the first gap, text of
    the second gap).

    Args:
        texts: Texts with a sentinel token of T5 in each of the two gaps.
        beams: Number of beams.
    """
    marks = tokenizer.convert_tokens_to_ids(list(SENTINELS))
    special = torch.tensor(sorted({*tokenizer.all_special_ids, *tokenizer.convert_tokens_to_ids(SENTINELS)}))
    batch = tokenizer(list(texts), padding=True, return_tensors="pt").to(model.device)
    memory = model.get_encoder()(**batch)
    going = [(0.0, [model.config.decoder_start_token_id, marks[0]])]
    finished: list[tuple[float, list[int]]] = []
    for _ in range(MAX_GAP_TOKENS):
        grown = []
        for score, ids in going:
            steps = _next(model, batch["attention_mask"], memory, ids)
            # A gap is filled with ordinary tokens; the only sentinel allowed is the one that closes the gap.
            close = marks[2] if marks[1] in ids else marks[1]
            closing = steps[close].item()
            steps[special] = -torch.inf
            steps[close] = closing
            values, tokens = steps.topk(min(2 * beams, int(steps.isfinite().sum())))
            candidates = zip(values.tolist(), tokens.tolist(), strict=True)
            grown += [(score + value, [*ids, token]) for value, token in candidates]
        going = []
        for score, ids in sorted(grown, key=lambda item: -item[0]):
            if ids[-1] == marks[2]:
                finished.append((score, ids))
            elif len(going) < beams:
                going.append((score, ids))
        if len(finished) >= beams or not going:
            break
    best = sorted(finished, key=lambda item: -item[0])[:beams]
    return [(score, *_gaps(tokenizer, ids, marks)) for score, ids in best]


def _next(model: PreTrainedModel, mask: Tensor, memory: Tensor, ids: list[int]) -> Tensor:
    """Return the log-probability (V,) of each next token, summed over all texts."""
    decoder = torch.tensor([ids], device=mask.device).expand(len(mask), -1)
    logits = model(encoder_outputs=memory, attention_mask=mask, decoder_input_ids=decoder).logits[:, -1]
    return logits.double().log_softmax(-1).sum(0)


def _gaps(tokenizer: PreTrainedTokenizerBase, ids: list[int], marks: list[int]) -> tuple[str, str]:
    middle = ids.index(marks[1])
    parts = ids[2:middle], ids[middle + 1 : -1]
    return tuple(tokenizer.decode(part, skip_special_tokens=True).strip() for part in parts)
