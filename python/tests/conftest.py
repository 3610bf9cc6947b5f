"""What tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

#: The capture that the repository ships.
DEMO = REPOSITORY / "captures" / "demo.pcap.gz"

#: Captures of many writers, beside the repository.
CAPTURES = REPOSITORY.parent / "shared" / "captures"


@pytest.fixture
def demo() -> Path:
    """Returns the capture that the repository ships."""
    return DEMO


def captures() -> list[Path]:
    """Returns the captures of many writers; none where they are not, unless they must be."""
    found = sorted(
        path
        for path in CAPTURES.glob("*/*")
        if path.is_file() and path.parent.name != "LICENSES" and "LICENSES" not in path.parts
    )
    if not found and os.environ.get("SUPERPACKET_REQUIRE_CAPTURES"):
        raise AssertionError(f"{CAPTURES} has no captures")
    return found
