"""The functions of the Python interface, such as `dcpcse.load`, `dcpcse.train` and `dcpcse.evaluate`."""
