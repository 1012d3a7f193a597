"""Checkpoints of the public code of SimCSE, DCPCSE, DiffCSE, PromptBERT and P-tuning v2, and prefixes of PEFT.

`recognise` tells such a checkpoint from other encoders. `layouts` contains the table of formats, and `choices` the
settings that checkpoints do not contain. `read` reads the files, and `build` builds the model.
"""
