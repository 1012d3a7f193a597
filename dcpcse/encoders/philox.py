"""Dropout masks that are functions of counters, so that a mask can be computed again without being stored.

The random numbers are those of Philox4x32 (Salmon et al., 2011). The kernels of `dcpcse.encoders.prefix_kernel`
compute the same masks.
"""

import torch
from torch import Tensor

WEIGHTS, PROMPT_WEIGHTS, PROMPT_KEYS, PROMPT_VALUES = range(4)
"""What a mask is for: attention weights of tokens or of prompts, keys of prompts, values of prompts."""

ROUNDS = 7
"""The fewest rounds that pass all tests of randomness in Salmon et al. (2011), table 2."""

_LOW = 0xFFFFFFFF


def kept(
    seed: Tensor | int, rate: float, kind: int, layer: int, heads: int, texts: int, shape: tuple[int, int]
) -> Tensor:
    """Return the boolean mask (texts, heads, rows, columns) of the elements that dropout keeps.

    A counter gives four random numbers of 32 bits, for four elements that one thread of a kernel has: of attention
    weights, columns 2c and 2c + 1 of rows r and r + 8; of prompts, columns 4c to 4c + 3 of one row.

    Args:
        seed: Key of the masks.
        rate: Dropout rate.
        kind: What is dropped: `WEIGHTS`, `PROMPT_WEIGHTS`, `PROMPT_KEYS` or `PROMPT_VALUES`.
        layer: Number of the layer.
        heads: Number of heads.
        texts: Number of texts.
        shape: Rows and columns, which are queries and keys of a text, queries and prompts, or prompts and dimensions
            of a head.
    """
    device = seed.device if isinstance(seed, Tensor) else None
    of_weights = kind in (WEIGHTS, PROMPT_WEIGHTS)
    rows, columns = (8 * -(-shape[0] // 16), -(-shape[1] // 2)) if of_weights else (shape[0], -(-shape[1] // 4))
    size = (texts, heads, rows, columns)

    def counter(values: Tensor, dimension: int) -> Tensor:
        return values.view([-1 if axis == dimension else 1 for axis in range(4)]).expand(size)

    text, head, row, column = (counter(torch.arange(n, device=device), axis) for axis, n in enumerate(size))
    c0, c1, c2, c3 = column, row, text, (layer * heads + head) * 4 + kind
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(ROUNDS):
        high0, low0 = _product(0xD2511F53, c0)
        high2, low2 = _product(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    numbers = torch.stack([c0, c1, c2, c3], dim=4)
    if of_weights:
        numbers = numbers.unflatten(4, (2, 2)).unflatten(2, (-1, 8)).movedim(5, 3).flatten(2, 4)
    return (numbers.flatten(3)[:, :, : shape[0], : shape[1]] >> 8) >= cut(rate)


def cut(rate: float) -> int:
    """Return the number of 24 bits below which a random number drops an element."""
    return round(rate * 2**24)


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper and lower 32 bits of the product of a and b, both of 32 bits."""
    low = a * (b & 0xFFFF)  # 48 bits
    middle = a * (b >> 16) + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)
