"""The policy file (`--policy`): read at the start, and again whenever it changes.

Rules:

* A file that cannot be used changes nothing: the last good policy stays in force, and the problem is shown.
* The last good policy is also kept in the state directory. A hub that starts with a file that cannot be used takes this
  copy; if there is none, the hub does not start, because it would trust everybody.
* A change counts once two looks have found the same content. So half of a file that somebody is writing is not used.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.policy import Policy, Verdict
from cloud.trust.policy_text import MOST_BYTES, read_policy
from common.errors import SettingsError, timestamp
from common.files import replace_file

log = logging.getLogger("csi_bridge.hub.policy")

_COPY: Final = "policy.good"

_LOOK_S: Final = 1.0
"""A look reads the file, which costs 0.1 ms. Kubernetes takes up to a minute to bring a changed ConfigMap to a pod."""


class PolicyFile:
    """The policy in force, from a file or without one."""

    def __init__(
        self,
        path: Path | None,
        state_dir: Path,
        *,
        joined_for: Callable[[str], Collection[str]] = lambda _node: (),
    ) -> None:
        """Read the file.

        Args:
            path: the file; None: everything is allowed.
            state_dir: the hub's state directory, for the copy.
            joined_for: returns the drivers that the token of a node names; none: every driver.

        Raises:
            SettingsError: the file cannot be used, and there is no copy of a good one.
        """
        self._path = path
        self._copy = state_dir / _COPY
        self._joined_for = joined_for
        self._subscribers: list[Callable[[], None]] = []
        self.policy = Policy()
        self.problem = ""
        """Why the newest content of the file is not in force; empty if it is."""
        self._seen = self._found = b"" if path is None else self._begin(path)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever another policy is in force, in the order of subscription."""
        self._subscribers.append(changed)

    def allows_report(self, node: str, driver: str, segments: Mapping[str, str]) -> Verdict:
        """Whether a node may report a driver with this topology, by the token with which it joined and the rules."""
        named = self._joined_for(node)
        if named and driver not in named:
            return Verdict(allowed=False, why=f"the token with which it joined is for {', '.join(named)}")
        return self.policy.allows_report(node, driver, segments)

    def allows_call(self, identity: str, driver: str) -> Verdict:
        """Whether a proxy driver of this identity may call a driver."""
        return self.policy.allows_call(identity, driver)

    def judge_again(self) -> None:
        """Tell the subscribers that a verdict may have changed."""
        for changed in self._subscribers:
            changed()

    async def follow(self) -> None:
        """Take every change of the file, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Read the file. Content that differs from the last one taken counts at the second look that finds it."""
        assert self._path is not None
        content = await asyncio.to_thread(_content, self._path)
        if content != self._seen and content == self._found:
            self._seen = content
            await self._take(self._path, content)
        self._found = content

    # ---- within ------------------------------------------------------------------------------------------------------

    def _begin(self, path: Path) -> bytes | str:
        content = _content(path)
        try:
            self._use(path, content, _read(path, content))
        except ValueError as error:
            try:
                self.policy, at = _read(path, self._copy.read_bytes()), self._copy.stat().st_mtime
            except (OSError, ValueError):
                raise SettingsError("--policy", path, f"cannot be used: {error}") from error
            self._complain(path, f"{error}; the hub uses the last good one, of {timestamp(at)}")
        return content

    async def _take(self, path: Path, content: bytes | str) -> None:
        try:
            policy = await asyncio.to_thread(_read, path, content)
        except ValueError as error:
            self._complain(path, f"{error}; the last good one stays in force")
            return
        self._use(path, content, policy)
        self.judge_again()

    def _use(self, path: Path, content: bytes | str, policy: Policy) -> None:
        assert isinstance(content, bytes)
        self.policy, self.problem = policy, ""
        log.info("the policy %s is in force: %s", path, policy.summary())
        audit.add(Event.POLICY, who="hub", file=str(path), sha256=sha256(content).hexdigest(), rules=policy.summary())
        try:
            with suppress(FileNotFoundError):
                if self._copy.read_bytes() == content:
                    return
            replace_file(self._copy, content, durable=True, mode=0o600)
        except OSError as error:
            log.warning("the policy cannot be copied to %s, for a later start: %s", self._copy, error)

    def _complain(self, path: Path, why: str) -> None:
        self.problem = f"the policy {path} cannot be used: {why}"
        log.error("%s", self.problem)
        audit.add(Event.POLICY, who="hub", file=str(path), why=why)


def _content(path: Path) -> bytes | str:
    """The file's content, or as a text the reason why there is none."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        return error.strerror or str(error)


def _read(path: Path, content: bytes | str) -> Policy:
    if isinstance(content, str):
        raise ValueError(content)  # noqa: TRY004  # the reason, not a wrong type
    return read_policy(content, source=str(path))
