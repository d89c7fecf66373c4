"""Calls across the C boundary: arguments, errors and signals come through."""

from __future__ import annotations

import ctypes as c
import signal
from typing import Any

import pynvml
import pytest
from kdvfs_hw.emulator import structs
from kdvfs_hw.emulator.cabi import c_function, put_text
from toy_gpu import SM_MHZ


def test_arguments_cross_as_c_passes_them() -> None:
    seen: list[Any] = []

    def body(handle: int, number: int, out: int, name: bytes) -> int:
        seen.append((number, name))
        c.c_uint.from_address(out).value = handle % 2**32
        return 7

    function = c_function(body, c.c_int, [c.c_void_p, c.c_uint, c.c_void_p, c.c_char_p])
    target, out = c.c_uint(5), c.c_uint()
    assert function(c.pointer(target), c.c_uint(2**32 - 1), c.byref(out), c.c_char_p(b"GPU-1")) == 7
    assert seen == [(2**32 - 1, b"GPU-1")]
    assert out.value == c.addressof(target) % 2**32


def test_an_error_in_a_callback_comes_out_of_the_call() -> None:
    def body() -> int:
        raise ZeroDivisionError("in the driver")

    with pytest.raises(ZeroDivisionError, match="in the driver"):
        c_function(body, c.c_int, [])()


class TickError(Exception):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_signal_is_lost_in_a_call() -> None:
    """A handler that raises does so inside the callback, before it, or after it: always to be seen."""
    n_raised = 0

    def raise_tick(*_: object) -> None:
        nonlocal n_raised
        n_raised += 1
        raise TickError

    function = c_function(lambda: sum(range(50)) and 0, c.c_int, [])
    n_caught, n_calls = 0, 0
    previous = signal.signal(signal.SIGALRM, raise_tick)
    try:
        while n_raised < 200 and n_calls < 10**6:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + n_calls % 977 * 1e-7)
                while True:
                    n_calls += 1
                    function()
            except (TickError, KeyboardInterrupt):
                n_caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert n_caught == n_raised >= 200


def test_text_that_does_not_fit_is_refused(open_toy: Any) -> None:
    opened = open_toy()
    handle = opened.device.session.handle(opened.device.uuid)
    buffer = c.create_string_buffer(4)
    assert pynvml.nvmlLib.nvmlDeviceGetName(handle, buffer, c.c_uint(4)) == structs.INSUFFICIENT_SIZE
    put_text(c.addressof(buffer), 4, "abc")
    assert buffer.value == b"abc"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nvmlDeviceGetName", [None, None, c.c_uint(96)]),
        ("nvmlDeviceGetClockInfo", [None, c.c_uint(1), None]),
        ("nvmlDeviceSetGpuLockedClocks", [None, c.c_uint(1000), c.c_uint(1000)]),
    ],
)
def test_a_null_handle_or_pointer_is_an_invalid_argument(
    open_toy: Any, name: str, arguments: list[Any]
) -> None:
    opened = open_toy()
    function = getattr(pynvml.nvmlLib, name)
    assert function(*arguments) == structs.INVALID_ARGUMENT
    if arguments[-1] is None:
        arguments[0] = opened.device.session.handle(opened.device.uuid)
        assert function(*arguments) == structs.INVALID_ARGUMENT


def test_the_driver_checks_its_arguments(open_toy: Any) -> None:
    opened = open_toy()
    handle = opened.device.session.handle(opened.device.uuid)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, 1200, 1000)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, 0, 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetClockInfo(handle, 3)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, 1234)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-nobody")
    assert pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, 2000) == sorted(SM_MHZ, reverse=True)
    reading = structs.Temperature(version=1)
    assert (
        pynvml.nvmlLib.nvmlDeviceGetTemperatureV(handle, c.byref(reading))
        == structs.ARGUMENT_VERSION_MISMATCH
    )


def test_before_init_and_after_shutdown_nothing_answers(open_toy: Any) -> None:
    opened = open_toy()
    handle = opened.device.session.handle(opened.device.uuid)
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetName(handle)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetName(handle) == "Toy GPU (emulated)"
