"""The command line interface: the program `dcpcse`, train.py and evaluation.py."""
