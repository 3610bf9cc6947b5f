"""The judge of other implementations, called from Python."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import superpacket
from conftest import captures
from superpacket import Rule
from superpacket._superpacket import check_rules
from test_commands import Bar, needs_program, program


def plain(demo: Path, path: Path) -> Path:
    """Writes the shipped capture without compression."""
    path.write_bytes(gzip.decompress(demo.read_bytes()))
    return path


def test_what_the_engine_makes_is_faithful_and_damage_is_named(demo: Path) -> None:
    merged = superpacket.coalesce(demo).packets
    assert merged is not None
    report = superpacket.check(merged, origin=demo, rules="reversible")
    assert report.ok and report.violations == 0 and report.by_rule == {} and len(report.described) == 0
    assert report.verdict == report.json["verdict"] == "faithful"
    assert report.super_packets > 0 and report.merged > 0 and report.not_judged.headers == report.super_packets
    assert (report.packets_in, report.packets_out) == (972, len(merged))
    assert (report.checked, report.origin) == ("memory", str(demo))
    cut = superpacket.segment(merged, udp_size=1472).packets
    assert cut is not None
    assert superpacket.check(cut, merged).segments > 0

    damaged = [bytes(packet) for packet in merged]
    longest = max(range(len(damaged)), key=lambda index: len(damaged[index]))
    damaged[longest] = damaged[longest][:-1] + bytes([damaged[longest][-1] ^ 1])
    report = superpacket.check(damaged, demo)
    # Without a header, its checksum is whole, and wrong too.
    assert not report.ok and report.by_rule == {Rule.BYTES: 1, Rule.CHECKSUM: 1} and report.violations == 2
    violation, of_checksum = list(report.described)
    assert of_checksum.rule is Rule.CHECKSUM and of_checksum.packet == longest + 1
    assert (violation.packet, violation.rule, violation.field) == (longest + 1, Rule.BYTES, "payload")
    assert violation.origin is not None and "of its payload is" in violation.found
    assert repr(violation).startswith("<Violation bytes of payload: packet ")
    assert report.json["described"][0]["rule"] == violation.rule
    assert report.described[-2].found == violation.found and repr(report.described) == "<2 violations>"
    for index in (2, -3):
        with pytest.raises(IndexError, match=f"violation {index} of 2"):
            report.described[index]


def test_all_violations_are_described_on_request(demo: Path) -> None:
    late = [bytes(packet) for packet in superpacket.open(demo)]
    for number, packet in enumerate(late):
        if packet[12:14] == b"\x08\x00":
            late[number] = packet[:22] + bytes([packet[22] ^ 1]) + packet[23:]
    first = superpacket.check(late, demo)
    every = superpacket.check(late, demo, all=True)
    assert first.violations == every.violations > 100 and first.by_rule == every.by_rule
    assert (len(first.described), len(every.described)) == (10, every.violations)
    assert [one.found for one in first.described] == [one.found for one in every.described][:10]


def test_bytes_scapy_and_dpkt_are_judged(demo: Path) -> None:
    import dpkt
    import scapy.all as scapy

    by_scapy = scapy.rdpcap(str(demo))
    data = [bytes(packet) for packet in superpacket.open(demo)]
    from_dpkt = [dpkt.ethernet.Ethernet(one) for one in data[:40]]
    assert superpacket.check(by_scapy, data).ok and superpacket.check(data, by_scapy).ok
    # dpkt writes its own form of a few packets: those that it keeps are judged like the bytes.
    kept = [(packet, one) for packet, one in zip(from_dpkt, data) if bytes(packet) == one]
    assert len(kept) > 20
    assert superpacket.check([packet for packet, _ in kept], [one for _, one in kept]).ok
    ip = scapy.IP(bytes(scapy.IP(src="10.0.0.1", dst="10.0.0.2", ttl=9) / scapy.UDP(sport=1, dport=2) / b"x"))
    changed = scapy.IP(bytes(ip))
    changed.ttl = 8
    del changed.chksum
    report = superpacket.check([changed], [bytes(ip)], link_type=101)
    assert report.by_rule == {Rule.TTL: 1}
    with pytest.raises(TypeError, match="packet 1: int is neither"):
        superpacket.check([7], demo)


def records(packets: list[bytes], header: bytes = bytes(10)) -> bytes:
    """Writes a file of records, as a test in any language does."""
    file = b"superpacket-records 1 ethernet 10\n"
    return file + b"".join(struct.pack("<I", 10 + len(packet)) + header + packet for packet in packets)


def test_records_are_read_from_files_and_pipes(demo: Path, tmp_path: Path) -> None:
    path = tmp_path / "left.records"
    path.write_bytes(records([bytes(packet) for packet in superpacket.open(demo)]))
    report = superpacket.check(path, demo)
    assert report.ok and report.checked == str(path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    piped = superpacket.check(pipe, demo)
    writer.join()
    assert piped.ok and piped.checked == str(pipe) and piped.packets_out == report.packets_out
    script = "import superpacket, sys; sys.exit(not superpacket.check('-', sys.argv[1]).ok)"
    for content, code in ((path.read_bytes(), 0), (records([b"x" * 60]), 1)):
        done = subprocess.run([sys.executable, "-c", script, demo], input=content, check=False)
        assert done.returncode == code
    # A header that says too little of a packet that merged.
    merged = superpacket.coalesce(demo).packets
    assert merged is not None
    path.write_bytes(records([bytes(packet) for packet in merged]))
    assert superpacket.check(path, demo).by_rule.keys() >= {Rule.GSO_TYPE}


def test_what_cannot_be_read_or_is_cut_short(demo: Path, tmp_path: Path) -> None:
    with pytest.raises(superpacket.OptionsError, match="rules: 'strict' is neither 'linux' nor 'reversible'"):
        superpacket.check(demo, demo, rules="strict")  # type: ignore[arg-type]
    with pytest.raises(superpacket.OptionsError, match="checked and origin are both standard input"):
        superpacket.check("-", "-")
    for checked, origin in ((tmp_path / "absent", demo), (demo, tmp_path / "absent")):
        with pytest.raises(superpacket.CaptureError) as caught:
            superpacket.check(checked, origin)
        assert caught.value.file == str(tmp_path / "absent")
    bad = tmp_path / "bad.records"
    bad.write_bytes(b"superpacket-records 1 ip 11\n")
    with pytest.raises(superpacket.CaptureError, match='headers of "11" bytes'):
        superpacket.check(bad, demo)
    cut = plain(demo, tmp_path / "cut.pcap")
    cut.write_bytes(cut.read_bytes()[:-7])
    with pytest.warns(UserWarning, match="cut short"):
        report = superpacket.check(cut, demo)
    # Nothing is wrong with what is there, but not all is there.
    assert not report.ok and report.verdict == "incomplete" and report.violations == 0
    assert report.cut_short is not None and report.origin_cut_short is None and report.not_judged.missing > 0
    with pytest.warns(UserWarning, match="cut short"):
        report = superpacket.check(demo, cut)
    assert report.cut_short is None and report.origin_cut_short is not None
    assert report.verdict == "incomplete" and report.not_judged.without_origin > 0
    with pytest.raises(superpacket.CaptureError, match="cut.pcap"):
        superpacket.check(cut, demo, strict=True)


def test_progress_and_its_errors(demo: Path) -> None:
    bar = Bar()
    superpacket.check(demo, demo, progress=bar)
    assert bar.seen == bar.total == demo.stat().st_size

    class Broken(Bar):
        def update(self, n: int) -> None:
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        superpacket.check(demo, demo, progress=Broken())


def test_the_enum_has_every_rule() -> None:
    rules = check_rules()
    assert [rule.value for rule in Rule] == [name for name, _, _ in rules]
    for rule, (_, sentence, strictness) in zip(Rule, rules):
        assert rule.sentence == sentence and rule.is_stricter == (strictness == "reversible")
        assert rule.name == rule.value.upper().replace("-", "_")


@needs_program
def test_reports_are_the_program_s(demo: Path, tmp_path: Path) -> None:
    merged, damaged = tmp_path / "merged.pcap", tmp_path / "damaged.pcap"
    superpacket.coalesce(demo, merged, mode="lro")
    damaged.write_bytes(plain(demo, merged.with_name("plain.pcap")).read_bytes()[:24] + b"".join(_changed(demo)))
    options: list[tuple[dict[str, Any], list[str]]] = [
        ({}, []),
        ({"rules": "reversible"}, ["--rules", "reversible"]),
        ({"all": True}, ["--all"]),
    ]
    for path in (merged, damaged, demo):
        for named, arguments in options:
            report = superpacket.check(path, demo, **named)
            code, expected = program("check", path, "--origin", demo, *arguments)
            assert report.json == expected and code == {"faithful": 0, "unfaithful": 1, "incomplete": 3}[report.verdict]


def _changed(demo: Path) -> list[bytes]:
    records = []
    for packet in superpacket.open(demo):
        data = bytearray(bytes(packet))
        data[-1] ^= packet.number % 7 == 0
        records.append(struct.pack("<IIII", 0, 0, len(data), len(data)) + bytes(data))
    return records


@needs_program
@pytest.mark.filterwarnings("ignore:.*cut short")
def test_every_capture_gives_the_program_s_report(tmp_path: Path) -> None:
    paths = captures()
    read = 0
    for path in paths[::7]:
        code, expected = program("check", path, "--origin", path)
        try:
            assert superpacket.check(path, path).json == expected and code in (0, 1, 3)
            read += 1
        except superpacket.CaptureError:
            assert code == 2
    assert read > 20
