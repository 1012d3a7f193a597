"""Checkpoints of the public code of SimCSE, DCPCSE, DiffCSE, PromptBERT and P-tuning v2, and prefixes of PEFT.

`read` recognises such checkpoints and reads their files. `layouts` contains the table of formats, and `choices` the
settings that checkpoints do not contain. `build` builds the model.
"""
