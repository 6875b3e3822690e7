"""Nectar installed from its wheel: in an environment of its own, from an empty folder, with an empty home."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from places import ROOT
from small import SMALL
from wheels import Installed, build

from nectar.engines.flower import app
from nectar.engines.flower.errors import LaunchError


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("wheel")
    return Installed(build(directory), directory)


def bundle(installed: Installed, folder: Path, to: Path) -> str:
    """Return the SHA-256 of what ``flwr build`` makes of ``folder``."""
    to.mkdir()
    installed.call("flwr", "build", "--app", str(folder), folder=to)
    (file,) = to.glob("*.fab")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.long
@pytest.mark.extended
def test_its_bundle_is_the_clones(installed: Installed, tmp_path: Path) -> None:
    """A site that has pinned the release's bundle takes it from whoever submits."""
    ask = "from nectar.engines.flower.app import app_folder; print(app_folder())"
    folder = Path(installed.call("python", "-c", ask).stdout.strip())
    assert folder.is_relative_to(installed.home / ".cache" / "nectar" / "app")
    pinned = bundle(installed, ROOT, tmp_path / "clone")
    assert bundle(installed, folder, tmp_path / "wheel") == pinned

    # What was changed or added there by hand is not submitted.
    (folder / "common" / "sites.py").write_text("")
    (folder / "common" / "extra.py").write_text("")
    assert installed.call("python", "-c", ask).stdout.strip() == str(folder)
    assert (folder / "common" / "sites.py").read_text() == (
        ROOT / "common" / "sites.py"
    ).read_text()
    assert not (folder / "common" / "extra.py").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.extended
def test_run_report_and_export_work_from_an_empty_folder(installed: Installed) -> None:
    words = ("method=fedavg", "rounds=1", f"set={SMALL}")
    message = installed.call("python", "-m", "nectar", "run", *words).stderr
    assert "\x1b" not in message
    (record,) = (installed.home / "nectar" / "runs").iterdir()
    assert str(record) in message
    report = Path(installed.call("nectar", "report", str(record)).stdout.strip())
    assert report.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    installed.call("nectar", "export", str(record), "--output", "model")
    assert (installed.folder / "model" / "model.safetensors").is_file()


@pytest.mark.extended
def test_simulate_submits_the_installed_app(installed: Installed) -> None:
    message = installed.call("nectar", "simulate", "--print").stdout
    assert f"flwr run {installed.home / '.cache' / 'nectar' / 'app'}/nectar-" in message


@pytest.mark.extended
def test_a_users_package_of_the_same_name_is_named(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    words = ("python", "-m", "nectar", "config")
    message = installed.call(*words, folder=tmp_path).stdout
    assert "method: feddm" in message, "a folder without __init__.py hides nothing"

    (tmp_path / "common" / "__init__.py").write_text("raise SystemExit('it was imported')")
    sentence = (
        f"{tmp_path / 'common'} would be imported in place of Nectar's own package `common`: rename it, or take "
        f"{tmp_path} off PYTHONPATH and start from another folder.\n"
    )
    done = installed.call(*words, folder=tmp_path, code=2)
    assert (done.stdout, done.stderr) == ("", f"nectar: {sentence}")
    done = installed.call("nectar", "run", code=2, PYTHONPATH=str(tmp_path))
    assert (done.stdout, done.stderr) == ("", f"nectar: {sentence}")
    used = ("python", "-c", "import nectar; nectar.run")
    assert installed.call(*used, folder=tmp_path, code=1).stderr.endswith(f"Error: {sentence}")


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(app, "_CARRIED", ROOT / "pyproject.toml")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(LaunchError, match=r"file/nectar/app/nectar-\w+ \(Not a directory\): set "):
        app.app_folder()


def test_an_app_is_laid_out_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_CARRIED", ROOT / "pyproject.toml")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = app.app_folder()
    app.require_app(folder)
    written = (folder / "pyproject.toml").stat().st_mtime_ns
    assert app.app_folder() == folder
    assert (folder / "pyproject.toml").stat().st_mtime_ns == written
    carried = {p.relative_to(ROOT) for g in _globs() for p in ROOT.glob(g)}
    assert {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()} == carried | {
        Path("pyproject.toml")
    }


def _globs() -> list[str]:
    globs: list[str] = app.project()["tool"]["flwr"]["app"]["fab-include"]
    return globs
