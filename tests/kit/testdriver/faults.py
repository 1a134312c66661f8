"""A fault: how a method misbehaves on purpose, for tests of whoever calls the driver.

`METHOD=FAULT`, several for one method, `*` for every method:

    CreateVolume=delay:25s              the work starts 25 s later, and is done even if the caller is gone by then
    CreateVolume=error:INTERNAL:text    nothing is done; this status is the answer
    CreateVolume=hang                   nothing is done, and there is no answer before the caller cancels
    CreateVolume=crash-before           the process is killed (SIGKILL) before anything is done
    CreateVolume=crash-after            … after the work, before the answer; of a stream: after its first message
    CreateVolume=non-idempotent         each call makes a new object, whatever its name
    CreateVolume=off                    no fault (in the fault file: lifts what a flag says)

Flags last for the process' life. The fault file, one a line, is read at every call, so a test can change it at any
time: what it says of a method replaces what the flags say of it. Write it under another name and rename it.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from common.csi.methods import METHODS

log = logging.getLogger("dirdriver.faults")

EVERY_METHOD = "*"
"""Stands for each method that has no fault of its own."""

_DELAY = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_KNOWN = {path.rsplit("/", 1)[1]: method for path, method in METHODS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with one method. Several may be: a delay, then an error.

    Attributes:
        delay_s: seconds between the call and the work.
        error: code and message to answer instead of working.
        hang: never answer.
        crash: `before` or `after` the work, or empty.
        forget: whether the method forgets that it saw a name before.
    """

    delay_s: float = 0.0
    error: tuple[grpc.StatusCode, str] | None = None
    hang: bool = False
    crash: str = ""
    forget: bool = False


NO_FAULT = Fault()


def parse_fault(text: str) -> tuple[str, dict[str, Any]]:
    """One `METHOD=FAULT`.

    Returns:
        The method and the attributes of `Fault` that it sets; none for `off`.

    Raises:
        ValueError: it names no method or no fault.
    """
    method, equals, kind = (part.strip() for part in text.partition("="))
    if not equals:
        raise ValueError(f"{text!r} is no fault: write METHOD=FAULT, e.g. CreateVolume=delay:25s")
    if method != EVERY_METHOD and method not in _KNOWN:
        raise ValueError(f"{method!r} is no CSI method; write e.g. CreateVolume, or * for every method")
    name, _, rest = kind.partition(":")
    match name:
        case "delay":
            return method, {"delay_s": _seconds(rest)}
        case "error":
            return method, {"error": _status(rest)}
        case "non-idempotent" if not rest:
            _require_name_field(method)
            return method, {"forget": True}
        case "crash-before" | "crash-after" if not rest:
            return method, {"crash": name.removeprefix("crash-")}
        case "hang" if not rest:
            return method, {"hang": True}
        case "off" if not rest:
            return method, {}
    raise ValueError(
        f"{kind!r} is no fault: use delay:TIME, error:CODE:text, hang, crash-before, crash-after, non-idempotent or off"
    )


def _seconds(text: str) -> float:
    found = _DELAY.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no delay: write e.g. 25s, 300ms or 2m")
    return float(found[1]) * _UNITS_S[found[2]]


def _status(text: str) -> tuple[grpc.StatusCode, str]:
    name, _, message = text.partition(":")
    code = grpc.StatusCode.__members__.get(name)
    if code is None or code is grpc.StatusCode.OK:
        raise ValueError(f"{name!r} is no gRPC error code; write e.g. error:INTERNAL:text")
    return code, message or f"injected {name}"


def _require_name_field(method: str) -> None:
    if method == EVERY_METHOD or "name" not in _KNOWN[method].request.DESCRIPTOR.fields_by_name:
        raise ValueError(f"{method} cannot be non-idempotent: only the methods that create something by name can")


def parse_faults(texts: Iterable[str]) -> dict[str, Fault]:
    """Many `METHOD=FAULT`s, added up for each method.

    Raises:
        ValueError: one of them is none.
    """
    faults: dict[str, Fault] = {}
    for text in texts:
        method, attributes = parse_fault(text)
        faults[method] = replace(faults.get(method, NO_FAULT), **attributes) if attributes else NO_FAULT
    return faults


class Faults:
    """The faults in force: the flags', under what the fault file says at this moment."""

    def __init__(self, flags: Iterable[str], file: Path) -> None:
        self._flags = parse_faults(flags)
        self._file = file
        self._text = ""
        self._from_file: Mapping[str, Fault] = {}

    def of(self, method: str) -> Fault:
        """The fault of a method, e.g. of `CreateVolume`. A file that does not parse leaves the last one in force."""
        self._read()
        for faults in (self._from_file, self._flags):
            for key in (method, EVERY_METHOD):
                if key in faults:
                    return faults[key]
        return NO_FAULT

    def _read(self) -> None:
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            text = ""
        except OSError as error:
            log.warning("cannot read the fault file: %s", error)
            return
        if text == self._text:
            return
        self._text = text
        lines = [line.strip() for line in text.splitlines()]
        try:
            self._from_file = parse_faults(line for line in lines if line and not line.startswith("#"))
        except ValueError as error:
            log.warning("the fault file %s is ignored: %s", self._file, error)
