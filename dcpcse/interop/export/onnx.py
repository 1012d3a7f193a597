"""Export encoder, prompts, template, pooling, head and denoising as one graph for onnxruntime."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, processors
from torch import Tensor, nn

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Slots, TokenTemplate
from dcpcse.interop.onnx_encoder import GRAPH, INPUTS, ONNX_FORMAT, OUTPUT, SETTINGS, TOKENIZER, OnnxEncoder
from dcpcse.utils.errors import UserError, first_line, spell
from dcpcse.utils.files import write_atomic, write_json_atomic

MOST_IN_ONE_FILE = 2**31 - 2**24
"""Maximum size in bytes of weights in the main file. An ONNX file is limited to 2 GB, so larger weights get a second
file."""

ONNX_README = """# Sentence embeddings ({method}) as an ONNX graph

`{graph}` contains the encoder and all trained weights. Its inputs are `input_ids` and `attention_mask`, int64 of shape
(batch, length), padded at the end. Its output `embeddings` is float32 of shape (batch, {dimension}), not normalised.
`{tokenizer}` converts a text to these inputs; it includes special tokens, template, truncation and padding. Before
tokenization, apply the settings under `text` in `{settings}` in this order: `final_period` adds a full stop to a text
that does not end in . ? " '; `strip` removes white space at both ends; `prepend` is put before the text.

```python
from dcpcse import OnnxEncoder  # requires onnxruntime, tokenizers and numpy, but not torch

FOLDER = "."  # the folder of this README
encoder = OnnxEncoder(FOLDER)
embeddings = encoder.encode(["A man is playing a flute.", "Rain fell."])
```
"""


def obstacles(model: SentenceEncoder) -> list[str]:
    """Return the reasons why an ONNX graph of the model would return different embeddings, or []."""
    reasons = {
        f"its encoder is in {str(model.encoder.backbone.dtype).removeprefix('torch.')}, but graphs are in "
        "float32": model.encoder.backbone.dtype != torch.float32,
        "its tokenizer has no tokenizer.json": not model.tokenizer.is_fast,
    }
    return [reason for reason, there in reasons.items() if there]


def write(model: SentenceEncoder, folder: Path, options: EncodeOptions) -> None:
    """Write the model as an ONNX graph, its tokenizer with the template, the settings of `OnnxEncoder`, and a README.

    Args:
        model: The model to export.
        folder: The folder to write.
        options: Options of encoding, of which only `truncate_dim` may be given.
    """
    _tokenizer(model).save(str(folder / TOKENIZER))
    _write_graph(model, folder / GRAPH, options)
    settings = _settings(model, options.truncate_dim or model.dimension)
    write_json_atomic(folder / SETTINGS, settings)
    names = {"graph": GRAPH, "tokenizer": TOKENIZER, "settings": SETTINGS}
    page = ONNX_README.format(method=model.method or "DCPCSE", dimension=settings["dimension"], **names)
    write_atomic(folder / "README.md", page)


def read_back(model: SentenceEncoder, folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Return the embeddings (N, H) that onnxruntime computes from an exported folder, to check the export.

    Args:
        model: Not used.
        folder: The exported folder.
        sentences: N sentences.
    """
    encoder = OnnxEncoder(folder)
    return encoder.encode(sentences, max_length=encoder.max_tokens)


class _Graph(nn.Module):
    """A module that maps ids and mask (N, L) to embeddings (N, H), or to the first values of embeddings.

    The positions of template slots are computed from the sentence lengths."""

    def __init__(self, model: SentenceEncoder, options: EncodeOptions) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        template = self.model.template
        slots = None if template is None else _slots(template, attention_mask.sum(1) - template.length)
        _, embeddings = self.model.pool_and_embed(input_ids, attention_mask, slots, normalize=False)
        return self.model.finish(embeddings, self.options)


def _slots(template: TokenTemplate, content: Tensor) -> Slots:
    """Return the template slots for sentences of `content` tokens (N,).

    A slot before the sentence has a fixed position. The position of a slot after the sentence depends on the number of
    tokens of the sentence."""

    def indices(of: Callable[[int], Sequence[int]]) -> Tensor:
        first, next_to_it = (torch.tensor(of(tokens), dtype=torch.long) for tokens in (0, 1))
        return first + (next_to_it - first) * content.unsqueeze(1)

    return Slots(indices(template.masks), content, indices(template.prompts), torch.zeros_like(content))


def _write_graph(model: SentenceEncoder, path: Path, options: EncodeOptions) -> None:
    # The graph takes padded batches, since packing depends on the number of tokens in the data.
    set_packed(model, False)
    rows, length = 3, min(model.longest_template + 7, model.encoder.max_tokens)  # no other dimension has these sizes
    example = torch.full((rows, length), 5), torch.ones(rows, length, dtype=torch.long)
    dynamic = {name: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name in INPUTS}
    names = {name: {0: "batch", 1: "length"} for name in INPUTS}
    external = sum(weight.numel() * weight.element_size() for weight in model.parameters()) > MOST_IN_ONE_FILE
    with torch.no_grad(), quietly("torch.onnx"):
        try:
            program = torch.export.export(_Graph(model, options), example, dynamic_shapes=dynamic, strict=False)
        except Exception as error:  # torch raises many classes for what a graph cannot express
            problem = f"torch cannot export this model as a graph ({first_line(error)})"
            raise UserError(f"{problem}; choose another format by {spell('to')}") from error
        torch.onnx.export(
            program,
            f=path,
            input_names=INPUTS,
            output_names=[OUTPUT],
            dynamic_shapes=names,
            external_data=external,
            verbose=False,
        )


@contextlib.contextmanager
def quietly(name: str | None) -> Iterator[None]:
    """Within the context, suppress all Python warnings and a library's log messages below the level ERROR.

    Args:
        name: Name of the library's logger; None for the root logger.
    """
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _tokenizer(model: SentenceEncoder) -> Tokenizer:
    """Return the tokenizer of the model with template, truncation and padding."""
    tokenizer, template = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str()), model.template
    if template is not None:
        around = {"before": template.before, "after": template.after}
        tokenizer.post_processor = processors.TemplateProcessing(
            single=["before", "$A", "after"],
            special_tokens=[
                {"id": name, "ids": ids, "tokens": model.tokenizer.convert_ids_to_tokens(ids)}
                for name, ids in around.items()
            ],
        )
    tokenizer.enable_truncation(model.max_tokens, direction=model.tokenizer.truncation_side)
    tokenizer.enable_padding(pad_id=model.tokenizer.pad_token_id, pad_token=model.tokenizer.pad_token)
    return tokenizer


def _settings(model: SentenceEncoder, dimension: int) -> dict[str, object]:
    """Return, as JSON values, the settings that `OnnxEncoder` needs in addition to graph and tokenizer.

    Args:
        dimension: Number of values that the graph returns.
    """
    template, sizes = model.template, [size for size in model.matryoshka_dims if size <= dimension]
    return {
        "format": ONNX_FORMAT,
        "method": model.method,
        "dimension": dimension,
        **({"matryoshka_dims": sizes} if sizes else {}),
        "max_tokens": model.max_tokens,
        "text": {
            "final_period": model.final_period,
            "strip": template is not None,
            "prepend": model.text_prefix if template is None else template.lead,
            **({"prompts": model.prompts} if model.prompts and template is None else {}),
        },
    }
