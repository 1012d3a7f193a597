"""Export a model as an ONNX graph with weights of 8 bits, whose layers round their inputs to 8 bits (dynamic
quantization of onnxruntime)."""

from pathlib import Path
from tempfile import TemporaryDirectory

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.interop.export import onnx
from dcpcse.interop.export.onnx import obstacles, read_back
from dcpcse.interop.onnx_encoder import GRAPH

__all__ = ["obstacles", "read_back", "write"]


def write(model: SentenceEncoder, folder: Path, options: EncodeOptions) -> None:
    """Write the files of the format `onnx`, and replace the float32 weights of matrix products and embeddings by int8.

    Args:
        model: The model to export.
        folder: The folder to write.
        options: As in `onnx.write`.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    onnx.write(model, folder, options)
    with TemporaryDirectory(dir=folder) as exact:
        for file in folder.glob(f"{GRAPH}*"):  # weights of 2 GB or more are in a second file
            file.rename(Path(exact, file.name))
        with onnx.quietly(None):  # a recommendation for graphs of convolutions
            quantize_dynamic(Path(exact, GRAPH), folder / GRAPH, per_channel=True, weight_type=QuantType.QInt8)
