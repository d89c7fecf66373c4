"""A run that is made to end in every way: started by tests as ``python victim.py FOLDER MODE``."""

from __future__ import annotations

import os
import random
import sys
import time

from kdvfs_hw.devices import open_device
from kdvfs_hw.guardian import guarded_clocks

from kdvfs_sim.core.clocks import AUTO, Clocks


class WorkloadError(Exception):
    pass


def main(folder: str, mode: str) -> None:
    rng = random.Random(os.getpid())
    lease_s = 1.0 if mode == "hang" else 30.0
    with (
        open_device(f"emulated:{folder}") as opened,
        guarded_clocks(opened, allowed=True, lease_s=lease_s) as control,
    ):
        say("armed")
        control.request_clocks(Clocks(1000, 1000))
        time.sleep(0.03)
        say("locked")
        if mode == "workload":
            raise WorkloadError("in the workload")
        if mode == "cleanup":
            try:
                raise WorkloadError("in the workload")
            finally:
                raise WorkloadError("in clean-up")
        if mode == "exit":
            os._exit(3)
        if mode == "fork" and not os.fork():
            time.sleep(20)  # holds the line to the guardian open when its parent is gone
            os._exit(0)
        if mode == "hang":
            time.sleep(4)
            say("awake")
            control.request_clocks(Clocks(600, AUTO))
        while mode != "normal":
            control.request_clocks(Clocks(rng.choice((400, 600, 800, 1200, 1400)), rng.choice((1000, AUTO))))
            time.sleep(rng.random() * 0.004)


def say(word: str) -> None:
    print(word, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
