"""`nectar keys`: what it writes, judged by Python's ssl, by OpenSSL and OpenSSH, and by what it refuses."""

from __future__ import annotations

import datetime
import http.server
import os
import shutil
import ssl
import stat
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from deployment import nectar

from nectar.operate.keys import authority as files
from nectar.operate.keys.authority import (
    fingerprint,
    make_authority,
    make_nodes,
    make_server,
    read_private,
    read_public,
)
from nectar.operate.keys.inventory import inventory


def modes(directory: Path) -> dict[str, str]:
    found = {p.relative_to(directory).as_posix(): p for p in directory.rglob("*")}
    return {name: f"{stat.S_IMODE(p.stat().st_mode):o}" for name, p in sorted(found.items())}


@contextmanager
def server(directory: Path) -> Iterator[int]:
    """Serve HTTPS with the directory's certificate on a free port of the loopback."""
    httpd = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem", directory / "server.key")
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield httpd.server_address[1]
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def reach(port: int, ca: Path, host: str = "127.0.0.1") -> str:
    """Return what keeps a client that trusts ``ca`` from the server; empty if nothing."""
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
    try:
        with urllib.request.build_opener(*handlers).open(f"https://{host}:{port}/", timeout=30):
            return ""
    except urllib.error.URLError as error:
        return str(error.reason)


def test_modes_names_and_nothing_else(tmp_path: Path) -> None:
    keys = tmp_path / "new" / "keys"
    mask = os.umask(0)  # the worst: nothing is taken away by it
    try:
        assert nectar("keys", "ca", str(keys)) == 0
        assert nectar("keys", "server", str(keys), "superlink.example.org", "192.0.2.7") == 0
        assert nectar("keys", "node", str(keys), "hospital-a", "b.2") == 0
    finally:
        os.umask(mask)
    assert modes(keys) == {
        "ca.crt": "644",
        "ca.key": "600",
        "nodes": "700",
        "nodes/b.2": "600",
        "nodes/b.2.pub": "644",
        "nodes/hospital-a": "600",
        "nodes/hospital-a.pub": "644",
        "server.key": "600",
        "server.pem": "644",
    }
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert stat.S_IMODE(keys.parent.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "words", [["ca"], ["server", "superlink.test"], ["node", "hospital-a"]], ids=lambda w: w[0]
)
def test_a_directory_that_is_open_to_others_is_named(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    if words[0] == "server":
        make_authority(keys)
    keys.chmod(0o777)
    assert nectar("keys", words[0], str(keys), *words[1:]) == 0
    message = capsys.readouterr().out.splitlines()[-1]
    assert message == f"note: {keys}: other users have access to it (mode 777): chmod 700 {keys}"


def test_a_private_key_is_private_from_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode when the file is opened, not after some chmod."""
    seen: list[int] = []
    real = os.fsync

    def look(descriptor: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", look)
    monkeypatch.setattr(os, "chmod", None)
    make_nodes(tmp_path / "keys", ["a"])
    assert seen == [0o600, 0o644]


def test_tls_stands_with_the_authority_and_falls_without(tmp_path: Path) -> None:
    make_authority(tmp_path / "keys")
    make_authority(tmp_path / "other")
    make_server(tmp_path / "keys", ["superlink.example.org"])
    with server(tmp_path / "keys") as port:
        for host in ("127.0.0.1", "localhost"):
            assert reach(port, tmp_path / "keys" / "ca.crt", host) == ""
        assert "CERTIFICATE_VERIFY_FAILED" in reach(port, tmp_path / "other" / "ca.crt")


@pytest.mark.extended
def test_rotation_of_the_authority_with_a_bundle(tmp_path: Path) -> None:
    """With both in one file a site follows the server from the old authority to the new one."""
    old, new, both = tmp_path / "old", tmp_path / "new", tmp_path / "both.crt"
    for directory in (old, new):
        make_authority(directory)
        make_server(directory, [])
    both.write_bytes((old / "ca.crt").read_bytes() + (new / "ca.crt").read_bytes())
    for directory in (old, new):
        with server(directory) as port:
            assert reach(port, both) == ""
    with server(new) as port:
        assert "CERTIFICATE_VERIFY_FAILED" in reach(port, old / "ca.crt")


def test_a_certificate_is_valid_for_the_given_hosts_and_the_loopback(tmp_path: Path) -> None:
    make_authority(tmp_path)
    found = make_server(tmp_path, ["superlink.example.org", "192.0.2.7", "[2001:db8::7]"], days=20)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink.example.org", "localhost"]
    addresses = [str(a) for a in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["192.0.2.7", "2001:db8::7", "127.0.0.1", "::1"]
    left = found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=19, hours=23) < left <= datetime.timedelta(days=20)


def test_a_certificate_never_outlasts_its_authority(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, days=5)
    assert make_server(tmp_path, []).not_valid_after_utc == authority.not_valid_after_utc


@pytest.mark.parametrize("label", ["a" * 63, "superlink-hospital-a-north-west-1"])
def test_long_names_are_judged_at_once(tmp_path: Path, label: str) -> None:
    """A host's label has 63 characters at most; one that is wrong at its end took minutes to be found so."""
    make_authority(tmp_path)
    began = time.process_time()
    for host in (f"{label}a" * 2, f"{label}_1.example.org", f"{label}.{label}.example.org:8000"):
        with pytest.raises(files.KeysError, match="neither a host name nor an address"):
            make_server(tmp_path, [host])
    assert time.process_time() - began < 2
    make_server(tmp_path, [f"{label}.{label}.example.org"])


def test_a_file_that_appears_in_between_is_not_written_over_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "b"
    monkeypatch.setattr(files, "refuse_existing", lambda *paths: theirs.write_text("theirs"))
    with pytest.raises(files.KeysError, match="b exists, and"):
        files.write_new({tmp_path / "a": (b"mine", 0o600), theirs: (b"mine", 0o600)})
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    assert theirs.read_text() == "theirs"


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("link", [1, 2])
def test_ctrl_c_leaves_no_half_of_a_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: int, linked: bool
) -> None:
    """Whichever of the two files it comes at, before or behind the call that puts it into place."""
    real, calls = os.link, iter([1, 2])

    def interrupted(source: Path, target: Path) -> None:
        if next(calls) == link:
            if linked:
                real(source, target)
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(files.os, "link", interrupted)
    assert nectar("keys", "ca", str(tmp_path / "keys")) == 130
    monkeypatch.undo()
    assert list((tmp_path / "keys").iterdir()) == []
    assert nectar("keys", "ca", str(tmp_path / "keys")) == 0


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
def test_openssh_reads_the_pairs(tmp_path: Path) -> None:
    (public,) = make_nodes(tmp_path, ["a"])
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(public)], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["384", fingerprint(read_public(public)), "a", "(ECDSA)"]
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(public.with_suffix(""))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert derived.stdout.split()[:2] == public.read_text().split()[:2]


def test_flower_takes_the_public_half(tmp_path: Path) -> None:
    from flwr.cli.supernode.register import try_load_public_key

    (public,) = make_nodes(tmp_path, ["a"])
    assert b"BEGIN PUBLIC KEY" in try_load_public_key(public)
    assert read_private(public.with_suffix("")).public_key() == read_public(public)


def test_show_names_everything_once_and_is_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = make_authority(tmp_path)
    make_server(tmp_path, ["superlink.example.org"])
    (public,) = make_nodes(tmp_path, ["a"])
    (tmp_path / "nodes" / "a.pub.node-id").write_text("17\n")
    capsys.readouterr()
    assert nectar("keys", "show", str(tmp_path)) == 0
    message = capsys.readouterr().out
    assert authority.fingerprint(hashes.SHA256()).hex(":").upper() in message
    assert fingerprint(read_public(public)) in message
    assert "superlink.example.org" in message
    assert f"{authority.not_valid_after_utc:%Y-%m-%d}" in message
    assert "note" not in message
    assert len(message.splitlines()) == 8


def test_show_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_authority(tmp_path)
    make_server(tmp_path, [], days=3)
    make_nodes(tmp_path, ["a", "b"])
    (tmp_path / "ca.key").chmod(0o644)
    (tmp_path / "nodes" / "a.pub").write_bytes((tmp_path / "nodes" / "b.pub").read_bytes())
    capsys.readouterr()
    assert nectar("keys", "show", str(tmp_path)) == 1
    message = capsys.readouterr().out
    assert f"other users have access to it (mode 644): chmod 600 {tmp_path}/ca.key" in message
    assert "in 2 days" in message
    assert "does not match a.pub" in message
    wrong = {entry.name for entry in inventory(tmp_path) if entry.problem}
    assert wrong == {"ca.key", "server.pem", "nodes/a"}


def test_show_knows_a_certificate_of_another_authority(tmp_path: Path) -> None:
    make_authority(tmp_path / "one")
    make_server(tmp_path / "one", [])
    make_authority(tmp_path / "two")
    for name in ("ca.key", "ca.crt"):
        shutil.copy(tmp_path / "two" / name, tmp_path / "one" / name)
    (problem,) = [e.problem for e in inventory(tmp_path / "one") if e.problem]
    assert problem == "not signed by this directory's ca.crt: sites that trust ca.crt refuse it"


def test_an_expired_authority_signs_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nectar.operate.keys import authority

    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=40)
    monkeypatch.setattr(authority, "_now", lambda: past)
    make_authority(tmp_path, days=30)
    monkeypatch.undo()
    assert nectar("keys", "server", str(tmp_path)) == 2
    assert "expired on" in capsys.readouterr().err
    assert nectar("keys", "show", str(tmp_path)) == 1


def test_show_knows_a_sites_volume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the compose file lays it out: ca.crt and the private half as `key`."""
    make_authority(tmp_path / "operator")
    (public,) = make_nodes(tmp_path / "operator", ["north"])
    volume = tmp_path / "north"
    volume.mkdir(mode=0o700)
    shutil.copy(tmp_path / "operator" / "ca.crt", volume)
    shutil.copy(public.with_suffix(""), volume / "key")
    assert {entry.name for entry in inventory(volume)} == {"north/", "ca.crt", "key"}
    (volume / "key").chmod(0o644)
    assert nectar("keys", "show", str(volume)) == 0
    assert f"chmod 600 {volume}/key" in capsys.readouterr().out


def test_curves_are_those_of_flower(tmp_path: Path) -> None:
    (public,) = make_nodes(tmp_path, ["a"])
    assert isinstance(read_public(public).curve, ec.SECP384R1)
