"""Exit with 0 if the proxy speaks TLS, refuses what is not for sites, and the SuperLink behind it answers."""

import os
import socket
import ssl

CONTEXT = ssl.create_default_context(cafile=f"{os.environ['PROXY_KEYS']}/ca.crt")


def answer(host: str, port: int, name: str, path: str) -> bytes:
    """Return how the answer of a server that is certified as ``name`` begins."""
    with (
        socket.create_connection((host, port), 5) as plain,
        CONTEXT.wrap_socket(plain, server_hostname=name) as connection,
    ):
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode()
        )
        return connection.recv(64)


own = answer(
    "127.0.0.1", int(os.environ["PROXY_LISTEN"].rpartition(":")[2]), "127.0.0.1", "/healthy"
)
if not own.startswith(b"HTTP/1.1 404 "):
    raise SystemExit(f"unexpected: {own!r}")
host, _, port = os.environ["PROXY_SUPERLINK"].rpartition(":")
behind = answer(host.strip("[]"), int(port), host.strip("[]"), "/health")
if not behind.startswith(b"HTTP/1.1 200 "):
    raise SystemExit(f"the SuperLink at {os.environ['PROXY_SUPERLINK']}: {behind!r}")
