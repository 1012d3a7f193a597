"""Describe the errors by which the system, rather than dcpcse, refuses something: files, memory, encodings."""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence

from dcpcse.utils.errors import SURROGATE, UserError, first_line


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Name in an error what was being done, such as `while pairs.tsv was read`; the innermost description is kept.

    `describe_refusal` repeats it if the error itself does not name a file.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError) and not hasattr(error, "doing"):
            with contextlib.suppress(AttributeError, TypeError):  # classes of some libraries have no attributes
                error.doing = what
        raise


_REMEDIES = {
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM), "give a different path, or change the permissions of the folders that lead to it"
    ),
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or give a different path",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit on open files (ulimit -n)"),
    errno.EADDRINUSE: "give a different port",
}
"""Error number → what to do; any other error advises a different path."""

MEMORY_REMEDY = "give a smaller batch, model or file, or use a machine with more memory"

_ALLOCATION = re.compile(
    r"(can't|cannot|unable to|failed to|not enough memory:?.*) allocate|alloc_cpu|out of memory|bad_alloc|"
    r"storage size calculation overflowed|invalid buffer size|array is too big|maximum allowed dimension exceeded|"
    r"can't start new thread|shared memory \(shm\)",
    re.IGNORECASE,
)
"""Messages of torch, numpy, Python and the C++ library if memory or threads cannot be had. torch raises RuntimeError,
and numpy raises ValueError if a size overflows before anything is allocated."""

_NATIVE_ERRNO = re.compile(r"\(os error (\d+)\)|Os \{ code: (\d+)")
"""The error number in messages of libraries in Rust (safetensors, tokenizers), which raise no OSError."""

_TORCH_WRITER = re.compile(r"PytorchStreamWriter failed|iostream error")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory could not be allocated, on the CPU or a GPU."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, (RuntimeError, ValueError)) and bool(_ALLOCATION.search(str(error)[:2000]))


def system_error(error: BaseException) -> OSError | None:
    """Return an error of the operating system as OSError with its number, also if a library in Rust reports it."""
    if isinstance(error, OSError):
        return error if error.errno is not None else None
    if found := _NATIVE_ERRNO.search(str(error)[:2000]):
        number = int(found[1] or found[2])
        return OSError(number, os.strerror(number))
    return None


def is_refusal(error: BaseException) -> bool:
    """Return whether the system refused something; such errors should reach the end of the program as they are."""
    return is_out_of_memory(error) or system_error(error) is not None


def describe_refusal(error: BaseException) -> str | None:
    """Return a line for an error by which the system refused something; None for any other error, which is a bug."""
    what = getattr(error, "doing", "")
    during = f" {what}" if what else ""
    if is_out_of_memory(error):
        return f"not enough memory{during} ({first_line(error)}); {MEMORY_REMEDY}"
    if isinstance(error, UnicodeError):
        return _describe_unicode(error, during)
    if found := system_error(error):
        place = f": {found.filename}" if found.filename is not None else during
        return f"{found.strerror}{place}; {_REMEDIES.get(found.errno, 'give a different path')}"
    if isinstance(error, RuntimeError) and _TORCH_WRITER.search(str(error)):
        return f"cannot write a file{during} ({first_line(error)}); is the disk full? Give a different path"
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # raised by pathlib
        return f"{error}; give the path of the file itself"
    return None


def as_user_error(error: Exception) -> UserError:
    """Return a user error or a refusal as UserError, for the process that started this one. Raises any other error."""
    if isinstance(error, UserError):
        return error
    if line := describe_refusal(error):
        return UserError(line)
    raise error


def _describe_unicode(error: UnicodeError, during: str) -> str:
    if isinstance(error, UnicodeEncodeError):
        text = str(error.object)[max(0, error.start - 30) : error.start + 30]
        return (
            f"{text!r}{during} contains a character that cannot be written in {error.encoding}; give a name in UTF-8, "
            f"and set PYTHONUTF8=1 if the locale has a different encoding"
        )
    return f"text{during} is not {getattr(error, 'encoding', 'valid text')} ({first_line(error)}); convert it to UTF-8"


def require_text(words: Sequence[str], what: str = "the argument") -> None:
    """Raise UserError for bytes that the encoding of the locale lacks: no file that dcpcse writes could have them."""
    for word in words:
        if SURROGATE.search(word):
            encoding = sys.getfilesystemencoding()
            remedy = "change it" if encoding == "utf-8" else "set PYTHONUTF8=1 if it is UTF-8, or change it"
            raise UserError(f"{what} {word!r} is not text in {encoding}; {remedy}")
