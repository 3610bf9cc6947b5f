"""What a run over a corpus found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from superpacket._reports import Findings, shown
from superpacket._superpacket import Page


@dataclass(frozen=True)
class CorpusReport:
    """What ``superpacket.corpus.analyze`` found; the tables in its output say it file by file."""

    #: The report as ``summary.json`` has it.
    json: dict[str, Any] = field(repr=False)
    #: In all captures that could be read.
    findings: Findings
    #: Captures that could be read.
    files: int
    #: What is wrong with the others: the first thousand, in words.
    unreadable: list[str]
    #: How many others there are.
    unreadable_files: int
    #: Tasks: files, and parts of files.
    tasks: int
    #: Of the tasks, those whose results an earlier run had left.
    kept: int
    #: Captures that were read in parts, and their parts.
    split_files: int
    parts: int
    #: Packets, by policy, that might have merged otherwise had captures not been cut into parts:
    #: those held at cuts, and ACKs that may repeat what a part before acknowledged.
    held_at_cuts: dict[str, int]
    #: Bytes that tasks gave back.
    result_bytes: int
    page: Page = field(repr=False)

    def _repr_html_(self) -> str:
        """Returns the page in a frame, for notebooks."""
        return shown(self)

    def to_html(self) -> str:
        """Returns the summary page, which needs nothing else."""
        return self.page.render()
