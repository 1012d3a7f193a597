"""The generator of replaced-token detection: a frozen masked language model that fills masked tokens plausibly."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dcpcse.encoders.backbones import LMHead, load_masked_lm
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.utils.errors import UserError


class Generator(nn.Module):
    """A masked language model without gradients, in eval mode whatever the training step is in.

    train_mode: its dropout is active in training, as in the public DiffCSE code.
    """

    def __init__(self, masked_lm: PreTrainedModel, train_mode: bool = False) -> None:
        super().__init__()
        masked_lm.requires_grad_(False)
        self.encoder = Encoder(masked_lm.base_model)
        self.lm_head = LMHead(masked_lm)  # in the place of the encoder it has nothing from now on
        self.train_mode = train_mode
        self.train(False)

    @property
    def max_tokens(self) -> int:
        """Longest text in tokens, special ones included, that its positions hold."""
        return self.encoder.max_tokens

    def train(self, mode: bool = True) -> "Generator":
        return super().train(mode and self.train_mode)

    @torch.no_grad()
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, chosen: Tensor, packing: Packing | None = None
    ) -> Tensor:
        """Logits (n, vocabulary) at the n chosen places of token ids; these, the mask and the places are (N, L).

        packing: that of the mask, made before.
        """
        return self.lm_head(self.encoder(input_ids, attention_mask, packing=packing)[-1][chosen])


class Corruption(nn.Module):
    """Masks tokens and lets a generator fill them.

    choice: `sample` from its distribution, or `argmax`. place: only at `masked` tokens, or the generator's choice at
    `all` tokens but the first, as in the public DiffCSE code.
    """

    def __init__(
        self, masking: TokenMasking, generator: Generator, choice: str = "sample", place: str = "masked"
    ) -> None:
        super().__init__()
        self.masking = masking
        self.generator = generator
        self.choice = choice
        self.place = place

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor, packing: Packing | None = None) -> Tensor:
        """A corrupted copy of token ids (N, L); pads stay. packing: that of the mask, made before."""
        masked_ids, chosen = self.masking(input_ids)
        if self.place == "all":
            chosen = attention_mask.bool().clone()
            chosen[:, 0] = False
        corrupted = input_ids.clone()
        corrupted[chosen] = self._pick(self.generator(masked_ids, attention_mask, chosen, packing))
        return corrupted

    def _pick(self, logits: Tensor) -> Tensor:
        """One token id for each row of logits (n, vocabulary)."""
        if self.choice == "argmax" or not len(logits):
            return logits.argmax(-1)
        return torch.multinomial(logits.float().softmax(-1), 1).squeeze(1)


def load_generator(
    name_or_path: str, tokenizer: PreTrainedTokenizerBase, options: LoadOptions, *, train_mode: bool = False
) -> Generator:
    """A masked language model as a generator for texts of this tokenizer.

    Raises UserError for a checkpoint without a masked-LM head, and for one whose tokens are not the tokenizer's.
    """
    try:
        masked_lm, words = load_masked_lm(name_or_path, options)
    except UserError as error:
        raise UserError(
            f"--generator_name {name_or_path}: give a masked language model of the encoder's vocabulary. {error}"
        ) from error
    own, other = tokenizer.get_vocab(), words.get_vocab()
    if own != other:
        token = min(set(own.items()) ^ set(other.items()), key=lambda item: (item[1], item[0]))[0]
        raise UserError(
            f"--generator_name {name_or_path}: its vocabulary is not the encoder's ({token!r} is token "
            f"{other.get(token)} there and {own.get(token)} here); BERT needs a BERT generator of the same vocabulary "
            "(distilbert-base-uncased), RoBERTa a RoBERTa one (distilroberta-base)"
        )
    return Generator(masked_lm, train_mode)
