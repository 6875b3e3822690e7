"""A site's kit: made at the operator, proved at the site by a fingerprint that is typed, else refused."""

from __future__ import annotations

import json
import re
import shlex
import stat
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from image_folders import COLOURS, paint

from client_app.owner.node_config import NodeConfig
from common.code.release import VERSION
from nectar.cli import main
from nectar.operate.keys import kit as kits
from nectar.operate.keys.authority import KeysError, make_authority, make_nodes, read_certificate
from nectar.operate.keys.kit import fingerprint_groups, make_kit, open_kit

SERVER = "fl.example.org:8443"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_authority(tmp_path / "keys")
    make_nodes(tmp_path / "keys", ["elsewhere"])
    return tmp_path / "keys"


@pytest.fixture
def kit(keys: Path, tmp_path: Path) -> Path:
    make_kit(keys, "north", SERVER, tmp_path / "north.kit")
    return tmp_path / "north.kit"


def fingerprint(keys: Path) -> str:
    return fingerprint_groups(read_certificate(keys / "ca.crt"))


def members(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def packed(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_a_kit_has_all_that_a_site_needs_and_no_secret(
    keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a.kit"
    assert main(["keys", "kit", str(keys), "north", SERVER, "--output", str(target)]) == 0
    said = capsys.readouterr().out
    assert fingerprint(keys) in said
    assert re.fullmatch(r"([0-9A-F]{4} ){7}[0-9A-F]{4}", fingerprint(keys))
    entries = members(target)["entries"]
    assert sorted(entries) == ["ca.crt", "compose.yml", "nectar-site.service", "node-config.toml"]
    assert "PRIVATE" not in target.read_text()
    assert SERVER in entries["nectar-site.service"]
    compose = yaml.safe_load(entries["compose.yml"])
    assert f"--superlink {SERVER}" in compose["services"]["site"]["command"]
    opened = open_kit(target, "north", fingerprint(keys).lower().replace(" ", ":"))
    opened.install(tmp_path / "site", "/images", "/state")
    node = tomllib.loads((tmp_path / "site" / "node-config.toml").read_text())
    assert (node["site"], node["data"]) == ("north", "/images")
    NodeConfig.of(node)
    unit = (tmp_path / "site" / "nectar-site.service").read_text()
    assert f"ExecStart={Path(sys.argv[0]).absolute()} site start --superlink {SERVER}" in unit
    assert "@" not in unit
    assert main(["keys", "kit", str(keys), "north", SERVER, "--output", str(target)]) == 2


@pytest.mark.extended
def test_a_flipped_bit_anywhere_is_a_sentence(kit: Path, keys: Path, tmp_path: Path) -> None:
    """Every bit of the certificate's first fields, where its version is, and one of each byte elsewhere."""
    content, typed = kit.read_bytes(), fingerprint(keys)
    good = open_kit(kit, "north", typed)
    start = content.index(b"BEGIN CERTIFICATE")
    flips = [(at, bit) for at in range(start, start + 80) for bit in range(8)]
    flips += [(at, at % 8) for at in range(len(content))]
    for at, bit in flips:
        damaged = bytearray(content)
        damaged[at] ^= 1 << bit
        (tmp_path / "damaged.kit").write_bytes(damaged)
        with suppress(KeysError):
            assert open_kit(tmp_path / "damaged.kit", "north", typed) == good  # a digit's case


@pytest.mark.parametrize(
    "change",
    [
        {"server": "evil.example.org:443"},
        {"site": "south"},
        {"more": 1},
        {"signature": "00"},
        {"signature": "no"},
        {"signature": None},
    ],
)
def test_an_altered_kit_is_refused(kit: Path, keys: Path, change: dict[str, object]) -> None:
    packed(kit, {**members(kit), **change})
    for site in ("north", "south"):
        with pytest.raises(KeysError, match="was altered after the operator made it"):
            open_kit(kit, site, fingerprint(keys))


def test_another_sites_kit_and_another_authoritys_are_refused(
    kit: Path, keys: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeysError, match="is the kit of site 'north', and this is 'south'"):
        open_kit(kit, "south", fingerprint(keys))
    make_authority(tmp_path / "other")
    with pytest.raises(KeysError, match="of another authority than the one with that fingerprint"):
        open_kit(kit, "north", fingerprint(tmp_path / "other"))
    make_kit(tmp_path / "other", "north", SERVER, tmp_path / "whole.kit")
    with pytest.raises(KeysError, match="of another authority"):
        open_kit(tmp_path / "whole.kit", "north", fingerprint(keys))
    mixed = members(tmp_path / "whole.kit")
    mixed["entries"]["ca.crt"] = members(kit)["entries"]["ca.crt"]
    with pytest.raises(KeysError, match="was altered"):
        open_kit(packed(tmp_path / "mixed.kit", mixed), "north", fingerprint(keys))


@pytest.mark.parametrize("typed", ["", "A1B2", "xyz", "A1B2 " * 7 + "A1BG", "A" * 65])
def test_what_is_no_fingerprint_is_refused(kit: Path, typed: str) -> None:
    with pytest.raises(KeysError, match="is not a fingerprint: type its 32 digits"):
        open_kit(kit, "north", typed)


@pytest.mark.parametrize(
    "change",
    [
        lambda kit: [],
        lambda kit: {},
        lambda kit: {**kit, "entries": {**kit["entries"], "../evil": "x"}},
        lambda kit: {**kit, "entries": {"ca.crt": kit["entries"]["ca.crt"]}},
        lambda kit: {**kit, "entries": {**kit["entries"], "compose.yml": 1}},
        lambda kit: {**kit, "entries": {**kit["entries"], "ca.crt": "none"}},
        lambda kit: {**kit, "entries": {**kit["entries"], "ca.crt": 2 * kit["entries"]["ca.crt"]}},
        lambda kit: {key: value for key, value in kit.items() if key != "signature"},
    ],
)
def test_what_is_not_a_kit_is_not_unpacked(
    kit: Path, keys: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    packed(tmp_path / "odd.kit", change(members(kit)))
    with pytest.raises(KeysError, match="is not a kit of `nectar keys kit`"):
        open_kit(tmp_path / "odd.kit", "north", fingerprint(keys))
    assert {path.name for path in tmp_path.iterdir()} == {"keys", "north.kit", "odd.kit"}


def test_a_kit_of_any_size_or_kind_ends_in_a_sentence(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(kits._MOST + 1))
    for path, message in (
        (large, "is not a kit: a kit is a file of at most 512 kB"),
        (tmp_path / "none", "there is no"),
    ):
        with pytest.raises(KeysError, match=message):
            open_kit(path, "north", fingerprint(keys))


def test_a_site_is_set_up_twice_and_its_key_stays(
    kit: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in COLOURS:
        paint(tmp_path / "images", name, 3)
    folder = tmp_path / "site"
    words = ["site", "init", str(kit), "north", "--folder", str(folder)]
    typed = ["--fingerprint", fingerprint(keys)]
    assert main([*words, *typed]) == 2
    assert "needs --data" in capsys.readouterr().err
    assert main([*words, "--data", str(tmp_path / "images")]) == 2
    assert "without one, add --fingerprint" in capsys.readouterr().err
    assert main([*words, *typed, "--data", str(tmp_path / "images")]) == 1, "no server is there"
    said = capsys.readouterr().out
    assert f"made on {datetime.now(UTC):%Y-%m-%d} by Nectar {VERSION}: ask the operator" in said
    public = folder / "keys" / "nodes" / "north.pub"
    assert f"send the operator {public}" in said
    assert re.search(r"^ok +data +.*\d+ images", said, re.M)
    assert re.search(r"^fail +network", said, re.M)
    private = public.with_suffix("")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    before = private.read_bytes()
    config = folder / "node-config.toml"
    config.write_text(config.read_text().replace("# cores = 4", "cores = 1"))
    assert main([*words, *typed]) == 1
    assert private.read_bytes() == before
    assert "cores = 1" in config.read_text()


def describe_silent(data: Path, kit: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the line of the check of the data as a site that has ``data`` is set up."""
    site = ["--folder", str(kit.parent / "site"), "--fingerprint", fingerprint(keys)]
    main(["site", "init", str(kit), "north", "--data", str(data), *site])
    captured = capsys.readouterr()
    (line,) = re.findall(r"^\w+ +data .*$", captured.out, re.M) or [captured.err]
    return " ".join(line.split()).replace(str(data), "HERE")


@pytest.mark.parametrize(
    ("red", "blue", "also", "line"),
    [
        ("red", "", (), "ok data HERE: 3 images in 1 class (red 3)"),
        ("red", "blue", (".cache/x",), "ok data HERE: 5 images in 2 classes (blue 2, red 3)"),
        ("red", "", (".cache/x", "__MACOSX"), "ok data HERE: 3 images in 1 class (red 3)"),
        (
            "train/red",
            "train/blue",
            ("test/red",),
            "ok data HERE: 5 images in 2 classes (blue 2, red 3)",
        ),
        ("red", "blue", ("notes",), "warn data HERE: 5 images in 3 classes (blue 2, red 3)"),
        ("a b", "O'Brien", (), "ok data HERE: 5 images in 2 classes (O'Brien 2, a b 3)"),
    ],
)
def test_a_site_s_folder_is_looked_at_as_a_run_would(
    kit: Path,
    keys: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    red: str,
    blue: str,
    also: tuple[str, ...],
    line: str,
) -> None:
    """Any folders that some run's classes fit, whatever systems leave beside them."""
    for name, colour, count in ((red, "red", 3), (blue, "blue", 2)):
        if name:
            paint(tmp_path / "made", colour, count)
            (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "made" / colour).rename(tmp_path / "data" / name)
    for name in also:
        (tmp_path / "data" / name).mkdir(parents=True)
    said = describe_silent(tmp_path / "data", kit, keys, capsys)
    assert said.startswith(f"{line}; the run's classes decide")
    assert ("does not list notes refuses the empty folder" in said) == ("notes" in also)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "age,sex,label\n1,f,a\n2,,b\n",
            "ok data HERE: 2 rows of age, sex, label; the run's columns",
        ),
        ("age;label\n1;a\n", "fail data HERE is not a .csv file with commas"),
        ("age,label\n1,a\n2\n", "fail data HERE is not a .csv file with commas"),
        ("", "fail data HERE is not a .csv file with commas"),
        ("age,name\n1,\xff\n", "fail data HERE is not a table in UTF-8"),
        (None, "nectar: there is no data at HERE: nectar site init KIT SITE --data FOLDER"),
    ],
)
def test_a_site_s_table_is_looked_at(
    kit: Path,
    keys: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    line: str,
) -> None:
    if text is not None:
        (tmp_path / "site.csv").write_bytes(text.encode("latin-1"))
    assert describe_silent(tmp_path / "site.csv", kit, keys, capsys).startswith(line)


def test_a_site_that_allows_one_method_is_not_held_against_another(
    kit: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paint(tmp_path / "images", "red", 3)
    describe_silent(tmp_path / "images", kit, keys, capsys)
    config = tmp_path / "site" / "node-config.toml"
    text = config.read_text().replace(
        "# allow-methods = 'feddm fedavg'", "allow-methods = 'fedavg'"
    )
    config.write_text(text)
    words = ["site", "init", str(kit), "north", "--folder", str(tmp_path / "site")]
    main([*words, "--fingerprint", fingerprint(keys)])
    assert re.search("^ok +node config ", capsys.readouterr().out, re.M)


def test_certificates_that_end_soon_are_named_when_made_and_when_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, kit = tmp_path / "keys", tmp_path / "north.kit"
    soon = r"expires on \d{4}-\d\d-\d\d, in 0 days"
    makes = {
        ("ca", str(keys), "--days", "1"): soon,
        (
            "server",
            str(keys),
            "fl.example.org",
        ): "it expires with its authority on .*, in less than 397 days",
        ("kit", str(keys), "north", SERVER, "--output", str(kit)): soon,
    }
    for words, note in makes.items():
        assert main(["keys", *words]) == 0
        assert re.search(f"^note: .*{note}", capsys.readouterr().out, re.M)
    paint(tmp_path / "images", "red", 1)
    site = ["--folder", str(tmp_path / "site"), "--fingerprint", fingerprint(keys)]
    main(["site", "init", str(kit), "north", "--data", str(tmp_path / "images"), *site])
    assert re.search(
        f"^the operator's ca.crt {soon}: ask for a newer kit", capsys.readouterr().out, re.M
    )
    make_authority(tmp_path / "lasting")
    assert main(["keys", "server", str(tmp_path / "lasting"), "fl.example.org"]) == 0
    assert "note: " not in capsys.readouterr().out


@pytest.mark.parametrize("place", ["plain", "a b", "O'Brien", 'say "x"', "100% $HOME", "ü\\n"])
def test_any_path_fills_a_kit_in(keys: Path, tmp_path: Path, place: str) -> None:
    """The node config is TOML again, and the unit's words are the paths again, as systemd reads them."""
    make_kit(keys, "north", SERVER, tmp_path / "a.kit")
    opened = open_kit(tmp_path / "a.kit", "north", fingerprint(keys))
    folder, data, state = (str(tmp_path / place / end) for end in ("site", "data", "state"))
    opened.install(Path(folder), data, state)
    node = tomllib.loads((Path(folder) / "node-config.toml").read_text())
    assert (node["site"], node["data"], node["state-dir"]) == ("north", data, state)
    unit = (Path(folder) / "nectar-site.service").read_text().splitlines()
    lines = {key: rest for key, _, rest in (line.partition("=") for line in unit)}
    plain = {key: rest.replace("%%", "%").replace("$$", "$") for key, rest in lines.items()}
    assert shlex.split(plain["Environment"]) == [f"FLWR_HOME={state}"]
    assert f"{folder}/ca.crt" in shlex.split(plain["ExecStart"])
    assert "%" not in lines["ExecStart"].replace("%%", "")
    assert "$" not in lines["ExecStart"].replace("$$", "")


@pytest.mark.parametrize("image", [False, True])
def test_of_unit_and_compose_file_a_site_gets_the_one_that_its_paths_are_of(
    kit: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: bool
) -> None:
    """The image's folder is stood in for, since a test does not write to /site."""
    folder = tmp_path / "site"
    if image:
        monkeypatch.setattr("nectar.operate.keys.kit._IN_IMAGE", folder)
    open_kit(kit, "north", fingerprint(keys)).install(folder, "/images", "/site/state")
    written = {"nectar-site.service", "compose.yml"} & {path.name for path in folder.iterdir()}
    assert written == {"compose.yml" if image else "nectar-site.service"}
    if image:
        (site,) = yaml.safe_load((folder / "compose.yml").read_text())["services"].values()
        assert "--root-certificates /site/ca.crt" in site["command"]
        state = tomllib.loads((folder / "node-config.toml").read_text())["state-dir"]
        mounts = {mount["target"] for mount in site["volumes"] if isinstance(mount, dict)}
        assert {state} == mounts == {site["environment"]["FLWR_HOME"]}  # a place its user may write


@pytest.mark.parametrize("line", ['site = "north"', "site='north'"])
def test_a_node_config_may_be_edited_to_other_quotes(
    kit: Path, keys: Path, tmp_path: Path, line: str
) -> None:
    opened = open_kit(kit, "north", fingerprint(keys))
    opened.install(tmp_path / "site", "/images", "/state")
    config = tmp_path / "site" / "node-config.toml"
    edited = re.sub("(?m)^site = .*$", line, config.read_text())
    config.write_text(edited)
    opened.install(tmp_path / "site", "/images", "/state")
    assert config.read_text() == edited
    config.write_text(edited.replace("north", "south"))
    with pytest.raises(KeysError, match="belongs to another site than 'north'"):
        opened.install(tmp_path / "site", "/images", "/state")


def test_a_folder_keeps_what_was_edited_and_takes_no_other_sites_kit(
    kit: Path, keys: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    opened = open_kit(kit, "north", fingerprint(keys))
    opened.install(folder, "/images", "/state")
    unit = folder / "nectar-site.service"
    unit.write_text(unit.read_text().replace("User=nectar", "User=north"))
    opened.install(folder, "/images", "/elsewhere")
    assert "User=north" in unit.read_text()
    make_kit(keys, "south", SERVER, tmp_path / "south.kit")
    with pytest.raises(
        KeysError, match="belongs to another site than 'south': choose another --folder"
    ):
        open_kit(tmp_path / "south.kit", "south", fingerprint(keys)).install(folder, "/i", "/s")
    make_kit(keys, "north", "other.example.org:8443", tmp_path / "moved.kit")
    with pytest.raises(KeysError, match="exists, and"):
        open_kit(tmp_path / "moved.kit", "north", fingerprint(keys)).install(folder, "/i", "/s")
