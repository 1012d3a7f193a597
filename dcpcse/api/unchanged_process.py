"""Leave the state of the Python process as it was before a training."""

import contextlib
import os
import random
from collections.abc import Iterator

import numpy as np
import torch
import transformers


@contextlib.contextmanager
def unchanged_process() -> Iterator[None]:
    """Restore the random states, the environment variables and the settings of libraries that training changes."""
    environment, verbosity = dict(os.environ), transformers.logging.get_verbosity()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    tf32 = torch.backends.fp32_precision
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        transformers.logging.set_verbosity(verbosity)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for device, state in enumerate(devices):
            torch.cuda.set_rng_state(state, device)
        torch.backends.fp32_precision = tf32
        torch.use_deterministic_algorithms(deterministic[0])
        torch.backends.cudnn.deterministic = deterministic[1]
