"""python unpack.py ARCHIVE FOLDER: unpacks a tar archive of any maker into a new folder, and nothing elsewhere.

Only files and folders whose names stay inside the new folder, bounded in number and size. Needs only the standard
library, so that it runs before anything is installed. tarfile's filters would need Python 3.11.4.
"""

import shutil
import sys
import tarfile
from pathlib import Path

MOST_MEMBERS = 100_000
MOST_BYTES = 4 * 10**9


def unpack(archive: str, folder: Path) -> None:
    """ValueError, tarfile.TarError or OSError for an archive that is refused."""
    folder.mkdir()
    members = size = 0
    with tarfile.open(archive) as packed:
        for member in packed:
            members, size = members + 1, size + member.size
            if not (member.isfile() or member.isdir()):
                raise ValueError(f"{member.name!r} is a link or a device; files and folders alone are unpacked")
            path = Path(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{member.name!r} leads out of the folder")
            if members > MOST_MEMBERS or size > MOST_BYTES:
                raise ValueError(f"more than {MOST_MEMBERS:,} files or {MOST_BYTES:,} bytes")
            target = folder / path
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with packed.extractfile(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
    if not members:
        raise ValueError("it is empty")


def main() -> int:
    archive, folder = sys.argv[1:]
    try:
        unpack(archive, Path(folder))
    except (ValueError, tarfile.TarError, OSError, EOFError) as error:
        print(f"error: {archive} is refused: {str(error)!a}; delete it and run this again", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
