"""What a run has measured since its last log line, kept in checkpoints: a resumed run logs what a whole one would."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from dcpcse.utils.safetensors_io import load_tensors, save_tensors


@dataclass
class RunningSums:
    """Sums of one process since the last log line.

    terms: of each term of the loss, over so many batches. counts: of the losses' figures, sum and number.
    """

    terms: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)
    batches: int = 0

    def add_terms(self, terms: Mapping[str, Tensor]) -> None:
        """A batch more."""
        for name, term in terms.items():
            self.terms[name] = self.terms.get(name, 0) + term.detach()
        self.batches += 1

    def add_counts(self, counts: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Figures of a batch, or a chunk of one."""
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + torch.stack(count).float()

    def save(self, folder: Path, rank: int, loss: Tensor, since: int) -> None:
        """Write it with the summed loss and the step of the last log line."""
        tensors = {f"terms.{name}": tensor for name, tensor in self.terms.items()}
        tensors |= {f"counts.{name}": tensor for name, tensor in self.counts.items()}
        save_tensors(folder / _name(rank), {**tensors, "loss": loss, "steps": torch.tensor([since, self.batches])})

    def load(self, folder: Path, rank: int, loss: Tensor) -> int | None:
        """Fill this and the loss; gives the step of the last log line. None for a checkpoint of an earlier version."""
        if not (folder / _name(rank)).is_file():
            return None
        tensors = {name: tensor.to(loss.device) for name, tensor in load_tensors(folder / _name(rank)).items()}
        since, self.batches = tensors.pop("steps").tolist()
        loss.copy_(tensors.pop("loss"))
        self.terms, self.counts = (
            {name.removeprefix(kind): tensor for name, tensor in tensors.items() if name.startswith(kind)}
            for kind in ("terms.", "counts.")
        )
        return since


def _name(rank: int) -> str:
    return f"unlogged_{rank}.safetensors"
