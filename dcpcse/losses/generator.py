"""The generator of replaced-token detection: a frozen masked language model that fills in masked tokens."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dcpcse.encoders.backbones import LMHead, load_masked_lm
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.packing import Packing, indices_of
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.utils.devices import send
from dcpcse.utils.errors import OptionError, UserError


class Generator(nn.Module):
    """A frozen masked language model that predicts masked tokens. It stays in eval mode unless `train_mode` is set.

    Args:
        masked_lm: The masked language model. Its encoder and head are moved to this module, so do not use it
            afterwards.
        train_mode: Whether the model's dropout is active in training, as in the public DiffCSE code.
    """

    def __init__(self, masked_lm: PreTrainedModel, train_mode: bool = False) -> None:
        super().__init__()
        masked_lm.requires_grad_(False)
        self.encoder = Encoder(masked_lm.base_model)
        self.lm_head = LMHead(masked_lm)  # removes the encoder from masked_lm
        self.train_mode = train_mode
        self.train(False)

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens, including special tokens, of a text that the generator accepts."""
        return self.encoder.max_tokens

    def train(self, mode: bool = True) -> "Generator":
        return super().train(mode and self.train_mode)

    @torch.no_grad()
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, chosen: Tensor, packing: Packing | None = None
    ) -> Tensor:
        """Return the logits (n, vocabulary) of the n chosen tokens.

        Args:
            input_ids: Token ids (N, L).
            attention_mask: (N, L), 1 for tokens and 0 for padding.
            chosen: (n,), indices of the masked tokens among all N·L tokens.
            packing: The packing of `attention_mask`, if it is already computed.
        """
        hidden = self.encoder(input_ids, attention_mask, packing=packing)[-1]
        return self.lm_head(hidden.flatten(0, 1).index_select(0, chosen))


class Corruption(nn.Module):
    """Corrupts sentences: masks random tokens and replaces them by the predictions of a generator.

    Args:
        masking: The module that chooses and masks tokens.
        generator: The module that predicts tokens.
        choice: "sample" draws tokens from the generator's distribution. "argmax" uses the most probable tokens.
        place: "masked" replaces only the masked tokens. "all" replaces all tokens except the first token, as in the
            public DiffCSE code.
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
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
        on_host: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return a corrupted copy of the token ids (N, L). Padding is unchanged.

        Args:
            input_ids: Token ids (N, L).
            attention_mask: (N, L), 1 for tokens and 0 for padding.
            packing: The packing of `attention_mask`, if it is already computed.
            on_host: Copies of `input_ids` and `attention_mask` on the CPU. None: this method makes the copies, and
                waits for the GPU.
        """
        ids, mask = (input_ids.cpu(), attention_mask.cpu()) if on_host is None else on_host
        masked_ids, chosen = self.masking(ids)
        if self.place == "all":
            chosen = mask.bool().clone()
            chosen[:, 0] = False
        masked_ids, chosen = (send(tensor, input_ids.device) for tensor in (masked_ids, indices_of(chosen)))
        picked = self._pick(self.generator(masked_ids, attention_mask, chosen, packing))
        return input_ids.flatten().index_copy(0, chosen, picked).view_as(input_ids)

    def _pick(self, logits: Tensor) -> Tensor:
        """Return one token id for each row of logits (n, vocabulary)."""
        if self.choice == "argmax" or not len(logits):
            return logits.argmax(-1)
        # As torch.multinomial draws one token, without its checks of the probabilities, which wait for a GPU.
        probabilities = logits.float().softmax(-1)
        return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)


def load_generator(
    name_or_path: str, tokenizer: PreTrainedTokenizerBase, options: LoadOptions, *, train_mode: bool = False
) -> Generator:
    """Load a masked language model as the generator for an encoder with this tokenizer.

    Args:
        name_or_path: Folder or hub id of the masked language model.
        tokenizer: The tokenizer of the encoder.
        options: Revision, cache and token for the Hub.
        train_mode: As in `Generator`.

    Raises:
        UserError: If the checkpoint has no masked-LM head, or if its vocabulary differs from the tokenizer's.
    """
    try:
        masked_lm, generator_tokenizer = load_masked_lm(name_or_path, options)
    except UserError as error:
        raise OptionError(
            "generator_name", name_or_path, f"it cannot be loaded as a masked language model: {error}"
        ) from error
    vocab, other = tokenizer.get_vocab(), generator_tokenizer.get_vocab()
    if vocab != other:
        token = min(set(vocab.items()) ^ set(other.items()), key=lambda item: (item[1], item[0]))[0]
        raise OptionError(
            "generator_name",
            name_or_path,
            f"its vocabulary differs from the encoder's (the id of {token!r} is {other.get(token)} in the "
            f"generator and {vocab.get(token)} in the encoder)",
            "give a generator with the encoder's vocabulary, such as distilbert-base-uncased for BERT or "
            "distilroberta-base for RoBERTa",
        )
    return Generator(masked_lm, train_mode)
