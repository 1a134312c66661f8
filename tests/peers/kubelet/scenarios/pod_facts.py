"""Scenarios of what a driver learns of a pod: inline volumes, pod information, tokens, secrets, republishing."""

from functools import partial

from tests.peers.kubelet.cluster_objects import RWO, RWOP, Driver, Inline, Volume
from tests.peers.kubelet.scenario import NO_ATTACH, Scenario, one_pod
from tests.peers.kubelet.scene import Scene

_INLINE = Driver(attach=False, pod_info=True, inline=True)
_LABEL = {"user": "system_u", "role": "object_r", "type": "container_file_t", "level": "s0:c10,c20"}
_SECRETS = {
    "stage": {"user": "s", "password": "stage-secret"},
    "publish": {"user": "p", "password": "publish-secret"},
    "expand": {"user": "e", "password": "expand-secret"},
}


def _republished(scene: Scene) -> None:
    scene.start_pod("a")
    # The second call may come before anybody sees that the pod has its volume.
    scene.recorder.wait_for("NodePublishVolume", status="OK", times=3)
    scene.wait_published("a")
    scene.faults("NodePublishVolume=error:INTERNAL:not now")
    scene.recorder.wait_for("NodePublishVolume", status="INTERNAL")
    scene.faults()
    published = len(scene.recorder.recording.calls("NodePublishVolume", "OK"))
    scene.recorder.wait_for("NodePublishVolume", status="OK", times=published + 2)
    scene.end_pod("a")


def _secret_comes_late(scene: Scene, *, purpose: str) -> None:
    scene.start_pod("a")
    scene.let_pass("the node has tried without the Secret")
    scene.create_secret("data", purpose)
    scene.wait_published("a")
    scene.end_pod("a")


def _secret_never_comes(scene: Scene) -> None:
    scene.start_pod("a")
    scene.let_pass("the node has tried without the Secret")
    scene.end_pod("a")


def _measured(scene: Scene) -> None:
    scene.run_pod("a")
    scene.wait_measured()
    scene.end_pod("a")


def _registered(scene: Scene) -> None:
    scene.wait_registered()
    scene.note_registration("at first")
    scene.unregister()
    scene.let_pass("the node has forgotten the driver, if it does that soon")
    scene.note_registration("unregistered")
    scene.register()
    scene.wait_registered()
    scene.note_registration("registered again")


SCENARIOS = (
    Scenario(
        name="inline",
        about="An inline volume: neither attached nor staged.",
        run=partial(one_pod, inline=(Inline(),)),
        driver=_INLINE,
        volumes=(),
    ),
    Scenario(
        name="inline-with-everything",
        about="An inline volume with attributes and a secret, used read-only.",
        run=partial(
            one_pod,
            inline=(Inline(attributes={"size": "2Mi"}, read_only=True, secret={"password": "inline-secret"}),),
        ),
        driver=_INLINE,
        volumes=(),
    ),
    Scenario(
        name="inline-fs-group",
        about="An inline volume of a pod with an fsGroup.",
        run=partial(one_pod, inline=(Inline(),), security={"fsGroup": 2000}),
        driver=Driver(attach=False, pod_info=True, inline=True, fs_group_policy="File"),
        volumes=(),
    ),
    Scenario(
        name="inline-and-claim",
        about="A pod has an inline volume and a claim of the same driver.",
        run=partial(one_pod, inline=(Inline(),)),
        driver=_INLINE,
    ),
    Scenario(
        name="pod-info",
        about="NodePublishVolume names the pod, its namespace, UID and service account.",
        driver=Driver(pod_info=True),
        volumes=(Volume(attributes={"tier": "cold"}),),
    ),
    Scenario(
        name="tokens",
        about="The volume context holds tokens of the pod's service account.",
        driver=Driver(audiences=("", "vault")),
    ),
    Scenario(
        name="tokens-in-secrets",
        about="The secrets hold the tokens instead.",
        driver=Driver(audiences=("vault",), tokens_in_secrets=True),
        volumes=(Volume(secrets={"publish": {"password": "publish-secret"}}),),
    ),
    Scenario(
        name="secrets",
        about="NodeStageVolume and NodePublishVolume get a secret each.",
        volumes=(Volume(secrets=_SECRETS),),
    ),
    Scenario(
        name="secrets-no-stage",
        about="A stage secret for a driver without STAGE_UNSTAGE_VOLUME.",
        driver=Driver(flags=("--no-stage",)),
        volumes=(Volume(secrets=_SECRETS),),
    ),
    *(
        Scenario(
            name=f"{purpose}-secret-late",
            about=f"The {purpose} secret is created after the pod.",
            run=partial(_secret_comes_late, purpose=purpose),
            driver=NO_ATTACH,
            volumes=(Volume(secrets=_SECRETS, late_secrets=(purpose,)),),
        )
        for purpose in ("stage", "publish")
    ),
    Scenario(
        name="stage-secret-missing-pod-deleted",
        about="The stage secret is missing until the pod is deleted.",
        run=_secret_never_comes,
        driver=NO_ATTACH,
        volumes=(Volume(secrets=_SECRETS, late_secrets=("stage",)),),
    ),
    *(
        Scenario(
            name=name,
            about=f"A host without SELinux: seLinuxMount, a pod with a label, a {mode} claim.",
            run=partial(one_pod, security={"seLinuxOptions": _LABEL}),
            driver=Driver(attach=False, selinux_mount=True),
            volumes=(Volume(modes=(mode,)),),
        )
        for name, mode in (("selinux-mount", RWOP), ("selinux-mount-shared", RWO))
    ),
    Scenario(
        name="republish",
        about="requiresRepublish: a republish that fails leaves the volume mounted.",
        run=_republished,
        driver=Driver(republish=True),
    ),
    Scenario(
        name="stats",
        about="The node calls NodeGetVolumeStats.",
        run=_measured,
        volumes=(Volume(), Volume(name="disk", block=True)),
        measures=True,
    ),
    Scenario(
        name="old-single-node-modes",
        about="A driver without SINGLE_NODE_MULTI_WRITER.",
        driver=Driver(flags=("--no-multi-writer",)),
    ),
    Scenario(
        name="registration",
        about="A driver with topology registers, unregisters and registers again.",
        run=_registered,
        driver=Driver(flags=("--topology", "--max-volumes-per-node=7")),
        volumes=(),
    ),
)
