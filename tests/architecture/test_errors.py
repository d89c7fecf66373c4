"""Every error survives being rebuilt from its ``args``, as SimPy, copy and pickle do."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from kdvfs_sim.core import errors

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.KdvfsError) and cls.__module__ == errors.__name__
]


def _fields(cls: type[Exception]) -> list[str]:
    if "__init__" not in vars(cls):
        return []
    return [p for p in inspect.signature(cls.__init__).parameters if p != "self"]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_survives_being_rebuilt_from_its_args(cls: type[errors.KdvfsError]) -> None:
    arguments = [f"value of {name}" for name in _fields(cls)] or ["what happened"]
    error = cls(*arguments)
    for twin in (type(error)(*error.args), copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is cls
        assert str(twin) == str(error)
        assert {name: getattr(twin, name) for name in _fields(cls)} == dict(
            zip(_fields(cls), arguments, strict=False)
        )


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_has_an_exit_code_and_one_line(cls: type[errors.KdvfsError]) -> None:
    arguments = [f"value of {name}" for name in _fields(cls)] or ["what happened"]
    assert cls.exit_code in (2, 3, 4, 5, 6, 70)
    assert "\n" not in str(cls(*arguments))
