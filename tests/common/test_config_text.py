"""Values as text: what is written is read back, and YAML 1.2 is spoken where PyYAML speaks 1.1."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.text import join_set, parse_set, read_yaml, scalar, scalar_text, yaml_line

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.one_of(TEXTS, st.integers(-(10**30), 10**30), FLOATS, st.booleans(), st.none())
KEYS = st.from_regex(r"[a-z_]+\.[a-z_0-9]+", fullmatch=True)
LOOKALIKES = [
    *(
        "",
        "3",
        "'3'",
        "''",
        "'",
        "true",
        "on",
        "off",
        "no",
        "null",
        "~",
        "1e-3",
        "1:30",
        "010",
        "0x10",
    ),
    *("2024-01-01", "a: b", "a #b", "- a", "[1]", "{a: 1}", "&a", "*a", "!x", "|", "%", "=", "<<"),
    *("a\nb", "\n", "a\r\nb ", "\t", "\x85", "\u2028", " a ", "\0", "\x7f"),
]


def same(a: object, b: object) -> bool:
    """Tell whether two values are equal and of one type (0 is not False, 1 is not 1.0)."""
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("010", 10), ("1e-3", 0.001), ("1.", 1.0), (".5", 0.5),
        ("true", True), ("False", False), ("null", None), ("on", "on"), ("no", "no"),
        ("none", "none"), ("", ""), ("1:30", "1:30"), ("1_000", "1_000"), ("nan", "nan"),
        ("2024-01-01", "2024-01-01"), ("'3'", "3"), ("'it''s'", "it's"), ("a: b", "a: b"),
    ],
)  # fmt: skip
def test_scalars(text: str, value: object) -> None:
    assert same(scalar(text), value)


@pytest.mark.extended
@given(VALUES)
def test_a_scalar_is_read_back(value: str | int | float | bool | None) -> None:
    assert same(scalar(scalar_text(value)), value)


@pytest.mark.parametrize("text", LOOKALIKES)
def test_a_text_that_looks_like_something_else_stays_a_text(tmp_path: Path, text: str) -> None:
    assert scalar(scalar_text(text)) == text
    line = yaml_line("key", text)
    assert len(line.splitlines()) == 1
    (tmp_path / "x.yaml").write_text(line, encoding="utf-8")
    assert read_yaml(tmp_path / "x.yaml", "x") == {"key": text}


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_set_is_read_back(values: dict[str, str | int | float | bool | None]) -> None:
    found = parse_set(join_set(values))
    assert list(found) == list(values)
    assert all(same(found[key], values[key]) for key in values)


@pytest.mark.extended
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_yaml_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str | int | float | bool | None]
) -> None:
    lines = [yaml_line(key, value) for key, value in values.items()]
    assert all("\n" not in line for line in lines)
    file = tmp_path_factory.getbasetemp() / "values.yaml"
    file.write_text("\n".join(lines), encoding="utf-8")
    found = read_yaml(file, "values")
    assert found.keys() == values.keys()
    assert all(same(found[key], values[key]) for key in values)


def test_files_are_yaml_1_2(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("on: off\nlr: 1e-3\nn: 010\nt: 1:30\nq: '3'\nempty:\n")
    expected = {"on": "off", "lr": 0.001, "n": 10, "t": "1:30", "q": "3", "empty": None}
    assert read_yaml(tmp_path / "x.yaml", "x") == expected
