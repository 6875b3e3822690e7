"""Every setting there is, drawn: inside its bounds it comes through words, Flower and YAML, outside it is refused."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import pytest
from flwr.common.config import parse_config_args
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from common.config.keys import show
from common.config.loading import load
from common.config.schema import section_classes
from common.config.text import dotted, join_set, parse_set, read_yaml, yaml_line
from common.errors import ConfigError
from common.methods import METHODS
from common.settings.section import Section, allowed
from common.settings.sections import RunSettings
from nectar.arguments import to_flwr

RUN = "the run's own"
SECTIONS: dict[str, type[Section]] = {
    name: cls for name, cls in {RUN: RunSettings, **section_classes()}.items() if cls.model_fields
}
PRINTED = st.characters(codec="ascii", exclude_categories=["Cc"])


def key_of(section: str, name: str) -> str:
    return name if section == RUN else f"{section}.{name}"


def noted(field: FieldInfo, name: str) -> Any:
    return next((v for m in field.metadata if (v := getattr(m, name, None)) is not None), None)


def least_and_most(field: FieldInfo) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the bounds of a number, as ``st.floats`` takes them, from below and from above."""
    ge, gt, le, lt = (noted(field, name) for name in ("ge", "gt", "le", "lt"))
    least = (
        {}
        if ge is gt is None
        else {"min_value": gt if ge is None else ge, "exclude_min": ge is None}
    )
    most = (
        {}
        if le is lt is None
        else {"max_value": lt if le is None else le, "exclude_max": le is None}
    )
    return least, most


def inside(field: FieldInfo) -> st.SearchStrategy[Any]:
    kind, (least, most) = field.annotation, least_and_most(field)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(
            least.get("min_value", -9) + least.get("exclude_min", 0), most.get("max_value", 10**9)
        )
    if kind is float and allowed(field).startswith("0, or a number from 0.01"):
        return st.just(0.0) | st.floats(0.01, 1e4)
    if kind is float and not any(hasattr(m, "func") for m in field.metadata):
        return st.floats(allow_nan=False, allow_infinity=False, **least, **most)
    if pattern := noted(field, "pattern"):
        return st.from_regex(pattern, fullmatch=True, alphabet=PRINTED)
    return st.just(field.default)


def outside(field: FieldInfo) -> st.SearchStrategy[Any]:
    """Values of another kind, and those beyond a bound; of a text without a pattern there are none."""
    kind, (least, most) = field.annotation, least_and_most(field)
    words = st.text(PRINTED, min_size=1).map(lambda text: f"no {text}")
    if get_origin(kind) is Literal:
        return words
    if kind is bool:
        return words | st.integers()
    if kind not in (int, float):
        return (
            st.nothing() if noted(field, "pattern") is None else words.map(lambda word: f"{word}\a")
        )
    beyond = [words, st.booleans()]
    if kind is int:
        beyond.append(st.floats(0.1, 0.9))
        if least:
            beyond.append(st.integers(-(10**30), least["min_value"] - 1 + least["exclude_min"]))
        if most:
            beyond.append(st.integers(most["max_value"] + 1 - most["exclude_max"], 10**30))
        return st.one_of(beyond)
    if least:
        beyond.append(st.floats(-1e300, least["min_value"], exclude_max=not least["exclude_min"]))
    if most:
        beyond.append(st.floats(most["max_value"], 1e300, exclude_min=not most["exclude_max"]))
    return st.one_of(beyond)


def told_apart(values: dict[str, Any]) -> dict[str, tuple[type, Any]]:
    return {key: (type(value), value) for key, value in values.items()}


def taken(cls: type[Section], name: str, value: Any) -> bool:
    """Return whether a class takes a value for a field as it is, or refuses it as a whole only."""
    try:
        return bool(getattr(cls(**{name: value}), name) == value)
    except ValidationError as error:
        return not any(each["loc"] for each in error.errors())


@pytest.mark.sweep(10)
@settings(max_examples=5, phases=[Phase.generate])
@pytest.mark.parametrize("section", SECTIONS)
@given(data=st.data())
def test_inside_its_bounds_it_is_taken_as_it_was_typed(
    tmp_path_factory: pytest.TempPathFactory, section: str, data: st.DataObject
) -> None:
    """What fields forbid each other, their class says in a sentence of its own."""
    fields = SECTIONS[section].model_fields
    drawn = data.draw(st.fixed_dictionaries({name: inside(f) for name, f in fields.items()}))
    values = {key_of(section, name): value for name, value in drawn.items()}
    typed = parse_config_args([to_flwr({"set": join_set(values)})])
    assert told_apart(parse_set(str(typed["set"]))) == told_apart(values)
    file = tmp_path_factory.getbasetemp() / "values.yaml"
    file.write_text("\n".join(yaml_line(key, value) for key, value in values.items()), "utf-8")
    assert told_apart(dotted(read_yaml(file, "values"))) == told_apart(values)
    for name, value in drawn.items():
        assert taken(SECTIONS[section], name, value)


@pytest.mark.sweep(10)
@settings(max_examples=2, phases=[Phase.generate])
@pytest.mark.parametrize("section", SECTIONS)
@given(data=st.data())
def test_outside_it_is_one_sentence_that_names_key_value_and_what_is_allowed(
    section: str, data: st.DataObject
) -> None:
    for name, field in SECTIONS[section].model_fields.items():
        values = outside(field)
        if values.is_empty:
            continue
        key, value = key_of(section, name), data.draw(values, name)
        with pytest.raises(ConfigError) as refused:
            load(
                {"set": join_set({key: value})}
                | ({"method": section} if section in METHODS else {})
            )
        said = f"{key}={show(value)} on the command line must be {allowed(field)}"
        assert str(refused.value).startswith(said)
        assert str(refused.value).count("\n") == 0
        assert str(refused.value).endswith(".")
