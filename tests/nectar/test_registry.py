"""Which sites may take part: what `nectar keys register` and `unregister` say to a SuperLink, and keep a list of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deployment import nectar
from registry import Registry

from nectar.operate.keys import authority as files
from nectar.operate.keys.authority import fingerprint, make_nodes, read_public
from nectar.operate.keys.registry import LIST, register, revoked, unregister

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "A revoked site keeps no other down, and stays out of a database that is put back by the recipe",
    also="`docker/rehearsal`",
)


def test_one_site_that_cannot_be_registered_keeps_no_other_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = ["east", "north", "south", "west"]
    public = make_nodes(tmp_path, sites)
    nodes = {public[0]: ("11", "unregistered"), public[3]: ("12", "online")}
    superlink = Registry({"north": "[code: 7] No room."}, nodes)
    with pytest.raises(files.KeysError) as refused:
        register(superlink, public, 0)  # type: ignore[arg-type]
    assert superlink.asked == ["north", "south"]
    east, north = str(refused.value).splitlines()
    assert east.startswith(f"east: {public[0]} was unregistered, and Flower refuses used keys")
    assert north == "north: [code: 7] No room."
    message = capsys.readouterr().out
    assert "south: registered as node 99 (SHA256:" in message
    assert "west: already registered as node 12, online" in message


def test_flower_is_asked_once_for_all_keys_that_it_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = make_nodes(tmp_path, ["east", "north", "south", "west"])
    statuses = ("online", "offline", "registered", "online")
    nodes = zip(map(str, range(4)), statuses, strict=True)
    superlink = Registry({}, dict(zip(public, nodes, strict=True)))
    register(superlink, public, 0)  # type: ignore[arg-type]
    assert (superlink.listed, superlink.asked) == (1, [])
    message = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in message] == [
        f"{site}: already registered as node {number}, {status}"
        for number, (site, status) in enumerate(
            [
                ("east", "online"),
                ("north", "offline"),
                ("south", "never online yet"),
                ("west", "online"),
            ]
        )
    ]


def test_a_folder_of_files_that_came_by_mail_is_a_directory_of_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (mailed,) = make_nodes(tmp_path / "north's own", ["north"])
    shutil.copy(mailed, inbox)
    superlink = Registry({}, {})
    register(superlink, [], 0, all_of=inbox)  # type: ignore[arg-type]
    assert superlink.asked == ["north"]


def test_a_key_is_taken_whatever_releases_of_before_noted_of_it_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does it count that another site left, and where this one was registered from."""
    public, south = make_nodes(tmp_path, ["north", "south"])
    public.with_name("north.pub.node-id").write_text("7 SHA256:another\n")
    left = {south: ("7", "unregistered")}
    register(Registry({}, left | {public: ("12", "online")}), [public], 0)  # type: ignore[arg-type]
    assert "north: already registered as node 12, online" in capsys.readouterr().out
    register(Registry({}, left), [public], 0)  # type: ignore[arg-type]
    assert "north: registered as node 99" in capsys.readouterr().out, "one that does not know it"


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A SuperLink that `nectar keys` meets under any name."""
    found = Registry({}, {})

    monkeypatch.setattr("nectar.engines.flower.connection.connect", lambda *_, **__: found)
    return found


def test_a_revoked_site_keeps_none_of_a_directory_out(
    superlink: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So it is that the federation of the compose file starts: revoke, down, up."""
    public = dict(zip("ens", make_nodes(tmp_path, ["east", "north", "south"]), strict=True))
    assert nectar("keys", "register", "lab", str(tmp_path)) == 0
    assert superlink.asked == ["east", "north", "south"]
    capsys.readouterr()
    assert nectar("keys", "unregister", "lab", str(public["n"])) == 0
    listed_in = f"north: node 100 unregistered, and listed in {tmp_path / LIST}\n"
    assert capsys.readouterr().out == listed_in
    superlink.known.clear()  # an older database, or none, would take the key again
    assert nectar("keys", "register", "lab", str(tmp_path)) == 0
    message = capsys.readouterr().out
    assert (
        "north: not registered, since it was unregistered before; it needs a new key pair"
        in message
    )
    assert superlink.asked == ["east", "north", "south", "east", "south"]
    assert nectar("keys", "register", "lab", str(public["n"]), str(public["s"])) == 2
    assert f"north: {public['n']} was unregistered" in capsys.readouterr().err
    assert superlink.asked[5:] == []
    (listed,) = revoked(tmp_path / LIST)
    assert [listed.node] == superlink.unregistered == ["100"]
    assert listed.site == "north"
    assert listed.fingerprint == fingerprint(read_public(public["n"]))
    for path in tmp_path.glob("nodes/north*"):
        path.unlink()
    make_nodes(tmp_path, ["north"])
    assert nectar("keys", "register", "lab", str(tmp_path)) == 0
    assert superlink.asked[5:] == ["north"], "another key under its name is taken"


def test_a_site_that_flower_alone_unregistered_keeps_none_of_a_directory_out(
    superlink: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (north, _) = make_nodes(tmp_path, ["north", "south"])
    superlink.known = Registry({}, {north: ("7", "unregistered")}).known
    assert nectar("keys", "register", "lab", str(tmp_path)) == 0
    assert "north: not registered" in capsys.readouterr().out
    assert superlink.asked == ["south"]


def test_a_number_is_listed_with_the_key_that_it_is_of(superlink: Registry, tmp_path: Path) -> None:
    (north,) = make_nodes(tmp_path / "elsewhere", ["north"])
    superlink.known = Registry({}, {north: ("7", "offline")}).known
    unregister(superlink, ["7"], tmp_path)  # type: ignore[arg-type]
    (listed,) = revoked(tmp_path / LIST)
    assert (listed.node, listed.site) == ("7", "north")
    assert listed.fingerprint == fingerprint(read_public(north))


def test_who_is_not_there_is_named_before_any_is_unregistered(
    superlink: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    north, south = make_nodes(tmp_path, ["north", "south"])
    superlink.known = Registry({}, {north: ("7", "online")}).known
    assert nectar("keys", "unregister", "lab", "7", "8", "--keys", str(tmp_path)) == 2
    assert "node 8 does not exist at the SuperLink 127.0.0.1:9" in capsys.readouterr().err
    assert nectar("keys", "unregister", "lab", str(north), str(south)) == 2
    assert f"{south} is not registered at the SuperLink" in capsys.readouterr().err
    assert superlink.unregistered == []


def test_what_could_not_be_listed_is_not_unregistered(
    superlink: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (north,) = make_nodes(tmp_path, ["north"])
    superlink.known = Registry({}, {north: ("7", "online")}).known
    assert nectar("keys", "unregister", "lab", "7") == 2
    assert "give --keys DIR, whose revoked.txt is to list it" in capsys.readouterr().err
    (tmp_path / LIST).write_text("north, of last week\n")
    assert nectar("keys", "unregister", "lab", str(north)) == 2
    assert nectar("keys", "register", "lab", str(tmp_path)) == 2
    assert f"{LIST}, line 1 does not have the form" in capsys.readouterr().err
    assert superlink.asked == superlink.unregistered == []


def test_a_directory_without_sites_is_refused(
    superlink: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nectar("keys", "register", "lab", str(tmp_path)) == 2
    assert f"neither {tmp_path}/nodes nor {tmp_path} holds a site's public key" in (
        capsys.readouterr().err
    )
    assert nectar("keys", "register", "lab", str(tmp_path), "a.pub") == 2
    assert "takes one directory of keys, or .pub files" in capsys.readouterr().err
