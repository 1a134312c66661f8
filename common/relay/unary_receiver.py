"""A unary receiver: takes the answer of a call that has one message, and tells it whole."""

from common.relay.client_call import ClientCall
from common.relay.errors import VendorAnswerInvalid, VendorConnectionError
from common.status import Status


class UnaryReceiver:
    """Receives one answer (`client_call.CallReceiver`). A subclass says what becomes of it."""

    __slots__ = ("_message",)

    def __init__(self) -> None:
        self._message: bytes | None = None

    def answered(self, status: Status, message: bytes | None) -> None:
        """The call is over, with the vendor's status, and with the message if the status is OK."""
        raise NotImplementedError

    def failed(self, error: VendorConnectionError) -> None:
        """The call has no status of the vendor's, or is OK without exactly one message."""
        raise NotImplementedError

    def took(self, call: ClientCall, message: bytes) -> None:
        """Keep the message; a second one ends the call."""
        if self._message is not None:
            call.give_up(VendorAnswerInvalid("answered with more than one message"))
        self._message = message
        call.consumed()

    def ended(self, status: Status) -> None:
        """Give the status, and the message if it is OK, to `answered`, or call `failed`."""
        if status.code:
            self.answered(status, None)
        elif self._message is None:
            self.failed(VendorAnswerInvalid("answered OK without a message"))
        else:
            self.answered(status, self._message)
