"""Attention over packed texts with deep prompts, as one Triton kernel for the forward pass and one for the backward.

Queries, keys and values are read where the linear layers left them, (T, heads, head_dim) by strides, and the prompts
of a layer in the trained table: nothing is transposed, padded, or copied for each text. Dropout of prompts and of
attention weights is computed inside the kernels from Philox counters (Salmon et al., 2011), so that the backward pass
computes the same masks again. Every number is written by one program in a fixed order, so that repeated runs give the
same bits.

Measured and tested so far: the kernels run in Triton's interpreter on the CPU (`tests/encoders/test_prefix_kernel.py`)
and compile for compute capabilities 8.0 and 9.0. They have not yet run on a GPU.

The interpreter computes bfloat16 wrongly. There, tensors of bfloat16 are passed as float32, and the kernels round
where they would convert to bfloat16 (`EMULATE`).
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

MAX_PROMPTS = 128
"""The most prompts of one text: all of them are one block of the kernels."""

HEAD_DIMS = (16, 32, 64, 128)

WEIGHTS, PROMPT_WEIGHTS, PROMPT_KEYS, PROMPT_VALUES = range(4)
"""What a dropout mask is for: attention weights of tokens or of prompts, keys of prompts, values of prompts."""

PHILOX_ROUNDS = 7
"""The fewest rounds that pass all tests of randomness in Salmon et al. (2011), table 2."""


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched; it changes no result except the order of sums.

    block: tokens of a block of queries or keys. texts: texts that one program handles one after another. registers:
    the most registers of a thread.
    """

    block: int
    texts: int
    warps: int
    stages: int = 1
    registers: int | None = None


@dataclass(frozen=True)
class Settings:
    """What the kernels need besides the tensors that get gradients.

    starts: (N + 1,) int32, index of the first token of each text, and the number of tokens. longest: number of tokens
    of the longest text, or a larger number. scale: factor of the scores. window: the smallest distance at which two
    tokens no longer attend to each other, or None. dropout, prompt_dropout: rates of the attention weights, and of the
    keys and values of the prompts. seed: (1,) int64, key of Philox; needed if a rate is not 0. layer: makes the masks
    of layers different. first_prompts, prompt_counts: (N,) int32, index of the first prompt of each text in the table,
    and their number; None if every text has all prompts. forward, backward: how the kernels are launched; None
    chooses by the sizes.
    """

    starts: Tensor
    longest: int
    scale: float
    window: int | None = None
    dropout: float = 0.0
    prompt_dropout: float = 0.0
    seed: Tensor | None = None
    layer: int = 0
    first_prompts: Tensor | None = None
    prompt_counts: Tensor | None = None
    most_prompts: int | None = None
    forward: Launch | None = None
    backward: Launch | None = None


@triton.jit
def _round(x, COMPUTE: tl.constexpr, EMULATE: tl.constexpr):
    """Convert to the type of the products. EMULATE: round float32 to the nearest bfloat16, and keep float32."""
    if EMULATE:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return bits.to(tl.float32, bitcast=True)
    return x.to(COMPUTE)


@triton.jit
def _kept(seed, layer_head, kind: tl.constexpr, text, rows, first, cut, COLUMNS: tl.constexpr, ROUNDS: tl.constexpr):
    """Return whether elements (rows, first to first + COLUMNS) of a mask are kept; `first` is a multiple of 4.

    Four neighbours of a row share one counter, which gives four random numbers. cut: dropout rate times 2^24.
    """
    quads = first // 4 + tl.arange(0, COLUMNS // 4)
    c0 = quads[None, :] + rows[:, None] * 0
    c1 = rows[:, None] + quads[None, :] * 0
    c2 = c0 * 0 + text
    c3 = c0 * 0 + (layer_head * 4 + kind)
    r0, r1, r2, r3 = tl.philox(seed, c0, c1, c2, c3, ROUNDS)
    k0 = ((r0 >> 8).to(tl.int32) >= cut).to(tl.int8)
    k1 = ((r1 >> 8).to(tl.int32) >= cut).to(tl.int8)
    k2 = ((r2 >> 8).to(tl.int32) >= cut).to(tl.int8)
    k3 = ((r3 >> 8).to(tl.int32) >= cut).to(tl.int8)
    four = tl.join(tl.join(k0, k2), tl.join(k1, k3))
    return tl.reshape(four, (rows.shape[0], COLUMNS)) != 0


@triton.jit
def _tokens(pointer, start, head, stride_t, stride_h, rows, length, D: tl.constexpr):
    """Return the rows of a text of one head, zeros behind its end."""
    columns = tl.arange(0, D)
    address = pointer + start * stride_t + head * stride_h + rows[:, None] * stride_t + columns[None, :]
    return tl.load(address, mask=rows[:, None] < length, other=0.0)


@triton.jit
def _store(pointer, start, head, heads, rows, length, values, D: tl.constexpr):
    """Write the rows of a text of one head to a contiguous tensor (T, heads, D)."""
    columns = tl.arange(0, D)
    address = pointer + (start * heads + head) * D + rows[:, None] * (heads * D) + columns[None, :]
    tl.store(address, values.to(pointer.dtype.element_ty), mask=rows[:, None] < length)


@triton.jit
def _prompts(pointer, stride_p, stride_h, head, first, rows, count, D: tl.constexpr):
    """Return a text's prompts of one head in float32, zeros behind the last."""
    columns = tl.arange(0, D)
    address = pointer + head * stride_h + (first + rows[:, None]) * stride_p + columns[None, :]
    return tl.load(address, mask=rows[:, None] < count, other=0.0).to(tl.float32)


@triton.jit
def _visible(queries, keys, length, window, WINDOW: tl.constexpr):
    """Return whether keys of a text (as columns) are visible to queries (as rows)."""
    visible = (keys < length)[None, :] & (queries >= 0)[:, None]
    if WINDOW:
        distance = queries[:, None] - keys[None, :]
        visible = visible & (distance < window) & (distance > -window)
    return visible


@triton.jit
def _online(
    q, k, v, top, total, acc, visible, kept, scale, inverse,
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
        p = tl.where(kept, p * inverse, 0.0)
    acc = acc * shrink[:, None] + tl.dot(_round(p, COMPUTE, EMULATE), v, input_precision=PRECISION)
    return higher, total, acc


# Numbers that change from batch to batch or from layer to layer: they must not compile the kernels anew.
VARYING = ("texts", "tokens", "layer", "window", "cut", "prompt_cut")


@triton.jit(do_not_specialize=VARYING)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, kp_ptr, vp_ptr, out_ptr, lse_ptr, starts_ptr, seed_ptr, first_ptr, count_ptr,
    texts, tokens, heads,
    q_t, q_h, k_t, k_h, v_t, v_h, kp_p, kp_h, vp_p, vp_h,
    layer, window, cut, prompt_cut, scale, inverse, prompt_inverse,
    P: tl.constexpr, BLOCK_P: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TEXTS: tl.constexpr,
    ONE_BLOCK: tl.constexpr, INDEXED: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr,
    PROMPT_DROPOUT: tl.constexpr, COMPUTE: tl.constexpr, EMULATE: tl.constexpr, PRECISION: tl.constexpr,
    ROUNDS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    own = tl.program_id(2) * BLOCK
    rows = own + tl.arange(0, BLOCK)
    layer_head = layer * heads + head
    seed = 0
    if DROPOUT or PROMPT_DROPOUT:
        seed = tl.load(seed_ptr)
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
                kept_k = _kept(seed, layer_head, 2, text, prompt_rows, 0, prompt_cut, D, ROUNDS)
                keys = tl.where(kept_k, keys * prompt_inverse, 0.0)
                kept_v = _kept(seed, layer_head, 3, text, prompt_rows, 0, prompt_cut, D, ROUNDS)
                values = tl.where(kept_v, values * prompt_inverse, 0.0)
            keys = _round(keys, COMPUTE, EMULATE)
            values = _round(values, COMPUTE, EMULATE)
            visible_p = (prompt_rows < count)[None, :] & (rows >= 0)[:, None]
            kept_p = visible_p
            if DROPOUT:
                kept_p = _kept(seed, layer_head, 1, text, rows, 0, cut, BLOCK_P, ROUNDS)
            top, total, acc = _online(
                q, keys, values, top, total, acc, visible_p, kept_p, scale, inverse,
                DROPOUT, COMPUTE, EMULATE, PRECISION,
            )  # fmt: skip
        low = 0
        high = tl.where(own < length, length, 0)  # no keys for a block behind the end of the text
        if ONE_BLOCK:
            high = BLOCK
        if WINDOW:
            low = tl.maximum(own - window + 1, 0) // BLOCK * BLOCK
            high = tl.minimum(high, own + BLOCK + window - 1)
        for begin in range(low, high, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            k = _tokens(k_ptr, start, head, k_t, k_h, columns, length, D)
            v = _tokens(v_ptr, start, head, v_t, v_h, columns, length, D)
            visible = _visible(rows, columns, length, window, WINDOW)
            kept = visible
            if DROPOUT:
                kept = _kept(seed, layer_head, 0, text, rows, begin, cut, BLOCK, ROUNDS)
            top, total, acc = _online(
                q, k, v, top, total, acc, visible, kept, scale, inverse, DROPOUT, COMPUTE, EMULATE, PRECISION
            )
        total = tl.where(rows < length, total, 1.0)
        _store(out_ptr, start, head, heads, rows, length, acc / total[:, None], D)
        tl.store(lse_ptr + head * tokens + start + rows, top + tl.log2(total), mask=rows < length)


@triton.jit
def _pair(q, do, lse, delta, k, v, visible, kept, scale, inverse, DROPOUT: tl.constexpr, PRECISION: tl.constexpr):
    """Return the attention weights with dropout and the gradient of the scores, both (queries, keys)."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    p = tl.where(visible, tl.exp2(s - lse[:, None]), 0.0)
    dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
    dropped = p
    if DROPOUT:
        dropped = tl.where(kept, p * inverse, 0.0)
        dp = tl.where(kept, dp * inverse, 0.0)
    return dropped, p * (dp - delta[:, None])


@triton.jit(do_not_specialize=VARYING)
def _backward_kernel(
    q_ptr, k_ptr, v_ptr, kp_ptr, vp_ptr, out_ptr, do_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, dp_ptr,
    starts_ptr, seed_ptr, first_ptr, count_ptr,
    texts, tokens, heads,
    q_t, q_h, k_t, k_h, v_t, v_h, kp_p, kp_h, vp_p, vp_h, do_t, do_h,
    layer, window, cut, prompt_cut, scale, natural, inverse, prompt_inverse,
    P: tl.constexpr, BLOCK_P: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TEXTS: tl.constexpr,
    ONE_BLOCK: tl.constexpr, INDEXED: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr,
    PROMPT_DROPOUT: tl.constexpr, PROMPT_GRAD: tl.constexpr, COMPUTE: tl.constexpr, EMULATE: tl.constexpr,
    PRECISION: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    own = tl.program_id(2) * BLOCK
    rows = own + tl.arange(0, BLOCK)
    layer_head = layer * heads + head
    seed = 0
    if DROPOUT or PROMPT_DROPOUT:
        seed = tl.load(seed_ptr)
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
        # The weights of queries behind the end of the text are 0, since their sum is infinite.
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
                kept_k = _kept(seed, layer_head, 2, text, prompt_rows, 0, prompt_cut, D, ROUNDS)
                keys = tl.where(kept_k, keys * prompt_inverse, 0.0)
                kept_v = _kept(seed, layer_head, 3, text, prompt_rows, 0, prompt_cut, D, ROUNDS)
                values = tl.where(kept_v, values * prompt_inverse, 0.0)
            keys = _round(keys, COMPUTE, EMULATE)
            values = _round(values, COMPUTE, EMULATE)
            visible_p = (prompt_rows < count)[None, :] & (rows >= 0)[:, None]
            kept_p = visible_p
            if DROPOUT:
                kept_p = _kept(seed, layer_head, 1, text, rows, 0, cut, BLOCK_P, ROUNDS)
            p_p, ds_p = _pair(q, do, lse, delta, keys, values, visible_p, kept_p, scale, inverse, DROPOUT, PRECISION)
            p_p = _round(p_p, COMPUTE, EMULATE)
            ds_p = _round(ds_p, COMPUTE, EMULATE)
            dq = tl.dot(ds_p, keys, input_precision=PRECISION)
            if PROMPT_GRAD:
                gk = tl.dot(tl.trans(ds_p), q, input_precision=PRECISION)
                if PROMPT_DROPOUT:
                    gk = tl.where(kept_k, gk * prompt_inverse, 0.0)
                sum_k += gk
                gv = tl.dot(tl.trans(p_p), do, input_precision=PRECISION)
                if PROMPT_DROPOUT:
                    gv = tl.where(kept_v, gv * prompt_inverse, 0.0)
                sum_v += gv
        k = _tokens(k_ptr, start, head, k_t, k_h, rows, length, D)
        v = _tokens(v_ptr, start, head, v_t, v_h, rows, length, D)
        # The block of keys with the same indices as the queries.
        visible = _visible(rows, rows, length, window, WINDOW)
        kept = visible
        if DROPOUT:
            kept = _kept(seed, layer_head, 0, text, rows, own, cut, BLOCK, ROUNDS)
        p, ds = _pair(q, do, lse, delta, k, v, visible, kept, scale, inverse, DROPOUT, PRECISION)
        p = _round(p, COMPUTE, EMULATE)
        ds = _round(ds, COMPUTE, EMULATE)
        dv = tl.dot(tl.trans(p), do, input_precision=PRECISION)
        if ONE_BLOCK:
            _store(dv_ptr, start, head, heads, rows, length, dv, D)
        dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
        if ONE_BLOCK:
            _store(dk_ptr, start, head, heads, rows, length, dk * natural, D)
        dq += tl.dot(ds, k, input_precision=PRECISION)
        if not ONE_BLOCK:
            low = 0
            high = tl.where(own < length, length, 0)  # none for a block behind the end of the text
            if WINDOW:
                low = tl.maximum(own - window + 1, 0) // BLOCK * BLOCK
                high = tl.minimum(high, own + BLOCK + window - 1)
            for begin in range(low, high, BLOCK):
                if begin != own:
                    others = begin + tl.arange(0, BLOCK)
                    # These queries and the keys of another block.
                    k2 = _tokens(k_ptr, start, head, k_t, k_h, others, length, D)
                    v2 = _tokens(v_ptr, start, head, v_t, v_h, others, length, D)
                    visible = _visible(rows, others, length, window, WINDOW)
                    kept = visible
                    if DROPOUT:
                        kept = _kept(seed, layer_head, 0, text, rows, begin, cut, BLOCK, ROUNDS)
                    _, ds2 = _pair(q, do, lse, delta, k2, v2, visible, kept, scale, inverse, DROPOUT, PRECISION)
                    dq += tl.dot(_round(ds2, COMPUTE, EMULATE), k2, input_precision=PRECISION)
            for begin in range(low, high, BLOCK):
                if begin != own:
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
                        kept = _kept(seed, layer_head, 0, text, others, own, cut, BLOCK, ROUNDS)
                    p2, ds2 = _pair(q2, do2, lse2, delta2, k, v, visible, kept, scale, inverse, DROPOUT, PRECISION)
                    dk += tl.dot(tl.trans(_round(ds2, COMPUTE, EMULATE)), q2, input_precision=PRECISION)
                    dv += tl.dot(tl.trans(_round(p2, COMPUTE, EMULATE)), do2, input_precision=PRECISION)
            _store(dk_ptr, start, head, heads, rows, length, dk * natural, D)
            _store(dv_ptr, start, head, heads, rows, length, dv, D)
        _store(dq_ptr, start, head, heads, rows, length, dq * natural, D)
    if PROMPT_GRAD:
        # Partial sums (blocks, groups of texts, 2, P, heads, D).
        part = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
        columns = tl.arange(0, D)
        address = dp_ptr + (part * 2 * P * heads + head) * D + prompt_rows[:, None] * (heads * D) + columns[None, :]
        tl.store(address, sum_k * natural, mask=(prompt_rows < P)[:, None])
        tl.store(address + P * heads * D, sum_v, mask=(prompt_rows < P)[:, None])


def run_forward(
    states: Sequence[Tensor], prompts: tuple[Tensor | None, Tensor | None], how: Settings
) -> tuple[Tensor, Tensor]:
    """Return the output (T, heads, head_dim), and the logarithm of base 2 of the sums of softmax, (heads, T).

    states: queries, keys and values, each (T, heads, head_dim).
    """
    query = states[0]
    tokens, heads, dim = query.shape
    out = torch.empty((tokens, heads, dim), dtype=query.dtype, device=query.device)
    lse = torch.empty((heads, tokens), dtype=torch.float32, device=query.device)
    launch = how.forward or _launch(how, query, prompts[0], backward=False)
    grid, options = _options(how, launch, query, prompts[0])
    written = _emulated(out)
    _forward_kernel[grid](
        *map(_emulated, (*states, *prompts)), written, lse,
        how.starts, how.seed, how.first_prompts, how.prompt_counts,
        len(how.starts) - 1, tokens, heads,
        *_strides(*states, *prompts),
        **_scalars(how), **options,
    )  # fmt: skip
    return (out if written is out else out.copy_(written)), lse


def run_backward(
    states: Sequence[Tensor],
    prompts: tuple[Tensor | None, Tensor | None],
    out: Tensor,
    lse: Tensor,
    gradient: Tensor,
    how: Settings,
    prompts_wanted: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of queries, keys, values, and of the prompts' keys and values if they are wanted."""
    heads, dim = out.shape[1:]
    tokens, keys = len(out), prompts[0]
    launch = how.backward or _launch(how, out, keys, backward=True)
    grid, options = _options(how, launch, out, keys)
    partial = None
    if prompts_wanted := prompts_wanted and keys is not None:
        shape = (grid[2] * grid[1], 2, len(keys), heads, dim)
        partial = torch.empty(shape, dtype=torch.float32, device=out.device)
    gradients = [torch.empty_like(out) for _ in range(3)]
    written = [_emulated(part) for part in gradients]
    _backward_kernel[grid](
        *map(_emulated, (*states, *prompts, out, gradient)), lse, *written, partial,
        how.starts, how.seed, how.first_prompts, how.prompt_counts,
        len(how.starts) - 1, tokens, heads,
        *_strides(*states, *prompts, gradient),
        natural=how.scale, PROMPT_GRAD=prompts_wanted, **_scalars(how), **options,
    )  # fmt: skip
    for part, result in zip(gradients, written, strict=True):
        if part is not result:
            part.copy_(result)
    of_prompts = (None, None) if partial is None else partial.sum(0).to(keys.dtype).unbind()
    return *gradients, *of_prompts


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, keys: Tensor | None, values: Tensor | None, how: Settings
    ) -> Tensor:
        states = [_last_contiguous(part) for part in (query, key, value)]
        out, lse = run_forward(states, (keys, values), how)
        ctx.save_for_backward(*states, keys, values, out, lse)
        ctx.how = how
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *states, keys, values, out, lse = ctx.saved_tensors
        wanted = any(ctx.needs_input_grad[3:5])
        return *run_backward(states, (keys, values), out, lse, _last_contiguous(gradient), ctx.how, wanted), None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prompts: tuple[Tensor, Tensor] | None,
    settings: Settings,
) -> Tensor:
    """Compute attention within each text and over the prompts, and return the output (T, heads, head_dim).

    query, key, value: (T, heads, head_dim) in float32, bfloat16 or float16, the texts one after another; any strides,
    but the last should be 1. prompts: keys and values, each (P, heads, head_dim), usually in float32. Raises
    ValueError if `settings.prompt_counts` is given and a gradient of the prompts is needed: the mixed prompts of
    several adapters are not trained.
    """
    keys, values = prompts or (None, None)
    if settings.prompt_counts is not None and any(
        part is not None and part.requires_grad and torch.is_grad_enabled() for part in (keys, values)
    ):
        raise ValueError("prompts that are chosen by index get no gradient")
    return _Attention.apply(query, key, value, keys, values, settings)


def kept(seed: int, settings: Settings, heads: int, kind: int, head: int, text: int, shape: tuple[int, int]) -> Tensor:
    """Return the boolean mask (rows, columns) of what dropout of one kind keeps, as the kernels compute it.

    Rows and columns are queries and keys of a text, queries and prompts, or prompts and dimensions of a head. This is
    for tests: it computes with PyTorch's integers.
    """
    rate = settings.dropout if kind in (WEIGHTS, PROMPT_WEIGHTS) else settings.prompt_dropout
    rows, columns = torch.arange(shape[0]), torch.arange(-(-shape[1] // 4))
    c1, c0 = (part.clone() for part in torch.meshgrid(rows, columns, indexing="ij"))
    c2, c3 = torch.full_like(c0, text), torch.full_like(c0, (settings.layer * heads + head) * 4 + kind)
    low = 0xFFFFFFFF
    k0, k1 = seed & low, (seed >> 32) & low
    for _ in range(PHILOX_ROUNDS):
        high0, low0 = _product(0xD2511F53, c0)
        high2, low2 = _product(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    numbers = torch.stack([c0, c1, c2, c3], dim=2).flatten(1)[:, : shape[1]]
    return (numbers >> 8) >= _cut(rate)


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper and lower 32 bits of the product of a and b, both of 32 bits."""
    low = a * (b & 0xFFFF)  # 48 bits
    middle = a * (b >> 16) + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def _cut(rate: float) -> int:
    return round(rate * 2**24)


def _launch(how: Settings, query: Tensor, keys: Tensor | None, backward: bool) -> Launch:
    """Choose the blocks by the longest text, the head dimension and the type."""
    dim, prompts = query.shape[2], 0 if keys is None else how.most_prompts or len(keys)
    single = query.dtype == torch.float32
    largest = 16 if single and dim > 64 else 32 if single or dim > 64 or backward else 64
    block = min(max(16, triton.next_power_of_2(how.longest)), largest)
    large = single or dim > 64 or prompts > 32
    warps = 8 if large else 4 if backward or block * dim > 2048 else 2
    texts = 8 if backward and how.longest <= block else 1
    few = not large and not backward and how.longest <= 32
    return Launch(block, texts, warps, registers=168 if few else None)


def _options(how: Settings, launch: Launch, query: Tensor, keys: Tensor | None) -> tuple[tuple[int, ...], dict]:
    """Return the grid and the constants of a kernel."""
    prompts = 0 if keys is None else how.most_prompts or len(keys)
    blocks = triton.cdiv(how.longest, launch.block)
    grid = (query.shape[1], triton.cdiv(len(how.starts) - 1, launch.texts), blocks)
    compute = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[query.dtype]
    return grid, {
        "P": prompts,
        "BLOCK_P": max(16, triton.next_power_of_2(prompts)),
        "D": query.shape[2],
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
        "ROUNDS": PHILOX_ROUNDS,
        "num_warps": launch.warps,
        "num_stages": launch.stages,
        "maxnreg": launch.registers,
    }


def _scalars(how: Settings) -> Mapping[str, Any]:
    return {
        "layer": how.layer,
        "window": how.window or 0,
        "cut": _cut(how.dropout),
        "prompt_cut": _cut(how.prompt_dropout),
        "scale": how.scale * math.log2(math.e),
        "inverse": 1 / (1 - how.dropout),
        "prompt_inverse": 1 / (1 - how.prompt_dropout),
    }


def _strides(*tensors: Tensor | None) -> list[int]:
    return [stride for part in tensors for stride in ((0, 0) if part is None else part.stride()[:2])]


def _last_contiguous(states: Tensor) -> Tensor:
    return states if states.stride(2) == 1 else states.contiguous()


def _emulates(states: Tensor) -> bool:
    return INTERPRETED and states.dtype == torch.bfloat16


def _emulated(states: Tensor | None) -> Tensor | None:
    """Return a tensor that the interpreter computes rightly: float32 instead of bfloat16, with the same strides."""
    if states is None or not _emulates(states):
        return states
    copy = torch.empty_strided(states.shape, states.stride(), dtype=torch.float32)
    return copy.copy_(states)
