"""List the packages that gpu.sh needs and that a machine with a GPU lacks, with the versions installed here.

    python benchmarks/gpu_packages.py [--image benchmarks/gpu_image.txt]

--image is a file with the names of the packages on that machine, as `pip list` shows them. The default is the list of
an image with Python 3.12, torch 2.11 and transformers 5.17. Packages that these packages require are not listed.
"""

import argparse
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NEEDED = ("dcpcse", "pytest", "pytest-xdist", "sentence-transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=Path, default=Path(__file__).with_name("gpu_image.txt"))
    present = parser.parse_args().image.read_text(encoding="utf-8").split()
    print("\n".join(f"{name}=={version}" for name, version in lacking(present).items() if name != "dcpcse"))


def lacking(present: list[str]) -> dict[str, str]:
    """Return name → version of the needed packages that are not present, and of all that these require."""
    present = set(map(canonicalize_name, present))
    versions: dict[str, str] = {}
    queue = [*NEEDED]
    while queue:
        name = canonicalize_name(queue.pop(0))
        if name in present or name in versions:
            continue
        package = distribution(name)
        versions[name] = package.version
        requirements = map(Requirement, package.requires or ())
        queue += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return versions


if __name__ == "__main__":
    main()
