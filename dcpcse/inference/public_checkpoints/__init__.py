"""Checkpoints of the public code of SimCSE, DCPCSE, DiffCSE, PromptBERT and P-tuning v2, and prefixes of PEFT.

The module `read` recognises these checkpoints and reads their files. `layouts` contains the table of formats.
`choices` contains the settings that checkpoints lack. `build` builds the model.
"""
