"""A driver report: one vendor driver's answers to Identity, capability and NodeGetInfo calls.

The agent sends its reports when it connects and when they change. The hub keeps them and passes them on to proxy
drivers, which answer sidecars from them within milliseconds, even without a link. The answers are the vendor's
bytes. Reports are JSON: they are small and rare, and people read them in files and logs.

On the same stream the agent tells its node's problems (`encode_problems`), which nobody could see from the hub: a
driver that hangs, a full disk.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from google.protobuf.message import DecodeError

from common.csi.csi_pb2 import GetPluginCapabilitiesResponse, GetPluginInfoResponse, PluginCapability
from common.status import LARGEST_CODE

GET_PLUGIN_INFO = "/csi.v1.Identity/GetPluginInfo"
GET_PLUGIN_CAPABILITIES = "/csi.v1.Identity/GetPluginCapabilities"
PROBE = "/csi.v1.Identity/Probe"
CONTROLLER_GET_CAPABILITIES = "/csi.v1.Controller/ControllerGetCapabilities"
GROUP_GET_CAPABILITIES = "/csi.v1.GroupController/GroupControllerGetCapabilities"
NODE_GET_INFO = "/csi.v1.Node/NodeGetInfo"
NODE_GET_CAPABILITIES = "/csi.v1.Node/NodeGetCapabilities"

# Every sidecar calls these when it starts. An agent reports a driver only after it has answered them.
ESSENTIAL_METHODS = (GET_PLUGIN_INFO, GET_PLUGIN_CAPABILITIES, CONTROLLER_GET_CAPABILITIES)
# The calls that an agent makes to each driver. All take an empty request, and none changes anything (CSI spec).
REPORTED_METHODS = (*ESSENTIAL_METHODS, GROUP_GET_CAPABILITIES, NODE_GET_CAPABILITIES, NODE_GET_INFO)

# The largest report about one driver. Of one with longer answers the agent reports the name alone: without it, the hub
# would send the driver's calls to another node.
MAX_DRIVER_BYTES = 65_536
MAX_REPORT_BYTES = 262_144  # the largest report that the hub accepts from one node: more than 100 drivers

MOST_PROBLEMS = 20  # of a node; more do not count
MOST_PROBLEM_CHARS = 500
_MAX_PROBLEMS_BYTES = 131_072  # the largest message with them: JSON has up to twelve bytes for a character


@dataclass(frozen=True, slots=True)
class Answer:
    """A driver's own answer to one method: a gRPC code, its message, and the response's bytes if the code is OK."""

    code: int
    message: str = ""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class DriverReport:
    """One driver on one node."""

    driver: str  # the name that the driver gave itself
    node: str
    answers: Mapping[str, Answer]  # by method path, for `REPORTED_METHODS`. They hold while the driver is away
    away: str = ""  # why the agent cannot connect to the driver's controller now; empty if it can


def encode_reports(reports: Iterable[DriverReport]) -> bytes:
    return json.dumps([report_to_json(report) for report in reports], separators=(",", ":"), sort_keys=True).encode()


def decode_reports(data: bytes) -> list[DriverReport]:
    """The reports in the output of `encode_reports`. Raises ValueError, which says in words what is wrong."""
    try:
        return [report_from_json(item) for item in json.loads(data)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a list of driver reports ({type(error).__name__})") from error


def encode_problems(problems: Iterable[str]) -> bytes:
    return json.dumps({"problems": _bounded(problems)}, separators=(",", ":")).encode()


def is_problems(data: bytes) -> bool:
    """Whether a message of an agent has its node's problems. If not, it has its drivers' reports."""
    return data.startswith(b"{")


def decode_problems(data: bytes) -> list[str]:
    """The problems in the output of `encode_problems`, as printable texts. Raises ValueError."""
    if len(data) > _MAX_PROBLEMS_BYTES:
        raise ValueError(f"{len(data)} bytes of problems, and {_MAX_PROBLEMS_BYTES} is the limit")
    try:
        problems = _bounded(_text(problem) for problem in json.loads(data)["problems"])
        return ["".join(it if it.isprintable() else " " for it in problem) for problem in problems]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a list of problems ({type(error).__name__})") from error


def _bounded(problems: Iterable[str]) -> list[str]:
    return [problem[:MOST_PROBLEM_CHARS] for problem in islice(problems, MOST_PROBLEMS)]


def plugin_name(report: DriverReport) -> str | None:
    """The name in GetPluginInfo; empty if the answer has none; None without an answer (`MAX_DRIVER_BYTES`)."""
    answer = report.answers.get(GET_PLUGIN_INFO)
    return None if answer is None else _plugin_info(answer).name


def vendor_version(report: DriverReport) -> str:
    answer = report.answers.get(GET_PLUGIN_INFO)
    return "" if answer is None else _plugin_info(answer).vendor_version


def _plugin_info(answer: Answer) -> GetPluginInfoResponse:
    try:
        return GetPluginInfoResponse.FromString(b"" if answer.code else answer.body)
    except DecodeError:
        return GetPluginInfoResponse()


def is_node_only(capabilities: Answer | None) -> bool:
    """Whether a driver says in its answer to GetPluginCapabilities that it has no controller for sidecars to call."""
    if capabilities is None or capabilities.code:
        return False
    try:
        said = GetPluginCapabilitiesResponse.FromString(capabilities.body).capabilities
    except DecodeError:
        return False
    return all(it.service.type != PluginCapability.Service.CONTROLLER_SERVICE for it in said)


def report_to_json(report: DriverReport) -> dict[str, Any]:
    answers = {
        method: {"code": answer.code, "message": answer.message, "body": base64.b64encode(answer.body).decode()}
        for method, answer in report.answers.items()
    }
    away = {"away": report.away} if report.away else {}
    return {"driver": report.driver, "node": report.node, "answers": answers, **away}


def report_from_json(item: dict[str, Any]) -> DriverReport:
    """The report that `report_to_json` has returned. Raises ValueError, TypeError, KeyError or AttributeError."""
    answers = {
        _text(method): Answer(_code(answer["code"]), _text(answer["message"]), base64.b64decode(answer["body"]))
        for method, answer in item["answers"].items()
    }
    return DriverReport(_text(item["driver"]), _text(item["node"]), answers, _text(item.get("away", "")))


def _code(value: object) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_CODE:
        raise TypeError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
