"""A teller: how the demo speaks. Colours and a spinner on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


class Teller:
    """Tells the story, act by act."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._act = 0

    def title(self, text: str) -> None:
        """The first line."""
        self._console.print(f"\n[bold]{escape(text)}[/bold]")

    def act(self, text: str) -> None:
        """A new part of the story."""
        self._act += 1
        self._console.print(f"\n[bold cyan]{self._act}. {escape(text)}[/bold cyan]")

    def line(self, text: str) -> None:
        """Something that happens."""
        self._console.print(f"   {escape(text)}")

    def good(self, text: str) -> None:
        """Something that went as it should."""
        self._console.print(f"   [green]✓[/green] {escape(text)}")

    def away(self, text: str) -> None:
        """Something that is refused, and should be."""
        self._console.print(f"   [yellow]✗[/yellow] {escape(text)}")

    def left_out(self, text: str) -> None:
        """Something that cannot be shown here, and why."""
        self._console.print(f"   [dim]- left out: {escape(text)}[/dim]")

    def failed(self, text: str) -> None:
        """The demo itself failed."""
        self._console.print(f"\n[bold red]The demo failed:[/bold red] {escape(text)}")

    def hush(self) -> None:
        """Say nothing more: the terminal is gone."""
        self._console.quiet = True

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """While something takes its time."""
        if self._console.is_terminal:
            with self._console.status(f"   {escape(text)}"):
                yield
        else:
            self.line(f"{text} …")
            yield
