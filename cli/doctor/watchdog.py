"""The check of the machine's watchdog, which `--fence=on` needs. It does not open the device: that would start it."""

import os
from contextlib import suppress
from pathlib import Path

from cli.doctor.finding import Finding, ok, warning, wrong
from edge.fencing.watchdog import LEAST_S


def check_watchdog(*, proc: Path = Path("/proc"), devices: Path = Path("/sys/class/watchdog")) -> Finding:
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):
            name = (process / "comm").read_text().strip()
            held = any(os.readlink(file).startswith("/dev/watchdog") for file in (process / "fd").iterdir())  # noqa: PTH115
            if held and name != "csi-bridge":
                do = "for systemd, take RuntimeWatchdogSec= out of system.conf; stop any other program that pets it"
                return wrong(f"process {process.name} {name!a} holds the watchdog", do)
    times = []
    for file in devices.glob("*/timeout"):
        with suppress(OSError, ValueError):
            times.append(int(file.read_text()))
    if times and max(times) < LEAST_S:
        return wrong(f"the watchdog's time is {max(times)} s", f"set it to {LEAST_S} s or more: wdctl --settimeout")
    if not times:
        return warning("the kernel shows no watchdog in /sys/class/watchdog", "load a driver of the machine's watchdog")
    return ok(f"the watchdog's time is {max(times)} s, and no other process holds it")
