"""C functions without a compiler: Python bodies behind plain function pointers.

What a caller gets is a function pointer without argument types, exactly as ``CDLL`` hands out. So
integers, enums and pointers cross the C boundary as they do with a real library, and a wrong struct
fails here as it would there.
"""

from __future__ import annotations

import ctypes as c
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kdvfs_hw.emulator import structs as s

Address: TypeAlias = int
_during = threading.local()


class RefusedError(Exception):
    """An NVML return code other than success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Pointer(c._CFuncPtr):  # type: ignore[name-defined, misc]
    """A function pointer whose callback's exceptions come out of the call.

    ctypes prints and swallows an exception raised in a callback: a Ctrl-C would be lost, and a
    fault of the emulator would pass for success.
    """

    _flags_ = c._FUNCFLAG_CDECL  # type: ignore[attr-defined]
    _restype_ = c.c_int

    def __call__(self, *args: Any) -> Any:
        # a signal handler may raise before the callback's body has begun, or after it has ended
        _during.error = KeyboardInterrupt("during a driver call")
        answer = super().__call__(*args)
        error, _during.error = _during.error, None
        if error is not None:
            raise error
        return answer


def c_function(body: Callable[..., int], restype: Any, argtypes: Sequence[Any]) -> Any:
    """A C function with this body, as a pointer that knows nothing of its argument types."""

    def guarded(*args: Any) -> int:
        try:
            answer = body(*args)
        except BaseException as error:
            _during.error = error
            return s.UNKNOWN
        _during.error = None
        return answer

    callback = c.CFUNCTYPE(restype, *argtypes)(guarded)
    pointer = _Pointer(c.cast(callback, c.c_void_p).value)
    pointer.callback = callback  # lives as long as the pointer to it
    return pointer


def there(address: Address | None) -> Address:
    """An address that the caller must have given. Raises RefusedError."""
    if not address:
        raise RefusedError(s.INVALID_ARGUMENT)
    return address


def put(kind: Any, address: Address | None, value: int) -> None:
    """Write one number of a ctypes ``kind``."""
    kind.from_address(there(address)).value = value


def put_text(address: Address | None, length: int, text: str) -> None:
    """Write text and its closing zero into a buffer of ``length`` bytes; RefusedError if it is
    too short."""
    data = text.encode() + b"\0"
    if len(data) > length:
        raise RefusedError(s.INSUFFICIENT_SIZE)
    c.memmove(there(address), data, len(data))


def put_list(values: Sequence[int], n_address: Address | None, address: Address | None) -> None:
    """NVML's two-step lists: too little room answers how much is needed, by RefusedError."""
    n_room = c.c_uint.from_address(there(n_address)).value
    put(c.c_uint, n_address, len(values))
    if values and (n_room < len(values) or not address):
        raise RefusedError(s.INSUFFICIENT_SIZE)
    for i, value in enumerate(values):
        put(c.c_uint, there(address) + i * c.sizeof(c.c_uint), value)
