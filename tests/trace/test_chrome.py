"""Reading trace event JSON in blocks: the same events as reading it whole, wherever the blocks are cut."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_files import kernel, write, write_text

from kdvfs_sim.core.errors import KdvfsError, TraceFormatError
from kdvfs_sim.trace import chrome
from kdvfs_sim.trace.chrome import ChromeTrace, is_chrome_trace
from kdvfs_sim.trace.readers import read_trace

TRICKY = st.text(alphabet='{}[],:"\\ \nan1é', max_size=12)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), TRICKY),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TRICKY, inner, max_size=3)),
    max_leaves=8,
)
EVENTS = st.lists(
    st.dictionaries(
        st.sampled_from(["ph", "cat", "name", "pid", "tid", "args", "extra"]), VALUES, max_size=5
    ),
    max_size=8,
)


@pytest.fixture(autouse=True)
def _whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "_BLOCK_BYTES", 1 << 20)


def decoded(file: ChromeTrace) -> list[dict[str, Any]]:
    return [
        {"ph": e.ph, "cat": e.cat, "name": e.name, "pid": e.pid, "tid": e.tid}
        | ({"args": json.loads(bytes(e.args))} if e.args else {})
        for e in file
    ]


def expected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = ("ph", "cat", "name", "pid", "tid")
    return [{key: e.get(key) for key in keys} | ({"args": e["args"]} if "args" in e else {}) for e in events]


@given(EVENTS, st.integers(1, 200), st.booleans(), st.booleans(), st.sampled_from([None, 1]))
def test_equals_reading_it_whole(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[dict[str, Any]],
    block_bytes: int,
    bare: bool,
    compressed: bool,
    indent: int | None,
) -> None:
    path = tmp_path_factory.getbasetemp() / ("t.json.gz" if compressed else "t.json")
    around = {"first": {"traceEvents": "]}", "x": [1, 2]}, "traceEvents": events, "last": [{}, {}]}
    write_text(path, json.dumps(events if bare else around, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome, "_BLOCK_BYTES", block_bytes)
        file = ChromeTrace(path)
        assert decoded(file) == expected(events)
    assert file.n_events == len(events)
    found = {key: json.loads(bytes(value)) for key, value in file.metadata.items()}
    assert found == ({} if bare else {"first": around["first"], "last": around["last"]})
    assert not file.repairs


@pytest.mark.parametrize("block_bytes", [7, 64, 1 << 20])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_truncated_anywhere_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, block_bytes: int
) -> None:
    monkeypatch.setattr(chrome, "_BLOCK_BYTES", block_bytes)
    whole = write(tmp_path / f"whole{suffix}", [kernel(ts=i, correlation=i) for i in range(30)], x={"a": 1})
    data = whole.read_bytes()
    path = tmp_path / f"part{suffix}"
    for length in [*range(1, 40), *range(40, len(data), max(1, len(data) // 60)), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(TraceFormatError) as caught:
            read_trace(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_a_truncated_file_says_how_much_was_readable(tmp_path: Path) -> None:
    events = [kernel(ts=i) for i in range(100)]
    text = json.dumps({"traceEvents": events})
    path = write_text(tmp_path / "t.json", text[: text.index('"ts": 50')])
    with pytest.raises(TraceFormatError, match=r"truncated: .* after 50 complete events, \d+ bytes of text"):
        read_trace(path)
    data = gzip.compress(text.encode())
    path = write_text(tmp_path / "t.gz.json", data[: len(data) // 2])
    with pytest.raises(
        TraceFormatError, match=rf"ends early, at byte {len(data) // 2} of the file after \d+ compl"
    ):
        read_trace(path)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_random_damage_never_escapes_as_another_error(tmp_path: Path, suffix: str) -> None:
    events = [kernel(ts=i * 10, correlation=i, grid=[1, 2, 3]) for i in range(20)]
    data = write(tmp_path / f"whole{suffix}", events, baseTimeNanoseconds=17).read_bytes()
    path = tmp_path / f"damaged{suffix}"
    choice = random.Random(7)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(choice.randint(1, 4)):
            damaged[choice.randrange(len(damaged))] ^= 1 << choice.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(KdvfsError):
            read_trace(path)


@pytest.mark.parametrize(
    ("written", "repair"),
    [
        (b'"name": "a\x07b"', "raw control characters escaped"),
        (b'"name": "a\xff\xfeb"', "invalid UTF-8 replaced"),
        (b'"name": "a\\qb"', "invalid escapes replaced"),
        (b'"name": "a\\ud800b"', "invalid escapes replaced"),
        (b'"x": NaN', "values that are not numbers read as null"),
        (b'"x": -Infinity', "values that are not numbers read as null"),
        (b'"x": [inf, nan, N/A]', "values that are not numbers read as null"),
    ],
)
@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_what_profilers_write_against_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes, repair: str, block_bytes: int
) -> None:
    monkeypatch.setattr(chrome, "_BLOCK_BYTES", block_bytes)
    text = json.dumps({"traceEvents": [kernel(ts=i, name='},{ "N/A", nan') for i in range(6)]}).encode()
    where = text.index(b'"ts": 3')
    path = write_text(tmp_path / "t.json", text[:where] + written + b", " + text[where:])
    trace = read_trace(path)
    assert trace.n_ops == 6
    assert set(trace.repairs) == {repair}
    assert trace.complete


def test_bad_bytes_inside_args_lose_no_field(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [kernel(ts=1, correlation=5, grid=[4, 1, 1], note="@")]}).encode()
    trace = read_trace(write_text(tmp_path / "t.json", text.replace(b"@", b"\xff")))
    assert trace.kinds[0].grid == (4, 1, 1)


def test_trailing_empty_event_and_events_without_ph_are_skipped(tmp_path: Path) -> None:
    events = [kernel(), {}, {"cat": "kernel", "name": "no phase", "ts": 1, "dur": 1}, {"ph": "X"}, {}]
    assert read_trace(write(tmp_path / "t.json", events)).n_ops == 1


def test_byte_order_mark_and_white_space(tmp_path: Path) -> None:
    text = "\ufeff \n " + json.dumps([kernel()])
    assert read_trace(write_text(tmp_path / "t.json", text)).n_ops == 1


def test_several_gzip_members_and_padding(tmp_path: Path) -> None:
    text = json.dumps([kernel()]).encode()
    data = gzip.compress(text[:40]) + gzip.compress(text[40:]) + b"\0" * 100
    assert read_trace(write_text(tmp_path / "t.json", data)).n_ops == 1


def test_text_after_a_bare_list_is_an_error(tmp_path: Path) -> None:
    path = write_text(tmp_path / "t.json", json.dumps([kernel()]) + " [1]")
    with pytest.raises(TraceFormatError, match="bytes follow the closed list of events"):
        read_trace(path)


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_malformed_json_names_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(chrome, "_BLOCK_BYTES", block_bytes)
    text = json.dumps({"traceEvents": [kernel(), kernel(ts=20), kernel()]}).replace('"ts": 20', '"ts": 2O')
    path = write_text(tmp_path / "t.json", text)
    with pytest.raises(TraceFormatError, match=rf"malformed: .* at byte {text.index('2O') + 1} of the text"):
        read_trace(path)


def test_deep_nesting_is_an_error_not_a_crash(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    path = write_text(tmp_path / "t.json", '{"traceEvents": [{"ph": "X", "args": ' + deep + "}]}")
    with pytest.raises(TraceFormatError):
        read_trace(path)


def test_large_metadata_before_the_events(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel()], big="x" * 3_000_000)
    assert is_chrome_trace(path)
    assert read_trace(path).n_ops == 1
