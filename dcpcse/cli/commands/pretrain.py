"""`dcpcse pretrain TEXT --output_dir FOLDER`: pretrain a masked language model, from which methods can start."""

from collections.abc import Sequence

from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.utils.command_parser import Parser

MAIN_OPTIONS = {
    "output": ("output_dir", "resume", "export_dtype"),
    "model": (
        *("model_name_or_path", "model_type", "size", "num_hidden_layers", "hidden_size", "num_attention_heads"),
        *("intermediate_size", "max_position_embeddings", "initializer_range", "tie_word_embeddings", "final_dropout"),
    ),
    "tokenizer": ("tokenizer", "vocab_size", "lowercase"),
    "text and masks": (
        *("validation_share", "validation_file", "max_seq_length", "short_seq_prob", "mlm_probability"),
        *("whole_word_mask",),
    ),
    "training": (
        *("max_steps", "causal_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate"),
        *("lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta2", "adam_epsilon", "max_grad_norm"),
        *("pretraining_dropout", "seed", "fp16", "bf16", "use_cpu", "logging_steps", "eval_steps", "save_steps"),
    ),
}
"""All options, by heading of the help text."""


def pretrain_command(argv: Sequence[str]) -> None:
    """Run the command. Raises UserError for mistakes that the user can fix."""
    args, places = pretrain_parser().parse(argv)
    # Imported after the options are checked, as these imports take seconds.
    from dcpcse.analysis.plots.pretraining_curve import curve_png
    from dcpcse.pretraining.run import run_pretraining

    run_pretraining(places.text, args, curve_png)


def pretrain_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        (PretrainingArguments,),
        prog="dcpcse pretrain",
        usage="dcpcse pretrain TEXT --output_dir FOLDER [--OPTION VALUE ...]",
        description="Pretrain a BERT or RoBERTa masked language model on a text file, with a tokenizer trained on it. "
        "The result is a Hugging Face folder that train.py takes as --model_name_or_path.",
        main_options=MAIN_OPTIONS,
    )
    parser.add_argument("text", metavar="TEXT", help="UTF-8 text, one sentence or paragraph per line.")
    return parser
