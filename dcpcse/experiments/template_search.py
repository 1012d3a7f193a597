"""Greedy search for a template, scored on STS-B dev (PromptBERT, section 4.2).

The search first varies the relationship tokens between sentence and [MASK]. It then keeps the best relationship tokens
and varies the prefix around the sentence. With `--t5`, `dcpcse.experiments.template_generation` generates the
templates instead. Every score is saved immediately in `scores.json`, from which an interrupted search is resumed.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.dataclasses import strict

from dcpcse.encoders.templates import MASK, SENTENCE, Template
from dcpcse.utils import schema
from dcpcse.utils.console import print_message, print_result
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import require_writable, write_atomic
from dcpcse.utils.job_folder import JobFolder, JobRecord
from dcpcse.utils.parsing import parse_yaml, read_text
from dcpcse.utils.tables import make_table

if TYPE_CHECKING:
    from senteval import Suite

    from dcpcse.encoders.sentence_encoder import SentenceEncoder
    from dcpcse.experiments.template_generation import Example

RELATIONSHIPS = ("", "is", "mean", "means", "is about", "says", "tells of", "in a word :", "that is ,", ", it is")
"""Relationship tokens between sentence and mask; the first four are from Table 4."""

PREFIXES = (
    SENTENCE,
    f"This {SENTENCE}",
    f"This sentence of {SENTENCE}",
    f'"{SENTENCE}"',
    f'This sentence "{SENTENCE}"',
    f'This sentence of "{SENTENCE}"',
    f'This sentence : "{SENTENCE}"',
    f'The sentence : "{SENTENCE}"',
    f"This sentence : ' {SENTENCE} '",
)
"""Prefix tokens around the sentence; the second, third, sixth and seventh are from Table 4."""

SCORES_FILE = "scores.json"
BEST_FILE = "best.txt"
DEV_TASK = "STSBenchmark"


@strict
@dataclass(kw_only=True)
class TemplateRecord(JobRecord):
    """The content of `scores.json`, by which an interrupted search for a template is resumed.

    Args:
        scores: Template → its score on STS-B dev, × 100.
    """

    scores: dict[str, int | float] = schema.finite()


def search_templates(args: argparse.Namespace, relationships: Sequence[str], prefixes: Sequence[str]) -> None:
    # Imported after the options are checked, as these imports take seconds.
    from senteval import load_suite, settings_of_mode

    from dcpcse.encoders.backbones import load_backbone
    from dcpcse.encoders.sentence_encoder import plain_encoder
    from dcpcse.evaluation.evaluator import evaluate_suite
    from dcpcse.experiments.template_generation import read_definitions
    from dcpcse.utils.devices import pick_device

    examples, folder = read_definitions(args.definitions) if args.definitions else [], Path(args.output_dir)
    require_writable(folder, f"--output_dir {folder}")
    suite = load_suite([DEV_TASK], args.data_dir, settings_of_mode("dev", official=not args.custom_data))
    generated = _generate(args, examples)
    first, backbone = Template.parse(f"{SENTENCE} {MASK} ."), load_backbone(args.model_name_or_path)
    model = plain_encoder(backbone, "mask", first, args.denoise, args.final_period).to(pick_device(args.device))
    job = _job(folder, _made_of(model, suite))

    def score(templates: Iterable[str]) -> str:
        """Evaluate the templates that have no score yet, and return the best of the given templates."""
        texts = list(dict.fromkeys(templates))
        for done, text in enumerate(texts, start=1):
            if text not in scores:
                model.set_template(Template.parse(text))
                scores[text] = evaluate_suite(model, suite, batch_size=args.batch_size).results[DEV_TASK].points
                job.write({"scores": scores})
            print_message(f"{done}/{len(texts)}  {scores[text]:6.2f}  {text}")
        return max(texts, key=scores.__getitem__)

    with job.lock():
        scores = (job.read() or {"scores": {}})["scores"]
        if generated:
            score(str(template) for template in generated)
        else:
            best = score(build_template(SENTENCE, words) for words in relationships)
            words = best.removeprefix(SENTENCE).removesuffix(f"{MASK} .").strip()
            score(build_template(prefix, words) for prefix in prefixes)
        top = sorted(scores.items(), key=lambda item: -item[1])[: args.keep]
        rows = [[text, f"{points:.2f}"] for text, points in top]
        print_result(str(make_table(["template", "STS-B dev"], rows, "l")))  # in the form of the paper's Table 4
        write_atomic(folder / BEST_FILE, "".join(f"{text}\n" for text, _ in top))


def _job(folder: Path, made_of: Mapping[str, Any]) -> JobFolder:
    what = spell("output_dir", folder)
    return JobFolder(folder, SCORES_FILE, made_of, what, kind=TemplateRecord, earlier="scores.jsonl")


def _generate(args: argparse.Namespace, examples: Sequence["Example"]) -> list[Template]:
    """Return templates generated by the T5 given with `--t5`, or an empty list without this option."""
    if not args.t5:
        return []
    from dcpcse.experiments.template_generation import MAX_GAP_TOKENS, generate_templates, load_t5

    templates = generate_templates(*load_t5(args.t5), examples, args.generate)
    if not templates:
        raise UserError(f"--t5 {args.t5} fills no gap in at most {MAX_GAP_TOKENS} tokens; choose a pretrained T5")
    return templates


def build_template(prefix: str, relationship: str) -> str:
    """Return the template from a prefix, such as `This sentence "{sentence}"`, and a relationship, such as `means`."""
    return " ".join(part for part in (prefix, relationship, MASK, ".") if part)


def read_candidates(path: str | None) -> tuple[list[str], list[str]]:
    """Return the relationships and the prefixes to try, which `build_template` combines.

    They are read from a YAML file or, without a file, taken from built-in lists.
    """
    if path is None:
        return list(RELATIONSHIPS), list(PREFIXES)
    try:
        content = parse_yaml(read_text(Path(path)))
    except OSError as error:
        raise UserError(f"--candidates {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"--candidates {path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or set(content) != {"relationships", "prefixes"}:
        raise UserError(f"--candidates {path} must contain two lists, relationships and prefixes")
    relationships, prefixes = (_words(path, content, name) for name in ("relationships", "prefixes"))
    for prefix in prefixes:
        if prefix.count(SENTENCE) != 1 or MASK in prefix:
            raise UserError(f"--candidates {path}: prefix {prefix!r} must contain {SENTENCE} once, and no {MASK}")
    return relationships, prefixes


def _words(path: str, content: Mapping[str, Any], name: str) -> list[str]:
    words = content[name]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise UserError(f"--candidates {path}: {name} must be a list of at least one string")
    return words


def _made_of(model: "SentenceEncoder", suite: "Suite") -> dict[str, Any]:
    from dcpcse.encoders.identity import identity

    facts = identity(model)
    names = ("base", "weights", "configuration", "tokenizer", "special_tokens")
    return {
        "encoder": {name: facts[name] for name in names},
        "data": [file["sha256"] for file in suite.files.values()],
        "options": {"denoise": model.denoising.inference, "final_period": model.final_period},
    }
