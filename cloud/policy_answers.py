"""The policy's answers for operators: the verdict about each driver of a node (the page `/policy/NODE`)."""

from collections.abc import Iterator

from cloud.edge_nodes import Nodes
from cloud.report_judge import topology_of
from cloud.trust.policy_file import PolicyFile
from common.pages.hub import PolicyVerdict


class PolicyAnswers:
    """Answers from the policy in force, and from the nodes' reports."""

    def __init__(self, nodes: Nodes, policy: PolicyFile) -> None:
        self._nodes = nodes
        self._policy = policy

    async def of(self, asked: str) -> Iterator[PolicyVerdict]:
        """The verdicts about a node.

        Args:
            asked: `NODE`: each driver that it has reported, and each one that a rule names for it; or `NODE/DRIVER`.
        """
        node, _, driver = asked.partition("/")
        reported = self._nodes.drivers_of(node)
        wanted = [driver] if driver else sorted({*reported, *self._policy.policy.drivers_of(node)})
        return (self._verdict(node, each, is_reported=each in reported) for each in wanted)

    def _verdict(self, node: str, driver: str, *, is_reported: bool) -> PolicyVerdict:
        report = self._nodes.newest_report(driver, node)
        segments = dict(topology_of(report)) if report is not None else {}
        verdict = self._policy.allows_report(node, driver, segments)
        return PolicyVerdict(
            driver=driver,
            allowed=verdict.allowed,
            why=verdict.why,
            reported=is_reported,
            topology=segments,
            proxies=self._policy.policy.callers_of(driver),
        )
