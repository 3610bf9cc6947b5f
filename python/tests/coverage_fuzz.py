"""Packets of any kind through the commands, led by which lines and branches of the package's Python are reached.

    python coverage_fuzz.py -max_total_time=20 [libFuzzer's options] [FOLDER]

What is tried and what must hold is ``test_packets_in_memory`` of test_fuzzed.py. Inputs that reach more are
kept in the folder; one that fails ends the run with an error, and is written here.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["superpacket"]):
    import superpacket._commands
    import superpacket._packets
    import superpacket._reports  # noqa: F401 # with all of it

from test_fuzzed import test_packets_in_memory

if __name__ == "__main__":
    atheris.Setup(sys.argv, test_packets_in_memory.hypothesis.fuzz_one_input)  # type: ignore[attr-defined]
    atheris.Fuzz()
