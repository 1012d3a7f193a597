"""Write a README with code that computes embeddings without this package, and run the same steps as a check."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.model_folder import WITH_POOLER, SentenceModules
from dcpcse.utils.files import write_atomic


@dataclass(frozen=True)
class Pooling:
    """A pooling that computes embeddings (N, H) from the output of a transformers model and the mask (N, L).

    Args:
        line: Python code of the pooling, for the README. Its variables are `output` and `mask`.
        of: The same pooling as a function of output and mask.
    """

    line: str
    of: Callable[[Any, Tensor], Tensor]


POOLING_CODE = {
    "cls": Pooling("output.last_hidden_state[:, 0]", lambda output, mask: output.last_hidden_state[:, 0]),
    "mean": Pooling(
        "(output.last_hidden_state * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)",
        lambda output, mask: (output.last_hidden_state * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True),
    ),
    "lasttoken": Pooling(  # of texts that are padded on either side
        "output.last_hidden_state[range(len(mask)), mask.cumsum(1).argmax(1)]",
        lambda output, mask: output.last_hidden_state[range(len(mask)), mask.cumsum(1).argmax(1)],
    ),
    "pooler": Pooling("output.pooler_output", lambda output, mask: output.pooler_output),
}


def pooling_of(model: SentenceEncoder) -> Pooling:
    """Return the pooling of an exportable model. An MLP is exported as the pooler of transformers."""
    return POOLING_CODE["pooler" if model.head_at_inference else SentenceModules.POOLINGS[model.pooling]]


def needs_other_pooler(model: SentenceEncoder) -> bool:
    """Return whether a model uses an MLP at inference, but transformers has no pooler for this type of encoder."""
    return model.head_at_inference and model.source.model_type not in WITH_POOLER


def _padding(model: SentenceEncoder) -> dict[str, str]:
    """Return the arguments with which the tokenizer of a model pads on the right.

    In transformers, padding on the left shifts the positions of a text. With prompts, the vectors would differ.
    """
    return {} if model.tokenizer.padding_side == "right" else {"padding_side": "right"}


def embed(model: SentenceEncoder, module: nn.Module, folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Encode one batch of sentences with the steps that `write_page` shows, and return the embeddings (N, H).

    Args:
        model: The exported model.
        module: The model that transformers loads from the folder.
        folder: The exported folder.
        sentences: N sentences.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, **_padding(model))
    texts = [model.text_prefix + sentence for sentence in sentences]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=model.max_tokens, return_tensors="pt")
    mask = batch["attention_mask"]
    with torch.no_grad():
        output = module(input_ids=batch["input_ids"], attention_mask=mask)
        return model.finish(pooling_of(model).of(output, mask), EncodeOptions()).numpy()


def write_page(
    model: SentenceEncoder, folder: Path, library: str, imports: Sequence[str], load: str, note: str
) -> None:
    """Write a README.md that describes the folder and shows the code that computes embeddings with it.

    Args:
        model: The exported model.
        folder: The exported folder.
        library: Name of the library that loads the folder.
        imports: Lines of code with the imports.
        load: Code that loads the model.
        note: Text before the code.
    """
    side = "".join(f", {name}={value!r}" for name, value in _padding(model).items())
    lines = [
        *("---", f"library_name: {library}", "---", f"# Sentence embeddings ({model.method or 'DCPCSE'})", ""),
        *(note, "", "```python", *imports, "", 'FOLDER = "."  # the folder of this README'),
        'sentences = ["A man is playing a flute.", "Rain fell."]',
        *([f"sentences = [{model.text_prefix!r} + text for text in sentences]"] if model.text_prefix else []),
        *([f"# Named prompts, to be put before the sentences: {model.prompts}"] if model.prompts else []),
        f"tokenizer = AutoTokenizer.from_pretrained(FOLDER{side})",
        f"model = {load}.eval()",
        f'options = {{"padding": True, "truncation": True, "max_length": {model.max_tokens}}}',
        'batch = tokenizer(sentences, return_tensors="pt", **options)',
        'mask = batch["attention_mask"]',
        "with torch.no_grad():",
        '    output = model(input_ids=batch["input_ids"], attention_mask=mask)',
        f"embeddings = {pooling_of(model).line}",
        *(["embeddings = torch.nn.functional.normalize(embeddings)"] if model.normalize else []),
        *("```", ""),
    ]
    write_atomic(folder / "README.md", "\n".join(lines))
