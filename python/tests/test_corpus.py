"""Corpora: the same results on any scheduler, whatever happens on the way."""

from __future__ import annotations

import gzip
import http.server
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy
import pyarrow.dataset
import pytest

import superpacket
from conftest import REPOSITORY, captures
from superpacket import corpus
from superpacket.corpus import _scheduler
from test_commands import needs_program, program


def records(demo: Path, times: int, first: int = 0) -> bytes:
    """Returns the records of the shipped capture several times, each a minute later."""
    plain = numpy.frombuffer(gzip.decompress(demo.read_bytes())[24:], numpy.uint8)
    starts = []
    at = 0
    while at < len(plain):
        starts.append(at)
        at += 16 + int(plain[at + 8 : at + 12].view("<u4")[0])
    copies = []
    for number in range(first, first + times):
        copy = plain.copy()
        for start in starts:
            copy[start : start + 4].view("<u4")[0] += 60 * number
        copies.append(copy.tobytes())
    return b"".join(copies)


def written(demo: Path, path: Path, times: int, first: int = 0) -> Path:
    """Writes such a capture, without compression."""
    path.write_bytes(gzip.decompress(demo.read_bytes())[:24] + records(demo, times, first))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Returns all files of a folder that readers see."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".superpacket" not in path.parts
    }


def table(folder: Path, name: str) -> Any:
    """Returns a table as pandas has it."""
    return pyarrow.dataset.dataset(folder / name).to_table().to_pandas()


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """Lends a client of worker processes."""
    options: dict[str, Any] = {"dashboard_address": None, "silence_logs": 50, "memory_limit": "256 MiB"}
    with distributed.LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, **options) as local:
        with distributed.Client(local, set_as_default=False) as client:
            yield client


@needs_program
def test_all_captures_on_processes_threads_and_by_the_program(tmp_path: Path) -> None:
    paths = captures()
    folder = str(paths[0].parents[1])
    patterns = sorted({f"{path.parent}/*" for path in paths})
    with cluster(2) as client:
        by_processes = corpus.analyze(patterns, str(tmp_path / "processes"), scheduler=client)
    by_threads = corpus.analyze([*patterns, patterns[0]], str(tmp_path / "threads"), scheduler="threads=2")
    assert tree(tmp_path / "processes") == tree(tmp_path / "threads")
    assert by_processes.json == by_threads.json
    code, expected = program("analyze", *sorted(map(str, paths)))
    assert code == 2 and folder in expected["files"][0]["file"]
    for part in ("traffic", "policies", "reasons", "packets_in", "packets_out", "bytes_in", "bytes_out", "merged", "super_packets"):
        assert by_threads.json[part] == expected[part], part
    found = {file["file"]: file for file in by_threads.json["files"]}
    assert list(found) == [file["file"] for file in expected["files"]]
    assert all(found[file["file"]] == file for file in expected["files"]), "file by file"
    assert sorted(by_threads.unreadable) == sorted(expected["unreadable"])
    # What the program lists with exact figures has them here too.
    exact = [flow for flow in expected["top_flows"] if flow["exact"]]
    assert exact and by_threads.json["top_flows"][0]["flow"] == exact[0]["flow"]

    out = tmp_path / "threads"
    files = table(out, "files")
    assert len(files) == len(paths) and files["error"].notna().sum() == len(expected["unreadable"])
    assert files["packets"].sum() == expected["packets_in"]
    reasons = table(out, "reasons")
    by_default = reasons[reasons["policy"] == "gro_udp"].groupby("reason")["packets"].sum().to_dict()
    assert by_default == expected["reasons"]
    policies = table(out, "policies").groupby("policy")["packets_out"].sum().to_dict()
    assert policies == {name: effect["packets_out"] for name, effect in expected["policies"].items()}
    packets = table(out, "packets")
    sums = packets[["packets_in", "bytes_in", "packets_out", "bytes_out"]].sum().to_dict()
    assert sums == {name: expected[name] for name in sums}
    flows = table(out, "flows")
    top = exact[0]
    end = [part.rpartition(":") for part in top["flow"].split(" ")[1::2]]
    rows = flows[(flows["source"] == end[0][0].strip("[]")) & (flows["destination"] == end[1][0].strip("[]"))]
    rows = rows[(rows["source_port"] == int(end[0][2])) & (rows["destination_port"] == int(end[1][2]))]
    assert (rows["packets_in"].sum(), rows["bytes_in"].sum()) == (top["packets_in"], top["bytes"])
    page = (out / "summary.html").read_text()
    assert f"{len(files) - len(expected['unreadable']):,} captures" in page and "Not read" in page


def test_a_cluster_by_address_by_file_and_as_the_current_one(demo: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with cluster(1) as client:
        first = corpus.analyze(str(demo), out, scheduler=client.scheduler.address)
        client.write_scheduler_file(str(tmp_path / "scheduler.json"))
        by_file = corpus.analyze(str(demo), out, scheduler=str(tmp_path / "scheduler.json"))
        with client.as_current():
            current = corpus.analyze(str(demo), out)
        assert client.status == "running", "it is left to its owner"
    assert (first.kept, by_file.kept, current.kept) == (0, 1, 1)
    assert first.json == by_file.json == current.json
    assert first.findings == superpacket.analyze(demo).findings


def test_a_file_in_parts_against_the_whole(demo: Path, tmp_path: Path) -> None:
    path = written(demo, tmp_path / "long.pcap", 12)
    whole = corpus.analyze(str(path), str(tmp_path / "whole"), scheduler="threads=1")
    assert whole.split_files == 0 and whole.tasks == 1
    split = corpus.analyze(str(path), str(tmp_path / "split"), scheduler="threads=2", part_size=1 << 20)
    assert (split.split_files, split.parts, split.tasks) == (1, split.parts, split.parts) and split.parts > 8
    shown = split.held_at_cuts
    assert [shown[policy] for policy in ("lro", "gro", "gro_udp")] == [0, 0, 0], "cut where polls end"
    for policy in ("lro", "gro", "gro_udp"):
        assert split.json["policies"][policy] == whole.json["policies"][policy]
    merged = whole.findings.policies["lro_acks"].totals.merged
    cost = abs(merged - split.findings.policies["lro_acks"].totals.merged)
    # The capture is repeated with its acknowledgements: a part does not know all of those before.
    assert cost <= shown["lro_acks"]
    lines = next(row for _, row in table(tmp_path / "split", "policies").iterrows() if row["policy"] == "lro_acks")
    assert lines["held_at_cuts"] == shown["lro_acks"]
    assert split.json["traffic"] == whole.json["traffic"]
    assert ("cut where nothing was held" if cost == shown["lro_acks"] == 0 else "Where they were cut, ") in split.to_html()
    sums = ["packets_in", "bytes_in", "packets_out"]
    of_whole, of_split = (table(tmp_path / folder, "flows").groupby("flow")[sums].sum() for folder in ("whole", "split"))
    assert of_whole["packets_in"].sum() > 0 and of_whole.equals(of_split)
    index = json.loads(next((tmp_path / "split" / ".superpacket" / "index").glob("*.json")).read_bytes())
    assert index["packets"] == whole.findings.totals.packets_in and len(index["places"]) >= split.parts

    # Without polls, something is held wherever it is cut: the cost is counted, and below 0.1 %.
    long = written(demo, tmp_path / "longer.pcap", 120)
    whole = corpus.analyze(str(long), str(tmp_path / "whole"), scheduler="threads=1", batch=0)
    by_polls = corpus.analyze(str(long), str(tmp_path / "polls"), scheduler="threads=1")
    in_parts = corpus.analyze(str(long), str(tmp_path / "parts"), scheduler="threads=2", part_size=32 << 20)
    merged, of_parts = (report.findings.policies["lro_acks"].totals.merged for report in (by_polls, in_parts))
    assert abs(merged - of_parts) <= in_parts.held_at_cuts["lro_acks"] <= merged / 1000, "below 0.1 % with polls too"
    split = corpus.analyze(str(long), str(tmp_path / "split"), scheduler="threads=2", batch=0, part_size=32 << 20)
    assert split.parts == 4 and sum(split.held_at_cuts.values()) > 0
    for policy, effect in whole.findings.policies.items():
        lost = abs(effect.totals.merged - split.findings.policies[policy].totals.merged)
        assert lost <= split.held_at_cuts[policy] and lost * 1000 <= effect.totals.merged, policy
    assert "Where they were cut, " in split.to_html()


def test_pcapng_in_parts(tmp_path: Path, demo: Path) -> None:
    path = tmp_path / "demo.pcapng"
    superpacket.coalesce(demo, path, max_packets=1)
    whole = corpus.analyze(str(path), str(tmp_path / "whole"), scheduler="threads=1")
    split = corpus.analyze(str(path), str(tmp_path / "split"), scheduler="threads=1", part_size=100_000)
    assert split.parts > 5
    assert split.json["policies"] == whole.json["policies"] and split.json["files"][0]["interfaces"] == whole.json["files"][0]["interfaces"]


def test_a_bad_file_is_a_row(demo: Path, tmp_path: Path) -> None:
    good = shutil.copy(demo, tmp_path / "good.pcap.gz")
    (tmp_path / "bad.pcap").write_bytes(b"this is no capture")
    broken = written(demo, tmp_path / "broken.pcap", 3)
    damaged = bytearray(broken.read_bytes())
    damaged[-2000:] = b"\xff" * 2000
    broken.write_bytes(damaged)
    missing = tmp_path / "missing.pcap"
    urls = [f"{tmp_path}/*.pcap*", str(missing)]
    for attempt in ("first", "again"):
        report = corpus.analyze(urls, str(tmp_path / "out"), scheduler="threads=1", part_size=1 << 20)
        assert report.files == 1 and report.unreadable_files == 3
        assert report.findings.totals.packets_in == superpacket.analyze(good).findings.totals.packets_in
        files = table(tmp_path / "out", "files").set_index("file")
        assert "not a capture file" in files.loc[str(tmp_path / "bad.pcap"), "error"]
        assert "cannot be opened" in files.loc[str(missing), "error"]
        assert files.loc[str(broken), "error_offset"] > 2_000_000 and files.loc[str(broken), "error_packet"] > 1000
        assert set(table(tmp_path / "out", "flows")["file"]) == {str(good)}, "nothing of the others"
        # What is known to be bad is not read again; what was missing may come.
        assert report.kept == (0 if attempt == "first" else 2)
    done = subprocess.run(
        [sys.executable, "-m", "superpacket.corpus", "analyze", *urls, "-o", tmp_path / "out", "--scheduler", "threads=1", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "not a capture file" in done.stderr and "1 captures" in done.stdout


def test_changed_and_removed_files(demo: Path, tmp_path: Path) -> None:
    first, second = written(demo, tmp_path / "a.pcap", 1), written(demo, tmp_path / "b.pcap", 1)
    pattern, out = f"{tmp_path}/*.pcap", tmp_path / "out"
    report = corpus.analyze(pattern, str(out), scheduler="threads=1")
    assert (report.tasks, report.kept, len(list((out / "flows").iterdir()))) == (2, 0, 2)
    before = tree(out)
    assert corpus.analyze(pattern, str(out), scheduler="threads=1").kept == 2
    assert tree(out) == before
    # The same size and time, other bytes.
    status = first.stat()
    content = bytearray(first.read_bytes())
    content[24] ^= 1
    first.write_bytes(content)
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert corpus.analyze(pattern, str(out), scheduler="threads=1").kept == 1
    assert tree(out) != before
    second.unlink()
    report = corpus.analyze(pattern, str(out), scheduler="threads=1")
    assert (report.files, report.kept, len(list((out / "flows").iterdir()))) == (1, 1, 1)
    # Whoever removes a table's file has it made again.
    next((out / "flows").iterdir()).unlink()
    assert corpus.analyze(pattern, str(out), scheduler="threads=1").kept == 0
    # Other options are other results.
    assert corpus.analyze(pattern, str(out), scheduler="threads=1", batch=32).kept == 0


def many(demo: Path, folder: Path) -> str:
    """Writes files that keep workers busy for some seconds; returns their pattern."""
    folder.mkdir()
    for number in range(12):
        written(demo, folder / f"{number:02}.pcap", 24, number)
    return f"{folder}/*.pcap"


def recorded(out: Path) -> int:
    """Returns how many tasks are done."""
    return len(list((out / ".superpacket" / "tasks").glob("*/*.json")))


def until(enough: Any, seconds: float = 60) -> None:
    """Waits for something."""
    end = time.monotonic() + seconds
    while not enough():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_worker_loses_nothing(demo: Path, tmp_path: Path) -> None:
    pattern = many(demo, tmp_path / "captures")
    expected = corpus.analyze(pattern, str(tmp_path / "expected"), scheduler="threads=2", part_size=8 << 20)
    killed: list[int] = []
    with cluster(2) as client:
        processes = list(client.run(os.getpid).values())

        def kill() -> None:
            until(lambda: recorded(tmp_path / "out") >= 5)
            os.kill(processes[0], signal.SIGKILL)
            killed.append(recorded(tmp_path / "out"))

        killer = threading.Thread(target=kill)
        killer.start()
        report = corpus.analyze(pattern, str(tmp_path / "out"), scheduler=client, part_size=8 << 20)
        killer.join()
    assert killed and killed[0] < report.tasks == 36
    assert report.unreadable == [] and report.json == expected.json
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


def test_a_run_that_was_cut_off_goes_on(demo: Path, tmp_path: Path) -> None:
    pattern, out = many(demo, tmp_path / "captures"), tmp_path / "out"
    expected = corpus.analyze(pattern, str(tmp_path / "expected"), scheduler="threads=2", part_size=8 << 20)
    command = [sys.executable, "-m", "superpacket.corpus", "analyze", pattern, "-o", str(out), "--scheduler", "threads=1"]
    run = subprocess.Popen([*command, "--part-size", "8MiB"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: recorded(out) >= 5)
    finally:
        run.kill()
        run.wait()
    done = recorded(out)
    assert 5 <= done < 36
    assert not (out / "files" / "all.parquet").exists() and not (out / "summary.json").exists()
    for path in (out / "flows").iterdir():
        assert pyarrow.dataset.dataset(path).count_rows() > 0, "what is there is whole"
    report = corpus.analyze(pattern, str(out), scheduler="threads=2", part_size=8 << 20)
    assert (report.tasks, report.kept) == (36, done)
    assert tree(out) == tree(tmp_path / "expected") and report.json == expected.json
    assert list((out / ".superpacket" / "temporary").iterdir()) == []


def test_ctrl_c_ends_a_run_which_goes_on_later(demo: Path, tmp_path: Path) -> None:
    pattern, out = many(demo, tmp_path / "captures"), tmp_path / "out"
    command = [sys.executable, "-m", "superpacket.corpus", "analyze", pattern, "-o", str(out), "--part-size", "1MiB"]
    command += ["--scheduler", "processes=2"]
    # What a shell begins in the background ignores SIGINT, and so would this.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heard)
    try:
        until(lambda: recorded(out) >= 5)
        # As a terminal does, to the workers too.
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=60)
    finally:
        run.kill()
    assert (run.returncode, said.strip()) == (130, "superpacket.corpus: interrupted; the same command goes on from here")
    done = recorded(out)
    report = corpus.analyze(pattern, str(out), scheduler="threads=2", part_size=1 << 20)
    assert 5 <= done == report.kept < report.tasks


def test_what_the_workers_of_a_cluster_begun_here_log_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with _scheduler.client("processes=1", None) as connected:
        said = partial(logging.getLogger("distributed.worker").error, "Failed to communicate with scheduler during heartbeat.")
        assert connected.submit(said).result(timeout=60) is None
    assert capfd.readouterr().err == ""


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT as Python has it, also where a shell began these tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_an_interrupt_waits_until_no_call_of_the_cluster_runs() -> None:
    interrupts = _scheduler.Interrupts()
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts.kept():
        signal.raise_signal(signal.SIGINT)
        reached.append("a call")
        with interrupts.heard():
            reached.append("a wait")
    with pytest.raises(KeyboardInterrupt), interrupts.kept(), interrupts.heard():
        signal.raise_signal(signal.SIGINT)
        reached.append("a wait")
    with pytest.raises(KeyboardInterrupt), interrupts.kept():
        signal.raise_signal(signal.SIGINT)
        reached.append("the last call")
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert reached == ["a call", "the last call"]
    own = signal.signal(signal.SIGINT, lambda *_: reached.append("a handler of the program's own"))
    try:
        with interrupts.kept(), interrupts.heard():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, own)
    assert reached[2:] == ["a handler of the program's own"]


def small_files(demo: Path, folder: Path, count: int) -> str:
    """Writes captures of some kB, of several lengths; returns their pattern."""
    folder.mkdir()
    whole = gzip.decompress(demo.read_bytes())
    for number in range(count):
        end = 24
        for _ in range(10 + number % 7):
            end += 16 + int.from_bytes(whole[end + 8 : end + 12], "little")
        (folder / f"{number:04}.pcap").write_bytes(whole[:end])
    return f"{folder}/*.pcap"


def test_small_files_share_tasks(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = small_files(demo, tmp_path / "captures", 500)
    (tmp_path / "captures" / "0123.pcap").write_bytes(b"this is no capture")
    written(demo, tmp_path / "captures" / "0200.pcap", 4)
    tasks: list[tuple[str, int]] = []
    with cluster(2) as client:
        submit = client.submit

        def noted(function: Any, *arguments: Any, **options: Any) -> Any:
            tasks.append((function.__name__, len(arguments[0]) if isinstance(arguments[0], list) else 1))
            return submit(function, *arguments, **options)

        monkeypatch.setattr(client, "submit", noted)
        report = corpus.analyze(pattern, str(tmp_path / "out"), scheduler=client, part_size=1 << 20)
        given, tasks = tasks, []
        again = corpus.analyze(pattern, str(tmp_path / "out"), scheduler=client, part_size=1 << 20)
    assert report.files == 499 and report.parts > 2 and report.tasks == 499 + report.parts
    assert len(report.unreadable) == 1 and report.unreadable[0].startswith(f"{tmp_path}/captures/0123.pcap: ")
    assert given.count(("survey", 1)) == 1
    assert sum(files for name, files in given if name != "survey") == report.tasks
    sizes = [files for name, files in given if name != "survey"]
    # The longest first; all workers end together.
    assert 50 <= max(sizes) <= 100 and sizes[-1] == 1 and len(given) < 60 + report.parts, given
    assert again.kept == again.tasks == report.tasks and again.json == report.json
    by_threads = corpus.analyze(pattern, str(tmp_path / "threads"), scheduler="threads=3", part_size=1 << 20)
    assert tree(tmp_path / "threads") == tree(tmp_path / "out") and by_threads.json == report.json
    files = table(tmp_path / "out", "files")
    assert len(files) == 500 and list(files["file"]) == sorted(files["file"]) and files["error"].notna().sum() == 1


def test_a_file_that_fails_beside_others_is_tried_by_itself(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from superpacket.corpus import _tasks

    pattern = small_files(demo, tmp_path / "captures", 60)
    analyzed = _tasks._read
    failures = {"0007.pcap": 2, "0031.pcap": 1000}

    def failing(file: Any, *arguments: Any) -> Any:
        name = file.name.rpartition("/")[2]
        if failures.get(name, 0) > 0:
            failures[name] -= 1
            raise OSError("the network is away")
        return analyzed(file, *arguments)

    monkeypatch.setattr(_tasks, "_read", failing)
    report = corpus.analyze(pattern, str(tmp_path / "out"), scheduler="threads=2")
    assert (report.files, report.kept) == (59, 0)
    assert report.unreadable == [f"{tmp_path}/captures/0031.pcap: OSError: the network is away"]
    assert failures == {"0007.pcap": 0, "0031.pcap": 1000 - 4}, "once beside others, three times by itself"
    monkeypatch.undo()
    again = corpus.analyze(pattern, str(tmp_path / "out"), scheduler="threads=2")
    assert (again.files, again.kept) == (60, 59)


class Deadly(distributed.WorkerPlugin):  # type: ignore[misc]
    """Makes a worker, also one that takes the place of a dead one, die of a file."""

    def setup(self, worker: Any) -> None:
        """Puts death into the reading of a file."""
        from superpacket.corpus import _tasks

        read = _tasks._read

        def deadly(file: Any, *arguments: Any) -> Any:
            if file.name.endswith("0020.pcap"):
                os._exit(1)
            return read(file, *arguments)

        setattr(_tasks, "_read", deadly)


def test_a_file_that_kills_workers_takes_no_other_with_it(demo: Path, tmp_path: Path) -> None:
    pattern = small_files(demo, tmp_path / "captures", 48)
    # A worker takes seconds to begin: two are enough for a file. None that waits at one is blamed.
    settings = {"distributed.scheduler.allowed-failures": 1, "distributed.scheduler.worker-saturation": 1.0}
    with dask.config.set(settings), cluster(2) as client:
        client.register_plugin(Deadly())
        report = corpus.analyze(pattern, str(tmp_path / "out"), scheduler=client)
    # Those that were recorded before the worker died are no earlier run's.
    assert report.files == 47 and len(report.unreadable) == 1 and report.kept == 0
    assert report.unreadable[0].startswith(f"{tmp_path}/captures/0020.pcap: KilledWorker: "), report.unreadable
    assert len(list((tmp_path / "out" / "flows").iterdir())) == 47


def test_a_worker_that_dies_gets_another_however_long_it_takes() -> None:
    # As if it took longer to begin than Dask waits by default.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "100ms"}),
        _scheduler.client("processes=1", None) as client,
    ):
        first = client.submit(os.getpid, pure=False).result(timeout=60)
        os.kill(first, signal.SIGKILL)
        second = client.submit(os.getpid, pure=False).result(timeout=60)
        assert second != first
        # One that is given up is closed as soon as it has begun.
        time.sleep(2)
        assert client.submit(os.getpid, pure=False).result(timeout=20) == second


def test_members_of_an_archive(demo: Path, tmp_path: Path) -> None:
    plain = written(demo, tmp_path / "plain.pcap", 3)
    with tarfile.open(tmp_path / "captures.tar", "w") as archive:
        archive.add(demo, "inside/demo.pcap.gz")
        archive.add(plain, "inside/plain.pcap")
        archive.add(Path(__file__), "inside/notes.txt")
    url = f"tar://inside/*.pcap*::{tmp_path}/captures.tar"
    report = corpus.analyze(url, str(tmp_path / "out"), scheduler="processes=1", part_size=1 << 20)
    expected = superpacket.analyze([demo, plain])
    assert report.findings.totals == expected.findings.totals and report.parts == 3
    assert list(table(tmp_path / "out", "files")["file"]) == [url.replace("*.pcap*", name) for name in ("demo.pcap.gz", "plain.pcap")]
    assert corpus.analyze(url, str(tmp_path / "out"), scheduler="threads=1", part_size=1 << 20).kept == report.tasks


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without ranges, and says nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Leaves the log empty."""


def test_http(demo: Path, tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    shutil.copy(demo, served / "demo.pcap.gz")
    plain = written(demo, served / "plain.pcap", 3)
    (served / "bad.pcap").write_bytes(b"<html>")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *arguments: _Quiet(*arguments, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        # The server knows no ranges: a large file is read as a whole.
        urls = [f"{address}/*.pcap*", f"{address}/missing.pcap"]
        report = corpus.analyze(urls, str(tmp_path / "out"), scheduler="processes=1", part_size=1 << 20)
        assert report.findings.totals == superpacket.analyze([demo, plain]).findings.totals
        assert report.parts == 0 and report.unreadable_files == 2
        assert any("missing.pcap: cannot be opened: HTTP status 404" in words for words in report.unreadable)
        again = corpus.analyze(urls, str(tmp_path / "out"), scheduler="threads=1", part_size=1 << 20)
        assert again.kept == 3 and again.json == report.json
    finally:
        server.shutdown()
        server.server_close()


class _Ranges(_Quiet):
    """Serves parts of files too, and notes which were asked for."""

    asked: list[tuple[str, str]] = []

    def do_GET(self) -> None:
        """Answers with the whole file, or with a range of it."""
        wanted = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        self.asked.append((path.name, wanted))
        content = path.read_bytes()
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) if last else len(content) - 1, len(content) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        self.send_header("Content-Length", str(end - start + 1))
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        self.wfile.write(content[start : end + 1])

    def end_headers(self) -> None:
        """Says that ranges are known."""
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()


def test_http_with_ranges_reads_parts(demo: Path, tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    plain = written(demo, served / "plain.pcap", 6)
    _Ranges.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *arguments: _Ranges(*arguments, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/plain.pcap"
        by_http = corpus.analyze(url, str(tmp_path / "out"), scheduler="threads=2", part_size=1 << 20)
        again = corpus.analyze(url, str(tmp_path / "out"), scheduler="threads=1", part_size=1 << 20)
    finally:
        server.shutdown()
        server.server_close()
    local = corpus.analyze(str(plain), str(tmp_path / "local"), scheduler="threads=1", part_size=1 << 20)
    assert by_http.parts == local.parts > 3 and by_http.unreadable == []
    assert by_http.findings == local.findings and by_http.held_at_cuts == local.held_at_cuts
    assert by_http.findings.totals == superpacket.analyze(plain).findings.totals
    assert (again.kept, again.json) == (again.tasks, by_http.json)
    starts = {int(wanted.removeprefix("bytes=").partition("-")[0]) for _, wanted in _Ranges.asked}
    assert len(starts) >= by_http.parts, "parts begin in the middle of the file"


def documented_sql() -> list[str]:
    """Returns the statements of docs/corpora.md."""
    page = (REPOSITORY / "docs" / "corpora.md").read_text()
    block = page.partition("```sql\n-- duckdb\n")[2].partition("```")[0]
    return [statement for statement in block.split(";") if statement.strip()]


def test_duckdb_and_pandas_read_the_tables(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb
    import pandas

    written(demo, tmp_path / "a.pcap", 3)
    shutil.copy(demo, tmp_path / "b.pcap.gz")
    (tmp_path / "bad.pcap").write_bytes(b"this is no capture")
    report = corpus.analyze(f"{tmp_path}/*.pcap*", str(tmp_path / "out"), scheduler="threads=2", part_size=1 << 20)
    assert report.parts > 2
    monkeypatch.chdir(tmp_path)
    statements = documented_sql()
    assert len(statements) == 3
    connection = duckdb.connect()
    flows, reasons, bad = (connection.sql(statement).fetchall() for statement in statements)
    frame = pandas.read_parquet("out/flows")
    largest = frame.groupby(["source", "destination"])["bytes_in"].sum().sort_values(ascending=False)
    assert len(flows) == min(10, len(largest)) and [row[2] for row in flows] == largest.head(10).tolist()
    assert all(largest[row[0], row[1]] == row[2] for row in flows)
    counted = {reason.name.lower(): count for reason, count in report.findings.totals.reasons.items()}
    assert {row[0]: row[1] for row in reasons} == report.json["reasons"] and len(counted) == len(reasons)
    assert [row[0] for row in bad] == [str(tmp_path / "bad.pcap")] and "not a capture" in bad[0][1]


def test_s3_for_captures_and_results(demo: Path, tmp_path: Path) -> None:
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"key": "testing", "secret": "testing", "endpoint_url": f"http://{host}:{port}"}
        fs = s3fs.S3FileSystem(**options)
        fs.mkdir("bucket")
        plain = written(demo, tmp_path / "plain.pcap", 6)
        fs.put_file(str(demo), "bucket/2026/01/demo.pcap.gz")
        fs.put_file(str(plain), "bucket/2026/02/plain.pcap")
        urls = "s3://bucket/2026/**/*.pcap*"

        def run(where: str, scheduler: str, output_options: dict[str, Any]) -> Any:
            return corpus.analyze(
                urls, where, scheduler=scheduler, part_size=2 << 20, storage_options=options, output_options=output_options
            )

        report = run("s3://bucket/out", "threads=2", options)
        assert report.findings.totals == superpacket.analyze([demo, plain]).findings.totals and report.parts == 3
        assert run("s3://bucket/out", "threads=2", options).kept == report.tasks
        run(str(tmp_path / "out"), "processes=1", {})
        fs.get("bucket/out", str(tmp_path / "fetched"), recursive=True)
        assert tree(tmp_path / "fetched") == tree(tmp_path / "out")
        # Other bytes of the same size.
        content = bytearray(plain.read_bytes())
        content[24] ^= 1
        fs.pipe_file("bucket/2026/02/plain.pcap", bytes(content))
        assert run("s3://bucket/out", "threads=2", options).kept == 1
    finally:
        server.stop()


def peak_memory(process: int) -> int:
    """Returns the most memory that a process has had, in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def of_many_flows(path: Path, packets: int) -> None:
    """Writes a capture each of whose packets is of another flow."""
    frame = bytes(12) + b"\x08\x00" + bytes.fromhex("4500003200000000401100000a0000010a000002") + bytes.fromhex("00000035001e0000") + bytes(22)
    record = numpy.frombuffer(bytes(8) + len(frame).to_bytes(4, "little") * 2 + frame, numpy.uint8)
    rows = numpy.tile(record, (packets, 1))
    number = numpy.arange(packets, dtype="<u4")
    rows[:, 0:4] = (number // 1000)[:, None].view(numpy.uint8)
    rows[:, 16 + 26 : 16 + 30] = number[:, None].view(numpy.uint8)
    header = bytes.fromhex("d4c3b2a102000400000000000000000000000400") + (1).to_bytes(4, "little")
    path.write_bytes(header + rows.tobytes())


def test_memory_of_a_worker_is_bounded(demo: Path, tmp_path: Path) -> None:
    big = written(demo, tmp_path / "big.pcap", 16)
    with big.open("ab") as file:
        for number in range(1, 32):
            file.write(records(demo, 16, 16 * number))
    assert big.stat().st_size > 500 << 20
    of_many_flows(tmp_path / "flows.pcap", 2_000_000)
    with cluster(1) as client:
        [process] = client.run(os.getpid).values()
        before = peak_memory(process)
        report = corpus.analyze(f"{tmp_path}/*.pcap", str(tmp_path / "out"), scheduler=client, part_size=1 << 30)
        whole = peak_memory(process)
        in_parts = corpus.analyze(f"{tmp_path}/*.pcap", str(tmp_path / "out"), scheduler=client, part_size=128 << 20)
        peak = peak_memory(process)
        assert list(client.run(os.getpid).values()) == [process], "the worker was not begun anew"
    assert report.parts == 0 and in_parts.parts >= 4 and report.unreadable == in_parts.unreadable == []
    assert pyarrow.dataset.dataset(tmp_path / "out" / "flows").count_rows() > 2_000_000
    print(f"a worker: {before >> 20} MiB idle, {whole >> 20} MiB with whole files, {peak >> 20} MiB in all")
    assert peak < 256 << 20


def test_progress_tells_all_bytes(demo: Path, tmp_path: Path) -> None:
    written(demo, tmp_path / "a.pcap", 4)
    written(demo, tmp_path / "b.pcap", 1)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.pcap"))
    made: list[dict[str, Any]] = []

    class Bar:
        """Counts."""

        total: Any = None

        def __init__(self, **options: Any) -> None:
            made.append(options)
            self.count = 0
            bars.append(self)

        def update(self, n: int) -> None:
            """Counts bytes."""
            self.count += n

    bars: list[Bar] = []
    corpus.analyze(f"{tmp_path}/*.pcap", str(tmp_path / "out"), scheduler="threads=1", part_size=1 << 20, progress=Bar)
    assert [options["total"] for options in made] == [size] and [bar.count for bar in bars] == [size]


def test_wrong_options_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: Path) -> None:
    def run(*urls: str, **options: Any) -> None:
        corpus.analyze(list(urls or [str(demo)]), str(tmp_path / "out"), **options)

    wrong: list[tuple[str, dict[str, Any]]] = [
        ("none of threads, processes", {"scheduler": "slurm"}),
        ("after threads= comes a number", {"scheduler": "threads=0"}),
        ("neither a name nor", {"scheduler": 7}),
        ("part_size: 5 is not between", {"part_size": 5}),
        ("top: 65 is not between 0 and 64", {"top": 65}),
        ("checksum: 'none'", {"checksum": "none"}),
        ("interval: 0", {"interval": 0}),
        ("interval: inf", {"interval": float("inf")}),
        ("batch: -1", {"batch": -1}),
    ]
    for words, options in wrong:
        with pytest.raises(superpacket.OptionsError, match=words):
            run(**options)
    with pytest.raises(superpacket.OptionsError, match="no file matches"):
        run(f"{tmp_path}/*.pcap")
    with pytest.raises(superpacket.OptionsError, match="nowhere://"):
        run("nowhere://a.pcap")
    assert not (tmp_path / "out").exists()
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "distributed" else found(name))
    with pytest.raises(ImportError, match=r"needs distributed: pip install 'superpacket\[corpus\]'"):
        run()
