"""The agent's memory on disk: what was stored is there after any end, and what cannot be used ends in words."""

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from common.errors import SettingsError
from common.objects.objects import Object, Ref, Stamp, encode_body
from common.objects.sync import Compared, Confirmed, Untold
from common.objects.sync_messages import Change, InStep, drop, put
from common.store import database as database_module
from edge.stores import aes_gcm, object_store
from edge.stores.fact_store import MOST_EVENTS, FactRefused
from edge.stores.metastore import SCHEMA, Metastore
from edge.stores.sealing import load_sealer
from tests.kit.waiting import until

NODE = Ref("Node", "", "n1")


def item(name: str, version: int = 1, *, kind: str = "Pod", uid: str = "u", body: bytes = b'{"a":1}') -> Object:
    return Object(Ref(kind, "ns", name), Stamp(uid, str(version)), body)


def changes(*wanted: Object | tuple[Ref, str] | None) -> list[Change]:
    """Objects to put, keys and uids to drop, or None for `InStep`."""
    found: list[Change] = []
    for seq, one in enumerate(wanted, 1):
        if one is None:
            found.append(InStep(seq))
        else:
            found.append(put(seq, one) if isinstance(one, Object) else drop(seq, *one))
    return found


class Clock:
    """A time that a test moves."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[Metastore]:
    store = Metastore(tmp_path, clock=clock, retry_s=0.0)
    yield store
    await store.close()


async def reopened(directory: Path, store: Metastore | None = None) -> Metastore:
    """What an agent finds that starts now."""
    if store is not None:
        await store.close()
    return Metastore(directory)


def database(directory: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(directory / "edge.db"))


def files(directory: Path) -> list[Path]:
    return list(directory.iterdir())


# -------------------- objects --------------------


async def test_objects_beyond_the_limit_are_refused_and_drops_make_room(
    store: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "MOST_OBJECTS", 2)
    refused = await store.objects.store(changes(item("a"), item("b"), item("c"), item("a", 2), None))
    assert refused == {3: "this node has 2 objects, which is the limit"}
    assert (store.objects.refs("Pod"), store.objects.stamps()[item("a").ref].version) == (
        [item("b").ref, item("a").ref],
        "2",
    )
    assert await store.objects.store(changes((item("b").ref, "u"), item("c"))) == {}
    assert store.objects.refs("Pod") == [item("a").ref, item("c").ref]


async def test_objects_that_would_fill_the_disk_are_refused_and_drops_make_room(
    store: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "MOST_BYTES", 1 << 20)
    for number in range(100):
        refused = await store.objects.store(changes(item(f"p{number}", body=b"x" * 100_000), None))
        if refused:
            break
    assert number < 12
    assert list(refused) == [1]
    assert refused[1].endswith("and 1048576 is the limit")
    assert await store.objects.store(changes((item("p0").ref, "u"), (item("p1").ref, "u"))) == {}
    assert await store.objects.store(changes(item("q", body=b"x" * 100_000))) == {}


async def test_the_stamps_are_always_those_of_what_is_stored(store: Metastore) -> None:
    await store.objects.store(changes(item("a"), item("b"), item("a", 2), (item("b").ref, "u"), item("c")))
    assert store.objects.stamps() == {item("a").ref: Stamp("u", "2"), item("c").ref: Stamp("u", "1")}


async def test_a_drop_of_another_uid_drops_nothing(store: Metastore) -> None:
    await store.objects.store(changes(item("a", uid="new"), (item("a").ref, "old")))
    assert store.objects.get(item("a").ref) == item("a", uid="new")


async def test_another_object_of_the_same_name_replaces_the_first_one(store: Metastore, tmp_path: Path) -> None:
    await store.objects.store(changes(item("a", uid="old")))
    await store.objects.store(changes((item("a").ref, "old"), item("a", uid="new")))
    store = await reopened(tmp_path, store)
    assert store.objects.get(item("a").ref) == item("a", uid="new")
    await store.close()


async def test_subscribers_hear_of_each_transaction_once_when_it_is_on_the_disk(store: Metastore) -> None:
    heard: list[frozenset[Ref]] = []

    def hear(refs: frozenset[Ref]) -> None:
        for ref in refs:
            assert store.objects.get(ref) == item(ref.name)
        heard.append(refs)

    store.objects.subscribe(hear)
    await store.objects.store(changes(item("a"), item("b")))
    assert heard == [frozenset({item("a").ref, item("b").ref})]


async def test_a_subscriber_that_fails_keeps_nothing_from_the_others(
    store: Metastore, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[frozenset[Ref]] = []

    def fail(_: frozenset[Ref]) -> None:
        raise RuntimeError("a bug")

    store.objects.subscribe(fail)
    store.objects.subscribe(heard.append)
    await store.objects.store(changes(item("a")))
    assert len(heard) == 1
    assert "a bug" in caplog.text


async def test_it_is_in_step_from_the_word_on_until_the_stream_goes(
    store: Metastore, clock: Clock, tmp_path: Path
) -> None:
    heard: list[bool] = []
    store.objects.subscribe(lambda _: heard.append(store.objects.in_step))
    await store.objects.store(changes(item("a"), None))
    assert (store.objects.in_step, store.objects.heard_at) == (True, clock.now)
    clock.now += 60
    await store.objects.still_in_step()
    assert store.objects.heard_at == clock.now
    store.objects.out_of_step()
    assert (store.objects.in_step, store.objects.ever_in_step) == (False, True)
    assert heard == [True, False]
    heard_at = clock.now
    clock.now += 60
    await store.objects.still_in_step()
    store = await reopened(tmp_path, store)
    assert (store.objects.in_step, store.objects.ever_in_step) == (False, True), "nobody has filled it since"
    assert store.objects.heard_at == heard_at
    await store.close()


async def test_what_a_stream_told_that_is_gone_is_no_word_of_now(store: Metastore, clock: Clock) -> None:
    storing = asyncio.ensure_future(store.objects.store(changes(item("a"), None)))
    await asyncio.sleep(0)
    store.objects.out_of_step()  # the link goes before the disk has it
    await storing
    assert store.objects.get(item("a").ref) == item("a")
    assert (store.objects.in_step, store.objects.ever_in_step, store.objects.heard_at) == (False, True, clock.now)
    await store.objects.store(changes(None))
    assert store.objects.in_step


async def test_storing_goes_on_when_nobody_waits_for_it_any_more(store: Metastore) -> None:
    task = asyncio.create_task(store.objects.store(changes(item("a"))))
    await asyncio.sleep(0)
    task.cancel()
    await store.objects.settle()
    assert store.objects.get(item("a").ref) == item("a")


# -------------------- credentials --------------------

SECRET = item("db", kind="Secret", body=b'{"data":"c2VjcmV0LXBhc3N3b3Jk"}')
TOKEN = item("uid-1", kind="ServiceAccountToken", body=b'{"tokens":"secret-password"}')


async def test_credentials_never_lie_on_the_disk_as_they_are(store: Metastore, tmp_path: Path) -> None:
    await store.objects.store(changes(SECRET, TOKEN, item("a", body=b'{"plain":1}')))
    everything = b"".join(file.read_bytes() for file in files(tmp_path))
    assert b'{"plain":1}' in everything
    assert b"c2VjcmV0" not in everything
    assert b"secret-password" not in everything
    store = await reopened(tmp_path, store)
    assert store.objects.get(SECRET.ref) == SECRET
    assert store.objects.get(TOKEN.ref) == TOKEN
    await store.close()


async def test_only_the_owner_may_read_the_store_and_its_key(store: Metastore, tmp_path: Path) -> None:
    await store.objects.store(changes(SECRET))
    modes = {file.name: file.stat().st_mode & 0o777 for file in files(tmp_path)}
    assert modes.keys() == {"edge.db", "edge.db-wal", "edge.db-shm", "edge.key", "edge.lock"}
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("key", [None, b"", b"x" * 32], ids=["lost", "empty", "another"])
async def test_without_its_key_what_was_sealed_is_dropped_and_said_once(
    store: Metastore, tmp_path: Path, key: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    await store.objects.store(changes(SECRET, item("a"), None))
    await store.close()
    (tmp_path / "edge.key").unlink()
    if key is not None:
        (tmp_path / "edge.key").write_bytes(key)
    for _ in range(2):
        store = Metastore(tmp_path)
        assert store.objects.get(SECRET.ref) is None
        assert store.objects.refs("Secret") == []
        assert store.objects.get(item("a").ref) == item("a")
        assert store.objects.stamps() == {item("a").ref: item("a").stamp}
        await store.close()
    (said,) = [message for message in caplog.messages if "cannot be unsealed" in message]
    assert said.startswith("1 objects with credentials cannot be unsealed")
    assert said.endswith("Secret ns/db")
    store = Metastore(tmp_path)
    await store.objects.store(changes(SECRET))
    assert store.objects.get(SECRET.ref) == SECRET
    await store.close()


async def test_a_key_that_others_may_read_is_theirs_no_more_or_that_is_said(
    store: Metastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await store.objects.store(changes(SECRET))
    await store.close()
    key = tmp_path / "edge.key"
    key.chmod(0o644)

    def fail(*_given: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as read_only:
        read_only.setattr("edge.stores.sealing.Path.chmod", fail)
        load_sealer(key)
    assert caplog.messages == [f"{key} may be read by others, and its mode cannot be changed: Read-only file system"]
    store = Metastore(tmp_path)
    assert store.objects.get(SECRET.ref) == SECRET
    assert key.stat().st_mode & 0o777 == 0o600
    await store.close()


@pytest.mark.parametrize("size", [0, 15, 16, 17, 5000])
def test_the_ciphers_of_python_and_of_the_library_are_one_and_take_nothing_that_was_changed(size: int) -> None:
    ciphers = aes_gcm._OfPython(bytes(range(32))), aes_gcm._OfLibrary(bytes(range(32)))
    data, nonce, bound = bytes(size), b"123456789012", b"Secret"
    sealed, same = (it.encrypt(nonce, data, bound) for it in ciphers)
    assert sealed == same
    for it in ciphers:
        assert it.decrypt(nonce, sealed, bound) == data
        for changed in (
            (nonce[1:], sealed, bound), (nonce, sealed[:-1], bound), (nonce, b"", bound), (nonce, sealed, b"Pod"),
            (nonce, bytes([sealed[0] ^ 1]) + sealed[1:], bound), (b"", sealed, bound),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=r"\w"):
                it.decrypt(*changed)


async def test_a_sealed_row_cannot_stand_in_for_another_one(store: Metastore, tmp_path: Path) -> None:
    other = item("other", kind="Secret", body=b'{"data":"other"}')
    await store.objects.store(changes(SECRET, other))
    await store.close()
    with database(tmp_path) as thief:
        thief.execute("UPDATE objects SET body = (SELECT body FROM objects WHERE name = 'other') WHERE name = 'db'")
        thief.commit()
    store = Metastore(tmp_path)
    assert store.objects.get(SECRET.ref) is None
    assert store.objects.get(other.ref) == other
    await store.close()


# -------------------- files that cannot be used --------------------


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5_000])
async def test_a_damaged_store_is_moved_aside_and_begins_anew(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "edge.db").write_bytes(content)
    store = Metastore(tmp_path)
    assert not store.objects.ever_in_step
    await store.objects.store(changes(item("a")))
    await store.close()
    (aside,) = (file for file in files(tmp_path) if file.suffix == ".corrupt")
    assert aside.read_bytes() == content
    assert f"{tmp_path / 'edge.db'} is damaged" in caplog.messages[0]


async def test_pages_damaged_in_the_middle_are_found_at_the_start(store: Metastore, tmp_path: Path) -> None:
    await store.objects.store(changes(*(item(f"p{number:04}", body=b"x" * 300) for number in range(500)), None))
    store.facts.put(NODE, {"a": 1})
    await store.close()
    content = bytearray((tmp_path / "edge.db").read_bytes())
    content[40_960:] = b"\xff" * (len(content) - 40_960)
    (tmp_path / "edge.db").write_bytes(content)
    store = Metastore(tmp_path)
    assert store.objects.refs("Pod") == []
    assert not store.objects.ever_in_step
    assert store.facts.stamps() == {}
    await store.close()


@pytest.mark.parametrize("table", ["facts", "objects"])
async def test_a_body_that_is_damaged_beside_its_row_is_found_at_the_start(
    store: Metastore, tmp_path: Path, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A long body lies in pages of its own: nobody would miss them until it is wanted."""
    body = {"a": "x" * 100_000}
    if table == "facts":
        await stored_fact(store, NODE, body)
    else:
        await store.objects.store(changes(item("a", body=encode_body(body))))
    await store.close()
    content = bytearray((tmp_path / "edge.db").read_bytes())
    page = content.index(b"x" * 4_092) - 4  # one that is full of the body: it begins with the number of the next one
    content[page : page + 4] = b"\xff" * 4
    (tmp_path / "edge.db").write_bytes(content)
    store = Metastore(tmp_path)
    assert "is damaged" in caplog.messages[0]
    assert (told(store), store.objects.refs("Pod")) == ({}, [])
    await store.close()


async def test_a_newer_agents_store_is_left_alone(store: Metastore, tmp_path: Path) -> None:
    await store.objects.store(changes(item("a")))
    await store.close()
    with database(tmp_path) as newer:
        newer.execute(f"PRAGMA user_version={SCHEMA.version + 1}")
    key = tmp_path / "edge.key"
    key.write_bytes(b"a key as newer agents write it")
    with pytest.raises(SettingsError, match=r"--state-dir=.*edge.db: was written by a newer edge agent \(schema 2"):
        Metastore(tmp_path)
    assert key.read_bytes() == b"a key as newer agents write it"
    with database(tmp_path) as newer:
        assert newer.execute("SELECT count(*) FROM objects").fetchone() == (1,)


@pytest.mark.parametrize("name", ["edge.db", "edge.key"])
async def test_a_directory_in_a_files_place_is_the_operators_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for _ in range(2):  # and the lock is free again
        with pytest.raises(SettingsError, match=r"--state-dir=.*cannot be used"):
            Metastore(tmp_path)


async def test_a_body_that_the_disk_does_not_give_is_no_object_that_is_gone(store: Metastore) -> None:
    await store.objects.store(changes(item("a")))
    store._reader.close()
    with pytest.raises(OSError, match=r"edge.db: Pod ns/a cannot be read"):
        store.objects.get(item("a").ref)


# -------------------- writes that fail --------------------


def fill_up(directory: Path) -> None:
    """Let every write of an object or a fact fail from now on."""
    with database(directory) as other:
        for table in ("objects", "facts"):
            other.execute(
                f"CREATE TRIGGER full_{table} BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
            )


def empty(directory: Path) -> None:
    """Let writes work again."""
    with database(directory) as other:
        for table in ("objects", "facts"):
            other.execute(f"DROP TRIGGER full_{table}")


async def test_on_a_full_disk_it_works_on_from_what_it_has_and_stores_when_there_is_room(
    store: Metastore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await store.objects.store(changes(item("a")))
    fill_up(tmp_path)
    storing = asyncio.ensure_future(store.objects.store(changes(item("a", 2), None)))
    await until(lambda: store.trouble == "disk is full")
    assert (store.objects.get(item("a").ref), store.objects.in_step, storing.done()) == (item("a"), False, False)
    empty(tmp_path)
    await storing
    assert (store.objects.get(item("a").ref), store.objects.in_step) == (item("a", 2), True)
    path = tmp_path / "edge.db"
    assert [message for message in caplog.messages if "edge.db" in message] == [
        f"cannot write {path}; it is tried again, and the agent works from its earlier content: disk is full",
        f"{path} is written again, and nothing is missing in it",
    ]


async def test_the_end_gives_up_what_cannot_be_written(store: Metastore, tmp_path: Path) -> None:
    fill_up(tmp_path)
    storing = asyncio.ensure_future(store.objects.store(changes(item("a"))))
    store.facts.put(NODE, {"a": 1})
    await until(lambda: store.trouble)
    await store.close()
    with pytest.raises(OSError, match="could not be written before the agent ended"):
        await storing
    with pytest.raises(sqlite3.ProgrammingError):
        store._reader.execute("SELECT 1")


@pytest.mark.parametrize("ended", [True, False], ids=["after an end", "after a kill"])
async def test_a_store_that_cannot_be_written_at_the_start_is_worked_from_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ended: bool
) -> None:
    before = Metastore(tmp_path / "before")
    await before.objects.store(changes(item("a"), SECRET, None))
    before.facts.put(NODE, {"a": 1})
    await before.facts.flush()
    if ended:
        await before.close()
    shutil.copytree(tmp_path / "before", tmp_path / "edge", ignore=shutil.ignore_patterns("*-shm"))
    await before.close()
    path, is_full = tmp_path / "edge" / "edge.db", True

    def connect(file: Path, *given: Any, **more: Any) -> sqlite3.Connection:
        if file == path and is_full:
            raise sqlite3.OperationalError("database or disk is full")
        return database_module.connect(file, *given, **more)

    monkeypatch.setattr("edge.stores.metastore.open_database", connect)
    monkeypatch.setattr("edge.stores.metastore.connect", connect)
    store = Metastore(tmp_path / "edge", retry_s=0.0)
    assert (store.trouble, store.objects.ever_in_step) == ("database or disk is full", True)
    assert (store.objects.get(item("a").ref), store.objects.get(SECRET.ref)) == (item("a"), SECRET)
    assert store.facts.read(NODE) is not None
    assert caplog.messages == [
        f"{path} cannot be written; the agent works from its earlier content: database or disk is full",
    ]
    storing = asyncio.ensure_future(store.objects.store(changes(item("a", 2), item("b"))))
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.objects.get(item("a").ref) == item("a")
    is_full = False
    await storing
    assert [store.objects.get(item(name).ref) for name in ("a", "b")] == [item("a", 2), item("b")]
    store = await reopened(tmp_path / "edge", store)
    assert [store.objects.get(item(name).ref) for name in ("a", "b")] == [item("a", 2), item("b")]
    assert store.objects.get(SECRET.ref) == SECRET
    await store.close()


# -------------------- facts --------------------


def told(store: Metastore) -> dict[Ref, Stamp]:
    return dict(store.facts.stamps())


async def stored_fact(store: Metastore, ref: Ref, body: dict[str, object]) -> Stamp:
    """Put a fact; its stamp when it is on the disk."""
    store.facts.put(ref, body)
    await store.facts.flush()
    return told(store)[ref]


async def test_a_fact_is_told_when_it_is_on_the_disk(store: Metastore, tmp_path: Path) -> None:
    heard: list[frozenset[Ref]] = []
    store.facts.listen(heard.append)
    store.facts.put(NODE, {"status": {"volumesInUse": ["a"]}})
    assert told(store) == {}
    await store.facts.flush()
    assert heard == [frozenset({NODE})]
    fact = store.facts.read(NODE)
    assert fact is not None
    assert fact.read() == {"status": {"volumesInUse": ["a"]}}
    assert fact.stamp == told(store)[NODE]
    store = await reopened(tmp_path, store)
    assert store.facts.read(NODE) == fact
    await store.close()


async def test_the_same_fact_again_is_no_new_state(store: Metastore) -> None:
    stamp = await stored_fact(store, NODE, {"a": 1, "b": 2})
    store.facts.on_event(Confirmed(NODE, stamp))
    heard: list[frozenset[Ref]] = []
    store.facts.listen(heard.append)
    assert await stored_fact(store, NODE, {"b": 2, "a": 1}) == stamp
    assert NODE in store.facts._acked
    assert heard == []


async def test_of_a_fact_only_the_newest_state_is_told_and_acknowledged(store: Metastore, tmp_path: Path) -> None:
    first = await stored_fact(store, NODE, {"a": 1})
    second = await stored_fact(store, NODE, {"a": 2})
    store.facts.on_event(Confirmed(NODE, first))
    assert NODE not in store.facts._acked
    store.facts.on_event(Confirmed(NODE, second))
    assert NODE in store.facts._acked
    await store.facts.flush()
    store = await reopened(tmp_path, store)
    assert NODE in store.facts._acked
    store.facts.put(NODE, {"a": 3})
    assert NODE not in store.facts._acked
    await store.close()


async def test_a_fact_that_the_hub_turns_out_to_have_lost_is_not_acknowledged_any_more(
    store: Metastore, tmp_path: Path
) -> None:
    first, other = await stored_fact(store, NODE, {"a": 1}), Ref("CSINode", "", "n1")
    kept = await stored_fact(store, other, {"b": 1})
    store.facts.on_event(Compared({NODE: first, other: kept}))
    assert NODE in store.facts._acked
    store.facts.on_event(Compared({other: kept}))
    assert (NODE in store.facts._acked, other in store.facts._acked, store.facts.waiting) == (False, True, 1)
    waiting = asyncio.ensure_future(store.facts.wait_acked(NODE))
    await asyncio.sleep(0)
    assert not waiting.done()
    store = await reopened(tmp_path, store)
    assert (NODE in store.facts._acked, other in store.facts._acked) == (False, True)
    await store.close()
    waiting.cancel()


async def test_a_fact_of_which_the_hub_has_an_older_state_is_not_acknowledged_any_more(store: Metastore) -> None:
    """Its disk was restored from a copy."""
    first = await stored_fact(store, NODE, {"a": 1})
    second = await stored_fact(store, NODE, {"a": 2})
    store.facts.on_event(Confirmed(NODE, second))
    store.facts.on_event(Compared({NODE: first}))
    assert NODE not in store.facts._acked
    store.facts.on_event(Confirmed(NODE, second))
    assert NODE in store.facts._acked


class Held:
    """A value that the writer's thread waits for until the event is set."""

    def __init__(self, end: threading.Event) -> None:
        self._end = end

    def __conform__(self, _protocol: object) -> int:
        self._end.wait()
        return 0


@pytest.mark.parametrize("between", [{"a": 2}, None], ids=["changed", "dropped"])
async def test_a_fact_that_is_again_what_the_hub_just_stored_is_still_told_last(
    store: Metastore, between: dict[str, object] | None
) -> None:
    """The hub's word of the first state comes while the disk is about to show, and to tell, the one in between."""
    first = await stored_fact(store, NODE, {"a": 1})
    busy = threading.Event()
    holding = asyncio.ensure_future(store._writer.commit([("SELECT ?", (Held(busy),))]))
    if between is not None:
        store.facts.put(NODE, between)
    else:
        store.facts.drop(NODE)
    await asyncio.sleep(0)  # this is on its way to the disk
    store.facts.put(NODE, {"a": 1})
    store.facts.on_event(Confirmed(NODE, first))
    busy.set()
    assert NODE not in store.facts._acked
    await holding
    await store.facts.flush()
    assert told(store) == {NODE: first}
    store.facts.on_event(Confirmed(NODE, first))
    assert NODE in store.facts._acked


async def test_who_waits_for_a_fact_hears_when_the_hub_has_it(store: Metastore) -> None:
    stamp = await stored_fact(store, NODE, {"a": 1})
    waiting = asyncio.ensure_future(store.facts.wait_acked(NODE))
    cancelled = asyncio.ensure_future(store.facts.wait_acked(NODE))
    await asyncio.sleep(0)
    cancelled.cancel()
    store.facts.on_event(Confirmed(NODE, Stamp("", "older")))
    await asyncio.sleep(0)
    assert not waiting.done()
    store.facts.on_event(Confirmed(NODE, stamp))
    await waiting
    await store.facts.wait_acked(NODE)
    assert store.facts._waiters == {}


async def test_who_waits_for_a_fact_that_is_dropped_hears_that(store: Metastore) -> None:
    with pytest.raises(KeyError):
        await store.facts.wait_acked(NODE)
    store.facts.put(NODE, {"a": 1})
    waiting = asyncio.ensure_future(store.facts.wait_acked(NODE))
    await asyncio.sleep(0)
    store.facts.drop(NODE)
    with pytest.raises(KeyError):
        await waiting
    assert NODE not in store.facts._acked


async def test_a_fact_that_the_hub_refuses_is_told_to_its_waiters_and_a_new_state_of_it_counts(
    store: Metastore,
) -> None:
    earlier = await stored_fact(store, NODE, {"at": 1})
    waiting = asyncio.ensure_future(store.facts.wait_acked(NODE))
    await asyncio.sleep(0)
    store.facts.on_event(Untold(NODE, earlier, "node n2 has it"))
    with pytest.raises(FactRefused, match="node n2 has it"):
        await waiting
    store.facts.put(NODE, {"at": 2})
    waiting = asyncio.ensure_future(store.facts.wait_acked(NODE))
    await store.facts.flush()
    store.facts.on_event(Untold(NODE, earlier, "node n2 has it"))
    store.facts.on_event(Confirmed(NODE, store.facts.stamps()[NODE]))
    await waiting


async def test_a_dropped_fact_is_told_no_more_after_a_restart_too(store: Metastore, tmp_path: Path) -> None:
    await stored_fact(store, NODE, {"a": 1})
    heard: list[frozenset[Ref]] = []
    store.facts.listen(heard.append)
    store.facts.drop(NODE)
    await store.facts.flush()
    assert heard == [frozenset({NODE})]
    assert told(store) == {}
    store = await reopened(tmp_path, store)
    assert told(store) == {}
    await store.close()


def event(number: int) -> Ref:
    return Ref("Event", "ns", f"e{number}")


async def test_an_event_is_forgotten_when_the_hub_has_it_unless_it_happened_again(
    store: Metastore, tmp_path: Path
) -> None:
    first = await stored_fact(store, event(1), {"count": 1})
    second = await stored_fact(store, event(1), {"count": 2})
    store.facts.on_event(Confirmed(event(1), first))
    assert told(store) == {event(1): second}
    store.facts.on_event(Confirmed(event(1), second))
    await store.facts.flush()
    assert told(store) == {}
    store = await reopened(tmp_path, store)
    assert told(store) == {}
    await store.close()


async def test_an_event_that_the_hub_has_is_not_told_again_while_it_is_being_removed(store: Metastore) -> None:
    stamp = await stored_fact(store, event(1), {"count": 1})
    busy = threading.Event()
    holding = asyncio.ensure_future(store._writer.commit([("SELECT ?", (Held(busy),))]))
    store.facts.on_event(Confirmed(event(1), stamp))
    still_told = told(store)
    busy.set()
    await holding
    assert still_told == {}
    await store.facts.flush()
    assert store.facts.read(event(1)) is None


async def test_an_event_that_happens_again_is_not_told_in_its_old_state(store: Metastore) -> None:
    store.facts.on_event(Confirmed(event(1), await stored_fact(store, event(1), {"count": 1})))
    store.facts.put(event(1), {"count": 2})  # before the old state has left the disk
    assert event(1) not in store.facts.stamps()
    await store.facts.flush()
    told = store.facts.read(event(1))
    assert told is not None
    assert (told.read(), told.stamp) == ({"count": 2}, store.facts.stamps()[event(1)])


async def test_an_event_that_the_hub_refuses_is_forgotten_and_another_fact_stays(
    store: Metastore, caplog: pytest.LogCaptureFixture
) -> None:
    about = await stored_fact(store, event(1), {"count": 1})
    node = await stored_fact(store, NODE, {"a": 1})
    store.facts.on_event(Untold(event(1), about, "no such pod"))
    store.facts.on_event(Untold(NODE, node, "not yours"))
    await store.facts.flush()
    assert told(store) == {NODE: node}
    assert NODE not in store.facts._acked
    assert "the hub does not accept the fact Node n1 of this node: not yours" in caplog.messages


async def test_events_are_told_after_other_facts_and_the_oldest_of_too_many_are_dropped(
    store: Metastore, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for number in range(MOST_EVENTS + 20):
        store.facts.put(event(number), {"count": 1})
    store.facts.put(event(20), {"count": 2})  # the oldest that is left happens again
    store.facts.put(event(MOST_EVENTS + 20), {"count": 1})
    store.facts.put(NODE, {"a": 1})
    await store.facts.flush()
    refs = list(told(store))
    assert refs[0] == NODE
    assert len(refs) == MOST_EVENTS + 1
    assert event(21) not in refs
    assert event(20) in refs
    assert len([message for message in caplog.messages if "the oldest are dropped" in message]) == 1
    store = await reopened(tmp_path, store)
    assert set(told(store)) == set(refs)
    await store.close()


async def test_facts_that_come_and_go_while_the_disk_is_full_do_not_pile_up(store: Metastore, tmp_path: Path) -> None:
    await stored_fact(store, NODE, {"a": 0})
    fill_up(tmp_path)
    for number in range(3 * MOST_EVENTS):
        store.facts.put(event(number), {"count": 1})
        store.facts.put(NODE, {"a": number})
        if number % 100 == 0:
            await asyncio.sleep(0)
    await until(lambda: store.trouble)
    assert len(store.facts._unwritten) + len(store.facts._batch) < 3 * MOST_EVENTS
    assert store.facts.read(NODE) == Object(NODE, told(store)[NODE], encode_body({"a": 0}))
    empty(tmp_path)
    await store.facts.flush()
    assert len(told(store)) == MOST_EVENTS + 1
