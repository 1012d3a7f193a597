"""Texts of requests as token ids of the model that encodes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Rendered, frame
from dcpcse.serving.errors import ApiError

Inputs = Sequence[str] | Sequence[list[int]]
"""The texts of a request, all as strings or all as token ids."""


@dataclass(frozen=True, eq=False)
class PreparedText:
    """A text as the token ids with which its model encodes it, and the slots of its template if there is one."""

    model: SentenceEncoder
    ids: Sequence[int]
    rendered: Rendered | None = None

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        """A value that is equal for texts with the same vector, as long as both of them exist."""
        return id(self.model), tuple(self.ids)


PreparedTexts = tuple[list[PreparedText], int]
"""Prepared texts, and the number of those that were truncated."""


def prepare(model: SentenceEncoder, name: str, inputs: Inputs, param: str, *, truncate: bool) -> PreparedTexts:
    """Return the prepared texts of a request, in order, and the number of those that were truncated.

    name: name of the model, for messages. param: the field that contains the texts. truncate: whether to cut texts
    that are longer than the model takes. Raises ApiError if a text is too long or empty, or if a token id is unknown.
    """
    for number, item in enumerate(inputs):
        if not len(item):
            what = "text" if isinstance(item, str) else "list of token ids"
            raise ApiError(400, f"{param}: the {what} {number} is empty; give at least one token", param=param)
    if isinstance(inputs[0], str):
        return _of_strings(model, name, inputs, param, truncate)
    return _of_ids(model, name, inputs, param, truncate)


def _of_strings(model: SentenceEncoder, name: str, inputs: Any, param: str, truncate: bool) -> PreparedTexts:
    # The maximum is given, because without it each request with a long text would add a warning to the log.
    limit = model.max_tokens
    tokenized = model.tokenize(inputs, limit, ())
    if tokenized.truncated and not truncate:
        longest = (number for number, ids in enumerate(tokenized.ids) if len(ids) == limit)
        first = next(number for number in longest if model.tokenize([inputs[number]], limit, ()).truncated)
        raise _too_long(name, first, limit, param)
    slots = tokenized.slots or [None] * len(tokenized)
    texts = [PreparedText(model, ids, slot) for ids, slot in zip(tokenized.ids, slots, strict=True)]
    return texts, tokenized.truncated


def _of_ids(model: SentenceEncoder, name: str, inputs: Sequence[Any], param: str, truncate: bool) -> PreparedTexts:
    """Prepare texts given as token ids, to which special tokens and the template are added as to a string."""
    if model.text_prefix or model.final_period:
        raise ApiError(400, f"model '{name}' changes texts before it splits them into tokens; send texts", param=param)
    rows = model.encoder.backbone.get_input_embeddings().num_embeddings
    first, last = frame(model.tokenizer)
    room = model.max_tokens - (len(first) + len(last) if model.template is None else model.template.length)
    prepared, truncated = [], 0
    for number, ids in enumerate(inputs):
        if not 0 <= min(ids) <= max(ids) < rows:
            lacks = f"{param}: item {number} contains a token id that model '{name}' lacks"
            raise ApiError(400, f"{lacks}; ids are from 0 to {rows - 1}", param=param)
        content = _without_frame(ids, first, last)
        if len(content) > room:
            if not truncate:
                raise _too_long(name, number, model.max_tokens, param)
            truncated += 1
            content = content[:room] if model.tokenizer.truncation_side == "right" else content[-room:]
        if model.template is None:
            prepared.append(PreparedText(model, [*first, *content, *last]))
        else:
            rendered = model.template.wrap(content)
            prepared.append(PreparedText(model, rendered.ids, rendered))
    return prepared, truncated


def _without_frame(ids: list[int], first: Sequence[int], last: Sequence[int]) -> list[int]:
    """Return token ids without the special tokens around them, which the client's tokenizer may have added."""
    start, end = len(first), len(ids) - len(last)
    framed = start <= end and ids[:start] == [*first] and ids[end:] == [*last]
    return ids[start:end] if framed else ids


def _too_long(name: str, number: int, limit: int, param: str) -> ApiError:
    return ApiError(
        400,
        f"{param}: item {number} has more tokens than model '{name}' takes, which are {limit} with special tokens; "
        'shorten it, or send "truncate": true',
        param=param,
        code="context_length_exceeded",
    )
