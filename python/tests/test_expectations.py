"""What users of other Python packages expect: inputs, outputs, pickles, errors and threads."""

from __future__ import annotations

import concurrent.futures
import errno
import fcntl
import io
import multiprocessing
import os
import pickle
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dpkt
import pandas
import pyarrow
import pyarrow.parquet
import pytest

import superpacket
from conftest import REPOSITORY
from superpacket import PacketList, Writer

COMMANDS: dict[str, Callable[[Any], int]] = {
    "coalesce": lambda source: superpacket.coalesce(source).totals.packets_in,
    "segment": lambda source: superpacket.segment(source).totals.packets_in,
    "verify": lambda source: superpacket.verify(source).totals.packets_in,
    "analyze": lambda source: superpacket.analyze(source).findings.totals.packets_in,
    "steer": lambda source: sum(superpacket.steer(source, cpus="f").totals.reasons.values()),
    "check": lambda source: superpacket.check(source, REPOSITORY / "captures" / "demo.pcap.gz").packets_out,
}


class Named(os.PathLike[str]):
    """A path that is none of pathlib's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


@pytest.fixture
def folder(demo: Path, tmp_path: Path) -> Path:
    """Returns a folder with a capture in a folder, and with other files."""
    inner = tmp_path / "captures" / "inner"
    inner.mkdir(parents=True)
    shutil.copy(demo, inner / "one.pcap.gz")
    (inner / "README").write_text("not a capture")
    (inner / ".hidden.pcap").write_bytes(demo.read_bytes())
    return tmp_path / "captures"


@pytest.mark.parametrize("command", COMMANDS)
def test_paths_are_opened_wherever_packets_are_taken(folder: Path, demo: Path, command: str) -> None:
    run = COMMANDS[command]
    packets = list(superpacket.open(demo))
    for source in (
        demo,
        str(demo),
        Named(demo),
        [demo],
        (str(demo),),
        {demo},
        frozenset([Named(demo)]),
        folder.glob("**/*.gz"),
        (path for path in [demo]),
        folder,
        str(folder),
        [folder],
        io.BytesIO(demo.read_bytes()),
        [io.BytesIO(demo.read_bytes())],
        superpacket.open(demo),
        superpacket.open(io.BytesIO(demo.read_bytes())),
        [superpacket.open(demo)],
        PacketList(packets),
        packets,
        set(packets),
        iter(packets),
    ):
        assert run(source) == len(packets), source
    with demo.open("rb") as file:
        assert run(file) == len(packets)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_empty_is_an_error(tmp_path: Path, demo: Path, command: str) -> None:
    run = COMMANDS[command]
    empty: Any
    for empty in ([], (), iter([]), tmp_path.glob("*.pcap"), set()):
        with pytest.raises(ValueError, match="neither a capture nor a packet was given"):
            run(empty)
    with pytest.raises(ValueError, match="no captures in this folder"):
        run(tmp_path)
    with superpacket.open(demo) as capture:
        pass
    with pytest.raises(ValueError, match="is closed"):
        run(capture)
    with pytest.raises(ValueError, match="is closed"):
        next(capture)
    capture = superpacket.open(demo)
    assert len(list(capture)) == 972
    with pytest.raises(ValueError, match="read to its end"):
        run(capture)
    capture = superpacket.open(demo)
    next(capture)
    assert run(capture) == 971, "what is left"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_neither_a_capture_nor_packets_is_refused(demo: Path, command: str) -> None:
    run = COMMANDS[command]
    packet = next(superpacket.open(demo))
    for wrong, words in (
        (b"bytes", "is one packet"),
        (packet, "is one packet"),
        ([packet, demo], "packet 2: PosixPath is neither"),
        ([demo, packet], "Packet: is neither a path"),
        (7, "not iterable"),
        (io.StringIO("text"), "open the file as"),
    ):
        with pytest.raises(TypeError, match=words):
            run(wrong)


def test_a_capture_without_packets_is_a_capture(tmp_path: Path) -> None:
    path = tmp_path / "empty.pcap"
    PacketList().save(path)
    assert path.stat().st_size == 24
    assert superpacket.verify(path).ok and superpacket.verify(PacketList()).ok
    assert list(superpacket.open(path)) == []
    assert superpacket.verify(superpacket.open(path)).totals.packets_in == 0


def test_one_capture_is_read_at_a_time_where_one_is_written(demo: Path) -> None:
    with pytest.raises(superpacket.OptionsError, match="one capture is read at a time, and 2"):
        superpacket.coalesce([demo, demo])
    assert superpacket.analyze([demo, demo]).findings.totals.packets_in == 2 * 972


def test_what_merges_is_cut_into_all_packets(demo: Path) -> None:
    merged = superpacket.coalesce(demo).packets
    assert merged is not None
    expected = sorted(bytes(packet) for packet in superpacket.open(demo))
    for source in (merged, list(merged), pickle.loads(pickle.dumps(merged)), merged[:]):
        cut = superpacket.segment(source)
        assert cut.packets is not None and cut.uncut == 0
        assert sorted(bytes(packet) for packet in cut.packets) == expected
    assert {packet.protocol for packet in merged if packet.segment_size} == {6, 17}
    aggregator = superpacket.Aggregator()
    left = [out for packet in superpacket.open(demo) for out in aggregator.receive(bytes(packet))] + aggregator.flush()
    again = superpacket.segment(left).packets
    assert again is not None and sorted(bytes(packet) for packet in again) == expected


def fields(packet: Any) -> tuple[Any, ...]:
    """Returns what a file keeps of a packet."""
    return packet.time, packet.link_type, packet.interface_name, packet.comments, packet.original_length, bytes(packet)


def test_a_selection_is_saved(demo: Path, tmp_path: Path) -> None:
    packets = PacketList(packet for packet in superpacket.open(demo) if packet.protocol == 17)
    assert 0 < len(packets) < 972
    for name, kind, compression in (("a.pcap", "pcap", "none"), ("a.pcapng", "pcapng", "none"), ("a.pcap.gz", "pcap", "gzip"), ("a.cap", "pcapng", "none")):
        packets.save(tmp_path / name)
        capture = superpacket.open(tmp_path / name)
        assert (capture.format, capture.compression) == (kind, compression)
        assert [fields(packet) for packet in capture] == [fields(packet) for packet in packets]
    with (tmp_path / "a.pcap").open("rb") as file:
        assert [data for _, data in dpkt.pcap.Reader(file)] == [bytes(packet) for packet in packets]
    with pytest.raises(superpacket.OptionsError, match="a.csv"):
        packets.save(tmp_path / "a.csv")


def test_slices_are_lists(demo: Path) -> None:
    whole = PacketList(superpacket.open(demo))
    part = whole[10:20]
    assert isinstance(part, PacketList) and len(part) == 10
    assert [bytes(packet) for packet in part] == [bytes(whole[index]) for index in range(10, 20)]
    assert [bytes(packet) for packet in whole[::-100]] == [bytes(packet) for packet in list(whole)[::-100]]
    assert len(whole[5:5]) == 0 and bytes(whole[-1]) == bytes(whole[971])
    assert superpacket.verify(part).totals.packets_in == 10


def test_a_writer_keeps_times_interfaces_and_comments(demo: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.pcapng"
    frame = bytes(next(superpacket.open(demo)))
    with Writer(path) as writer:
        assert not path.exists(), "it takes its place when it is complete"
        writer.write(frame, time=1_700_000_000_123_456_789, interface="eth0", comments=["first", "wörds"])
        writer.write(frame, time=5, interface="eth1", original_length=9000)
        writer.write(frame[14:], link_type=101)
        writer.write((1.5, frame))
        writer.write(dpkt.ethernet.Ethernet(frame), time=7)
    capture = superpacket.open(path)
    packets = list(capture)
    assert [packet.time for packet in packets] == [1_700_000_000_123_456_789, 5, 0, 1_500_000_000, 7]
    assert [packet.interface_name for packet in packets] == ["eth0", "eth1", None, None, None]
    assert packets[0].comments == ["first", "wörds"] and packets[1].original_length == 9000
    assert packets[2].link_type == 101 and capture.interfaces == [(1, "eth0"), (1, "eth1"), (101, None), (1, None)]
    for name in ("again.pcapng", "again.pcap"):
        with Writer(tmp_path / name) as writer:
            for packet in packets[:2]:
                writer.write(packet)
        again = list(superpacket.open(tmp_path / name))
        assert [packet.time for packet in again] == [packet.time for packet in packets[:2]], "nanoseconds"
        assert name == "again.pcap" or [fields(packet) for packet in again] == [fields(packet) for packet in packets[:2]]
    stream = io.BytesIO()
    with Writer(stream, format="pcap") as writer:
        writer.write(packets[0])
    assert [bytes(packet) for packet in superpacket.open(io.BytesIO(stream.getvalue()))] == [frame]
    with pytest.raises(superpacket.CaptureError, match="one link type"), Writer(tmp_path / "two.pcap") as writer:
        writer.write(frame)
        writer.write(frame, link_type=101)
    assert not (tmp_path / "two.pcap").exists() and not list(tmp_path.glob(".*"))
    with pytest.raises(ValueError, match="is closed"):
        writer.write(frame)
    with pytest.raises(superpacket.OptionsError, match="format: .erf. is neither"):
        Writer(tmp_path / "out", format="erf")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        Writer(tmp_path / "absent" / "out.pcap")


def test_a_file_object_is_read_and_what_it_raises_is_raised(demo: Path) -> None:
    with demo.open("rb") as file:
        capture = superpacket.open(file)
        assert capture.file == str(demo) and len(list(capture)) == 972
    assert superpacket.open(io.BytesIO(demo.read_bytes())).file == "BytesIO"
    assert pyarrow.table(superpacket.open(io.BytesIO(demo.read_bytes())).to_arrow()).num_rows == 972

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise ZeroDivisionError("broken")

    for use in (superpacket.open, superpacket.analyze):
        with pytest.raises(ZeroDivisionError, match="broken"):
            use(Broken())


def pickled(demo: Path) -> list[Any]:
    """Returns one of everything that processes hand to each other."""
    merged = superpacket.coalesce(demo)
    assert merged.packets is not None
    damaged = [bytes(packet) for packet in merged.packets]
    damaged[0] = damaged[0][:-1]
    checked = superpacket.check(damaged, demo, all=True)
    assert len(checked.described) > 0
    return [
        merged,
        superpacket.segment(demo, mtu=576),
        superpacket.verify(demo),
        superpacket.analyze(demo),
        superpacket.steer(demo, cpus="f"),
        checked,
        checked.described[0],
        merged.packets,
        merged.packets[3],
        next(superpacket.open(demo)),
    ]


def shown(value: Any) -> Any:
    """Returns what is compared of a value."""
    if isinstance(value, PacketList):
        return [shown(packet) for packet in value]
    if isinstance(value, superpacket.Packet):
        return value.number, value.segment_size, value.interface, fields(value)
    if hasattr(value, "described"):
        return value.json, [repr(each) for each in value.described]
    if hasattr(value, "to_html"):
        return value.json, value.to_html()
    return (value.json, shown(getattr(value, "packets", None))) if hasattr(value, "json") else repr(value)


def raised(what: str) -> None:
    """Raises one of the package's exceptions."""
    if what == "some":
        superpacket.analyze(["absent.pcap", REPOSITORY / "captures" / "demo.pcap.gz"])
    if what == "absent":
        superpacket.open("absent.pcap")
    if what == "options":
        superpacket.coalesce("absent.pcap", max_bytes=5)
    if what == "segment":
        superpacket.Segmenter().segment(bytes(60), size=10)
    superpacket.open(__file__)


def analyzed(path: Path) -> superpacket.AnalyzeReport:
    """What a worker does."""
    return superpacket.analyze(path)


EXCEPTIONS: dict[str, type[superpacket.Error]] = {
    "some": superpacket.UnreadableError,
    "absent": superpacket.CaptureFileNotFoundError,
    "options": superpacket.OptionsError,
    "segment": superpacket.SegmentError,
    "malformed": superpacket.CaptureError,
}


def test_everything_is_pickled(demo: Path) -> None:
    for value in pickled(demo):
        assert shown(pickle.loads(pickle.dumps(value))) == shown(value)
    for what, kind in EXCEPTIONS.items():
        with pytest.raises(kind) as caught:
            raised(what)
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is kind and str(again) == str(caught.value)
        told = [name for name in ("file", "packet", "offset", "cause", "errno", "filename", "name") if hasattr(again, name)]
        assert [getattr(again, name) for name in told] == [getattr(caught.value, name) for name in told]
    untimed = PacketList([b"x" * 60])
    assert [packet.time for packet in pickle.loads(pickle.dumps(untimed))] == [None]


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_pools_of_processes(demo: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    expected = analyzed(demo).json
    with context.Pool(2) as pool:
        assert [report.json for report in pool.map(analyzed, [demo, demo])] == [expected] * 2
        for what, kind in EXCEPTIONS.items():
            with pytest.raises(kind):
                pool.map_async(raised, [what]).get(60)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        assert executor.submit(analyzed, demo).result(60).json == expected
        with pytest.raises(superpacket.UnreadableError) as caught:
            executor.submit(raised, "some").result(60)
        assert isinstance(caught.value.report, superpacket.AnalyzeReport)
        packets = PacketList(superpacket.open(demo))
        assert executor.submit(len, packets).result(60) == 972


def test_packets_and_columns_have_the_same_fields(demo: Path) -> None:
    names = superpacket.open(demo).to_arrow(data=True).names
    packet = next(superpacket.open(demo))
    assert [name for name in names if not hasattr(packet, name)] == []
    attributes = {name for name in dir(packet) if not name.startswith("_")}
    assert attributes - set(names) == {"payload", "comments", "interface_name"}, "one has what others hold"
    merged = superpacket.coalesce(demo).packets
    assert merged is not None
    rows = pyarrow.table(merged.to_arrow(data=True)).to_pylist()
    arrays = merged.to_numpy()
    for index, (row, packet) in enumerate(zip(rows, merged)):
        for name in names:
            if name not in ("time", "data"):
                assert row[name] == getattr(packet, name), name
                value = getattr(packet, name)
                if isinstance(value, int):
                    assert arrays[name][index] == value, name
        if packet.source_mac is not None:
            assert arrays["source_mac"][index].tobytes().hex(":") == packet.source_mac
        assert arrays["tunnel"][index].decode() == (packet.tunnel or "")
    assert set(arrays) == set(names) - {"data"}


def test_fields_are_what_dpkt_reads(demo: Path) -> None:
    tcp = tunnels = 0
    for packet in superpacket.open(demo):
        frame = dpkt.ethernet.Ethernet(bytes(packet))
        assert packet.source_mac == frame.src.hex(":") and packet.destination_mac == frame.dst.hex(":")
        tags = getattr(frame, "vlan_tags", None)
        assert packet.vlan == (tags[0].id if tags else None)
        ip = frame.data
        if packet.tunnel is not None:
            assert packet.tunnel_source == ".".join(map(str, ip.src)) and packet.tunnel_destination == ".".join(map(str, ip.dst))
            if packet.tunnel == "vxlan":
                assert packet.vni == int.from_bytes(ip.data.data[4:7], "big")
                tunnels += 1
        elif isinstance(ip, dpkt.ip.IP):
            assert (packet.ttl, packet.ip_id) == (ip.ttl, ip.id)
            if isinstance(ip.data, dpkt.tcp.TCP):
                tcp += 1
                assert (packet.tcp_flags, packet.sequence, packet.acknowledgement, packet.window) == (ip.data.flags & 0xFF, ip.data.seq, ip.data.ack, ip.data.win)
                assert packet.payload_length == len(ip.data.data)
        elif isinstance(ip, dpkt.ip6.IP6):
            assert (packet.ttl, packet.ip_id) == (ip.hlim, None)
    assert tcp > 250 and tunnels > 0
    tagged = bytes(12) + bytes.fromhex("88a80064810000c80800") + bytes(40)
    assert PacketList([tagged])[0].vlan == 100


def test_types_of_pandas_do_not_depend_on_the_data(demo: Path) -> None:
    whole = superpacket.open(demo).to_pandas(data=True).dtypes
    for packets in (PacketList(), PacketList([b"\0" * 60]), PacketList(superpacket.open(demo))[:1]):
        pandas.testing.assert_series_equal(packets.to_pandas(data=True).dtypes, whole)
    assert str(whole["source_port"]) == "UInt16" and str(whole["time"]) == "datetime64[ns, UTC]"
    for frame in superpacket.open(demo).to_pandas(batch_size=1, data=True):
        pandas.testing.assert_series_equal(frame.dtypes, whole)
        break


def test_a_missing_file_is_an_os_error(tmp_path: Path, demo: Path) -> None:
    path = tmp_path / "absent.pcap"
    for use in (superpacket.open, superpacket.coalesce, superpacket.analyze):
        with pytest.raises(FileNotFoundError) as caught:
            use(path)
        error = caught.value
        assert isinstance(error, superpacket.CaptureError)
        assert (error.errno, error.filename, error.file) == (errno.ENOENT, str(path), str(path))
        assert str(error).startswith(f"{path}: cannot be opened")
    with pytest.raises(OSError) as created:
        superpacket.coalesce(demo, tmp_path / "absent" / "out.pcap")
    assert isinstance(created.value, superpacket.CaptureError) and created.value.errno == errno.ENOENT
    with pytest.raises(OSError) as opened:
        superpacket.open(tmp_path)
    assert opened.value.errno == errno.EISDIR
    with pytest.raises(superpacket.CaptureError) as malformed:
        superpacket.open(__file__)
    assert not isinstance(malformed.value, OSError)


def test_threads_that_read_one_capture_wait_for_each_other(demo: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.pcap"
    whole = PacketList(superpacket.open(demo))
    many = PacketList()
    for _ in range(20):
        for packet in whole:
            many.append(packet)
    many.save(path)
    capture = superpacket.open(path)
    columns = superpacket.open(path).to_arrow(batch_size=100)
    seen: list[int] = []
    rows: list[int] = []

    def work() -> None:
        seen.extend(packet.number for packet in capture)
        rows.extend(len(batch) for batch in columns)

    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        for done in [executor.submit(work) for _ in range(4)]:
            done.result(60)
    assert sorted(seen) == list(range(1, len(many) + 1)) and sum(rows) == len(many)


def test_a_file_object_that_reads_its_own_capture_is_told_so(demo: Path) -> None:
    class Own(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if hasattr(self, "capture"):
                next(self.capture)
            return super().read(min(size or 0, 4096))

    file = Own(demo.read_bytes())
    capture = superpacket.open(file)
    file.capture = capture  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="in use by what has called this"):
        list(capture)


@pytest.mark.parametrize(("options", "words"), [({"max_bytes": 5}, "max_bytes: 5 is not between 68 and 524280"), ({"max_packets": 0}, "max_packets: 0 is not"), ({"max_flows": 1025}, "max_flows: 1025 is not")])
def test_the_aggregator_refuses_what_the_command_refuses(demo: Path, options: dict[str, Any], words: str) -> None:
    for use in (lambda: superpacket.Aggregator(**options), lambda: superpacket.coalesce(demo, **options)):
        with pytest.raises(superpacket.OptionsError, match=words):
            use()


def test_a_typo_leaves_the_output_as_it_was(demo: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out.pcap", tmp_path / "page.html"
    superpacket.coalesce(demo, out)
    superpacket.analyze(demo, html=page)
    before = out.read_bytes(), page.read_bytes()
    for wrong in (
        lambda: superpacket.coalesce(tmp_path / "typo.pcap", out),
        lambda: superpacket.coalesce(demo, out, max_bytes=5),
        lambda: superpacket.segment([], out),
        lambda: superpacket.analyze(tmp_path / "typo.pcap", html=page),
        lambda: superpacket.analyze(demo, html=page, top=1000),
    ):
        with pytest.raises((superpacket.Error, ValueError)):
            wrong()
    assert (out.read_bytes(), page.read_bytes()) == before


def test_reports_show_themselves_in_notebooks(demo: Path) -> None:
    merged = superpacket.coalesce(demo)
    table = merged._repr_html_()
    assert "<th>packets_in</th><td>972</td>" in table and "<th>reason: push</th>" in table
    assert "<th>ok</th><td>True</td>" in superpacket.verify(demo)._repr_html_()
    for report in (superpacket.analyze(demo), superpacket.steer(demo, cpus="f")):
        assert report._repr_html_().startswith('<iframe srcdoc="&lt;!')


def terminal(*arguments: str, without: str = "") -> tuple[int, str]:
    """Runs the corpus command in a terminal; returns its exit code and what the terminal shows."""
    code = f"import sys; sys.modules[{without!r}] = None; from superpacket.corpus.__main__ import main; sys.exit(main(sys.argv[1:]))"
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower) as child:
        os.close(follower)
        text = b""
        while True:
            try:
                block = os.read(leader, 4096)
            except OSError:
                break
            if not block:
                break
            text += block
        os.close(leader)
        return child.wait(60), text.decode(errors="replace")


@pytest.mark.parametrize("without", ["nothing", "tqdm"])
def test_the_corpus_command_runs_in_a_terminal(demo: Path, tmp_path: Path, without: str) -> None:
    code, text = terminal("analyze", str(demo), "-o", str(tmp_path / "out"), "--scheduler", "threads=1", without=without)
    assert code == 0 and "972 packets" in text, text
    assert ("1 files" in text) == (without == "nothing")


@pytest.mark.parametrize("wrong", [["typo.pcap"], ["*.typo"], ["--top", "65"], ["--part-size", "1"], ["--scheduler", "typo"]])
def test_a_typo_leaves_a_corpus_s_results_as_they_were(demo: Path, tmp_path: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from superpacket.corpus.__main__ import main

    output = tmp_path / "out"
    command = ["analyze", "-o", str(output), "--scheduler", "threads=1"]
    assert main([*command, str(demo)]) == 0

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in output.rglob("*") if path.is_file() and ".superpacket" not in path.parts}

    before = content()
    assert len(before) == 7
    named = [str(tmp_path / wrong[0])] if not wrong[0].startswith("--") else [str(demo), *wrong]
    assert main([*command, *named]) == 2
    assert content() == before, capsys.readouterr().err


def test_a_corpus_is_a_folder_and_its_protocols_are_numbers(folder: Path, tmp_path: Path) -> None:
    from superpacket import corpus

    report = corpus.analyze(folder, tmp_path / "out", scheduler="threads=1")
    assert report.files == 1 and report._repr_html_().startswith("<iframe")
    (flows,) = (tmp_path / "out" / "flows").iterdir()
    protocol = pyarrow.parquet.read_table(flows).column("protocol")
    columns = pyarrow.table(superpacket.open(folder / "inner" / "one.pcap.gz").to_arrow()).column("protocol")
    assert protocol.type == columns.type == pyarrow.uint8() and set(protocol.to_pylist()) <= {6, 17, 33}


def test_the_corpus_s_extra_has_what_its_command_shows() -> None:
    project = (REPOSITORY / "python" / "pyproject.toml").read_text()
    for extra in ("corpus", "progress"):
        (needed,) = (line for line in project.splitlines() if line.startswith(f"{extra} = "))
        assert '"tqdm>=' in needed
