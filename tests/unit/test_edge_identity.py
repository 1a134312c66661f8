"""The files of a joined node: a key is never lost or used again, and an answer that does not fit changes nothing."""

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cli.process_options import EDGE_OPTIONS
from common.errors import SettingsError
from common.net.certificate_ends import Term
from common.net.enrolment import Issued, JoinToken, renewal_text
from common.session.limits import Limits
from edge.identity.identity import Identity, Joined
from edge.identity.join import join
from edge.identity.key_maker import answer
from edge.identity.keys import KeyProcess
from edge.identity.renewal import RENEW_AT, due_at
from edge.settings import complete
from tests.kit.certificates import Authority

_DER = serialization.Encoding.DER


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return Identity(tmp_path / "state", answer)


HUBS = ("wss://hub.example:10350", "wss://standby.example:10350")


def issued(authority: Authority, request: bytes, node: str = "n1", **changes: Any) -> Issued:
    """A hub's answer to a certificate request."""
    key = x509.load_der_x509_csr(request).public_key()
    chain = authority.sign(key, node, lifetime_s=changes.pop("lifetime_s", 3600.0))
    usual = {
        "chain": chain,
        "ca": authority.path.read_bytes(),
        "generation": 1,
        "renew_grace_s": 60,
        "hubs": HUBS,
        "joins": ("wss://hub.example:10349",),
    }
    return Issued(**{**usual, **changes})


def joined(identity: Identity, authority: Authority) -> Identity:
    identity.store(issued(authority, identity.request(), "n1"), "n1", now=time.time())
    return identity


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_request_whose_answer_was_lost_is_the_same_after_a_restart(identity: Identity, tmp_path: Path) -> None:
    assert identity.request() == Identity(tmp_path / "state", answer).request()


def test_a_request_proves_a_p256_key_that_only_root_reads_whatever_the_umask(
    identity: Identity, tmp_path: Path
) -> None:
    former = os.umask(0)
    try:
        request = x509.load_der_x509_csr(identity.request())
    finally:
        os.umask(former)
    key = request.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert (key.curve.name, request.is_signature_valid) == ("secp256r1", True)
    assert mode(tmp_path / "state" / "identity") == 0o700
    assert mode(tmp_path / "state" / "identity" / "next.pem") == 0o600


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("/missing", "No such file"),
        ("/bin/false", r"failed \(1\)"),
        ("/bin/true", "gave no answer"),
        ("killed", "was killed by signal 9"),
    ],
)
def test_a_process_for_an_agents_key_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr("edge.identity.keys.sys.executable", str(tmp_path / program))
    with pytest.raises(OSError, match=why):
        Identity(tmp_path / "state").request()


def test_a_process_for_keys_that_hangs_ends_with_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, begun = tmp_path / "hangs", tmp_path / "begun"
    hangs.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 60\n")
    hangs.chmod(0o755)
    monkeypatch.setattr("edge.identity.keys.sys.executable", str(hangs))
    keys = KeyProcess()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(Identity(tmp_path / "state", keys.answer).request)
        while not begun.exists():
            time.sleep(0.01)
        since = time.monotonic()
        keys.stop()
        with pytest.raises(OSError, match="was killed by signal 9"):
            asked.result()
    assert time.monotonic() - since < 30
    with pytest.raises(OSError, match="the agent stops"):
        Identity(tmp_path / "state", keys.answer).request()


def test_the_process_for_keys_finds_the_program_where_the_agent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent installed for one user, or by PYTHONPATH, could join, and not renew."""
    (tmp_path / "edge" / "identity").mkdir(parents=True)
    (tmp_path / "edge" / "__init__.py").touch()
    (tmp_path / "edge" / "identity" / "key_maker.py").write_text("raise SystemExit('the agent has this one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(OSError, match="the agent has this one"):
        Identity(tmp_path / "state").request()


def test_a_damaged_request_is_made_anew(identity: Identity, tmp_path: Path) -> None:
    first = identity.request()
    (tmp_path / "state" / "identity" / "next.pem").write_bytes(b"half a k")
    assert identity.request() != first


def test_a_node_has_joined_once_its_certificate_is_stored(
    identity: Identity, authority: Authority, tmp_path: Path
) -> None:
    assert identity.joined() is None
    request = identity.request()
    assert identity.joined() is None
    identity.store(issued(authority, request), "n1", now=time.time())
    assert identity.joined() == Joined("n1", HUBS, ("wss://hub.example:10349",))
    assert mode(tmp_path / "state" / "identity" / "node.pem") == 0o600
    assert not (tmp_path / "state" / "identity" / "next.pem").exists()
    key = x509.load_der_x509_csr(request).public_key()
    assert x509.load_pem_x509_certificate(identity.files.cert.read_bytes()).public_key() == key


def test_each_renewal_has_a_key_of_its_own_and_the_present_one_signs_it(
    identity: Identity, authority: Authority
) -> None:
    first = identity.request()
    joined(identity, authority)
    renewal = identity.renewal(signed=True)
    assert renewal.request != first
    present = x509.load_der_x509_certificate(renewal.certificate)
    key = present.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    key.verify(renewal.signature, renewal_text(renewal.certificate, renewal.request), ec.ECDSA(hashes.SHA256()))
    assert key == x509.load_der_x509_csr(first).public_key()
    again = identity.renewal(signed=False)
    assert (again.request, again.certificate, again.signature) == (renewal.request, b"", b"")


def test_a_join_has_a_key_of_its_own_and_the_keys_of_before_end_with_it(
    identity: Identity, authority: Authority, tmp_path: Path
) -> None:
    """Somebody may have a copy of the directory, with the key of a renewal whose answer was lost."""
    joined(identity, authority)
    copied = identity.request()
    asked = identity.request("t-1")
    assert asked not in (copied, identity.request("t-2"))
    assert asked == Identity(tmp_path / "state", answer).request("t-1")
    identity.store(issued(authority, asked), "n1", now=time.time(), token="t-1")
    assert sorted(path.name for path in (tmp_path / "state" / "identity").glob("*.pem")) == ["node.pem"]
    assert identity.request() not in (copied, asked)


async def test_no_join_runs_while_the_agent_renews(identity: Identity) -> None:
    token = JoinToken(("wss://127.0.0.1:1",), bytes(32), "t-1", bytes(32))
    with identity.held(), pytest.raises(SettingsError, match="run the command again"):
        await join(token, "n1", identity.files.ca.parent.parent, limits=Limits())


def test_a_crash_after_the_certificate_was_stored_does_not_use_its_key_twice(
    identity: Identity, authority: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "identity" / "next.pem"
    first = identity.request()
    content = path.read_bytes()
    joined(identity, authority)
    path.write_bytes(content)  # the crash came before it was removed
    assert identity.request() != first


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"chain": b""}, None),
        ({"ca": b""}, None),
        ({"hubs": ()}, "address"),
        ({"hubs": ("hub.example",)}, "wss://"),
        ({"lifetime_s": -1.0}, "has ended"),
        ({"node": "n2"}, "another node"),
    ],
)
def test_an_answer_that_does_not_fit_changes_nothing(
    identity: Identity, authority: Authority, changes: dict[str, Any], why: str | None
) -> None:
    joined(identity, authority)
    before = identity.files.cert.read_bytes()
    answer = issued(authority, identity.request(), **changes)
    with pytest.raises(ValueError, match=why):
        identity.store(answer, "n1", now=time.time())
    assert identity.files.cert.read_bytes() == before
    assert identity.joined() is not None


def test_an_answer_for_another_key_changes_nothing(identity: Identity, authority: Authority, tmp_path: Path) -> None:
    identity.request()
    other = Identity(tmp_path / "other", answer).request()
    with pytest.raises(ValueError, match="another key"):
        identity.store(issued(authority, other), "n1", now=time.time())
    assert identity.joined() is None


def test_a_certificate_whose_names_cannot_be_read_changes_nothing(identity: Identity, authority: Authority) -> None:
    request = identity.request()
    key = x509.load_der_x509_csr(request).public_key()
    odd = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x03\xa3\x01\x00")  # an X.400 name
    chain = authority.sign(key, "n1", names=odd)
    with pytest.raises(ValueError, match="cannot be read"):
        identity.store(issued(authority, request, chain=chain), "n1", now=time.time())


def test_an_encrypted_key_is_named_and_not_asked_for(identity: Identity, authority: Authority) -> None:
    joined(identity, authority)
    key = ec.generate_private_key(ec.SECP256R1())
    locked = serialization.BestAvailableEncryption(b"secret")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    identity.files.cert.write_bytes(pem + identity.files.cert.read_bytes())
    with pytest.raises(ValueError, match="the key cannot be used"):
        identity.renewal(signed=True)


def test_a_damaged_file_of_the_join_is_named(identity: Identity, authority: Authority, tmp_path: Path) -> None:
    joined(identity, authority)
    (tmp_path / "state" / "identity" / "joined.json").write_text("{")
    with pytest.raises(SettingsError, match=r"joined\.json cannot be used: .*; repair it, or join again"):
        identity.joined()


def test_the_address_that_this_node_can_reach_comes_first_also_after_a_renewal(
    identity: Identity, authority: Authority
) -> None:
    told = {"hubs": ("wss://inside:1", "wss://outside:1"), "joins": ("wss://inside:2", "wss://outside:2")}
    identity.store(issued(authority, identity.request(), **told), "n1", now=time.time(), host="outside")
    identity.store(issued(authority, identity.request(), **told), "n1", now=time.time())
    found = identity.joined()
    assert found is not None
    assert (found.hubs, found.joins[0]) == (("wss://outside:1", "wss://inside:1"), "wss://outside:2")
    identity.store(issued(authority, identity.request(), one_hub=True, **told), "n1", now=time.time())
    assert (found := identity.joined()) is not None
    assert found.hubs == ("wss://outside:1",)


def test_a_term_begins_when_the_certificate_was_stored(identity: Identity, authority: Authority) -> None:
    joined(identity, authority)
    stored_at = time.time() - 10.0
    os.utime(identity.files.cert, (1.0, stored_at))
    assert identity.term() == Term(pytest.approx(stored_at, abs=0.1), pytest.approx(identity.dates().ends_at))


def test_a_clock_behind_the_hubs_does_not_lengthen_a_term(identity: Identity, authority: Authority) -> None:
    joined(identity, authority)
    stored_at = time.time() - 30 * 86_400.0  # by a clock that is a month behind
    os.utime(identity.files.cert, (1.0, stored_at))
    life_s = 3600.0 + 300.0  # the certificate's own: it is dated back by five minutes
    assert identity.term() == Term(pytest.approx(stored_at, abs=0.1), pytest.approx(stored_at + life_s, abs=5.0))


def test_a_certificate_that_had_ended_when_it_was_stored_has_its_own_dates(
    identity: Identity, authority: Authority
) -> None:
    joined(identity, authority)
    os.utime(identity.files.cert, (1.0, time.time() + 86_400.0))
    assert identity.term().ends_at == identity.dates().ends_at


@pytest.mark.parametrize(("spread", "part"), [(-1.0, RENEW_AT - 0.05), (0.0, RENEW_AT), (1.0, RENEW_AT + 0.05)])
def test_a_certificate_is_renewed_at_about_two_thirds_of_its_life(
    identity: Identity, authority: Authority, spread: float, part: float
) -> None:
    term = joined(identity, authority).term()
    life_s = term.ends_at - term.begins_at
    assert due_at(term, spread=spread) == pytest.approx(term.begins_at + part * life_s)


_FILES = {"tls_ca": "/ca.pem", "tls_cert": "/cert.pem", "tls_key": "/key.pem"}


@pytest.mark.parametrize(
    ("given", "node", "hub", "is_joined"),
    [
        ({}, "n1", "wss://hub.example:10350,wss://standby.example:10350", True),
        ({"hub": ["wss://a:1", "wss://b:1"]}, "n1", "wss://a:1,wss://b:1", True),
        ({"node": "n2", "hub": "wss://hub:1", **_FILES}, "n2", "wss://hub:1", False),
    ],
)
def test_an_agent_that_has_joined_needs_no_flag_and_flags_win_over_the_join(
    identity: Identity,
    authority: Authority,
    tmp_path: Path,
    given: dict[str, str | list[str]],
    node: str,
    hub: str,
    is_joined: bool,
) -> None:
    joined(identity, authority)
    settings = complete(EDGE_OPTIONS.read({"state_dir": str(tmp_path / "state"), **given}))
    assert (settings.node, ",".join(map(str, settings.hub)), settings.is_joined) == (node, hub, is_joined)
    assert (settings.tls_files() == identity.files) is is_joined


def test_an_agent_that_has_joined_under_another_name_does_not_start(
    identity: Identity, authority: Authority, tmp_path: Path
) -> None:
    joined(identity, authority)
    with pytest.raises(SettingsError, match="the node has joined as n1"):
        complete(EDGE_OPTIONS.read({"state_dir": str(tmp_path / "state"), "node": "n2"}))
