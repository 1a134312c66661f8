"""Everything of a node in one book at one moment, for an order to forget it: what comes later stays. Pure."""

from cloud.placement.book import FORGOTTEN, Book


class OfNode:
    """The calls, ids and lists of a node.

    Attributes:
        driver: the driver of the book.
        book: the book.
        names: the names of the calls, and of the creates that made the ids.
        is_left: whether the hub has to note that the node had things.
    """

    def __init__(self, driver: str, book: Book, node: str, *, is_given_up: bool) -> None:
        """Without a note if the things are given up."""
        self.driver, self.book, self._node = driver, book, node
        self._calls = [(claim, claim.sent) for claim in book.claims.values() if claim.is_open and claim.node == node]
        self._ids = [(thing, its[node]) for thing, its in book.ids.items() if node in its]
        self._listed = {thing: book.listed[thing][node] for thing in book.listed_by(node)}
        self._lists = {it for it in book.lists if it[0] == node}
        self.names = {claim.name for claim, _ in self._calls} | {its.name for _, its in self._ids}
        had = bool(self._listed) or any(not its.gone for _, its in self._ids) or (node, FORGOTTEN) in self._lists
        self.is_left = had and not is_given_up

    def drop_lists(self) -> None:
        """Drop the lists, and leave the note. A call that comes from now on has to be recorded anew."""
        for claim, _ in self._calls:
            claim.is_confirmed = False
        for thing in self._listed:
            self.book.unlist(thing, self._node)
        self.book.lists = self.book.lists - self._lists | ({(self._node, FORGOTTEN)} if self.is_left else set())

    def restore_lists(self) -> None:
        """Undo `drop_lists`."""
        for thing, since in self._listed.items():
            self.book.list(thing, self._node, since)
        self.book.lists = self.book.lists - {(self._node, FORGOTTEN)} | self._lists

    def drop(self) -> None:
        """Drop all else that is still the same."""
        book, node = self.book, self._node
        for thing, its in self._ids:
            if book.ids.get(thing, {}).get(node) is its:
                book.drop(thing, node)
        for claim, sent in self._calls:
            if claim.sent > sent:  # a call was sent meanwhile: the records lack it
                claim.is_confirmed = False
            elif book.claims.get(claim.name) is claim:
                book.detach(claim)
        for claim in [book.claims[name] for name in self.names if name in book.claims]:
            book.index(claim)
