//! Reads Linux's GRO hint, a Geneve option, from a frame.

/// The UDP port of Geneve.
const GENEVE: u16 = 6_081;

/// Class, type and length of Geneve's GRO hint option.
const OPTION: [u8; 4] = [0x01, 0x00, 1, 1];

/// The GRO hint that Linux uses in a packet: the first Geneve option of this type, if its offsets
/// are consistent (`geneve_opt_gro_hint_off`).
///
/// Offsets are in bytes from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Offset of the hint's four bytes in the frame.
    pub at: usize,
    /// Offset of the outer UDP header in the frame.
    pub outer: usize,
    /// Offset of the end of the Geneve header with its options.
    pub start: usize,
    /// Offset of the second tunnel's UDP header, as the hint says.
    pub transport: usize,
    /// Offset of the end of the second tunnel's headers, as the hint says.
    pub end: usize,
}

impl Hint {
    /// Finds the GRO hint of a frame; `None` if the frame has no consistent one.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let (GENEVE, header) = udp_payload(frame)? else { return None };
        let start = header + 8 + usize::from(*frame.get(header)? & 0x3f) * 4;
        let mut at = header + 8;
        let options = frame.get(..start)?;
        let at = loop {
            let option: [u8; 8] = options.get(at..at + 8)?.try_into().ok()?;
            // Linux ignores the reserved bits of the length.
            if (&option[..3], option[3] & 0x1f) == (&OPTION[..3], OPTION[3]) {
                break at + 4;
            }
            at += 4 + usize::from(option[3] & 0x1f) * 4;
        };
        let [flags, network, transport, length] = [0, 1, 2, 3].map(|byte| frame[at + byte]);
        let (network, transport, length) =
            (usize::from(network), usize::from(transport), usize::from(length));
        let address = if flags & 4 == 0 { 20 } else { 40 };
        let fits = network + address <= transport && transport + 8 <= length && flags & 3 != 3;
        fits.then_some(Hint {
            at,
            outer: header - 8,
            start,
            transport: start + transport,
            end: start + length,
        })
    }

    /// Returns the Geneve header with its options; `None` if the frame is too short.
    pub fn geneve(self, frame: &[u8]) -> Option<&[u8]> {
        frame.get(self.outer + 8..self.start)
    }

    /// Returns the headers of the second tunnel, where the hint says they are; `None` if the frame
    /// is too short.
    pub fn headers(self, frame: &[u8]) -> Option<&[u8]> {
        frame.get(self.start..self.end)
    }

    /// Returns whether the second tunnel has a UDP checksum, and the first tunnel has none. Linux
    /// cannot verify the second tunnel's checksum then.
    pub fn has_only_nested_checksum(self, frame: &[u8]) -> bool {
        let is_zero =
            |udp: usize| frame.get(udp + 6..udp + 8).is_none_or(|checksum| checksum == [0, 0]);
        is_zero(self.outer) && !is_zero(self.transport)
    }
}

/// Returns the destination port of a UDP header behind Ethernet, VLAN tags and IP, and the offset
/// of the UDP payload; `None` for other packets.
pub(crate) fn udp_payload(bytes: &[u8]) -> Option<(u16, usize)> {
    let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let mut at = 12;
    while matches!(word(at)?, 0x8100 | 0x88a8) {
        at += 4;
    }
    let (network, kind) = (at + 2, word(at)?);
    let (mut protocol, mut at) = match kind {
        0x0800 => (*bytes.get(network + 9)?, network + usize::from(bytes.get(network)? & 0xf) * 4),
        0x86dd => (*bytes.get(network + 6)?, network + 40),
        _ => return None,
    };
    // Hop-by-hop, routing and destination options.
    while kind == 0x86dd && matches!(protocol, 0 | 43 | 60) {
        protocol = *bytes.get(at)?;
        at += 8 + usize::from(*bytes.get(at + 1)?) * 8;
    }
    (protocol == 17).then_some((word(at + 2)?, at + 8))
}
