"""A log: one line per event on standard error, as text on a terminal and as JSON otherwise.

Rules:
* Loggers are named `csi_bridge.<part>` (`csi_bridge.hub`, `.driver`, `.edge`). Other libraries write from WARNING on.
* INFO is start, stop, link up and down with the reason, and one line per finished call (`calls`).
* A line holds names, codes, sizes and times, but no payload and no secret.
* A thread writes the lines (`common.observe.line_writer`), and formats those of finished calls. Nobody waits for it. At
  the end of the process `logging` flushes the handler: only a killed process loses lines, of 50 ms.
* A line that cannot be written (closed stderr, full disk, a pipe that nobody reads) is counted and dropped. The process
  goes on with the same exit status.
* Control characters in a message are escaped, so that a vendor's text cannot forge a second line or steer a terminal.
* A line that a peer can provoke names the peer (`of_peer`, `bind_peer`). Each peer gets some lines a minute; the
  handler counts the rest, and adds the count to the last one: `… and 4,311 more` (`common.observe.line_limit`).
"""

import asyncio
import contextlib
import copy
import functools
import json
import logging
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, TextIO

from common.observe.line_limit import WINDOW_S, LineLimit
from common.observe.line_writer import LineWriter
from common.status import Status, code_name
from common.wording import shorten

ROOT: Final = "csi_bridge"  # the parent of every logger of the bridge
VERBOSE_FROM: Final = 4  # klog's `-v=4` is "debug level" (kubernetes/community, logging conventions)
LONGEST_MESSAGE_CHARS: Final = 2000  # a vendor's status message may be as long as a gRPC trailer

Fields = Mapping[str, str | int | float]  # the fields of a line, after its message

_NO_FIELDS: Final[dict[str, str | int | float]] = {}
_peer: ContextVar[str | None] = ContextVar("csi_bridge_peer", default=None)


def of_peer(peer: str) -> dict[str, str]:
    """The `extra` of a line that this peer can provoke: `edge n1` once it is admitted, before that its host."""
    return {"peer": peer}


def bind_peer(peer: str) -> None:
    """Take this peer, named as for `of_peer`, for the one that provokes each further line of this task.

    Lines of the tasks that it starts count, too. A line with a peer of its own keeps that.
    """
    _peer.set(peer)


# The logger's name, the end since the epoch and the duration in seconds, node, driver, method, call id, status, and the
# sizes of the request and of all answers in bytes.
FinishedCall = tuple[str, float, float, str, str, str, str, Status, int, int]

# Writes the lines of finished calls at INFO, past `logging`: its thread makes all of the line. None without them.
calls: "LineWriter[str | FinishedCall] | None" = None

_lines: "LineHandler | None" = None  # the output of this process: see `configure`


def configure(*, log_format: str, level: str, verbosity: int = 0, stream: TextIO | None = None) -> "LineHandler":
    """Send every log line of this process to `stream` (standard error by default). A second call replaces the first.

    The format is `text`, `json`, or `auto`: text on a terminal, JSON otherwise. The level is the least severe line that
    is written; klog's verbosity lowers it to `debug` from `VERBOSE_FROM` on.
    """
    stream = sys.stderr if stream is None else stream
    as_text = log_format == "text" or (log_format == "auto" and _is_terminal(stream))
    global _lines, calls  # noqa: PLW0603  # like logging's own root
    root = logging.getLogger()
    if _lines is not None:
        root.removeHandler(_lines)
        _lines.close()
    _lines = LineHandler(stream, TextLines() if as_text else JsonLines())
    root.addHandler(_lines)
    logging.getLogger(ROOT).setLevel(logging.DEBUG if verbosity >= VERBOSE_FROM else level.upper())
    calls = _lines.writer if logging.getLogger(ROOT).isEnabledFor(logging.INFO) else None
    _collect_less()
    return _lines


def _collect_less() -> None:
    # No line shows these. That halves a record's cost (Python's logging how-to, "Optimization").
    logging._srcfile = None  # noqa: SLF001  # the documented switch
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    if hasattr(logging, "logAsyncioTasks"):  # from Python 3.12 on
        logging.logAsyncioTasks = False


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class LineHandler(logging.Handler):
    """Hands log lines to a thread that writes them (`writer`). A stream that fails costs lines, never the process."""

    def __init__(self, stream: TextIO | None, form: "JsonLines | TextLines") -> None:
        super().__init__()
        self._form = form
        self.writer = LineWriter[str | FinishedCall](stream, self._text_of, self._lost)
        self._head = functools.lru_cache(maxsize=256)(self._head_of_calls)
        self._limit: LineLimit[logging.LogRecord] = LineLimit()
        self._awaits_counts = False
        self._counts_due = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        peer = getattr(record, "peer", None) or _peer.get()
        now = time.monotonic()
        if self._limit.holds and now >= self._counts_due:
            self.write_counts()
        if peer is None or self._limit.admits(peer, record.msg, record, now):
            self._add(record)
        elif not self._awaits_counts:
            self._write_counts_later(now)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        """Write the counts of the lines that were left out, and wait for all lines. Later ones are lost."""
        self.write_counts()
        self.writer.close()
        super().close()

    def write_counts(self) -> None:
        """Write the last line of each peer that had its share, with the number of lines that were left out."""
        self.acquire()  # which a caller in `emit` holds already; it is reentrant
        try:
            self._awaits_counts = False
            for last, more in self._limit.take_held():
                line = copy.copy(last)
                line.msg = last.getMessage() + (f" … and {more:,} more" if more else "")
                line.args = ()
                self._add(line)
        finally:
            self.release()

    def _write_counts_later(self, now: float) -> None:
        self._awaits_counts = True
        self._counts_due = now + WINDOW_S
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread: the next line brings the counts
            asyncio.get_running_loop().call_later(WINDOW_S, self.write_counts)

    def _add(self, record: logging.LogRecord) -> None:
        # Formatted here, because the record's arguments may change.
        try:
            fields = getattr(record, "fields", _NO_FIELDS)
            text = self._form.line(
                record.created,
                self._form.head(record.levelname, record.name, record.getMessage(), fields),
                traceback=_FORMATTER.formatException(record.exc_info) if record.exc_info else "",
            )
        except Exception:  # noqa: BLE001  # as in logging: a bad line costs itself only
            self.writer.lose()
        else:
            self.writer.add(text)

    def _text_of(self, line: str | FinishedCall) -> str:
        if isinstance(line, str):
            return line
        logger, ended_at, duration_s, node, driver, method, call_id, status, request_bytes, response_bytes = line
        fields: dict[str, str | int | float] = {
            "call_id": call_id,
            "code": code_name(status.code),
            "duration_ms": round(duration_s * 1e3, 3),
            "request_bytes": request_bytes,
            "response_bytes": response_bytes,
        }
        if status.code:
            fields |= {"origin": str(status.origin), "status": status.message}
        return self._form.line(ended_at, self._head(logger, node, driver, method), self._form.more(fields))

    def _head_of_calls(self, logger: str, node: str, driver: str, method: str) -> str:
        fields = {"node": node, "driver": driver, "method": method}
        return self._form.head("INFO", logger, "call finished", {name: it for name, it in fields.items() if it})

    def _lost(self, count: int) -> str:
        head = self._form.head("WARNING", ROOT, f"… and {count:,} more lines were lost", _NO_FIELDS)
        return self._form.line(time.time(), head)


_FORMATTER: Final = logging.Formatter()  # formats tracebacks


class JsonLines:
    """Formats a line as a JSON object: `ts`, `level`, `logger`, `msg`, the line's fields, `exc`."""

    def head(self, level: str, logger: str, message: str, fields: Fields) -> str:
        return self.more({"level": level.lower(), "logger": logger, "msg": message, **fields})

    def more(self, fields: Fields) -> str:
        return "".join(
            f',"{name}":{_text_in_json(value) if isinstance(value, str) else repr(value)}'
            for name, value in fields.items()
        )

    def line(self, at: float, head: str, more: str = "", *, traceback: str = "") -> str:
        told = f',"exc":{_encode_json(traceback)}' if traceback else ""
        return f'{{"ts":"{_timestamp(at)}"{head}{more}{told}}}'


class TextLines:
    """Formats a line as `2026-11-21T09:12:03.004Z INFO  hub: message  node=n1 driver=d`; a traceback follows."""

    def head(self, level: str, logger: str, message: str, fields: Fields) -> str:
        told = " " + self.more(fields) if fields else ""
        return (
            f"{level:<7} {logger.removeprefix(f'{ROOT}.')}: {_escaped(shorten(message, LONGEST_MESSAGE_CHARS))}{told}"
        )

    def more(self, fields: Fields) -> str:
        return "".join(f" {name}={_quoted(str(value))}" for name, value in fields.items())

    def line(self, at: float, head: str, more: str = "", *, traceback: str = "") -> str:
        line = f"{_timestamp(at)} {head}{more}"
        return "\n".join([line, *map(_escaped, traceback.split("\n"))]) if traceback else line


def _timestamp(created: float) -> str:
    seconds = int(created)
    return f"{_day_and_time(seconds)}.{int((created - seconds) * 1000):03d}Z"


@functools.lru_cache(maxsize=8)
def _day_and_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


@functools.lru_cache(maxsize=256)  # most values are those of the lines before
def _text_in_json(text: str) -> str:
    return _encode_json(shorten(text, LONGEST_MESSAGE_CHARS))


def _encode_json(value: object) -> str:
    # With escapes for characters that could steer a terminal, of which JSON allows some (U+009B).
    text = _encoder.encode(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str)


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


@functools.lru_cache(maxsize=256)  # as in JSON
def _quoted(text: str) -> str:
    text = shorten(text, LONGEST_MESSAGE_CHARS)
    is_plain = text and text.isprintable() and not any(char in text for char in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())
