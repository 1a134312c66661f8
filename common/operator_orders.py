"""An operator's order to the hub, and its answer, as dataclasses. `common.pages.json_form` makes JSON of them.

An order's stream has the kind `Kind.ORDER` and the order's name (`order`) as its method.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol


class Order(Protocol):
    """A dataclass with the arguments of one order."""

    order: ClassVar[str]
    """The order's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """Refuse a node, a proxy driver or one certificate from now on, and end its links. The answer is `Done`.

    Attributes:
        subject: a node's name, `driver:NAME`, or a certificate's serial number (`serial:HEX`).
        why: the operator's reason; may be empty.
    """

    order: ClassVar[str] = "deny"
    subject: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """Undo a denial, and unlock a node whose copy was seen. The answer is `Done`.

    Attributes:
        subject: as of `Deny`.
    """

    order: ClassVar[str] = "allow"
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The hub has carried out an order.

    Attributes:
        said: the result, a sentence a line.
    """

    said: list[str]
