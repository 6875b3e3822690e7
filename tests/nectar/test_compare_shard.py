"""`nectar compare --only K/N`: shards that are disjoint, complete and even."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from common.errors import ConfigError
from nectar import cli
from nectar.comparison.comparison import Comparison, commands, parse_shard, shard
from nectar.comparison.request import CompareOptions, parse


def comparison(*tune: str) -> Comparison:
    return Comparison(parse(CompareOptions(("fedavg", "feddyn"), seeds=5, tune=tune)), print)


@pytest.mark.sweep
@pytest.mark.parametrize("of", [1, 3, 4, 10, 11])
def test_each_run_is_in_one_shard_and_none_has_two_more_than_another(of: int) -> None:
    asked = comparison()
    shards = [shard(asked, number, of) for number in range(1, of + 1)]
    assert sorted(t.name for s in shards for t in s) == sorted(
        run.name for run in asked.planned[0].runs
    )
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.extended
def test_a_printed_line_is_one_runs_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "a row=fedavg:lr=0.1", "feddyn", "--seeds", "2"]
    assert cli.main([*words, "--print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    read = [shlex.split(line, comments=True) for line in lines]
    assert read == [["nectar", *words, "--only", f"{k}/4"] for k in (1, 2, 3, 4)]
    assert lines[1].endswith("# a row, seed 1")
    for more in (["--only", "1/2"], ["--only=1/2"], ["--dry-run"], ["--only", "1/2", "--dry-run"]):
        assert cli.main([*words, "--print", *more]) == 0
        assert capsys.readouterr().out.splitlines() == lines, "as they are typed"
    with pytest.raises(ConfigError, match="without --only"):
        commands(comparison("fedavg.lr=0.1,0.3"))


@pytest.mark.extended
@given(st.from_regex(r"[0-9]{1,3}/[0-9]{1,3}", fullmatch=True) | st.text(max_size=12))
def test_a_shard_is_read_or_refused_in_a_sentence(text: str) -> None:
    number, slash, of = text.partition("/")
    if slash and number.isdecimal() and of.isdecimal() and text.isascii() and text[:1] != "0":
        assume(0 < int(number) <= int(of) and of[0] != "0")
        assert parse_shard(text) == (int(number), int(of))
    else:
        with pytest.raises(ConfigError, match="write K/N"):
            parse_shard(text)
