"""The files of a corpus: found, told apart from changed ones, and opened."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from glob import has_magic
from typing import Any, Union

import fsspec
from fsspec.implementations.local import LocalFileSystem

from superpacket._packets import captures_of
from superpacket._superpacket import OptionsError

#: What of a file is looked at to tell it from a changed one: so many samples of so many bytes.
_SAMPLES = 16
_SAMPLE = 64 << 10

#: Read at once from what is not a file of this machine.
_BLOCK = 4 << 20

#: Names by which file systems say what bytes a file has, or which version it is.
_TAGS = ("ETag", "etag", "md5Hash", "crc32c", "Content-MD5", "Digest", "content_settings.content_md5", "version_id", "generation")

#: Names by which file systems say when a file was changed.
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "Last-Modified", "created")

#: Where the compiled part reads: a name or an object with ``read``, the first byte, and the byte
#: behind the last.
Stream = tuple[Union[str, Any], int, Union[int, None]]


@dataclass(frozen=True)
class Identity:
    """What tells a file from the same file after a change."""

    size: int | None
    #: When it was changed, in the words of its file system.
    time: str
    #: Of samples or of all bytes (blake2b), or what the file system says.
    checksum: str

    def json(self) -> dict[str, Any]:
        """Returns it as records have it."""
        return asdict(self)


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus."""

    #: As results have it: a path, or an address.
    name: str
    fs: Any
    path: str
    #: In bytes, when files were listed; None if its file system does not say.
    size: int | None

    @property
    def key(self) -> str:
        """Names the file's results."""
        return hashlib.blake2b(self.name.encode(), digest_size=10).hexdigest()

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine, or where it was mounted."""
        return isinstance(self.fs, LocalFileSystem)

    def identify(self, checksum: str) -> Identity:
        """Returns what tells it from the same file after a change."""
        if self.is_local:
            status = os.stat(self.path)
            return Identity(status.st_size, str(status.st_mtime_ns), _checksum_of_path(self.path, status.st_size, checksum))
        info = self._info()
        size, time = _size_and_time(info)
        if checksum == "whole":
            return Identity(size, time, _checksum_of_stream(self, None))
        tag = next((f"{name}:{info[name]}" for name in _TAGS if info.get(name)), None)
        return Identity(size, time, tag if tag is not None else _checksum_of_stream(self, _SAMPLE))

    def glance(self) -> tuple[int | None, str]:
        """Returns its size and time, without reading it."""
        if self.is_local:
            status = os.stat(self.path)
            return status.st_size, str(status.st_mtime_ns)
        return _size_and_time(self._info())

    def _info(self) -> dict[str, Any]:
        # Not what was known when files were listed.
        self.fs.invalidate_cache(self.fs._parent(self.path))
        info: dict[str, Any] = self.fs.info(self.path)
        return info

    def can_seek(self) -> bool:
        """Says whether its parts can be read without what is before them."""
        if self.is_local:
            return True
        if _is_http(self.fs):
            return self._has_ranges()
        # An archive that is compressed as a whole.
        return getattr(self.fs, "compression", None) is None

    def _has_ranges(self) -> bool:
        # Servers that know ranges need not say so: the second byte is asked for.
        with self.fs.open(self.path, "rb", block_size=_SAMPLE, cache_type="none") as opened:
            try:
                opened.seek(1)
                return len(opened.read(1)) == 1
            except ValueError:
                return False

    def stream(self, start: int = 0, end: int | None = None) -> Stream:
        """Opens it for one reading, from one byte to another."""
        if self.is_local:
            return self.path, start, end
        if _is_http(self.fs) and start == 0:
            # One answer, read as it comes; servers need not know ranges.
            return self.fs.open(self.path, "rb", block_size=0), start, end
        opened = self.fs.open(self.path, "rb", block_size=_BLOCK, cache_type="readahead")
        if start:
            opened.seek(start)
        return opened, start, end


def close(stream: Stream) -> None:
    """Closes what was opened."""
    if not isinstance(stream[0], str):
        stream[0].close()


def _size_and_time(info: dict[str, Any]) -> tuple[int | None, str]:
    return info.get("size"), next((str(info[name]) for name in _TIMES if info.get(name)), "")


def missing(file: CorpusFile) -> str:
    """Returns in words that a file is not there."""
    return "HTTP status 404 (not found)" if _is_http(file.fs) else "no such file"


def _is_http(fs: Any) -> bool:
    protocol = fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)
    return "http" in protocol or "https" in protocol


def _checksum_of_path(path: str, size: int, checksum: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        if checksum == "whole":
            while block := file.read(_BLOCK):
                digest.update(block)
            return f"blake2b:{digest.hexdigest()}"
        last = max(0, size - _SAMPLE)
        for place in sorted({last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)}):
            file.seek(place)
            digest.update(file.read(_SAMPLE))
    return f"samples:{digest.hexdigest()}"


def _checksum_of_stream(file: CorpusFile, most: int | None) -> str:
    digest = hashlib.blake2b(digest_size=16)
    stream = file.stream()
    opened: Any = stream[0]
    left = most
    try:
        while left is None or left > 0:
            block = opened.read(_BLOCK if left is None else min(left, _BLOCK))
            if not block:
                break
            digest.update(block)
            left = None if left is None else left - len(block)
    finally:
        close(stream)
    return f"{'blake2b' if most is None else 'head'}:{digest.hexdigest()}"


def _named(fs: Any, path: str, rest: str) -> str:
    if rest:
        protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
        return f"{protocol}://{path}::{rest}"
    return path if isinstance(fs, LocalFileSystem) else str(fs.unstrip_protocol(path))


def _found(url: str, storage_options: Mapping[str, Any]) -> Iterator[CorpusFile]:
    try:
        fs, path = fsspec.core.url_to_fs(url, **storage_options)
    except (ImportError, ValueError, TypeError, OSError) as error:
        raise OptionsError(f"{url}: {error}") from error
    rest = url.partition("::")[2]
    is_pattern = "*" in path if _is_http(fs) else has_magic(path)
    if isinstance(fs, LocalFileSystem) and os.path.exists(path):
        is_pattern = False
        if os.path.isdir(path):
            for capture in captures_of(path):
                yield CorpusFile(str(capture), fs, str(capture), os.path.getsize(capture))
            return
    if not is_pattern:
        try:
            size = fs.info(path).get("size")
        except Exception:
            # Its row in the results will say what is wrong.
            size = None
        yield CorpusFile(_named(fs, path, rest), fs, path, size)
        return
    for found, info in fs.glob(path, detail=True).items():
        if info.get("type") != "directory":
            yield CorpusFile(_named(fs, found, rest), fs, found, info.get("size"))


def find(urls: Sequence[str], storage_options: Mapping[str, Any]) -> list[CorpusFile]:
    """Returns all files that names and patterns stand for, in the order of their names, each once."""
    files: dict[str, CorpusFile] = {}
    for url in urls:
        found = {file.name: file for file in _found(url, storage_options)}
        if not found:
            raise OptionsError(f"no file matches {url}")
        files.update(found)
    if not files:
        raise OptionsError("no file was named")
    return [files[name] for name in sorted(files)]
