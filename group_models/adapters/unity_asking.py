"""Ask an open-source Unity Catalog server whether a table may be written, before Delta tries.

Delta 4.4.0 takes a commit that the server refuses (403) for a passing fault and tries it again for eight minutes and
more, and deleting no row from a table in local files asks for no privilege at all.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from group_models.errors import StateError
from group_models.ports import SparkSession

_CONNECTOR = "io.unitycatalog.spark.UCSingleCatalog"
_TIMEOUT_S = 30
_DENIED = 403


def check_may_write(spark: SparkSession, name: str) -> None:
    """Refuse a table of such a server that whoever the session's token is of may not write; pass over all others.

    Raises
    ------
    StateError
        The server says so; it names the table and the privileges.
    """
    prefix = f"spark.sql.catalog.{name.split('.', maxsplit=1)[0]}"
    if spark.conf.get(prefix, None) != _CONNECTOR:
        return
    api = f"{spark.conf.get(f'{prefix}.uri').rstrip('/')}/api/2.1/unity-catalog"
    token = spark.conf.get(f"{prefix}.token", None)
    try:
        table = _ask(f"{api}/tables/{name}", token)
        # What is needed to write: the answer itself, credentials of the storage, is of no use here.
        _ask(f"{api}/temporary-table-credentials", token, {"table_id": table["table_id"], "operation": "READ_WRITE"})
    except urllib.error.HTTPError as e:
        if e.code == _DENIED:
            way_out = "`group-models grants SPEC` prints the statements"
            raise StateError(
                f"writing {name} failed: the catalog answers 403, permission denied. The way out: ask the owner for "
                f"SELECT and MODIFY on {name}; {way_out}"
            ) from e
    except OSError:
        # A session whose server this machine does not reach: what Spark says of the table counts.
        return


def _ask(url: str, token: str | None, body: dict[str, Any] | None = None) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - the address that Spark has
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        return json.load(answer)
