"""Kept: folders exported before name `dcpcse.st.DeepPromptTransformer` in their modules.json."""

from dcpcse.interop.sentence_transformers import DeepPromptTransformer

__all__ = ["DeepPromptTransformer"]
