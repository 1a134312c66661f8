"""The volume manager under everything at once: pods come and go, steps fail, hang and are cut off, agents die.

Whatever happened: a volume has one step at a time; nothing is asked for that was written down as done; nothing is
unstaged under a mount; and when all is well again, what is mounted is what is wanted, and in the end nothing is left.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from common.objects.objects import Ref
from common.status import Code
from edge.calls.node_requests import Inputs
from edge.disk.found_volumes import Found, Published, Staged, published_for, staged_for
from edge.volume_errors import NotReady, Uncertain, VolumeError, VolumeRefused
from edge.volumes import PodVolume, attachment_name
from edge.wanted.states import Row, State
from tests.kit.edge_volumes import DRIVER, NODE, EdgeVolumes, FakePlugin, FakeStates, bare, persistent_volume
from tests.kit.examples import examples
from tests.kit.waiting import settle

PODS = ("a", "b", "c")
ATTACHMENT = Ref("VolumeAttachment", "", attachment_name(DRIVER, "h-data", NODE))
STEPS = ("stage", "publish", "unpublish", "unstage")

ACTIONS = st.one_of(
    st.tuples(st.just("come"), st.sampled_from(PODS)),
    st.tuples(st.just("go"), st.sampled_from(PODS)),
    st.tuples(st.just("back"), st.sampled_from(PODS)),
    st.tuples(st.just("attach"), st.sampled_from(["one", "two", ""])),
    st.tuples(st.just("rewrite"), st.sampled_from(["noatime", "nodev"])),
    st.tuples(st.just("fail"), st.sampled_from(STEPS), st.sampled_from(["refused", "uncertain", "not ready", "hang"])),
    st.tuples(st.just("turn"), st.sampled_from([0.5, 3.0, 130.0])),
    st.tuples(st.just("restart")),
    st.tuples(st.just("reboot")),
    st.tuples(st.just("lose states")),
    st.tuples(st.just("disk"), st.booleans()),
    st.tuples(st.just("driver"), st.booleans()),
    st.tuples(st.just("step"), st.booleans()),
)


class Plugin(FakePlugin):
    """It mounts also when nobody learns of that, and looks at what it is asked for."""

    def __init__(self, done: set[Published | Staged]) -> None:
        super().__init__()
        self.done = done
        self.wrong: list[str] = []

    def must(self, so: bool, otherwise: str) -> None:
        """Remember what must not be: an error here would be taken for a bug in a step, and the step tried again."""
        if not so:
            self.wrong.append(otherwise)

    @property
    def disk(self) -> Found:
        published = tuple(one for one in self.mounted if isinstance(one, Published))
        return Found(published=published, staged=tuple(one for one in self.mounted if isinstance(one, Staged)))

    async def scan(self) -> Found:
        return self.disk

    @contextlib.contextmanager
    def doing(self, what: Published | Staged) -> Iterator[None]:
        """Mounted in the end, unless the driver surely did not."""
        self.must(what not in self.done, f"{what} is done, and asked for again")
        try:
            yield
        except (NotReady, VolumeRefused):
            raise
        except BaseException:
            self.mounted.add(what)
            raise

    async def stage(self, wanted: PodVolume, inputs: Inputs, **given: Any) -> None:
        with self.doing(staged_for(wanted.volume)):
            await super().stage(wanted, inputs, **given)

    async def publish(self, wanted: PodVolume, inputs: Inputs, **given: Any) -> None:
        self.must(staged_for(wanted.volume) in self.mounted, "published before it was staged")
        with self.doing(published_for(wanted)):
            await super().publish(wanted, inputs, **given)

    async def unpublish(self, published: Published) -> None:
        self.done.discard(bare(published))
        await super().unpublish(published)

    async def unstage(self, staged: Staged, *, recorded: bool = True) -> None:
        self.must(not self.disk.published, "unstaged under a mount")
        self.done.discard(bare(staged))
        await super().unstage(staged, recorded=recorded)


class States(FakeStates):
    """It tells what was written down as done."""

    def __init__(self, done: set[Published | Staged]) -> None:
        super().__init__()
        self.done = done

    async def put(self, row: Row) -> None:
        await super().put(row)
        if row.state is State.DONE:
            self.done.add(bare(row))


class Model:
    """A node, and what happens to it."""

    def __init__(self, *, attach: bool) -> None:
        done: set[Published | Staged] = set()
        self.done, self.attach = done, attach
        self.plugin = Plugin(done)
        self.edge = EdgeVolumes(states=States(done), plugin=self.plugin)
        self.edge.add_driver(attachRequired=attach)
        self.edge.add_volume()
        self.wanted: dict[str, str] = {}
        self.hanging: list[asyncio.Event] = []
        self.uids = 0
        self.last: dict[str, str] = {}

    async def do(self, action: tuple[Any, ...]) -> None:  # noqa: PLR0912  # a case for each action
        match action:
            case ("come", pod):
                self.uids += 1
                self.wanted[pod] = self.last[pod] = f"{pod}-{self.uids}"
                self.edge.add_pod(pod, uid=self.wanted[pod])
            case ("go", pod) if pod in self.wanted:
                del self.wanted[pod]
                self.edge.store.drop(Ref("Pod", "default", pod))
            case ("back", pod) if pod in self.last:  # the hub had lost it for a moment
                self.wanted[pod] = self.last[pod]
                self.edge.add_pod(pod, uid=self.last[pod])
            case ("attach", uid) if self.attach:
                if uid:
                    self.edge.attach(metadata={"uid": uid})
                elif ATTACHMENT in self.edge.store.objects:
                    self.edge.store.drop(ATTACHMENT)
            case ("rewrite", option):
                self.edge.store.put(persistent_volume(mountOptions=[option]))
            case ("fail", step, how):
                self.plugin.fails(step, self._outcome(how))
            case ("turn", seconds):
                await self.edge.clock.turn(seconds)
            case ("restart",):
                await self.edge.restart(boot=self.edge.boot)
            case ("reboot",):
                await self.edge.manager.close(0.0)
                self.plugin.mounted.clear()
                self.done.clear()
                await self.edge.restart(boot=self.edge.boot + "'")
            case ("lose states",):
                await self.edge.manager.close(0.0)
                self.edge.states.kept.clear()
                self.done.clear()
                await self.edge.restart(boot=self.edge.boot)
            case ("disk", full):
                self.edge.states.trouble = "full" if full else ""
            case ("driver", here):
                self.edge.drivers.by_name[DRIVER].registered = here
                self.edge.drivers.tell()
            case ("step", in_step):
                self.edge.store.in_step = in_step
                self.edge.store.tell()
        await settle()

    def _outcome(self, how: str) -> VolumeError | asyncio.Event:
        if how == "hang":
            self.hanging.append(asyncio.Event())
            return self.hanging[-1]
        errors: Mapping[str, VolumeError] = {
            "refused": VolumeRefused("no", code=Code.INTERNAL),
            "uncertain": Uncertain("perhaps"),
            "not ready": NotReady("not yet"),
        }
        return errors[how]

    async def heal(self) -> None:
        """All is well again, and there is time enough."""
        self.plugin.outcomes.clear()
        for one in self.hanging:
            one.set()
        for action in (("disk", False), ("driver", True), ("step", True), ("attach", "three"), ("turn", 1000.0)):
            await self.do(action)

    def check(self) -> None:
        assert self.plugin.wrong == []
        assert max(self.plugin.at_once.values(), default=0) <= 1
        published = {one.pod_uid for one in self.plugin.mounted if isinstance(one, Published)}
        assert published == set(self.wanted.values())
        assert {row.pod_uid for row in self.edge.states.publications()} == published
        assert all(row.state is State.DONE for row in self.edge.states.kept.values())
        assert len(self.plugin.mounted) == (len(published) + 1 if published else 0)
        assert {one.state for one in self.edge.manager.describe()} <= {"published"}


async def live(actions: list[tuple[Any, ...]], *, attach: bool) -> None:
    model = Model(attach=attach)
    await model.edge.start()
    try:
        for action in actions:
            await model.do(action)
        await model.heal()
        model.check()
        for pod in list(model.wanted):
            await model.do(("go", pod))
        await model.heal()
        model.check()
        assert model.edge.states.kept == {}
    finally:
        await model.edge.manager.close(0.0)


@examples(120)
@given(actions=st.lists(ACTIONS, max_size=25), attach=st.booleans())
def test_in_the_end_what_is_mounted_is_what_is_wanted(*, actions: list[tuple[Any, ...]], attach: bool) -> None:
    asyncio.run(live(actions, attach=attach))
