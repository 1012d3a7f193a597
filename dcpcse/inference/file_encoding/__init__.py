"""Encoding a text file of any length to a file of vectors: in chunks, by several processes or machines, resumable."""

from dcpcse.inference.file_encoding.encode_file import EncodedFile, encode_file

__all__ = ["EncodedFile", "encode_file"]
