"""What a SuperNode starts in the place of `flwr-clientapp`: hands its words on to the site's program, and waits.

``python -I -S stub.py SOCKET PROGRAM``, the words in the environment, where no other user reads them. Every message
starts one, so it imports nothing but what Python has built in.

SOCKET is the site's program's. If nobody listens there, PROGRAM is started in its place; without one, nothing is.
"""

import _socket
import posix
import sys

#: the variable that holds the words, one a line
WORDS = b"NECTAR_SITE_WORDS"


def main(place: str, program: str) -> int:
    """Have the ClientApp run by whoever listens at ``place``; return its exit code."""
    environment = dict(posix.environ)
    words = environment.pop(WORDS, b"").split(b"\n")
    site = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        site.connect(place)
    except OSError as error:
        if not program:
            posix.write(2, f"nectar site: its program is gone: {error}\n".encode())
            return 1
        posix.execve(program, [program.encode(), *words], environment)
    variables = [name + b"=" + value for name, value in environment.items()]
    items = [str(len(words)).encode(), *words, posix.getcwdb(), *variables]
    hand_over(site, b"\0".join(items))
    answer = site.recv(1)
    return answer[0] if answer else 1


def hand_over(site: _socket.socket, content: bytes) -> None:
    """Send ``content`` behind its length, and with it this process's standard input, output and errors."""
    whole = len(content).to_bytes(8, "big") + content
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    sent = site.sendmsg([whole], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    if sent < len(whole):  # else the answer may have come, and nobody reads any more
        site.sendall(whole[sent:])


if __name__ == "__main__":
    posix._exit(main(*sys.argv[1:]))
