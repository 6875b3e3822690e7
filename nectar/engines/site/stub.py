"""What a SuperNode starts instead of `flwr-clientapp`: hands its words on to the site's program, and waits.

``python -I -S stub.py SOCKET PROGRAM``, the words in the environment, where no other user reads them. Every message
starts one, so it imports nothing but what Python has built in.

SOCKET is the site's program's. If nobody listens there, PROGRAM is started in its place; without one, nothing is.
"""

import _socket
import posix
import sys

#: the variable that holds the words, one a line
WORDS = b"NECTAR_SITE_WORDS"

#: bytes of a fork's number, and of the exit code that follows when it has ended
PID, CODE = 4, 2


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
    hand_over(site, words, posix.getcwdb(), environment, (0, 1, 2))
    answer = b""
    while len(answer) < PID + CODE:
        more = site.recv(PID + CODE - len(answer))
        if not more:
            return 1
        answer += more
    code = int.from_bytes(answer[PID:], "big", signed=True)
    return code if code >= 0 else 128 - code


def hand_over(
    to: _socket.socket,
    words: list[bytes],
    folder: bytes,
    environment: dict[bytes, bytes],
    files: tuple[int, int, int],
) -> None:
    """Ask for a fork with these words, folder, variables, and standard input, output and errors.

    A socket's message is what carries open files from one process to another; no pipe does. All else of the request
    goes with them, after its length.
    """
    variables = [name + b"=" + value for name, value in environment.items()]
    content = b"\0".join([str(len(words)).encode(), *words, folder, *variables])
    whole = len(content).to_bytes(8, "big") + content
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
    sent = to.sendmsg([whole], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    if sent < len(whole):  # else the answer may have come, and nobody reads any more
        to.sendall(whole[sent:])


if __name__ == "__main__":
    posix._exit(main(*sys.argv[1:]))
