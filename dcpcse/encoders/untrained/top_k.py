"""Predictions of a masked-LM head at the template's [MASK]: the top tokens, and the average of their embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dcpcse.encoders.backbones import LMHead
from dcpcse.encoders.sentence_encoder import SentenceEncoder


class TopKAverage(nn.Module):
    """Mean of the static embeddings of the k most probable tokens, weighted by probability (PromptBERT, eq. 3).

    Args:
        lm_head: Predicts the tokens.
        embeddings: Static token embeddings (V, H).
        k: Number of tokens.
    """

    def __init__(self, lm_head: LMHead, embeddings: Tensor, k: int) -> None:
        super().__init__()
        self.lm_head = lm_head
        self.register_buffer("embeddings", embeddings, persistent=False)
        self.k = min(k, len(embeddings))
        # A buffer, so that it is part of the state, and representations with different k have different identities.
        self.register_buffer("number", torch.tensor(self.k))

    def forward(self, pooled: Tensor) -> Tensor:
        """Map vectors at [MASK] (N, H) to the weighted means (N, H)."""
        probabilities, tokens = self.lm_head(pooled)[:, : len(self.embeddings)].softmax(-1).topk(self.k)
        weights = probabilities / probabilities.sum(1, keepdim=True)
        return torch.einsum("nk,nkh->nh", weights, self.embeddings[tokens])


@dataclass(frozen=True)
class Prediction:
    """The most probable tokens at a sentence's [MASK].

    Args:
        sentence: The sentence.
        tokens: The tokens, the most probable first.
        probabilities: Their probabilities.
    """

    sentence: str
    tokens: list[str]
    probabilities: list[float]


def predict_tokens(model: SentenceEncoder, lm_head: LMHead, sentences: Sequence[str], k: int = 5) -> list[Prediction]:
    """Return the most probable tokens at each sentence's [MASK], after any denoising (PromptBERT, Table 7).

    Args:
        model: The model, with a template.
        lm_head: Predicts the tokens.
        sentences: The sentences.
        k: Number of tokens per sentence.
    """
    vectors = torch.from_numpy(model.encode(sentences)).to(model.device)
    with torch.inference_mode():
        probabilities, tokens = lm_head(vectors).softmax(-1).topk(k)
    words = [model.tokenizer.convert_ids_to_tokens(row) for row in tokens.tolist()]
    return [Prediction(*row) for row in zip(sentences, words, probabilities.tolist(), strict=True)]
