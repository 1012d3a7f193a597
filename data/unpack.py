"""python unpack.py ARCHIVE FOLDER: unpacks a tar archive of any maker into a new folder, and nothing elsewhere.

Files and folders only, whose names stay inside (tarfile's filter "data"), bounded in number and size. Nothing but the
standard library, so that it runs before anything is installed.
"""

import sys
import tarfile
from pathlib import Path

MOST_MEMBERS = 100_000
MOST_BYTES = 4 * 10**9


def unpack(archive: str, folder: str) -> None:
    """ValueError, tarfile.TarError or OSError for an archive that is refused."""
    Path(folder).mkdir()
    members = size = 0
    with tarfile.open(archive) as packed:
        for member in packed:
            members, size = members + 1, size + member.size
            if not (member.isfile() or member.isdir()):
                raise ValueError(f"{member.name!r} is a link or a device; files and folders alone are unpacked")
            if member.name.startswith("/"):
                raise ValueError(f"{member.name!r} is an absolute name")
            if members > MOST_MEMBERS or size > MOST_BYTES:
                raise ValueError(f"more than {MOST_MEMBERS:,} files or {MOST_BYTES:,} bytes")
            packed.extract(member, folder, filter="data")
    if not members:
        raise ValueError("it is empty")


def main() -> int:
    archive, folder = sys.argv[1:]
    if not hasattr(tarfile, "data_filter"):
        print("error: this Python cannot unpack safely; take Python 3.11.4 or a later one", file=sys.stderr)
        return 1
    try:
        unpack(archive, folder)
    except (ValueError, tarfile.TarError, OSError, EOFError) as error:
        print(f"error: {archive} is refused: {str(error)!a}; delete it and run this again", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
