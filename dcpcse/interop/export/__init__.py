"""Export trained folders to the formats of other libraries.

Before an export is saved, its embeddings by the other library are compared with the embeddings of the model.

    export("result/my-model", "onnx", "result/my-model-onnx")

A model that a format cannot represent completely is rejected, because the export would silently return different
embeddings.
"""

import importlib
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from dcpcse.encoders.encode_options import EncodeKeywords, EncodeOptions
from dcpcse.inference.similarity import pairwise_cosines
from dcpcse.utils.arguments import known_arguments, path
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.files import atomic_folder, require_new_folder
from dcpcse.utils.packages import require_packages

if TYPE_CHECKING:
    import numpy as np

    from dcpcse.encoders.sentence_encoder import SentenceEncoder

TOLERANCE = 1e-4
"""Largest allowed absolute difference between the values of an embedding before and after export."""

COSINE_TOLERANCE = 0.1
"""Largest allowed value of 1 - cosine between an embedding before and after an export that rounds weights."""


@dataclass(frozen=True)
class ExportFormat:
    """A format in which another library can use an exported model.

    The module of a format has three functions. `obstacles(model)` returns the reasons why the format cannot represent
    a model. `write(model, folder, options)` writes the export. `read_back(model, folder, sentences)` returns the
    embeddings that the other library computes from the exported folder.

    Args:
        module: Name of the module in this package.
        help: Help text of the format.
        extra: Name of the extra in setup.py that installs the required packages.
        packages: The required packages.
        merges: Whether a LoRA adapter is merged into the weights of the encoder.
        options: Names of the options of encoding that an exported model can contain.
        is_rounded: Whether the export rounds weights. Embeddings then differ in all values, so they are compared by
            their cosines.
    """

    module: str
    help: str
    extra: str | None = None
    packages: tuple[str, ...] = ()
    merges: bool = True
    options: tuple[str, ...] = ()
    is_rounded: bool = False

    @property
    def tolerance(self) -> float:
        """The largest allowed result of `difference`: `COSINE_TOLERANCE` if `is_rounded`, else `TOLERANCE`."""
        return COSINE_TOLERANCE if self.is_rounded else TOLERANCE

    def difference(self, actual: "np.ndarray", expected: "np.ndarray") -> float:
        """Return the largest absolute difference between the values of two arrays of embeddings (N, H).

        If `is_rounded`, return the largest value of 1 - cosine of two embeddings instead.
        """
        if actual.shape != expected.shape:
            raise UserError(
                f"embeddings of the export have shape {actual.shape}, but embeddings of the model have "
                f"{expected.shape}; nothing was written; choose another format with {spell('to')}"
            )
        if not self.is_rounded:
            return float(abs(actual - expected).max())
        return float((1 - pairwise_cosines(actual, expected)).max())

    def subject(self, model: "SentenceEncoder") -> "SentenceEncoder":
        """Return the model to export, with its LoRA adapter merged if `merges` is set.

        Before the adapter is merged, the weights of the given model are converted to float32, since half precision
        would round the merged weights.
        """
        return model.float().merged() if self.merges and model.encoder.lora is not None else model

    def require_packages(self) -> None:
        """Raise UserError if required packages are not installed."""
        require_packages("this format", self.packages, self.extra)


ONNX = ExportFormat(
    "onnx",
    "one graph for onnxruntime, including the encoder",
    "onnx",
    ("onnx", "onnxscript", "onnxruntime"),
    options=("truncate_dim",),
)
EXPORT_FORMATS = {
    "peft": ExportFormat("peft", "an adapter for PeftModel and the frozen encoder", "peft", ("peft",), merges=False),
    "sentence-transformers": ExportFormat(
        "sentence_transformers",
        "a folder for SentenceTransformer",
        "st",
        ("sentence_transformers",),
        options=("truncate_dim",),
    ),
    "onnx": ONNX,
    "onnx-int8": replace(
        ONNX,
        module="onnx_int8",
        help="the graph of onnx with weights of 8 bits, which a CPU computes faster",
        is_rounded=True,
    ),
    "huggingface": ExportFormat("huggingface", "a trained encoder for AutoModel"),
}
"""A dict from the names of formats on the command line to the formats."""


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Args:
        folder: The exported folder.
        bytes: Size of the folder in bytes.
        difference: The largest absolute difference between the embeddings of the export and of the model. For
            "onnx-int8", the largest value of 1 - cosine.
    """

    folder: Path
    bytes: int
    difference: float


@known_arguments
def export(
    folder: str | Path, to: str, output: str | Path, *, base: str | None = None, **options: Unpack[EncodeKeywords]
) -> Exported:
    """Export an output folder of train.py, local or on the Hub, to a new folder.

    If the export fails, no folder is left behind.

    Args:
        folder: The output folder of train.py, or its hub id.
        to: Name of the format, such as "onnx" (a key of `EXPORT_FORMATS`).
        output: The new folder.
        base: Current location of the frozen encoder, if it has moved. An exported adapter refers to this location.
        options: Options of `SentenceEncoder.encode` that the format supports. With truncate_dim=n, the exported model
            returns the first n values of the embeddings.

    Raises:
        UserError: If the format is unknown, if the format cannot represent the model (the message gives all reasons)
            or an option, if the output exists, if packages are missing, or if embeddings differ by more than the
            tolerance of the format.
    """
    if to not in EXPORT_FORMATS:
        raise UserError(f"unknown format {to!r}; choose from {', '.join(EXPORT_FORMATS)}")
    target, output = EXPORT_FORMATS[to], Path(path("output", output))
    chosen = EncodeOptions(**options)
    for name in chosen.given():
        if name not in target.options:
            others = [spell("to", other) for other, form in EXPORT_FORMATS.items() if name in form.options]
            remedy = f"leave it out, or use {' or '.join(others)}" if others else "leave it out"
            raise OptionError(name, reason=f"is not supported with {spell('to', to)}", remedy=remedy)
    require_new_folder(output, "output")
    target.require_packages()
    # Imported after the checks, because these imports take seconds.
    from dcpcse.encoders.backbones import quiet
    from dcpcse.encoders.sentence_encoder import SentenceEncoder

    model = SentenceEncoder.load(folder, base, device="cpu")
    model.require_size(chosen)
    module = importlib.import_module(f".{target.module}", __package__)
    exported = target.subject(model)
    if reasons := module.obstacles(exported):
        raise UserError(f"{spell('to', to)} cannot represent {folder}: {'; '.join(reasons)}; {_others(model, to)}")
    sentences = _probes(model)
    expected = model.encode(sentences, **{"max_length": model.max_tokens, **options})
    with atomic_folder(output) as temporary, quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # raised by one library about another
        module.write(exported, temporary, chosen)
        difference = target.difference(module.read_back(exported, temporary, sentences), expected)
        if not difference <= target.tolerance:  # also true for NaN
            raise UserError(
                f"embeddings of {to} differ from the embeddings of {folder} by up to {difference:.1e}, more than "
                f"{target.tolerance:.0e}; nothing was written; choose another format with {spell('to')}"
            )
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    return Exported(output, size, difference)


def _probes(model: "SentenceEncoder") -> list[str]:
    """Return test sentences that reveal differences in tokenization, such as an empty and a very long sentence."""
    marks = f'"No {model.tokenizer.mask_token}"? (She said: twice!)'
    empty = [""] if model.tokenizer("")["input_ids"] else []  # other libraries have no vector for a text of no tokens
    return ["A man is playing a flute.", "Rain fell", *empty, marks, "rain " * min(model.encoder.max_tokens, 600)]


def _others(model: "SentenceEncoder", refused: str) -> str:
    """Return a phrase with the names of the other formats that can represent a model."""
    fitting = [
        name
        for name, target in EXPORT_FORMATS.items()
        if name != refused
        and not importlib.import_module(f".{target.module}", __package__).obstacles(target.subject(model))
    ]
    return f"use {spell('to', ' or '.join(fitting))}"
