"""The one way to a terminal: what is not text is escaped, and a device that takes no more is told once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from spark_build.text import printable

if TYPE_CHECKING:
    from rich.console import Console


class OutputError(Exception):
    """Standard output takes no more: its device is full or broken."""


class ReaderGoneError(OutputError):
    """Whoever read the output went away. No OSError: click would make an exit code 1 of it."""


class Escaped:
    """A text stream that lets nothing through but text, tabs and ends of lines.

    Names and logs come from strangers, and a terminal obeys what is in them: titles, the clipboard (OSC 52),
    cursor movements, reversed text. It has no `buffer`, so that nothing goes past it.
    """

    def __init__(self, stream: TextIO, *, dispensable: bool) -> None:
        self.stream = stream
        self._dispensable = dispensable

    def write(self, text: str) -> int:
        """Write a text; OutputError where it cannot be written and somebody must know."""
        safe = printable(text, keep="\n\t")
        with self._telling():
            try:
                self.stream.write(safe)
            except UnicodeEncodeError:
                encoding = self.stream.encoding or "ascii"
                self.stream.write(safe.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """As `write`, for what was kept back."""
        with self._telling():
            self.stream.flush()

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            raise ReaderGoneError from error
        except OSError as error:
            if not self._dispensable:
                raise OutputError(error.strerror or str(error)) from error

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.stream, name)


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    """Let everything that is printed meanwhile be escaped. What stderr does not take is lost quietly."""
    before = sys.stdout, sys.stderr
    sys.stdout = cast("TextIO", Escaped(sys.stdout, dispensable=False))
    sys.stderr = cast("TextIO", Escaped(sys.stderr, dispensable=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def console(*, stderr: bool = False) -> Console:
    """Return rich's console, whose own control codes pass and whose text is escaped."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else printable(segment.text, keep="\n")
                yield segment._replace(text=text)

    stream = sys.stderr if stderr else sys.stdout
    # rich writes past the proxy of a live view that is shown: ask what is behind it.
    stream = getattr(stream, "rich_proxied_file", stream)
    return SafeConsole(file=stream.stream if isinstance(stream, Escaped) else stream, stderr=stderr)
