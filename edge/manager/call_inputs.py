"""A node call's inputs: what it needs of the store at the moment when it is made: attachment, secrets, tokens, sizes.

Rules:

* A VolumeAttachment counts only if it is of this driver, this node and this PV, says attached, and is not being deleted
  (RULE C11): what the store has, whether the node is connected or not.
* Values of secrets, tokens and attachments never reach a message.
"""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from common.objects import Object, Ref
from edge.manager.clock import Clock
from edge.manager.expansion import ClaimSize, read_claim
from edge.manager.wanted import Objects
from edge.volume_errors import NotReady
from edge.volumes import Claim, PodVolume, SecretRef, Volume, attachment_name


class Waiting(NotReady):
    """Somebody else's turn: that it takes a while is nothing to tell a user of."""


class CallInputs:
    """Reads them from the store."""

    def __init__(self, objects: Objects, *, node: str, clock: Clock) -> None:
        """Reads nothing yet."""
        self._objects, self._node, self._clock = objects, node, clock

    def publish_context(self, volume: Volume) -> dict[str, str]:
        """`status.attachmentMetadata` of the volume's attachment; empty if it needs none.

        Raises:
            Waiting: it is not attached to this node.
        """
        if volume.ephemeral or not volume.rules.attach_required:
            return {}
        ref = self._attachment_ref(volume)
        found = self._get(ref)
        if found is None:
            raise Waiting(f"PV {volume.name} is not attached to this node yet: there is no VolumeAttachment {ref.name}")
        try:
            return self._attached(_body(found), volume, ref.name)
        except (AttributeError, KeyError, TypeError) as error:
            raise NotReady(f"{ref} is malformed ({type(error).__name__})") from None

    def attachment_uid(self, volume: Volume) -> str:
        """Which attachment the volume has, attached yet or not; empty if it needs none, or has none that stays."""
        if volume.ephemeral or not volume.rules.attach_required:
            return ""
        ref = self._attachment_ref(volume)
        try:
            found = self._get(ref)
            is_going = found is not None and _body(found)["metadata"].get("deletionTimestamp")
        except (AttributeError, KeyError, NotReady, TypeError):  # it is there, whatever it says
            is_going = False
        return "" if is_going else self._objects.uid(ref)

    def secrets(self, ref: SecretRef | None) -> dict[str, str]:
        """The values of a Secret by key; empty if none is asked for.

        Raises:
            NotReady: it is not there, or no text.
        """
        if ref is None:
            return {}
        found = self._get(Ref("Secret", ref.namespace, ref.name))
        if found is None:
            raise NotReady(f"secret {ref.namespace}/{ref.name} is not known to this node")
        values = {}
        for key, value in (_body(found).get("data") or {}).items():
            try:
                values[key] = base64.b64decode(value, validate=True).decode()
            except (TypeError, ValueError):  # the cause would show the value
                raise NotReady(
                    f"secret {ref.namespace}/{ref.name}: the value of {key!r} is not a base64 text"
                ) from None
        return values

    def tokens(self, want: PodVolume) -> dict[str, dict[str, str]] | None:
        """The pod's service account tokens by audience, as the driver's CSIDriver object asks; None if it does not.

        Raises:
            NotReady: one is missing or expired (RULE C9: none can be made here).
        """
        audiences = [audience for audience, _ in want.volume.rules.token_audiences]
        if not audiences or want.volume.block:  # the kubelet gives none with a block volume (csi_block.go)
            return None
        pod = want.pod
        found = self._get(Ref("ServiceAccountToken", pod.namespace, pod.uid))
        told = _body(found) if found is not None else {}
        have = told.get("tokens") or {}
        return {
            audience: self._token(have.get(audience), audience, want, told.get("problem")) for audience in audiences
        }

    def claim_size(self, claim: Claim) -> ClaimSize | None:
        """What the claim says of its size now; None if it is another one, or gone, or unreadable."""
        try:
            found = self._get(Ref("PersistentVolumeClaim", claim.namespace, claim.name))
            return read_claim(_body(found)) if found is not None and found.stamp.uid == claim.uid else None
        except (AttributeError, NotReady, TypeError, ValueError):
            return None

    def _get(self, ref: Ref) -> Object | None:
        try:
            return self._objects.get(ref)
        except OSError as error:
            raise NotReady(str(error)) from error

    def _attachment_ref(self, volume: Volume) -> Ref:
        return Ref("VolumeAttachment", "", attachment_name(volume.driver, volume.handle, self._node))

    def _attached(self, body: Mapping[str, Any], volume: Volume, name: str) -> dict[str, str]:
        spec, status = body["spec"], body.get("status") or {}
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
        """One token; `problem` is why the hub has none."""
        whose = f"service account {want.pod.namespace}/{want.pod.service_account} for audience {audience!r}"
        if not isinstance(given, dict):
            why = f"cannot be created: {problem}" if problem else "is not known to this node"
            raise NotReady(f"the token of {whose} {why}")
        try:
            token, until = str(given["token"]), str(given["expirationTimestamp"])
            expires_at = datetime.fromisoformat(until).timestamp()
        except (KeyError, ValueError):
            raise NotReady(f"the token of {whose} is malformed") from None
        if expires_at <= self._clock.time():
            raise NotReady(f"the token of {whose} expired at {until}, and only the hub can give a new one")
        return {"token": token, "expirationTimestamp": until}


def _body(found: Object) -> dict[str, Any]:
    try:
        return found.read()
    except ValueError:
        raise NotReady(f"{found.ref} is not readable") from None
