"""The policy: its rules, its verdicts with their lines, its text, and the file that is read again when it changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cloud.trust.audit import Event
from cloud.trust.policy import Policy, Verdict
from cloud.trust.policy_file import PolicyFile
from cloud.trust.policy_text import MOST_BYTES, read_policy
from common.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.audit import Line

TEXT = """\
nodes:
- names: ["berlin-*", lab-1]
  drivers: [disk.example]
  topology:
    topology.disk.example/zone: ["berlin-?", berlin]
    topology.disk.example/host: ["{node}"]
- names: ["*"]
  drivers: ["nfs.*"]
proxies:
- names: [disk.example, "uid:0"]
  drivers: [disk.example]
"""

ZONE, HOST = "topology.disk.example/zone", "topology.disk.example/host"


def policy(text: str = TEXT) -> Policy:
    return read_policy(text.encode(), source="/p")


def report(node: str, driver: str, text: str = TEXT, **segments: str) -> Verdict:
    return policy(text).allows_report(
        node, driver, {{"zone": ZONE, "host": HOST}.get(key, key): value for key, value in segments.items()}
    )


# -------------------- reports --------------------


def test_without_a_policy_everything_is_allowed() -> None:
    why = "the hub runs without --policy"
    assert Policy().allows_report("n1", "any.example", {"a": "b"}) == Verdict(allowed=True, why=why)
    assert Policy().allows_call("any.example", "any.example") == Verdict(allowed=True, why=why)


def test_a_rule_allows_the_named_nodes_and_globs_to_report_the_named_drivers() -> None:
    assert report("lab-1", "disk.example") == Verdict(allowed=True, why="line 2 of /p", line=2)
    assert report("berlin-17", "disk.example").line == 2
    assert report("paris-1", "nfs.example").line == 7


@pytest.mark.parametrize(
    ("node", "driver"),
    [("paris-1", "disk.example"), ("lab-1", "other.example"), ("lab-10", "disk.example"), ("Lab-1", "disk.example")],
)
def test_what_no_rule_allows_is_refused(node: str, driver: str) -> None:
    why = "no rule of /p allows it to report this driver"
    assert report(node, driver) == Verdict(allowed=False, why=why)


def test_a_name_is_matched_as_a_whole() -> None:
    assert not report("x-berlin-1", "disk.example").allowed
    assert not report("lab-1\n", "disk.example").allowed
    assert not report("lab-1", "disk.example.evil").allowed


def test_a_topology_is_allowed_if_every_segment_is() -> None:
    assert report("berlin-1", "disk.example", zone="berlin-a", host="berlin-1").allowed
    assert report("berlin-1", "disk.example", zone="berlin").allowed
    assert report("berlin-1", "disk.example").allowed


@pytest.mark.parametrize(
    ("segments", "stray"),
    [
        ({"zone": "paris"}, f"{ZONE}=paris"),
        ({"zone": "berlin-a", "host": "berlin-2"}, f"{HOST}=berlin-2"),
        ({"zone": "berlin-a", "rack": "r1"}, "rack=r1"),
        ({"zone": "paris\x1b[2J"}, f"{ZONE}=paris\\x1b[2J"),
    ],
)
def test_a_segment_outside_of_the_rule_is_refused_by_its_name_and_line(segments: dict[str, str], stray: str) -> None:
    why = f"line 2 of /p does not allow its topology {stray}"
    assert report("berlin-1", "disk.example", **segments) == Verdict(allowed=False, why=why)


def test_the_bridges_own_segment_needs_no_rule_and_another_nodes_does() -> None:
    found = policy()
    assert found.allows_report("berlin-1", "disk.example", {"csi-bridge.io/node": "berlin-1"}).allowed
    assert not found.allows_report("berlin-1", "disk.example", {"csi-bridge.io/node": "berlin-2"}).allowed


def test_a_second_rule_may_allow_a_topology_that_the_first_one_does_not() -> None:
    text = (
        f"{TEXT[: TEXT.index('proxies')]}- {{names: [berlin-1], drivers: [disk.example], topology: {{'*': ['*']}}}}\n"
    )
    assert report("berlin-1", "disk.example", text, zone="paris").line == 9
    assert not report("berlin-2", "disk.example", text, zone="paris").allowed


def test_a_section_without_rules_allows_nothing_and_an_absent_one_everything() -> None:
    text = "nodes: []\n"
    assert not report("n1", "disk.example", text).allowed
    assert policy(text).allows_call("any.example", "any.example") == Verdict(
        allowed=True, why="/p has no section proxies"
    )


def test_a_glob_with_many_stars_is_matched_in_no_time() -> None:
    text = f"nodes: [{{names: ['{'*a' * 100}b'], drivers: [d]}}]"
    assert not report("a" * 253, "d", text).allowed


def test_one_node_of_two_thousand_rules_is_found_by_its_name() -> None:
    rules = "\n".join(f"- {{names: [n{number}], drivers: [d{number}.example]}}" for number in range(2_000))
    found = policy(f"nodes:\n{rules}\n")
    assert found.nodes is not None
    assert [rule.line for rule in found.nodes.of("n1999")] == [2_001]
    assert found.allows_report("n1999", "d1999.example", {}).allowed
    assert not found.allows_report("n1998", "d1999.example", {}).allowed


# -------------------- calls --------------------


def test_a_proxy_driver_may_call_what_a_rule_allows_it() -> None:
    found = policy()
    assert found.allows_call("disk.example", "disk.example") == Verdict(allowed=True, why="line 10 of /p", line=10)
    assert found.allows_call("uid:0", "disk.example").allowed
    for identity, driver in (("nfs.example", "nfs.example"), ("uid:1000", "disk.example"), ("disk.example", "nfs.x")):
        verdict = found.allows_call(identity, driver)
        assert verdict == Verdict(allowed=False, why=f"no rule of /p allows {identity} to call driver {driver}")


# -------------------- the text --------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty; leave --policy out to allow all"),
        ("a: 1\n---\nb: 1\n", "it must have one document"),
        ("- nodes\n", "line 1: a policy must have the words nodes, proxies"),
        ("nodes: []\nnode: []\n", "line 2: a policy has nodes, proxies, and no 'node'"),
        ("nodes: n1\n", "line 1: nodes must be a list of rules"),
        ("nodes:\n- names: [n1]\n", "line 2: the rule has no drivers"),
        (
            "nodes:\n- names: [n1]\n  drivers: [d]\n  topolgy: {}\n",
            "line 4: a rule of nodes has drivers, names, topology, and no 'topolgy'",
        ),
        (
            "proxies:\n- names: [d]\n  drivers: [d]\n  topology: {}\n",
            "line 4: a rule of proxies has drivers, names, and",
        ),
        ("nodes:\n- names: n1\n  drivers: [d]\n", "line 2: names must be a list with at least one text"),
        ("nodes:\n- names: []\n  drivers: [d]\n", "line 2: names must be a list with at least one text"),
        ("nodes:\n- names:\n  - n1\n  - 17\n  drivers: [d]\n", "line 4: an entry of names must be a text (in quotes"),
        (
            "nodes:\n- names: ['n[12]']\n  drivers: [d]\n",
            "line 2: an entry of names is 'n[12]', which no such name can be or match",
        ),
        (
            "nodes:\n- names: [n1]\n  drivers: [d]\n  topology: [a]\n",
            "line 4: topology must have lists of values by key",
        ),
        ("nodes:\n- names: [n1]\n  drivers: [d]\n  topology: {a: b}\n", "line 4: the values of a must be a list"),
        ("nodes:\n- names: [n1]\n  drivers: [d]\n  topology: {a: ['{host}']}\n", "line 4: an entry of the values of a"),
        ("nodes:\n- names: [n1\n", "line 3: "),
        ("\xff\n", "line 1: "),
    ],
)
def test_a_text_that_is_no_policy_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        policy(text)
    assert str(refused.value).startswith(why)


def test_a_file_that_is_too_large_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="1048577 bytes, and 1048576 is the limit"):
        read_policy(b"#" * (MOST_BYTES + 1), source="/p")


# -------------------- the file --------------------


class World:
    """A policy file, and the hub's state directory."""

    def __init__(self, directory: Path) -> None:
        self.path, self.state_dir = directory / "policy.yaml", directory / "state"
        self.state_dir.mkdir()
        self.changes = 0
        self.path.write_text(TEXT)

    def start(self) -> PolicyFile:
        """The policy as a hub that starts has it."""
        file = PolicyFile(self.path, self.state_dir)
        file.subscribe(self._changed)
        return file

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


OTHER = "nodes: [{names: [n1], drivers: [other.example]}]\n"


def allowed(file: PolicyFile) -> list[str]:
    """The drivers that n1 may report."""
    return [driver for driver in ("nfs.example", "other.example") if file.allows_report("n1", driver, {}).allowed]


async def test_a_change_is_in_force_once_two_looks_have_found_it(world: World) -> None:
    file = world.start()
    await file.look()
    assert (allowed(file), world.changes) == (["nfs.example"], 0)
    world.path.write_text(OTHER)
    await file.look()
    assert (allowed(file), world.changes) == (["nfs.example"], 0)
    await file.look()
    assert (allowed(file), world.changes) == (["other.example"], 1)
    await file.look()
    assert world.changes == 1


async def test_half_of_a_file_that_is_being_written_is_not_used(world: World) -> None:
    file = world.start()
    for content in ("nodes: []\n", OTHER):
        world.path.write_text(content)
        await file.look()
        assert allowed(file) == ["nfs.example"]
    await file.look()
    assert allowed(file) == ["other.example"]


async def test_a_broken_file_leaves_the_last_good_policy_in_force_and_is_a_problem_until_it_is_mended(
    audit_lines: list[Line], world: World, caplog: pytest.LogCaptureFixture
) -> None:
    file = world.start()
    world.path.write_text("nodes:\n- names: [n1]\n  driver: [d]\n")
    for _ in range(3):
        await file.look()
    assert allowed(file) == ["nfs.example"]
    assert file.problem == (
        f"the policy {world.path} cannot be used: line 3: a rule of nodes has drivers, names, topology, and no "
        "'driver'; the last good one stays in force"
    )
    assert caplog.messages.count(file.problem) == 1
    world.path.write_text(TEXT)
    for _ in range(2):
        await file.look()
    assert (allowed(file), file.problem) == (["nfs.example"], "")
    assert [event for event, *_ in audit_lines] == [Event.POLICY] * 3


async def test_a_file_that_is_gone_leaves_the_last_good_policy_in_force(world: World) -> None:
    file = world.start()
    world.path.unlink()
    for _ in range(2):
        await file.look()
    assert allowed(file) == ["nfs.example"]
    assert file.problem.endswith("No such file or directory; the last good one stays in force")


def test_a_hub_that_starts_with_a_broken_file_takes_the_last_good_policy(world: World) -> None:
    world.start()
    world.path.write_text("nodes: {}\n")
    file = world.start()
    assert allowed(file) == ["nfs.example"]
    assert "line 1: nodes must be a list of rules; the hub uses the last good one, of 20" in file.problem
    assert (world.state_dir / "policy.good").stat().st_mode & 0o777 == 0o600


def test_a_hub_that_never_had_a_good_policy_does_not_start_with_a_broken_one(world: World) -> None:
    world.path.write_text("nodes: {}\n")
    with pytest.raises(SettingsError, match=r"--policy=.*policy\.yaml: cannot be used: line 1: nodes must be a list"):
        world.start()


def test_a_policy_that_cannot_be_copied_is_in_force_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (world.state_dir / "policy.good").mkdir()
    assert allowed(world.start()) == ["nfs.example"]
    assert "the policy cannot be copied" in caplog.text


def test_a_node_reports_only_the_drivers_of_the_token_with_which_it_joined(world: World) -> None:
    joined = {"n1": ("nfs.example", "disk.example")}
    file = PolicyFile(world.path, world.state_dir, joined_for=lambda node: joined.get(node, ()))
    assert file.allows_report("n1", "nfs.example", {}).allowed
    assert not file.allows_report("n1", "disk.example", {}).allowed  # which no rule allows
    why = "the token with which it joined is for nfs.example, disk.example"
    assert file.allows_report("n1", "nfs.other", {}) == Verdict(allowed=False, why=why)
    assert file.allows_report("n2", "nfs.other", {}).allowed


async def test_a_mended_file_is_used_by_a_hub_that_started_with_the_broken_one(world: World) -> None:
    world.start()
    world.path.write_text("nodes: {}\n")
    file = world.start()
    world.path.write_text(OTHER)
    for _ in range(2):
        await file.look()
    assert (allowed(file), file.problem) == (["other.example"], "")


def test_the_audit_log_tells_which_policy_is_in_force(audit_lines: list[Line], world: World) -> None:
    world.start()
    ((event, who, _, details),) = audit_lines
    assert (event, who, details["file"]) == (Event.POLICY, "hub", str(world.path))
    assert details["rules"] == "nodes: 2 rules; proxies: 1 rules"
    assert len(json.dumps(details["sha256"])) == 66
