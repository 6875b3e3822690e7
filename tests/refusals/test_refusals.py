"""What Nectar refuses: each row of the tables here is typed at its door, and refused in whole sentences.

``answers.toml`` has what is taken, in the same way: of code 0 all that is printed is compared.

A group of a table has a door, what all its rows share, and ``rows``: an id, and what is typed.

==================  ==============================================================================================
``door``            ``load``: the settings; ``cli``: a command; ``site``: a node config at a site; ``node``: at the
                    doctor too
``before``          the words ahead of each row's
``run``             of ``load`` and ``node``, the run config's keys
``files``           what lies in the folder where it is typed, by name; ``.py`` can be imported there
``pictures``        of how many pictures of a colour there is a folder, by its path
``folders``         folders without a file
``record``          whether a record of two rounds of FedAvg lies there as ``record``, and its export as ``export``
``replace``         what is changed in such a file: its name, the text that is there, and another one
``remove``          such a file that is not there
``first``           commands that are typed before
``conf``            what lies in ``conf`` in place of what Nectar brings along
``environment``     variables
``code``            the exit code, if not 2
``extended``        whether it is of CI's second tier
``prints``          whether something stands on the standard output before the refusal
==================  ==============================================================================================

A row that needs more than words has these keys itself. ``{here}`` is the folder where it is typed, ``{tmp}`` the one
above. Sentences lie in
sentences.txt; ``pytest tests/refusals --accept`` writes those that are said now.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from data_files import forget_loaded
from federation import run
from golden import assert_sentence, read, write
from image_folders import paint
from places import ROOT
from real_site import Site
from small import SMALL

from common.config import layers
from common.config.loading import load
from common.errors import ConfigError
from nectar.cli import main

HERE = Path(__file__).parent
SENTENCES = HERE / "sentences.txt"
FOREIGN = "antigravity"
DOORS = {"load": ("load",), "cli": ("cli",), "node": ("doctor", "site"), "site": ("site",)}


@dataclass(frozen=True)
class Row:
    """What is typed at a door, and what is said of it under which id."""

    id: str
    door: str
    given: Mapping[str, Any]

    def __str__(self) -> str:
        return self.id


def rows() -> Iterator[Row]:
    """Yield each row of the tables at each of its doors."""
    for path in sorted(HERE.glob("*.toml")):
        for name, group in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for key, own in group["rows"].items():
                given = own if isinstance(own, dict) else {"words": own}
                whole = {k: v for k, v in group.items() if k != "rows"} | given
                doors = DOORS[whole["door"]]
                for door in doors:
                    at = f" ({door})" if len(doors) > 1 else ""
                    yield Row(f"{path.stem}/{name}/{key}{at}", door, whole)


ROWS = list(rows())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder where it is typed, beside a home, a cache and a data directory that are empty.

    What was imported from there is forgotten, so that another test's module of the name is not taken for it.
    """
    forget_loaded(monkeypatch)
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    for name in ("HOME", "XDG_CACHE_HOME", "NECTAR_DATA", "NECTAR_RUNS", "FLWR_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower().replace("_", "-")))
    before = {*sys.modules}
    yield place
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder of a record and its export once."""
    place = tmp_path_factory.mktemp("recorded")
    keys = {"output-dir": str(place / "runs"), "rounds": 2, "method": "fedavg", "set": SMALL}
    run(keys).directory.rename(place / "record")
    assert main(["export", str(place / "record"), "--output", str(place / "export")]) == 0
    return place


def bring(given: Mapping[str, Any], here: Path, recorded: Path) -> None:
    """Copy the record and the export, and change what is to be changed in them."""
    for name in ("record", "export"):
        shutil.copytree(recorded / name, here / name)
    for name, old, new in given.get("replace", ()):
        text = (here / name).read_text(encoding="utf-8")
        assert old in text
        (here / name).write_text(text.replace(old, new), encoding="utf-8")
    for name in given.get("remove", ()):
        (here / name).unlink()


def prepare(given: Mapping[str, Any], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what a row finds when it is typed."""
    for folder in given.get("folders", ()):
        (here / folder).mkdir(parents=True)
    for place, count in given.get("pictures", {}).items():
        paint((here / place).parent, (here / place).name, count)
    for name, text in given.get("files", {}).items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(filled(text, here), encoding="utf-8")
        if name.endswith(".py"):
            monkeypatch.syspath_prepend(str(here))
            monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    for key, value in given.get("environment", {}).items():
        monkeypatch.setenv(key, filled(value, here))
    if "conf" in given:
        for name, text in {"dataset/digits.yaml": "", "table/.none": "", **given["conf"]}.items():
            path = here / "conf" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        monkeypatch.setattr(layers, "CONF", here / "conf")
    for command in given.get("first", ()):
        assert main(shlex.split(filled(command, here))) == 0


def filled(text: Any, here: Path) -> Any:
    if not isinstance(text, str):
        return text
    return text.replace("{here}", str(here)).replace("{tmp}", str(here.parent))


def typed(row: Row, here: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """Go through a row's door; return all that is said."""
    given = row.given
    keys = {key: filled(value, here) for key, value in given.get("run", {}).items()}
    before, words = (filled(given.get(key, ""), here) for key in ("before", "words"))
    if row.door == "load":
        extra = {"set": words} if words else {}
        with pytest.raises(ConfigError) as refused:
            load(keys | extra)
        return str(refused.value)
    if row.door == "site":
        pairs = re.findall(r"([a-z-]+)=('[^']*'|\S+)", f"{before} {words}")
        node = {key: tomllib.loads(f"x = {value}")["x"] for key, value in pairs}
        return Site(keys | {"output-dir": str(here)}, **node).refusal()
    code = given.get("code", 2)
    line = [*shlex.split(before), *shlex.split(words)]
    if row.door == "doctor":
        code, config = 1, f"{before} {words}"
        settings = [f"{k}={v}" for k, v in keys.items() if k != "set"] + keys["set"].split()
        line = ["doctor", "--site", "--node-config", config, *settings]
    assert main(line) == code
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    if code == 1:  # of the doctor
        return "\n".join(line for line in out.splitlines() if line.startswith("fail"))
    if code == 0:
        return out.rstrip("\n")
    assert bool(out) == given.get("prints", False)
    assert all(line.startswith("nectar: ") for line in err.splitlines())
    return re.sub("^nectar: ", "", err.rstrip("\n"), flags=re.MULTILINE)


def plain(text: str, here: Path) -> str:
    """Return what is said without what is this machine's."""
    for place, name in ((here, "{here}"), (here.parent, "{tmp}"), (ROOT, "{clone}")):
        text = text.replace(str(place), name)
    text = re.sub(r"^(checksum|store) .*", r"\1 ...", text, flags=re.M)
    text = re.sub(
        r"(strategy has|it takes gain,|this machine offers) .*", r"\1 ...", text
    )  # another one has more
    return re.sub(r" +", " ", text)


def below(place: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in place.rglob("*") if path.is_file()}


@pytest.mark.promise(
    "What leaves a site is not a private image",
    "A setting that would send something past the noise is refused before a run",
)
@pytest.mark.promise(
    "A site is the master of its own machine",
    "`report`, `export` and `score` import nothing that the command line did not name",
)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row, id=row.id, marks=[pytest.mark.extended] * row.given.get("extended", False)
        )
        for row in ROWS
    ],
)
def test_it_is_refused_in_whole_sentences_and_nothing_is_written(
    row: Row,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
) -> None:
    if row.given.get("record"):
        bring(row.given, here, request.getfixturevalue("recorded"))
    prepare(row.given, here, monkeypatch)
    capfd.readouterr()
    monkeypatch.delitem(sys.modules, FOREIGN, raising=False)
    before = below(here)
    said = typed(row, here, capfd)
    assert {p: t for p, t in below(here).items() if "__pycache__" not in p} == before
    assert not (here.parent / "nectar-runs").exists()
    assert FOREIGN not in sys.modules, "what a record names is not imported"
    assert_sentence(pytestconfig, SENTENCES, row.id, plain(said, here))


def test_every_sentence_is_of_a_row(pytestconfig: pytest.Config) -> None:
    kept = {key: text for key, text in read(SENTENCES).items() if key in {*map(str, ROWS)}}
    if pytestconfig.getoption("accept"):
        write(SENTENCES, kept)
    assert read(SENTENCES) == kept
