"""The identity cache: a proxy driver's answers about Identity and capabilities, in memory and on disk.

Rules:

* Published answers stay until the proxy driver restarts, because sidecars read them only when they start
  (docs/csi-contract.md#sidecars-read-capabilities-once). A change is stored and logged.
* A report in which the plugin has another name than the driver is ignored, from the hub and from the disk.
* Only the vendor's own bytes are published. If nothing is known yet, `GetPluginInfo` still returns the name (the
  snapshotter exits otherwise), and any other call gets UNAVAILABLE.
"""

import json
import logging
import threading
from dataclasses import replace
from pathlib import Path

from common.csi.csi_pb2 import GetPluginInfoResponse
from common.csi.reports import (
    ESSENTIAL_METHODS,
    GET_PLUGIN_INFO,
    NODE_GET_INFO,
    REPORTED_METHODS,
    Answer,
    DriverReport,
    decode_reports,
    encode_reports,
    plugin_name,
)
from common.errors import CallError, SettingsError
from common.store.state_file import make_state_directory, read_state, write_state

log = logging.getLogger("csi_bridge.driver.cache")

# The methods that the cache answers. NodeGetInfo is not among them: only the node can answer it.
CACHED_METHODS = frozenset(REPORTED_METHODS) - {NODE_GET_INFO}


class IdentityCache:
    """The answers of one driver, in the file `identity-<driver>.json` of the state directory."""

    def __init__(self, state_dir: Path | None, driver: str) -> None:
        """Without a state directory there is no file. Raises SettingsError, also for a file of a newer version."""
        self._driver = driver
        self._updating = threading.Lock()
        self._published: DriverReport | None = None
        self._stored: DriverReport | None = None
        self._path: Path | None = None
        if state_dir is None:
            return
        path = self._path = state_dir / f"identity-{driver.replace('%', '%25').replace('/', '%2F')}.json"
        try:
            make_state_directory(state_dir)
            # Else a directory that cannot be written is found only when the first report comes.
            probe = path.with_suffix(".new")
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise SettingsError(
                "--state-dir", str(state_dir), f"cannot be written: {error.strerror or error}"
            ) from error
        self._published = self._stored = self._read(path)

    @property
    def known(self) -> bool:
        return self._published is not None

    def answer(self, method: str) -> Answer:
        """The answer to one of `CACHED_METHODS`. Raises CallError."""
        if self._published is not None:
            found = self._published.answers.get(method)
            if found is None:
                node = self._published.node
                why = f"the driver has not answered {method}; look at the edge agent's log on node {node}"
                raise self._unknown(why)
            return found
        if method == GET_PLUGIN_INFO:
            unknown = GetPluginInfoResponse(name=self._driver, vendor_version="unknown")
            return Answer(0, body=unknown.SerializeToString())
        raise self._unknown("no edge node has reported it since this proxy driver was installed")

    def _unknown(self, why: str) -> CallError:
        return CallError(f"nothing is known of driver {self._driver} yet: {why}")

    def update(self, report: DriverReport) -> None:
        """Store a new report of the driver. It writes a file: call it off the loop.

        The first answer to a method is published at once; a changed answer after the proxy driver's next start.
        """
        with self._updating:  # the last report of an old link may still be on its way to the disk
            self._update(report)

    def _update(self, report: DriverReport) -> None:
        if not self._is_usable(report):
            log.warning("an unusable report of driver %s from node %s is ignored", report.driver, report.node)
            return
        if self._stored is not None:  # earlier answers stay
            report = replace(report, answers={**self._stored.answers, **report.answers})
        has_changed = self._published is not None and self._differs(report)
        if self._published is None:
            self._published = report
            log.info("driver %s is known now, from node %s", report.driver, report.node)
        else:
            self._published = replace(self._published, answers={**report.answers, **self._published.answers})
        if report != self._stored and self._write(report):
            self._stored = report
        if has_changed:
            log.warning(
                "driver %s on node %s has changed its Identity or capabilities; the sidecars see it when this proxy "
                "driver and they are restarted",
                report.driver,
                report.node,
            )

    def _is_usable(self, report: DriverReport) -> bool:
        if report.driver != self._driver or not report.answers.keys() >= set(ESSENTIAL_METHODS):
            return False
        return plugin_name(report) == self._driver

    def _differs(self, report: DriverReport) -> bool:
        # A first answer to a method is no difference.
        last = self._stored.answers if self._stored is not None else {}
        return any(last[method] != report.answers.get(method) for method in last.keys() & CACHED_METHODS)

    def _read(self, path: Path) -> DriverReport | None:
        try:
            (report,) = decode_reports(json.dumps(read_state(path, "proxy driver")["reports"]).encode())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            log.warning("%s is unreadable; it is ignored until the hub reports the driver again: %s", path, error)
            return None
        if not self._is_usable(report):
            log.warning("%s is of another driver or incomplete, and ignored", path)
            return None
        return report

    def _write(self, report: DriverReport) -> bool:
        if self._path is None:
            return True
        try:
            write_state(self._path, {"reports": json.loads(encode_reports([report]))})
        except OSError as error:
            log.error(  # noqa: TRY400  # the sentence says it all
                "cannot write %s; at the next start, sidecars wait until the link to the hub is up: %s",
                self._path,
                error,
            )
            return False
        return True
