"""Real servers on loopback: MLflow's, and one in front of it that throttles or sleeps."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

_STARTS_S = 300


def free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers.

    Raises
    ------
    RuntimeError
        It ended, or took too long; with what it wrote last.
    """
    until = time.monotonic() + _STARTS_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310 - loopback
            return
        time.sleep(0.2)
    raise RuntimeError(f"{url} did not answer: {log.read_text()[-2000:]}")


class Server:
    """A command that serves HTTP on a port of loopback, and a log of what it says."""

    def __init__(self, command: list[str], port: int, log: Path, *, ready: str) -> None:
        self.command, self.port, self.log, self.ready = command, port, log, ready
        self.url = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.command], stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip
        wait_for(self.url + self.ready, self.process, self.log)
        return self

    def kill(self) -> None:
        """End the server and its workers at once, as a machine that is lost does."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()


def mlflow_server(folder: Path) -> Server:
    """Return a tracking server and registry that keeps all it has in a folder; not started."""
    port = free_port()
    command = [
        "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    return Server(command, port, folder / "server.log", ready="/health")


class _InFront(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        front: InFront = self.server  # type: ignore[assignment]
        front.calls += 1
        if front.dies_after and front.calls > front.dies_after:
            self.close_connection = True
            return
        if front.sleeps_s:
            time.sleep(front.sleeps_s)
        if front.throttles and front.calls % front.throttles == 0:
            front.throttled += 1
            self._answer(
                429, b'{"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "slow down"}', [("Retry-After", "3600")]
            )
            return
        own = ("host", "content-length", "connection")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in own}
        request = urllib.request.Request(front.behind + self.path, body or None, headers, method=self.command)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                self._answer(answer.status, answer.read(), answer.getheaders())
        except urllib.error.HTTPError as e:
            self._answer(e.code, e.read(), list(e.headers.items()))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - names of http.server

    def _answer(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() in ("content-type", "retry-after"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class InFront(http.server.ThreadingHTTPServer):
    """A server before another one: it throttles every so-many-th call, sleeps before each, or dies after so many."""

    daemon_threads = True

    def __init__(self, behind: str, *, throttles: int = 0, sleeps_s: float = 0, dies_after: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _InFront)
        self.behind, self.throttles, self.sleeps_s, self.dies_after = behind, throttles, sleeps_s, dies_after
        self.calls = self.throttled = 0
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def in_front(behind: str, **how: float) -> Iterator[InFront]:
    """Put a server in front of another one."""
    front = InFront(behind, **how)  # type: ignore[arg-type]
    thread = threading.Thread(target=front.serve_forever, daemon=True)
    thread.start()
    try:
        yield front
    finally:
        front.shutdown()
        front.server_close()
