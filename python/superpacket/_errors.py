"""Errors that are the system's too: ``except OSError`` catches them."""

from __future__ import annotations

from typing import Any

from superpacket._superpacket import CaptureError


class CaptureOSError(CaptureError, OSError):
    """The system could not open, read or write a capture: ``errno`` and ``filename`` are set, as of any OSError."""

    def __init__(self, text: str, number: int, reason: str, file: str) -> None:
        """Says it in the words of ``text``."""
        OSError.__init__(self, number, reason, file)
        self._text = text

    def __str__(self) -> str:
        """Returns file, place and reason."""
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps all of it in a pickle."""
        return type(self), (self._text, self.errno, self.strerror, self.filename), self.__dict__


class CaptureFileNotFoundError(CaptureOSError, FileNotFoundError):
    """There is no such file."""


class CapturePermissionError(CaptureOSError, PermissionError):
    """The file may not be read, or not be written."""


def of_system(text: str, number: int, reason: str, file: str) -> CaptureOSError:
    """Returns the exception for an error number, as ``OSError`` does."""
    kinds = {FileNotFoundError: CaptureFileNotFoundError, PermissionError: CapturePermissionError}
    return kinds.get(type(OSError(number, reason)), CaptureOSError)(text, number, reason, file)
