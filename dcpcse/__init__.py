"""DCPCSE: sentence embeddings by deep continuous prompts on frozen encoders."""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from dcpcse.analysis.model_comparison import Comparison
    from dcpcse.api.adapt import adapt
    from dcpcse.api.compare import compare
    from dcpcse.api.evaluate import evaluate
    from dcpcse.api.load import load
    from dcpcse.api.mine import mine
    from dcpcse.api.pretrain import PretrainingResult, pretrain
    from dcpcse.api.train import TrainingResult, train
    from dcpcse.encoders.sentence_encoder import SentenceEncoder
    from dcpcse.evaluation.evaluation_result import EvaluationResult
    from dcpcse.evaluation.mteb_encoder import MTEBEncoder
    from dcpcse.experiments.adaptation.result import Adaptation
    from dcpcse.inference.adapters import Adapters
    from dcpcse.inference.file_encoding import encode_file
    from dcpcse.inference.index.sentence_index import SentenceIndex
    from dcpcse.inference.mining.result import MiningResult
    from dcpcse.inference.simcse import SimCSE
    from dcpcse.inference.similarity import similarity
    from dcpcse.interop.convert import import_checkpoint
    from dcpcse.interop.export import export
    from dcpcse.interop.onnx_encoder import OnnxEncoder
    from dcpcse.training.arguments import TrainingArguments
    from dcpcse.training.trainer import Trainer

# With this, tqdm draws bars as text in a notebook without ipywidgets.
warnings.filterwarnings("ignore", "IProgress not found")

__version__ = "0.2.0.dev0"
__all__ = [
    "Adaptation",
    "Adapters",
    "Comparison",
    "EvaluationResult",
    "MTEBEncoder",
    "MiningResult",
    "OnnxEncoder",
    "PretrainingResult",
    "SentenceEncoder",
    "SentenceIndex",
    "SimCSE",
    "Trainer",
    "TrainingArguments",
    "TrainingResult",
    "UserError",
    "__version__",
    "adapt",
    "compare",
    "encode_file",
    "evaluate",
    "export",
    "import_checkpoint",
    "load",
    "mine",
    "pretrain",
    "similarity",
    "train",
]

_LAZY_IMPORTS = {
    "Adaptation": "experiments.adaptation.result",
    "Adapters": "inference.adapters",
    "Comparison": "analysis.model_comparison",
    "EvaluationResult": "evaluation.evaluation_result",
    "MTEBEncoder": "evaluation.mteb_encoder",
    "MiningResult": "inference.mining.result",
    "OnnxEncoder": "interop.onnx_encoder",
    "PretrainingResult": "api.pretrain",
    "SentenceEncoder": "encoders.sentence_encoder",
    "SentenceIndex": "inference.index.sentence_index",
    "SimCSE": "inference.simcse",
    "Trainer": "training.trainer",
    "TrainingArguments": "training.arguments",
    "TrainingResult": "api.train",
    "adapt": "api.adapt",
    "compare": "api.compare",
    "encode_file": "inference.file_encoding",
    "evaluate": "api.evaluate",
    "export": "interop.export",
    "import_checkpoint": "interop.convert",
    "load": "api.load",
    "mine": "api.mine",
    "pretrain": "api.pretrain",
    "similarity": "inference.similarity",
    "train": "api.train",
}
"""A dict from public names to the modules that define them. A module is imported when such a name is first used."""


if not TYPE_CHECKING:  # a type checker would allow every name

    def __getattr__(name: str) -> Any:
        if name not in _LAZY_IMPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_LAZY_IMPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    """Return all public names, including names that are not imported yet, so that notebooks can complete them."""
    return sorted({*globals(), *__all__})
