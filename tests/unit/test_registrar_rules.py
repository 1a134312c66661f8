"""What a driver may say when it registers, and what that makes of the CSINode and the Node."""

import pytest

from cloud.kinds.rules.fields import FieldError, Fields
from common.csi import csi_pb2
from edge.registry.registration import (
    NodeInfo,
    Registration,
    check_labels,
    check_name,
    csi_node_drivers,
    highest_version,
    node_annotations,
    read_node_info,
    shorten,
)


def info(**fields: object) -> bytes:
    segments = fields.pop("topology", None)
    answer = csi_pb2.NodeGetInfoResponse(**fields)  # type: ignore[arg-type]  # the test's own fields
    if isinstance(segments, dict):
        answer.accessible_topology.segments.update(segments)
    return answer.SerializeToString()


def registration(name: str, **fields: object) -> Registration:
    return Registration(name, f"/{name}.sock", f"/{name}-reg.sock", (1, 0), NodeInfo(**fields))  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["1.0.0"], (1,)),
        (["1.0"], (1,)),
        (["v1.2.3", "1.10.0", "1.9"], (1, 10)),
        (["1.0.1", "1.0"], (1, 0, 1)),
        (["0.3.0", "1.0.0", "2.0.0"], (1,)),
        (["1.0.0-alpha"], (1,)),
        (["latest", " 1.1"], (1, 1)),
    ],
)
def test_the_highest_version_1_is_chosen(offered: list[str], chosen: tuple[int, ...]) -> None:
    assert highest_version(offered) == chosen


@pytest.mark.parametrize(
    "offered", [[], ["1"], ["0.9.0"], ["2.0"], ["01.0"], ["one.two"], ["1." + "9" * 30], ["1.0" * 99]]
)
def test_without_a_version_1_there_is_none(offered: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no supported version 1\.x"):
        highest_version(offered)


@pytest.mark.parametrize("name", ["d", "vendor.example.com", "Disk-1", "A--b.1", "a" * 63])
def test_a_drivers_name_is_taken_also_by_the_hub(name: str) -> None:
    check_name(name)
    assert hub_takes(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/a",
        "a..b",
        "a.",
        "-a",
        "a.-b",
        "a-.b",
        "a_b",
        "a b",
        "a\n",
        "a" * 64,
        "é",
        "\N{KELVIN SIGN}",
    ],
)
def test_a_name_that_could_leave_its_directory_or_that_kubernetes_forbids_is_not_nor_by_the_hub(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        check_name(name)
    assert not hub_takes(name)


def hub_takes(name: str) -> bool:
    """One that it refused would cost the node its whole CSINode."""
    try:
        Fields({"name": name}).driver("name")
    except FieldError:
        return False
    return True


def test_a_drivers_answers_are_read() -> None:
    capabilities = csi_pb2.NodeGetCapabilitiesResponse(
        capabilities=[
            csi_pb2.NodeServiceCapability(rpc={"type": 1}),
            csi_pb2.NodeServiceCapability(),
            csi_pb2.NodeServiceCapability(rpc={"type": 77}),  # of a newer CSI
        ]
    ).SerializeToString()
    said = read_node_info(info(node_id="n", max_volumes_per_node=5, topology={"topology.d/zone": "a"}), capabilities)
    assert said == NodeInfo("n", 5, {"topology.d/zone": "a"}, frozenset({1, 77}))


def test_a_negative_limit_is_none() -> None:
    assert read_node_info(info(node_id="n", max_volumes_per_node=-1), b"").max_volumes == 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (info(), "no node_id"),
        (info(node_id="ü" * 129), "its node_id has 258 bytes"),
        (b"\xff", "does not parse"),
        (info(node_id="n", topology={"": "a"}), "cannot be the key"),
        (info(node_id="n", topology={"a b": "a"}), "cannot be the key"),
        (info(node_id="n", topology={"/zone": "a"}), "cannot be the key"),
        (info(node_id="n", topology={"d" * 254 + "/zone": "a"}), "cannot be the key"),
        (info(node_id="n", topology={"zone": "a" * 64}), "cannot be the value"),
        (info(node_id="n", topology={"zone": "a\nb"}), "cannot be the value"),
        (info(node_id="n", topology={"zone": "a", "Zone": "a"}), "which are one to CSI"),
        (info(node_id="n", topology={f"k{number}": "a" for number in range(65)}), "has 65 segments"),
    ],
    ids=lambda value: value if isinstance(value, str) else "answer",  # a map's bytes differ from run to run
)
def test_an_answer_that_breaks_the_rules_is_refused_in_words(answer: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_node_info(answer, b"")


def test_capabilities_that_do_not_parse_are_refused() -> None:
    with pytest.raises(ValueError, match="does not parse"):
        read_node_info(info(node_id="n"), b"\xff")


def test_segments_may_agree_with_labels_and_may_not_contradict_them() -> None:
    check_labels({"zone": "a"}, {"zone": "a", "rack": "1"}, whose="x")
    check_labels({"zone": "a"}, {}, whose="x")
    with pytest.raises(ValueError, match="it says that this node is zone=a, but x says zone=b"):
        check_labels({"zone": "a"}, {"zone": "b"}, whose="x")


def test_the_csi_node_lists_the_drivers_by_name_with_sorted_keys_and_a_limit_if_there_is_one() -> None:
    drivers = csi_node_drivers(
        [
            registration("b.d", node_id="2", max_volumes=2**40, topology={"z": "1", "a": "2"}),
            registration("a.d", node_id="1"),
        ]
    )
    assert drivers == [
        {"name": "a.d", "nodeID": "1", "topologyKeys": []},
        {"name": "b.d", "nodeID": "2", "topologyKeys": ["a", "z"], "allocatable": {"count": 2**31 - 1}},
    ]


def test_the_annotation_holds_all_ids_as_kubernetes_writes_it() -> None:
    drivers = [registration("b.d", node_id="ü"), registration("a.d", node_id="1")]
    assert node_annotations(drivers) == {"csi.volume.kubernetes.io/nodeid": '{"a.d":"1","b.d":"ü"}'}
    assert node_annotations([]) == {}


def test_a_foreign_text_becomes_one_short_line() -> None:
    assert shorten("a\nb\x1b[0m") == "a b [0m"
    assert shorten("x" * 3_000_000) == "x" * 500 + "… (3000000 characters)"
