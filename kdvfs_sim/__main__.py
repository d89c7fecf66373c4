"""``python -m kdvfs_sim`` is the ``kdvfs`` command."""

from kdvfs_sim.cli import main

if __name__ == "__main__":
    main()
