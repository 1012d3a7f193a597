"""What holds for any table, template, batch and record, by examples that hypothesis draws (tests/profiles.py)."""

import contextlib
import csv
import io
import json
import math
import re

import numpy as np
import profiles  # noqa: F401 - sets how many examples are drawn
import pytest
import torch
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import AutoTokenizer

from dcpcse.data.training_data import load_training_file
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.pooling import POOLERS
from dcpcse.encoders.storage.manifest import read_record
from dcpcse.encoders.templates import (
    MASK,
    PROMPT,
    SENTENCE,
    SENTENCE_ENDS,
    Slots,
    Template,
    TokenTemplate,
    with_final_period,
)
from dcpcse.losses.functional import REDUCTIONS, masked_ce, nt_xent, replaced_token_ce, replaced_token_count
from dcpcse.utils.errors import UserError, printable
from dcpcse.utils.parsing import parse_json, parse_yaml

# Training files

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), max_size=12)
CELLS = ["NA", "null", "1.5", "[MASK]", '"', '""', ",", "\t", "a\nb", "a\r\nb", "\r", "\u2028", " x "]
CELL = TEXT | st.sampled_from(CELLS)
TABLE = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[CELL] * width), min_size=1, max_size=6))
NAMES = ("anchor", "positive", "negative")
KINDS = ("txt", "csv", "tsv", "json", "jsonl")


def cleaned(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """As docs/data.md says: newlines become blanks, outer white space goes, rows with a blank cell are left out."""
    rows = [tuple(re.sub("\r\n|\r|\n", " ", cell).strip() for cell in row) for row in rows]
    return [row for row in rows if all(row)]


def written(kind: str, rows: list[tuple[str, ...]]) -> str:
    """The table as the standard library writes it."""
    names = NAMES[: len(rows[0])]
    objects = [dict(zip(names, row, strict=True)) for row in rows]
    if kind == "json":
        return json.dumps(objects)
    if kind == "jsonl":
        return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in objects)
    if kind == "txt":
        return "".join(re.sub("\r\n|\r|\n", " ", row[0]) + "\n" for row in rows)
    file = io.StringIO(newline="")
    csv.writer(file, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n").writerows([names, *rows])
    return file.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("kind", KINDS)
@given(rows=TABLE)
def test_any_table_of_texts_is_read_back(kind, rows, place):
    path = place / f"table.{kind}"
    path.write_bytes(written(kind, rows).encode())
    rows = [row[:1] for row in rows] if kind == "txt" else rows
    kept = cleaned(rows)
    third = [row[2] for row in kept if len(row) == 3]
    assume(not third or third[0] not in ("0", "1"))  # a third column of scores
    numbers = third and all(re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?", cell) for cell in third)
    if numbers or not kept:
        message = "is a number, which is no hard negative" if numbers else re.escape(str(path))
        with pytest.raises(UserError, match=message):
            load_training_file(path, place / "cache", refresh=True)
        return
    found = load_training_file(path, place / "cache", refresh=True)
    names = NAMES[: len(rows[0])]
    assert found.dataset.column_names == list(names)
    assert list(zip(*(found.dataset[name] for name in names), strict=True)) == kept
    assert found.dropped == len(rows) - len(kept)
    again = load_training_file(path, place / "cache")
    assert again.dataset[:] == found.dataset[:]
    assert (again.columns, again.dropped, again.dropped_lines) == (found.columns, found.dropped, found.dropped_lines)


PIECES = [bytes([byte]) for byte in b'a ,\t"\n\r{}[]:1\xc3\xa9'] + [b'"a":', b"\\u0000", b"\xef\xbb\xbf", b"null"]
BYTES = st.binary(max_size=80) | st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)


@pytest.mark.parametrize("kind", KINDS)
@given(content=BYTES)
def test_any_bytes_are_a_table_of_texts_or_one_line_with_the_place(kind, content, place):
    path = place / f"bytes.{kind}"
    path.write_bytes(content)
    try:
        found = load_training_file(path, place / "cache", refresh=True).dataset
    except UserError as error:
        assert str(path) in str(error)
        assert len(str(error).split("\n")) == 1
        return
    for row in zip(*(found[name] for name in found.column_names), strict=True):
        assert all(cell and cell == cell.strip() and not set(cell) & set("\n\r\0") for cell in row)


# Records

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON)
def test_json_and_yaml_are_read_back(value):
    assert parse_json(json.dumps(value)) == value
    assume(not re.search("[\x7f-\x9f\ud800-\udfff\ufffe\uffff]", json.dumps(value, ensure_ascii=False)))
    assert parse_yaml(yaml.safe_dump(value)) == value


@given(text=st.text() | st.binary())
def test_any_text_is_json_or_a_value_error(text):
    for parse in (parse_json, parse_yaml) if isinstance(text, str) else (parse_json,):
        with contextlib.suppress(ValueError):
            parse(text)


KEYS = ["format", "method", "pooling", "head", "prompt", "position_offset", "base", "vocabulary", "prompts_file"]
KEYS += ["shallow", "template", "denoising", "backbone", "sha256"]
RECORD = JSON | st.fixed_dictionaries(dict.fromkeys(KEYS, JSON) | {"format": st.sampled_from([1, 2, 3]) | JSON})


@given(record=RECORD)
def test_any_json_as_dcpcse_json_is_a_record_or_a_user_error(record, place):
    (place / "dcpcse.json").write_text(json.dumps(record), encoding="utf-8")
    try:
        assert isinstance(read_record(place), dict)
    except UserError as error:
        assert str(place) in str(error)


@given(text=st.text())
def test_what_is_shown_commands_no_terminal_and_stays_json(text):
    shown = printable(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert printable(shown) == shown
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


# Templates

WORDS = st.text(st.characters(categories=["L", "N", "P", "Zs"], exclude_characters="{}[]*_"), max_size=10)
PART = st.lists(WORDS | st.sampled_from([MASK, PROMPT]), max_size=4).map("".join)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(request, tiny):
    return AutoTokenizer.from_pretrained(tiny(request.param))


@given(before=PART, after=PART)
def test_a_template_is_its_text(before, after):
    text = before + SENTENCE + after
    if MASK not in before + after:
        with pytest.raises(UserError, match=re.escape(MASK)):
            Template.parse(text)
        return
    template = Template.parse(text)
    assert str(template) == text
    assert Template.parse(str(template)) == template
    assert (template.masks, template.prompts) == (text.count(MASK), text.count(PROMPT))


@given(before=PART, after=PART, sentence=TEXT, room=st.integers(1, 9))
def test_a_sentence_stands_whole_between_the_parts_of_its_template(before, after, sentence, room, tokenizer):
    assume(MASK in before + after)
    template = TokenTemplate(Template.parse(before + SENTENCE + after), tokenizer)
    (content,), cut = template.contents([sentence], room)
    whole = tokenizer(template.lead + sentence.strip(), add_special_tokens=False)["input_ids"]
    assert content == whole[:room]
    assert cut == (len(whole) > room)
    rendered = template.wrap(content)
    assert rendered.ids[rendered.start : rendered.start + rendered.content] == content
    assert len(rendered.ids) == template.length + len(content)
    slots = [*rendered.masks, *rendered.prompts]
    assert len(set(slots)) == (before + after).count(MASK) + (before + after).count(PROMPT)
    assert all(rendered.ids[slot] == tokenizer.mask_token_id for slot in slots)
    inside = range(rendered.start, rendered.start + rendered.content)
    assert not set(slots) & set(inside), "a [MASK] in the sentence is no slot"


@given(sentence=TEXT)
def test_a_final_period_is_put_once(sentence):
    ended = with_final_period(sentence)
    assert with_final_period(ended) == ended
    assert ended == "" or ended.endswith(SENTENCE_ENDS)
    assert ended in (sentence.strip(), sentence.strip() + ".")


# Batches

MASKS = st.tuples(st.integers(1, 5), st.integers(1, 7)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(0, 1)).map(
        lambda mask: np.where(mask.any(1, keepdims=True), mask, 1)
    )
)


@given(mask=MASKS, data=st.data())
def test_packing_keeps_every_real_token_once_and_in_order(mask, data):
    mask = torch.from_numpy(mask)
    count, length = mask.shape
    batch = torch.arange(1, count * length * 2 + 1.0).view(count, length, 2)
    packing = Packing.of(mask)
    tokens = [batch[row, place] for row in range(count) for place in range(length) if mask[row, place]]
    packed = packing.pack(batch)
    assert torch.equal(packed[0], torch.stack(tokens))
    assert torch.equal(packing.unpack(packed, length), batch * mask.unsqueeze(-1))
    rows = packing.to_rows(packed[0])
    for row, size in enumerate(packing.sizes):
        assert size == mask[row].sum()
        assert torch.equal(rows[row, :size], batch[row][mask[row].bool()])
        assert not rows[row, size:].any()
        assert torch.equal(packed[0, packing.first[row]], batch[row][mask[row].bool()][0])
    assert torch.equal(packing.from_rows(rows), packed[0])
    at = data.draw(st.integers(1, count))
    parts = [at, count - at] if at < count else [at]
    for part, own, own_mask in zip(packing.split(parts, length), batch.split(parts), mask.split(parts), strict=True):
        alone = Packing.of(own_mask)
        assert torch.equal(part.pack(own), alone.pack(own))
        assert torch.equal(part.to_rows(part.pack(own)[0]), alone.to_rows(alone.pack(own)[0]))
        assert part.sizes == alone.sizes


NUMBERS = st.floats(-4, 4, allow_subnormal=False, width=32)


POOLED = {name: [4] for name in ("cls", "cls_before_pooler", "avg", "max", "last_token", "mask")}
POOLED |= {name: [4] for name in ("mean_sqrt_len", "weighted_mean")}
POOLED |= {"avg_top2": [4, 3], "avg_first_last": [0, 4], "avg_layer1_last": [1, 4]}
"""Of five states: the output of the embeddings, and of four layers."""


@given(mask=MASKS, data=st.data())
def test_every_pooler_is_its_loop(mask, data):
    (count, length), layers, width = mask.shape, 5, 2
    states = data.draw(arrays(np.float64, (layers, count, length, width), elements=NUMBERS))
    places = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=2))
    slots = Slots(torch.tensor([places] * count), *[torch.zeros(count)] * 3)
    for name, pooler in POOLERS.items():
        found = pooler(list(torch.from_numpy(states)), torch.from_numpy(mask), slots).numpy()
        for row in range(count):
            chosen = [states[layer][row] for layer in POOLED[name]]
            real = np.flatnonzero(mask[row])
            tokens = {"mask": places, "last_token": real[-1:]}.get(name, [0] if name.startswith("cls") else real)
            weights = {t: place if name == "weighted_mean" else 1 for place, t in enumerate(tokens, start=1)}
            total = math.sqrt(len(tokens)) if name == "mean_sqrt_len" else sum(weights[t] for t in tokens)
            total *= len(chosen)
            of_dimension = [[weights[t] * c[t, i] for c in chosen for t in tokens] for i in range(width)]
            expected = [max(values) if name == "max" else math.fsum(values) / total for values in of_dimension]
            np.testing.assert_allclose(found[row], expected, atol=1e-12)


# Losses


def rows(count, width):
    return arrays(np.float64, (count, width), elements=NUMBERS).filter(
        lambda a: (np.linalg.norm(a, axis=1) > 1e-3).all()
    )


def cosine(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


@given(data=st.data(), temperature=st.sampled_from([0.05, 0.5, 2.0]), weight=st.sampled_from([-1.0, 0.0, 0.7]))
def test_nt_xent_is_its_loop(data, temperature, weight):
    count, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    anchors = data.draw(rows(count, width))
    positives = data.draw(rows(count + data.draw(st.integers(0, 2)), width))
    negatives = data.draw(st.lists(rows(count + data.draw(st.integers(0, 2)), width), max_size=2))
    others = data.draw(st.lists(rows(2, width), max_size=2))
    total = 0.0
    for i, anchor in enumerate(anchors):
        logits = [cosine(anchor, one) / temperature for one in positives]
        for j, one in (numbered for hard in negatives for numbered in enumerate(hard)):
            logits.append(cosine(anchor, one) / temperature + (weight if i == j else 0))
        logits += [cosine(anchor, one) / temperature for other in others for one in other]
        highest = max(logits)
        total += highest + math.log(math.fsum(math.exp(one - highest) for one in logits)) - logits[i]
    anchors, positives, *more = map(torch.from_numpy, (anchors, positives, *negatives, *others))
    negatives, others = more[: len(negatives)], more[len(negatives) :]
    options = {"negatives": negatives, "hard_negative_weight": weight, "others": others}
    found = nt_xent(anchors, positives, temperature, **options)
    assert found.item() == pytest.approx(total / count, abs=1e-9)


def log_share(logits, label):
    highest = max(logits)
    return logits[label] - highest - math.log(math.fsum(math.exp(one - highest) for one in logits))


@given(data=st.data())
def test_masked_ce_is_its_loop(data):
    count, words = data.draw(st.integers(0, 5)), data.draw(st.integers(2, 4))
    logits = data.draw(arrays(np.float64, (count, words), elements=NUMBERS))
    labels = data.draw(arrays(np.int64, count, elements=st.integers(0, words - 1)))
    expected = -math.fsum(map(log_share, logits.tolist(), labels.tolist())) / max(count, 1)
    assert masked_ce(torch.from_numpy(logits), torch.from_numpy(labels)).item() == pytest.approx(expected, abs=1e-9)


@given(mask=MASKS, data=st.data(), sentences=st.integers(1, 3))
def test_replaced_token_ce_is_its_loop(mask, data, sentences):
    logits = data.draw(arrays(np.float64, (*mask.shape, 2), elements=NUMBERS))
    replaced = data.draw(arrays(np.bool_, mask.shape))
    costs = {at: -log_share(logits[at].tolist(), int(replaced[at])) for at in np.ndindex(mask.shape)}
    tokens = [key for key in costs if key[1] > 0 and mask[key]]
    expected = {
        "sum": math.fsum(costs[key] for key in tokens) / sentences,
        "mean_tokens": math.fsum(costs[key] for key in tokens) / max(len(tokens), 1),
        "mean_all": math.fsum(costs.values()) / len(costs),
    }
    counts = {"sum": sentences, "mean_tokens": len(tokens), "mean_all": len(costs)}
    given_mask, before = torch.from_numpy(mask), mask.copy()
    for reduction in REDUCTIONS:
        arguments = (torch.from_numpy(logits), torch.from_numpy(replaced), given_mask, reduction, sentences)
        assert replaced_token_ce(*arguments).item() == pytest.approx(expected[reduction], abs=1e-9)
        assert int(replaced_token_count(given_mask, reduction, sentences)) == counts[reduction]
    assert np.array_equal(given_mask.numpy(), before), "the mask is the caller's"
