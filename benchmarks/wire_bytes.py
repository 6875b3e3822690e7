"""Bytes of a round as the record counts them, against what a network interface counted, both ways.

FedAvg with a model of more than 5 MB between a SuperLink and one SuperNode, each in a network namespace made for it
and joined by a cable that carries nothing else; without and with TLS and node authentication. Linux, root and iproute2
are needed: ``python -m benchmarks.wire_bytes``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.federation import Federation, rounds_of
from benchmarks.frames import (
    Frame,
    Sniffer,
    http_messages,
    layers_of,
    streams_of,
    tls_overhead,
)

SPACE, OUTSIDE, INSIDE = "nectar-bytes", "nectar-b0", "nectar-b1"
HERE, THERE = "10.213.77.1", "10.213.77.2"
ROUNDS = 6
_INSIDE = "--inside"
SITE = "partition-0"

SETTINGS = (
    "federation.sites=1 data.images=300 evaluation.on=none model.width=400 "
    "fedavg.epochs=1 fedavg.batch=64"
)

#: calls that a SuperNode makes whether there is work or not
_IDLE = ("pull-messages", "send-node-heartbeat")
#: the call whose bodies carry the payload
_CARRIER = {"down": "pull-object", "up": "push-object"}

Parts = dict[str, float]


@dataclass(frozen=True)
class Call:
    """An HTTP request or response that passed: when, of which call, its head and body in bytes."""

    time: float
    name: str
    head: int
    body: int


def main() -> int:
    """Measure both ways of running and print the tables."""
    if os.geteuid() != 0:
        print("benchmarks.wire_bytes makes network namespaces: run it as root.", file=sys.stderr)
        return 2
    if sys.argv[1:] != [_INSIDE]:
        again = [sys.executable, "-m", "benchmarks.wire_bytes", _INSIDE]
        os.execvp("unshare", ["unshare", "--net", *again])
    _ip("link", "set", "lo", "up")
    for tls in (False, True):
        with tempfile.TemporaryDirectory() as directory, interface() as count:
            _report(tls, *measure(Path(directory), tls, count))
    return 0


@contextmanager
def interface() -> Iterator[Callable[[], dict[str, int]]]:
    """Make the namespace and its cable; give a function that reads the counters of our end, down and up."""
    _ip("netns", "add", SPACE)
    try:
        _ip("link", "add", OUTSIDE, "type", "veth", "peer", "name", INSIDE, "netns", SPACE)
        _ip("address", "add", f"{HERE}/30", "dev", OUTSIDE)
        _ip("-n", SPACE, "address", "add", f"{THERE}/30", "dev", INSIDE)
        for where, name in (([], OUTSIDE), (["-n", SPACE], INSIDE)):
            # One segment a frame, as on a real cable: a virtual one would carry 64 kB under one header.
            _ip(*where, "link", "set", "dev", name, "gso_max_segs", "1")
            _ip(*where, "link", "set", name, "up")
        _ip("-n", SPACE, "link", "set", "lo", "up")
        yield _counters
    finally:
        # The namespace's own end goes whenever the kernel gets to it.
        subprocess.run(["ip", "link", "delete", OUTSIDE], check=False, stderr=subprocess.DEVNULL)
        _ip("netns", "delete", SPACE)


def _counters() -> dict[str, int]:
    """Read what our end of the cable has counted so far; /sys would show the machine's own namespace."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, values = line.partition(":")
        if name.strip() == OUTSIDE:
            fields = values.split()
            return {"down": int(fields[8]), "up": int(fields[0])}
    raise RuntimeError(f"/proc/net/dev does not list {OUTSIDE}")


def measure(
    directory: Path, tls: bool, count: Callable[[], dict[str, int]]
) -> tuple[list[dict[str, Any]], list[float], list[dict[str, int]], list[Frame]]:
    """Run the federation; return the record's lines, when each was there, the counters then, and all frames."""
    config = {
        "method": "fedavg",
        "rounds": ROUNDS,
        "output-dir": str(directory / "runs"),
        "set": SETTINGS,
    }
    ends: list[float] = []
    counters: list[dict[str, int]] = []
    with (
        Sniffer(OUTSIDE) as sniffer,
        Federation(directory, [SITE], host=HERE, tls=tls) as federation,
    ):
        federation.start_node(
            SITE, "partition-id=0 num-partitions=1", ["ip", "netns", "exec", SPACE]
        )
        run_id = federation.submit(config)
        while len(ends) <= ROUNDS:
            if len(rounds_of(directory / "runs")) > len(ends):
                ends.append(time.time())
                counters.append(count())
            time.sleep(0.01)
        federation.wait(run_id)
    return rounds_of(directory / "runs"), ends, counters, sniffer.frames


def _report(
    tls: bool,
    lines: Sequence[dict[str, Any]],
    ends: Sequence[float],
    counters: Sequence[dict[str, int]],
    frames: Sequence[Frame],
) -> None:
    measured = ROUNDS - 1
    print(
        f"{'TLS and node authentication' if tls else 'insecure'}, bytes a round, rounds 2..{ROUNDS}"
    )
    for way in ("down", "up"):
        passed = [f for f in frames if f.outgoing == (way == "down")]
        within = [f for f in passed if ends[1] < f.time <= ends[-1]]
        counted = sum(line["bytes"][way][SITE] for line in lines[2:])
        layers = layers_of(within)
        repeated = _repeated(passed, ends)
        parts: Parts = {"the record's count": counted}
        parts |= _in_tls(within) if tls else _in_http(frames, way, ends)
        objects = parts.pop("objects", None)
        if objects is not None:
            parts["Flower's objects around it"] = objects - counted
        else:
            parts["HTTP, polls, heartbeats, Flower's objects"] = (
                layers.payload - repeated - sum(parts.values())
            )
        parts["what TCP sent once more"] = repeated
        parts["Ethernet, IP and TCP headers of data"] = layers.data_headers
        parts["frames without data (acknowledgements)"] = layers.acknowledgements
        parts["ARP and the like"] = layers.other
        interface = counters[-1][way] - counters[1][way]
        for name, value in parts.items():
            print(f"  {way:<5}{name:<45}{value / measured:>12,.0f}  {value / counted:>8.3%}")
        rest = interface - sum(parts.values())
        print(f"  {way:<5}{'not told apart':<45}{rest / measured:>12,.0f}  {rest / counted:>8.3%}")
        print(
            f"  {way:<5}{'the interface':<45}{interface / measured:>12,.0f}  {interface / counted:>8.3%}"
        )
    if not tls:
        fab = sum(call.body for call in _calls(frames)["down"] if call.name == "get-fab")
        print(f"  once a run and site: the app bundle, {fab:,} bytes down")


def _repeated(passed: Sequence[Frame], ends: Sequence[float]) -> int:
    streams = streams_of(passed).values()
    return sum(size for s in streams for at, size in s.repeats if ends[1] < at <= ends[-1])


def _in_tls(frames: Sequence[Frame]) -> Parts:
    """Return what TLS adds to the streams within ``frames``; they begin and end between records."""
    sums = [tls_overhead(s.content) for s in streams_of(frames).values()]
    return {
        "TLS: headers and tags of records": sum(added for added, _ in sums),
        "TLS: handshakes in the clear": sum(handshake for _, handshake in sums),
    }


def _in_http(frames: Sequence[Frame], way: str, ends: Sequence[float]) -> Parts:
    calls = [c for c in _calls(frames)[way] if ends[1] < c.time <= ends[-1]]
    working = [c for c in calls if c.name not in _IDLE]
    return {
        "objects": sum(c.body for c in working if c.name == _CARRIER[way]),
        "bodies of Flower's other calls": sum(c.body for c in working if c.name != _CARRIER[way]),
        "HTTP heads of these calls": sum(c.head for c in working),
        "polls and heartbeats": sum(c.head + c.body for c in calls if c.name in _IDLE),
    }


def _calls(frames: Sequence[Frame]) -> dict[str, list[Call]]:
    """Return the requests (up) and responses (down) of all connections; a response has its request's name."""
    requests = streams_of(f for f in frames if not f.outgoing)
    responses = {
        port: stream for (_, port), stream in streams_of(f for f in frames if f.outgoing).items()
    }
    calls: dict[str, list[Call]] = {"down": [], "up": []}
    for (source, _), asked in requests.items():
        names = []
        for message in http_messages(asked.content):
            name = message.first_line.split()[1].rpartition("/")[2]
            names.append(name)
            calls["up"].append(Call(asked.time_of(message.end), name, message.head, message.body))
        answered = responses.get(source[-2:])
        if answered is None:
            continue
        for name, message in zip(names, http_messages(answered.content), strict=False):
            calls["down"].append(
                Call(answered.time_of(message.end), name, message.head, message.body)
            )
    return calls


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


if __name__ == "__main__":
    sys.exit(main())
