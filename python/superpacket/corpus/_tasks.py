"""What a worker does: a file, or a part of one, read once; its rows written, its sums given back."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from superpacket import _superpacket
from superpacket._superpacket import CaptureError
from superpacket.corpus._files import CorpusFile, Identity, close, missing
from superpacket.corpus._store import STATE, Store

#: Bytes from one place of an index to the next, at most; so much is read before a part begins.
_GRAIN = 4 << 20

#: Tables that tasks write.
TABLES = ("flows", "packets")


@dataclass(frozen=True)
class Options:
    """How captures are analyzed."""

    batch: int
    #: In nanoseconds.
    hold: int
    #: In nanoseconds.
    interval: int
    part_size: int
    strict: bool
    checksum: str
    #: Which run it is.
    run: str

    @property
    def key(self) -> str:
        """Tells results by other options, or of another version, apart."""
        options = asdict(self)
        del options["run"]
        what = json.dumps([_superpacket.__version__, options], sort_keys=True)
        return hashlib.blake2b(what.encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Part:
    """A part of a file."""

    number: int
    #: Where the reading begins: some MiB before it, as flows are to be known.
    lead: int
    #: Packets before that.
    lead_packets: int
    #: Its bytes.
    start: int
    end: int | None
    #: Packets before it.
    packets: int
    #: Bytes of the file's headers that its reader needs.
    headers: int
    #: Another part follows.
    continues: bool
    #: Of the file that was indexed.
    identity: Identity


@dataclass(frozen=True)
class Failure:
    """Why a file could not be read."""

    words: str
    packet: int | None = None
    offset: int | None = None


@dataclass(frozen=True)
class Survey:
    """How a large file is to be read: in parts, or as a whole if there are none."""

    parts: list[Part]
    failure: Failure | None = None


@dataclass(frozen=True)
class Result:
    """What a task gives back."""

    identity: Identity | None
    #: What was found, as JSON.
    found: str | None
    failure: Failure | None = None
    #: Names of the tables' files.
    tables: tuple[str, ...] = ()
    #: It was found before, by a run that was cut off or had the same files.
    kept: bool = False


def _failure(error: CaptureError, file: CorpusFile) -> Failure:
    return Failure(f"{file.name}: {error}" if file.name not in str(error) else str(error), error.packet, error.offset)


def _changed(file: CorpusFile) -> Failure:
    return Failure(f"{file.name}: it was changed while it was read")


def _identify(file: CorpusFile, options: Options) -> Identity | Failure:
    try:
        return file.identify(options.checksum)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        # It will not help to try again.
        reason = error.strerror or (missing(file) if isinstance(error, FileNotFoundError) else error)
        return Failure(f"{file.name}: cannot be opened: {reason}")


def survey(file: CorpusFile, options: Options, store: Store) -> Survey:
    """Finds out where a large file may be cut, or looks up where it was.

    The index is kept beside the results.
    """
    identity = _identify(file, options)
    if isinstance(identity, Failure):
        return Survey([], identity)
    name = f"{STATE}/index/{file.key}"
    wanted = {"identity": identity.json(), "batch": options.batch, "version": _superpacket.__version__}
    index = store.read_json(f"{name}.json")
    if not isinstance(index, dict) or index.get("for") != wanted or index["grain"] > options.part_size // 4:
        if not file.can_seek():
            return Survey([])
        grain = max(1, min(_GRAIN, options.part_size // 16))
        stream = file.stream()
        try:
            places, headers, packets = _superpacket.index(file.name, stream, grain=grain, multiple=options.batch)
        except CaptureError as error:
            if isinstance(error.__cause__, OSError):
                raise
            return Survey([], _failure(error, file))
        finally:
            close(stream)
        store.write(f"{name}.headers", headers)
        index = {"for": wanted, "grain": grain, "packets": packets, "places": places}
        store.write_json(f"{name}.json", index)
    return Survey(_cut(index["places"], identity, options.part_size))


def _cut(places: list[list[int]], identity: Identity, part_size: int) -> list[Part]:
    """Chooses the places where parts begin."""
    starts: list[int] = []
    for number, place in enumerate(places):
        left = part_size if identity.size is None else identity.size - place[0]
        if not starts or (place[0] >= places[starts[-1]][0] + part_size and left >= part_size // 4):
            starts.append(number)
    if len(starts) < 2:
        return []
    parts = []
    for number, (at, end) in enumerate(zip(starts, [*starts[1:], None])):
        start, lead = places[at], places[max(at - 1, 0)]
        parts.append(
            Part(
                number,
                lead[0],
                lead[1],
                start[0],
                None if end is None else places[end][0],
                start[1],
                lead[2],
                end is not None,
                identity,
            )
        )
    return parts


def _kept(store: Store, name: str, identity: Identity, run: str) -> Result | None:
    """Looks up what an earlier run found, or this one before a worker died, if the file and all that was written are unchanged."""
    record = store.read_json(name)
    if not isinstance(record, dict) or record["identity"] != identity.json():
        return None
    if any(store.size(table) != size for table, size in record["tables"].items()):
        return None
    failure = None if record["failure"] is None else Failure(**record["failure"])
    return Result(identity, record["found"], failure, tuple(record["tables"]), kept=record.get("run") != run)


def analyze_part(file: CorpusFile, part: Part | None, options: Options, store: Store) -> Result:
    """Analyzes a part of a file, or the whole.

    Tables take their places before the record that says so: what is recorded is there, and what is
    there is whole.
    """
    identity = _identify(file, options)
    if isinstance(identity, Failure):
        return Result(None, None, identity)
    if part is not None and part.identity != identity:
        return Result(identity, None, _changed(file))
    number = 0 if part is None else part.number
    record = f"{STATE}/tasks/{file.key[:2]}/{file.key}-{number:05}-{options.key}.json"
    kept = _kept(store, record, identity, options.run)
    if kept is not None:
        return kept
    found: str | None = None
    tables: dict[str, int] = {}
    failure: Failure | None = None
    try:
        found, tables = _read(file, part, number, options, store)
    except CaptureError as error:
        failure = _failure(error, file)
        if isinstance(error.__cause__, OSError):
            return Result(identity, None, failure)
    if file.glance() != (identity.size, identity.time):
        return Result(identity, None, _changed(file))
    told = None if failure is None else asdict(failure)
    content = {"identity": identity.json(), "found": found, "failure": told, "tables": tables, "run": options.run}
    store.write_json(record, content)
    return Result(identity, found, failure, tuple(tables))


def analyze_files(files: list[CorpusFile], options: Options, store: Store) -> list[Result | None]:
    """Analyzes small files, one after the other; None for one that is to be tried again by itself."""
    results: list[Result | None] = []
    for file in files:
        try:
            results.append(analyze_part(file, None, options, store))
        except Exception:
            # What was raised is told when it comes again.
            results.append(None)
    return results


def _read(file: CorpusFile, part: Part | None, number: int, options: Options, store: Store) -> tuple[str, dict[str, int]]:
    place = None
    if part is not None:
        headers = store.read(f"{STATE}/index/{file.key}.headers")
        if headers is None:
            raise OSError(f"{store.path(STATE)}/index/{file.key}.headers was removed while the run went on")
        place = (headers[: part.headers], part.lead, part.lead_packets)
    names = {table: f"{table}/{file.key}-{number:05}.parquet" for table in TABLES}
    with ExitStack() as stack:
        stream = file.stream() if part is None else file.stream(part.lead, part.end)
        stack.callback(close, stream)
        # The folders are left alone by tables without rows.
        waiting = {table: _Waiting(store, name, file.name, number) for table, name in names.items()}
        for table in waiting.values():
            stack.push(table.leave)
        found = _superpacket.analyze_part(
            file.name,
            stream,
            place,
            lambda table, batch: waiting[table].add(batch),
            first=1 if part is None else part.packets + 1,
            continues=part is not None and part.continues,
            batch=options.batch,
            hold=options.hold,
            interval=options.interval,
            strict=options.strict,
        )
    return found, {names[table]: store.size(names[table]) or 0 for table in TABLES if waiting[table].parts is not None}


class _Waiting:
    """A table's file, which is begun with its first rows."""

    def __init__(self, store: Store, name: str, file: str, number: int) -> None:
        self._store, self._name, self._file, self._number = store, name, file, number
        self._stack = ExitStack()
        self.parts: Any = None

    def add(self, batch: Any) -> None:
        """Writes a batch."""
        from superpacket.corpus._tables import Parts

        if self.parts is None:
            path = self._stack.enter_context(self._store.writing(self._name))
            self.parts = Parts(path, self._file, self._number)
        self.parts.add(batch)

    def leave(self, kind: Any, error: Any, trace: Any) -> bool:
        """Puts the file in its place, or removes it after an error."""
        if self.parts is not None:
            self.parts.close()
        self._stack.__exit__(kind, error, trace)
        return False
