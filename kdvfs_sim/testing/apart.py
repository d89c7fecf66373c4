"""A plug-in tried in a process of its own: what it does to that process is its verdict, and never ours.

It may print, leave by any exception or by ``os._exit``, or crash.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final, TypeAlias

from kdvfs_sim.core.errors import InvariantError, KdvfsError, PluginError, UsageError
from kdvfs_sim.core.objects import words
from kdvfs_sim.core.processes import end_with_parent
from kdvfs_sim.testing.law import Kind, laws_of
from kdvfs_sim.testing.plugins import kinds_of, load, made, setup_lines
from kdvfs_sim.testing.run import EXAMPLES, Outcome, Verdict, report, run_law

_END_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A verdict in plain words, as it comes from the other process.

    ``n_raised``: cases in which the plug-in raised, and that were not judged therefore. ``ended``: it ended
    that process. ``report``: for people.
    """

    kind: Kind
    law: str
    says: str
    outcome: Outcome
    n_judged: int
    n_raised: int
    time_s: float
    found: str
    reason: str
    code: str
    report: str
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    plugin: str
    kind: str | None
    only: tuple[str, ...]
    known: Mapping[str, str]
    n_examples: int
    seed: int
    done: frozenset[tuple[Kind, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class _Stage:
    """What is about to be done with the plug-in: words, or a law of a kind."""

    doing: str
    kind: Kind | None = None


_Message: TypeAlias = _Stage | Tried | KdvfsError | None  # None: that was all


def check_apart(
    plugin: str,
    *,
    kind: str | None = None,
    only: Sequence[str] = (),
    known: Mapping[str, str] | None = None,
    n_examples: int = EXAMPLES,
    seed: int = 0,
) -> Iterator[Tried]:
    """The verdicts on the plug-in that ``module:Object`` or ``file.py:Object`` names.

    Where it ends its process, the law that was being tried is broken, and the others are tried in a new one.
    Its stdout is stderr. Raises UsageError for names that are none, PluginError where nothing can be tried.
    """
    request = _Request(
        plugin=plugin, kind=kind, only=tuple(only), known=dict(known or {}), n_examples=n_examples, seed=seed
    )
    ended = True
    while ended:
        ended = False
        for tried in _one_process(request):
            request = replace(request, done=request.done | {(tried.kind, tried.law)})
            ended = tried.ended
            yield tried


def _one_process(request: _Request) -> Iterator[Tried]:
    """Verdicts up to the first law in which the plug-in ends the process, that one included."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_try, args=(sender, request))
    process.start()
    sender.close()
    stage, since = _Stage("imported"), time.perf_counter()
    try:
        while True:
            try:
                receiver.poll(None)  # which Ctrl-C ends, unlike a read (see let_interrupts_in)
                message: _Message = receiver.recv()
            except (EOFError, OSError):
                yield _blamed(request, stage, _ending(process), time.perf_counter() - since)
                return
            if message is None:
                return
            if isinstance(message, KdvfsError):
                raise message
            if isinstance(message, Tried):
                yield message
            else:
                stage, since = message, time.perf_counter()
    finally:
        receiver.close()
        _end(process)


def _blamed(request: _Request, stage: _Stage, how: str, time_s: float) -> Tried:
    """The verdict on a plug-in that ended its process. Raises PluginError outside of a law."""
    if stage.kind is None:
        raise PluginError(f"{request.plugin}: {how} while it was {stage.doing}")
    reason = request.known.get(stage.doing, "")
    verdict = Verdict(
        law=next(law for law in laws_of(stage.kind) if law.name == stage.doing),
        outcome="known" if reason else "broken",
        n_judged=0,
        n_examples=request.n_examples,
        seed=request.seed,
        time_s=time_s,
        found=how,
        reason=reason,
    )
    return replace(_tried(stage.kind, verdict, []), ended=True)


def _ending(process: SpawnProcess) -> str:
    process.join(_END_S)
    code = process.exitcode
    if code is None:
        return "it no longer answers"
    if code < 0:
        return f"its process died of {signal.Signals(-code).name} (KDVFS_DEBUG=1 shows where)"
    return f"it ended its process (exit code {code})"


def _end(process: SpawnProcess) -> None:
    for end in (process.terminate, process.kill):
        if process.is_alive():
            end()
            process.join(_END_S)


def _tried(kind: Kind, verdict: Verdict, setup: Sequence[str]) -> Tried:
    return Tried(
        kind=kind,
        law=verdict.law.name,
        says=verdict.law.says,
        outcome=verdict.outcome,
        n_judged=verdict.n_judged,
        n_raised=verdict.n_raised,
        time_s=verdict.time_s,
        found=verdict.found,
        reason=verdict.reason,
        code=verdict.code(setup),
        report=report(verdict, setup=setup),
    )


# -- in the other process ------------------------------------------------------------------------------


def _try(sender: Connection, request: _Request) -> None:
    end_with_parent()
    _stdout_to_stderr()
    with suppress(BrokenPipeError):  # nobody listens any more
        try:
            for message in _messages(request):
                sender.send(message)
            sender.send(None)
        except KdvfsError as error:
            sender.send(error)
        except Exception as error:
            if os.environ.get("KDVFS_DEBUG"):
                raise
            text = f"our bug, please report it: {type(error).__name__}: {error} (KDVFS_DEBUG=1 shows where)"
            sender.send(InvariantError(text))


def _messages(request: _Request) -> Iterator[_Stage | Tried]:
    with _looking_at(request.plugin):
        found = load(request.plugin)
        kinds = kinds_of(found, request.kind)
    names = {law.name for kind in kinds for law in laws_of(kind)}
    for name in (*request.only, *request.known):
        if name not in names:
            raise UsageError(f"no law {name!r}; there are: {', '.join(sorted(names))}")
    for kind in kinds:
        yield _Stage("made")
        with _looking_at(request.plugin):
            subject, called = made(found, kind, request.kind is not None)
        for law in laws_of(kind):
            if (kind, law.name) in request.done or (request.only and law.name not in request.only):
                continue
            yield _Stage(law.name, kind)
            verdict = run_law(
                law,
                subject,
                n_examples=request.n_examples,
                seed=request.seed,
                reason=request.known.get(law.name, ""),
            )
            yield _tried(kind, verdict, setup_lines(request.plugin, called))


@contextmanager
def _looking_at(plugin: str) -> Iterator[None]:
    """To look at a plug-in may be enough to make it raise."""
    try:
        yield
    except KdvfsError:
        raise
    except BaseException as error:
        raise PluginError(f"{plugin}: {words(error)}") from error


def _stdout_to_stderr() -> None:
    """Whoever prints here prints to stderr, C libraries too."""
    try:
        os.dup2(2, 1)
    except OSError:  # the caller closed stderr
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = sys.stderr
    if os.environ.get("KDVFS_DEBUG"):
        faulthandler.enable()
