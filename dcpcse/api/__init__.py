"""The functions of the Python interface: `dcpcse.load`, `train`, `evaluate` and `compare`."""
