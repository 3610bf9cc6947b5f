"""Corpora of captures, analyzed by many workers on Dask.

``analyze`` reads files wherever fsspec can (this machine, S3, GCS, HTTP, members of archives), on the
threads or processes of this machine or on a cluster, and writes tables as Parquet and a summary page.
The same on the command line: ``python -m superpacket.corpus analyze GLOB... -o OUT``.

It needs more packages: ``pip install 'superpacket[corpus]'``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from superpacket._commands import Progress
    from superpacket._packets import Path
    from superpacket.corpus._report import CorpusReport

__all__ = ["analyze"]

_NEEDED = ("dask", "distributed", "fsspec", "pyarrow")


def _require() -> None:
    """Raises ImportError, which names the extra, unless all that is needed is there."""
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ImportError(f"superpacket.corpus needs {', '.join(missing)}: pip install 'superpacket[corpus]'")


def analyze(
    urls: Path | Iterable[Path],
    output: Path,
    *,
    scheduler: Any = None,
    batch: int = 64,
    hold: float = 0.001,
    interval: float = 1.0,
    part_size: int = 256 << 20,
    top: int = 10,
    strict: bool = False,
    checksum: Literal["sampled", "whole"] = "sampled",
    retries: int = 2,
    memory_limit: str | int | None = "256 MiB",
    storage_options: Mapping[str, Any] | None = None,
    output_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
) -> CorpusReport:
    """Says what each kind of aggregation would merge in all captures of a corpus, as ``superpacket.analyze`` does.

    Files that cannot be read are rows with their errors, and do not stop the rest. A run that was cut
    off goes on where it was when it is started again with the same output. If no capture can be read, an
    output that is there already stays as it was.

    :param urls: names or patterns of files, as fsspec has them: ``captures/**/*.pcap*``,
        ``s3://bucket/*.pcapng.zst``, ``tar://*.pcap::captures.tar``. A folder of this machine stands
        for all captures in it and below. What matches nothing is an error.
    :param output: the folder, or an address of fsspec's, where tables and the summary are written.
        All workers must reach it.
    :param scheduler: ``"threads"`` or ``"processes"``, with ``=4`` for so many; an address
        (``tcp://host:8786``); the name of a scheduler's file (``scheduler.json``); a
        ``distributed.Client``. Without it, the current client, else processes.
    :param batch: packets in a poll.
    :param hold: seconds that something is held at most, by the capture's clock.
    :param interval: seconds in an interval of packets by time.
    :param part_size: bytes in a part of a file that is read in parts; files are cut where a poll ends.
    :param top: flows in the top list, 64 at most.
    :param strict: a capture that ends within a record counts as unreadable.
    :param checksum: what of local files is compared when a run goes on: samples, or every byte.
    :param retries: how often a task is tried again after a failure that may pass, as of a network.
    :param memory_limit: what a process that is started here may take; None: no limit.
    :param storage_options: for fsspec, where the files are.
    :param output_options: for fsspec, where the output is.
    :param progress: as of ``superpacket.analyze``: one bar for the bytes of all files.
    """
    _require()
    from superpacket.corpus import _run

    return _run.analyze(
        [os.fspath(urls)] if isinstance(urls, (str, os.PathLike)) else [os.fspath(url) for url in urls],
        os.fspath(output),
        scheduler=scheduler,
        batch=batch,
        hold=hold,
        interval=interval,
        part_size=part_size,
        top=top,
        strict=strict,
        checksum=checksum,
        retries=retries,
        memory_limit=memory_limit,
        storage_options=dict(storage_options or {}),
        output_options=dict(output_options or {}),
        progress=progress,
    )
