"""A teller: prints the demo's lines, with colours and a spinner on a terminal, plain elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


class Teller:
    """Prints the story, act by act."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._act = 0

    def title(self, text: str) -> None:
        """Print the first line."""
        self._console.print(f"\n[bold]{escape(text)}[/bold]")

    def act(self, text: str) -> None:
        """Print the heading of a new part."""
        self._act += 1
        self._console.print(f"\n[bold cyan]{self._act}. {escape(text)}[/bold cyan]")

    def line(self, text: str) -> None:
        """Print a line."""
        self._console.print(f"   {escape(text)}")

    def good(self, text: str) -> None:
        """Print a success."""
        self._console.print(f"   [green]✓[/green] {escape(text)}")

    def away(self, text: str) -> None:
        """Print an expected refusal."""
        self._console.print(f"   [yellow]✗[/yellow] {escape(text)}")

    def left_out(self, text: str) -> None:
        """Print the reason why a step is left out here."""
        self._console.print(f"   [dim]- left out: {escape(text)}[/dim]")

    def failed(self, text: str) -> None:
        """Print that the demo failed."""
        self._console.print(f"\n[bold red]The demo failed:[/bold red] {escape(text)}")

    def hush(self) -> None:
        """Print no more: the terminal is gone."""
        self._console.quiet = True

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Print a text, with a spinner, during the block."""
        if self._console.is_terminal:
            with self._console.status(f"   {escape(text)}"):
                yield
        else:
            self.line(f"{text} …")
            yield
