"""What a masked-LM head says at the template's [MASK]: the average of its top tokens, and the tokens themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dcpcse.encoders.backbones import LMHead
from dcpcse.encoders.sentence_encoder import SentenceEncoder


class TopKAverage(nn.Module):
    """Static embeddings of the k most probable tokens, averaged by probability (PromptBERT, eq. 3)."""

    def __init__(self, lm_head: LMHead, embeddings: Tensor, k: int) -> None:
        """embeddings: static token embeddings (V, H)."""
        super().__init__()
        self.lm_head = lm_head
        self.register_buffer("embeddings", embeddings, persistent=False)
        self.k = min(k, len(embeddings))
        # In the state, by which representations are told apart.
        self.register_buffer("number", torch.tensor(self.k))

    def forward(self, pooled: Tensor) -> Tensor:
        """[MASK] vectors (N, H) → (N, H)."""
        probabilities, tokens = self.lm_head(pooled)[:, : len(self.embeddings)].softmax(-1).topk(self.k)
        weights = probabilities / probabilities.sum(1, keepdim=True)
        return torch.einsum("nk,nkh->nh", weights, self.embeddings[tokens])


@dataclass(frozen=True)
class Prediction:
    """The most probable tokens at a sentence's [MASK], with their probabilities."""

    sentence: str
    tokens: list[str]
    probabilities: list[float]


def predict_tokens(model: SentenceEncoder, lm_head: LMHead, sentences: Sequence[str], k: int = 5) -> list[Prediction]:
    """The k most probable tokens at [MASK] by the masked-LM head, denoised if the model is (PromptBERT, Table 7)."""
    vectors = torch.from_numpy(model.encode(sentences)).to(model.device)
    with torch.inference_mode():
        probabilities, tokens = lm_head(vectors).softmax(-1).topk(k)
    words = [model.tokenizer.convert_ids_to_tokens(row) for row in tokens.tolist()]
    return [Prediction(*row) for row in zip(sentences, words, probabilities.tolist(), strict=True)]
