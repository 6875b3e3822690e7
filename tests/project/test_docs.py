"""The documents: what they tell a reader to type is there, and the method that they write runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import flwr
import pytest
import rules_table
from click import ClickException
from federation import run
from places import ROOT
from small import SMALL
from typed_commands import commands, require_accepted

from common.errors import ConfigError, NectarError
from nectar.cli import main
from nectar.command_line import SUMMARIES
from tests import promises

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
PACKAGES = ("client_app", "common", "nectar", "server_app", "strategies")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", page.read_text("utf-8"), re.S | re.M)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_is_valid_shell(page: Path) -> None:
    for block in blocks(page, "bash"):
        subprocess.run(["bash", "-n", "-c", block], check=True, capture_output=True)
        assert shlex.split(block, comments=True)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_of_python_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_page_of_the_site_links_out_of_it(page: Path) -> None:
    if page.is_relative_to(ROOT / "docs"):
        for target in re.findall(r"\]\(((?![a-z]+:)[^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).resolve().is_relative_to(ROOT / "docs"), target


def test_the_site_has_every_page() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    (first, *sections) = site
    named = [
        *first.values(),
        *(p for s in sections for part in s.values() for e in part for p in e.values()),
    ]
    there = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(there)


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    plain = (re.sub(r"[^\w\- ]", "", head.lower()) for head in heads)
    return {head.replace(" ", "-") for head in plain}


def test_every_place_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    places = re.findall(r"`([a-z_]+/[a-z_./]*)`", text)
    assert len(places) > 20
    assert [place for place in places if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_of_nectar_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`nectar (\w[\w-]*)", text))
    for block in blocks(page, "bash"):
        named |= set(re.findall(r"(?:^|&& |operator |simulation )nectar ([\w-]+)", block, re.M))
    assert named <= {*SUMMARIES, "help"}, page


@pytest.mark.sweep
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_is_accepted_by_todays_settings(page: Path) -> None:
    """But for the page's own methods, which are made and run below."""
    for words in commands(page.read_text(encoding="utf-8")):
        try:
            require_accepted(words)
        except ConfigError as error:
            if not re.search("No module named '(clipped|softened)'", str(error)):
                raise


def test_a_command_is_taken_apart_as_a_shell_would() -> None:
    text = """
```bash
S=a=1; T="b=2 c=3"
FLWR_HOME=x nectar run fedavg:$S "$T" \\
  dataset=$PWD/x.npz   # why
cd there && nectar report RUN; docker compose run operator nectar status lab | tail -1
echo nectar run nothing
```
```text
nectar run printed
```
"""
    assert list(commands(text)) == [
        ["run", "fedavg:a=1", "b=2 c=3", "dataset=/abs/x.npz"],
        ["report", "RUN"],
        ["status", "lab"],
    ]


@pytest.mark.parametrize(
    "line",
    [
        "run fedavg rounds=0",
        "run feddm feddm.icp=3",
        "compare fedavg --sedes 3",
        "compare fedavg ...",
        "keys rename a",
        "doctor lab fedavg.lr=x",
        'site --superlink h:1 --node-config "max-ipx=3"',
        "forget everything",
    ],
)
def test_a_command_that_would_be_refused_is_seen(line: str) -> None:
    with pytest.raises((NectarError, ClickException, AssertionError)):
        require_accepted(shlex.split(line))


def test_every_picture_of_the_documents_is_there_and_used() -> None:
    used = set()
    for page in PAGES:
        for target in re.findall(
            r"!\[[^\]]*\]\(([^)\s]+)\)|src=\"([^\"]+)\"", page.read_text("utf-8")
        ):
            path = (page.parent / (target[0] or target[1])).resolve()
            assert path.is_file(), (page.name, target)
            used.add(path)
    folder = ROOT / "docs" / "images"
    assert {path for path in folder.iterdir() if path not in used} == set()


@pytest.mark.parametrize("name", ["troubleshooting.md", "site.md"])
def test_a_log_line_that_a_page_explains_is_one_that_the_code_writes(name: str) -> None:
    """Nectar's, or Flower's."""
    table = (ROOT / "docs" / name).read_text("utf-8").partition("\n| the log says |")[2]
    heads = [line.split("|")[1] for line in table.split("\n\n")[0].splitlines()[2:]]
    lines = {line for head in heads for line in re.findall(r"`([^`]+)`", head)}
    assert len(lines) > 4
    packages = (*(ROOT / p for p in PACKAGES), Path(flwr.__file__).parent)
    for path in (path for package in packages for path in package.rglob("*.py")):
        text = path.read_text("utf-8")
        lines -= {line for line in lines if line in text}
    assert not lines


@pytest.mark.extended
def test_the_methods_that_add_a_method_writes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files as they stand in the page, in a folder of their own."""
    text = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    parts = re.findall(r"^## [^\n]*`([\w/]+\.py)`\n(.*?)(?=^## )", text, re.S | re.M)
    assert len(parts) == 5
    for name, section in parts:
        (source,) = re.findall(r"^```python\n(.*?)^```$", section, re.S | re.M)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = {
        "clipped": "",
        "no momentum": "clipped.inertia=0",
        "softened": "feddm.image_weighting=counts",
    }
    for name, words in rows.items():
        method = "softened" if name == "softened" else "clipped"
        keys = {"method": f"{method}:METHOD", "rounds": 2, "output-dir": str(tmp_path / name)}
        record = run({**keys, "set": f"{SMALL} {words}"})
        assert record.metrics()[-1]["rejected"] == {}
        if method == "clipped":
            assert main(["report", str(record.directory), "--allow-imports", "clipped"]) == 0
            page = (record.directory / "report.html").read_text(encoding="utf-8")
            assert "clipping alone hides nothing" in page


# ---- what is believed of what a site sends -----------------------------------------------------------


@pytest.mark.extended
def test_the_table_is_made_from_the_code() -> None:
    page = rules_table.PAGE.read_text(encoding="utf-8")
    assert page.count(rules_table.BEGIN) == page.count(rules_table.END) == 1
    assert rules_table.replaced(page) == page


def test_every_method_that_sends_something_has_a_row() -> None:
    named = {m for line in rules_table.table().splitlines() for m in line.split("|")[1].split()}
    assert {f"`{method}`" for method in rules_table.METHODS} - named == {"`central`", "`server`"}


# ---- the page of promises: its rows are the marks of the tests ---------------------------------------


@pytest.mark.extended
def test_promises_are_those_of_the_marks() -> None:
    text = promises.PAGE.read_text(encoding="utf-8")
    assert text == promises.page(text), "run `python -m tests.promises`"


# ---- the README's commands: they are what CI runs, and name only what exists -------------------------


README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README


def test_the_first_two_blocks_are_the_job_and_the_tests() -> None:
    assert BLOCKS[:2] == ["./nectarw simulate\n", "./nectarw test\n"]


@pytest.mark.parametrize("number", [1, 2])
def test_ci_runs_the_blocks_themselves(number: int) -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    function = re.search(r"^readme_command\(\) \{\n.*?^\}$", script, re.DOTALL | re.MULTILINE)
    assert function is not None
    message = subprocess.run(
        ["bash", "-euc", f"{function[0]}\nreadme_command {number}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert message.stdout == BLOCKS[number - 1]


def test_ci_uses_no_other_command_of_ours() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "pytest" not in re.sub(r"#.*", "", script)
    assert "nectar simulate" not in script
    assert 'bash -euc "$main"' in script
    assert 'bash -euc "$tests"' in script


def test_the_commands_extras_and_groups_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "nectar" in project["project"]["scripts"]
    assert "simulation" in project["project"]["optional-dependencies"]
    assert "dev" in project["dependency-groups"]
