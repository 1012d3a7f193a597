"""The losses as loops over pairs in float64: the case of each, its batch, and what a loss computes of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from dcpcse.data.examples import NEGATIVES_KEY
from dcpcse.losses import Contrastive, EncodedBatch, Loss
from dcpcse.losses.cosine_regression import CosineRegression
from dcpcse.losses.energy_hinge import EnergyHinge
from dcpcse.losses.false_negatives import CLASSES, GUIDED, RESOLUTION
from dcpcse.losses.momentum_contrastive import MomentumContrastive
from dcpcse.losses.nt_xent import NTXent
from dcpcse.losses.pair_ranking import PairRanking, PairsInBatch, TargetPair, angle_of_pairs, cosine_of_pairs
from dcpcse.losses.ranking import RankConsistency, RankDistillation

ROWS, SIZE = 13, 8
PAIR, TRIPLE = ("anchor", "positive"), ("anchor", "positive", "negative")
QUADRUPLE = ("anchor", "positive", "negative_1", "negative_2")
PROTOTYPES = ("anchor", "prototype", "negated")
COPIES = ("anchor", "anchor_copy", "positive", "positive_copy")
TEACHERS = {"teacher": 0.3, "second_teacher": 0.7}
TARGETS = [TargetPair("anchor", "positive")]
TARGETS_OF_TRIPLES = [TargetPair("anchor", "positive", 1.0), TargetPair("anchor", "negative", 0.0)]


def cosine(a, b):
    return F.cosine_similarity(a, b, dim=0)


def absent(marks, view, j):
    """Whether row j has too few hard negatives for this view."""
    return NEGATIVES_KEY in marks and view in QUADRUPLE[2:] and marks[NEGATIVES_KEY][j] <= QUADRUPLE[2:].index(view)


def left_out_of(marks, positive):
    """(view, i, j) → whether candidate j of a view is a false negative of anchor i, or absent."""

    def nearness(view, i, j):
        return cosine(marks[f"{GUIDED}anchor"][i], marks[f"{GUIDED}{view}"][j])

    def left_out(view, i, j):
        if absent(marks, view, j):
            return True
        if CLASSES in marks and view == positive and i != j and marks[CLASSES][i] == marks[CLASSES][j]:
            return True
        return f"{GUIDED}anchor" in marks and bool(nearness(view, i, j) > nearness(positive, i, i) + RESOLUTION)

    return left_out


def info_nce(positive="positive", others=(), further=(), temperature=0.2, weight=0.7):
    """-log of the share of the own positive among all candidates, one anchor after the other."""

    def loop(views, marks):
        left_out, losses = left_out_of(marks, positive), []
        for i, anchor in enumerate(views["anchor"]):
            own, logits = cosine(anchor, views[positive][i]) / temperature, []
            for name in (name for name in views if name != "anchor"):
                for j, other in enumerate(views[name]):
                    if (name, j) != (positive, i) and not left_out(name, i, j):
                        is_own_hard = name not in (positive, *others) and i == j
                        logits.append(cosine(anchor, other) / temperature + (weight if is_own_hard else 0))
            logits += [cosine(anchor, other.to(anchor)) / temperature for other in further]
            losses.append(torch.stack([own, *logits]).exp().sum().log() - own)
        return torch.stack(losses).mean()

    return loop


def hinge(margin=0.9):
    def loop(views, marks):
        left_out, losses = left_out_of(marks, "positive"), []
        for i, anchor in enumerate(views["anchor"]):
            others = [
                cosine(anchor, other)
                for name in (name for name in views if name != "anchor")
                for j, other in enumerate(views[name])
                if (name, j) != ("positive", i) and not left_out(name, i, j)
            ]
            own = cosine(anchor, views["positive"][i])
            hardest = torch.stack([own.new_tensor(-math.inf), *others]).max()
            losses.append((margin - own + hardest).clamp(min=0))
        return torch.stack(losses).mean()

    return loop


def copies(temperature=0.2):
    """Of all copies of the sentences of a column, each against all but itself (ConSERT, eq. 1)."""

    def loop(views, marks):
        total = 0.0
        for column in (COPIES[:2], COPIES[2:]):
            both = [row for name in column for row in views[name]]
            for i, copy in enumerate(both):
                logits = {k: cosine(copy, other) / temperature for k, other in enumerate(both) if k != i}
                partner = logits[(i + ROWS) % len(both)]
                total = total + (torch.stack([*logits.values()]).logsumexp(0) - partner) / len(both)
        return total

    return loop


def softmax(row):
    return [torch.exp(x) / sum(map(torch.exp, row)) for x in row]


def list_net(student, teacher, own):
    keep = [j for j in range(len(student)) if j != own]
    wanted, found = softmax([teacher[j] for j in keep]), softmax([student[j] for j in keep])
    return -sum(w * torch.log(f) for w, f in zip(wanted, found, strict=True))


def list_mle(student, teacher, own):
    left, total = sorted(range(len(student)), key=lambda j: -float(teacher[j])), 0.0
    while left:
        total = total - torch.log(torch.exp(student[left[0]]) / sum(torch.exp(student[j]) for j in left))
        left = left[1:]
    return total / len(student)


def violations(scored):
    """log(1 + Σ exp(s_j - s_i)) over all pairs (target, s) of which i has the higher target."""
    return torch.log(
        1 + sum(torch.exp(low - high) for better, high in scored for worse, low in scored if better > worse)
    )


def pairwise(student, teacher, own):
    return violations([(float(teacher[j]), student[j]) for j in range(len(student)) if j != own])


def distillation(compare):
    def loop(views, marks):
        total = 0.0
        for i in range(ROWS):
            student = [cosine(views["anchor"][i], row) / 0.2 for row in views["positive"]]
            teacher = [
                sum(w * cosine(marks[f"{t}_anchor"][i], marks[f"{t}_positive"][j]) for t, w in TEACHERS.items()) / 0.1
                for j in range(ROWS)
            ]
            total = total + compare(student, teacher, i)
        return total / ROWS

    return loop


def consistency(views, marks):
    total = 0.0
    for i in range(ROWS):
        p = softmax([cosine(views["anchor"][i], row) / 0.2 for row in views["positive"]])
        q = softmax([cosine(views["positive"][i], row) / 0.2 for row in views["anchor"]])
        for a, b in zip(p, q, strict=True):
            total = total + (a * torch.log(2 * a / (a + b)) + b * torch.log(2 * b / (a + b))) / 2
    return total / ROWS


def order(pairs, similarity=cosine_of_pairs, temperature=0.2):
    def loop(views, marks):
        return violations(
            [
                (float(marks["targets"][i, k]), similarity(views[p.first][[i]], views[p.second][[i]])[0] / temperature)
                for k, p in enumerate(pairs)
                for i in range(ROWS)
            ]
        )

    return loop


def in_batch(pairs):
    def loop(views, marks):
        texts = [(name, i) for name in ("anchor", *(pair.second for pair in pairs)) for i in range(ROWS)]
        total = 0.0
        for one, other in (("anchor", "positive"), ("positive", "anchor")):
            for i in range(ROWS):
                logits = {to: cosine(views[one][i], views[to[0]][to[1]]) / 0.2 for to in texts if to != (one, i)}
                if marks["similar"][i]:
                    total = total + torch.stack([*logits.values()]).logsumexp(0) - logits[other, i]
        return total / (2 * ROWS * len(pairs))

    return loop


def regression(views, marks):
    pairs = zip(views["anchor"], views["positive"], marks["targets"][:, 0], strict=True)
    return sum((cosine(a, b) - target / 3.0) ** 2 for a, b, target in pairs) / ROWS


QUEUE = torch.randn(9, SIZE, generator=torch.Generator().manual_seed(2))


def with_queue() -> MomentumContrastive:
    """Of 9 places, 7 are filled."""
    loss_fn = MomentumContrastive(torch.nn.Linear(2, 2), SIZE, 9, 0.9, temperature=0.2)
    loss_fn.queue.copy_(QUEUE)
    loss_fn.filled.fill_(7)
    return loss_fn


@dataclass
class Case:
    """How a loss is made, the views it compares, the loop that it equals, the marks of false negatives it is given.

    candidates: how many each anchor has, of a loss that compares each with all.
    """

    make: Callable[[], Loss]
    views: tuple[str, ...]
    loop: Callable
    marks: tuple[str, ...] = ()
    candidates: int = 0


def contrastive() -> Contrastive:
    return Contrastive(0.2, 0.7)


def prototypical() -> Contrastive:
    return Contrastive(0.2, positive="prototype", others=("negated",))


def angles() -> PairRanking:
    return PairRanking(TARGETS, 0.9, angle_of_pairs)


def pairs_of_triples() -> PairsInBatch:
    return PairsInBatch(TARGETS_OF_TRIPLES, 0.2, 1.0)


OF_PROTOTYPES = info_nce("prototype", ("negated",))
CASES = {
    "pairs": Case(lambda: Contrastive(0.2), PAIR, info_nce(), candidates=ROWS),
    "hard negatives": Case(contrastive, QUADRUPLE, info_nce(), candidates=3 * ROWS),
    "guide and classes": Case(contrastive, QUADRUPLE, info_nce(), (GUIDED, CLASSES), 3 * ROWS),
    "numbers, guide and classes": Case(contrastive, QUADRUPLE, info_nce(), (NEGATIVES_KEY, GUIDED, CLASSES), 3 * ROWS),
    "prototypes": Case(prototypical, PROTOTYPES, OF_PROTOTYPES, candidates=2 * ROWS),
    "prototypes, classes": Case(prototypical, PROTOTYPES, OF_PROTOTYPES, (CLASSES,), 2 * ROWS),
    "queue": Case(with_queue, PAIR, info_nce(further=QUEUE[-7:]), candidates=ROWS + 7),
    "hinge": Case(lambda: EnergyHinge(0.9), QUADRUPLE, hinge(), candidates=3 * ROWS),
    "hinge, guide and classes": Case(lambda: EnergyHinge(0.9), QUADRUPLE, hinge(), (GUIDED, CLASSES), 3 * ROWS),
    "hinge, numbers": Case(lambda: EnergyHinge(0.9), QUADRUPLE, hinge(), (NEGATIVES_KEY,), 3 * ROWS),
    "two copies": Case(lambda: NTXent([COPIES[:2], COPIES[2:]], 0.2), COPIES, copies(), candidates=2 * ROWS),
    "listnet": Case(lambda: RankDistillation(TEACHERS, "listnet", 0.2, 0.1), PAIR, distillation(list_net)),
    "listmle": Case(lambda: RankDistillation(TEACHERS, "listmle", 0.2, 0.1), PAIR, distillation(list_mle)),
    "pairwise": Case(lambda: RankDistillation(TEACHERS, "pairwise", 0.2, 0.1), PAIR, distillation(pairwise)),
    "consistency": Case(lambda: RankConsistency(0.2), PAIR, consistency),
    "order, cosines": Case(lambda: PairRanking(TARGETS, 0.2), PAIR, order(TARGETS)),
    "order, triplets": Case(lambda: PairRanking(TARGETS_OF_TRIPLES, 0.2), TRIPLE, order(TARGETS_OF_TRIPLES)),
    "order, angles": Case(angles, PAIR, order(TARGETS, angle_of_pairs, 0.9)),
    "in batch, scores": Case(lambda: PairsInBatch(TARGETS, 0.2, 1.0), PAIR, in_batch(TARGETS)),
    "in batch, triplets": Case(pairs_of_triples, TRIPLE, in_batch(TARGETS_OF_TRIPLES)),
    "regression": Case(lambda: CosineRegression(3.0), PAIR, regression),
}


def batch_of(case: Case, dtype=torch.float64, **extras) -> EncodedBatch:
    """The views of a case, and what `precompute` of its loss returns."""
    random = torch.Generator().manual_seed(4)
    views = {name: torch.randn(ROWS, SIZE, generator=random).to(dtype).requires_grad_() for name in case.views}
    marks = {f"{t}_{v}": torch.randn(ROWS, 5, generator=random).to(dtype) for t in TEACHERS for v in PAIR}
    marks["targets"] = torch.randint(4, (ROWS, 2), generator=random).float()[:, : len(case.views) - 1]  # with ties
    marks["similar"] = (marks["targets"][:, 0] >= 2).float()
    marks["queued"] = torch.zeros(ROWS, SIZE)
    if CLASSES in case.marks:
        marks[CLASSES] = torch.randint(6, (ROWS,), generator=random)
    if GUIDED in case.marks:
        marks |= {f"{GUIDED}{name}": torch.randn(ROWS, 5, generator=random) for name in case.views}
    if NEGATIVES_KEY in case.marks:
        marks[NEGATIVES_KEY] = torch.randint(3, (ROWS,), generator=random)
    extras |= {"scores": marks["targets"][:, 0]}
    ids = torch.zeros(ROWS, len(case.views), 1)
    return EncodedBatch(None, ids, ids, views, precomputed=marks, extras=extras)


def computed(case: Case, chunk: int | None = None, dtype=torch.float64, widths=()):
    """Loss, gradients by view, and metrics of a loss with an unequal factor, as of a weight."""
    batch, loss_fn = batch_of(case, dtype), case.make().to(dtype)
    loss_fn.row_chunk, loss_fn.widths = chunk, widths
    loss = loss_fn(batch)
    (3 * loss).backward()
    metrics = {name: (float(total), int(count)) for name, (total, count) in loss_fn.metrics.items()}
    return loss.detach(), {name: rows.grad for name, rows in batch.embeddings.items()}, metrics


def by_loops(case: Case):
    """As `computed`, of the loop; the metrics are the cosines of anchors with positives."""
    batch, positive = batch_of(case), case.views[1]
    whole = (CLASSES, NEGATIVES_KEY)
    marks = {name: rows.tolist() if name in whole else rows.double() for name, rows in batch.precomputed.items()}
    loss, left_out = case.loop(batch.embeddings, marks), left_out_of(marks, positive)
    (3 * loss).backward()
    rows = [(i, j, float(cosine(a, b))) for i, a in enumerate(batch.embeddings["anchor"].detach())
            for j, b in enumerate(batch.embeddings[positive].detach())]  # fmt: skip
    own = [c for i, j, c in rows if i == j]
    others = [c for i, j, c in rows if i != j and not left_out(positive, i, j)]
    metrics = {"cosine_positive": (sum(own), ROWS), "cosine_negative": (sum(others), len(others))}
    return loss.detach(), {name: rows.grad for name, rows in batch.embeddings.items()}, metrics


def largest_error(found, expected):
    """The largest difference of gradients, as a share of the largest gradient."""
    largest = max(gradient.abs().max() for gradient in expected.values() if gradient is not None)
    pairs = [(found[name], gradient) for name, gradient in expected.items()]
    assert all((one is None) == (other is None) for one, other in pairs)
    return max(((one - other).abs().max() / largest).item() for one, other in pairs if other is not None)
