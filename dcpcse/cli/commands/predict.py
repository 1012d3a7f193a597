"""`dcpcse plot predictions`: the most probable tokens at a template's [MASK], with and without template denoising.

The output has the form of Table 7 of the PromptBERT paper.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dcpcse.encoders.templates import MASK, Template
from dcpcse.utils.command_parser import CommandParser, as_text
from dcpcse.utils.console import print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import Whole
from dcpcse.utils.tables import make_table

if TYPE_CHECKING:
    from dcpcse.encoders.backbones import LMHead
    from dcpcse.encoders.sentence_encoder import SentenceEncoder

DEFAULT_TEMPLATE = 'This sentence : "{sentence}" means [MASK] .'
"""The best template for an encoder without training (PromptBERT, Table 4)."""


def predict_command(argv: Sequence[str]) -> None:
    """Run `dcpcse plot predictions`. Raises UserError for a user mistake."""
    args = predict_parser().parse_args(argv)
    if not all(sentence.strip() for sentence in args.sentences):
        raise UserError("a sentence is empty; give a text")
    template = Template.parse(args.template)
    if (
        template.masks > 1
    ):  # a sentence encoder averages the vectors of several masks, and the average cannot predict a token
        raise UserError(f"--template {args.template}: has {template.masks} {MASK}; give a template with one")
    # Imported after the options are checked, because this takes seconds.
    from dcpcse.encoders.backbones import load_backbone, require_trained_head
    from dcpcse.encoders.sentence_encoder import plain_encoder
    from dcpcse.encoders.storage import hub
    from dcpcse.encoders.storage.load_options import LoadOptions

    require_trained_head(args.lm_head)
    hub.require_known(args.model_name_or_path, LoadOptions())
    backbone = load_backbone(args.model_name_or_path, lm_head=args.lm_head)
    if args.top_k > backbone.lm_head.vocab_size:
        raise UserError(f"--top_k {args.top_k} exceeds the {backbone.lm_head.vocab_size} tokens of the vocabulary")
    model = plain_encoder(backbone, "mask", template)
    lines = predictions(model, backbone.lm_head, args.sentences, args.top_k)
    print_result("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) if args.json else as_table(lines))


def predictions(
    model: "SentenceEncoder", lm_head: "LMHead", sentences: Sequence[str], k: int
) -> list[dict[str, str | list[str]]]:
    """Return each sentence with the k most probable tokens, without (`top`) and with denoising (`denoised`)."""
    from dcpcse.encoders.untrained import predict_tokens

    lines: list[dict[str, str | list[str]]] = [{"sentence": sentence} for sentence in sentences]
    for name, denoise in {"top": False, "denoised": True}.items():
        with model.denoised(denoise):
            for line, predicted in zip(lines, predict_tokens(model, lm_head, sentences, k), strict=True):
                line[name] = predicted.tokens
    return lines


def as_table(lines: Sequence[Mapping[str, str | list[str]]]) -> str:
    """Return the result of `predictions` as a table, one row per sentence."""
    rows = [[line["sentence"], ", ".join(line["top"]), ", ".join(line["denoised"])] for line in lines]
    return str(make_table(["sentence", "top tokens", "denoised"], rows, "l"))


def predict_parser() -> CommandParser:
    """Return the parser of `dcpcse plot predictions`."""
    parser = CommandParser(prog="dcpcse plot predictions", description="Predict tokens at the [MASK] of a template.")
    parser.add_model("model_name_or_path", "Hugging Face folder or hub id.", metavar="ENCODER")
    parser.add_argument(
        "sentences", nargs="+", type=as_text, metavar="SENTENCE", help="Sentences to put into the template."
    )
    parser.add_argument(
        "--template",
        type=as_text,
        default=DEFAULT_TEMPLATE,
        help="Template with {sentence} and [MASK] (default: %(default)s).",
    )
    parser.add_argument("--lm_head", default="checkpoint", help="Masked-LM head: checkpoint, or a folder or hub id.")
    parser.add_argument("--top_k", type=Whole(1), default=5, help="Number of tokens to show.")
    parser.add_argument("--json", action="store_true", help="Print a line of JSON for each sentence.")
    return parser
