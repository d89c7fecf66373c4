"""``python -m kdvfs_hw``: the verbs of ``kdvfs hw`` where the package is not installed, as in a bundle."""

from __future__ import annotations

from typing import Any

from kdvfs_sim.cli import main

if __name__ == "__main__":

    def _app() -> Any:
        from kdvfs_hw.cli import app

        return app

    main(app=_app)
