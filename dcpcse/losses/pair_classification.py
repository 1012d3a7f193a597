"""Classification of sentence pairs by their two embeddings (SBERT, section 3, "Classification Objective Function")."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpcse.data.labels import CLASSES, LABEL, Columns
from dcpcse.losses.base import EncodedBatch, PerRowLoss
from dcpcse.losses.functional import precise
from dcpcse.utils.errors import UserError


@dataclass(frozen=True)
class Pair:
    """Two views of every example and the class of the pair; None: the one that the example itself is labelled with."""

    first: str
    second: str
    label: str | None = None


class Classification(PerRowLoss):
    """Which class a pair of sentences is of: softmax(W [u, v, abs(u - v)] + b).

    W and b are trained, and are not part of the result. Examples say their class by its number among all that there
    are (`labels.CLASSES`), in `extras["labels"]`.
    """

    def __init__(
        self, hidden_size: int, classes: Sequence[str], pairs: Sequence[Pair], *, max_square: bool = False
    ) -> None:
        """classes: those that the data have. max_square: max(u, v)² is a further feature (ConSERT's code).

        ValueError for less than two classes, without pairs, and for a pair of another class.
        """
        super().__init__()
        named = {pair.label for pair in pairs} - {None}
        if len(classes) < 2 or not pairs or not named <= set(classes) <= set(CLASSES):
            raise ValueError(
                f"{list(pairs)} cannot be told apart as {list(classes)}; of {CLASSES} at least 2 are needed"
            )
        self.classes = tuple(classes)
        self.pairs = tuple(pairs)
        self.max_square = max_square
        self.head = nn.Linear((4 if max_square else 3) * hidden_size, len(self.classes))
        numbers = [self.classes.index(name) if name in self.classes else -1 for name in CLASSES]
        self.register_buffer("numbers", torch.tensor(numbers), persistent=False)

    def num_items(self, batch: EncodedBatch, sampled: None) -> int:
        return len(batch.input_ids) * len(self.pairs)

    def mean(self, batch: EncodedBatch, sampled: None) -> Tensor:
        """Cross entropy in nats, the mean over all pairs of all examples."""
        views = batch.embeddings
        logits = self.head(torch.cat([self._features(views[pair.first], views[pair.second]) for pair in self.pairs]))
        targets = torch.cat([self._targets(batch, pair.label) for pair in self.pairs])
        right = (logits.argmax(-1) == targets).sum()
        self.metrics = {"accuracy": (right, torch.tensor(len(targets), device=right.device))}
        return F.cross_entropy(precise(logits), targets)

    def _features(self, first: Tensor, second: Tensor) -> Tensor:
        """Two embeddings (B, H) → what is known of the pair (B, 3 H), or (B, 4 H)."""
        features = [first, second, (first - second).abs()]
        return torch.cat([*features, torch.maximum(first, second) ** 2] if self.max_square else features, dim=-1)

    def _targets(self, batch: EncodedBatch, label: str | None) -> Tensor:
        if label is None:
            return self.numbers[batch.extras["labels"]]
        number = self.classes.index(label)
        return torch.full((len(batch.input_ids),), number, device=self.numbers.device)


def classified_pairs(
    method: str, columns: Columns, view: Callable[[str], str] = str, *, labels: Sequence[str] = (LABEL,)
) -> tuple[Sequence[str], Sequence[Pair]]:
    """The classes of data with these columns, and the pairs that are of one: labelled, or with hard negatives.

    A hard negative contradicts, where the positive follows. view: the one in which the sentence of a column is
    classified. method, and the labels that it reads: for messages. UserError for data that tell no pairs apart.
    """
    first, second = view("anchor"), view("positive")
    if columns.label == LABEL:
        classes = columns.classes or CLASSES
        if len(classes) < 2:
            raise UserError(
                f"all rows of --train_file have the label {classes[0]}: there is nothing to tell apart; give rows of "
                f"another one, too ({', '.join(name for name in CLASSES if name != classes[0])})"
            )
        return classes, [Pair(first, second)]
    if "negative" not in columns:
        raise UserError(
            f"--method {method} learns from what pairs of sentences are said to be; give a training file with a third "
            f"column: {', '.join(labels)}, or hard negatives, which contradict the first sentence as the second one "
            "follows from it"
        )
    against = Pair(first, view("negative"), "contradiction")
    return ("contradiction", "entailment"), [Pair(first, second, "entailment"), against]
