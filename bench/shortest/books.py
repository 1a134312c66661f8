"""The books of a hop: metrics by driver, method and code, and a log line a call, which a thread formats and writes."""

import sys
import threading
import time
from bisect import bisect_left
from collections import deque

_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
_BLOCK_S = 0.05
_LINE = (
    '{"ts":%.3f,"level":"info","msg":"call finished","node":"%s","driver":"%s","method":"%s","call_id":"%s","code":%d,'
    '"duration_ms":%.3f,"request_bytes":%d,"response_bytes":%d}\n'
)
_metrics: dict[tuple[bytes, bytes, int], list[float]] = {}
_lines: deque[tuple[float, list[bytes], int, float, int, int]] = deque()
_news = threading.Event()


def ended(heading: bytes, began: float, code: int, request_bytes: int, answer_bytes: int) -> None:
    """Note the end of a call. Its heading says driver, method, node and id."""
    took_s = time.monotonic() - began
    words = heading.split(b"\n")
    key = words[0], words[1], code
    metric = _metrics.get(key)
    if metric is None:
        metric = _metrics[key] = [0.0] * (len(_BUCKETS_S) + 2)
    metric[0] += took_s
    metric[1 + bisect_left(_BUCKETS_S, took_s)] += 1
    _lines.append((time.time(), words, code, took_s, request_bytes, answer_bytes))
    if not _news.is_set():
        _news.set()


def _write() -> None:
    while _news.wait():
        time.sleep(_BLOCK_S)
        _news.clear()
        block = []
        while _lines:
            at, words, code, took_s, request_bytes, answer_bytes = _lines.popleft()
            driver, method, node, call = map(bytes.decode, words)
            block.append(_LINE % (at, node, driver, method, call, code, took_s * 1000, request_bytes, answer_bytes))
        if block:
            sys.stderr.write("".join(block))
            sys.stderr.flush()


threading.Thread(target=_write, name="log", daemon=True).start()
