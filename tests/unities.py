"""An open-source Unity Catalog server that the environment names, for tests and the demo; nothing here starts one."""

from __future__ import annotations

import dataclasses
import json
import os
import urllib.error
import urllib.request
import uuid
from typing import Any

from tests.deltas import DELTA, OPTIONS

URI, JARS, TOKEN = "GROUP_MODELS_UC_URI", "GROUP_MODELS_UC_JARS", "GROUP_MODELS_UC_TOKEN"
"""Environment variables: the server's address, the jars of its Spark connector, a token (optional)."""

STORAGE = "GROUP_MODELS_UC_STORAGE"
"""Where the server keeps managed tables; by default a folder of this machine, which it then must see."""

SECURED = ("GROUP_MODELS_UC_SECURED_URI", "GROUP_MODELS_UC_SECURED_TOKEN", "GROUP_MODELS_UC_USER",
           "GROUP_MODELS_UC_USER_TOKEN")  # fmt: skip
"""The same of a server that asks who one is: its address, its owner's token, and a user without privileges."""

NAME = f"gm{uuid.uuid4().hex[:8]}"
"""The catalog of the tests of this process, and the start of the names of those that lack something."""

WHY_NOT = f"set {URI} to a Unity Catalog server and {JARS} to its Spark connector (README, Tables in a catalog)"
WHY_NOT_SECURED = f"set {', '.join(SECURED)} to a server with authorization, its owner's token, a user and its token"


def is_named() -> bool:
    """Return whether the environment names a server."""
    return bool(os.environ.get(URI) and os.environ.get(JARS))


def is_secured() -> bool:
    """Return whether the environment names a server with authorization, too."""
    return all(map(os.environ.get, SECURED))


@dataclasses.dataclass(frozen=True)
class Server:
    """A Unity Catalog server, asked as whoever the token is of."""

    uri: str
    token: str = ""

    def ensure(self, path: str, body: dict[str, Any]) -> None:
        """Create something unless it is there."""
        try:
            self.post(path, body)
        except RuntimeError as e:
            if "ALREADY_EXISTS" not in str(e):
                raise

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Create something."""
        self._ask("POST", path, body)

    def grant(self, kind: str, name: str, principal: str, *privileges: str) -> None:
        """Give privileges on a catalog, schema or table."""
        changes = [{"principal": principal, "add": list(privileges), "remove": []}]
        self._ask("PATCH", f"permissions/{kind}/{name}", {"changes": changes})

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        url = f"{self.uri.rstrip('/')}/api/2.1/unity-catalog/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)  # noqa: S310
        try:
            urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{method} {url}: {e.code} {e.read().decode()[:500]}") from e


def server() -> Server:
    """Return the server that the environment names."""
    return Server(os.environ[URI], os.environ.get(TOKEN, ""))


def catalog_options(name: str, uri: str, token: str = "") -> dict[str, str]:
    """Return the options by which Spark knows a catalog of a server."""
    prefix = f"spark.sql.catalog.{name}"
    return {prefix: "io.unitycatalog.spark.UCSingleCatalog", f"{prefix}.uri": uri, f"{prefix}.token": token}


def jar_options() -> dict[str, str]:
    """Return the options by which Spark gets Delta and the connector: paths of jars, and Maven coordinates."""
    named = [each.strip() for each in os.environ[JARS].split(",") if each.strip()]
    files = [each for each in named if each.endswith(".jar")]
    packages = [DELTA, *(each for each in named if not each.endswith(".jar"))]
    return {**OPTIONS, "spark.jars.packages": ",".join(packages), **({"spark.jars": ",".join(files)} if files else {})}
