"""Exit with 0 if the proxy speaks TLS with a valid certificate and refuses what is not for sites."""

import os
import socket
import ssl

port = int(os.environ["PROXY_LISTEN"].rpartition(":")[2])
context = ssl.create_default_context(cafile=f"{os.environ['PROXY_KEYS']}/ca.crt")
with (
    socket.create_connection(("127.0.0.1", port), 5) as plain,
    context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
):
    connection.sendall(b"GET /healthy HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n")
    answer = connection.recv(64)
raise SystemExit(0 if answer.startswith(b"HTTP/1.1 404 ") else f"unexpected: {answer!r}")
