"""Reads the inputs of a node call from the store when the call is made: attachment, secrets, tokens.

Rules:

* A VolumeAttachment counts only if it names this driver, this node and this PV, is attached, and is not being deleted.
  The stored object counts whether the node is connected or not (docs/csi-contract.md#mounting-while-the-hub-is-away).
* No message contains a value of a secret, a token or an attachment.
"""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from common.objects.objects import Ref
from edge.calls.node_requests import Inputs
from edge.stores.object_store import ObjectStore
from edge.volume_errors import NotReady
from edge.volumes import PodVolume, SecretRef, Volume, attachment_name
from edge.wanted.clock import Clock


class Waiting(NotReady):
    """The step waits for another party (hub, attacher, driver). Users hear of it only if it lasts long."""


class CallInputs:
    """Reads the inputs from the store."""

    def __init__(self, objects: ObjectStore, *, node: str, clock: Clock) -> None:
        self._objects = objects
        self._node = node
        self._clock = clock

    def to_stage(self, volume: Volume, *, driver_stages: bool) -> Inputs:
        """Return the inputs of NodeStageVolume; without secrets if the driver does not stage."""
        return Inputs(self.publish_context(volume), self.secrets(volume.stage_secret if driver_stages else None))

    def to_publish(self, want: PodVolume) -> Inputs:
        volume = want.volume
        return Inputs(self.publish_context(volume), self.secrets(volume.publish_secret), self.tokens(want))

    def publish_context(self, volume: Volume) -> dict[str, str]:
        """Return the attachment's metadata; empty if none is needed. Raises Waiting if it is not attached."""
        if volume.ephemeral or not volume.rules.attach_required:
            return {}
        ref = self._attachment_ref(volume)
        body = self._read(ref)
        if body is None:
            raise Waiting(f"PV {volume.name} is not attached to this node yet: there is no VolumeAttachment {ref.name}")
        try:
            return self._attached(body, volume, ref.name)
        except (AttributeError, KeyError, TypeError) as error:
            raise NotReady(f"{ref} is malformed ({type(error).__name__})") from None

    def attachment_uid(self, volume: Volume) -> str:
        """Return the uid of the volume's attachment; empty if there is none, or if it is being deleted."""
        if volume.ephemeral or not volume.rules.attach_required:
            return ""
        ref = self._attachment_ref(volume)
        try:
            body = self._read(ref)
            is_going = body is not None and body["metadata"].get("deletionTimestamp")
        except (AttributeError, KeyError, NotReady, TypeError):  # the attachment exists, whatever its content
            is_going = False
        return "" if is_going else self._objects.uid(ref)

    def secrets(self, ref: SecretRef | None) -> dict[str, str]:
        """Return the values of a Secret by key. Raises NotReady if it is missing, or a value is not text."""
        if ref is None:
            return {}
        body = self._read(Ref("Secret", ref.namespace, ref.name))
        if body is None:
            raise NotReady(f"secret {ref.namespace}/{ref.name} is not known to this node")
        values = {}
        for key, value in (body.get("data") or {}).items():
            try:
                values[key] = base64.b64decode(value, validate=True).decode()
            except (TypeError, ValueError):  # the cause would show the value
                raise NotReady(
                    f"secret {ref.namespace}/{ref.name}: the value of {key!r} is not a base64 text"
                ) from None
        return values

    def tokens(self, want: PodVolume) -> dict[str, dict[str, str]] | None:
        """Return the pod's service account tokens by audience; None if the CSIDriver object asks for none.

        Raises NotReady if one is missing or expired (docs/csi-contract.md#tokens-and-republishing).
        """
        audiences = [audience for audience, _ in want.volume.rules.token_audiences]
        if not audiences or want.volume.block:  # the kubelet passes none for a block volume (csi_block.go)
            return None
        pod = want.pod
        told = self._read(Ref("ServiceAccountToken", pod.namespace, pod.uid)) or {}
        have = told.get("tokens") or {}
        return {
            audience: self._token(have.get(audience), audience, want, told.get("problem")) for audience in audiences
        }

    def _read(self, ref: Ref) -> dict[str, Any] | None:
        try:
            found = self._objects.get(ref)
            return found.read() if found is not None else None
        except OSError as error:
            raise NotReady(str(error)) from error
        except ValueError:
            raise NotReady(f"{ref} is not readable") from None

    def _attachment_ref(self, volume: Volume) -> Ref:
        return Ref("VolumeAttachment", "", attachment_name(volume.driver, volume.handle, self._node))

    def _attached(self, body: Mapping[str, Any], volume: Volume, name: str) -> dict[str, str]:
        spec = body["spec"]
        status = body.get("status") or {}
        source = (spec.get("source") or {}).get("persistentVolumeName")
        if (spec.get("attacher"), spec.get("nodeName"), source) != (volume.driver, self._node, volume.name):
            raise NotReady(f"VolumeAttachment {name} is not for PV {volume.name}, driver {volume.driver} and this node")
        if body["metadata"].get("deletionTimestamp"):
            raise Waiting(
                f"PV {volume.name} is being detached from this node: VolumeAttachment {name} is being deleted"
            )
        if status.get("attached") is not True:
            why = (status.get("attachError") or {}).get("message")
            raise Waiting(f"PV {volume.name} is not attached to this node yet{f': {why}' if why else ''}")
        return {str(key): str(value) for key, value in (status.get("attachmentMetadata") or {}).items()}

    def _token(self, given: object, audience: str, want: PodVolume, problem: object) -> dict[str, str]:
        whose = f"service account {want.pod.namespace}/{want.pod.service_account} for audience {audience!r}"
        if not isinstance(given, dict):
            why = f"cannot be created: {problem}" if problem else "is not known to this node"
            raise NotReady(f"the token of {whose} {why}")
        try:
            token = str(given["token"])
            until = str(given["expirationTimestamp"])
            expires_at = datetime.fromisoformat(until).timestamp()
        except (KeyError, ValueError):
            raise NotReady(f"the token of {whose} is malformed") from None
        if expires_at <= self._clock.time():
            raise NotReady(f"the token of {whose} expired at {until}, and only the hub can give a new one")
        return {"token": token, "expirationTimestamp": until}
