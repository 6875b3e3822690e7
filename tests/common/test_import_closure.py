"""Which files a module's code lies in: what is followed, what is a window, what of a file counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.code import import_closure
from common.code.import_closure import Sources, parse


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Make a small app: a package with a window, one with an ``__init__.py`` that does something."""
    files = {
        "common/__init__.py": '"""A package."""\n',
        "common/wire/__init__.py": (
            '"""Payloads."""\nfrom common.wire.one import One\nfrom .two import Two as Other\n__all__ = ["One"]\n'
        ),
        "common/wire/one.py": "class One: ...\n",
        "common/wire/two.py": "from common import errors\nclass Two: ...\n",
        "common/errors.py": "class Wrong(Exception): ...\n",
        "synth/__init__.py": "from synth import setup\nready = True\n",
        "synth/setup.py": "",
        "synth/ball.py": "import torch, math\n",
        "strategies/__init__.py": "",
        "strategies/late/__init__.py": (
            "import importlib\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    from strategies.late.one import One\n    from strategies.late.two import Two\n"
            "_HOMES = {'One': 'one', 'Two': 'two'}\ndef __getattr__(name): ...\n"
        ),
        "strategies/late/one.py": "",
        "strategies/late/two.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def reached(root: Path, text: str, **options: bool) -> set[str]:
    (root / "common" / "start.py").write_text(text)
    return set(Sources(root).closure(["common.start"], **options)) - {"common.start"}


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("from common.wire import One", {"common.wire.one"}),
        ("from common.wire import Other", {"common.wire.two", "common.errors"}),
        ("from .wire import One", {"common.wire.one"}),
        ("from common.wire.one import One", {"common.wire.one"}),
        (
            "from common import wire",
            {f"common.{m}" for m in ("wire", "wire.one", "wire.two", "errors")},
        ),
        ("import common.errors", {"common.errors"}),
        ("def f():\n    from common.errors import Wrong", {"common.errors"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import common.errors", set()),
        (
            "import typing\nif typing.TYPE_CHECKING:\n    import synth.ball\nelse:\n    import common.errors",
            {"common.errors"},
        ),
        ("from synth.ball import x", {"synth", "synth.setup", "synth.ball"}),
        ("from strategies.late import One", {"strategies.late.one"}),
        (
            "from strategies import late",
            {"strategies.late", "strategies.late.one", "strategies.late.two"},
        ),
        ("import torch, json, not_there_at_all", set()),
        ("path = 'synth.ball:x'", set()),
    ],
)
def test_what_is_followed(app: Path, text: str, modules: set[str]) -> None:
    assert reached(app, text) == modules


def test_all_that_an_import_executes(app: Path) -> None:
    whole = {"common", "common.wire", "common.wire.one", "common.wire.two", "common.errors"}
    assert reached(app, "from common.wire import One", windows=True) == whole


def digest(text: str) -> str:
    return parse(text.encode(), "common.a", "a").digest


@pytest.mark.parametrize(
    "other",
    [
        "def f(x):\n    return x + 1\n",
        "# Why.\n\n\ndef f( x ):  # how\n    '''What.'''\n    return (x+1)\n",
        '"""A module."""\ndef f(x):\n    """Another\n    docstring."""\n    return x + 1',
    ],
)
def test_comments_docstrings_and_layout_are_no_code(other: str) -> None:
    assert digest('"""Text."""\ndef f(x):\n    """Text."""\n    return x + 1\n') == digest(other)


def test_whatever_else_is_written_is_code() -> None:
    texts = (
        "def f(x):\n    return x + 1",
        "def f(x):\n    return x + 2",
        "def g(x):\n    return x + 1",
    )
    assert len({digest(text) for text in (*texts, "a = 'text'", "a = 'word'", "def f(:")}) == 6
    assert digest('class A:\n    """Text."""') == digest("class A:\n    pass")


def test_a_file_is_read_once_or_again_as_asked(app: Path) -> None:
    once, again = Sources(app), Sources(app, again=True)
    path = app / "common" / "errors.py"
    before = [sources.of("common.errors", path).digest for sources in (once, again)]
    path.write_text("class Wrong(ValueError): ...\n")
    assert once.of("common.errors", path).digest == before[0]
    assert again.of("common.errors", path).digest != before[1]


def test_a_users_own_modules_are_followed_and_installed_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_parts").mkdir()
    (tmp_path / "my_parts" / "method.py").write_text(
        "import numpy\nfrom my_parts import step\nimport my_single\nfrom common.errors import NectarError\n"
    )
    (tmp_path / "my_parts" / "step.py").write_text("from . import deep")
    (tmp_path / "my_parts" / "deep.py").write_text("")
    (tmp_path / "my_single.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import_closure._home.cache_clear()
    found = Sources().closure(["my_parts.method"])
    own = {"my_parts.method", "my_parts.step", "my_parts.deep", "my_single"}
    assert set(found) == own | {"common.errors"}
    assert Sources().closure(["flwr.serverapp.strategy", "torch", "json"]) == {}


def test_a_package_that_hands_on_what_it_takes_from_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "my_fast/__init__.py": "from my_fast import compiled\nfrom my_round import name\n",
        "my_round/__init__.py": "from my_fast import name\n",
        "my_start.py": "from my_fast import compiled, name\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = Sources().closure(["my_start"])
    assert {"my_start", "my_fast"} <= set(found) <= {"my_start", "my_fast", "my_round"}


def test_what_lies_in_another_environment_is_installed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "my_installed.py").write_text("")
    monkeypatch.syspath_prepend(place)
    import_closure._installed.cache_clear()
    try:
        assert Sources().closure(["my_installed"]) == {}
    finally:
        import_closure._installed.cache_clear()
