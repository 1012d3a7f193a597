"""Classification of sentence pairs by their two embeddings (SBERT, section 3, "Classification Objective Function")."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpcse.data.columns import CLASSES, LABEL, Columns
from dcpcse.losses.base import EncodedBatch, PerRowLoss
from dcpcse.losses.functional import precise
from dcpcse.utils.errors import UserError, spell


@dataclass(frozen=True)
class Pair:
    """A pair of sentences to classify.

    Args:
        first: Name of the view of the first sentence.
        second: Name of the view of the second sentence.
        label: The class of the pair. None if the class is the label of the example.
    """

    first: str
    second: str
    label: str | None = None


class Classification(PerRowLoss):
    """Classification of sentence pairs by softmax(W [u, v, abs(u - v)] + b) (SBERT, section 3).

    u and v are the embeddings of the two sentences. W and b are trained, and they are not saved to the model folder.
    The labels (B,) of the examples are in `extras["labels"]`, as indices into `dcpcse.data.columns.CLASSES`.

    Args:
        hidden_size: The dimension H of u and v.
        classes: The classes that occur in the data.
        pairs: The pairs to classify.
        max_square: Whether to use max(u, v)² as a further feature (ConSERT's code).

    Raises:
        ValueError: If there are fewer than two classes or no pairs, or if a class is unknown.
    """

    def __init__(
        self, hidden_size: int, classes: Sequence[str], pairs: Sequence[Pair], *, max_square: bool = False
    ) -> None:
        super().__init__()
        used = {pair.label for pair in pairs} - {None}
        if len(classes) < 2 or not pairs or not used <= set(classes) <= set(CLASSES):
            raise ValueError(f"cannot classify {list(pairs)} as {list(classes)}; give pairs and 2 or 3 of {CLASSES}")
        self.classes = tuple(classes)
        self.pairs = tuple(pairs)
        self.max_square = max_square
        self.head = nn.Linear((4 if max_square else 3) * hidden_size, len(self.classes))
        indices = [self.classes.index(name) if name in self.classes else -1 for name in CLASSES]
        self.register_buffer("class_indices", torch.tensor(indices), persistent=False)

    def num_items(self, batch: EncodedBatch, sampled: None) -> int:
        return len(batch.input_ids) * len(self.pairs)

    def mean(self, batch: EncodedBatch, sampled: None) -> Tensor:
        """Return the mean cross entropy over all pairs of all examples, in nats."""
        views = batch.embeddings
        logits = self.head(torch.cat([self._features(views[pair.first], views[pair.second]) for pair in self.pairs]))
        targets = torch.cat([self._targets(batch, pair.label) for pair in self.pairs])
        correct = (logits.argmax(-1) == targets).sum()
        self.metrics = {"accuracy": (correct, torch.full((), len(targets), device=correct.device))}
        return F.cross_entropy(precise(logits), targets)

    def _features(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the features (B, 3 · H) of pairs of embeddings (B, H). With `max_square`, (B, 4 · H)."""
        features = [first, second, (first - second).abs()]
        return torch.cat([*features, torch.maximum(first, second) ** 2] if self.max_square else features, dim=-1)

    def _targets(self, batch: EncodedBatch, label: str | None) -> Tensor:
        if label is None:
            return self.class_indices[batch.extras["labels"]]
        index = self.classes.index(label)
        return torch.full((len(batch.input_ids),), index, device=self.class_indices.device)


def classified_pairs(
    method: str, columns: Columns, view: Callable[[str], str] = str, *, labels: Sequence[str] = (LABEL,)
) -> tuple[Sequence[str], Sequence[Pair]]:
    """Return the classes that occur in data with these columns, and the pairs of views to classify.

    With a label column, the labelled pairs are classified. With hard negatives, the pair of anchor and positive has
    the class entailment. The pairs of the anchor and each hard negative have the class contradiction.

    Args:
        method: Name of the method, for messages.
        columns: The columns of the data.
        view: Function of the name of a column that returns the name of the view to classify.
        labels: The label columns that the method uses, for messages.

    Raises:
        UserError: If all labels are equal, or if the data have neither labels nor hard negatives.
    """
    first, second = view("anchor"), view("positive")
    if columns.label == LABEL:
        classes = columns.classes or CLASSES
        if len(classes) < 2:
            raise UserError(
                f"{spell('train_file')}: all rows have the label {classes[0]}; classification needs at least two "
                f"labels, so add rows with another one ({', '.join(name for name in CLASSES if name != classes[0])})"
            )
        return classes, [Pair(first, second)]
    if not columns.negatives:
        raise UserError(
            f"{spell('method', method)} needs labelled pairs or hard negatives; give a {spell('train_file')} with a "
            f"third column: {', '.join(labels)}, or hard negatives (sentences that contradict the first one)"
        )
    contradictions = [Pair(first, view(negative), "contradiction") for negative in columns.negatives]
    return ("contradiction", "entailment"), [Pair(first, second, "entailment"), *contradictions]
