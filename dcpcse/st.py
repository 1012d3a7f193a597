"""Compatibility module: the modules.json of exported folders refers to `dcpcse.st.DeepPromptTransformer`."""

from dcpcse.interop.sentence_transformers import DeepPromptTransformer

__all__ = ["DeepPromptTransformer"]
