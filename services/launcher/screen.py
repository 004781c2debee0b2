"""Where a run's progress is shown: a live view on a terminal, plain lines elsewhere, almost nothing when quiet."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.console import RenderableType


class Screen(Protocol):
    """What the run shows itself on."""

    wants_view: bool
    """Whether `show` does anything, so that nobody polls in vain."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        ...

    def say(self, text: str) -> None:
        """Add a line that stays: a stage, a death, a restart."""
        ...

    def step(self, text: str) -> None:
        """Add a line of the trainer."""
        ...

    def show(self, view: RenderableType) -> None:
        """Replace the live view."""
        ...


class PlainScreen:
    """Lines on standard output."""

    wants_view = False

    def __init__(self, *, quiet: bool = False) -> None:
        """Show lines.

        Args:
            quiet: drop them.
        """
        self._quiet = quiet

    def __enter__(self) -> Self:
        """Nothing to begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to restore."""

    def say(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def step(self, text: str) -> None:
        """Print a line."""
        self.say(text)

    def show(self, view: RenderableType) -> None:
        """Nothing: there is no view."""


class LiveScreen:
    """A view at the bottom of a terminal, with lines scrolling above it."""

    wants_view = True

    def __init__(self) -> None:
        """Take the terminal."""
        from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
        from rich.live import Live  # noqa: PLC0415

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the view."""
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the view."""
        self._console.print(text, markup=False)

    def step(self, text: str) -> None:
        """Print a line above the view."""
        self.say(text)

    def show(self, view: RenderableType) -> None:
        """Draw the view."""
        self._live.update(view)


def make_screen(*, quiet: bool) -> Screen:
    """Choose by what standard output is."""
    if quiet or not sys.stdout.isatty():
        return PlainScreen(quiet=quiet)
    return LiveScreen()
