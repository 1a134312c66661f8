"""A fault: how a method misbehaves on purpose, for tests of whoever calls the driver.

`METHOD=FAULT`, several for one method:

    CreateVolume=delay:25s              the work starts 25 s later, and is done even if the caller is gone by then
    CreateVolume=error:INTERNAL:text    nothing is done; this status is the answer
    CreateVolume=hang                   nothing is done, and there is no answer before the caller cancels
    CreateVolume=crash-after            the process is killed (SIGKILL) after the work, before the answer

Flags last for the process' life. The fault file, one a line, is read at every call, so a test can change it at any
time: what it says of a method replaces what the flags say of it. Write it under another name and rename it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from common.csi.methods import METHODS

_KNOWN = {path.rsplit("/", 1)[1] for path in METHODS}
_FAULT = re.compile(
    r"delay:(?P<delay_s>[0-9.]+)(?P<unit>ms|s|m)|error:(?P<code>[A-Z_]+)(:(?P<text>.*))?|(?P<hang>hang)|(?P<crash>crash-after)"
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with one method: several faults may be, such as a delay and then an error."""

    delay_s: float = 0.0
    error: tuple[grpc.StatusCode, str] | None = None
    hang: bool = False
    crash: bool = False


NO_FAULT = Fault()


def parse_faults(texts: Iterable[str]) -> dict[str, Fault]:
    """Many `METHOD=FAULT`s, added up for each method.

    Raises:
        ValueError: one of them names no method or no fault.
    """
    faults: dict[str, Fault] = {}
    for text in texts:
        method, _, kind = (part.strip() for part in text.partition("="))
        found = _FAULT.fullmatch(kind)
        if method not in _KNOWN or found is None or not hasattr(grpc.StatusCode, found["code"] or "OK"):
            raise ValueError(
                f"{text!r} is no fault: write METHOD= and delay:TIME, error:CODE:text, hang or crash-after"
            )
        faults[method] = replace(faults.get(method, NO_FAULT), **_attributes(found))
    return faults


def _attributes(found: re.Match[str]) -> dict[str, Any]:
    if found["delay_s"]:
        return {"delay_s": float(found["delay_s"]) * _UNITS_S[found["unit"]]}
    if found["code"]:
        return {"error": (grpc.StatusCode[found["code"]], found["text"] or f"injected {found['code']}")}
    return {"hang": bool(found["hang"]), "crash": bool(found["crash"])}


class Faults:
    """The faults in force: the flags', under what the fault file says at this moment."""

    def __init__(self, flags: Iterable[str], file: Path) -> None:
        self._flags = parse_faults(flags)
        self._file = file

    def of(self, method: str) -> Fault:
        text = self._file.read_text() if self._file.exists() else ""
        from_file = parse_faults(line for line in text.splitlines() if line.strip())
        return from_file.get(method) or self._flags.get(method, NO_FAULT)
