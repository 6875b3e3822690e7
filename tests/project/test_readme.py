"""The README's commands: they are what CI runs, and name only what exists."""

import re
import subprocess
import tomllib

import pytest
from places import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
UV = "python3 -m pip install -q --upgrade --target .uv uv && .uv/bin/uv run "


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README


def test_the_first_two_blocks_are_the_job_and_the_tests() -> None:
    assert BLOCKS[0] == f"{UV}--extra simulation nectar simulate\n"
    assert BLOCKS[1] == f"{UV}--group dev pytest\n"


@pytest.mark.parametrize("number", [1, 2])
def test_ci_runs_the_blocks_themselves(number: int) -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    function = re.search(r"^readme_command\(\) \{\n.*?^\}$", script, re.DOTALL | re.MULTILINE)
    assert function is not None
    said = subprocess.run(
        ["bash", "-euc", f"{function[0]}\nreadme_command {number}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == BLOCKS[number - 1]


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
