//! How many frames each kind of port carried, for whoever wants to see that none was left out.

use std::fs::OpenOptions;
use std::io::Write;

use superpacket_bridge::report::PortStats;

/// Appends what each port received and sent, `KIND FRAMES` a line, to the file that the environment
/// names in `SUPERPACKET_CARRIED`.
pub fn note(stats: &[PortStats]) {
    let Some(path) = std::env::var_os("SUPERPACKET_CARRIED") else { return };
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .expect("the file that SUPERPACKET_CARRIED names can be written");
    for port in stats {
        let kind = port.port.split(':').next().unwrap_or_default();
        // One write a line: tests run side by side.
        file.write_all(format!("{kind} {}\n", port.rx_packets + port.tx_packets).as_bytes())
            .expect("the file can be written");
    }
}
