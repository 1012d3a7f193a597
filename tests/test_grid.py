"""The sample of a grid has every test and every value of every parameter twice, if it can, and is always the same."""

import itertools
from collections import Counter
from types import SimpleNamespace


def test_a_sample_has_every_test_and_value_twice_and_is_the_same_in_every_call(pytestconfig):
    conftest = pytestconfig.pluginmanager.get_plugin(str(pytestconfig.rootpath / "tests/conftest.py"))
    cells = itertools.product(("test_a", "test_b"), range(6), ("x", "y", "z"))
    items = [
        SimpleNamespace(originalname=test, callspec=SimpleNamespace(params={"i": i, "c": c})) for test, i, c in cells
    ]
    items.append(SimpleNamespace(originalname="test_once", callspec=SimpleNamespace(params={"i": "once", "c": "x"})))
    sample = conftest.sample_of_grid(items)
    counts = Counter()
    for item in sample:
        counts.update([item.originalname, *item.callspec.params.values()])
    assert {name: counts[name] for name in ("test_once", "once")} == {"test_once": 1, "once": 1}
    assert all(counts[name] >= 2 for name in ("test_a", "test_b", *range(6), *"xyz"))
    assert len(sample) < len(items) / 2 and sample == conftest.sample_of_grid(items)
