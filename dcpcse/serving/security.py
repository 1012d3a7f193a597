"""Read and compare the keys of a server, decide whether a key is required, and bind the address of the server."""

import base64
import binascii
import hmac
import ipaddress
import os
import socket
from collections.abc import Sequence

from dcpcse.serving.arguments import KEY_VARIABLE
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import read_text


def read_api_keys(file: str | None) -> tuple[bytes, ...]:
    """Return the API keys of a file (one per line) or, without a file, the key in the environment variable.

    The result is empty if there is no file and the variable is not set. Raises UserError if the file cannot be read or
    is empty, or if a key is not printable ASCII without spaces.
    """
    if file is None:
        value = os.environ.get(KEY_VARIABLE)
        return () if value is None else (_token(value.strip(), f"the variable {KEY_VARIABLE}"),)
    return _read_tokens(file, "--api_key_file")


def read_admin_token(file: str | None) -> bytes | None:
    """Return the admin token in a file, with which clients may change adapters; None without a file.

    Raises UserError as `read_api_keys` does, and if the file contains several tokens.
    """
    if file is None:
        return None
    tokens = _read_tokens(file, "--admin_token_file")
    if len(tokens) > 1:
        raise UserError(f"--admin_token_file {file}: the file has {len(tokens)} tokens; leave only one")
    return tokens[0]


def _read_tokens(file: str, option: str) -> tuple[bytes, ...]:
    try:
        lines = [line.strip() for line in read_text(file).splitlines()]
    except OSError as error:
        raise UserError(f"{option} {file}: cannot read the file ({error.strerror}); give a text file") from error
    tokens = tuple(_token(line, f"{option} {file}") for line in lines if line)
    if not tokens:
        raise UserError(f"{option} {file}: the file contains no key; write one key per line")
    return tokens


def _token(text: str, where: str) -> bytes:
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise UserError(
            f"{where}: a key must consist of printable ASCII characters without spaces, and must not be empty"
        )
    return text.encode("ascii")


def matching(candidate: bytes | None, tokens: Sequence[bytes]) -> int | None:
    """Return the index of the token that equals `candidate`, or None if no token does.

    All tokens are compared, each in constant time, so that the duration reveals nothing about the tokens.
    """
    index = None
    for number, token in enumerate(tokens):
        if hmac.compare_digest(candidate or b"", token):
            index = number
    return index if candidate else None


def token_of(authorization: bytes | None) -> bytes | None:
    """Return the token in a header `Authorization`: the text after Bearer, or the password of the scheme Basic.

    Browsers, which open the page /demo, can send only the scheme Basic.
    """
    scheme, _, rest = (authorization or b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return None
    return None


def require_key_beyond_this_machine(host: str, keys: Sequence[bytes]) -> None:
    """Raise UserError if there is no API key and other machines can reach the host."""
    if keys or is_loopback(host):
        return
    raise UserError(
        f"--host {host}: other machines could use the server without a key; give --api_key_file FILE or set "
        f"{KEY_VARIABLE}, or listen at 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Return whether all addresses of a host are loopback addresses. Raises UserError for an unknown host."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host {host} is not an address of this machine; give another host, such as 127.0.0.1"
        ) from error
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in addresses)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a host and port. Raises UserError if this address cannot be used."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        # asyncio sets TCP_NODELAY only on sockets that name the protocol; without it, answers wait 40 ms.
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        problem = f"cannot serve at this address ({error.strerror})"
        raise UserError(f"--host {host} --port {port}: {problem}; choose a different one") from error
    bound.set_inheritable(True)
    return bound
