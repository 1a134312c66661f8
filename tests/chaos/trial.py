"""One chaos run: callers at work, faults by a plan, then peace, and the judgement."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.callers import Callers
from tests.chaos.faults import Fault, plan
from tests.chaos.judge import Finding, Left, Step, histories, judge
from tests.chaos.site import LOCAL, NODES, Site
from tests.kit.testdriver.call_log import Call

SETTLE_S = 120.0
"""All must have an outcome so long after the last fault. A node that was away dials at least every 30 s."""

_TURN_S = 0.05
_PROGRESS_S = 5.0


@dataclass
class Result:
    """The outcome of a run."""

    seed: int  # of the plan
    faults: list[Fault] = field(default_factory=list)  # those that happened
    steps: list[Step] = field(default_factory=list)  # all that the callers wanted
    journals: dict[str, list[Call]] = field(default_factory=dict)  # by driver
    settled_s: float = 0.0  # from the last fault until all had an outcome and nothing was left
    findings: list[Finding] = field(default_factory=list)  # what must not be
    complaints: list[str] = field(default_factory=list)  # tracebacks in logs

    def report(self) -> str:
        """Return all that a reader of a failure needs, or one line."""
        attempts = sum(len(step.attempts) for step in self.steps)
        summary = (
            f"seed {self.seed}: {len(self.steps):,} operations with {attempts:,} calls, {len(self.faults)} faults, "
            f"settled after {self.settled_s:.1f} s: {len(self.findings)} findings, {len(self.complaints)} tracebacks"
        )
        if not self.findings and not self.complaints:
            return summary
        lines = ["faults:", *map(str, self.faults), "tracebacks:", *self.complaints]
        told = self.histories()
        for life in dict.fromkeys(it.life for it in self.findings):
            lines += ["", f"{life}:", *(f"  ! {it.what}" for it in self.findings if it.life == life)]
            lines += [f"  {line}" for line in told.get(life, ())]
        return "\n".join([*lines, "", summary])

    def histories(self) -> dict[str, list[str]]:
        return histories(self.steps, self.journals)


def run(site: Site, seed: int, *, operations: int, seconds: float, at_once: int, say: Callable[[str], None]) -> Result:
    """Run until so many operations have an outcome, or so many seconds are over; then let all settle, and judge."""
    asks = {driver: _ask(proxy.sidecar()) for driver, proxy in site.proxies.items()}
    callers = Callers(seed, asks, NODES, local=LOCAL, at_once=at_once)
    result = Result(seed, steps=callers.steps)
    callers.start()
    try:
        _rage(site, callers, result, operations, seconds, say)
        callers.end()
        result.settled_s, left = _settle(site, callers)
    finally:
        callers.stop()
    result.journals = site.journals()
    result.findings = judge(callers.steps, result.journals, left)
    result.complaints = site.complaints()
    return result


def _rage(
    site: Site, callers: Callers, result: Result, operations: int, seconds: float, say: Callable[[str], None]
) -> None:
    """Let the planned faults happen while the callers work. All are over at the end."""
    to_come, running = plan(random.Random(result.seed), seconds, site.targets), list[tuple[float, "Fault"]]()
    began, told = time.monotonic(), -_PROGRESS_S
    while callers.done < operations and (now := time.monotonic() - began) < seconds:
        while to_come and to_come[0].at_s <= now:
            fault = to_come.pop(0)
            site.begin(fault)
            result.faults.append(fault)
            running.append((now + fault.lasts_s, fault))
        for it in [it for it in running if it[0] <= now]:
            site.end(it[1])
            running.remove(it)
        site.keep()
        if now - told > _PROGRESS_S:
            told = now
            say(f"{now:4.0f} s: {callers.done:,} of {len(callers.steps):,} operations, {len(result.faults)} faults")
        time.sleep(_TURN_S)
    for _, fault in running:
        site.end(fault)


def _settle(site: Site, callers: Callers) -> tuple[float, list[Left]]:
    """Wait until all have an outcome and nothing is left; return the time, and what is left after all."""
    began = time.monotonic()
    left: list[Left] = []
    while (took := time.monotonic() - began) < SETTLE_S:
        site.keep()
        if not callers.running and not (left := [*site.left(), *site.claims()]):
            break
        time.sleep(_TURN_S)
    return took, left


def _ask(sidecar: object) -> Callable[..., object]:
    return lambda method, request, timeout_s: sidecar.call(method, request, timeout_s=timeout_s)
