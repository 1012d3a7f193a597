"""Checkpoints of the public code of SimCSE, DCPCSE, DiffCSE, PromptBERT and P-tuning v2, and prefixes of PEFT.

`read` tells such a checkpoint from other encoders and reads its files. `layouts` contains the table of formats, and
`choices` the settings that checkpoints do not contain. `build` builds the model.
"""
