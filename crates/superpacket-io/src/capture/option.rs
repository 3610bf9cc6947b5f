//! Options of pcapng blocks: kept as bytes, walked with checks, written again in the output's byte order.
//!
//! An option is a code and a length (16 bits each, in the section's byte order) and a value padded to 4 bytes
//! (draft-ietf-opsawg-pcapng section 3.5).

use super::ByteOrder;

/// `opt_endofopt`.
const END: u16 = 0;

/// The options of one pcapng packet (`epb_flags`, comments...), as the file holds them. Empty for pcap.
///
/// They describe that one packet (a hash, a queue, a direction): a packet that replaces several has none.
#[derive(Clone, Copy, Debug)]
pub struct FrameOptions<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) byte_order: ByteOrder,
}

impl FrameOptions<'_> {
    /// No options.
    pub const NONE: FrameOptions<'static> = FrameOptions { bytes: &[], byte_order: ByteOrder::NATIVE };

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends them to `out` in another byte order, up to the first that is malformed.
    pub(super) fn write_to(&self, byte_order: ByteOrder, out: &mut Vec<u8>) {
        for (code, value) in walk(self.bytes, self.byte_order).map_while(Result::ok) {
            put(out, byte_order, code, value, if byte_order == self.byte_order { 1 } else { packet_unit(code) });
        }
    }
}

/// Walks a list of options; an error is a list that does not fit its block.
pub(super) fn walk(bytes: &[u8], byte_order: ByteOrder) -> impl Iterator<Item = Result<(u16, &[u8]), String>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if rest.len() < 4 {
            let left = std::mem::take(&mut rest).len();
            return Some(Err(format!("{left} bytes after the last option")));
        }
        let code = byte_order.u16_at(rest, 0);
        let length = usize::from(byte_order.u16_at(rest, 2));
        if code == END {
            rest = &[];
            return None;
        }
        let Some(value) = rest.get(4..4 + length) else {
            let left = std::mem::take(&mut rest).len() - 4;
            return Some(Err(format!("option {code} claims {length} bytes, {left} are left in its block")));
        };
        rest = rest.get(4 + length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Ok((code, value)))
    })
}

/// Appends one option whose value is made of numbers of `unit` bytes to be turned around (1: nothing to turn).
pub(super) fn put(out: &mut Vec<u8>, byte_order: ByteOrder, code: u16, value: &[u8], unit: usize) {
    out.extend_from_slice(&byte_order.u16_bytes(code));
    out.extend_from_slice(&byte_order.u16_bytes(value.len() as u16));
    if unit > 1 && value.len() == unit {
        out.extend(value.iter().rev());
    } else {
        out.extend_from_slice(value);
    }
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends the end of a list, if `start` (where the list began) shows that there is one.
pub(super) fn put_end(out: &mut Vec<u8>, start: usize) {
    if out.len() > start {
        out.extend_from_slice(&[0; 4]);
    }
}

/// The length of the number that an option of an Enhanced Packet Block is, else 1.
fn packet_unit(code: u16) -> usize {
    match code {
        2 | 6 => 4, // epb_flags, epb_queue
        4 | 5 => 8, // epb_dropcount, epb_packetid
        _ => 1,
    }
}

/// The length of the number that an option of an Interface Description Block is, else 1.
pub(super) fn interface_unit(code: u16) -> usize {
    match code {
        10 => 4,               // if_tzone
        8 | 14 | 16 | 17 => 8, // if_speed, if_tsoffset, if_txspeed, if_rxspeed
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_turned_around_for_another_byte_order() {
        let mut big = Vec::new();
        put(&mut big, ByteOrder::Big, 1, b"hello", 1);
        put(&mut big, ByteOrder::Big, 2, &1u32.to_be_bytes(), 1);
        put(&mut big, ByteOrder::Big, 4, &9u64.to_be_bytes(), 1);
        put_end(&mut big, 0);
        assert_eq!(big.len() % 4, 0);
        let options = FrameOptions { bytes: &big, byte_order: ByteOrder::Big };
        let mut little = Vec::new();
        options.write_to(ByteOrder::Little, &mut little);
        let read: Vec<_> = walk(&little, ByteOrder::Little).map(Result::unwrap).collect();
        let (flags, drops) = (1u32.to_le_bytes(), 9u64.to_le_bytes());
        assert_eq!(read, [(1, &b"hello"[..]), (2, &flags), (4, &drops)]);
        let mut same = Vec::new();
        options.write_to(ByteOrder::Big, &mut same);
        put_end(&mut same, 0);
        assert_eq!(same, big);
    }

    #[test]
    fn a_malformed_list_is_an_error_and_is_not_written_on() {
        let mut bytes = Vec::new();
        put(&mut bytes, ByteOrder::Little, 1, b"good", 1);
        let good = bytes.len();
        bytes.extend_from_slice(&[2, 0, 255, 0, 1]);
        assert!(walk(&bytes, ByteOrder::Little).nth(1).unwrap().is_err());
        assert!(walk(&bytes[..good + 2], ByteOrder::Little).nth(1).unwrap().is_err());
        assert_eq!(walk(&bytes, ByteOrder::Little).count(), 2, "nothing after the error");
        let mut out = Vec::new();
        FrameOptions { bytes: &bytes, byte_order: ByteOrder::Little }.write_to(ByteOrder::Little, &mut out);
        assert_eq!(out, bytes[..good]);
    }
}
