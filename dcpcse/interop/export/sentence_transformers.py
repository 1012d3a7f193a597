"""A folder that SentenceTransformer opens: by its own modules where they do, else by ours around the whole model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.utils.files import write_atomic

README_PAGE = """---
library_name: sentence-transformers
---
# Sentence embeddings ({method})

{note}

```python
from sentence_transformers import SentenceTransformer

FOLDER = "."  # where this page lies
model = SentenceTransformer(FOLDER{options})
embeddings = model.encode(["A man is playing a flute.", "Rain fell."])
```
"""
WRAPPED = """The folder holds {what}. `modules.json` names the module `dcpcse.st.DeepPromptTransformer`, so the package
`dcpcse` has to be installed, and sentence-transformers has to be told to trust it; otherwise it refuses the folder."""
PLAIN = "A trained encoder; sentence-transformers needs nothing else to open it."


def obstacles(model: SentenceEncoder) -> list[str]:
    """None: the module of `dcpcse.st` hands on to the model as it is."""
    return []


def write(model: SentenceEncoder, folder: Path) -> None:
    """The model, the files that sentence-transformers opens it by, and a page."""
    plain = _is_plain(model)
    if plain:
        model.tuned_backbone().write(folder)
        model.tokenizer.save_pretrained(folder)
    else:
        from sentence_transformers import SentenceTransformer

        from dcpcse.interop.sentence_transformers import DeepPromptTransformer

        SentenceTransformer(modules=[DeepPromptTransformer(model)], device="cpu").save(
            str(folder), create_model_card=False
        )
    frozen = f"what was trained on the frozen encoder `{model.source.name_or_path}`, which is loaded from there"
    what = "its trained encoder" if model.encoder.tuned else frozen
    page = README_PAGE.format(
        method=model.method or "DCPCSE",
        note=PLAIN if plain else WRAPPED.format(what=what),
        options="" if plain else ", trust_remote_code=True",
    )
    write_atomic(folder / "README.md", page)


def read_back(model: SentenceEncoder, folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Vectors by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    # Trust in our own module: this folder was written a moment ago.
    found = SentenceTransformer(str(folder), device="cpu", trust_remote_code=not _is_plain(model))
    return found.encode(list(sentences), show_progress_bar=False)


def _is_plain(model: SentenceEncoder) -> bool:
    return not model.plain_obstacles()
