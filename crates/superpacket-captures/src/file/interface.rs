//! Interfaces that a capture file describes.

use std::borrow::Cow;

use super::option::{cut_at, interface_unit, put, walk};
use super::{ByteOrder, LinkType, TimeResolution, Timestamp};

pub(super) const IF_NAME: u16 = 2;
pub(super) const IF_TSRESOL: u16 = 9;
pub(super) const IF_TSOFFSET: u16 = 14;

/// An interface of a capture file; a pcap file has exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The link type of the interface's frames.
    pub link_type: LinkType,
    /// Maximum number of bytes captured per frame; 0 if no limit is known. A
    /// [`Writer`](super::Writer) writes 0 or at least 262,144, so that super-packets fit.
    pub snap_length: u32,
    /// The unit of the times of the interface's frames.
    pub resolution: TimeResolution,
    /// Number of seconds to add to the times of the interface's frames (`if_tsoffset`).
    pub offset_seconds: i64,
    /// The upper 16 bits of a pcap file's link type field, which give the length of the frame check
    /// sequence; 0 for pcapng.
    pub(super) pcap_flags: u16,
    /// The other options of a pcapng Interface Description Block, little endian, without the end
    /// marker.
    pub(super) options: Vec<u8>,
}

impl Interface {
    /// Creates an interface without name and snap length, with times in `resolution`.
    pub fn new(link_type: LinkType, resolution: TimeResolution) -> Self {
        Self {
            link_type,
            snap_length: 0,
            resolution,
            offset_seconds: 0,
            pcap_flags: 0,
            options: Vec::new(),
        }
    }

    /// Sets the interface's name (`if_name`), cut to 1,000 bytes. Only pcapng files store it.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        put(
            &mut self.options,
            ByteOrder::Little,
            IF_NAME,
            &name.as_bytes()[..cut_at(name, 1000)],
            1,
        );
        self
    }

    /// Returns the interface's name (`if_name`), if the file has one. Bytes that are not UTF-8 are
    /// replaced.
    pub fn name(&self) -> Option<Cow<'_, str>> {
        let options = walk(&self.options, ByteOrder::Little).map_while(Result::ok);
        options
            .filter(|(code, _)| *code == IF_NAME)
            .map(|(_, value)| String::from_utf8_lossy(value))
            .next()
    }

    /// Parses the options of an Interface Description Block.
    pub(super) fn from_block(
        link_type: LinkType,
        snap_length: u32,
        options: &[u8],
        byte_order: ByteOrder,
    ) -> Result<Self, String> {
        let mut interface = Self::new(link_type, TimeResolution::MICROSECONDS);
        interface.snap_length = snap_length;
        for option in walk(options, byte_order) {
            let (code, value) = option?;
            match code {
                IF_TSRESOL => {
                    let &[value] = value else {
                        return Err(format!("if_tsresol of {} bytes", value.len()));
                    };
                    interface.resolution = TimeResolution::from_option(value).ok_or_else(|| {
                        format!("if_tsresol {value:#04x} is finer than 64 bits can count")
                    })?;
                }
                IF_TSOFFSET => {
                    let Ok(value) = <[u8; 8]>::try_from(value) else {
                        return Err(format!("if_tsoffset of {} bytes", value.len()));
                    };
                    interface.offset_seconds = match byte_order {
                        ByteOrder::Little => i64::from_le_bytes(value),
                        ByteOrder::Big => i64::from_be_bytes(value),
                    };
                }
                _ => {
                    let unit =
                        if byte_order == ByteOrder::Little { 1 } else { interface_unit(code) };
                    put(&mut interface.options, ByteOrder::Little, code, value, unit);
                }
            }
        }
        Ok(interface)
    }

    /// Returns the number of bytes of memory that the interface takes, which counts towards the
    /// reader's limit.
    pub(super) fn footprint(&self) -> usize {
        size_of::<Self>() + self.options.capacity()
    }
}

/// Packet counts of a captured interface (Interface Statistics Block).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStatistics {
    /// The start of the capture (`isb_starttime`).
    pub start: Option<Timestamp>,
    /// Number of packets that the interface received or sent during the capture, including dropped
    /// ones (`isb_ifrecv`).
    pub packets: u64,
    /// How many of these packets the capture dropped because it had no room (`isb_ifdrop`).
    pub dropped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_fields() {
        for byte_order in [ByteOrder::Little, ByteOrder::Big] {
            let (offset, speed) = match byte_order {
                ByteOrder::Little => ((-5i64).to_le_bytes(), 1000u64.to_le_bytes()),
                ByteOrder::Big => ((-5i64).to_be_bytes(), 1000u64.to_be_bytes()),
            };
            let mut options = Vec::new();
            put(&mut options, byte_order, IF_NAME, b"eth0", 1);
            put(&mut options, byte_order, IF_TSRESOL, &[9], 1);
            put(&mut options, byte_order, IF_TSOFFSET, &offset, 1);
            put(&mut options, byte_order, 8, &speed, 1);
            let interface =
                Interface::from_block(LinkType::ETHERNET, 96, &options, byte_order).unwrap();
            assert_eq!(interface.name().unwrap(), "eth0");
            assert_eq!(interface.resolution, TimeResolution::NANOSECONDS);
            assert_eq!(interface.offset_seconds, -5);
            assert_eq!(interface.snap_length, 96);
            let kept: Vec<_> =
                walk(&interface.options, ByteOrder::Little).map(Result::unwrap).collect();
            assert_eq!(kept, [(IF_NAME, &b"eth0"[..]), (8, &1000u64.to_le_bytes())]);
        }
    }

    #[test]
    fn wrong_options_are_errors() {
        for (code, value) in
            [(IF_TSRESOL, &[][..]), (IF_TSRESOL, &[64]), (IF_TSOFFSET, &[1, 2, 3, 4])]
        {
            let mut options = Vec::new();
            put(&mut options, ByteOrder::Little, code, value, 1);
            assert!(
                Interface::from_block(LinkType::ETHERNET, 0, &options, ByteOrder::Little).is_err()
            );
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let interface =
            Interface::new(LinkType::RAW, TimeResolution::MICROSECONDS).named(&"é".repeat(700));
        assert_eq!(interface.name().unwrap(), "é".repeat(500));
    }
}
