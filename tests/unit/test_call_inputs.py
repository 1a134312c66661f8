"""A node call's inputs: what of the store is handed to a driver, and what is not trusted."""

from collections.abc import Mapping
from typing import Any

import pytest

from edge.volume_errors import NotReady
from edge.volumes import DriverRules, Pod, PodVolume, SecretRef, Volume
from edge.wanted.call_inputs import CallInputs, Waiting
from tests.kit.edge_volumes import DRIVER, NODE, FakeClock, FakeStore, attachment, secret

VOLUME = Volume(driver=DRIVER, handle="h-data", name="pv-data")
REF = SecretRef("default", "s")


def inputs(*bodies: Mapping[str, Any]) -> CallInputs:
    store = FakeStore()
    for body in bodies:
        store.put(body)
    return CallInputs(store, node=NODE, clock=FakeClock())


def test_the_publish_context_is_the_attachments_metadata() -> None:
    assert inputs(attachment()).publish_context(VOLUME) == {"lun": "7"}


def test_a_volume_that_needs_no_attachment_has_no_context() -> None:
    free = Volume(driver=DRIVER, handle="h-data", name="pv-data", rules=DriverRules(attach_required=False))
    inline = Volume(driver=DRIVER, handle="h-data", name="tmp", ephemeral=True)
    assert inputs(attachment()).publish_context(free) == {}
    assert inputs().publish_context(inline) == {}


@pytest.mark.parametrize(
    "given",
    [
        None,
        attachment(status={"attached": False, "attachError": {"message": "no room"}}),
        attachment(status={"attached": "yes"}),
        attachment(metadata={"deletionTimestamp": "2023-01-01T00:00:00Z"}),
    ],
)
def test_an_attachment_that_is_not_there_yet_is_waited_for(given: Mapping[str, Any] | None) -> None:
    with pytest.raises(Waiting, match="PV pv-data is"):
        inputs(*([given] if given else [])).publish_context(VOLUME)


@pytest.mark.parametrize(
    "spec", [{"nodeName": "other"}, {"attacher": "other"}, {"source": {"persistentVolumeName": "pv-other"}}]
)
def test_an_attachment_of_another_node_driver_or_volume_is_not_trusted(spec: dict[str, Any]) -> None:
    with pytest.raises(NotReady, match="is not for PV pv-data"):
        inputs(attachment(spec=spec)).publish_context(VOLUME)


@pytest.mark.parametrize("broken", [{"spec": 3}, {"status": []}, {"metadata": "x"}])
def test_an_attachment_that_makes_no_sense_is_not_trusted(broken: Mapping[str, Any]) -> None:
    store = FakeStore()
    ref = store.put(attachment())
    whole = store.objects[ref]
    store.put({**whole.read(), **{key: value for key, value in broken.items() if key != "metadata"}})
    if "metadata" in broken:
        body = whole.body.replace(b'"metadata":{', b'"metadata":3,"x":{')
        store.objects[ref] = type(whole)(ref, whole.stamp, body)
    with pytest.raises(NotReady):
        CallInputs(store, node=NODE, clock=FakeClock()).publish_context(VOLUME)


def test_a_secret_is_handed_on_as_text() -> None:
    assert inputs(secret("s", user="me", key="ü")).secrets(REF) == {"user": "me", "key": "ü"}
    assert inputs().secrets(None) == {}


@pytest.mark.parametrize("value", ["***", "/w==", 3, None])
def test_a_secret_that_is_no_text_is_named_and_not_shown(value: object) -> None:
    given = {**secret("s"), "data": {"key": value}}
    with pytest.raises(NotReady, match="secret default/s: the value of 'key' is not a base64 text") as caught:
        inputs(given).secrets(REF)
    assert str(value) not in str(caught.value).removeprefix("secret default/s")


def test_a_secret_that_is_missing_is_named() -> None:
    with pytest.raises(NotReady, match="secret default/s is not known to this node"):
        inputs().secrets(REF)


def wanting(*audiences: str) -> PodVolume:
    rules = DriverRules(token_audiences=tuple((one, 0) for one in audiences))
    volume = Volume(driver=DRIVER, handle="h", name="n", rules=rules)
    return PodVolume(pod=Pod(uid="u", namespace="ns", name="web", service_account="sa"), volume=volume, volume_name="v")


def tokens(**given: Any) -> dict[str, Any]:
    return {"kind": "ServiceAccountToken", "metadata": {"namespace": "ns", "name": "u"}, "tokens": given}


LATER = {"token": "secret-token", "expirationTimestamp": "2099-01-01T00:00:00Z"}


def test_the_tokens_that_the_driver_asks_for_are_handed_on_and_no_others() -> None:
    assert inputs(tokens(a=LATER, b=LATER)).tokens(wanting("a")) == {"a": LATER}
    assert inputs(tokens(a=LATER)).tokens(wanting()) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "is not known to this node"),
        ({"a": {**LATER, "expirationTimestamp": "2020-01-01T00:00:00Z"}}, "expired at 2020-01-01T00:00:00Z"),
        ({"a": {"token": "secret-token"}}, "is malformed"),
        ({"a": {**LATER, "expirationTimestamp": "soon"}}, "is malformed"),
        ({"a": "secret-token"}, "is not known to this node"),
    ],
)
def test_a_token_that_cannot_be_used_is_named_and_not_shown(given: dict[str, Any], why: str) -> None:
    with pytest.raises(NotReady, match=f"service account ns/sa for audience 'a' {why}") as caught:
        inputs(tokens(**given)).tokens(wanting("a"))
    assert "secret-token" not in str(caught.value)


def test_why_the_hub_has_no_token_is_told() -> None:
    refused = {**tokens(), "problem": 'Kubernetes: "robot" not found'}
    with pytest.raises(NotReady, match='cannot be created: Kubernetes: "robot" not found'):
        inputs(refused).tokens(wanting("a"))
