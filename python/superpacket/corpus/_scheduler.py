"""Dask's schedulers by the words of the command line."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import distributed
from dask.system import CPU_COUNT

from superpacket._superpacket import OptionsError


def _workers(scheduler: str, kind: str) -> int:
    count = scheduler[len(kind) :]
    if not count:
        return int(CPU_COUNT)
    if count[1:].isdecimal() and int(count[1:]) > 0:
        return int(count[1:])
    raise OptionsError(f"scheduler: {scheduler!r}: after {kind}= comes a number from 1 on")


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Makes processes that are begun here deaf to Ctrl-C, which reaches all of a terminal's: whoever began them ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupts:
    """Keeps Ctrl-C for when the run waits: distributed's calls leave a traceback behind where it comes within them."""

    def __init__(self) -> None:
        self._is_waiting = self._asked = False

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps interrupts that come within this, until ``heard``; at the latest they are raised at its end."""
        # Whoever hears interrupts in a way of their own goes on doing so.
        if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._take)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._raise()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Raises KeyboardInterrupt within this, also for what came before."""
        self._is_waiting = True
        try:
            self._raise()
            yield
        finally:
            self._is_waiting = False

    def _take(self, _signal: int, _frame: object) -> None:
        self._asked = True
        if self._is_waiting:
            self._raise()

    def _raise(self) -> None:
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt


@contextmanager
def client(scheduler: Any, memory_limit: str | int | None) -> Iterator[distributed.Client]:
    """Lends a client of a cluster, which is closed again if it was begun here."""
    if scheduler is None:
        try:
            scheduler = distributed.get_client()
        except ValueError:
            scheduler = "processes"
    if isinstance(scheduler, distributed.Client):
        yield scheduler
        return
    if not isinstance(scheduler, str):
        raise OptionsError(f"scheduler: {scheduler!r} is neither a name nor a distributed.Client")
    # What is begun here is for this machine alone.
    here = "127.0.0.1:0"
    # What fails reaches the caller as an exception. Workers log it too, for who looks after a cluster,
    # and after an interrupt that the scheduler is gone.
    options: dict[str, Any] = {"dashboard_address": here, "worker_dashboard_address": here, "silence_logs": logging.CRITICAL}
    if scheduler.partition("=")[0] == "threads":
        options |= {"processes": False, "n_workers": 1, "threads_per_worker": _workers(scheduler, "threads"), "memory_limit": None}
    elif scheduler.partition("=")[0] == "processes":
        count = _workers(scheduler, "processes")
        options |= {"processes": True, "n_workers": count, "threads_per_worker": 1, "memory_limit": memory_limit}
    elif "://" in scheduler:
        with distributed.Client(scheduler, set_as_default=False) as connected:
            yield connected
        return
    elif scheduler.endswith(".json"):
        with distributed.Client(scheduler_file=scheduler, set_as_default=False) as connected:
            yield connected
        return
    else:
        raise OptionsError(f"scheduler: {scheduler!r} is none of threads, processes, an address (tcp://host:8786), a file (scheduler.json)")
    # Workers keep no data that could be spilled, and one that waits for memory would wait forever.
    workers = {f"distributed.worker.memory.{what}": False for what in ("target", "spill", "pause")}
    # A worker that dies again while one begins in its place would else never get another, and a run
    # without workers would wait forever.
    lost: dict[str, Any] = {"distributed.deploy.lost-worker-timeout": "365 days"}
    # Tasks that wait at a worker when it dies are blamed for it too, so that none wait there.
    lost |= {"distributed.scheduler.worker-saturation": 1.0}
    with dask.config.set({**workers, **lost, "distributed.worker.memory.terminate": 1.0}):
        with _without_interrupts():
            cluster = distributed.LocalCluster(**options)
        with cluster, distributed.Client(cluster, set_as_default=False) as connected:
            yield connected
