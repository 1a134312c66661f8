"""A log: one line per event on standard error, as text on a terminal and as JSON otherwise.

Rules:
* Loggers are named `csi_bridge.<part>` (`csi_bridge.hub`, `.driver`, `.edge`). Other libraries write from WARNING on.
* INFO is start, stop, link up and down with the reason, and one line per finished call (`log_call`).
* `bind` adds node, driver, method and call id to every line of a call's task.
* A line holds names, codes, sizes and times, but no payload and no secret.
* A line that cannot be written (closed stderr, full disk) is counted and dropped. The process goes on with the same
  exit status (`LineHandler.give_up_unwritten`).
* Control characters in a message are escaped, so that a vendor's text cannot forge a second line or steer a terminal.
* A line that a peer can provoke names the peer (`of_peer`). Each peer gets some lines a minute; the handler counts the
  rest, and adds the count to the last one: `… and 4,311 more` (`common.line_limit`).
"""

import asyncio
import atexit
import contextlib
import copy
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol, TextIO

from common.line_limit import WINDOW_S, LineLimit
from common.status import Status, code_name

ROOT: Final = "csi_bridge"
"""The parent of every logger of the bridge."""

VERBOSE_FROM: Final = 4
"""klog's `-v=4` is "debug level" (kubernetes/community, logging conventions)."""

_LONGEST_MESSAGE_CHARS: Final = 2000
"""A vendor's status message may be as long as a gRPC trailer: too long for a log line."""


class About(Protocol):
    """The subject of a task's log lines. Each line asks again, because some fields become known on the way."""

    def log_fields(self) -> dict[str, Any]:
        """The fields for each line: short names and ids."""


_NO_FIELDS: Final[Mapping[str, Any]] = {}
_about: ContextVar[About | None] = ContextVar("csi_bridge_about", default=None)


def bind(about: About) -> None:
    """Add the fields of `about` to every further line of this task and of the tasks that it starts."""
    _about.set(about)


def of_peer(peer: str) -> dict[str, str]:
    """The `extra` of a line that this peer can provoke.

    Args:
        peer: `edge n1` once the hub has admitted it. Before that its host, without the port.
    """
    return {"peer": peer}


def log_call(
    logger: logging.Logger, status: Status, *, duration_s: float, request_bytes: int, response_bytes: int
) -> None:
    """Write the line of a finished call at INFO. `bind` has given the call's fields when it began."""
    if not logger.isEnabledFor(logging.INFO):
        return
    fields: dict[str, Any] = {
        "code": code_name(status.code),
        "duration_ms": round(duration_s * 1e3, 3),
        "request_bytes": request_bytes,
        "response_bytes": response_bytes,
    }
    if not status.ok:
        fields |= {"origin": str(status.origin), "status": status.message}
    # Like logger.info(), without its search for the caller's file and line, which no line shows.
    record = logging.LogRecord(logger.name, logging.INFO, "", 0, "call finished", None, None)
    record.fields = fields
    logger.handle(record)


def configure(*, log_format: str, level: str, verbosity: int = 0, stream: TextIO | None = None) -> logging.Handler:
    """Send every log line of this process to `stream` (standard error by default). A second call replaces the first.

    Args:
        log_format: `text`, `json`, or `auto`: text on a terminal, JSON otherwise.
        level: the least severe line that is written: `debug`, `info`, `warning`, `error`.
        verbosity: klog's; from `VERBOSE_FROM` on it lowers `level` to `debug`.
        stream: the output.

    Returns:
        The handler, whose `lost_lines` counts the lines that could not be written.
    """
    stream = sys.stderr if stream is None else stream
    as_text = log_format == "text" or (log_format == "auto" and _is_terminal(stream))
    handler = LineHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, LineHandler)]:
        root.removeHandler(old)
        atexit.unregister(old.give_up_unwritten)
    root.addHandler(handler)
    atexit.register(handler.give_up_unwritten)
    logging.getLogger(ROOT).setLevel(logging.DEBUG if verbosity >= VERBOSE_FROM else level.upper())
    _collect_less()
    return handler


def _collect_less() -> None:
    """Switch off facts that no line shows: that halves a record's cost (Python's logging how-to, "Optimization")."""
    logging._srcfile = None  # noqa: SLF001  # the documented switch
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    if hasattr(logging, "logAsyncioTasks"):  # from Python 3.12 on
        logging.logAsyncioTasks = False


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes log lines to a stream; a stream that fails costs lines, never the process.

    Attributes:
        lost_lines: how many lines could not be written.
    """

    def __init__(self, stream: TextIO | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self.lost_lines = 0
        self._clock = clock
        self._limit: LineLimit[logging.LogRecord] = LineLimit()
        self._awaits_counts = False
        self._counts_due = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, and flush it. Count it instead if its peer has had its share."""
        # Read here: this is the thread and task of the log call.
        about = _about.get()
        if about is not None:
            record.about = about.log_fields()
        peer = getattr(record, "peer", None)
        now = self._clock()
        if self._limit.holds and now >= self._counts_due:
            self.write_counts()
        if peer is None or self._limit.admits(peer, record.msg, record, now):
            super().emit(record)
        elif not self._awaits_counts:
            self._write_counts_later(now)

    def write_counts(self) -> None:
        """Write the last line of each peer that had its share, with the number of lines that were left out."""
        self.acquire()  # which a caller in `emit` holds already; it is reentrant
        try:
            self._awaits_counts = False
            for last, more in self._limit.take_held():
                line = copy.copy(last)
                line.msg, line.args = last.getMessage() + (f" … and {more:,} more" if more else ""), ()
                super().emit(line)
        finally:
            self.release()

    def _write_counts_later(self, now: float) -> None:
        self._awaits_counts, self._counts_due = True, now + WINDOW_S
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread: the next line brings the counts
            asyncio.get_running_loop().call_later(WINDOW_S, self.write_counts)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802  # logging's signature
        """Count the lost line. The base class would print a traceback to the failed stream."""
        self.lost_lines += 1

    def give_up_unwritten(self) -> None:
        """Drop the stream's buffered text if it cannot be written.

        Python flushes standard error at exit, and ends with status 120 if that fails. As Python's documentation advises
        for a broken pipe (`signal`, "Note on SIGPIPE"), the null device takes the text.
        """
        try:
            self.write_counts()
            self.stream.flush()
        except OSError:
            with open(os.devnull, "w") as null, contextlib.suppress(OSError):  # noqa: PTH123  # it may be no file
                os.dup2(null.fileno(), self.stream.fileno())
        except (AttributeError, ValueError):  # there is no stream, or it is closed
            pass


class JsonFormatter(logging.Formatter):
    """Formats a line as a JSON object: `ts`, `level`, `logger`, `msg`, the bound fields, the line's own, `exc`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, Any] = {
            "ts": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _shortened(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            line["exc"] = self.formatException(record.exc_info)
        return _escaped_in_json(_encode_json(line))


class TextFormatter(logging.Formatter):
    """Formats a line as `2026-11-21T09:12:03.004Z INFO  hub: message  node=n1 driver=d`; a traceback follows."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        name = record.name.removeprefix(f"{ROOT}.")
        head = f"{_timestamp(record.created)} {record.levelname:<7} {name}: {_printable(record.getMessage())}"
        fields = " ".join(f"{key}={_quoted(str(value))}" for key, value in _fields(record).items())
        line = f"{head}  {fields}" if fields else head
        if not record.exc_info:
            return line
        return "\n".join([line, *map(_escaped, self.formatException(record.exc_info).split("\n"))])


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields after the message: the bound ones, then the line's own."""
    fields = {**getattr(record, "about", _NO_FIELDS), **getattr(record, "fields", _NO_FIELDS)}
    return {name: _shortened(value) if isinstance(value, str) else value for name, value in fields.items()}


def _timestamp(created: float) -> str:
    seconds = int(created)
    return f"{_day_and_time(seconds)}.{int((created - seconds) * 1000):03d}Z"


@functools.lru_cache(maxsize=8)
def _day_and_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE_CHARS else f"{text[:_LONGEST_MESSAGE_CHARS]}…"


def _printable(text: str) -> str:
    return _escaped(_shortened(text))


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _escaped_in_json(text: str) -> str:
    """The JSON text with escapes for characters that could steer a terminal, of which JSON allows some (U+009B)."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable()) if not text or not _plain(text) else text


def _plain(text: str) -> bool:
    return text.isprintable() and not any(char in text for char in ' "=')
