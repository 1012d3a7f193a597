"""What a report needs of a run's model: cosines of the pairs of STS-B, alignment and uniformity, neighbours."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.analysis.html_report.inputs import ReportInputs
from dcpcse.analysis.html_report.nearest_neighbours import Neighbour, find_neighbours
from dcpcse.analysis.plots.inputs import STS_TASK
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from senteval.embeddings import Embeddings, Encode
    from senteval.geometry import PairGeometry
    from senteval.lines import Located

    from dcpcse.encoders.sentence_encoder import SentenceEncoder


@dataclass(frozen=True, eq=False)
class ModelMeasurements:
    """What was measured of a model: on the pairs (None without any), and the neighbours of every query."""

    pairs: "PairGeometry | None"
    neighbours: list[list[Neighbour]]


def measure_models(
    folders: Mapping[str, Path], inputs: ReportInputs, encoder: EncoderArguments, count: int
) -> tuple[dict[str, ModelMeasurements], dict[str, str]]:
    """What is measured of every model that can be loaded, and why the others cannot; both by label.

    One model after the other; count: neighbours of each query.
    """
    from senteval import DataError

    from dcpcse.encoders.storage.manifest import is_model_folder
    from dcpcse.inference.loading import load_model

    measured, failed = {}, {}
    for label, folder in folders.items():
        notify(f"{label}: {folder}")
        try:
            if not is_model_folder(folder):
                raise UserError(f"no trained model is in {folder}: its training has not ended")
            measured[label] = measure_model(label, load_model(str(folder), encoder), inputs, encoder.batch_size, count)
        except (UserError, DataError) as error:
            failed[label] = str(error)
            notify(f"{label} is left out of pictures and neighbours: {error}")
    return measured, failed


def measure_model(
    label: str, model: "SentenceEncoder", inputs: ReportInputs, batch_size: int, count: int
) -> ModelMeasurements:
    """Encode each distinct sentence once; DataError for embeddings without a cosine."""
    from senteval.geometry import measure_pairs

    embed = embed_all(label, partial(model.encode, batch_size=batch_size), inputs.located())
    queries, corpus = inputs.queries, inputs.corpus
    found = find_neighbours(embed(queries), embed(corpus), corpus, count, queries) if queries and corpus else []
    pairs = inputs.pairs
    if pairs is None:
        return ModelMeasurements(None, found)
    return ModelMeasurements(measure_pairs(STS_TASK, pairs, embed(pairs.first), embed(pairs.second)), found)


def embed_all(label: str, encode: "Encode", located: "Iterable[Located]") -> "Embeddings":
    """`senteval.embeddings.encode_all` with a bar of progress that is called as the model."""
    from senteval.embeddings import encode_all
    from tqdm import tqdm

    with tqdm(desc=label, unit=" sentences") as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return encode_all(encode, located, progress, chunk=512)
