"""Trace readers that are right in everything but one law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from kdvfs_sim.testing.builtin import _Parquet
from kdvfs_sim.trace.parquet import read_parquet
from kdvfs_sim.trace.table import Trace
from tests.testing.mutants.mutant import mutant


@mutant("reader", "it_reads_its_own_files")
class MaybeCanRead(_Parquet):
    """Says 1 where True is meant."""

    def can_read(self, path: Path, /) -> Any:
        return int(super().can_read(path))


@mutant("reader", "it_leaves_other_files_alone")
class TakesGzip(_Parquet):
    """Takes anything that begins like gzip for its own."""

    def can_read(self, path: Path, /) -> bool:
        return path.read_bytes()[:2] == b"\x1f\x8b" or super().can_read(path)


@mutant("reader", "a_file_is_known_by_its_content")
class GoesByTheName(_Parquet):
    """Does not look into files that are named .txt."""

    def can_read(self, path: Path, /) -> bool:
        return path.suffix != ".txt" and super().can_read(path)


@mutant("reader", "times_and_kernels_are_as_recorded")
class InMicroseconds(_Parquet):
    """Rounds durations to even nanoseconds."""

    def read(self, path: Path, /) -> Trace:
        trace = super().read(path)
        return replace(trace, ops=trace.ops.with_columns(pl.col("duration_ns") // 2 * 2))


@mutant("reader", "the_same_file_is_the_same_trace")
class NumbersItsReads(_Parquet):
    """Notes in the trace how often it has read."""

    n_reads = 0

    def read(self, path: Path, /) -> Trace:
        # two copies of one file are read by one reader in another law, each for the first time
        seen = self.__dict__.setdefault("seen", {})
        seen[path] = seen.get(path, 0) + 1
        return replace(super().read(path), repairs={"reads": seen[path]})


@mutant("reader", "the_file_is_left_alone")
class LeavesAnIndex(_Parquet):
    """Writes an index beside the recording."""

    def read(self, path: Path, /) -> Trace:
        path.with_suffix(".index").write_text("")
        return super().read(path)


@mutant("reader", "a_cut_file_is_refused")
class KeepsACache(_Parquet):
    """Gives one operation where the file ends too early."""

    def can_read(self, path: Path, /) -> bool:
        return path.read_bytes()[:4] == b"PAR1"

    def read(self, path: Path, /) -> Trace:
        if path.read_bytes()[-4:] == b"PAR1":
            return super().read(path)
        from kdvfs_sim.testing.notation import trace

        return trace((0, 0, 77))


@mutant("reader", "a_damaged_file_is_refused_in_one_line")
class LetsErrorsThrough(_Parquet):
    """Lets an IndexError of its own out where the file does not end as it should."""

    def can_read(self, path: Path, /) -> bool:
        return path.read_bytes()[:4] == b"PAR1"

    def read(self, path: Path, /) -> Trace:
        content = path.read_bytes()
        if content[-4:-1] == b"PAR" and content[-1:] != b"1":
            raise IndexError("list index out of range")
        return super().read(path)


@mutant("reader", "the_trace_survives_our_own_format")
class NegativeStream(_Parquet):
    """Puts into the trace what no file can hold."""

    def read(self, path: Path, /) -> Trace:
        return replace(read_parquet(path), repairs={"half": 0.5})  # type: ignore[dict-item]
