"""Encode a text file of any length to a file of vectors.

The work is done in chunks, by one or several processes or machines, and can be resumed after an interruption.
"""

from dcpcse.inference.file_encoding.encode_file import EncodedFile, encode_file

__all__ = ["EncodedFile", "encode_file"]
