"""Whether a Unity Catalog server lets somebody write a table, asked of a server on loopback that says so or not."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from group_models.adapters.unity_asking import check_may_write
from group_models.errors import StateError
from tests.servers import free_port


class Catalog(http.server.BaseHTTPRequestHandler):
    """Answers as Unity Catalog 0.6.0 does: who has not the token `writer` may read alone."""

    def do_GET(self) -> None:
        self.answer(200, {"table_id": "1"} if self.path.endswith("/tables/c.s.t") else {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        may = self.headers.get("Authorization") == "Bearer writer"
        self.answer(200 if may and asked == {"table_id": "1", "operation": "READ_WRITE"} else 403, {})

    def answer(self, status: int, body: dict[str, str]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Catalog)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def session(uri: str, token: str = "", catalog: str = "io.unitycatalog.spark.UCSingleCatalog"):
    prefix = "spark.sql.catalog.c"
    settings = {prefix: catalog, f"{prefix}.uri": uri, f"{prefix}.token": token}
    return SimpleNamespace(conf=SimpleNamespace(get=lambda name, default=None: settings.get(name, default)))


def test_who_may_not_write_is_told_the_table_and_the_privileges(uri: str):
    with pytest.raises(StateError, match=r"^writing c\.s\.t failed: .*403.*SELECT and MODIFY on c\.s\.t; `group"):
        check_may_write(session(uri, "reader"), "c.s.t")


def test_who_may_write_other_catalogs_and_a_server_out_of_reach_are_passed_over(uri: str):
    check_may_write(session(uri, "writer"), "c.s.t")
    check_may_write(session(uri, "reader", "org.apache.spark.sql.delta.catalog.DeltaCatalog"), "c.s.t")
    check_may_write(session(f"http://127.0.0.1:{free_port()}", "reader"), "c.s.t")
