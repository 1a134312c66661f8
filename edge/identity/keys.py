"""Questions about a node's keys, and the process that answers the agent's.

Rules:

* Keys and certificate requests need the cryptography library (`edge.identity.key_maker`), which takes 9 MB. An agent
  needs it at a renewal alone, and asks a short process of its own then. `edge join` is short itself, and asks the
  module.
* That process gets its question on standard input, answers on standard output, and opens no file of the node.
"""

import subprocess
import sys
import threading
from dataclasses import dataclass

from common.codec import Codec
from common.errors import RemoteProtocolError

_LIMIT_S = 60.0  # a slow device starts the process in seconds


@dataclass(frozen=True, slots=True)
class AskForRequest:
    """Asks for the request that the node sends to the hub."""

    following: bytes  # the file of the next key; empty: there is none
    present: bytes  # the file of the present one; empty: there is none, or it may be the next one, too
    signs: bool  # whether the present key signs the request


@dataclass(frozen=True, slots=True)
class Asked:
    """The answer to `AskForRequest`: the request for a certificate of the next key."""

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


CODEC: Codec[AskForRequest | Asked | Check | Checked | Wrong] = Codec(
    {0: AskForRequest, 1: Asked, 2: Check, 3: Checked, 4: Wrong}
)


class KeyProcess:
    """Answers as `edge.identity.key_maker.answer`, each time by a process of its own. It blocks a thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._lock = threading.Lock()

    def answer(self, question: AskForRequest | Check) -> Asked | Checked:
        """Raises OSError if the process gives no answer."""
        try:
            said, complaint, code = self._run(CODEC.encode(question))
            if code < 0:
                raise OSError(f"the process that makes keys was killed by signal {-code} (it needs 32 MB of memory)")
            if code:
                why = complaint.decode(errors="replace").strip().rpartition("\n")[2]
                raise OSError(f"the process that makes keys failed ({code}): {why}")
            (found,) = CODEC.decode(said)
        except (subprocess.TimeoutExpired, RemoteProtocolError, ValueError) as error:
            raise OSError(f"the process that makes keys gave no answer: {error}") from error
        if isinstance(found, Wrong):
            raise ValueError(found.why)  # noqa: TRY004  # what a file or the hub gave is a value
        assert not isinstance(found, (AskForRequest, Check))
        return found

    def stop(self) -> None:
        """Kill the process, and start no other one. A thread that waited for it would delay the agent's end."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                self._process.kill()

    def _run(self, question: bytes) -> tuple[bytes, bytes, int]:
        # this process's modules, and none of its directory
        command = [sys.executable, "-P", "-m", "edge.identity.key_maker"]
        pipe = subprocess.PIPE
        with self._lock:
            if self._is_stopped:
                raise OSError("the agent stops")
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: S603  # our own
        with self._process as process:
            try:
                return *process.communicate(question, timeout=_LIMIT_S), process.returncode
            finally:
                process.kill()  # if it took too long
