"""The private name of transformers' training arguments, in a module that does not import the slow Trainer."""

import transformers
from transformers.utils.import_utils import enable_tf32

__all__ = ["OneGpuArguments", "enable_tf32"]


class OneGpuArguments(transformers.TrainingArguments):
    """Arguments of a Trainer that uses one GPU per process. transformers would split batches over all GPUs."""

    @property
    def n_gpu(self) -> int:
        """The number of GPUs that this process uses."""
        return min(1, self.visible_gpus)

    @property
    def visible_gpus(self) -> int:
        """The number of GPUs that transformers would use in this process."""
        return super().n_gpu
