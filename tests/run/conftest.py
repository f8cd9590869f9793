"""One pool of warm rank processes for all tests of this room (torch takes seconds to start)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gangsaw.run.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    with Pool() as ranks:
        yield ranks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # All tests here go to one worker of xdist, so that there is one pool only.
    for item in items:
        if "tests/run/" in str(item.path):
            item.add_marker(pytest.mark.xdist_group("torch"))
