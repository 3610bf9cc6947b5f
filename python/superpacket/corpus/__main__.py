"""``python -m superpacket.corpus``: corpora of captures on the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from superpacket import corpus
from superpacket._superpacket import Error

#: Units of time and of sizes, as options have them.
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _with_unit(text: str, units: dict[str, Any]) -> float:
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text[len(digits) :].strip().lower()
    if unit not in units:
        allowed = ", ".join(name for name in units if name)
        raise argparse.ArgumentTypeError(f"{text!r}: a number and one of {allowed}")
    try:
        return float(digits) * float(units[unit])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: does not begin with a number") from None


def _seconds(text: str) -> float:
    return _with_unit(text, _SECONDS)


def _size(text: str) -> int:
    return int(_with_unit(text, _BYTES))


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m superpacket.corpus", description="Corpora of captures, analyzed by many workers on Dask.")
    commands = parser.add_subparsers(dest="command", required=True)
    analyze = commands.add_parser(
        "analyze",
        help="say what each kind of aggregation would merge in all captures",
        description="Says what each kind of aggregation would merge in all captures, and what kept packets apart. "
        "A run that was cut off goes on where it was.",
        epilog="Exit codes: 0 done, 2 bad usage or unreadable captures (the others are reported), 130 interrupted.",
    )
    add = analyze.add_argument
    add("urls", nargs="+", metavar="FILES", help="names, folders or patterns: 'captures/**/*.pcap*', 's3://bucket/*.pcapng', 'tar://*.pcap::a.tar'")
    add("-o", "--output", required=True, metavar="OUT", help="the folder of the results, or an address (s3://bucket/results)")
    add("--scheduler", metavar="WHERE", help="processes[=N] (the default), threads[=N], tcp://HOST:PORT, or a scheduler's file (.json)")
    add("--batch", type=int, default=64, metavar="PACKETS", help="packets in a poll (64); 0: until the capture's end")
    add("--hold", type=_seconds, default=0.001, metavar="TIME", help="how long something is held at most (1ms)")
    add("--interval", type=_seconds, default=1.0, metavar="TIME", help="intervals of packets by time (1s)")
    add("--part-size", type=_size, default=256 << 20, metavar="BYTES", help="parts of large files (256MiB)")
    add("--top", type=int, default=10, metavar="FLOWS", help="flows in the top list (10; 64 at most)")
    add("--strict", action="store_true", help="count a capture that ends within a record as unreadable")
    add("--checksum", choices=["sampled", "whole"], default="sampled", help="what of local files is compared when a run goes on")
    add("--retries", type=int, default=2, metavar="N", help="how often a task is tried again after a failure that may pass (2)")
    add("--memory-limit", default="256MiB", metavar="BYTES", help="what each process may take (256MiB); 0: no limit")
    add("--storage-option", type=_option, action="append", default=[], metavar="NAME=VALUE", help="for fsspec, where the files are")
    add("--output-option", type=_option, action="append", default=[], metavar="NAME=VALUE", help="for fsspec, where the results are")
    add("--json", action="store_true", help="print the report as JSON")
    add("-q", "--quiet", action="store_true", help="no progress")
    return parser


def _text(report: Any, output: str) -> str:
    """Renders the report in lines."""
    totals = report.findings.totals
    lines = [f"{report.files:,} captures, {totals.packets_in:,} packets, {totals.bytes_in:,} bytes"]
    if report.kept:
        lines.append(f"  {report.kept:,} of {report.tasks:,} tasks were done before")
    if report.split_files:
        held = max(report.held_at_cuts.items(), key=lambda item: item[1])
        merged = report.findings.policies[held[0]].totals.merged
        cost = f"there, at most {held[1]:,} packets might have merged otherwise ({held[0]}), {100 * held[1] / max(1, merged):.4f} % of merges" if held[1] else "nothing was held there"
        lines.append(f"  {report.split_files:,} of them were read in {report.parts:,} parts; {cost}")
    lines.append("")
    lines.append(f"  {'aggregation':<12}{'packets out':>18}{'fewer by':>12}{'super-packets':>18}")
    for name, effect in report.findings.policies.items():
        of = effect.totals
        lines.append(f"  {name:<12}{of.packets_out:>18,}{of.fewer_by:>11.2f}x{of.super_packets:>18,}")
    lines.append("")
    lines.append("  why packets left as they did, by gro_udp:")
    for reason, count in sorted(totals.reasons.items(), key=lambda item: (-item[1], item[0].value)):
        lines.append(f"  {count:>18,}  {reason.value}")
    lines.append("")
    lines.append(f"tables and summary.html: {output}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    limit = None if parsed.memory_limit == "0" else parsed.memory_limit
    try:
        report = corpus.analyze(
            parsed.urls,
            parsed.output,
            scheduler=parsed.scheduler,
            batch=parsed.batch,
            hold=parsed.hold,
            interval=parsed.interval,
            part_size=parsed.part_size,
            top=parsed.top,
            strict=parsed.strict,
            checksum=parsed.checksum,
            retries=parsed.retries,
            memory_limit=limit,
            storage_options=dict(parsed.storage_option),
            output_options=dict(parsed.output_option),
            # The bar is no reason not to run.
            progress=not parsed.quiet and sys.stderr.isatty() and find_spec("tqdm") is not None,
        )
    except (Error, ImportError, OSError) as error:
        print(f"superpacket.corpus: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("superpacket.corpus: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    print(json.dumps(report.json) if parsed.json else _text(report, parsed.output))
    for words in report.unreadable:
        print(words, file=sys.stderr)
    more = report.unreadable_files - len(report.unreadable)
    if more:
        print(f"and {more:,} more that could not be read", file=sys.stderr)
    return 2 if report.unreadable_files else 0


if __name__ == "__main__":
    sys.exit(main())
