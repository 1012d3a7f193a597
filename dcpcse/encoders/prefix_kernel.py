"""Attention over packed texts with deep prompts: Triton kernels for the forward pass and for the backward pass.

The kernels read queries, keys and values (T, heads, head_dim) from the outputs of the linear layers, and the prompts
of a layer from the trained table. Tensors are read with their strides. Nothing is transposed, padded, or copied for
each text. The kernels compute dropout of prompts and of attention weights from Philox counters (Salmon et al., 2011),
so the backward pass computes the same masks again. Only one program writes each number, in a fixed order. Repeated
runs therefore give the same bits.

Triton's interpreter computes bfloat16 wrongly. In the interpreter, bfloat16 tensors are passed as float32, and the
kernels round where they would convert to bfloat16 (`EMULATE`).
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from dcpcse.encoders.attention import Prefix, TablePrefix
from dcpcse.encoders.layer_kernels import start
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.philox import ROUNDS, cut

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

MAX_PROMPTS = 128
"""Maximum number of prompts of a text, since the kernels read all prompts as one block."""

MAX_PROMPT_SIZE = 8192
"""Maximum of the number of prompts times the head dimension. Up to this size, the backward pass needs less than the 99
KB of shared memory that every GPU has."""

HEAD_DIMS = (16, 32, 64, 128)

DTYPES = (torch.bfloat16, torch.float16, *([torch.float32] if INTERPRETED else []))
"""The dtypes for which encoders use the kernels. In float32, matrix products without matrix units are slow."""


@dataclass(frozen=True)
class Launch:
    """The settings with which a kernel is launched. They change the speed, and the results only by rounding.

    Args:
        block: Number of tokens in a block of queries or keys.
        texts: Number of texts that one program computes, one after another.
        registers: Maximum number of registers of a thread.
    """

    block: int
    texts: int
    warps: int
    stages: int = 1
    registers: int | None = None


Prompts = tuple[Tensor, Tensor]
"""Keys and values of the prompts of a layer, each (P, heads, head_dim)."""


@dataclass
class Settings:
    """Settings of the attention over N texts in a forward pass, which all layers with the same window share.

    Args:
        starts: (N + 1,) int32, the index of the first token of each text, then the number T of all tokens.
        longest: Number of tokens of the longest text, or any larger number.
        scale: Factor of the scores.
        window: Two tokens attend to each other only if their distance is below this number. None: no window.
        dropout, prompt_dropout: Dropout rates: of attention weights, and of the keys and values of the prompts.
        seed, prompt_seed: (1,) int64, the seeds of Philox for these two kinds of dropout. Required if the rate is not
            0.
        first_prompts, prompt_counts: (N,) int32, the index of each text's first prompt in the table, and the number of
            the text's prompts, at most `most_prompts`. None if every text has all prompts.
        forward, backward: Launch settings of the two kernels. None: chosen by the sizes.
    """

    starts: Tensor
    longest: int
    scale: float
    window: int | None = None
    dropout: float = 0.0
    prompt_dropout: float = 0.0
    seed: Tensor | None = None
    prompt_seed: Tensor | None = None
    first_prompts: Tensor | None = None
    prompt_counts: Tensor | None = None
    most_prompts: int | None = None
    forward: Launch | None = None
    backward: Launch | None = None
    _launches: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def launch(self, query: Tensor, keys: Tensor | None, backward: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Return the grid and the keyword arguments of a kernel, computed once for all layers of the forward pass.

        Args:
            query: Queries (T, heads, head_dim).
            keys: Keys of the prompts, (P, heads, head_dim).
            backward: Whether the kernel of the backward pass is launched.
        """
        prompts = 0 if keys is None else self.most_prompts or len(keys)
        case = (backward, query.dtype, query.shape[1:], prompts)
        if case not in self._launches:
            self._launches[case] = _launch(self, query, prompts, backward)
        return self._launches[case]

    def prompt_parts(self, query: Tensor, keys: Tensor) -> int:
        """Return the number of parts of the prompts' gradient: the first dimension of `parts` in `run_backward`."""
        _, groups, blocks = self.launch(query, keys, backward=True)[0]
        return groups * blocks


@triton.jit
def _round(x, COMPUTE: tl.constexpr, EMULATE: tl.constexpr):
    """Convert a block to the dtype of the matrix products.

    Args:
        EMULATE: Whether to round to the nearest bfloat16 but return float32.
    """
    if EMULATE:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return bits.to(tl.float32, bitcast=True)
    return x.to(COMPUTE)


@triton.jit
def _philox(seed, row, column, text, stream, ROUNDS: tl.constexpr):
    """Return four blocks of random numbers of 32 bits. `tl.philox` needs twice as many multiplications."""
    c0 = column.to(tl.uint32)
    c1 = row.to(tl.uint32)
    c2 = (column * 0 + text).to(tl.uint32)
    c3 = (column * 0 + stream).to(tl.uint32)
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        first = c0.to(tl.uint64) * 0xD2511F53
        second = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (second >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = second.to(tl.uint32)
        c2 = (first >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = first.to(tl.uint32)
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def _kept_prompts(seed, layer_head, kind: tl.constexpr, text, rows, cut, COLUMNS: tl.constexpr, ROUNDS: tl.constexpr):
    """Return the mask of the elements of the prompts in `rows` that dropout keeps.

    Each counter gives the numbers for four neighbours in a row, which one thread loads.

    Args:
        cut: Dropout rate times 2^24.
    """
    quads = tl.arange(0, COLUMNS // 4)
    c0 = quads[None, :] + rows[:, None] * 0
    c1 = rows[:, None] + quads[None, :] * 0
    r0, r1, r2, r3 = _philox(seed, c1, c0, text, layer_head * 4 + kind, ROUNDS)
    four = tl.join(tl.join(r0, r2), tl.join(r1, r3))
    return tl.reshape(four, (rows.shape[0], COLUMNS)) >= (cut.to(tl.uint32) << 8)


@triton.jit
def _kept_weights(
    seed, layer_head, kind: tl.constexpr, text, row, column, cut,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Return the mask (ROWS, COLUMNS) of the attention weights that dropout keeps, starting at `row` and `column`.

    `row` and `column` are multiples of 16. Each counter gives the numbers for columns 2c and 2c + 1 of rows r and r +
    8. Matrix units give these four elements to one thread.
    """
    c0 = (column // 2 + tl.arange(0, COLUMNS // 2))[None, :] + tl.zeros((ROWS // 2, 1), tl.int32)
    c1 = (row // 2 + tl.arange(0, ROWS // 2))[:, None] + tl.zeros((1, COLUMNS // 2), tl.int32)
    r0, r1, r2, r3 = _philox(seed, c1, c0, text, layer_head * 4 + kind, ROUNDS)
    four = tl.join(tl.join(r0, r1), tl.join(r2, r3))  # (row, column, 2 columns, 2 rows)
    four = tl.permute(tl.reshape(four, (ROWS // 16, 8, COLUMNS // 2, 2, 2)), (0, 4, 1, 2, 3))
    return tl.reshape(four, (ROWS, COLUMNS)) >= (cut.to(tl.uint32) << 8)


@triton.jit
def _tokens(pointer, start, head, stride_t, stride_h, rows, length, D: tl.constexpr):
    """Return the rows of a text in one head, with zeros after the end of the text."""
    columns = tl.arange(0, D)
    address = pointer + start * stride_t + head * stride_h + rows[:, None] * stride_t + columns[None, :]
    return tl.load(address, mask=rows[:, None] < length, other=0.0)


@triton.jit
def _store(pointer, start, head, stride_t, stride_h, rows, length, values, D: tl.constexpr):
    """Write the rows of a text in one head."""
    columns = tl.arange(0, D)
    address = pointer + start * stride_t + head * stride_h + rows[:, None] * stride_t + columns[None, :]
    tl.store(address, values.to(pointer.dtype.element_ty), mask=rows[:, None] < length)


@triton.jit
def _prompts(pointer, stride_p, stride_h, head, first, rows, count, D: tl.constexpr):
    """Return the prompts of a text in one head in float32, with zeros after the last prompt."""
    columns = tl.arange(0, D)
    address = pointer + head * stride_h + (first + rows[:, None]) * stride_p + columns[None, :]
    return tl.load(address, mask=rows[:, None] < count, other=0.0).to(tl.float32)


@triton.jit
def _visible(queries, keys, length, window, WINDOW: tl.constexpr):
    """Return a mask that is true where a query (row) attends to a key (column) of the same text."""
    visible = (keys < length)[None, :] & (queries >= 0)[:, None]
    if WINDOW:
        distance = queries[:, None] - keys[None, :]
        visible = visible & (distance < window) & (distance > -window)
    return visible


@triton.jit
def _online(
    q, k, v, top, total, acc, visible, kept, scale,
    DROPOUT: tl.constexpr, COMPUTE: tl.constexpr, EMULATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add a block of keys to the running softmax of a block of queries (Milakov & Gimelshein, 2018)."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    s = tl.where(visible, s, -float("inf"))
    higher = tl.maximum(top, tl.max(s, 1))
    p = tl.exp2(s - higher[:, None])
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(p, 1)
    if DROPOUT:
        p = tl.where(kept, p, 0.0)
    acc = acc * shrink[:, None] + tl.dot(_round(p, COMPUTE, EMULATE), v, input_precision=PRECISION)
    return higher, total, acc


# These numbers change between batches or layers; the kernels must not be compiled again for new values.
VARYING = ("texts", "tokens", "layer", "window", "cut", "prompt_cut")


@triton.jit(do_not_specialize=VARYING)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, kp_ptr, vp_ptr, out_ptr, lse_ptr, starts_ptr, seed_ptr, prompt_seed_ptr, first_ptr, count_ptr,
    texts, tokens, heads,
    q_t, q_h, k_t, k_h, v_t, v_h, kp_p, kp_h, vp_p, vp_h,
    layer, window, cut, prompt_cut, scale, inverse, prompt_inverse,
    P: tl.constexpr, BLOCK_P: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TEXTS: tl.constexpr,
    ONE_BLOCK: tl.constexpr, INDEXED: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr,
    PROMPT_DROPOUT: tl.constexpr, COMPUTE: tl.constexpr, EMULATE: tl.constexpr, PRECISION: tl.constexpr,
    ROUNDS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    block_start = tl.program_id(2) * BLOCK
    rows = block_start + tl.arange(0, BLOCK)
    layer_head = layer * heads + head
    seed = 0
    prompt_seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr)
    if PROMPT_DROPOUT:
        prompt_seed = tl.load(prompt_seed_ptr)
    if P > 0:
        prompt_rows = tl.arange(0, BLOCK_P)
    for text in range(tl.program_id(1) * TEXTS, tl.minimum(tl.program_id(1) * TEXTS + TEXTS, texts)):
        start = tl.load(starts_ptr + text).to(tl.int64)
        length = (tl.load(starts_ptr + text + 1) - start).to(tl.int32)
        q = _tokens(q_ptr, start, head, q_t, q_h, rows, length, D)
        top = tl.full((BLOCK,), -1e30, tl.float32)  # not -inf: the difference of two of these is NaN
        total = tl.zeros((BLOCK,), tl.float32)
        acc = tl.zeros((BLOCK, D), tl.float32)
        if P > 0:
            first = 0
            count = P
            if INDEXED:
                first = tl.load(first_ptr + text)
                count = tl.load(count_ptr + text)
            keys = _prompts(kp_ptr, kp_p, kp_h, head, first, prompt_rows, count, D)
            values = _prompts(vp_ptr, vp_p, vp_h, head, first, prompt_rows, count, D)
            if PROMPT_DROPOUT:
                kept_k = _kept_prompts(prompt_seed, layer_head, 2, text, prompt_rows, prompt_cut, D, ROUNDS)
                keys = tl.where(kept_k, keys * prompt_inverse, 0.0)
                kept_v = _kept_prompts(prompt_seed, layer_head, 3, text, prompt_rows, prompt_cut, D, ROUNDS)
                values = tl.where(kept_v, values * prompt_inverse, 0.0)
            keys = _round(keys, COMPUTE, EMULATE)
            values = _round(values, COMPUTE, EMULATE)
            visible_p = (prompt_rows < count)[None, :] & (rows >= 0)[:, None]
            kept_p = visible_p
            if DROPOUT:
                kept_p = _kept_weights(seed, layer_head, 1, text, block_start, 0, cut, BLOCK, BLOCK_P, ROUNDS)
            top, total, acc = _online(
                q, keys, values, top, total, acc, visible_p, kept_p, scale,
                DROPOUT, COMPUTE, EMULATE, PRECISION,
            )  # fmt: skip
        low = 0
        high = tl.where(block_start < length, length, 0)  # no keys for a block after the end of the text
        if ONE_BLOCK:
            high = BLOCK
        if WINDOW:
            low = tl.maximum(block_start - window + 1, 0) // BLOCK * BLOCK
            high = tl.minimum(high, block_start + BLOCK + window - 1)
        for begin in range(low, high, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            k = _tokens(k_ptr, start, head, k_t, k_h, columns, length, D)
            v = _tokens(v_ptr, start, head, v_t, v_h, columns, length, D)
            visible = _visible(rows, columns, length, window, WINDOW)
            kept = visible
            if DROPOUT:
                kept = _kept_weights(seed, layer_head, 0, text, block_start, begin, cut, BLOCK, BLOCK, ROUNDS)
            top, total, acc = _online(
                q, k, v, top, total, acc, visible, kept, scale, DROPOUT, COMPUTE, EMULATE, PRECISION
            )
        total = tl.where(rows < length, total, 1.0)
        # The kept elements are scaled here instead of in every weight.
        _store(out_ptr, start, head, heads * D, D, rows, length, acc * (inverse / total)[:, None], D)
        tl.store(lse_ptr + head * tokens + start + rows, top + tl.log2(total), mask=rows < length)


@triton.jit
def _pair(q, do, lse, delta, k, v, visible, kept, scale, inverse, DROPOUT: tl.constexpr, PRECISION: tl.constexpr):
    """Return the attention weights after dropout, before scaling, and the gradient of the scores: (queries, keys)."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    p = tl.where(visible, tl.exp2(s - lse[:, None]), 0.0)
    dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
    dropped = p
    if DROPOUT:
        dropped = tl.where(kept, p, 0.0)
        dp = tl.where(kept, dp, 0.0)
    return dropped, p * (dp * inverse - delta[:, None])


@triton.jit(do_not_specialize=VARYING)
def _backward_kernel(
    q_ptr, k_ptr, v_ptr, kp_ptr, vp_ptr, out_ptr, do_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, dp_ptr,
    starts_ptr, seed_ptr, prompt_seed_ptr, first_ptr, count_ptr,
    texts, tokens, heads,
    q_t, q_h, k_t, k_h, v_t, v_h, kp_p, kp_h, vp_p, vp_h, do_t, do_h, g_t, g_h, dp_n, dp_p, dp_2, dp_h,
    layer, window, cut, prompt_cut, scale, natural, inverse, prompt_inverse,
    P: tl.constexpr, BLOCK_P: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TEXTS: tl.constexpr,
    ONE_BLOCK: tl.constexpr, INDEXED: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr,
    PROMPT_DROPOUT: tl.constexpr, PROMPT_GRAD: tl.constexpr, COMPUTE: tl.constexpr, EMULATE: tl.constexpr,
    PRECISION: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    block_start = tl.program_id(2) * BLOCK
    rows = block_start + tl.arange(0, BLOCK)
    layer_head = layer * heads + head
    seed = 0
    prompt_seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr)
    if PROMPT_DROPOUT:
        prompt_seed = tl.load(prompt_seed_ptr)
    if P > 0:
        prompt_rows = tl.arange(0, BLOCK_P)
        if PROMPT_GRAD:
            sum_k = tl.zeros((BLOCK_P, D), tl.float32)
            sum_v = tl.zeros((BLOCK_P, D), tl.float32)
    for text in range(tl.program_id(1) * TEXTS, tl.minimum(tl.program_id(1) * TEXTS + TEXTS, texts)):
        start = tl.load(starts_ptr + text).to(tl.int64)
        length = (tl.load(starts_ptr + text + 1) - start).to(tl.int32)
        q = _tokens(q_ptr, start, head, q_t, q_h, rows, length, D)
        do = _tokens(do_ptr, start, head, do_t, do_h, rows, length, D)
        out = _tokens(out_ptr, start, head, heads * D, D, rows, length, D)
        delta = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
        # The weights of queries after the end of the text are 0, since their sum is infinite.
        lse = tl.load(lse_ptr + head * tokens + start + rows, mask=rows < length, other=float("inf"))
        dq = tl.zeros((BLOCK, D), tl.float32)
        if P > 0:
            first = 0
            count = P
            if INDEXED:
                first = tl.load(first_ptr + text)
                count = tl.load(count_ptr + text)
            keys = _prompts(kp_ptr, kp_p, kp_h, head, first, prompt_rows, count, D)
            values = _prompts(vp_ptr, vp_p, vp_h, head, first, prompt_rows, count, D)
            kept_k = keys > 0
            kept_v = values > 0
            if PROMPT_DROPOUT:
                kept_k = _kept_prompts(prompt_seed, layer_head, 2, text, prompt_rows, prompt_cut, D, ROUNDS)
                keys = tl.where(kept_k, keys * prompt_inverse, 0.0)
                kept_v = _kept_prompts(prompt_seed, layer_head, 3, text, prompt_rows, prompt_cut, D, ROUNDS)
                values = tl.where(kept_v, values * prompt_inverse, 0.0)
            keys = _round(keys, COMPUTE, EMULATE)
            values = _round(values, COMPUTE, EMULATE)
            visible_p = (prompt_rows < count)[None, :] & (rows >= 0)[:, None]
            kept_p = visible_p
            if DROPOUT:
                kept_p = _kept_weights(seed, layer_head, 1, text, block_start, 0, cut, BLOCK, BLOCK_P, ROUNDS)
            p_p, ds_p = _pair(q, do, lse, delta, keys, values, visible_p, kept_p, scale, inverse, DROPOUT, PRECISION)
            p_p = _round(p_p, COMPUTE, EMULATE)
            ds_p = _round(ds_p, COMPUTE, EMULATE)
            dq = tl.dot(ds_p, keys, input_precision=PRECISION)
            if PROMPT_GRAD:
                gk = tl.dot(tl.trans(ds_p), q, input_precision=PRECISION)
                if PROMPT_DROPOUT:
                    gk = tl.where(kept_k, gk, 0.0)
                sum_k += gk
                gv = tl.dot(tl.trans(p_p), do, input_precision=PRECISION)
                if PROMPT_DROPOUT:
                    gv = tl.where(kept_v, gv, 0.0)
                sum_v += gv
        k = _tokens(k_ptr, start, head, k_t, k_h, rows, length, D)
        v = _tokens(v_ptr, start, head, v_t, v_h, rows, length, D)
        # The block of keys with the same indices as the queries.
        visible = _visible(rows, rows, length, window, WINDOW)
        kept = visible
        if DROPOUT:
            kept = _kept_weights(seed, layer_head, 0, text, block_start, block_start, cut, BLOCK, BLOCK, ROUNDS)
        p, ds = _pair(q, do, lse, delta, k, v, visible, kept, scale, inverse, DROPOUT, PRECISION)
        p = _round(p, COMPUTE, EMULATE)
        ds = _round(ds, COMPUTE, EMULATE)
        dv = tl.dot(tl.trans(p), do, input_precision=PRECISION)
        if ONE_BLOCK:
            _store(dv_ptr, start, head, g_t, g_h, rows, length, dv * inverse, D)
        dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
        if ONE_BLOCK:
            _store(dk_ptr, start, head, g_t, g_h, rows, length, dk * natural, D)
        dq += tl.dot(ds, k, input_precision=PRECISION)
        if not ONE_BLOCK:
            low = 0
            high = tl.where(block_start < length, length, 0)  # none for a block after the end of the text
            if WINDOW:
                low = tl.maximum(block_start - window + 1, 0) // BLOCK * BLOCK
                high = tl.minimum(high, block_start + BLOCK + window - 1)
            for begin in range(low, high, BLOCK):
                if begin != block_start:
                    others = begin + tl.arange(0, BLOCK)
                    # These queries and the keys of another block.
                    k2 = _tokens(k_ptr, start, head, k_t, k_h, others, length, D)
                    v2 = _tokens(v_ptr, start, head, v_t, v_h, others, length, D)
                    visible = _visible(rows, others, length, window, WINDOW)
                    kept = visible
                    if DROPOUT:
                        kept = _kept_weights(seed, layer_head, 0, text, block_start, begin, cut, BLOCK, BLOCK, ROUNDS)
                    _, ds2 = _pair(q, do, lse, delta, k2, v2, visible, kept, scale, inverse, DROPOUT, PRECISION)
                    dq += tl.dot(_round(ds2, COMPUTE, EMULATE), k2, input_precision=PRECISION)
            for begin in range(low, high, BLOCK):
                if begin != block_start:
                    others = begin + tl.arange(0, BLOCK)
                    # These keys and the queries of another block.
                    q2 = _tokens(q_ptr, start, head, q_t, q_h, others, length, D)
                    do2 = _tokens(do_ptr, start, head, do_t, do_h, others, length, D)
                    out2 = _tokens(out_ptr, start, head, heads * D, D, others, length, D)
                    delta2 = tl.sum(do2.to(tl.float32) * out2.to(tl.float32), 1)
                    lse2 = tl.load(lse_ptr + head * tokens + start + others, mask=others < length, other=float("inf"))
                    visible = _visible(others, rows, length, window, WINDOW)
                    kept = visible
                    if DROPOUT:
                        kept = _kept_weights(seed, layer_head, 0, text, begin, block_start, cut, BLOCK, BLOCK, ROUNDS)
                    p2, ds2 = _pair(q2, do2, lse2, delta2, k, v, visible, kept, scale, inverse, DROPOUT, PRECISION)
                    dk += tl.dot(tl.trans(_round(ds2, COMPUTE, EMULATE)), q2, input_precision=PRECISION)
                    dv += tl.dot(tl.trans(_round(p2, COMPUTE, EMULATE)), do2, input_precision=PRECISION)
            _store(dk_ptr, start, head, g_t, g_h, rows, length, dk * natural, D)
            _store(dv_ptr, start, head, g_t, g_h, rows, length, dv * inverse, D)
        _store(dq_ptr, start, head, g_t, g_h, rows, length, dq * natural, D)
    if PROMPT_GRAD:
        part = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
        columns = tl.arange(0, D)
        address = dp_ptr + part * dp_n + head * dp_h + prompt_rows[:, None] * dp_p + columns[None, :]
        tl.store(address, sum_k * (natural * prompt_inverse), mask=(prompt_rows < P)[:, None])
        tl.store(address + dp_2, sum_v * (inverse * prompt_inverse), mask=(prompt_rows < P)[:, None])


def run_forward(
    states: Sequence[Tensor], prompts: Prompts | None, how: Settings, layer: int, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute attention. Return its output (T, heads, head_dim) and log2 of the softmax denominators, (heads, T).

    Args:
        states: Queries, keys and values, each (T, heads, head_dim). The stride of the last dimension must be 1. Other
            dimensions can have any stride.
        prompts: Keys and values of the prompts of the layer, each (P, heads, head_dim). The strides are as for
            `states`.
        how: The settings of attention.
        layer: Number of the layer.
        out: A contiguous tensor for the output. None: a new tensor.
    """
    query = states[0]
    tokens, heads, dim = query.shape
    out = torch.empty((tokens, heads, dim), dtype=query.dtype, device=query.device) if out is None else out
    lse = torch.empty((heads, tokens), dtype=torch.float32, device=query.device)
    keys, values = prompts or (None, None)
    grid, options = how.launch(query, keys, backward=False)
    written = _emulated(out)
    pointers = [
        *map(_emulated, (*states, keys, values)), written, lse,
        how.starts, how.seed, how.prompt_seed, how.first_prompts, how.prompt_counts,
    ]  # fmt: skip
    sizes = [heads, *_strides(*states, keys, values)]
    _start(_forward_kernel, grid, pointers, [len(how.starts) - 1, tokens], sizes, layer, options)
    return (out if written is out else out.copy_(written)), lse


def run_backward(
    states: Sequence[Tensor],
    prompts: Prompts | None,
    out: Tensor,
    lse: Tensor,
    gradient: Tensor,
    how: Settings,
    layer: int,
    gradients: Sequence[Tensor],
    parts: Tensor | None = None,
) -> None:
    """Write the gradients of queries, keys and values to `gradients`, and the gradient of the prompts to `parts`.

    Args:
        states, prompts, how, layer: As in `run_forward`.
        out, lse: The results of `run_forward`.
        gradient: The gradient of the output.
        gradients: Three tensors (T, heads, head_dim) with equal strides, such as the thirds of a tensor (T, 3, heads,
            head_dim). The stride of the last dimension must be 1.
        parts: Tensor (`prompt_parts`, P, 2, heads, head_dim) in float32. The sum over the first dimension is the
            gradient of the prompts' keys and values. The stride of the last dimension must be 1. The tensor may be a
            part of a tensor for all layers, (`prompt_parts`, P, 2 · layers, heads, head_dim). None: the gradient is
            not computed.
    """
    keys, values = prompts or (None, None)
    grid, options = how.launch(out, keys, backward=True)
    written = [_emulated(part) for part in gradients]
    pointers = [
        *map(_emulated, (*states, keys, values, out, gradient)), lse, *written, parts,
        how.starts, how.seed, how.prompt_seed, how.first_prompts, how.prompt_counts,
    ]  # fmt: skip
    sizes = [out.shape[1], *_strides(*states, keys, values, gradient, gradients[0])]
    sizes += (0,) * 4 if parts is None else parts.stride()[:4]
    options = {**options, "natural": how.scale, "PROMPT_GRAD": parts is not None}
    _start(_backward_kernel, grid, pointers, [len(how.starts) - 1, len(out)], sizes, layer, options)
    for part, result in zip(gradients, written, strict=True):
        if part is not result:
            part.copy_(result)


def _start(
    kernel: Any,
    grid: tuple[int, int, int],
    pointers: Sequence[Tensor | None],
    counts: Sequence[int],
    sizes: Sequence[int],
    layer: int,
    options: Mapping[str, Any],
) -> None:
    """Run a kernel.

    Args:
        counts: Numbers of texts and tokens.
        sizes: Number of heads and strides.
    """
    first = [*pointers, *counts, *sizes, layer]
    constants = [options[name] for name in kernel.arg_names[len(first) :]]
    types = [None if pointer is None else pointer.dtype for pointer in pointers]
    case = (pointers[0].device.index, *types, *sizes, *constants)
    how = {name: options[name] for name in ("num_warps", "num_stages", "maxnreg")}
    start(kernel, grid, [*first, *constants], case, **how)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor | None,
        values: Tensor | None,
        how: Settings,
        layer: int,
    ) -> Tensor:
        states = [_last_contiguous(part) for part in (query, key, value)]
        out, lse = run_forward(states, None if keys is None else (keys, values), how, layer)
        ctx.save_for_backward(*states, keys, values, out, lse)
        ctx.how, ctx.layer = how, layer
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *states, keys, values, out, lse = ctx.saved_tensors
        prompts = None if keys is None else (keys, values)
        gradients = torch.empty((3, *out.shape), dtype=out.dtype, device=out.device).unbind()
        parts = None
        if any(ctx.needs_input_grad[3:5]):
            shape = (ctx.how.prompt_parts(out, keys), len(keys), 2, *keys.shape[1:])
            parts = torch.empty(shape, dtype=torch.float32, device=out.device)
        run_backward(states, prompts, out, lse, _last_contiguous(gradient), ctx.how, ctx.layer, gradients, parts)
        of_prompts = (None, None) if parts is None else parts.sum(0).to(keys.dtype).unbind(1)
        return *gradients, *of_prompts, None, None


def attend(query: Tensor, key: Tensor, value: Tensor, prompts: Prompts | None, how: Settings, layer: int) -> Tensor:
    """Compute attention within each text and over the prompts, and return the output (T, heads, head_dim).

    Args:
        query, key, value: (T, heads, head_dim) in float32, bfloat16 or float16, the texts one after another. A tensor
            is copied if the stride of the last dimension is not 1.
        prompts: Keys and values, each (P, heads, head_dim), usually in float32.
        layer: Number of the layer. Different layers have different dropout masks.

    Raises:
        ValueError: If `how.prompt_counts` is given and the prompts need a gradient. Mixed prompts of several adapters
            cannot be trained.
    """
    keys, values = prompts or (None, None)
    if how.prompt_counts is not None and any(
        part is not None and part.requires_grad and torch.is_grad_enabled() for part in (keys, values)
    ):
        raise ValueError("prompts of several adapters in one batch cannot be trained; train one adapter at a time")
    return _Attention.apply(query, key, value, keys, values, how, layer)


def supports(kind: str, dtype: torch.dtype, head_dim: int, prompts: int) -> bool:
    """Return whether encoders use the kernels with this device type, dtype, head dimension and number of prompts."""
    fits = prompts <= MAX_PROMPTS and prompts * head_dim <= MAX_PROMPT_SIZE
    return (kind == "cuda" or INTERPRETED) and dtype in DTYPES and head_dim in HEAD_DIMS and fits


class KernelAttention:
    """Implements `PackedAttention` by the kernels of this module, for one forward pass with shared settings."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._seed: Tensor | None = None
        self._settings: dict[Any, Settings] = {}

    def takes(self, query: Tensor, prefix: Prefix | None) -> bool:
        """Return whether the kernels support these queries (1, heads, T, head_dim) and this prefix."""
        if not isinstance(prefix, TablePrefix | None):
            return False
        return supports(query.device.type, query.dtype, query.shape[3], 0 if prefix is None else prefix.most_prompts)

    def attend(
        self,
        states: Sequence[Tensor],
        prefix: TablePrefix | None,
        layer: int,
        *,
        window: int | None,
        scale: float | None,
        dropout: float,
    ) -> Tensor:
        """Compute the attention of a layer, and return its output (1, T, heads, head_dim).

        Args:
            states: Queries, keys and values, each (1, heads, T, head_dim).
            prefix, layer, window, scale, dropout: As in `PackedAttention.attend`.
        """
        query = states[0]
        if torch.is_autocast_enabled(query.device.type):
            query = query.to(torch.get_autocast_dtype(query.device.type))
        states = [part.to(query.dtype).squeeze(0).transpose(0, 1) for part in (query, *states[1:])]
        case = (window, scale, dropout, prefix is None)
        if case not in self._settings:
            self._settings[case] = self.settings(query, prefix, window, scale, dropout)
        prompts = None if prefix is None else prefix.tables(layer)
        return attend(*states, prompts, self._settings[case], layer).unsqueeze(0)

    def settings(
        self, query: Tensor, prefix: TablePrefix | None, window: int | None, scale: float | None, dropout: float
    ) -> Settings:
        """Return the settings for layers with this window and with queries of this shape and dtype."""
        if dropout and self._seed is None:
            self._seed = torch.randint(2**62, (1,), device=query.device)
        of_prompts: dict[str, Any] = {}
        if prefix is not None:
            of_prompts = {"prompt_dropout": prefix.rate, "prompt_seed": prefix.seed}
            of_prompts |= {"first_prompts": prefix.first_prompts, "prompt_counts": prefix.prompt_counts}
            of_prompts["most_prompts"] = prefix.most_prompts
        scale = query.shape[3] ** -0.5 if scale is None else scale
        longest = max(self._packing.sizes)
        return Settings(self._packing.starts, longest, scale, window, dropout, seed=self._seed, **of_prompts)


def _default(longest: int, dtype: torch.dtype, dim: int, prompts: int, backward: bool) -> Launch:
    """Choose the launch settings by the longest text, the dtype, the head dimension and the number of prompts."""
    single = dtype == torch.float32
    largest = 16 if single and dim > 64 else 32 if single or dim > 64 or backward else 64
    block = min(max(16, triton.next_power_of_2(longest)), largest)
    if single or dim > 64 or prompts > 32:
        return Launch(block, 4 if backward and longest <= block else 1, 8)
    if longest > 32:
        return Launch(block, 1, 4)
    # The fastest of those measured on an H100 for texts of 21 tokens and head dimension 64.
    return Launch(block, 4, 2) if backward else Launch(block, 2, 1)


def _launch(how: Settings, query: Tensor, prompts: int, backward: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the grid and the keyword arguments of a kernel."""
    heads, dim = query.shape[1:]
    launch = how.backward if backward else how.forward
    launch = launch or _default(how.longest, query.dtype, dim, prompts, backward)
    blocks = triton.cdiv(how.longest, launch.block)
    grid = (heads, triton.cdiv(len(how.starts) - 1, launch.texts), blocks)
    compute = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[query.dtype]
    return grid, {
        "window": how.window or 0,
        "cut": cut(how.dropout),
        "prompt_cut": cut(how.prompt_dropout),
        "scale": how.scale * math.log2(math.e),
        "inverse": 1 / (1 - how.dropout),
        "prompt_inverse": 1 / (1 - how.prompt_dropout),
        "P": prompts,
        "BLOCK_P": max(16, triton.next_power_of_2(prompts)),
        "D": dim,
        "BLOCK": launch.block,
        "TEXTS": launch.texts,
        "ONE_BLOCK": blocks == 1,
        "INDEXED": how.prompt_counts is not None,
        "WINDOW": how.window is not None and how.window < how.longest,
        "DROPOUT": how.dropout > 0,
        "PROMPT_DROPOUT": how.prompt_dropout > 0 and prompts > 0,
        "COMPUTE": tl.float32 if _emulates(query) else compute,
        "EMULATE": _emulates(query),
        "PRECISION": "ieee",
        "ROUNDS": ROUNDS,
        "num_warps": launch.warps,
        "num_stages": launch.stages,
        "maxnreg": launch.registers,
    }


def _strides(*tensors: Tensor | None) -> list[int]:
    return [stride for part in tensors for stride in ((0, 0) if part is None else part.stride()[:2])]


def _last_contiguous(states: Tensor) -> Tensor:
    return states if states.stride(2) == 1 else states.contiguous()


def _emulates(states: Tensor) -> bool:
    return INTERPRETED and states.dtype == torch.bfloat16


def _emulated(states: Tensor | None) -> Tensor | None:
    """Return a tensor that Triton's interpreter can use: float32 instead of bfloat16, with the same strides."""
    if states is None or not _emulates(states):
        return states
    copy = torch.empty_strided(states.shape, states.stride(), dtype=torch.float32)
    return copy.copy_(states)
