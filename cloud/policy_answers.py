"""The policy's answers for operators: the verdict about each driver of a node (the page `/policy/NODE`)."""

from collections.abc import Iterator

from cloud.edge_nodes import Nodes
from cloud.report_judge import ReportJudge, topology_of
from cloud.trust.policy_file import PolicyFile
from common.pages.hub import PolicyVerdict
from common.reports import DriverReport


class PolicyAnswers:
    """Answers from the policies in force, and from the nodes' reports."""

    def __init__(self, nodes: Nodes, policy: PolicyFile, judge: ReportJudge) -> None:
        """For one hub.

        Args:
            nodes: their reports.
            policy: the policy file.
            judge: asks all policies, that of the nodes' tokens as well.
        """
        self._nodes = nodes
        self._policy = policy
        self._judge = judge

    async def of(self, asked: str) -> Iterator[PolicyVerdict]:
        """The verdicts about a node.

        Args:
            asked: `NODE`: each driver that it has reported, and each one that a rule names for it; or `NODE/DRIVER`.
        """
        node, _, driver = asked.partition("/")
        told = self._nodes.told_reports(node)
        wanted = [driver] if driver else sorted({*told, *self._policy.policy.drivers_of(node)})
        return (self._verdict(node, each, told.get(each)) for each in wanted)

    def _verdict(self, node: str, driver: str, report: DriverReport | None) -> PolicyVerdict:
        segments = topology_of(report) if report is not None else {}
        verdict = self._judge.allows_report(node, driver, segments)
        return PolicyVerdict(
            driver=driver,
            allowed=verdict.allowed,
            why=verdict.why,
            reported=report is not None,
            topology=dict(segments),
            proxies=self._policy.policy.callers_of(driver),
        )
