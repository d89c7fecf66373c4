"""GPU entries as TOML: the shipped ones, and files of the same form that a user or a fit wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from kdvfs_sim.core.checks import finite
from kdvfs_sim.core.clocks import MAX_MHZ
from kdvfs_sim.core.documents import toml_of
from kdvfs_sim.core.errors import InputError, UnknownGpuError
from kdvfs_sim.core.files import atomic_write, refuse_foreign
from kdvfs_sim.core.version import __version__
from kdvfs_sim.gpu.facts import ClockList, Fact, GpuFacts, MemoryClock, check_path, unit_of

FORMAT: Final = "kdvfs-gpu"
SCHEMA_VERSION: Final = 1
_HEAD: Final = ("format", "schema_version", "kdvfs_version", "name", "generation", "device_names")
_BELIEVABLE: Final = {"MHz": (1.0, float(MAX_MHZ)), "W": (0.0, 1e6), "ns": (0.0, 1e15)}
_OTHERS: Final = (0.0, 1e12)
_FACT_KEYS: Final = ("value", "source", "kind", "low", "high", "note")


@cache
def gpu_names() -> tuple[str, ...]:
    """Names of the shipped entries, as ``load_gpu`` and ``--gpu`` take them."""
    names = (entry.name for entry in files("kdvfs_sim.gpu").joinpath("catalogue").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_gpu(name: str | Path) -> GpuFacts:
    """An entry by its name, the start of its name, a device name as recorded, or a TOML file.

    Raises UnknownGpuError listing the names; InputError, one line with file, key and value, for a
    file that cannot be read.
    """
    if not isinstance(name, str | Path):
        raise InputError(f"GPU is a {type(name).__name__}; a name, or the path of an entry, is right")
    text = str(name)
    if text.endswith(".toml"):
        return _read(Path(text))
    if text in gpu_names():
        return _shipped(text)
    plain = _plain(text)
    same = [slug for slug in gpu_names() if _plain(slug) == plain]
    begins = same or [slug for slug in gpu_names() if plain and _plain(slug).startswith(plain)]
    slug = begins[0] if len(begins) == 1 else match_device(text)
    if slug is None:
        raise UnknownGpuError(text, ", ".join(gpu_names()))
    return _shipped(slug)


def match_device(device_name: str) -> str | None:
    """Name of the entry whose patterns match a recorded device name; None if there is none."""
    for slug in gpu_names():
        if any(fnmatchcase(device_name, pattern) for pattern in _shipped(slug).device_names):
            return slug
    return None


def check_target(path: Path) -> None:
    """Raise InputError for a name that is no .toml name, or a file of another kind."""
    if path.suffix != ".toml":
        raise InputError(f"{path}: a GPU entry needs a name that ends in .toml")
    refuse_foreign(path, _is_ours, "a GPU entry")


def write_gpu(gpu: GpuFacts, path: str | Path) -> None:
    """Write an entry that ``load_gpu`` reads back equal (its name is the file's), atomically.

    Raises InputError if ``path`` is not a .toml name, cannot be written, or holds something else.
    """
    path = Path(path)
    import tomli_w

    check_target(path)
    clocks: dict[str, Any] = {
        "sm_mhz": _drop_unset(
            list=list(gpu.sm.values_mhz), source=gpu.sm.source, kind=gpu.sm.kind, note=gpu.sm.note
        ),
        "memory_mhz": [
            _drop_unset(
                value=clock.mhz,
                source=clock.source,
                kind=clock.kind,
                requestable=clock.requestable,
                sm_last_mhz=clock.sm_last_mhz,
                note=clock.note,
            )
            for clock in gpu.memory
        ],
    }
    document: dict[str, Any] = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "kdvfs_version": __version__,
        "name": gpu.name,
        "generation": gpu.generation,
        "device_names": list(gpu.device_names),
        "clocks": clocks,
    }
    for fact_path, fact in gpu.facts.items():
        *tables, key = _split(fact_path)
        table = document
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = _drop_unset(**{k: getattr(fact, k) for k in _FACT_KEYS})
    if gpu.unknown:
        document["unknown"] = dict(gpu.unknown)
    with atomic_write(path) as file:
        tomli_w.dump(document, file)


@cache
def _shipped(slug: str) -> GpuFacts:
    entry = files("kdvfs_sim.gpu").joinpath("catalogue", f"{slug}.toml")
    return _parse(entry.read_bytes(), slug, f"{slug}.toml")


def _read(path: Path) -> GpuFacts:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    return replace(_parse(data, path.stem, str(path)), file=str(path))


def _parse(data: bytes, slug: str, where: str) -> GpuFacts:
    try:
        document = toml_of(data)
    except ValueError as error:
        raise InputError(f"{where}: is not TOML ({error})") from None
    if document.get("format") != FORMAT:
        raise InputError(f"{where}: format is {document.get('format')!r}; {FORMAT!r} is right")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{where}: schema_version is {document.get('schema_version')!r}; {SCHEMA_VERSION} is right"
        )
    sources, unknown = (_texts(document, key, where) for key in ("sources", "unknown"))
    clocks = dict(_table(document, "clocks", where))
    entry = _Entry(where, sources)
    sm = entry.sm(clocks.pop("sm_mhz", None))
    memory = entry.memory(clocks.pop("memory_mhz", None))
    sections = {k: v for k, v in document.items() if k not in (*_HEAD, "sources", "unknown", "clocks")}
    names = document.get("device_names", [])
    if not isinstance(names, list):
        raise InputError(f"{where}: device_names is {names!r}; a list of name patterns is right")
    try:
        return GpuFacts(
            slug=slug,
            name=_text(document.get("name"), f"{where}: name"),
            generation=_text(document.get("generation"), f"{where}: generation"),
            device_names=tuple(_text(name, f"{where}: device_names") for name in names),
            sm=sm,
            memory=memory,
            facts=dict(entry.facts({"clocks": clocks, **sections}, "")),
            unknown=unknown,
        )
    except InputError as error:
        raise error if str(error).startswith(where) else InputError(f"{where}: {error}") from None


class _Entry:
    """Reads the tables of one file; ``sources`` are texts that its numbers refer to by a short key."""

    def __init__(self, where: str, sources: Mapping[str, str]) -> None:
        self.where = where
        self.sources = sources

    def facts(self, table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Fact]]:
        for key, value in table.items():
            path = f"{prefix}{key}"
            if not isinstance(value, dict):
                raise InputError(
                    f"{self.where}: {path} is {value!r}; a table with value, source and kind is right"
                )
            if "value" in value or "source" in value:
                yield path, self.fact(path, value)
            else:
                yield from self.facts(value, f"{path}.")

    def fact(self, path: str, table: Mapping[str, Any]) -> Fact:
        where = f"{self.where}: {path}"
        self._only(table, _FACT_KEYS, where)
        low, high = (
            _number(table[key], f"{where}.{key}") if key in table else None for key in ("low", "high")
        )
        value = _number(table.get("value"), f"{where}.value")
        least, most = _believable(path)
        for key, number in (("low", low), ("value", value), ("high", high)):
            if number is not None and not least <= number <= most:
                unit = unit_of(path) or "and no unit"
                raise InputError(f"{where}.{key} is {number!r}; {least:g} to {most:g} {unit} is right")
        try:
            check_path(path)
            return Fact(value=value, low=low, high=high, **self._origin(table, where))
        except InputError as error:
            raise InputError(
                f"{self.where}: {error}" if str(error).startswith(path) else f"{where}: {error}"
            ) from None

    def sm(self, table: Any) -> ClockList:
        where = f"{self.where}: clocks.sm_mhz"
        if not isinstance(table, dict):
            raise InputError(f"{where} is {table!r}; a table with first, last, step or list is right")
        self._only(table, ("first", "last", "step", "list", "source", "kind", "note"), where)
        if "list" in table:
            listed = table["list"]
            if not isinstance(listed, list):
                raise InputError(f"{where}.list is {listed!r}; a list of MHz is right")
            values = tuple(_whole(value, f"{where}.list") for value in listed)
        else:
            first, last, step = (_number(table.get(k), f"{where}.{k}") for k in ("first", "last", "step"))
            if not 1 <= first <= last <= MAX_MHZ or step < 1:
                raise InputError(
                    f"{where} runs from {first:g} to {last:g} by {step:g}; an ascending range of MHz is "
                    f"right, up to {MAX_MHZ} and in steps of at least 1"
                )
            # steps of 7.5 MHz are listed rounded down: 135, 142, 150, ...
            values = tuple(int(first + i * step) for i in range(int((last - first) / step + 1e-9) + 1))
        try:
            return ClockList(values_mhz=values, **self._origin(table, where))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def memory(self, tables: Any) -> tuple[MemoryClock, ...]:
        where = f"{self.where}: clocks.memory_mhz"
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise InputError(f"{where} is {tables!r}; a list of tables with value, source and kind is right")
        clocks = []
        for table in tables:
            self._only(table, ("value", "source", "kind", "note", "requestable", "sm_last_mhz"), where)
            requestable, last = table.get("requestable", True), table.get("sm_last_mhz")
            if not isinstance(requestable, bool):
                raise InputError(f"{where}.requestable is {requestable!r}; true or false is right")
            try:
                clocks.append(
                    MemoryClock(
                        mhz=_whole(table.get("value"), f"{where}.value"),
                        requestable=requestable,
                        sm_last_mhz=None if last is None else _whole(last, f"{where}.sm_last_mhz"),
                        **self._origin(table, where),
                    )
                )
            except InputError as error:
                raise error if str(error).startswith(where) else InputError(f"{where}: {error}") from None
        return tuple(sorted(clocks, key=lambda clock: clock.mhz))

    def _origin(self, table: Mapping[str, Any], where: str) -> dict[str, Any]:
        source = _text(table.get("source"), f"{where}.source")
        return {
            "source": self.sources.get(source, source),
            "kind": _text(table.get("kind"), f"{where}.kind"),
            "note": table.get("note", ""),
        }

    @staticmethod
    def _only(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                raise InputError(f"{where}.{key}: no such key; {', '.join(known)} are right")


def _table(document: Mapping[str, Any], key: str, where: str) -> list[tuple[str, Any]]:
    table = document.get(key, {})
    if not isinstance(table, dict):
        raise InputError(f"{where}: {key} is {table!r}; a table is right")
    return list(table.items())


def _texts(document: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    return {name: _text(text, f"{where}: {key}.{name}") for name, text in _table(document, key, where)}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where} is {value!r}; a text is right")
    return value


def _believable(path: str) -> tuple[float, float]:
    """Between which ends a number lies whatever the GPU: beyond them it is in another unit, or not one."""
    if path.endswith("_share"):
        return 0.0, 1.0
    if path.startswith("rates."):
        return 1.0, _OTHERS[1]
    return _BELIEVABLE.get(unit_of(path), _OTHERS)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where} is {value!r}; a number is right")
    finite(where, value)
    return value


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where} is {value!r}; whole MHz are right")
    return value


def _drop_unset(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, "")}


def _split(path: str) -> list[str]:
    """Tables of a path; a kernel's name pattern may hold dots itself."""
    head, _, rest = path.partition(".")
    if head in ("kernel", "category"):
        return [head, *rest.rsplit(".", 1)]
    return path.split(".")


def _plain(name: str) -> str:
    """``NVIDIA GeForce RTX 3080 Ti`` and ``rtx3080ti`` meet here."""
    return re.sub(r"[^a-z0-9]|nvidia|geforce|tesla", "", name.lower())


def _is_ours(path: Path) -> bool:
    try:
        return toml_of(path.read_bytes()).get("format") == FORMAT
    except (OSError, ValueError):
        return False
