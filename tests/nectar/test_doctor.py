"""`nectar doctor`: each thing that can be wrong is made wrong, and is named with what mends it."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import socketserver
import ssl
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from email.utils import formatdate
from importlib import metadata
from pathlib import Path
from time import time

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from data_files import forget_loaded, small_mnist, write_source
from deployment import nectar
from flwr.app import Context, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from image_folders import CLASSES, paint, paint_split
from places import ROOT

from client_app.site import division_of
from common.config.loading import load
from common.data.loading import load as load_data
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.privacy.ledger import LEDGER, Charge, Ledger
from nectar.engines.flower.app import project
from nectar.engines.flower.connection import Connection
from nectar.operate.doctor import machine
from nectar.operate.doctor.checks import Check, Patient, show
from nectar.operate.keys.authority import make_authority, make_nodes, make_server, read_public

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "`nectar doctor --site` fails on an unregistered key, and disturbs no SuperNode",
)

FLOWER = metadata.version("flwr")


class SuperLink(http.server.BaseHTTPRequestHandler):
    """Answers as Flower's does, or as the sites' proxy before one that is there or not."""

    version, late, proxy, down = FLOWER, 0.0, False, False
    registered: tuple[bytes, ...] = ()

    def do_GET(self) -> None:
        known = {"/health": "", "/openapi.json": json.dumps({"info": {"version": self.version}})}
        if self.proxy or self.path not in known:
            self._answer(404, "not here")
        else:
            self._answer(200, known[self.path])

    def do_POST(self) -> None:
        if self.path == "/v1/fleet/get-run":
            signed = self.headers["Content-Type"] == "application/protobuf"
            self._answer(502 if self.down else 401 if signed else 415, "no")
            return
        if self.path == "/v1/fleet/activate-node":
            self._activate()
            return
        control = self.path.startswith("/v1/control/") and not self.proxy
        self._answer(415 if control else 404, '{"code":1002,"detail":"x"}' if control else "no")

    def _activate(self) -> None:
        """As Flower: who signed, then whether the key is known, then whether the interval can be."""
        key = b64decode(self.headers["flwr-public-key"])
        content = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            signed_at = self.headers["flwr-timestamp"]
            public = load_pem_public_key(key)
            assert isinstance(public, EllipticCurvePublicKey)
            signature = b64decode(self.headers["flwr-signature"])
            public.verify(signature, signed_at.encode(), ECDSA(SHA256()))
            asked = ActivateNodeRequest.FromString(content)
            assert asked.public_key == key
            assert asked.heartbeat_interval == 0, "a possible one would make the caller the node"
            assert abs(datetime.fromisoformat(signed_at).timestamp() - time() + self.late) < 300
        except (AssertionError, InvalidSignature):
            self._answer(401, '{"detail":"Invalid SuperNode authentication"}')
            return
        known = key in self.registered
        self._answer(400 if known else 412, json.dumps({"code": 2003 if known else 2004}))

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time() - self.late, usegmt=True)

    def log_message(self, *words: object) -> None:
        pass

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def serving(keys: Path | None, **traits: object) -> Iterator[str]:
    """Serve such a SuperLink on the loopback, with TLS if there are keys; yield its address."""
    httpd = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (SuperLink,), dict(traits))
    )
    if keys is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.pem", keys / "server.key")
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys") / "keys"
    make_authority(directory)
    make_server(directory, ["superlink.test"])
    return directory


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the doctor; give its exit code and its lines, spaces made one."""

    def run(*words: str) -> tuple[int, str]:
        code = nectar("doctor", *words, f"output-dir={tmp_path / 'runs'}")
        message = capsys.readouterr()
        assert code == 2 or not message.err
        lines = [" ".join(line.split()) for line in (message.out + message.err).splitlines()]
        return code, "\n".join(lines)

    return run


Doctor = Callable[..., tuple[int, str]]


def test_all_is_well_at_the_operators(doctor: Doctor, keys: Path, tmp_path: Path) -> None:
    with serving(keys) as address:
        code, message = doctor(address, "--ca", str(keys / "ca.crt"), "--keys", str(keys))
    assert code == 0
    assert {line.split()[0] for line in message.splitlines()} == {"ok"}
    for line in (
        "ok device cpu",
        "ok data digits: 1,437 images to learn from, 360 to test",
        f"ok records {tmp_path}/runs: writable",
        "ok keys server.pem is valid for 127.0.0.1",
        "ok tls TLSv1.3, a certificate for 127.0.0.1 until",
        "ok server the SuperLink answers",
        "ok clock within",
        f"ok flower there {FLOWER}",
        "ok control api can be reached: runs can be submitted from here",
    ):
        assert line in message


def test_all_is_well_at_a_site_behind_the_proxy(doctor: Doctor, keys: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (public,) = make_nodes(own, ["hospital-a"])
    words = ["--site", "--keys", str(own), "--state", str(tmp_path / "state")]
    with serving(keys, proxy=True, registered=(pem(public),)) as address:
        code, message = doctor(address, "--ca", str(keys / "ca.crt"), *words)
    assert code == 0
    assert {line.split()[0] for line in message.splitlines()} == {"ok"}
    assert "ok server the SuperLink answers sites here" in message
    assert "ok control api cannot be reached from here, as it should be" in message
    assert "ok flower there not told from here; it has to be 1.41 or 1.42" in message
    assert f"ok state {tmp_path}/state: writable" in message
    assert "ok key hospital-a is registered at the server (SHA256:" in message


def pem(public: Path) -> bytes:
    """Return a public half as a SuperNode sends it."""
    return read_public(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("method", ["fedavg", "feddm"])
def test_a_method_as_the_first_word_is_no_connection(doctor: Doctor, method: str) -> None:
    code, message = doctor(method)
    assert code == 0
    assert "There is no connection" not in message


def test_a_key_that_is_not_registered(doctor: Doctor, keys: Path, tmp_path: Path) -> None:
    """The key's own signature tells, and asks for nothing that would end the SuperNode that is online with it."""
    own = tmp_path / "own"
    known, _ = make_nodes(own, ["hospital-a", "hospital-b"])
    words = ["--ca", str(keys / "ca.crt"), "--site", "--keys", str(own)]
    with serving(keys, proxy=True, registered=(pem(known),)) as address:
        code, message = doctor(address, *words)
    assert code == 1
    assert "ok key hospital-a is registered" in message
    assert f"fail key {own}/nodes/hospital-b (SHA256:" in message
    assert "is not registered at the server, or no longer: the operator registers" in message
    with serving(keys, proxy=True, registered=(pem(known),), late=4000) as address:
        code, message = doctor(address, *words)
    assert code == 1
    assert "hospital-a (401): is this machine's clock right" in message


def test_a_site_that_reaches_the_control_api_is_warned(doctor: Doctor, keys: Path) -> None:
    with serving(keys) as address:
        code, message = doctor(address, "--ca", str(keys / "ca.crt"), "--site", "--keys", str(keys))
    assert code == 0
    assert "warn control api can be reached from this site" in message
    assert f"warn keys {keys}/ca.key does not belong at a site: delete it here" in message


def test_the_sites_proxy_is_not_the_operators_way(doctor: Doctor, keys: Path) -> None:
    with serving(keys, proxy=True) as address:
        code, message = doctor(address, "--ca", str(keys / "ca.crt"))
    assert code == 1
    assert "fail server /health answers 404: this is the sites' proxy or no SuperLink" in message
    assert "fail control api cannot be reached from here (404)" in message


def test_another_authority(doctor: Doctor, keys: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "other")
    with serving(keys) as address:
        code, message = doctor(address, "--ca", str(tmp_path / "other" / "ca.crt"))
    assert code == 1
    assert "fail tls unable to get local issuer certificate" in message
    assert f"{tmp_path}/other/ca.crt: ask the operator for ca.crt" in message
    assert "control api" not in message  # what depends on it is not looked at


def test_a_host_that_the_certificate_does_not_name(
    doctor: Doctor, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    real = socket.create_connection
    monkeypatch.setattr(
        "socket.create_connection", lambda to, *rest: real(("127.0.0.1", to[1]), *rest)
    )
    with serving(keys) as address:
        port = address.rpartition(":")[2]
        words = [f"elsewhere.test:{port}", "--ca", str(keys / "ca.crt"), "--keys", str(keys)]
        code, message = doctor(*words)
    assert code == 1
    assert (
        "fail keys server.pem is valid for superlink.test, localhost, 127.0.0.1, ::1, not"
        in message
    )
    assert "fail tls Hostname mismatch" in message
    assert "makes a certificate for elsewhere.test" in message


def test_a_proxy_before_a_superlink_that_is_down(doctor: Doctor, keys: Path) -> None:
    with serving(keys, proxy=True, down=True) as address:
        code, message = doctor(address, "--ca", str(keys / "ca.crt"), "--site")
    assert code == 1
    assert "fail server a proxy answers, but cannot reach the SuperLink (502)" in message


def test_a_web_server_is_no_superlink(doctor: Doctor, keys: Path) -> None:
    """At a site, too, where the proxy hides /health."""
    with serving(keys, do_POST=lambda self: self._answer(404, "<html>not here</html>")) as address:
        code, message = doctor(address, "--ca", str(keys / "ca.crt"), "--site")
    assert code == 1
    assert "fail server no SuperLink answers sites here (404)" in message


@pytest.mark.parametrize("site", [[], ["--site"]])
def test_what_speaks_something_else(doctor: Doctor, site: list[str]) -> None:
    """An SSH server's greeting, for one, is no sentence of HTTP."""
    with greeting(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        code, message = doctor(address, "--insecure", *site)
        assert code == 1
        assert "fail server no answer (it speaks no HTTP, BadStatusLine)" in message
        found = Connection("x", address, None, True, Path())
        assert found.health() == "it speaks no HTTP, BadStatusLine"


@contextmanager
def greeting(words: bytes) -> Iterator[str]:
    """Greet whoever connects, and listen to nobody."""

    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.sendall(words)
                while self.request.recv(65536):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeter) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("late", "line"),
    [
        (400.0, r"fail clock \d+ s ahead of the server's: set both by NTP; Flower refuses"),
        (15.0, r"fail clock \d+ s ahead of"),
        (-8.0, r"ok clock within \d+ s"),
        (-100.0, r"warn clock \d+ s behind the server's: set both by NTP$"),
        (-400.0, r"fail clock \d+ s behind"),
    ],
)
def test_a_clock_that_differs(doctor: Doctor, keys: Path, late: float, line: str) -> None:
    """Flower takes what was signed up to 5 s ahead of its clock and up to 305 s behind."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    taken = -SYSTEM_TIME_TOLERANCE < -late < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    with serving(keys, late=late) as address:
        code, message = doctor(address, "--ca", str(keys / "ca.crt"))
    assert (code == 0) == taken
    assert re.search(line, message, re.MULTILINE)


@pytest.mark.parametrize("site", [False, True])
@pytest.mark.parametrize("version", ["1.40.2", "1.41.0", "1.42.3", "1.43.0"])
def test_another_flower_at_the_server(doctor: Doctor, keys: Path, version: str, site: bool) -> None:
    """Both ends say the same of two that work together, and of one that is out of the range."""
    with serving(keys, version=version) as address:
        _, message = doctor(address, "--ca", str(keys / "ca.crt"), *["--site"] * site)
    needs = "every machine of a federation needs 1.41 or 1.42"
    assert f"ok flower {FLOWER}; {needs}" in message
    taken = version.startswith(("1.41", "1.42"))
    found = f"ok flower there {version}" if taken else f"fail flower there {version}, and {needs}"
    assert found in message
    assert ("fail flower" not in message) == taken


def test_the_image_installs_the_flower_that_a_clone_locks() -> None:
    """One of the range; the image's build reads the same line."""
    locked = project()["tool"]["uv"]["constraint-dependencies"]
    (flower,) = [one for one in locked if one.startswith("flwr==")]
    assert machine.minor(flower.removeprefix("flwr==")) in machine.flowers_taken()
    build = (ROOT / "docker" / "nectar" / "Dockerfile").read_text()
    (pattern,) = re.findall('grep -o "(flwr==.*)" /app/pyproject.toml', build)
    assert re.findall(pattern, (ROOT / "pyproject.toml").read_text()) == [flower]


def test_no_tls(doctor: Doctor, keys: Path) -> None:
    with serving(None) as address:
        code, message = doctor(address, "--insecure")
        assert code == 0
        assert "warn tls none: whoever is on the way" in message
        code, message = doctor(address, "--ca", str(keys / "ca.crt"))
    assert code == 1
    assert "fail tls no TLS there" in message


def test_nobody_there(doctor: Doctor, keys: Path) -> None:
    code, message = doctor("127.0.0.1:1", "--ca", str(keys / "ca.crt"))
    assert code == 1
    assert "fail network 127.0.0.1:1 cannot be reached (Connection refused)" in message


def test_a_connection_that_is_none(doctor: Doctor, tmp_path: Path) -> None:
    code, message = doctor("127.0.0.1:1")
    assert code == 1
    assert "fail connection 127.0.0.1:1 needs the authority's certificate: --ca ca.crt" in message
    code, message = doctor("--ca", "x")
    assert code == 2


def test_keys_that_are_wrong(doctor: Doctor, tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    make_authority(directory)
    make_server(directory, [], days=2)
    (directory / "ca.key").chmod(0o640)
    code, message = doctor("--keys", str(directory))
    assert code == 0
    assert "warn keys ca.key: others may use it (mode 640): chmod 600" in message
    assert "warn keys server.pem: expires on" in message
    make_server(tmp_path / "keys2", []) if make_authority(tmp_path / "keys2") else None
    (directory / "server.key").write_bytes((tmp_path / "keys2" / "server.key").read_bytes())
    code, message = doctor("--keys", str(directory))
    assert code == 1
    assert "fail keys server.key: does not belong to server.pem" in message


def test_a_folder_of_images_and_one_with_a_strange_class(doctor: Doctor, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    paint(folder, "red", 3)
    paint(folder, "blue", 2)
    settings = [
        "dataset=images",
        f"images.classes={CLASSES}",
        "images.size=8",
        "images.max_bad=0.5",
    ]
    code, message = doctor("--site", "--data", str(folder), *settings)
    assert code == 0
    assert f"ok data {folder}: 5 images (red 3, blue 2)" in message
    (folder / "red" / "broken.png").write_bytes(b"no image")
    code, message = doctor("--site", "--data", str(folder), *settings)
    assert code == 0, message
    assert "not used: 1, `nectar data --folder` names them" in message
    (folder / "blue").rename(folder / "unicorn")
    code, message = doctor("--site", "--data", str(folder), *settings)
    assert code == 1
    assert "fail data" in message
    assert "unicorn" in message


MNIST = ("dataset=mnist", "partition.kind=iid")


OWN = ("dataset=images", f"images.classes={CLASSES}", "images.size=8", "model.depth=2")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A site's own folder: five red and two blue images."""
    paint(tmp_path / "own", "red", 5)
    paint(tmp_path / "own", "blue", 2)
    return tmp_path / "own"


def test_a_node_config_is_held_against_the_run(doctor: Doctor, own: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    vetoes = "allow-methods='feddm fedavg' allow-start='noise' min-class=2 max-ipc=10 cores=1"
    config = f"site='north' data='{own}' state-dir='{state}' {vetoes}"
    code, message = doctor("--site", "--node-config", config, *OWN)
    assert code == 0, message
    keys = "site, data, state-dir, allow-methods, allow-start, min-class, max-ipc, cores"
    assert f"ok node config {keys}: read as the site reads them" in message
    assert f"ok data {own}: 7 images (red 5, blue 2)" in message
    assert f"ok state {state}: writable" in message
    assert not state.exists()


def test_a_sites_ledger_is_looked_into(doctor: Doctor, own: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    where = ("2026-01-01T00:00:00Z", "north", "a-run", 1, "train", "feddm", "/data")
    words = ["--site", "--node-config", f"site='north' data='{own}' state-dir='{state}'", *OWN]
    assert "ok privacy nothing was released with noise" in doctor(*words)[1]
    Ledger(state).append(Charge(*where, (Event("a", 2.0),)), lambda before: None)
    code, message = doctor(*words)
    assert code == 0, message
    spent = epsilon([Event("a", 2.0)], 1e-5).value
    assert f"ok privacy 1 charges, epsilon {spent:.3g} at delta 1e-05" in message
    (state / LEDGER).unlink()
    code, message = doctor(*words)
    assert code == 1
    assert "fail privacy the privacy ledger" in message


def test_a_data_root_is_where_the_shared_set_is_looked_for(
    doctor: Doctor, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that names another place is refused; one that names none reads below the root."""
    root = tmp_path / "shared"
    write_source(monkeypatch, root, "mnist", small_mnist())
    node = f"partition-id=0 num-partitions=2 data-root='{root}'"
    code, message = doctor("--site", "--node-config", node, *MNIST)
    assert code == 0, message
    assert f"ok data mnist below {root}" in message
    code, message = doctor("--site", "--node-config", node, *MNIST, f"data-dir={tmp_path}")
    assert code == 1
    assert "which lies outside of this site's data-root" in message


def test_a_node_config_that_is_a_file(doctor: Doctor, own: Path, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'data = "{own}"\nallow-methods = "fedavg"\n')
    for method, code in (("fedavg", 0), ("feddm", 1)):
        assert doctor("--site", "--node-config", str(file), *OWN, f"method={method}")[0] == code
    file.write_text("data = ")
    code, message = doctor("--site", "--node-config", str(file), *OWN)
    assert code == 1
    assert f"{file} cannot be read as a node config" in message


def files_below(directory: Path) -> set[str]:
    return {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache in which no store lies."""
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("where", [[], ["--site"]])
def test_a_data_set_that_is_not_there(
    doctor: Doctor, tmp_path: Path, cache: Path, where: list[str]
) -> None:
    place = tmp_path / "data"
    code, message = doctor(*MNIST, f"data-dir={place}", *where)
    assert code == 1
    assert f"fail data mnist: {place}/MNIST/raw/train-images-idx3-ubyte is missing" in message
    assert f"`nectar data dataset=mnist data-dir={place}` fetches it" in message
    assert not place.exists()
    assert not cache.exists()


def test_a_data_set_that_only_the_server_elsewhere_needs(
    doctor: Doctor, keys: Path, tmp_path: Path, cache: Path
) -> None:
    place = f"data-dir={tmp_path / 'data'}"
    with serving(keys) as address:
        words = [address, "--ca", str(keys / "ca.crt"), *MNIST, place]
        code, message = doctor(*words)
        assert code == 0
        assert "warn data mnist: " in message
        assert "it is the server that needs it, on its own machine" in message
        assert " data " not in doctor(*words, "evaluation.on=none")[1]


def test_a_data_set_is_read_and_nothing_written(
    doctor: Doctor, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "data"
    source = write_source(monkeypatch, place, "mnist", small_mnist())
    before = files_below(place)
    words = [*MNIST, f"data-dir={place}", "--site"]
    found = f"ok data mnist below {place}: 30 images to learn from, 10 to test"
    code, message = doctor(*words)
    assert code == 0
    assert found in message
    assert files_below(place) == before
    assert not cache.exists()
    load_data("mnist", place)  # as a run does: now there is a store
    for file in source.files:
        (place / file.path).write_bytes(b"damaged")
    assert found in doctor(*words)[1]
    shutil.rmtree(place / "nectar-store")
    code, message = doctor(*words)
    assert code == 1
    assert "is truncated or damaged" in message


def test_a_shared_folder_of_images(doctor: Doctor, tmp_path: Path, cache: Path) -> None:
    """A relative one lies below the data directory; the server wants test images of it."""
    place = tmp_path / "data"
    paint_split(place / "pics", train=3, test=1)
    words = ["dataset=images", f"images.classes={CLASSES}", "images.size=8", f"data-dir={place}"]
    before = files_below(place)
    code, message = doctor(*words, "images.folder=pics")
    assert code == 0
    assert f"ok data images below {place}: 9 images to learn from, 3 to test" in message
    assert files_below(place) == before
    assert not cache.exists()
    shutil.rmtree(place / "pics" / "test")
    code, message = doctor(*words, "images.folder=pics")
    assert f"ok data images below {place}: 6 images to learn from, 3 to test" in message
    code, message = doctor(*words, "images.folder=pics", "data.test_share=0")
    assert code == 1
    assert "fail data evaluation.on=server needs test images" in message


def test_a_device_that_is_not_there(doctor: Doctor) -> None:
    code, message = doctor("compute.device=cuda:63")
    assert code == 1
    assert "fail device cuda:63" in message


def test_more_threads_than_cores(doctor: Doctor) -> None:
    code, message = doctor("--site", "compute.client_cores=4096")
    assert code == 0
    assert "more threads than cores only cost time" in message


@pytest.mark.parametrize(
    ("told", "level"), [({"amx_bf16": False}, "warn"), ({"amx_bf16": True}, "ok"), ({}, "ok")]
)
def test_bfloat16_on_a_cpu_that_is_slower_in_it(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, bool], level: str
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: told)
    for precision, expected in (("bfloat16", level), ("float32", "ok")):
        config = load({"set": f"compute.device=cpu compute.precision={precision}"})
        [(found, text)] = machine.device(Patient(config, {}))
        assert found == expected
        assert ("try float32" in text) == (expected == "warn")


def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def room(directory: Path) -> tuple[str, str]:
        (found,) = machine.room(directory)
        return found

    assert room(tmp_path / "new" / "deep")[0] == "ok"
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("x")
    assert room(tmp_path / "file" / "x")[0] == "fail"
    usage = type("Usage", (), {"free": 5_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    level, text = room(tmp_path)
    assert (level, text.endswith("0.0 GB free: make room")) == ("fail", True)

    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    assert "cannot be written (Permission denied)" in room(tmp_path)[1]


def test_versions_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.39.4")
    [(level, text)] = machine.flower(Patient(load({}), {}))
    assert level == "fail"
    assert '1.39.4, the app needs 1.41 or 1.42: pip install "flwr==1.42.*"' in text


def test_a_line_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(iter([Check("a", "ok", "x"), Check("b", "warn", "y")]))
    assert not show(iter([Check("a", "fail", "x"), Check("b", "ok", "y")]))
    assert len(capsys.readouterr().out.splitlines()) == 4


# -- what a site sets for itself ----------------------------------------------------------------


def context(**node_config: object) -> Context:
    return Context(1, 1, dict(node_config), RecordDict(), {"seed": 3})  # type: ignore[arg-type]


def test_a_sites_own_device_and_cores_stand_over_the_runs() -> None:
    assert division_of(context()).config.compute.client_cores == 1
    own = division_of(context(device="cpu", cores=2))
    assert (own.config.compute.device, own.config.compute.client_cores) == ("cpu", 2)
    assert own.config.seed == 3
    assert division_of(context(device="cpu", cores=2)) is own
    assert division_of(context(cores=3)) is not own


def test_a_site_that_names_no_run_looks_at_the_way_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No data set is read and no device tried for a run that nobody has named."""
    make_authority(tmp_path / "keys")
    words = ["doctor", "127.0.0.1:9", "--ca", str(tmp_path / "keys" / "ca.crt"), "--site"]
    assert nectar(*words) == 1
    looked = re.findall(r"^\w+ +(\w+)", capsys.readouterr().out, re.M)
    assert {"python", "flower", "source", "network"} <= {*looked}
    assert not {"device", "data"} & {*looked}
    assert nectar(*words, "method=fedavg") == 1
    assert {"device", "data"} <= {*re.findall(r"^\w+ +(\w+)", capsys.readouterr().out, re.M)}
