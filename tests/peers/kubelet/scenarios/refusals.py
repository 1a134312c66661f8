"""Scenarios of a driver that refuses: every gRPC code, at each call, until it works or until the pod goes."""

from functools import partial

from common.status import Code
from tests.peers.kubelet.cluster_objects import Volume
from tests.peers.kubelet.scenario import DOWN, NO_ATTACH, UP, Scenario
from tests.peers.kubelet.scene import Scene

CODES = tuple(code.name for code in Code if code is not Code.OK)


def _until_the_pod_goes(scene: Scene, *, method: str, code: str, works: bool = False) -> None:
    """Or until the driver works again before that."""
    scene.faults(f"{method}=error:{code}:no")
    scene.start_pod("a")
    scene.recorder.wait_for(method, status=code, times=2)
    if works:
        scene.faults()
        scene.wait_published("a")
    scene.end_pod("a")


def _while_the_pod_goes(scene: Scene, *, method: str, code: str) -> None:
    scene.run_pod("a")
    scene.faults(f"{method}=error:{code}:no")
    scene.delete_pod("a")
    scene.recorder.wait_for(method, status=code, times=2)
    scene.faults()
    scene.wait_gone("a")


def _hanging(scene: Scene, *, method: str) -> None:
    scene.faults(f"{method}=hang")
    scene.start_pod("a")
    scene.recorder.wait_for(method, timeout_s=150)
    scene.faults()
    scene.wait_published("a", timeout_s=180)
    scene.end_pod("a")


SCENARIOS = (
    *(
        Scenario(
            name=f"{word}-{code.lower().replace('_', '-')}",
            about=f"{method} answers {code}, then OK.",
            run=partial(_until_the_pod_goes, method=method, code=code, works=True),
            driver=NO_ATTACH,
        )
        for word, method in UP.items()
        for code in CODES
    ),
    *(
        Scenario(
            name=f"{word}-{code.lower().replace('_', '-')}-pod-deleted",
            about=f"{method} answers {code} until the pod is deleted.",
            run=partial(_until_the_pod_goes, method=method, code=code),
            driver=NO_ATTACH,
        )
        for word, method in UP.items()
        for code in CODES
    ),
    *(
        Scenario(
            name=f"{word}-{code.lower().replace('_', '-')}",
            about=f"{method} answers {code}, then OK.",
            run=partial(_while_the_pod_goes, method=method, code=code),
            driver=NO_ATTACH,
        )
        for word, method in DOWN.items()
        for code in ("INTERNAL", "UNAVAILABLE", "NOT_FOUND", "FAILED_PRECONDITION")
    ),
    *(
        Scenario(
            name=f"block-{word}-{code.lower().replace('_', '-')}-pod-deleted",
            about=f"{method} of a block volume answers {code} until the pod is deleted.",
            run=partial(_until_the_pod_goes, method=method, code=code),
            driver=NO_ATTACH,
            volumes=(Volume(name="disk", block=True),),
            leaves=(word == "stage" and code != "UNAVAILABLE"),
        )
        for word, method in UP.items()
        for code in ("INTERNAL", "UNAVAILABLE", "NOT_FOUND")
    ),
    *(
        Scenario(
            name=f"{word}-hangs",
            about=f"{method} hangs: the node cancels it after two minutes and retries.",
            run=partial(_hanging, method=method),
            driver=NO_ATTACH,
            slow=True,
        )
        for word, method in UP.items()
    ),
)
