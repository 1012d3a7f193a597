"""Trained folders as other libraries read them; each is read back, and its vectors compared, before it is given.

    export("result/my-model", "onnx", "result/my-model-onnx")

What a format cannot hold whole is refused: half a model would give other vectors, and nobody would be told.
"""

import importlib
import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.utils.errors import UserError
from dcpcse.utils.files import atomic_folder, require_new_folder

if TYPE_CHECKING:
    import numpy as np

    from dcpcse.encoders.sentence_encoder import SentenceEncoder

TOLERANCE = 1e-4
"""What a number of a vector that is read back may differ by, at most."""


@dataclass(frozen=True)
class ExportFormat:
    """A format: its module here, what it is, and the packages that it takes, of one of the extras in setup.py.

    The module has `obstacles(model)`, reasons why the format cannot hold a model; `write(model, folder)`; and
    `read_back(model, folder, sentences)`, the vectors that the other library makes of the folder.
    """

    module: str
    help: str
    extra: str | None = None
    packages: tuple[str, ...] = ()

    def require_packages(self) -> None:
        """UserError for packages that are not installed."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise UserError(f"this format needs {', '.join(missing)}: pip install -e .[{self.extra}]")


EXPORT_FORMATS = {
    "peft": ExportFormat("peft", "an adapter that PeftModel opens on the frozen encoder", "peft", ("peft",)),
    "sentence-transformers": ExportFormat(
        "sentence_transformers", "a folder that SentenceTransformer opens", "st", ("sentence_transformers",)
    ),
    "onnx": ExportFormat(
        "onnx", "one graph for onnxruntime, the encoder inside", "onnx", ("onnx", "onnxscript", "onnxruntime")
    ),
    "huggingface": ExportFormat("huggingface", "the trained encoder as AutoModel opens it"),
}
"""Formats by the name that the command line gives them."""


@dataclass(frozen=True)
class Exported:
    """A folder that was written: its bytes, and the largest difference of a number in vectors read back from it."""

    folder: Path
    bytes: int
    difference: float


def export(folder: str | Path, to: str, output: str | Path, *, base: str | None = None) -> Exported:
    """Write an output folder of train.py, or of the hub, in another format, into a new folder; whole or not at all.

    base: where the frozen encoder is now, if not where it was; an exported adapter names this place.
    UserError for an unknown format, one that cannot hold the model (with all reasons), a place where something is,
    missing packages, and vectors that differ by more than `TOLERANCE` when read back.
    """
    if to not in EXPORT_FORMATS:
        raise UserError(f"unknown format {to!r}; choose one of {', '.join(EXPORT_FORMATS)}")
    target, output = EXPORT_FORMATS[to], Path(output)
    require_new_folder(output, "--output")
    target.require_packages()
    # Once what was given is right: these take seconds.
    from dcpcse.encoders.backbones import quiet
    from dcpcse.encoders.sentence_encoder import SentenceEncoder

    model = SentenceEncoder.load(folder, base, device="cpu")
    module = importlib.import_module(f".{target.module}", __package__)
    if reasons := module.obstacles(model):
        raise UserError(f"--to {to} cannot hold {folder}: {'; '.join(reasons)}; {_others(model, to)}")
    sentences = _probes(model)
    expected = model.encode(sentences, max_length=model.encoder.max_tokens)
    with atomic_folder(output) as aside, quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # what the libraries have to tell each other
        module.write(model, aside)
        difference = _difference(module.read_back(model, aside, sentences), expected)
        if not difference <= TOLERANCE:  # NaN too
            raise UserError(
                f"{to} gives other vectors than {folder}: some number differs by {difference:.1e}, more than "
                f"{TOLERANCE:.0e}; nothing was written"
            )
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    return Exported(output, size, difference)


def _probes(model: "SentenceEncoder") -> list[str]:
    """Sentences that tell whether texts are read alike: marks, none at all, and one that has to be cut."""
    marks = f'"No {model.tokenizer.mask_token}"? (She said: twice!)'
    return ["A man is playing a flute.", "Rain fell", "", marks, "rain " * min(model.encoder.max_tokens, 600)]


def _others(model: "SentenceEncoder", refused: str) -> str:
    """The formats that can hold a model."""
    modules = {
        name: importlib.import_module(f".{target.module}", __package__) for name, target in EXPORT_FORMATS.items()
    }
    fitting = [name for name, module in modules.items() if name != refused and not module.obstacles(model)]
    return f"what can: {', '.join(fitting)}"


def _difference(found: "np.ndarray", expected: "np.ndarray") -> float:
    if found.shape != expected.shape:
        raise UserError(f"vectors of shape {found.shape} were read back, not {expected.shape}; nothing was written")
    return float(abs(found - expected).max())
