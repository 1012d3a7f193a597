"""`dcpcse predict`: the most probable tokens at a template's [MASK], with and without template denoising.

The output has the form of PromptBERT's Table 7.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prettytable import PrettyTable

from dcpcse.encoders.templates import Template
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import print_result
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from dcpcse.encoders.backbones import LMHead
    from dcpcse.encoders.sentence_encoder import SentenceEncoder

DEFAULT_TEMPLATE = 'This sentence of "{sentence}" means [MASK] .'


def predict_command(argv: Sequence[str]) -> None:
    """Run the command. Raises UserError for a user mistake."""
    args = predict_parser().parse_args(argv)
    if args.top_k < 1:
        raise UserError(f"--top_k {args.top_k}: must be at least 1")
    if not all(sentence.strip() for sentence in args.sentences):
        raise UserError("a sentence is blank; give a text")
    template = Template.parse(args.template)
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
    print_result(format_predictions(model, backbone.lm_head, args.sentences, args.top_k))


def format_predictions(model: "SentenceEncoder", lm_head: "LMHead", sentences: Sequence[str], k: int) -> str:
    """Return a table of the k most probable tokens for each sentence, without and with denoising."""
    from dcpcse.encoders.untrained.top_k import predict_tokens

    columns = {}
    for name, denoise in {"top tokens": False, "denoised": True}.items():
        with model.denoised(denoise):
            columns[name] = predict_tokens(model, lm_head, sentences, k)
    table = PrettyTable(["sentence", *columns], align="l")
    for i, sentence in enumerate(sentences):
        table.add_row([sentence, *(", ".join(predicted[i].tokens) for predicted in columns.values())])
    return str(table)


def predict_parser() -> CommandParser:
    """Return the parser of the command."""
    parser = CommandParser(prog="dcpcse predict", description="Predict tokens at the [MASK] of a template.")
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE", help="Sentences to put into the template.")
    parser.add_argument("--model_name_or_path", required=True, help="Hugging Face folder or hub id (required)")
    parser.add_argument("--template", default=DEFAULT_TEMPLATE, help="Template with {sentence} and [MASK].")
    parser.add_argument("--lm_head", default="checkpoint", help="Masked-LM head: checkpoint, or a folder or hub id.")
    parser.add_argument("--top_k", type=int, default=5, help="Number of tokens to show.")
    return parser
