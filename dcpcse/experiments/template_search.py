"""Greedy search for a template, scored on STS-B dev (PromptBERT, section 4.2).

The search first varies the relationship tokens between sentence and [MASK]. It then keeps the best of these and varies
the prefix around the sentence. With `--t5`, `dcpcse.experiments.template_generation` generates the templates instead.
Every score is saved immediately, so that an interrupted search can be resumed.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.dataclasses import strict

from dcpcse.encoders.templates import MASK, SENTENCE, Template
from dcpcse.utils import schema
from dcpcse.utils.console import print_message, print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import open_append, require_writable, write_atomic
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

SCORES_FILE = "scores.jsonl"
BEST_FILE = "best.txt"
DEV_TASK = "STSBenchmark"


@strict
@dataclass(kw_only=True)
class ScoreLine:
    """A line of the file of scores: what was measured, in the first line; then a template and its score."""

    measured: dict | None = None
    template: str | None = schema.text(default=None)
    score: int | float | None = schema.finite(default=None)

    def validate_kind(self) -> None:
        """Raise ValueError unless the line is of one of the two kinds."""
        present = [value is not None for value in (self.measured, self.template, self.score)]
        if present not in ([True, False, False], [False, True, True]):
            raise ValueError("expected measured, or template and score")


class TemplateScores:
    """Scores by template, stored in a file from which a later call can resume.

    Raises UserError if the file contains scores of a different model, of different data or with different settings.
    """

    def __init__(self, folder: Path, owner: Mapping[str, Any]) -> None:
        self.path = folder / SCORES_FILE
        self.by_template: dict[str, float] = {}
        if not self.path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            self._append({"measured": dict(owner)})
            return
        head, *rows = self._read() or [{}]
        if head.get("measured") != dict(owner) or any("measured" in row for row in rows):
            raise UserError(
                f"{self.path} contains scores of another encoder, of other data, or with other settings of --denoise "
                "and --final_period; choose another --output_dir"
            )
        self.by_template = {row["template"]: row["score"] for row in rows}

    def add(self, template: str, score: float) -> None:
        self.by_template[template] = score
        self._append({"template": template, "score": score})

    def best(self, count: int) -> list[tuple[str, float]]:
        """Return the best templates with their scores, best first."""
        return sorted(self.by_template.items(), key=lambda item: -item[1])[:count]

    def _append(self, row: Mapping[str, Any]) -> None:
        with open_append(self.path) as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _read(self) -> list[dict[str, Any]]:
        try:
            rows = schema.read_lines(ScoreLine, self.path)
        except UserError as error:
            raise UserError(f"{error}; delete it, or choose another --output_dir") from error
        text = read_text(self.path)
        if not text.endswith("\n"):  # the incomplete line of a call that was killed
            write_atomic(self.path, text[: text.rfind("\n") + 1])
        return rows


def search_templates(args: argparse.Namespace, relationships: Sequence[str], prefixes: Sequence[str]) -> None:
    # Imported after the options are checked, as these imports take seconds.
    from senteval import load_suite, settings_of_mode

    from dcpcse.encoders.backbones import load_backbone
    from dcpcse.encoders.sentence_encoder import plain_encoder
    from dcpcse.evaluation.evaluator import evaluate_suite
    from dcpcse.experiments.template_generation import read_definitions
    from dcpcse.utils.devices import pick_device

    examples = read_definitions(args.definitions) if args.definitions else []
    require_writable(Path(args.output_dir), f"--output_dir {args.output_dir}")
    suite = load_suite([DEV_TASK], args.data_dir, settings_of_mode("dev", official=not args.custom_data))
    generated = _generate(args, examples)
    first, backbone = Template.parse(f"{SENTENCE} {MASK} ."), load_backbone(args.model_name_or_path)
    model = plain_encoder(backbone, "mask", first, args.denoise, args.final_period).to(pick_device(args.device))
    scores = TemplateScores(Path(args.output_dir), _owner(model, suite))

    def score(templates: Iterable[str]) -> str:
        """Evaluate the templates that have no score yet, and return the best of all given templates."""
        texts = list(dict.fromkeys(templates))
        for done, text in enumerate(texts, start=1):
            if text not in scores.by_template:
                model.set_template(Template.parse(text))
                result = evaluate_suite(model, suite, batch_size=args.batch_size).results[DEV_TASK]
                scores.add(text, result.points)
            print_message(f"{done}/{len(texts)}  {scores.by_template[text]:6.2f}  {text}")
        return max(texts, key=lambda text: scores.by_template[text])

    if generated:
        score(str(template) for template in generated)
    else:
        best = score(build_template(SENTENCE, words) for words in relationships)
        words = best.removeprefix(SENTENCE).removesuffix(f"{MASK} .").strip()
        score(build_template(prefix, words) for prefix in prefixes)
    top = scores.best(args.keep)
    print_result(score_table(top))
    write_atomic(Path(args.output_dir) / BEST_FILE, "".join(f"{text}\n" for text, _ in top))


def _generate(args: argparse.Namespace, examples: Sequence["Example"]) -> list[Template]:
    """Return templates generated by the T5 given with `--t5`, or an empty list without this option."""
    if not args.t5:
        return []
    from dcpcse.experiments.template_generation import MAX_GAP_TOKENS, generate_templates, load_t5

    templates = generate_templates(*load_t5(args.t5), examples, args.generate)
    if not templates:
        raise UserError(f"--t5 {args.t5} closes no gap within {MAX_GAP_TOKENS} tokens; choose a pretrained T5")
    return templates


def build_template(prefix: str, relationship: str) -> str:
    """Return the template that combines a prefix and a relationship."""
    return " ".join(part for part in (prefix, relationship, MASK, ".") if part)


def score_table(best: Sequence[tuple[str, float]]) -> str:
    """Return a table in the form of the paper's Table 4."""
    return str(make_table(["template", "STS-B dev"], [[text, f"{score:.2f}"] for text, score in best], "l"))


def read_candidates(path: str | None) -> tuple[list[str], list[str]]:
    """Read the lists relationships and prefixes from a YAML file; without a file, return the built-in lists."""
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


def _owner(model: "SentenceEncoder", suite: "Suite") -> dict[str, Any]:
    from dcpcse.encoders.identity import identity

    facts = identity(model)
    data = [file["sha256"] for file in suite.files.values()]
    settings = {"denoise": model.denoising.inference, "final_period": model.final_period}
    names = ("base", "weights", "configuration", "tokenizer", "special_tokens")
    return {**{name: facts[name] for name in names}, "data": data, **settings}
