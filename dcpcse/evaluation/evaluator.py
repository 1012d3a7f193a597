"""The only bridge to senteval: measuring a model, in evaluation and for model selection in training."""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import senteval
from senteval import Evaluation, Result, Suite, load_suite, settings_of_mode
from tqdm import tqdm

from dcpcse.encoders.fingerprint import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.distributed_encoding import EncodeFunction, run_on_rank_zero
from dcpcse.evaluation.embedding_cache import EmbeddingCache
from dcpcse.evaluation.postprocessing import Fitting

logger = logging.getLogger(__name__)

METRIC_NAMES = {"STSBenchmark": "stsb_spearman", "SICKRelatedness": "sickr_spearman"}
"""Similarity tasks with a dev set and the names that the papers' scripts select checkpoints by."""


def evaluate_suite(
    model: SentenceEncoder,
    suite: Suite,
    *,
    batch_size: int = 128,
    cache_dir: Path | None = None,
    fitting: Fitting | None = None,
    show_progress: bool = False,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Evaluation:
    """Measure a model on loaded tasks; each distinct sentence is encoded once. DataError for unusable embeddings.

    Of several processes, which all call this, each encodes a share; the first measures, and all get what it measured.
    The classifiers of the transfer tasks train where the model is. cache_dir: where embeddings are kept for the next
    time. fitting: a map of the embeddings that is fitted before they are scored; nothing looks into the model then.
    on_result is called with every result when it is there.
    """
    suite = replace(suite, settings=replace(suite.settings, device=str(model.device)))

    def work(encode: EncodeFunction) -> Evaluation:
        with cached_encode(encode, model, cache_dir) as kept, _Bars(show_progress) as bars:
            inside = _Inside(model, encode) if fitting is None else None
            finish = fitting.finish(kept) if fitting else None
            return suite.measure(kept, inside=inside, finish=finish, progress=bars, on_result=on_result)

    return run_on_rank_zero(partial(model.encode, batch_size=batch_size), work)


def evaluate(
    model: SentenceEncoder, tasks: Sequence[str], data_dir: str | Path, mode: str = "test", **changes: Any
) -> dict[str, Result]:
    """Results by task of a mode of the papers' scripts; changes: of its settings, such as official=False."""
    return evaluate_suite(model, load_suite(tasks, data_dir, settings_of_mode(mode, **changes))).results


def dev_metrics(results: Mapping[str, Result]) -> dict[str, float]:
    """Metrics by the papers' names: Spearman as fractions, dev accuracies × 100.

    `avg_sts` and `avg_transfer` are the means of the tasks of their kind, where all of these were measured.
    """
    sts = {name: results[task].score for task, name in METRIC_NAMES.items() if task in results}
    transfer = {task: results[task].points for task in senteval.TRANSFER_TASKS if task in results}
    averages = {}
    if len(sts) == len(METRIC_NAMES):
        averages["avg_sts"] = sum(sts.values()) / len(sts)
    if len(transfer) == len(senteval.TRANSFER_TASKS):
        averages["avg_transfer"] = sum(transfer.values()) / len(transfer)
    return sts | transfer | averages


@contextmanager
def cached_encode(encode: Callable, model: SentenceEncoder, cache_dir: Path | None) -> Iterator[Callable]:
    """The encode function, with embeddings kept in a folder if there is one."""
    if cache_dir is None:
        yield encode
        return
    cache = EmbeddingCache(encode, Path(cache_dir), identity(model))
    try:
        yield cache
    finally:
        cache.close()
        if cache.hits:
            logger.info("%s embeddings were read back from %s", f"{cache.hits:,}", cache.path)


def token_embeddings(model: SentenceEncoder) -> np.ndarray:
    """The embedding matrix (V, H) of an encoder."""
    return model.encoder.backbone.get_input_embeddings().weight.detach().float().cpu().numpy()


class _Inside:
    """A model, opened for senteval's geometry."""

    def __init__(self, model: SentenceEncoder, encode: EncodeFunction) -> None:
        self.model, self.encode = model, encode

    def token_embeddings(self) -> np.ndarray:
        return token_embeddings(self.model)

    def encode_without_frequent(self, sentences: list[str], count: int) -> np.ndarray:
        ids = self.model.tokenizer(sentences, add_special_tokens=False, verbose=False)["input_ids"]
        frequency = Counter(token for row in ids for token in row)
        # Ties by id: Counter would break them by order of appearance.
        frequent = sorted(frequency, key=lambda token: (-frequency[token], token))[:count]
        distinct = {sentence: row for row, sentence in enumerate(dict.fromkeys(sentences))}
        vectors = self.encode(list(distinct), without=frequent)
        return vectors[[distinct[sentence] for sentence in sentences]]


class _Bars:
    """Progress bars on stderr, one for each thing that is being done."""

    def __init__(self, shown: bool) -> None:
        self.shown, self.what, self.done, self.bar = shown, None, 0, None

    def __enter__(self) -> "_Bars":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self.what:
            self.__exit__()
            self.what, self.done = what, 0
            self.bar = tqdm(total=total, desc=what, file=sys.stderr, disable=not self.shown)
        self.bar.update(done - self.done)
        self.done = done
