"""What tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

#: The capture that the repository ships.
DEMO = REPOSITORY / "captures" / "demo.pcap.gz"

#: Captures of many writers: those of the repository, or a larger collection.
CAPTURES = Path(os.environ.get("SUPERPACKET_CAPTURES") or REPOSITORY / "captures" / "real")


@pytest.fixture
def demo() -> Path:
    """Returns the capture that the repository ships."""
    return DEMO


def captures() -> list[Path]:
    """Returns the captures of many writers."""
    found = sorted(path for path in CAPTURES.glob("*/*") if path.parent.name != "LICENSES")
    assert len(found) > 200, f"{CAPTURES} has {len(found)} captures"
    return found
