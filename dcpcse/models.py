"""Public import path of all models, heads, poolers and prompts."""

from dcpcse.encoders.backbones import LMHead
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.heads import (
    HEADS,
    BatchNormMLP,
    DenseLayers,
    JointBatchNorm,
    MLMTransform,
    PretrainedPooler,
    TanhMLP,
)
from dcpcse.encoders.lora import Lora
from dcpcse.encoders.pooling import POOLERS, Pooler
from dcpcse.encoders.prompts import DeepPrompt, ProjectedTable, PromptShape, PromptTable, ShallowPrompt, VectorPrompt
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.encoders.template_denoising import Denoising

__all__ = [
    "HEADS",
    "POOLERS",
    "BatchNormMLP",
    "DeepPrompt",
    "Denoising",
    "DenseLayers",
    "Encoder",
    "JointBatchNorm",
    "LMHead",
    "Lora",
    "MLMTransform",
    "Pooler",
    "PretrainedPooler",
    "ProjectedTable",
    "PromptShape",
    "PromptTable",
    "SentenceEncoder",
    "ShallowPrompt",
    "TanhMLP",
    "VectorPrompt",
    "plain_encoder",
]
