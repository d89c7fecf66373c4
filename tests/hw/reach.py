"""What code of this package could reach that changes a GPU: read off its source, rule by rule.

Meant for code that somebody might write in good faith, not for somebody who hides it. What a rule cannot see
in the source, the audit hook of ``test_observe_reach.py`` sees in the process.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CHANGES = re.compile(r"nvml\w*(Set|Reset|Clear|Remove|Freeze|Validate|Create|Destroy|Modify|Enable)")
FRAGMENTS = re.compile(
    r"LockedClocks|ApplicationsClocks|PowerManagementLimit|PersistenceMode|MigMode|ClockOffset"
)
TOOLS = re.compile(r"^(nvidia-smi|nvidia-settings|dcgmi|modprobe|rmmod|sudo)\b")
DRIVERS = re.compile(r"libnvidia|libdcgm|^/dev/nvidia|^/sys/|^/proc/driver/nvidia")
STARTERS = {"subprocess", "pty", "multiprocessing"}
OS_STARTERS = re.compile(r"^(system|popen|exec\w*|spawn\w*|posix_spawn\w*)$")
LOADERS = {"CDLL", "PyDLL", "cdll", "pydll", "LoadLibrary", "dlopen"}


def findings(source: str) -> Iterator[str]:
    """One word for each thing in reach: binding, setter, fragment, program, process, library."""
    tree = ast.parse(source)
    prose = {id(node) for node in _prose(tree)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from _imports([alias.name for alias in names])
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from _imports([module])
                for alias in names:
                    yield from _text(alias.name)
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield from _text(text)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                yield from _text(f"{_constant(left)}{_constant(right)}")
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield from _text(name)
                if name in LOADERS:
                    yield "library"
                if (
                    isinstance(node, ast.Attribute)
                    and OS_STARTERS.match(name)
                    and _constant(node.value) == "os"
                ):
                    yield "process"


def _imports(names: list[str]) -> Iterator[str]:
    for name in names:
        if name.partition(".")[0] == "pynvml":
            yield "binding"
        if name.partition(".")[0] in STARTERS:
            yield "process"


def _text(text: str) -> Iterator[str]:
    if text == "pynvml":
        yield "binding"
    if CHANGES.search(text):
        yield "setter"
    elif FRAGMENTS.search(text) and not re.search(r"nvml(Device|System)Get", text):
        yield "fragment"
    if TOOLS.match(text):
        yield "program"
    if DRIVERS.search(text):
        yield "library"


def _constant(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return name
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _constant(left) + _constant(right)
    return ""


def _prose(tree: ast.AST) -> Iterator[ast.expr]:
    """Docstrings, and text that is shown to people: in an error, in a print, in a remedy of several words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 2:
            yield node


def package_findings(package: Path) -> dict[str, set[str]]:
    """By file, what its source reaches."""
    found = {
        path.relative_to(package).as_posix(): set(findings(path.read_text()))
        for path in sorted(package.rglob("*.py"))
    }
    return {where: each for where, each in found.items() if each}
