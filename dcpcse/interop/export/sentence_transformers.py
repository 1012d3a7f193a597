"""Export a folder for SentenceTransformer, with modules of sentence-transformers or, if needed, of dcpcse."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.manifest import MODEL_CONFIG, read_object
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import write_atomic, write_json_atomic

README_PAGE = """---
library_name: sentence-transformers
---
# Sentence embeddings ({method})

{note}

```python
from sentence_transformers import SentenceTransformer

FOLDER = "."  # the folder of this README
model = SentenceTransformer(FOLDER{options})
embeddings = model.encode(["A man is playing a flute.", "Rain fell."])
```
"""
WRAPPED = """The folder contains {what}. `modules.json` names the module `dcpcse.st.DeepPromptTransformer`: install the
package `dcpcse` and pass `trust_remote_code=True`, otherwise sentence-transformers raises an error for the folder."""
PLAIN = "A trained encoder. sentence-transformers opens it without further packages."


def obstacles(model: SentenceEncoder) -> list[str]:
    """Return [], because the module in `dcpcse.st` can wrap any model."""
    return []


def write(model: SentenceEncoder, folder: Path, options: EncodeOptions) -> None:
    """Write the model, the files of sentence-transformers and a README.

    Args:
        model: The model to export.
        folder: The folder to write.
        options: Options of encoding, of which only `truncate_dim` may be given.

    Raises:
        UserError: If truncate_dim is given and the embeddings of the model have unit length, since vectors that
            sentence-transformers shortens do not have unit length.
    """
    if (truncate_dim := options.truncate_dim) is not None and model.normalize:
        raise UserError(
            f"{spell('truncate_dim')}: the model scales embeddings to unit length, and sentence-transformers would "
            f"shorten them afterwards; leave it out, and use SentenceTransformer(..., truncate_dim={truncate_dim}) "
            "and encode(..., normalize_embeddings=True)"
        )
    plain = _is_plain(model)
    if plain:
        model.tuned_backbone().write(folder)
        model.tokenizer.save_pretrained(folder)
        if truncate_dim is not None:
            path = folder / MODEL_CONFIG
            settings = read_object(path) if path.is_file() else {}
            write_json_atomic(path, {**settings, "truncate_dim": truncate_dim})
    else:
        from sentence_transformers import SentenceTransformer

        from dcpcse.interop.sentence_transformers import DeepPromptTransformer

        SentenceTransformer(
            modules=[DeepPromptTransformer(model)],
            device="cpu",
            truncate_dim=truncate_dim,
            **model.prompt_settings(),
        ).save(str(folder), create_model_card=False)
    frozen = f"trained weights for the frozen encoder `{model.source.name_or_path}`, which is loaded from there"
    what = "the trained encoder" if model.encoder.tuned else frozen
    page = README_PAGE.format(
        method=model.method or "DCPCSE",
        note=PLAIN if plain else WRAPPED.format(what=what),
        options="" if plain else ", trust_remote_code=True",
    )
    write_atomic(folder / "README.md", page)


def read_back(model: SentenceEncoder, folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Return the embeddings (N, H) that sentence-transformers computes from an exported folder, to check the export.

    Args:
        model: The exported model, which determines whether the folder needs code of dcpcse.
        folder: The exported folder.
        sentences: N sentences.
    """
    from sentence_transformers import SentenceTransformer

    # The folder was just written by dcpcse, so the module that it names can be trusted.
    encoder = SentenceTransformer(str(folder), device="cpu", trust_remote_code=not _is_plain(model))
    return encoder.encode(list(sentences), show_progress_bar=False)


def _is_plain(model: SentenceEncoder) -> bool:
    return not model.plain_obstacles()
