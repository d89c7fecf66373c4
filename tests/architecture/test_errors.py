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


SAMPLES = {"int": 7, "float": 0.5}


def _arguments(cls: type[Exception]) -> dict[str, object]:
    """A value for each field; an ``__init__`` of a class of ours may be inherited."""
    if not any("__init__" in vars(base) for base in cls.__mro__ if base.__module__ == errors.__name__):
        return {}
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {p.name: SAMPLES.get(p.annotation, f"value of {p.name}") for p in parameters if p.name != "self"}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_survives_being_rebuilt_from_its_args(cls: type[errors.KdvfsError]) -> None:
    arguments = _arguments(cls)
    error = cls(*arguments.values() or ["what happened"])
    for twin in (type(error)(*error.args), copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is cls
        assert str(twin) == str(error)
        assert {name: getattr(twin, name) for name in arguments} == arguments


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_has_an_exit_code_and_one_line(cls: type[errors.KdvfsError]) -> None:
    assert cls.exit_code in (2, 3, 4, 5, 6, 70)
    assert "\n" not in str(cls(*_arguments(cls).values() or ["what happened"]))
