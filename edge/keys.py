"""Questions about a node's keys, and the process that answers the agent's.

Rules:

* Keys and certificate requests need the cryptography library (`edge.key_maker`), which takes 9 MB. An agent needs it at
  a renewal alone, and asks a short process of its own then. `edge join` is short itself, and asks the module.
* That process gets its question on standard input, answers on standard output, and opens no file of the node.
"""

import subprocess
import sys
from dataclasses import dataclass

from common.codec import Codec, UnknownFrame
from common.errors import RemoteProtocolError

_LIMIT_S = 60.0
"""A slow device starts the process in seconds."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks for the request that the node sends to the hub."""

    following: bytes  # the file of the next key; empty: there is none
    present: bytes  # the file of the present one; empty: there is none, or it may be the next one, too
    signs: bool  # whether the present key signs the request


@dataclass(frozen=True, slots=True)
class Asked:
    """The answer to `Ask`: the request for a certificate of the next key."""

    following: bytes  # the file of the next key: that of the question, or one with a new key
    request: bytes  # PKCS#10, DER
    certificate: bytes  # of the present key, DER; empty unless that signs
    signature: bytes


@dataclass(frozen=True, slots=True)
class Check:
    """Asks whether the hub's chain begins with a certificate of the next key."""

    following: bytes
    node: str
    chain: bytes
    ca: bytes
    now_s: int


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer to `Check` if it does: the key without its request."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Wrong:
    """The answer if it does not, or if a file is damaged."""

    why: str


CODEC: Codec[Ask | Asked | Check | Checked | Wrong] = Codec({0: Ask, 1: Asked, 2: Check, 3: Checked, 4: Wrong})


def answer_apart(question: Ask | Check) -> Asked | Checked:
    """As `edge.key_maker.answer`, by a process of its own. Raises OSError if it gives no answer."""
    command = [sys.executable, "-P", "-m", "edge.key_maker"]  # the modules of this process, and none of its directory
    try:
        done = subprocess.run(  # noqa: S603  # our own
            command, input=CODEC.encode(question), capture_output=True, timeout=_LIMIT_S, check=True
        )
        (found,) = CODEC.decode(done.stdout)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        how = (
            f"was killed by signal {-error.returncode} (it needs 32 MB of memory)"
            if error.returncode < 0
            else f"failed ({error.returncode}): {said}"
        )
        raise OSError(f"the process that makes keys {how}") from error
    except (subprocess.TimeoutExpired, RemoteProtocolError, ValueError) as error:
        raise OSError(f"the process that makes keys gave no answer: {error}") from error
    if isinstance(found, Wrong):
        raise ValueError(found.why)  # noqa: TRY004  # what a file or the hub gave is a value
    assert not isinstance(found, (UnknownFrame, Ask, Check))
    return found
