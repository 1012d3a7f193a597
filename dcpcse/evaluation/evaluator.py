"""Evaluation of a model with senteval, for evaluation.py, dcpcse.evaluate, and model selection in training."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import senteval
from senteval import Evaluation, Progress, Result, Suite
from senteval.beir import LoadedBeir
from senteval.embeddings import CHUNK
from tqdm.auto import tqdm

from dcpcse.encoders.encode_options import WITH_DEFAULTS, EncodeKeywords, EncodeOptions
from dcpcse.encoders.identity import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.distributed_encoding import EncodeFunction, run_on_rank_zero
from dcpcse.evaluation.embedding_cache import EmbeddingCache
from dcpcse.evaluation.foreign_encoder import ForeignEncoder
from dcpcse.evaluation.postprocessing import Fitting
from dcpcse.utils.arguments import whole_number
from dcpcse.utils.errors import doing

logger = logging.getLogger(__name__)

GPU_CHUNK = 16 * CHUNK
"""Number of sentences per call of `encode` on a GPU: enough for full batches if several processes share them."""

METRIC_NAMES = {"STSBenchmark": "stsb_spearman", "SICKRelatedness": "sickr_spearman"}
"""Similarity task with a dev set → name of its metric in the papers' training scripts."""

OWN_METRICS = {
    "pairs": "pairs_spearman",
    "binary-pairs": "pairs_ap",
    "labels": "labels_accuracy",
    "beir": "retrieval_ndcg_at_10",
}
"""Family of the user's evaluation data (`own_data` and `retrieval_data`) → name of the metric for model selection."""


def evaluate_suite(
    model: SentenceEncoder | ForeignEncoder,
    suite: Suite,
    *,
    cache_dir: Path | None = None,
    fitting: Fitting | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
    **options: Unpack[EncodeKeywords],
) -> Evaluation:
    """Evaluate a model on loaded tasks, and return senteval's `Evaluation` with the results and times.

    Each distinct sentence is encoded once. All processes must call this function. All processes encode, the first
    process computes the scores, and all processes return the result. Classifiers of transfer tasks are trained on the
    model's device.

    Args:
        model: The model.
        suite: The loaded tasks.
        cache_dir: The folder in which embeddings are cached; None for no cache.
        fitting: A postprocessor, which is fitted to the embeddings and applied to them before scoring. Scores that
            need the internals of the model are then left out.
        on_result: A function that is called with each result as soon as it is computed.
        options: The options of `SentenceEncoder.encode`.

    Raises:
        DataError: If an embedding is not finite, or if all embeddings are equal.
    """
    how = {"options": EncodeOptions(**options), "cache_dir": cache_dir, "fitting": fitting}
    return evaluate_sizes(model, suite, (None,), **how, on_result=lambda size, result: on_result(result))[None]


@doing("while the tasks were evaluated")
def evaluate_sizes(
    model: SentenceEncoder | ForeignEncoder,
    suite: Suite,
    sizes: Sequence[int | None],
    *,
    options: EncodeOptions,
    cache_dir: Path | None = None,
    fitting: Fitting | None = None,
    on_result: Callable[[int | None, Result], None] = lambda size, result: None,
) -> dict[int | None, Evaluation]:
    """Evaluate embeddings that are shortened to several sizes, and return the `Evaluation` of each size.

    Each distinct sentence is encoded once for all sizes. The cache contains embeddings that are not shortened.
    `fitting`, and tasks that need the internals of the model, allow only one size.

    Args:
        model: As in `evaluate_suite`.
        suite: As in `evaluate_suite`.
        sizes: The sizes of the embeddings. None: embeddings that are not shortened.
        options: Options of encoding, without `truncate_dim`.
        cache_dir: As in `evaluate_suite`.
        fitting: As in `evaluate_suite`.
        on_result: A function that is called with the size and each result as soon as it is computed.

    Raises:
        UserError: If a size is larger than the size of the model's embeddings.
    """
    suite = replace(suite, settings=replace(suite.settings, device=str(model.device)))
    show_progress, options = options.show_progress, replace(options, show_progress=False).with_prompt(model)
    suite, options, complete = _prompted(model, suite, options)

    def work(encode: EncodeFunction) -> Evaluation:
        encode_with_cache = cached_encode(encode, model, cache_dir, options)
        encode = complete(encode)
        with encode_with_cache as cached, _ProgressBars(show_progress) as bars:
            cached = complete(cached)
            has_inside = fitting is None and isinstance(model, SentenceEncoder)
            inside = _ModelAccess(model, partial(encode, truncate_dim=sizes[0]), bars) if has_inside else None
            chunk = CHUNK if model.device.type == "cpu" else GPU_CHUNK
            embed, seconds = suite.embed(cached, inside=inside, progress=bars, chunk=chunk)
            evaluations = {}
            for size in sizes:
                finish = (
                    fitting.finish(cached, show_progress)
                    if fitting
                    else shortening(model, replace(options, truncate_dim=size))
                )
                how = {"finish": finish, "progress": bars, "on_result": partial(on_result, size)}
                evaluations[size] = suite.score(embed, seconds, **how)
            return evaluations

    return run_on_rank_zero(partial(model.encode, **options.given()), work)


def _prompted(
    model: SentenceEncoder | ForeignEncoder, suite: Suite, options: EncodeOptions
) -> tuple[Suite, EncodeOptions, Callable[[EncodeFunction], EncodeFunction]]:
    """Put the prompts of a model before the queries and documents of retrieval tasks, if it has named prompts.

    Return the suite, the options with which complete texts are encoded, and a function that changes an encode
    function: it then puts the prompt of the options before the texts of other tasks.
    """
    retrieval = {name: loaded.task for name, loaded in suite.tasks.items() if isinstance(loaded, LoadedBeir)}
    if not (retrieval and isinstance(model, SentenceEncoder) and model.prompts):
        return suite, options, lambda encode: encode
    prompt, tasks, completed = options.prompt(model), dict(suite.tasks), set()
    for name, task in retrieval.items():
        parts = {}
        for part, role in {"queries": "query", "documents": "document"}.items():
            texts = getattr(task, part)
            parts[part] = replace(texts, texts=[model.prompt_text(role) + text for text in texts.texts])
            completed.update(parts[part].texts)
        tasks[name] = LoadedBeir(replace(task, **parts))

    def complete(encode: EncodeFunction) -> EncodeFunction:
        def encode_complete(texts: list[str], **how: Any) -> np.ndarray:
            return encode([text if text in completed else prompt + text for text in texts], **how)

        return encode_complete

    return replace(suite, tasks=tasks), replace(options, prompt_text=""), complete


def shortening(
    model: SentenceEncoder | ForeignEncoder, options: EncodeOptions
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return a function that shortens embeddings (n, H) to the `truncate_dim` of the options, as `encode` does.

    The result is None if the options have no `truncate_dim`. The function raises UserError if the embeddings are
    smaller than `truncate_dim`.

    Args:
        model: The model.
        options: Options of encoding.
    """
    if options.truncate_dim is None:
        return None
    unit = isinstance(model, SentenceEncoder) and model.normalize

    def shortened(vectors: np.ndarray) -> np.ndarray:
        whole_number("truncate_dim", options.truncate_dim, 1, vectors.shape[1])
        return options.finish(vectors, unit)

    return shortened


def dev_metrics(results: Mapping[str, Result]) -> dict[str, float]:
    """Return the dev metrics of SentEval's tasks and of user data by name.

    Metrics of SentEval's tasks have their names in the papers, and metrics of user data have names such as
    `pairs_spearman`. Accuracies are × 100, all other scores are fractions. The mean `avg_sts` or `avg_transfer` is
    included if the results contain all tasks of the mean. If a family has several sets of user data, the metric is the
    mean over the sets. Each set then also has a separate metric, such as `retrieval_FOLDER_ndcg_at_10`.
    """
    sts = {name: results[task].score for task, name in METRIC_NAMES.items() if task in results}
    transfer = {task: results[task].points for task in senteval.TRANSFER_TASKS if task in results}
    averages = {}
    if len(sts) == len(METRIC_NAMES):
        averages["avg_sts"] = sum(sts.values()) / len(sts)
    if len(transfer) == len(senteval.TRANSFER_TASKS):
        averages["avg_transfer"] = sum(transfer.values()) / len(transfer)
    return _own_scores(results) | sts | transfer | averages


def _own_scores(results: Mapping[str, Result]) -> dict[str, float]:
    """Return the metric of each family of user data and, in a family with several tasks, the metric of each task."""
    families: dict[str, dict[str, float]] = {}
    for task, result in results.items():
        if result.family in OWN_METRICS:
            score = result.points if result.family == "labels" else result.score
            families.setdefault(result.family, {})[task] = score
    scores = {}
    for family, of_tasks in families.items():
        kind, _, measure = OWN_METRICS[family].partition("_")
        scores[OWN_METRICS[family]] = sum(of_tasks.values()) / len(of_tasks)
        if len(of_tasks) > 1:
            scores |= {f"{kind}_{task}_{measure}": score for task, score in of_tasks.items()}
    return scores


def described(options: EncodeOptions) -> dict[str, Any]:
    """Return the options that change the vectors as an entry `encoding` of a record; {} if all are defaults."""
    return {"encoding": recorded} if (recorded := options.recorded()) else {}


@contextmanager
def cached_encode(
    encode: Callable,
    model: SentenceEncoder | ForeignEncoder,
    cache_dir: Path | None,
    options: EncodeOptions = WITH_DEFAULTS,
) -> Iterator[Callable]:
    """Yield an encode function that reads cached embeddings and encodes only the missing sentences.

    Args:
        encode: The encode function of the model.
        model: The model.
        cache_dir: The folder of the cache. None: yield `encode` without a cache.
        options: The options with which the function encodes.

    Raises:
        UserError: If the model is a `ForeignEncoder` and `cache_dir` is given, because nothing identifies the
            embeddings of such a model.
    """
    if cache_dir is None:
        yield encode
        return
    if isinstance(model, ForeignEncoder):
        model.refuse_cache()
    cache = EmbeddingCache(encode, Path(cache_dir), identity(model) | described(options))
    try:
        yield cache
    finally:
        cache.close()
        if cache.hits:
            logger.info("%s embeddings were read from the cache %s", f"{cache.hits:,}", cache.path)


def token_embeddings(model: SentenceEncoder) -> np.ndarray:
    """Return the token embedding matrix (V, H) of an encoder, with a row for each token id."""
    return model.encoder.backbone.get_input_embeddings().weight.detach().float().cpu().numpy()


class _ModelAccess:
    """Access to the internals of a model, for the tasks geometry and frequent of senteval (`senteval.Inside`)."""

    def __init__(self, model: SentenceEncoder, encode: EncodeFunction, progress: Progress) -> None:
        self.model, self.encode, self.progress = model, encode, progress

    def token_embeddings(self) -> np.ndarray:
        return token_embeddings(self.model)

    def encode_without_frequent(self, sentences: list[str], count: int, counted: list[str]) -> np.ndarray:
        ids = self.model.tokenizer(counted, add_special_tokens=False, verbose=False)["input_ids"]
        frequency = Counter(token for row in ids for token in row)
        # Equally frequent tokens are ordered by id; Counter would order them by first appearance.
        frequent = sorted(frequency, key=lambda token: (-frequency[token], token))[:count]
        activity, parts = f"encode without the {count} most frequent tokens", []
        for start in range(0, len(sentences), CHUNK):
            self.progress(activity, start, len(sentences))
            parts.append(self.encode(sentences[start : start + CHUNK], without=frequent))
        self.progress(activity, len(sentences), len(sentences))
        return np.concatenate(parts)


class _ProgressBars:
    """Progress bars, one per activity: on stderr, or in the cell of a notebook."""

    def __init__(self, shown: bool) -> None:
        self.shown, self.activity, self.done, self.bar = shown, None, 0, None

    def __enter__(self) -> "_ProgressBars":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, activity: str, done: int, total: int) -> None:
        if activity != self.activity:
            self.__exit__()
            self.activity, self.done = activity, 0
            self.bar = tqdm(total=total, desc=activity, disable=not self.shown)
        self.bar.update(done - self.done)
        self.done = done
