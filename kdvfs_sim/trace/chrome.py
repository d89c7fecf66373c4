"""Chrome trace event JSON, the container of Kineto recordings, read block by block.

A recording can be many gigabytes, of which a replay needs a few per cent. So the event array is never
held as a whole: the file is read in blocks, each cut between two events and decoded on its own. A place to
cut is looked for by its bytes (``},{``), which may also occur inside an event; it is right exactly if the
text before it decodes as a complete array, so decoding is the proof.

Text that strict JSON forbids but profilers write (``NaN``, ``inf``, ``N/A``, raw control characters, bytes
that are not UTF-8) makes a block fail; that block alone is repaired and decoded again, and the repairs are
counted.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from kdvfs_sim.core.errors import TraceFormatError

_BLOCK_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 1 << 24  # what metadata before the events may take
_MAX_CUTS: Final = 64
_EVENTS_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN_EVENTS: Final = re.compile(rb"\}\s*,\s*\{")
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
# a string (perhaps cut off by the end of the text), or a bare word
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[^\s\[\]{},:"]+', re.DOTALL)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
# group 1 is right as it is; anything else that matches is not
_ESCAPE: Final = re.compile(rb'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
_SURROGATE: Final = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_NOT_A_NUMBER: Final = re.compile(
    rb"[+-]?(nan(\([a-z0-9]*\))?|inf(inity)?|n/a|none|undefined)", re.IGNORECASE
)
# what msgspec raises for text that is not JSON; on bad UTF-8 it depends on the version
SYNTAX_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError)


class Event(msgspec.Struct, gc=False):
    """One trace event. Types are not checked: a recording may put anything into a field nobody needs."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: msgspec.Raw = msgspec.Raw()


_events = msgspec.json.Decoder(list[Event])
_metadata = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ChromeTrace:
    """The events of one file, in file order; iterate once.

    ``metadata`` (top-level keys other than the events, undecoded) and ``repairs`` (what had to be made
    valid JSON, with counts) are complete after iterating. Iterating raises TraceFormatError for a truncated
    or damaged file, saying how much of it was readable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, msgspec.Raw] = {}
        self.repairs: Counter[str] = Counter()
        self.n_events = 0
        self._consumed = 0  # bytes of text before the buffer
        self._buffer = b""

    def __iter__(self) -> Iterator[Event]:
        for events in self._blocks():
            self.n_events += len(events)
            yield from events

    def _blocks(self) -> Iterator[list[Event]]:
        blocks = self._read()
        is_object = self._skip_head(blocks)
        at_end = False
        while not at_end:
            block = next(blocks, b"")
            self._buffer += block
            at_end = not block
            for cut in (len(self._buffer),) if at_end else _cuts(self._buffer):
                decoded = self._decode(self._buffer[:cut], b"" if at_end else b"]")
                if decoded is None:
                    continue
                events, after = decoded
                if after is not None:
                    tail = after + self._buffer[cut:]
                    self._consume(len(self._buffer))
                    yield events
                    self._read_tail(tail + b"".join(blocks), is_object)
                    return
                self._consume(self._buffer.index(b",", cut) + 1)
                yield events
                break
        raise self._truncated("the list of events is not closed")

    def _read(self) -> Iterator[bytes]:
        """The text in blocks, decompressed if the first bytes say gzip, whatever the name says."""
        try:
            yield from read_text(self.path)
        except EOFError as error:
            raise self._truncated(str(error)) from None
        except zlib.error as error:
            raise TraceFormatError(
                str(self.path), f"damaged gzip data ({error}) after {self._readable()}"
            ) from None

    def _consume(self, n_bytes: int) -> None:
        self._consumed += n_bytes
        self._buffer = self._buffer[n_bytes:]

    def _skip_head(self, blocks: Iterator[bytes]) -> bool:
        """Read up to the first event. True if the events are a member of an object, False if the file is
        a bare array."""
        searched = 0
        for block in blocks:
            self._buffer += block
            text = self._buffer.removeprefix(_BOM).lstrip()
            start = len(self._buffer) - len(text)
            if text.startswith(b"["):
                self._consume(start + 1)
                return False
            for match in _EVENTS_KEY.finditer(self._buffer, searched):
                try:
                    self._add_metadata(self._buffer[start : match.end()] + b"]}")
                except (*SYNTAX_ERRORS, RecursionError):
                    continue  # these bytes stand inside something else
                self._consume(match.end())
                return True
            if len(self._buffer) > _HEAD_BYTES:
                break
            searched = max(0, len(self._buffer) - 64)
        raise self._truncated("no list of trace events begins in it")

    def _read_tail(self, tail: bytes, is_object: bool) -> None:
        """What follows the events: nothing for a bare array, else more metadata and a closing brace."""
        tail = tail.strip()
        if is_object:
            try:
                self._add_metadata(b'{"":0' + tail if tail.startswith(b",") else b"{" + tail)
            except (*SYNTAX_ERRORS, RecursionError) as error:
                raise self._truncated(f"the metadata after the events is incomplete ({error})") from None
        elif tail:
            raise TraceFormatError(str(self.path), f"{len(tail)} bytes follow the closed list of events")

    def _add_metadata(self, text: bytes) -> None:
        try:
            metadata = _metadata.decode(text)
        except SYNTAX_ERRORS:
            metadata = _metadata.decode(repair(text, self.repairs))
        # a copy each: a Raw keeps all the text it was decoded from alive
        self.metadata |= {
            key: value.copy() for key, value in metadata.items() if key not in ("", "traceEvents")
        }

    def _decode(self, text: bytes, close: bytes) -> tuple[list[Event], bytes | None] | None:
        """The events in ``text``, a piece of the list after its opening bracket, and what follows the list.

        ``close`` is put after the piece: a bracket for one cut between two events, nothing for the last one.
        What follows is None if the list is not closed in the piece itself. The answer is None if the piece
        ends inside an event. Raises TraceFormatError if it is not a list of events.
        """
        text = b"[" + text + close
        repairs: Counter[str] = Counter()
        try:
            try:
                return _decode_list(text, close)
            except SYNTAX_ERRORS as error:
                strict_error = error
            decoded = _decode_list(repair(text, repairs), close)
        except msgspec.ValidationError as error:
            raise TraceFormatError(str(self.path), f"the list does not hold trace events: {error}") from None
        except SYNTAX_ERRORS:
            raise TraceFormatError(str(self.path), _located(strict_error, self._consumed)) from None
        except RecursionError:
            raise TraceFormatError(str(self.path), "an event is nested too deeply") from None
        if decoded is not None:
            self.repairs += repairs
        return decoded

    def _truncated(self, why: str) -> TraceFormatError:
        return TraceFormatError(str(self.path), f"truncated: {why} after {self._readable()}")

    def _readable(self) -> str:
        n_events = self.n_events
        for cut in _cuts(self._buffer):
            with suppress(TraceFormatError):  # the buffer may still hold the head, or be damaged itself
                if decoded := self._decode(self._buffer[:cut], b"]"):
                    n_events += len(decoded[0])
                    break
        return f"{n_events} complete events, {self._consumed + len(self._buffer)} bytes of text"


def _decode_list(text: bytes, close: bytes) -> tuple[list[Event], bytes | None] | None:
    try:
        return _events.decode(text), None if close else b""
    except msgspec.DecodeError as error:
        if str(error) == "Input data was truncated":
            return None
        if not (match := _TRAILING.search(str(error))):
            raise
        end = int(match[1]) - 1  # it counts the offending byte
        return _events.decode(text[:end]), text[end:].removesuffix(close)


def _located(error: Exception, consumed: int) -> str:
    """The decoder's message with the place in the file's text; the decoder counts from the bracket before
    what was not consumed."""
    what, _, byte = str(error).removesuffix(")").partition(" (byte ")
    return (
        f"{what} at byte {consumed + int(byte) - 1} of the text" if byte else f"{what} after byte {consumed}"
    )


def _cuts(text: bytes) -> Iterator[int]:
    """Ends of likely last events, the last first."""
    window = 1 << 12
    while True:
        found = [match.start() + 1 for match in _BETWEEN_EVENTS.finditer(text, max(0, len(text) - window))]
        if found or window >= len(text):
            yield from reversed(found[-_MAX_CUTS:])
            return
        window *= 8


def read_text(path: Path) -> Iterator[bytes]:
    """The file in blocks of a megabyte, decompressed if its first bytes say gzip, whatever its name.

    Raises EOFError if the compressed data ends early, ``zlib.error`` if it is damaged.
    """
    with path.open("rb") as file:
        is_gzip = file.read(2) == _GZIP
        file.seek(0)
        block = file.read(_BLOCK_BYTES)
        if not is_gzip:
            while block:
                yield block
                block = file.read(_BLOCK_BYTES)
            return
        member = zlib.decompressobj(wbits=31)
        while block:
            text = member.decompress(block, _BLOCK_BYTES)
            if text:
                yield text
            block = member.unconsumed_tail
            if member.eof and (block := member.unused_data.lstrip(b"\0")):
                member = zlib.decompressobj(wbits=31)  # another member follows
            block = block or file.read(_BLOCK_BYTES)
        if not member.eof:
            raise EOFError(f"the gzip data ends early, at byte {file.tell()} of the file")


def is_chrome_trace(path: Path) -> bool:
    """Whether the file begins like an object with trace events, or like a bare array of them."""
    text = b""
    try:
        for block in read_text(path):
            text += block
            begin = text.removeprefix(_BOM).lstrip()
            if begin.startswith(b"["):
                return begin[1:].lstrip().startswith(b"{") and b'"ph"' in begin
            if not begin.startswith(b"{") or len(text) > _HEAD_BYTES:
                return False
            if _EVENTS_KEY.search(text):
                return True
    except (EOFError, zlib.error):
        return bool(_EVENTS_KEY.search(text))
    return False


def repair(text: bytes, repairs: Counter[str]) -> bytes:
    """Make valid JSON of what profilers write against its rules; counts each change in ``repairs``.

    What is not recognised stays, for the strict decoder to refuse. A string cut off at the end of ``text``
    stays cut off.
    """

    def fixed(match: re.Match[bytes]) -> bytes:
        token = match[0]
        if token.startswith(b'"'):
            return _repair_string(token, repairs)
        if _NOT_A_NUMBER.fullmatch(token):
            repairs["values that are not numbers read as null"] += 1
            return b"null"
        return token

    return _TOKEN.sub(fixed, text)


def _repair_string(text: bytes, repairs: Counter[str]) -> bytes:
    if _CONTROL.search(text):
        repairs["raw control characters escaped"] += 1
        text = _CONTROL.sub(lambda match: b"\\u%04x" % match[0][0], text)
    for pattern, instead in ((_ESCAPE, b"\\\\"), (_SURROGATE, b"\\ufffd")):
        fixed = pattern.sub(lambda match, instead=instead: match[1] or instead, text)  # type: ignore[misc]
        if fixed != text:
            repairs["invalid escapes replaced"] += 1
            text = fixed
    try:
        text.decode()
    except UnicodeDecodeError:
        repairs["invalid UTF-8 replaced"] += 1
        text = text.decode(errors="replace").encode()
    return text
