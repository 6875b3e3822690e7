"""Tables and series as data: files of them, their public scale, their names, and what is refused of them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from row_sets import QUICK, table, waves

from common.config.loading import load
from common.config.resolved import Config
from common.data.user import rows as table_file
from common.data.user.arrays import contents_of
from common.data.user.rows import csv_of_rows, raw_values, read_rows
from common.division import Division
from common.errors import ConfigError, DataError, NectarError, RowsError
from common.methods import METHODS
from common.models import build
from common.samples.dataset import REACH, DatasetInfo
from common.samples.inputs import normalised, samples
from common.storage.files import csv_text, plain
from nectar.engines.preflight import check

pytestmark = pytest.mark.usefixtures("fresh_cache")

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(content: str | bytes) -> Path:
        path = tmp_path / "own.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to


def resolve(tmp_path: Path, words: str, **keys: Any) -> Config:
    return load({"data-dir": str(tmp_path / "data"), "set": words, **keys})


def saved(tmp_path: Path, words: str = "", **arrays: Any) -> Division:
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)
    return Division(resolve(tmp_path, f"data.file={path} {words}"))


# ---- a .csv file


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_a_table_is_read_as_it_is_written(write: Write, mark: bytes) -> None:
    text = 'height,"who, said ""so""", width \r\n1.5,rot,-2e3\r\n\r\n 2 ,"gr\u00fcn",.25\r\n'
    found = read_rows(write(mark + text.encode()), 'who, said "so"')
    assert found["columns"] == ["height", "width"]
    assert found["train_images"].tolist() == [[1.5, -2000.0], [2.0, 0.25]]
    assert found["train_labels"].tolist() == ["rot", "gr\u00fcn"]


#: what no TOML can hold; the others are rows of tests/refusals
HOSTILE = {
    "a category": ("kind,a\nx,SECRET\n", "not a finite number: .*OneHotEncoder"),
    "a NUL": ("kind,a\nx,1\0\n", "not a finite number|not comma-separated"),
    "a NUL in a name": ("kind,a\0\nx,1\n", "does not print|not comma-separated"),
    "an open quote and a field without end": ('kind,a\n"' + "x" * 200_000, "larger than field"),
    "a huge cell": ("kind,a\nx," + "1" * 200_000 + "\n", "larger than field limit"),
    "a long class": ("kind,a\n" + "x" * 300 + ",1\n", "too long or does not print"),
    "a million columns": (
        ",".join(map(str, range(1_000_000))),
        "1,000,000 columns, of which 10,000",
    ),
    "another encoding": ("kind,a\nä,1\n".encode("latin-1"), "not text in UTF-8"),
    "UTF-16": ("kind,a\nx,1\n".encode("utf-16"), "not text in UTF-8"),
}


@pytest.mark.parametrize("columns", ["", "data.columns='Gr\u00f6\u00dfe,b' images.classes=0,1"])
@pytest.mark.parametrize("typed", ["Bef\u00fcnd", "Befu\u0308nd"])
def test_a_head_and_what_is_typed_may_differ_in_how_accents_are_coded(
    write: Write, tmp_path: Path, typed: str, columns: str
) -> None:
    rows = "\n".join(f"{i}.5,{i},{i % 2}" for i in range(40))
    path = write(f"Gro\u0308\u00dfe,b,Befu\u0308nd\n{rows}")
    division = Division(resolve(tmp_path, f"data.file={path} data.label={typed} {columns}"))
    assert division.run.info.classes == ("0", "1")


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_table_is_refused_in_a_sentence_that_shows_no_cell(
    write: Write, case: str
) -> None:
    content, message = HOSTILE[case]
    with pytest.raises(DataError, match=message) as raised:
        read_rows(write(content), "kind")
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    assert "SECRET" not in sentence


def test_another_machine_is_told_nothing_of_a_table_that_the_run_does_not_name(
    write: Write, tmp_path: Path
) -> None:
    path = write("kind,mine\nx,SECRET\n")
    with pytest.raises(DataError, match="'mine'") as raised:
        Division(resolve(tmp_path, f"data.file={path} data.label=kind")).dataset  # noqa: B018
    assert raised.value.reported.startswith("data.file is not a table that can be read")


@pytest.mark.parametrize(
    ("content", "line"),
    [("a,b\n1,2,\n3,4,\n", 2), ("a,b\n1,x\n\n3\n", 4), ('a,b\n"1\n",x\n3,y,4\n', 4)],
    ids=["a comma at each end", "a short line", "behind a line end in a cell"],
)
def test_a_line_of_another_number_of_cells_is_never_filled_or_shifted(
    write: Write, content: str, line: int
) -> None:
    """Pandas reads a=2 of the first, and fills the second."""
    with pytest.raises(DataError, match=f"line {line}: . cells? where the first line names 2"):
        read_rows(write(content), "b")


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        ("MOST_BYTES", 10, "are read at the most"),
        ("MOST_ROWS", 2, "more than 2 rows"),
        ("MOST_VALUES", 1, "or 1 numbers"),
    ],
)
def test_a_table_has_bounds(
    write: Write, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, said: str
) -> None:
    path = write("kind,a\nx,1\ny,2\nx,3\n")
    assert len(read_rows(path, "kind")["train_labels"]) == 3
    monkeypatch.setattr(table_file, limit, value)
    with pytest.raises(DataError, match=said):
        read_rows(path, "kind")


@given(
    st.lists(
        st.lists(
            st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=2, max_size=2
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_finite_number_comes_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[float]]
) -> None:
    path = tmp_path_factory.mktemp("numbers") / "own.csv"
    path.write_text("\n".join(["a,kind,b", *(f"{a!r},x,{b!r}" for a, b in rows)]))
    assert read_rows(path, "kind")["train_images"].tolist() == rows


# ---- arrays


def test_rows_and_series_are_images_of_one_pixel_and_of_one_line() -> None:
    labels = np.array([0, 1])
    rows = contents_of({"x_train": [[1, 2, 3], [4, 5, 6]], "y_train": labels}, "it", "table")
    assert rows.train.images.dtype == np.float64
    assert rows.train.images[:, :, 0, 0].tolist() == [[1, 2, 3], [4, 5, 6]]
    made = torch.arange(12).reshape(2, 3, 2)
    series = contents_of({"x_train": made, "y_train": labels}, "it", "series")
    assert series.train.images.shape == (2, 3, 1, 2)
    assert series.train.images[:, :, 0].tolist() == made.tolist()


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("table", np.array([["1", "2"]] * 2), "must be an array of numbers, not of <U1"),
        ("table", np.array([[1, 2j]] * 2), "not of complex128"),
        ("table", np.array([["2020-01-01"]] * 2, dtype="datetime64[D]"), "not of datetime64"),
        ("table", np.array([[1, "a"]] * 2, dtype=object), "not of object: write categories"),
        ("table", np.ones((2, 3, 4)), r"must be \[n, columns\] for data.kind=table"),
        ("table", np.ones(2), r"must be \[n, columns\]"),
        ("table", np.ones((2, 0)), "1 to 10,000 columns"),
        ("table", np.ones((2, 10_001)), "1 to 10,000 columns"),
        ("table", np.array([[1.0, np.nan]] * 2), "NaN or infinity: fill in"),
        ("table", np.full((2, 1), np.inf), "NaN or infinity"),
        ("series", np.ones((2, 3)), r"must be \[n, channels, steps\] for data.kind=series"),
        ("series", np.ones((2, 3, 0)), "no empty ones"),
        ("images", np.ones((2, 3)), "rows of a table need data.kind=table"),
    ],
)
def test_arrays_of_another_form_are_refused(kind: Any, value: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        contents_of({"train_images": value, "train_labels": np.arange(2)}, "it", kind)


def test_objects_in_a_file_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            raise AssertionError("unpickled")

    arrays = np.array([[1, "a"], [2, "b"]], dtype=object)
    division = saved(tmp_path, "data.kind=table", x_train=arrays, y_train=[0, 1])
    with pytest.raises(DataError, match=r"x_train holds Python objects, which are never unpickled"):
        _ = division.run


# ---- classes by name


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b", "a", "b"], ["a", "b"]),
        (["10", "9", "2"], ["2", "9", "10"]),
        (["-1", "1", "-1"], ["-1", "1"]),
        (["10", "9a", "2"], ["10", "2", "9a"]),
    ],
)
def test_labels_may_be_names(names: list[str], expected: list[str]) -> None:
    found = contents_of({"x_train": np.ones((3, 2)), "y_train": np.array(names)}, "it", "table")
    assert found.about["classes"] == expected
    assert [expected[label] for label in found.train.labels] == names
    listed = contents_of({"x_train": np.ones((3, 2)), "y_train": list(names)}, "it", "table")
    assert listed.train.labels.tolist() == found.train.labels.tolist()


def test_names_go_by_the_sets_own_list_and_both_splits(tmp_path: Path) -> None:
    arrays = {"x_train": np.ones((2, 1)), "x_test": np.ones((1, 1))}
    named = {"y_train": ["b", "a"], "y_test": ["c"]}
    found = contents_of({**arrays, **named}, "it", "table")
    assert found.about["classes"] == ["a", "b", "c"]
    own = contents_of({**arrays, **named, "classes": ["c", "b", "a", "d"]}, "it", "table")
    assert (own.train.labels.tolist(), own.test.labels.tolist()) == ([1, 2], [0])
    with pytest.raises(DataError, match="a label is 'c', which its classes do not name"):
        contents_of({**arrays, **named, "classes": ["a", "b"]}, "it", "table")
    with pytest.raises(DataError, match="test_labels are numbers where the other labels are names"):
        contents_of({**arrays, "y_train": ["b", "a"], "y_test": [0]}, "it", "table")
    many = [f"row {i}" for i in range(1001)]
    with pytest.raises(DataError, match=r"1,001 different values.*column of the classes"):
        contents_of({"x_train": np.ones((1001, 1)), "y_train": many}, "it", "table")
    kept = {"x_train": np.ones((4, 2)), "y_train": ["a", "b"] * 2}
    agreed = saved(tmp_path, "data.kind=table images.classes=a,b", **kept)
    assert agreed.run.info.classes == ("a", "b")
    with pytest.raises(DataError, match=r"in the order a, b: state images.classes so"):
        _ = saved(tmp_path, "data.kind=table images.classes=b,a", **kept).run


# ---- the scale


def of(scale: str, mean: float, std: float, ends: tuple[float, ...] = ()) -> DatasetInfo:
    low, high = ((end,) for end in ends) if ends else ((), ())
    return DatasetInfo(
        scale, (1, 1, 1), ("a", "b"), (mean,), (std,), 1.0, arrays="table", low=low, high=high
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", [[1.0, -4.0], [3.0, 8.0]]),
        ("data.scale=minmax data.low=1,-4 data.high=3,8", [[-1.0, -1.0], [1.0, 1.0]]),
        ("data.scale=minmax data.low=-5 data.high=5", [[0.2, -0.8], [0.6, 1.0]]),
        ("data.scale=standard images.mean=1,2 images.std=2,4", [[0.0, -1.5], [1.0, 1.5]]),
        ("data.low=0 data.high=2.5", [[1.0, 0.0], [2.5, 2.5]]),
        (
            "data.scale=standard images.mean=0,0 images.std=1,2 data.low=-2 data.high=2",
            [[1.0, -1.0], [2.0, 1.0]],
        ),
    ],
)
def test_values_are_scaled_by_stated_constants_and_brought_between_stated_bounds(
    tmp_path: Path, words: str, expected: list[list[float]]
) -> None:
    arrays = {"x_train": [[1, -4], [3, 8]] * 3, "y_train": [0, 1] * 3}
    division = saved(tmp_path, f"data.kind=table data.test_share=0 {words}", **arrays)
    found = samples(division._loaded.train, division.run.info).inputs(slice(0, 2))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[:, :, 0, 0], torch.tensor(expected), rtol=1e-6, atol=1e-6)
    assert float(found.abs().max()) <= division.run.info.largest * (1 + 1e-6)


def test_a_set_may_bring_its_public_constants(tmp_path: Path) -> None:
    arrays = {"x_train": np.ones((4, 2, 3)), "y_train": [0, 1] * 2}
    brought = {"low": [0, 0], "high": [2, 4], "columns": ["up", "down"]}
    words = "data.kind=series data.scale=minmax"
    info = saved(tmp_path, words, **arrays, **brought).run.info
    assert (info.low, info.high, info.columns) == ((0, 0), (2, 4), ("up", "down"))
    assert (info.kind, info.unit, info.shape) == ("series", "series", (2, 1, 3))
    typed = saved(tmp_path, f"{words} data.low=-1 data.high=1", **arrays, **brought).run.info
    assert (typed.low, typed.high) == ((-1, -1), (1, 1))


@pytest.mark.parametrize("offset", [1e9, -3e12])
def test_a_large_offset_costs_no_digits(offset: float) -> None:
    """In float32 these values would all be equal."""
    raw = offset + np.arange(5.0)[:, None, None, None]
    found = normalised(raw, of("standard", offset, 2.0))
    assert found.ravel().tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(-1, 1))
def test_what_is_told_in_raw_values_is_what_was_scaled(low: float, width: float, at: float) -> None:
    """The inverse, and the bounds at -1 and 1, to float32's rounding of the scaled value."""
    info = of("minmax", low + width / 2, width / 2, (low, low + width))
    given = torch.tensor([at, -1.0, 1.0], dtype=torch.float64)[:, None, None, None]
    back = normalised(raw_values(given, info), info).ravel()
    rounding = 1e-6 + 1e-15 * abs(low) / width
    np.testing.assert_allclose(back, given.ravel(), atol=rounding)
    assert info.largest == pytest.approx(1, abs=rounding)


def test_values_from_which_no_model_learns_are_refused_before_training(tmp_path: Path) -> None:
    rows = np.ones((40, 2))
    rows[:, 1] = REACH + 1
    arrays = {"x_train": rows, "y_train": [0, 1] * 20, "columns": ["small", "large"]}
    division = saved(tmp_path, "data.kind=table federation.sites=2", **arrays)
    with pytest.raises(
        DataError, match=r"column 'large' has values beyond 100 with data.scale=none"
    ):
        check(division.config)
    check(saved(tmp_path, f"data.kind=table data.low=0 data.high=200 {QUICK}", **arrays).config)


# ---- what fits together


@pytest.mark.parametrize(("kind", "model"), [("table", "mlp"), ("series", "conv1d")])
def test_the_kind_brings_its_defaults(tmp_path: Path, kind: str, model: str) -> None:
    config = resolve(tmp_path, f"data.file=/x.npz data.kind={kind}")
    assert (config.model.name, config.origin["model.name"]) == (model, f"conf/kind/{kind}.yaml")
    again = load(config.to_run_config())
    assert again.digest() == config.digest()
    typed = resolve(tmp_path, f"data.file=/x.npz data.kind={kind} model.name=logistic")
    assert typed.model.name == "logistic"


@pytest.mark.parametrize("make", [table, waves], ids=["table", "series"])
def test_methods_take_what_the_registry_says_and_refusals_name_those_that_do(
    tmp_path: Path, make: Callable[[Path], str]
) -> None:
    words = f"{make(tmp_path / ('own.csv' if make is table else 'own.npz'))} {QUICK} ridge.plain=on"
    kind = "table" if make is table else "series"
    taking = [name for name, method in METHODS.items() if kind in method.takes]
    assert {"feddm", "feddyn", "fedavg", "fedsynth", "central", "local"} <= set(taking)
    for name in METHODS:
        if name in taking:
            check(resolve(tmp_path, words, method=name))
            continue
        with pytest.raises(
            ConfigError, match=f"method={name} takes images(, series)?, and"
        ) as raised:
            resolve(tmp_path, words, method=name)
        assert str(raised.value).endswith(f"choose one of {', '.join(taking)}.")


def test_text_is_refused_by_the_same_table(tmp_path: Path) -> None:
    for name in ("dense", "fedgen", "feddm"):
        with pytest.raises(NectarError, match=r"and reddit2k is text: choose one of fedavg"):
            check(resolve(tmp_path, "", method=name, dataset="reddit2k"))


# ---- a model of series


def test_the_model_of_series_sees_time_and_no_more(tmp_path: Path) -> None:
    model = build("conv1d", (2, 1, 20), 3, depth=2, width=4).eval()
    x = torch.randn(5, 2, 1, 20, generator=torch.Generator().manual_seed(0))
    assert model(x).shape == (5, 3)
    convolutions, norms = (2 * 5 + 1) * 4 + (4 * 5 + 1) * 4, 2 * 2 * 4
    assert sum(p.numel() for p in model.parameters()) == convolutions + norms + 4 * 3 + 3
    by_hand = torch.nn.functional.conv1d(
        x[:, :, 0], model.features[0].weight[:, :, 0], model.features[0].bias, padding=2
    )
    torch.testing.assert_close(model.features[0](x)[:, :, 0], by_hand)
    one = build("conv1d", (2, 1, 20), 3, depth=1, width=4).eval()
    normed = torch.nn.functional.layer_norm(one.features[0](x), (4, 1, 20)).relu()
    torch.testing.assert_close(one.embed(x), normed.mean((2, 3)), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="depth goes from 1 to 4 there"):
        build("conv1d", (2, 1, 20), 3, depth=5)
    with pytest.raises(ValueError, match="takes series, not images of 8x8"):
        build("conv1d", (2, 8, 8), 3)


# ---- what is written


def test_a_written_table_holds_no_formula() -> None:
    cells = ["=1+1", "+1", "-x", "@a", "\tx", "\rx", "-1.5", "1e-3", "plain", 3, -2.0]
    safe = ["'=1+1", "+1", "'-x", "'@a", "'\tx", "'\rx", "-1.5", "1e-3", "plain", 3, -2.0]
    assert [plain(cell) for cell in cells] == safe
    head, row = csv.reader(io.StringIO(csv_text(["=cmd()", 'a"b'], [["x,y", 1.5]])))
    assert (head, row) == (["'=cmd()", 'a"b'], ["x,y", "1.5"])


def test_rows_are_written_in_raw_values_under_their_names() -> None:
    info = DatasetInfo(
        "it",
        (2, 1, 1),
        ("a", "b"),
        (5.0, 0.0),
        (5.0, 2.0),
        1.0,
        arrays="table",
        columns=("=x", "y"),
    )
    text = csv_of_rows(torch.tensor([[[[1.0]], [[-0.5]]]]), ["-a"], info)
    assert text == "class,'=x,y\n'-a,10,-1\n"
    series = DatasetInfo("it", (1, 1, 2), ("a", "b"), (0.0,), (1.0,), 1.0, arrays="series")
    assert csv_of_rows(torch.tensor([[[[1.0, 2.0]]]]), ["a"], series) == "class,1[0],1[1]\na,1,2\n"
    assert re.fullmatch(r"class,.*\n", csv_of_rows(torch.empty(0, 1, 1, 2), [], series))


# ---- all that is wrong at once -------------------------------------------------------------------

STAIRCASE = """age,region,dose,"weight, kg",seen,kind,who
51,north,2,70,2020-01-02,ill,p1
,south,3,NA,2020-01-03,well,p2
63,north,4,71,,ill,p3
NaN,,5,72,2020-01-05,well,p4
"""


def test_all_that_no_table_takes_is_said_at_once_with_words_that_work(write: Write) -> None:
    path = write(STAIRCASE)
    with pytest.raises(RowsError) as raised:
        read_rows(path, "kind")
    sentence = str(raised.value)
    for fault in (
        "line 3, column 'age': a value is missing in 2 rows",
        "line 2, column 'region': not a finite number in 3 rows",
        "line 5, column 'region': a value is missing",
        "line 3, column 'weight, kg': a value is missing",
        "line 2, column 'seen': not a finite number in 3 rows",
        "line 4, column 'seen': a value is missing",
        "line 2, column 'who': not a finite number in 4 rows",
    ):
        assert fault in sentence
    for cell in ("north", "2020", "p1", "51"):
        assert cell not in sentence.replace(str(path), "")
    words = sentence.rpartition("read with ")[2]
    assert words == "data.columns=dose images.classes=ill,well"


@pytest.mark.parametrize("gaps", [0, 1, 3])
@pytest.mark.parametrize("texts", [0, 1, 12])
def test_the_words_that_a_table_is_refused_with_read_it(
    write: Write, tmp_path: Path, gaps: int, texts: int
) -> None:
    """Whatever columns are no numbers or have gaps: the refusal names the others, and these can be run."""
    names = ["a b", "x:y", "7", *(f"gap{i}" for i in range(gaps)), *(f"t{i}" for i in range(texts))]
    rows = [
        [
            "1",
            "2",
            "3",
            *("" if i % (5 + g) == 0 else "4" for g in range(gaps)),
            *["SECRET"] * texts,
        ]
        for i in range(40)
    ]
    lines = [
        ",".join([*names, "kind"]),
        *(",".join([*row, "uv"[i % 2]]) for i, row in enumerate(rows)),
    ]
    path = write("\n".join(lines))
    base = f"data.file={path} data.label=kind"
    if not gaps + texts:
        assert Division(resolve(tmp_path, base)).dataset.info.columns == tuple(names)
        return
    with pytest.raises(DataError) as raised:
        Division(resolve(tmp_path, base)).dataset  # noqa: B018
    assert "SECRET" not in str(raised.value)
    more = max(0, gaps + texts - 10)
    assert (f"; and {more} more: " in str(raised.value)) == bool(more)
    words = str(raised.value).rpartition("read with ")[2]
    assert Division(resolve(tmp_path, f"{base} {words}")).dataset.info.columns == (
        "a b",
        "x:y",
        "7",
    )


def test_a_row_without_class_or_group_is_counted_with_the_rest(write: Write) -> None:
    path = write("kind,who,a\nx,1,1\n,2,2\ny,?,3\n?,3,\n")
    with pytest.raises(RowsError) as raised:
        read_rows(path, "kind", "who")
    sentence = str(raised.value)
    assert "line 3, column 'kind': no class in 2 rows; line 4, column 'who': no group" in sentence
    assert "line 5, column 'a': a value is missing" in sentence
    assert "read with" not in sentence
