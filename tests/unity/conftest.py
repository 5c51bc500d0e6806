"""A session that knows catalogs of a real Unity Catalog server; in a process of its own (`make test-uc`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import unities
from tests.servers import InFront, free_port, in_front
from tests.unities import NAME


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where no server is named, or where others' session may be the one of this process."""
    here = os.path.dirname(__file__)  # noqa: PTH120
    ours = [item for item in items if str(item.path).startswith(here)]
    why_not = None if unities.is_named() else unities.WHY_NOT
    if why_not is None and len(ours) < len(items):
        why_not = "Unity Catalog needs a process of its own: `make test-uc`"
    for item in ours:
        item.add_marker(pytest.mark.unity)
        if why_not:
            item.add_marker(pytest.mark.skip(reason=why_not))


@pytest.fixture(scope="session")
def front() -> Iterator[InFront]:
    """What stands before the server for the catalog `NAME_front`, and can break down."""
    with in_front(unities.server().uri) as standing:
        yield standing


@pytest.fixture(scope="session")
def more_options(front: InFront) -> dict[str, str]:
    """What Delta and the connector need, and the catalogs, of which some lack something."""
    there = unities.server()
    places = {
        NAME: (there.uri, there.token),
        f"{NAME}_bare": (there.uri, there.token),
        f"{NAME}_missing": (there.uri, there.token),
        f"{NAME}_front": (front.url, there.token),
        f"{NAME}_down": (f"http://127.0.0.1:{free_port()}", ""),
    }
    if unities.is_secured():
        secured, _, _, token = map(os.environ.__getitem__, unities.SECURED)
        places[f"{NAME}_denied"] = (secured, "not.a.token")
        places[f"{NAME}_user"] = (secured, token)
    options = unities.jar_options()
    for name, (uri, token) in places.items():
        options |= unities.catalog_options(name, uri, token)
    return options


@pytest.fixture(scope="session")
def managed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the server keeps managed tables."""
    return os.environ.get(unities.STORAGE) or f"file://{tmp_path_factory.mktemp('managed')}"


@pytest.fixture(scope="session")
def catalog(managed: str) -> str:
    """A catalog with a managed location."""
    unities.server().post("catalogs", {"name": NAME, "storage_root": managed})
    return NAME


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A folder for external tables."""
    return f"file://{tmp_path}"
