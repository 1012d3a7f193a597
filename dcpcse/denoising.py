"""Template denoising (PromptBERT, section 4.2): what the template alone puts into [MASK] is taken away again."""

import torch
from torch import Tensor

from .templates import TokenTemplate


def template_only(template: TokenTemplate, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The template without a sentence, once for each number of sentence tokens in lengths (K,).

    Ids (K, T), the index (K, T) at which each token stands in the full input, and the mask slots (K, M). Everything
    after the sentence keeps its place, so that the positions are those of the full input at every length.
    """
    ids = torch.tensor([*template.before, *template.after], device=lengths.device)
    index = torch.arange(len(ids), device=lengths.device).repeat(len(lengths), 1)
    index[:, len(template.before) :] += lengths.unsqueeze(1)
    slots = torch.tensor(template.masks(0), device=lengths.device)
    return ids.repeat(len(lengths), 1), index, slots.repeat(len(lengths), 1)
