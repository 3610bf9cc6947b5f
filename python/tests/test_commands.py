"""The program's commands, called from Python."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import superpacket
from conftest import captures
from superpacket import Reason

#: The program, where it was built: its reports are to be the same.
PROGRAM = os.environ.get("SUPERPACKET_PROGRAM")


def program(*arguments: str | Path) -> tuple[int, Any]:
    """Runs the program; returns its exit code and its report."""
    assert PROGRAM is not None
    done = subprocess.run([PROGRAM, *arguments, "--json", "--quiet"], capture_output=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None


needs_program = pytest.mark.skipif(PROGRAM is None and not os.environ.get("CI"), reason="SUPERPACKET_PROGRAM is not set")


def test_coalesce_and_segment_are_reversible(demo: Path) -> None:
    merged = superpacket.coalesce(demo, batch=0, hold=3600)
    assert superpacket.coalesce(demo, batch=0, hold=3600, jumbo_option=True).totals == merged.totals, "nothing is as long"
    assert merged.packets is not None and len(merged.packets) == merged.totals.packets_out
    assert merged.totals.merged > merged.totals.packets_out
    assert sum(merged.totals.reasons.values()) == merged.totals.packets_out
    assert all(isinstance(reason, Reason) for reason in merged.totals.reasons)
    cut = superpacket.segment(merged.packets, udp_size=1472)
    assert cut.packets is not None
    before = sorted(bytes(packet) for packet in superpacket.open(demo))
    after = sorted(bytes(packet) for packet in cut.packets)
    assert sum(map(len, before)) == sum(map(len, after)) and len(before) == len(after)
    assert superpacket.verify(demo).ok


def test_files_and_memory_give_the_same(demo: Path, tmp_path: Path) -> None:
    path = tmp_path / "merged.pcap"
    on_disk = superpacket.coalesce(demo, path)
    in_memory = superpacket.coalesce(superpacket.open(demo))
    assert on_disk.packets is None and in_memory.packets is not None
    assert on_disk.totals == in_memory.totals
    again = [(packet.time, bytes(packet)) for packet in superpacket.open(path)]
    assert again == [(packet.time, bytes(packet)) for packet in in_memory.packets]


def test_bytes_tuples_scapy_and_dpkt_are_taken(demo: Path) -> None:
    import dpkt
    import scapy.all as scapy

    expected = superpacket.coalesce(demo).totals
    packets = list(superpacket.open(demo))
    timed = [((packet.time or 0) / 1e9, bytes(packet)) for packet in packets]
    assert superpacket.coalesce(timed).totals == expected
    from_dpkt = [(time, dpkt.ethernet.Ethernet(data)) for time, data in timed]
    assert superpacket.coalesce(from_dpkt).totals.packets_in == expected.packets_in
    by_scapy = scapy.rdpcap(str(demo))
    of_scapy = superpacket.coalesce(by_scapy)
    assert of_scapy.totals == expected
    assert of_scapy.packets is not None and of_scapy.packets[0].time is not None
    assert superpacket.analyze([bytes(packet) for packet in packets]).findings.totals.packets_in == len(packets)
    ip = scapy.IP(bytes(scapy.IP(src="10.0.0.1", dst="10.0.0.2") / scapy.UDP(sport=1, dport=2) / b"x"))
    listed = superpacket.coalesce([ip]).packets
    assert listed is not None and (listed[0].link_type, listed[0].source) == (101, "10.0.0.1")
    assert listed[0].payload is not None and bytes(listed[0].payload) == b"x"
    raw = superpacket.coalesce([bytes(ip)], link_type=101).packets
    assert raw is not None and raw[0].destination_port == 2
    with pytest.raises(TypeError, match="packet 2: int is neither"):
        superpacket.coalesce([b"x", 7])


#: Each command, and what of its report does not name the input.
COMMANDS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "coalesce": lambda source: _packets(superpacket.coalesce(source)),
    "segment": lambda source: _packets(superpacket.segment(source, mtu=576)),
    "verify": lambda source: _unnamed(superpacket.verify(source)),
    "analyze": lambda source: _unnamed(superpacket.analyze(source)),
    "steer": lambda source: _unnamed(superpacket.steer(source, cpus="ff")),
}


def _packets(report: Any) -> tuple[Any, ...]:
    return report.totals, [(packet.time, packet.link_type, bytes(packet)) for packet in report.packets]


def _unnamed(report: Any) -> tuple[Any, ...]:
    """Interfaces are the file's own: packets in memory are of unnamed ones."""
    files = [{**file, "file": "", "interfaces": []} for file in report.json.get("files", [])]
    told = {**report.json, "file": "", "files": files}
    return told, [file.timeline for file in getattr(report, "files", []) if hasattr(file, "timeline")]


@pytest.mark.parametrize("command", COMMANDS)
def test_files_bytes_scapy_and_dpkt_give_equal_results(demo: Path, tmp_path: Path, command: str) -> None:
    import dpkt
    import scapy.all as scapy

    # With super-packets, for `segment` to cut, and times in microseconds, as dpkt and scapy have them.
    path = tmp_path / "merged.pcap"
    merged = superpacket.coalesce(demo, batch=0, hold=3600, max_packets=3).packets
    assert merged is not None
    timed = [((packet.time or 0) // 1000 / 1e6, bytes(packet)) for packet in merged]
    with path.open("wb") as file:
        writer = dpkt.pcap.Writer(file)
        for when, data in timed:
            writer.writepkt(data, when)
    packets = list(superpacket.open(path))
    run = COMMANDS[command]
    expected = run(path)
    assert run(timed) == expected, "bytes"
    assert run(scapy.rdpcap(str(path))) == expected, "scapy"
    # Frames whose bytes dpkt gives back as they came.
    parsed = [(when, dpkt.ethernet.Ethernet(data)) for when, data in timed]
    same = [(when, data) for (when, data), (_, frame) in zip(timed, parsed) if bytes(frame) == data]
    assert len(same) > 0.9 * len(timed)
    assert run([pair for pair, (_, data) in zip(parsed, timed) if bytes(pair[1]) == data]) == run(same), "dpkt"
    # Without times, nothing is held for too long.
    untimed = [bytes(packet) for packet in packets]
    assert run(iter(untimed)) == run([dpkt.ethernet.Ethernet(data) if bytes(dpkt.ethernet.Ethernet(data)) == data else data for data in untimed])
    if command in ("segment", "steer"):
        assert run(untimed)[0] == expected[0], "time has no say"


def test_analyze_says_what_the_page_says(demo: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    report = superpacket.analyze(demo, html=page, top=3)
    findings = report.findings
    assert set(findings.policies) == {"lro", "gro", "gro_udp", "lro_acks"}
    assert findings.policies["gro_udp"].totals == findings.totals
    assert findings.policies["lro_acks"].absorbed_acks > 0
    assert len(findings.top_flows) == 3 and findings.top_flows[0].flow.startswith("TCP ")
    timeline = report.files[0].timeline
    assert len(timeline.seconds) == len(timeline.before) == len(timeline.after) > 10
    width = timeline.seconds[1] - timeline.seconds[0]
    assert round(sum(timeline.before) * width) == findings.totals.packets_in
    assert page.read_text() == report.to_html() and "<svg" in report.to_html()


def test_steer_spreads_flows(demo: Path, tmp_path: Path) -> None:
    report = superpacket.steer(demo, cpus="f")
    assert [share.cpu for share in report.cpus] == [0, 1, 2, 3]
    assert sum(share.packets for share in report.cpus) == report.totals.reasons[Reason.STEERED]
    assert superpacket.steer(demo, cpu_list="0-3").cpus == report.cpus
    assert superpacket.steer(demo, cpus="f", key=bytes(40)).totals.reasons.get(Reason.HASH_ZERO, 0) > 0
    assert "<svg" in report.to_html()
    with pytest.raises(superpacket.OptionsError, match="either cpus or cpu_list"):
        superpacket.steer(demo)
    with pytest.raises(superpacket.OptionsError, match="a key has 40 bytes or more, and this has 3"):
        superpacket.steer(demo, cpus="f", key=b"abc")
    with pytest.raises(superpacket.OptionsError, match="cpus: "):
        superpacket.steer(demo, cpus="xyz")


def test_a_fault_in_a_merge_is_found(demo: Path) -> None:
    report = superpacket.verify(demo, _inject_fault=3)
    assert not report.ok and report.mismatches == 1
    assert "byte" in report.files[0].details[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_bytes": 67}, "max_bytes: 67 is not between 68 and 524280"),
        ({"max_packets": 0}, "max_packets: 0 is not between 1 and 512"),
        ({"max_flows": 1025}, "max_flows: 1025"),
        ({"acks": True}, "acks: needs LRO's rules"),
        ({"mode": "tso"}, "mode: 'tso' is neither"),
        ({"hold": -1}, "hold: -1 s"),
        ({"batch": -1}, "batch: -1"),
    ],
)
def test_options_out_of_bounds_are_refused(demo: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(superpacket.OptionsError, match=words):
        superpacket.coalesce(demo, **options)


def test_an_input_is_not_written_over(demo: Path) -> None:
    before = demo.read_bytes()
    with pytest.raises(superpacket.OptionsError, match="is the input too"):
        superpacket.coalesce(demo, demo)
    assert demo.read_bytes() == before


def test_captures_that_cannot_be_read_do_not_stop_the_others(demo: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent.pcap"
    with pytest.raises(superpacket.UnreadableError, match="1 of the captures could not be read: .*absent") as caught:
        superpacket.analyze([absent, demo])
    report = caught.value.report
    assert isinstance(report, superpacket.AnalyzeReport)
    assert [file.file for file in report.files] == [str(demo)]
    with pytest.raises(superpacket.CaptureError) as alone:
        superpacket.verify(absent)
    assert not isinstance(alone.value, superpacket.UnreadableError)


class Bar:
    """A bar as tqdm's are."""

    def __init__(self, total: int | None = None, **named: Any) -> None:
        self.total = total
        self.named = named
        self.seen = 0
        self.closed = False

    def update(self, n: int) -> None:
        self.seen += n

    def close(self) -> None:
        self.closed = True


def test_progress_is_told(demo: Path) -> None:
    bar = Bar()
    superpacket.analyze([demo, demo], progress=bar)
    assert bar.seen == bar.total == 2 * demo.stat().st_size and not bar.closed
    made: list[Bar] = []

    def make(**named: Any) -> Bar:
        made.append(Bar(**named))
        return made[-1]

    superpacket.verify([demo, demo], progress=make)
    assert [(each.seen, each.closed) for each in made] == [(demo.stat().st_size, True)] * 2
    assert made[0].named == {"desc": str(demo), "unit": "B", "unit_scale": True}
    from tqdm import tqdm

    superpacket.coalesce(demo, progress=tqdm)
    superpacket.coalesce(demo, progress=True)


def test_what_progress_raises_stops_the_command(tmp_path: Path) -> None:
    class Broken(Bar):
        def update(self, n: int) -> None:
            raise RuntimeError("no more")

    path = tmp_path / "out.pcap"
    with pytest.raises(RuntimeError, match="no more"):
        superpacket.coalesce([bytes(60)] * 10_000, path, progress=Broken())
    assert not list(tmp_path.iterdir()), "nothing half written"


INTERRUPTED = """
import superpacket, sys, time
packets = superpacket.PacketList()
for _ in range(400_000):
    packets.append(bytes(200))
print("ready", flush=True)
try:
    for _ in range(1000):
        superpacket.analyze(packets)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


def test_control_c_stops_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(0.5)
        sent = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "stopped\n"
        assert time.monotonic() - sent < 0.5
        assert child.wait(10) == 0


WAITING = """
import superpacket, sys
print("ready", flush=True)
try:
    superpacket.analyze(sys.argv[1]) if sys.argv[2] == "analyze" else list(superpacket.open(sys.argv[1]))
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("command", ["analyze", "open"])
def test_control_c_ends_the_wait_for_a_pipe(tmp_path: Path, command: str, demo: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with subprocess.Popen([sys.executable, "-c", WAITING, path, command], stdout=subprocess.PIPE, text=True) as child:
        with path.open("wb") as pipe:
            pipe.write(gzip.decompress(demo.read_bytes())[:1000])
            pipe.flush()
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            time.sleep(0.3)
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "stopped\n"
            assert time.monotonic() - sent < 0.5
            assert child.wait(10) == 0


def test_a_pipe_is_read(tmp_path: Path, demo: Path) -> None:
    import threading

    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(demo.read_bytes()))
    writer.start()
    assert superpacket.coalesce(path).totals == superpacket.coalesce(demo).totals
    writer.join()


def test_other_threads_go_on(demo: Path) -> None:
    import threading

    packets = superpacket.PacketList()
    for _ in range(200_000):
        packets.append(bytes(200))
    ended = threading.Event()

    def work() -> None:
        superpacket.analyze(packets)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    counted = 0
    while not ended.is_set():
        counted += 1
    thread.join()
    assert counted > 10_000, "this thread ran meanwhile"


@needs_program
def test_reports_are_the_program_s(demo: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a.pcapng", tmp_path / "b.pcapng"
    for mode in ("gro", "lro"):
        report = superpacket.coalesce(demo, a, mode=mode).json
        code, expected = program("coalesce", demo, "-o", b, "--mode", mode)
        assert code == 0 and {**report, "output": ""} == {**expected, "output": ""}
        assert a.read_bytes() == b.read_bytes()
    report = superpacket.segment(a, tmp_path / "c.pcap", mtu=576).json
    code, expected = program("segment", a, "-o", tmp_path / "d.pcap", "--mtu", "576")
    assert code == 0 and {**report, "output": ""} == {**expected, "output": ""}
    assert (tmp_path / "c.pcap").read_bytes() == (tmp_path / "d.pcap").read_bytes()
    assert superpacket.steer(demo, cpus="ff").json == program("steer", demo, "--cpus", "ff")[1]


@needs_program
@pytest.mark.filterwarnings("ignore:.*cut short")
def test_every_capture_gives_the_program_s_report() -> None:
    paths = captures()
    names = [str(path) for path in paths]
    for command, call in (("analyze", superpacket.analyze), ("verify", superpacket.verify)):
        code, expected = program(command, *names)
        with pytest.raises(superpacket.UnreadableError) as caught:
            call(names)
        assert code == 2 and caught.value.report.json == expected
