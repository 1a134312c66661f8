"""The command `policy`: the verdicts of a hub as people read them, and those of a file that no hub uses yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from cli import policy
from cli.main import cli
from cloud.edge_nodes import Nodes
from cloud.policy_answers import PolicyAnswers
from cloud.report_judge import ReportJudge
from cloud.store import Store
from cloud.trust.policy_file import PolicyFile
from cloud.unique_segments import UniqueKeys, UniqueSegments
from common.metrics import Metrics
from common.pages.hub import PolicyVerdict
from common.version import introduce
from tests.kit.linked import Peer, link_pair
from tests.kit.spoken_node import report

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
nodes:
- names: [n1]
  drivers: [disk.example, "nfs.*"]
  topology: {zone: [a]}
proxies:
- names: [disk.example, "uid:0"]
  drivers: [disk.example]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(TEXT)
    return path


def verdict(driver: str, *, allowed: bool = True, why: str = "line 2 of /p") -> PolicyVerdict:
    return PolicyVerdict(
        driver=driver, allowed=allowed, why=why, reported=True, topology={"zone": "a"}, proxies=[driver]
    )


def test_verdicts_are_a_table() -> None:
    found = [verdict("disk.example"), verdict("evil\x1b", allowed=False, why="no rule of /p allows it")]
    assert list(policy.show(found)) == [
        "DRIVER        VERDICT  REPORTED  TOPOLOGY  CALLED BY     WHY",
        "disk.example  allowed  yes       zone=a    disk.example  line 2 of /p",
        "evil?         DENIED   yes       zone=a    evil?         no rule of /p allows it",
    ]


def test_a_node_without_drivers_and_rules_is_told_in_words() -> None:
    assert list(policy.show([])) == ["the node has reported no driver, and no rule names one for it"]


def tried(path: Path, *asked: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["policy", "--file", str(path), *asked])
    return result.exit_code, result.output


def test_a_file_is_tried_before_a_hub_uses_it(path: Path) -> None:
    assert tried(path, "n1") == (0, f"disk.example: allowed: line 2 of {path}\nnfs.*: allowed: line 2 of {path}\n")
    assert tried(path, "n1", "nfs.example") == (0, f"nfs.example: allowed: line 2 of {path}\n")
    why = f"no rule of {path} allows it to report this driver"
    assert tried(path, "n2", "nfs.example") == (1, f"nfs.example: DENIED: {why}\n")
    assert tried(path, "n2") == (0, "no rule names a driver for this node\n")


def test_a_broken_file_is_told_with_its_line(path: Path) -> None:
    path.write_text("nodes:\n- name: n1\n")
    said = "line 2: a rule of nodes has drivers, names, topology, and no 'name'"
    assert tried(path, "n1") == (1, f"csi-bridge: the policy {path} cannot be used: {said}\n")
    path.unlink()
    assert tried(path, "n1") == (1, f"csi-bridge: the policy {path} cannot be used: No such file or directory\n")


async def test_the_hub_answers_for_drivers_that_a_node_has_reported_and_that_rules_name(
    path: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    file = PolicyFile(path, tmp_path)
    judge = ReportJudge(UniqueSegments(store, UniqueKeys()), file, metrics=Metrics())
    nodes = Nodes(store, judge, max_nodes=3)
    answers = PolicyAnswers(nodes, file)
    assert [each.driver for each in await answers.of("n1")] == ["disk.example", "nfs.*"]
    link, _ = link_pair(Peer(), Peer())
    nodes.connect(introduce("edge", "n1", instance="i", boot=1), link)
    nodes.report("n1", [report("disk.example", "n1", segments={"zone": "b"}), report("other.example", "n1")])
    found = {each.driver: each for each in await answers.of("n1")}
    assert [(name, each.allowed, each.reported) for name, each in found.items()] == [
        ("disk.example", False, True),
        ("nfs.*", True, False),
        ("other.example", False, True),
    ]
    disk = found["disk.example"]
    assert (disk.why, disk.topology) == (f"line 2 of {path} does not allow its topology zone=b", {"zone": "b"})
    assert (disk.proxies, found["other.example"].proxies) == (["disk.example", "uid:0"], [])
    (one,) = await answers.of("n1/nfs.example")
    assert (one.driver, one.allowed, one.reported) == ("nfs.example", True, False)
    await store.close()
