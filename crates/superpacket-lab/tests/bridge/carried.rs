//! A record of the frames that each kind of port carried, to check that tests covered all kinds.

use std::fs::OpenOptions;
use std::io::Write;

use superpacket_bridge::report::PortStats;

/// Appends a line `KIND FRAMES` for each port's received and sent frames to the file named by the
/// environment variable `SUPERPACKET_CARRIED`.
pub fn note(stats: &[PortStats]) {
    let Some(path) = std::env::var_os("SUPERPACKET_CARRIED") else { return };
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .expect("the file that SUPERPACKET_CARRIED names can be written");
    for port in stats {
        let kind = port.port.split(':').next().unwrap_or_default();
        // One write per line, because tests run in parallel.
        file.write_all(format!("{kind} {}\n", port.rx_packets + port.tx_packets).as_bytes())
            .expect("the file can be written");
    }
}
