"""Prompts of MTEB tasks: the text before each text of a task, by names as in mteb and sentence-transformers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.manifest import MODULES
from dcpcse.encoders.storage.st_modules import MODEL_CONFIG, read_modules, read_pooling_settings
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, did_you_mean, spell
from dcpcse.utils.parsing import parse_yaml, read_json, read_text

INSTRUCTION = "{instruction}"
"""Part of a prompt that is replaced by the instruction that mteb has for the task."""


def read_prompts(path: str | Path) -> dict[str, str]:
    """Read a YAML or JSON file of prompts: name → text.

    A name is that of a task or of a type of tasks, alone or followed by -query or -document, or query or document.
    Tasks are those of mteb and those that have been loaded from the user's files. Raises UserError if the file is no
    such mapping or a name is unknown.
    """
    option = spell("mteb_prompts", path)
    if not Path(path).is_file():
        raise UserError(f"{option}: no such file; give a YAML or JSON file")
    try:
        prompts = parse_yaml(read_text(path))
    except ValueError as error:
        raise UserError(f"{option} is not YAML or JSON ({error}); correct it") from error
    if not isinstance(prompts, dict) or not prompts or not all(isinstance(text, str) for text in prompts.values()):
        raise UserError(f"{option}: must be a mapping of names to texts, such as 'query: \"query: \"'; correct it")
    known = _known_names()
    for name in prompts:
        if not _is_known(str(name), known):
            hint = did_you_mean(str(name), known)
            raise UserError(
                f"{option}: {str(name)[:80]!r} is no task; {hint + ' ' if hint else ''}give a task of mteb or of "
                f"{spell('mteb')}, a type of tasks such as STS, query or document"
            )
    return prompts


def folder_prompts(folder: Path) -> dict[str, str]:
    """Return the prompts in the settings of sentence-transformers in a model folder, an empty dict if it has none.

    Names that mteb does not know are left out, with a log line. Raises UserError if the pooling leaves prompts out,
    which is not supported.
    """
    path = folder / MODEL_CONFIG
    config = read_json(path) if path.is_file() else {}
    prompts = config.get("prompts") if isinstance(config, dict) else None
    if not isinstance(prompts, dict):
        return {}
    prompts = {name: text for name, text in prompts.items() if isinstance(text, str)}
    if not any(prompts.values()):
        return {}
    known = _known_names()
    used = {name: text for name, text in prompts.items() if _is_known(name, known)}
    if unused := sorted(set(prompts) - set(used)):
        notify(f"{path}: the prompts {', '.join(unused)} are names of no MTEB task and are not used for one")
    if (folder / MODULES).is_file():
        read_pooling_settings(folder, read_modules(folder), prefix=next(filter(None, prompts.values())))
    # As in sentence-transformers, the default prompt precedes neither queries nor documents.
    return {"query": "", "document": "", **used}


def prompt_of(prompts: Mapping[str, str], metadata: Any, prompt_type: Any) -> str | None:
    """Return the prompt for the texts of a task, or None.

    The most specific name is used, in mteb's order: TASK-query, TASK, TYPE-query, TYPE, query.

    Args:
        prompts: Name → prompt.
        metadata: mteb's metadata of the task.
        prompt_type: mteb's PromptType of the texts, query or document, or None.

    Raises:
        UserError: If the prompt needs an instruction and mteb has none for the task.
    """
    from mteb.models.abs_encoder import get_prompt  # imported here because it is slow

    prompt = get_prompt(dict(prompts), metadata, prompt_type)
    if prompt is None or INSTRUCTION not in prompt:
        return prompt
    if not (instruction := _instruction(metadata, prompt_type)):
        raise UserError(f"mteb has no instruction for {metadata.name}; give it a prompt without {INSTRUCTION}")
    return prompt.replace(INSTRUCTION, instruction)


@contextmanager
def without_prefix(model: Any) -> Iterator[None]:
    """Let a model encode texts without its default prompt within the context."""
    if not isinstance(model, SentenceEncoder):
        yield
        return
    before, model.text_prefix = model.text_prefix, ""
    try:
        yield
    finally:
        model.text_prefix = before


def _instruction(metadata: Any, prompt_type: Any) -> str:
    from mteb.abstasks.abstask import get_abstask_prompt

    prompt = metadata.prompt
    if isinstance(prompt, dict):
        return prompt.get(prompt_type.value, "") if prompt_type else ""
    return prompt or get_abstask_prompt(metadata.name)


def _known_names() -> set[str]:
    from mteb.abstasks import AbsTask
    from mteb.abstasks.task_metadata import TaskType
    from mteb.types import PromptType

    tasks = {task.metadata.name for task in _subclasses(AbsTask) if getattr(task, "metadata", None)}
    return {*tasks, *get_args(TaskType), *(kind.value for kind in PromptType)}


def _subclasses(kind: type) -> Iterator[Any]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _is_known(name: str, known: set[str]) -> bool:
    task, _, kind = name.rpartition("-")
    return name in known or (kind in ("query", "document") and task in known)
