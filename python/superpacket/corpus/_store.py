"""Where results lie: files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from superpacket._superpacket import OptionsError

#: The folder of what runs need to go on: readers of the tables do not look at it.
STATE = ".superpacket"


@dataclass(frozen=True)
class Store:
    """A folder, on this machine or elsewhere."""

    fs: Any
    root: str
    #: Folders known to be there.
    _made: set[str] = field(default_factory=set, compare=False)

    @staticmethod
    def at(url: str, options: Mapping[str, Any]) -> Store:
        """Returns the store at a path or an address."""
        try:
            fs, root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError, TypeError, OSError) as error:
            raise OptionsError(f"{url}: {error}") from error
        return Store(fs, root.rstrip("/"))

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine, or where it was mounted."""
        return isinstance(self.fs, LocalFileSystem)

    def path(self, name: str) -> str:
        """Returns where something of this name lies."""
        return f"{self.root}/{name}"

    @contextmanager
    def writing(self, name: str) -> Iterator[str]:
        """Lends the path of a file to be written, which takes its place when it is whole."""
        place = self.path(name)
        folder = place.rpartition("/")[0]
        if self.is_local:
            temporary = self.path(f"{STATE}/temporary")
            for wanted in (temporary, folder):
                if wanted not in self._made:
                    os.makedirs(wanted, exist_ok=True)
                    self._made.add(wanted)
            unfinished = f"{temporary}/{uuid.uuid4().hex}"
            try:
                yield unfinished
                os.replace(unfinished, place)
            finally:
                if os.path.exists(unfinished):
                    os.unlink(unfinished)
        else:
            with tempfile.TemporaryDirectory(prefix="superpacket-") as temporary:
                unfinished = f"{temporary}/file"
                yield unfinished
                # Object stores show an object when all of it has come.
                self.fs.put_file(unfinished, place)

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file."""
        with self.writing(name) as unfinished, open(unfinished, "wb") as file:
            file.write(content)

    def write_json(self, name: str, content: Any) -> None:
        """Writes a small file as JSON."""
        self.write(name, json.dumps(content, separators=(",", ":")).encode())

    def read(self, name: str) -> bytes | None:
        """Reads a small file; None if there is none."""
        try:
            if self.is_local:
                with open(self.path(name), "rb") as file:
                    return file.read()
            content: bytes = self.fs.cat_file(self.path(name))
            return content
        except FileNotFoundError:
            return None

    def read_json(self, name: str) -> Any:
        """Reads a small file of JSON; None if there is none, or none that can be read."""
        content = self.read(name)
        try:
            return None if content is None else json.loads(content)
        except ValueError:
            return None

    def size(self, name: str) -> int | None:
        """Returns how many bytes a file has; None if there is none."""
        try:
            if self.is_local:
                return os.stat(self.path(name)).st_size
            self.fs.invalidate_cache(self.path(name).rpartition("/")[0])
            size: int = self.fs.info(self.path(name))["size"]
            return size
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """Returns the names of the files in a folder."""
        try:
            self.fs.invalidate_cache(self.path(folder))
            return sorted(path.rpartition("/")[2] for path in self.fs.ls(self.path(folder), detail=False))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """Removes a file, which may have gone already."""
        try:
            self.fs.rm_file(self.path(name))
        except FileNotFoundError:
            pass

    def clear_temporary(self) -> None:
        """Removes what a run that was cut off left unfinished."""
        if self.is_local:
            for name in self.names(f"{STATE}/temporary"):
                self.remove(f"{STATE}/temporary/{name}")
