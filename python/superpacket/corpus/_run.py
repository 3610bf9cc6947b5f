"""A run over a corpus: tasks given to the cluster, what they find added up in the files' order."""

from __future__ import annotations

import json
import re
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import distributed

from superpacket import _commands, _reports
from superpacket._superpacket import CorpusSummary, Error, OptionsError
from superpacket.corpus import _files, _scheduler, _tables, _tasks
from superpacket.corpus._report import CorpusReport
from superpacket.corpus._store import Store
from superpacket.corpus._tasks import Failure, Options, Part, Result, Survey

#: Tasks given to the cluster ahead, for each of its threads: a scheduler holds few at a time.
_AHEAD = 4
_LEAST_AHEAD = 64

#: Small files share a task, up to so many bytes or files: a task has its cost.
_GROUP_BYTES = 64 << 20
_GROUP_FILES = 100

#: Towards the end, tasks are as small that each thread has so many of them to come: all end together.
_GROUPS_LEFT = 4

#: Files whose results may wait for one before them.
_MOST_WAITING = 10_000

#: The names of the tables' files that tasks write.
_TABLE_FILE = re.compile(r"[0-9a-f]{20}-[0-9]{5,}\.parquet")


@dataclass
class _Waiting:
    """A file some of whose parts have been read."""

    file: _files.CorpusFile
    #: None until it is known.
    parts: list[Part] | None = None
    results: dict[int, Result] = field(default_factory=dict)
    failure: Failure | None = None
    #: Bytes that the bar was told of.
    told: int = 0

    def is_whole(self) -> bool:
        """Whether nothing more is to come."""
        if self.parts is None:
            return self.failure is not None
        return len(self.results) == max(1, len(self.parts))


@dataclass(frozen=True)
class _Task:
    """What is given to a worker at once."""

    #: Places of its files in the corpus: one, or several small files.
    indexes: tuple[int, ...]
    part: Part | None = None
    is_survey: bool = False


class _Output:
    """The tables and sums that the run itself writes, in the files' order."""

    def __init__(self, store: Store, options: Options, top: int, stack: ExitStack) -> None:
        self.summary = CorpusSummary(batch=options.batch, hold=options.hold, top=top)
        self.tables: set[str] = set()
        self.files = self.tasks = self.kept = self.result_bytes = self.split_files = self.parts = 0
        self.held = dict.fromkeys(("lro", "gro", "gro_udp", "lro_acks"), 0)
        self.unreadable: list[str] = []
        self.unreadable_files = 0

        def table(name: str, schema: Any) -> _tables.Rows:
            rows = _tables.Rows(stack.enter_context(store.writing(f"{name}/all.parquet")), schema)
            # Before the file takes its place.
            stack.push(lambda kind, error, trace: rows.close())
            return rows

        self._files = table("files", _tables.FILES)
        self._policies = table("policies", _tables.POLICIES)
        self._reasons = table("reasons", _tables.REASONS)

    def add(self, waiting: _Waiting) -> None:
        """Writes what was found in a file, or what is wrong with it."""
        name = waiting.file.name
        results = [waiting.results[number] for number in sorted(waiting.results)]
        self.tasks += len(results)
        self.kept += sum(result.kept for result in results)
        self.result_bytes += sum(len(result.found or "") for result in results)
        failure = waiting.failure or next((result.failure for result in results if result.failure is not None), None)
        identity = next((result.identity for result in results if result.identity is not None), None)
        known = (None, None, None) if identity is None else (identity.size, identity.time, identity.checksum)
        if failure is not None:
            self.unreadable_files += 1
            if len(self.unreadable) < 1000:
                self.unreadable.append(failure.words)
            self.summary.unreadable(failure.words)
            self._files.add(name, *known, *(None,) * 7, failure.words, failure.packet, failure.offset)
            return
        self.files += 1
        for result in results:
            self.tables.update(result.tables)
        found = [result.found for result in results if result.found is not None]
        for policy, numbers, reasons in self.summary.add(name, found):
            self._policies.add(name, policy, *numbers)
            self.held[policy] += numbers[-1]
            for reason, count in reasons:
                self._reasons.add(name, policy, reason, count)
        if len(found) > 1:
            self.split_files += 1
            self.parts += len(found)
        parts = [json.loads(part) for part in found]
        firsts = [part["first_time"] for part in parts if part["first_time"] is not None]
        lasts = [part["last_time"] for part in parts if part["last_time"] is not None]
        cut = parts[-1]["cut_short"]
        self._files.add(
            name,
            *known,
            len(parts),
            sum(part["traffic"]["packets"] for part in parts),
            sum(part["traffic"]["bytes"] for part in parts),
            _time(min(firsts, default=None)),
            _time(max(lasts, default=None)),
            parts[-1]["interfaces"],
            None if cut is None else f"packet {cut['packet']}, byte {cut['offset']}: {cut['reason']}",
            None,
            None,
            None,
        )


def _time(nanoseconds: int | None) -> int | None:
    """Returns a time that fits into a column, or none."""
    return nanoseconds if nanoseconds is not None and nanoseconds < 1 << 63 else None


class _Run:
    """The tasks of a run, in flight and to come."""

    def __init__(self, client: distributed.Client, files: list[_files.CorpusFile], options: Options, store: Store, retries: int) -> None:
        #: Of the time when this run calls the cluster.
        self.interrupts = _scheduler.Interrupts()
        self._client, self._files, self._options, self._store, self._retries = client, files, options, store, retries
        self._in_flight: dict[Any, _Task] = {}
        self._completed = distributed.as_completed(loop=client.loop, with_results=False, raise_errors=False)
        #: Parts of files that have been surveyed, and files that failed beside others.
        self._next: deque[_Task] = deque()
        self._coming = 0
        self._bytes_to_come = sum(file.size or 0 for file in files)
        self._waiting: dict[int, _Waiting] = {}
        self._threads = 1

    def _submit(self, task: _Task) -> None:
        files = [self._files[index] for index in task.indexes]
        function: Any
        arguments: tuple[Any, ...]
        retries = self._retries
        if len(files) > 1:
            # Those that fail are tried again one by one.
            function, arguments, retries = _tasks.analyze_files, (files, self._options, self._store), 0
        elif task.is_survey:
            function, arguments = _tasks.survey, (files[0], self._options, self._store)
        else:
            function, arguments = _tasks.analyze_part, (files[0], task.part, self._options, self._store)
        future = self._client.submit(function, *arguments, pure=False, retries=retries, priority=-task.indexes[0])
        self._in_flight[future] = task
        self._completed.add(future)

    def _fill(self, ahead: int) -> None:
        """Gives tasks to the cluster, up to so many."""
        while len(self._in_flight) < ahead:
            if self._next:
                self._submit(self._next.popleft())
                continue
            if len(self._waiting) >= _MOST_WAITING or self._coming == len(self._files):
                return
            self._submit(self._come())

    def _is_large(self, file: _files.CorpusFile) -> bool:
        return file.size is not None and file.size > self._options.part_size + self._options.part_size // 4

    def _come(self) -> _Task:
        """Takes the next file, or the next small files."""
        first = self._coming
        share = _GROUPS_LEFT * self._threads
        most_files = min(_GROUP_FILES, -(-(len(self._files) - first) // share))
        most_bytes = min(_GROUP_BYTES, self._bytes_to_come // share)
        size = 0
        while self._coming < len(self._files) and self._coming - first < most_files:
            file = self._files[self._coming]
            is_large = self._is_large(file)
            # What nobody knows the size of may be large.
            if self._coming > first and (is_large or file.size is None or size + file.size > most_bytes):
                break
            self._waiting[self._coming] = _Waiting(file, None if is_large else [])
            self._coming += 1
            size += file.size or 0
            if is_large or file.size is None:
                break
        self._bytes_to_come -= size
        return _Task(tuple(range(first, self._coming)), is_survey=self._is_large(self._files[first]))

    def _count_threads(self) -> int:
        """Returns how many tasks are given ahead."""
        self._threads = max(1, sum(self._client.nthreads().values()))
        return max(_LEAST_AHEAD, _AHEAD * self._threads)

    def completed(self, told: Any) -> Iterator[_Waiting]:
        """Gives files in their order, as all of each has been read."""
        first = finished = 0
        ahead = self._count_threads()
        self._fill(ahead)
        while self._in_flight:
            with self.interrupts.heard():
                future = next(self._completed)
            task = self._in_flight.pop(future)
            self._take(future, task)
            future.release()
            for index in task.indexes:
                told(self._waiting[index])
            finished += 1
            if finished % 256 == 0:
                # Clusters grow and shrink.
                ahead = self._count_threads()
            while (ready := self._waiting.get(first)) is not None and ready.is_whole():
                yield ready
                del self._waiting[first]
                first += 1
            self._fill(ahead)

    def _take(self, future: Any, task: _Task) -> None:
        waiting = self._waiting[task.indexes[0]]
        status: str = future.status
        answer: Any = None
        if status == "finished":
            try:
                answer = future.result()
            except Exception:
                # Its worker died before the answer was fetched, and the task failed the next time.
                status = future.status
                if status not in ("error", "lost"):
                    raise
        if status == "lost":
            # Its worker died before the answer was fetched; what it found is recorded.
            self._next.append(task)
            return
        if status == "error":
            error = future.exception()
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            failure = Failure(f"{waiting.file.name}: {words}")
            answer = Survey([], failure) if task.is_survey else Result(None, None, failure)
        elif status != "finished":
            raise RuntimeError(f"{waiting.file.name}: the scheduler gave its task up ({status}); start the run again to go on")
        if isinstance(answer, Survey):
            if answer.failure is not None:
                waiting.failure = answer.failure
                return
            waiting.parts = answer.parts
            whole: list[Part | None] = [None]
            self._next.extend(_Task(task.indexes, part) for part in answer.parts or whole)
        elif len(task.indexes) == 1:
            waiting.results[0 if task.part is None else task.part.number] = answer
        else:
            # Nobody knows which file killed a worker.
            each = answer if isinstance(answer, list) else [None] * len(task.indexes)
            for index, result in zip(task.indexes, each, strict=True):
                if result is None:
                    self._next.append(_Task((index,)))
                else:
                    self._waiting[index].results[0] = result

    def cancel(self) -> None:
        """Takes back what is in flight."""
        self._client.cancel(list(self._in_flight))


def _check(batch: int, hold: float, interval: float, part_size: int, top: int, checksum: str) -> tuple[int, int, int]:
    if checksum not in ("sampled", "whole"):
        raise OptionsError(f"checksum: {checksum!r} is neither 'sampled' nor 'whole'")
    _commands._whole("part_size", part_size, 1 << 10, 1 << 62)
    _commands._whole("top", top, 0, 64)
    # Infinity and NaN cannot be rounded.
    if not 1 <= interval * 1_000_000_000 < 1 << 63:
        raise OptionsError(f"interval: {interval} s is not between 1 ns and 292 years")
    return _commands._batch(batch), _commands._hold(hold), round(interval * 1_000_000_000)


def analyze(
    urls: list[str],
    output: str,
    *,
    scheduler: Any,
    batch: int,
    hold: float,
    interval: float,
    part_size: int,
    top: int,
    strict: bool,
    checksum: str,
    retries: int,
    memory_limit: str | int | None,
    storage_options: dict[str, Any],
    output_options: dict[str, Any],
    progress: _commands.Progress,
) -> CorpusReport:
    """Analyzes a corpus: see ``superpacket.corpus.analyze``."""
    packets, held_for, length = _check(batch, hold, interval, part_size, top, checksum)
    options = Options(packets, held_for, length, part_size, strict, checksum, run=uuid.uuid4().hex)
    store = Store.at(output, output_options)
    files = _files.find(urls, storage_options)
    store.clear_temporary()
    begin = _commands._begin(progress)
    bar: Any = None if begin is None else begin(f"{len(files)} files", sum(file.size or 0 for file in files))

    def told(waiting: _Waiting) -> None:
        size = waiting.file.size or 0
        share = size if waiting.is_whole() else size * len(waiting.results) // max(1, len(waiting.parts or []))
        if bar is not None and share > waiting.told:
            bar.update(share - waiting.told)
            waiting.told = share

    with ExitStack() as closing:
        if bar is not None:
            closing.callback(bar.close)
        client = closing.enter_context(_scheduler.client(scheduler, memory_limit))
        run = _Run(client, files, options, store, retries)
        closing.callback(run.cancel)
        # Tables take their places if all goes well, and not at all otherwise.
        with ExitStack() as stack:
            out = _Output(store, options, top, stack)
            stack.enter_context(run.interrupts.kept())
            for waiting in run.completed(told):
                out.add(waiting)
            # Tables that a typo would leave without rows stay as they are.
            if not out.files and store.size("files/all.parquet") is not None:
                raise Error(f"{output} stays as it was, since no capture could be read: {'; '.join(out.unreadable)}")
    report, page = out.summary.report()
    content = json.loads(report)
    store.write("summary.json", report.encode())
    store.write("summary.html", page.render().encode())
    _remove_others(store, out.tables)
    return CorpusReport(
        content,
        findings=_reports._findings(content),
        files=out.files,
        unreadable=out.unreadable,
        unreadable_files=out.unreadable_files,
        tasks=out.tasks,
        kept=out.kept,
        split_files=out.split_files,
        parts=out.parts,
        held_at_cuts=out.held,
        result_bytes=out.result_bytes,
        page=page,
    )


def _remove_others(store: Store, tables: set[str]) -> None:
    """Removes tables' files of captures that are no longer among those named, or were changed."""
    for folder in _tasks.TABLES:
        for name in store.names(folder):
            if _TABLE_FILE.fullmatch(name) and f"{folder}/{name}" not in tables:
                store.remove(f"{folder}/{name}")
