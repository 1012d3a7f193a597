"""What the kernels of frozen layers compute, by PyTorch: stands in for `prefix_kernel` and `layer_kernels`.

Attention has no dropout here, and dropout of hidden states other random numbers.
"""

from itertools import pairwise
from types import SimpleNamespace

import torch


def supports(*_):
    return True


class KernelAttention:
    def __init__(self, packing):
        self.packing = packing

    def takes(self, query, prefix):
        return False

    def settings(self, query, prefix, window, scale, dropout):
        starts = self.packing.starts.tolist()
        return SimpleNamespace(starts=starts, scale=scale, prompt_parts=lambda query, keys: 1)


def attention(query, key, value, keys, values, how):
    outputs = []
    for start, end in pairwise(how.starts):
        own = [part[start:end].transpose(0, 1) for part in (query, key, value)]  # (heads, length, head_dim)
        if keys is not None:
            own[1:] = (torch.cat([p.transpose(0, 1), s], 1) for p, s in zip((keys, values), own[1:], strict=True))
        weights = (own[0] @ own[1].transpose(1, 2) * how.scale).softmax(2)
        outputs.append((weights @ own[2]).transpose(0, 1))
    return torch.cat(outputs)


def inputs_of(states, prompts):
    return [part if part is None else part.detach().float() for part in (*states, *(prompts or (None, None)))]


def run_forward(states, prompts, how, layer):
    output = attention(*inputs_of(states, prompts), how)
    return output.to(states[0].dtype), output.new_zeros(0)


def run_backward(states, prompts, out, lse, gradient, how, layer, gradients, parts):
    with torch.enable_grad():
        given = [part if part is None else part.requires_grad_() for part in inputs_of(states, prompts)]
        found = torch.autograd.grad(attention(*given, how), [p for p in given if p is not None], gradient.float())
    for place, part in zip(gradients, found, strict=False):
        place.copy_(part)
    if parts is not None:
        parts.copy_(torch.stack(found[3:], dim=1).unsqueeze(0))


def kept(like, dropout, seed, number):
    numbers = torch.Generator().manual_seed(int(seed) + number)
    return (torch.rand(like.shape, generator=numbers) >= dropout) / (1 - dropout)


def add_norm(states, residual, weight, bias, eps, seed, number, *, dropout=0.0, save=True):
    total = states.float() * kept(states, dropout, seed, number) + residual.float()
    output, mean, deviations = torch.native_layer_norm(total, weight.shape, weight, bias, eps)
    if not save:
        return output.to(states.dtype), None, None
    return output.to(states.dtype), ((total - mean) * deviations).to(states.dtype), deviations


def add_norm_backward(gradient, normalized, deviations, weight, seed, number, *, dropout=0.0):
    normal, inner = normalized.float(), gradient.float() * weight
    slope = (inner * normal).mean(1, keepdim=True)
    inner = (inner - inner.mean(1, keepdim=True) - normal * slope) * deviations
    of_states = inner * kept(inner, dropout, seed, number)
    return of_states.to(gradient.dtype), inner.to(gradient.dtype)
