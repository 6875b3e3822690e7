"""`nectar doctor`: each thing that can be wrong is made wrong, and is named with what mends it."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import socket
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
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from data_files import forget_loaded, small_mnist, write_source
from deployment import nectar
from flwr.app import Context, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from golden import assert_sentence
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
from nectar.operate.doctor.checks import DoctorTarget
from nectar.operate.keys.authority import make_authority, make_nodes, make_server, read_public

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "`nectar doctor --site` fails on an unregistered key, and disturbs no SuperNode",
)

FLOWER = metadata.version("flwr")
SAID = ROOT / "tests" / "golden" / "doctor.txt"
#: checks of which each machine says something else
MACHINE = ("ok python", "ok torch", "ok source", "ok device")


class SuperLink(http.server.BaseHTTPRequestHandler):
    """Answers as Flower's does, or as the sites' proxy before one that is there or not."""

    version, late, proxy, down = "1.42.0", 0.0, False, False
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
    make_authority(directory.parent / "other")
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


#: a SuperLink's traits, or none where nobody listens; what is typed; the exit code. {keys} are the operator's, {own} a
#: site's, {other} another authority's
SCENES: dict[str, tuple[dict[str, Any] | None, str, int]] = {
    "all is well at the operator's": ({}, "{at} --ca {keys}/ca.crt --keys {keys}", 0),
    "all is well at a site behind the proxy": (
        {"proxy": True, "known": ["a", "b"]},
        "{at} --ca {keys}/ca.crt --site --keys {own} --state {tmp}/state",
        0,
    ),
    # The key's own signature tells, and asks for nothing that would end the SuperNode that is online with it.
    "a key that is not registered": (
        {"proxy": True, "known": ["a"]},
        "{at} --ca {keys}/ca.crt --site --keys {own}",
        1,
    ),
    "a key that is signed too late": (
        {"proxy": True, "known": ["a"], "late": 4000},
        "{at} --ca {keys}/ca.crt --site --keys {own}",
        1,
    ),
    "a site that reaches the Control API": ({}, "{at} --ca {keys}/ca.crt --site --keys {keys}", 0),
    "the sites' proxy at the operator's": ({"proxy": True}, "{at} --ca {keys}/ca.crt", 1),
    "another authority": ({}, "{at} --ca {other}/ca.crt", 1),
    "a host that the certificate does not name": (
        {},
        "elsewhere.test:{port} --ca {keys}/ca.crt --keys {keys}",
        1,
    ),
    "a proxy before a SuperLink that is down": (
        {"proxy": True, "down": True},
        "{at} --ca {keys}/ca.crt --site",
        1,
    ),
    # At a site, too, where the proxy hides /health.
    "a web server": (
        {"do_POST": lambda self: self._answer(404, "<html>not here</html>")},
        "{at} --ca {keys}/ca.crt --site",
        1,
    ),
    "no TLS, as it is typed": ({"tls": False}, "{at} --insecure", 0),
    "no TLS, and a certificate": ({"tls": False}, "{at} --ca {keys}/ca.crt", 1),
    "nobody there": (None, "127.0.0.1:1 --ca {keys}/ca.crt", 1),
    "no certificate": (None, "127.0.0.1:1", 1),
    "a certificate without a connection": (None, "--ca x", 2),
    "a device that is not there": (None, "compute.device=cuda:63", 1),
    # Flower takes what was signed up to 5 s ahead of its clock and up to 305 s behind.
    "a clock 400 s ahead": ({"late": 400}, "{at} --ca {keys}/ca.crt", 1),
    "a clock 15 s ahead": ({"late": 15}, "{at} --ca {keys}/ca.crt", 1),
    "a clock 8 s behind": ({"late": -8}, "{at} --ca {keys}/ca.crt", 0),
    "a clock 100 s behind": ({"late": -100}, "{at} --ca {keys}/ca.crt", 0),
    "a clock 400 s behind": ({"late": -400}, "{at} --ca {keys}/ca.crt", 1),
    # Both ends say the same of two that work together, and of one that is out of the range.
    "Flower 1.40 at the server": ({"version": "1.40.2"}, "{at} --ca {keys}/ca.crt", 1),
    "Flower 1.41 at the server": ({"version": "1.41.0"}, "{at} --ca {keys}/ca.crt", 0),
    "Flower 1.42 at the server": ({"version": "1.42.3"}, "{at} --ca {keys}/ca.crt", 0),
    "Flower 1.43 at the server": ({"version": "1.43.0"}, "{at} --ca {keys}/ca.crt", 1),
    "Flower 1.43 at the server, at a site": (
        {"version": "1.43.0"},
        "{at} --ca {keys}/ca.crt --site",
        1,
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("scene", SCENES)
def test_what_is_said_of_a_superlink(
    scene: str,
    doctor: Doctor,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    given, words, code = SCENES[scene]
    traits = dict(given or {})
    real = socket.create_connection
    monkeypatch.setattr(
        "socket.create_connection", lambda to, *rest: real(("127.0.0.1", to[1]), *rest)
    )
    places = {"keys": keys, "own": tmp_path / "own", "other": keys.parent / "other"}
    public = make_nodes(places["own"], ["a", "b"])
    known = zip(traits.pop("known", ()), public, strict=False)
    traits["registered"] = tuple(pem(path) for _, path in known)
    with serving(keys if traits.pop("tls", True) else None, **traits) as at:
        names = {"at": at, "port": at.rpartition(":")[2], "tmp": tmp_path}
        found, message = doctor(*words.format(**places, **names).split())
    assert found == code
    for name, value in {**places, **names}.items():
        message = message.replace(str(value), f"{{{name}}}")
    assert_sentence(pytestconfig, SAID, scene, without_this_machine(message))


def pem(public: Path) -> bytes:
    """Return a public half as a SuperNode sends it."""
    return read_public(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def without_this_machine(message: str) -> str:
    """Leave out what this machine is, and what another day would be."""
    lines = [line for line in message.splitlines() if not line.startswith(MACHINE)]
    for pattern, name in (
        (r"SHA256:[\w+/]+", "SHA256:..."),
        (r"\d{4}-\d\d-\d\d", "DATE"),
        (r"[\d.]+ GB free", "... GB free"),
        (r"(?<=clock )(within )?\d+ s", r"\1N s"),
        (rf"(?<=ok flower ){re.escape(FLOWER)}", "FLOWER"),
        (r"(?<=no TLS there )\(\w+\)", "(...)"),
        (r"this machine offers .*", "this machine offers ..."),
    ):
        lines = [re.sub(pattern, name, line) for line in lines]
    return "\n".join(lines)


@pytest.mark.parametrize("method", ["fedavg", "feddm"])
def test_a_method_as_the_first_word_is_no_connection(doctor: Doctor, method: str) -> None:
    code, message = doctor(method)
    assert code == 0
    assert "There is no connection" not in message


@pytest.mark.parametrize("site", [[], ["--site"]])
def test_what_speaks_something_else(doctor: Doctor, site: list[str]) -> None:
    """An SSH server's greeting, for one, is no sentence of HTTP."""
    with greeting(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        code, message = doctor(address, "--insecure", *site)
        assert code == 1
        assert "fail server no answer (it does not speak HTTP, BadStatusLine)" in message
        found = Connection(address, None, True)
        assert found.health() == "it does not speak HTTP, BadStatusLine"


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


def test_the_image_installs_the_flower_that_a_clone_locks() -> None:
    """One of the range; the image's build reads the same line."""
    locked = project()["tool"]["uv"]["constraint-dependencies"]
    (flower,) = [one for one in locked if one.startswith("flwr==")]
    assert machine.minor(flower.removeprefix("flwr==")) in machine.flowers_taken()
    build = (ROOT / "docker" / "nectar" / "Dockerfile").read_text()
    (pattern,) = re.findall('grep -o "(flwr==.*)" /app/pyproject.toml', build)
    assert re.findall(pattern, (ROOT / "pyproject.toml").read_text()) == [flower]


def test_keys_that_are_wrong(doctor: Doctor, tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    make_authority(directory)
    make_server(directory, [], days=2)
    (directory / "ca.key").chmod(0o640)
    code, message = doctor("--keys", str(directory))
    assert code == 0
    assert "warn keys ca.key: other users have access to it (mode 640): chmod 600" in message
    assert "warn keys server.pem: expires on" in message
    make_server(tmp_path / "keys2", []) if make_authority(tmp_path / "keys2") else None
    (directory / "server.key").write_bytes((tmp_path / "keys2" / "server.key").read_bytes())
    code, message = doctor("--keys", str(directory))
    assert code == 1
    assert "fail keys server.key: does not match server.pem" in message


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
    assert f"ok node config {keys}: as the site reads them" in message
    assert f"ok data {own}: 7 images (red 5, blue 2)" in message
    assert f"ok state {state}: writable" in message
    assert not state.exists()


def test_a_sites_ledger_is_looked_into(doctor: Doctor, own: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    where = ("2026-01-01T00:00:00Z", "north", "a-run", 1, "train", "feddm", "/data")
    words = ["--site", "--node-config", f"site='north' data='{own}' state-dir='{state}'", *OWN]
    assert "ok privacy the ledger is empty: nothing was released with noise" in doctor(*words)[1]
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
    assert "which is outside of this site's data-root" in message


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
        assert "only the server's machine needs it" in message
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


@pytest.mark.parametrize(
    ("told", "level"), [({"amx_bf16": False}, "warn"), ({"amx_bf16": True}, "ok"), ({}, "ok")]
)
def test_bfloat16_on_a_cpu_that_is_slower_in_it(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, bool], level: str
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: told)
    for precision, expected in (("bfloat16", level), ("float32", "ok")):
        config = load({"set": f"compute.device=cpu compute.precision={precision}"})
        [(found, text)] = machine.device(DoctorTarget(config, {}))
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
    assert (level, text.endswith("0.0 GB free: free some space")) == ("fail", True)

    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    assert "cannot be written (Permission denied)" in room(tmp_path)[1]
    monkeypatch.setattr(
        Path, "exists", lambda _: refuse()
    )  # below a folder that only another user may enter
    assert "cannot be written (Permission denied)" in room(tmp_path / "state")[1]


def test_records_are_looked_at_where_they_are_written(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator's container mounts them read-only, and the SuperLink's machine writes them."""
    for address, level in (("127.0.0.1:1", "fail"), ("elsewhere.test:1", "ok")):
        code = nectar("doctor", address, "--ca", str(keys / "ca.crt"), "output-dir=/proc/runs")
        assert code == 1
        found = [line.split() for line in capsys.readouterr().out.splitlines() if "records" in line]
        assert [words[0] for words in found] == [level]


def test_versions_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.39.4")
    [(level, text)] = machine.flower(DoctorTarget(load({}), {}))
    assert level == "fail"
    assert '1.39.4, the app needs 1.41 or 1.42: pip install "flwr==1.42.*"' in text


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
