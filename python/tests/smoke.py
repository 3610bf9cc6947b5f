"""Takes one capture through the package, which needs nothing else: for interpreters beside that of the tests.

    python smoke.py CAPTURE
"""

from __future__ import annotations

import platform
import sys
import sysconfig

import superpacket


def main() -> None:
    """Analyzes, reads, merges and cuts."""
    path = sys.argv[1]
    totals = superpacket.analyze(path).findings.totals
    packets = list(superpacket.open(path))
    assert totals.packets_in == len(packets) > totals.packets_out > 0
    assert sum(len(batch) for batch in superpacket.open(path).to_arrow(batch_size=100)) == len(packets)
    merged = superpacket.coalesce([bytes(packet) for packet in packets]).packets
    assert merged is not None
    cut = superpacket.segment(merged, udp_size=1472).packets
    assert cut is not None and sum(map(len, cut)) == sum(map(len, packets))
    assert sum(superpacket.steer(path, cpus="ff").totals.reasons.values()) == len(packets)
    assert superpacket.verify(path).ok
    print(f"{platform.python_implementation()} {platform.python_version()} ({sysconfig.get_config_var('SOABI')}): as it should be")


main()
