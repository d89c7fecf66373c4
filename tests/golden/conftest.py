"""``--record`` writes the golden files anew; the diff is then reviewed like code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "answers"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write the golden files anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, Any], Any]:
    """The recorded answer of this name; with ``--record`` the new answer, written."""

    def recorded(name: str, answer: Any) -> Any:
        path = FOLDER / f"{name}.json"
        if request.config.getoption("--record", default=False):
            FOLDER.mkdir(exist_ok=True)
            path.write_text(json.dumps(answer, indent=1) + "\n")
        if not path.exists():
            pytest.fail(f"{path.name} was never recorded; run pytest tests/golden --record")
        return json.loads(path.read_text())

    return recorded
