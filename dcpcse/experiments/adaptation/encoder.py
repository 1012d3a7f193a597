"""Load the encoder to adapt. The adapted encoder keeps the encoder's pooling, normalisation and maximum length."""

from pathlib import Path
from typing import Any

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import hub
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.experiments.adaptation.settings import Options
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import OWN_POOLER, is_trained, load_plain
from dcpcse.inference.public_checkpoints.read import find_checkpoint
from dcpcse.inference.st_folder import modules_folder
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import require_encoder_path


def require_encoder_first(name: str) -> None:
    """Raise UserError if the given encoder is a file, such as the data, or a path that does not exist."""
    if Path(name).is_file():
        raise UserError(f"ENCODER {name} is a file; give the folder or id of an encoder first, and then the data")
    require_encoder_path(name, "ENCODER")


def load_untouched(name: str, overrides: Options) -> SentenceEncoder:
    """Load an encoder without training, in eval mode.

    Pooling, normalisation and maximum length come from the sentence-transformers settings in the encoder's folder.
    Without these settings, the token vectors are averaged.

    Raises UserError if the encoder does not exist, or if its representation has a part that a model folder cannot
    store.

    Args:
        overrides: Options of train.py; the option pooler_type replaces the pooling of the folder.
    """
    places = {key: overrides[key] for key in ("cache_dir", "model_revision", "use_auth_token") if key in overrides}
    args = EncoderArguments(device="cpu" if overrides.get("use_cpu") else None, **places)
    if is_trained(name, args):
        raise UserError(
            f"{spell('ENCODER', name)} is an output folder of a training; give the encoder that it was trained on"
        )
    options = LoadOptions.from_args(args.cache_dir, args.use_auth_token, args.model_revision)
    hub.require_known(name, options)
    args.pooler_type = overrides.get("pooler_type")
    if args.pooler_type is None and (checkpoint := find_checkpoint(name, options)):
        raise UserError(
            f"{spell('ENCODER')} {checkpoint}, but an adaptation uses only its encoder; give "
            f"{spell('pooler_type')}, such as {OWN_POOLER}, to do so"
        )
    if args.pooler_type is None and modules_folder(name, options) is None:
        notify(
            f"{name} has no pooling of its own: its token vectors are averaged; {spell('pooler_type')} changes this"
        )
        args.pooler_type = OWN_POOLER
    model = load_plain(name, args, options)
    if model.head is not None:
        raise UserError(
            f"{spell('ENCODER', name)} has a layer after pooling, which an adapted encoder cannot keep; give "
            f"{spell('pooler_type')} to use the encoder without it"
        )
    return model


def representation_of(model: SentenceEncoder) -> dict[str, Any]:
    """Return the options of train.py with which a model represents sentences in the same way as the given encoder."""
    return {
        "model_name_or_path": model.source.name_or_path,
        "pooler_type": model.pooling,
        "normalize": model.normalize,
        "max_seq_length": model.max_tokens,
    }
