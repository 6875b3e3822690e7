"""What a site can be called, and what stands for it in names of files."""

from __future__ import annotations

import unicodedata
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import FederationError
from common.sites import ALL_SITES, is_site_name, site_name, site_order, site_slug

GOOD = [
    "north",
    "partition-10",
    "St. Anna",
    "Universitätsklinikum Köln",
    "Łódź 2",
    "東京",
    "בית חולים",
    "अस्पताल",
    "x" * 64,
]
BAD = {
    "empty": "",
    "a space alone": " ",
    "a space first": " north",
    "a space last": "north ",
    "two spaces": "north  wing",
    "the parent": "..",
    "out of its folder": "../up",
    "a path": "a/b",
    "Windows' path": "a\\b",
    "a fraction slash": "a\u2044b",
    "a full-width slash": "a\uff0fb",
    "NUL": "a\0b",
    "a line": "a\nb",
    "a tab": "a\tb",
    "an escape": "a\x1b[31m",
    "a line separator": "a\u2028b",
    "right to left": "a\u202eb",
    "an isolate": "a\u2066b",
    "a mark of direction": "a\u200fb",
    "no width": "a\u200bb",
    "a joiner": "a\u200db",
    "a soft hyphen": "a\u00adb",
    "a byte order mark": "\ufeffa",
    "a no-break space": "a\u00a0b",
    "a filler": "a\u3164b",
    "a variation": "a\ufe0fb",
    "a private letter": "a\ue000b",
    "half a pair": "a\ud800b",
    "hidden": ".hidden",
    "a mark alone": "\u0301a",
    "an option": "-rf",
    "a quote": 'q"',
    "a tilde": "a~b",
    "a superscript": "a\u00b2",
    "65": "x" * 65,
    "300": "ä" * 300,
    "all of them": ALL_SITES,
}


@pytest.mark.parametrize("name", GOOD)
def test_names_of_any_script_are_names(name: str) -> None:
    assert site_name({"site": name}) == name


@pytest.mark.parametrize("name", BAD.values(), ids=list(BAD))
def test_what_misleads_or_leaves_its_folder_is_refused_in_one_printable_line(name: str) -> None:
    with pytest.raises(FederationError, match="not allowed") as refused:
        site_name({"site": name})
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


def test_names_equal_after_normalisation_are_one_name() -> None:
    apart = "Ko\u0308ln"
    assert site_name({"site": apart}) == "Köln" == site_name({"data": f"/x/{apart}"})
    assert not is_site_name(apart), "the server takes the normal form alone"


def test_names_that_fold_alike_have_slugs_of_their_own() -> None:
    names = [
        "Koln",
        "Köln",
        "Kóln",
        "K ln",
        "K-ln",
        "東京",
        "京東",
        site_slug("Köln").replace("~", "-"),
    ]
    slugs = [site_slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert site_slug("Universitätsklinikum Köln").startswith("Universitatsklinikum-Koln~")
    assert site_slug("north_2.b") == "north_2.b"


@given(st.text("aZä \u0301.-_~/1²東٣\u202e", max_size=70))
def test_a_slug_is_a_plain_part_of_a_path_and_never_a_name(text: str) -> None:
    name = unicodedata.normalize("NFC", text)
    if not is_site_name(name):
        return
    slug = site_slug(name)
    assert slug.isascii()
    assert len(slug) <= 64
    assert PurePath(slug).parts == (slug,)
    assert slug[0].isalnum()
    assert slug == name or not is_site_name(slug)
    assert site_order(name) == site_order(name), "digits of any script are numbers or letters"
