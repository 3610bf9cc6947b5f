//! Reads blocks of pcapng files (draft-ietf-opsawg-pcapng).

use std::ops::Range;

use super::block::SECTION_HEADER;
use super::error::ReadFault;
use super::option::walk;
use super::pcap_reader::LocatedRecord;
use super::window::Window;
use super::{ByteOrder, Interface, LinkType, MAX_RECORD_LENGTH, Timestamp};

pub(super) const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET: u32 = 2;
pub(super) const SIMPLE_PACKET: u32 = 3;
pub(super) const ENHANCED_PACKET: u32 = 6;
pub(super) const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;

/// Number of bytes of a block besides its body: type and length before it, the length again after
/// it.
const BLOCK_FRAMING: usize = 12;

/// Length in bytes of a Section Header Block without options.
const SHORTEST_SECTION_HEADER: u32 = 28;

/// Maximum number of bytes of memory for all interface descriptions, enough for tens of thousands.
/// Every section can add interfaces, so without a limit the memory would depend on the file.
const MAX_INTERFACES_FOOTPRINT: usize = 4 << 20;

pub(super) struct PcapNgReader {
    /// Byte order of the section that is being read.
    byte_order: ByteOrder,
    /// Number of interfaces in the sections before this one.
    section_start: usize,
    /// The range of the first section's header in the window, as long as nothing after it has been
    /// read.
    first_header: Option<Range<usize>>,
    footprint: usize,
    /// The section headers, without their options, and the interface descriptions, if they must be
    /// kept for further readers, each of which reads a part of the file.
    preamble: Option<Vec<u8>>,
}

/// A block that was found. Ranges refer to the window's buffer, and are valid until more is read
/// into it.
pub(crate) enum LocatedBlock {
    Packet(LocatedRecord),
    /// A block that holds neither a packet nor an interface.
    Other(Range<usize>),
}

/// The fields of a packet's block. Ranges are within the block.
struct PacketBlock {
    interface: usize,
    ticks: Option<u64>,
    original_length: u32,
    data: Range<usize>,
}

impl PcapNgReader {
    /// Reads the header of the first section. With `keep`, section headers and interface
    /// descriptions are kept for further readers, each of which reads a part of the file.
    pub(super) fn open(window: &mut Window, keep: bool) -> Result<Self, ReadFault> {
        let preamble = keep.then(Vec::new);
        let mut reader = Self {
            byte_order: ByteOrder::Little,
            section_start: 0,
            first_header: None,
            footprint: 0,
            preamble,
        };
        let Some(length) = reader.next_block(window)? else {
            return Err(ReadFault::Malformed("the file is empty".to_owned()));
        };
        reader.section(&window.available()[..length])?;
        let at = window.consume(length);
        reader.first_header = Some(at..at + length);
        Ok(reader)
    }

    pub(super) fn byte_order(&self) -> ByteOrder {
        self.byte_order
    }

    /// Returns the section headers and interface descriptions read so far, if they were kept.
    pub(super) fn preamble(&self) -> &[u8] {
        self.preamble.as_deref().unwrap_or(&[])
    }

    /// Returns the index of the current section's interface 0 among all interfaces of the file.
    pub(super) fn section_start(&self) -> usize {
        self.section_start
    }

    /// Finds the next packet or, with `all`, the next block that describes no interface. Interfaces
    /// that are described before it are appended to `interfaces`. Returns `None` if the file ends
    /// after a complete block.
    pub(super) fn next(
        &mut self,
        window: &mut Window,
        interfaces: &mut Vec<Interface>,
        all: bool,
    ) -> Result<Option<LocatedBlock>, ReadFault> {
        if let Some(header) = self.first_header.take()
            && all
        {
            return Ok(Some(LocatedBlock::Other(header)));
        }
        loop {
            let Some(length) = self.next_block(window)? else { return Ok(None) };
            let block = &window.available()[..length];
            let mut is_other = false;
            let packet = match self.byte_order.u32_at(block, 0) {
                ENHANCED_PACKET => Some(self.enhanced_packet(block)?),
                PACKET => Some(self.obsolete_packet(block)?),
                SIMPLE_PACKET => {
                    Some(self.simple_packet(block, &interfaces[self.section_start..])?)
                }
                SECTION_HEADER => {
                    self.section(block)?;
                    self.section_start = interfaces.len();
                    is_other = true;
                    None
                }
                INTERFACE_DESCRIPTION => {
                    let interface = self.interface(block)?;
                    self.footprint += interface.footprint();
                    if self.footprint > MAX_INTERFACES_FOOTPRINT {
                        return Err(ReadFault::Unsupported(format!(
                            "more than {} interfaces",
                            interfaces.len()
                        )));
                    }
                    interfaces.push(interface);
                    if let Some(preamble) = &mut self.preamble {
                        preamble.extend_from_slice(block);
                    }
                    None
                }
                _ => {
                    is_other = true;
                    None
                }
            };
            let Some(packet) = packet else {
                let at = window.consume(length);
                if is_other && all {
                    return Ok(Some(LocatedBlock::Other(at..at + length)));
                }
                continue;
            };
            let index = self.section_start + packet.interface;
            let Some(interface) = interfaces.get(index) else {
                return Err(ReadFault::Malformed(format!(
                    "the packet names interface {}, its section has {}",
                    packet.interface,
                    interfaces.len() - self.section_start
                )));
            };
            let at = window.consume(length);
            // After the packet, a Simple Packet Block has only padding.
            let options_start = if packet.ticks.is_some() {
                packet.data.end.next_multiple_of(4)
            } else {
                length - 4
            };
            let options = options_start..length - 4;
            return Ok(Some(LocatedBlock::Packet(LocatedRecord {
                data: at + packet.data.start..at + packet.data.end,
                options: at + options.start..at + options.end,
                interface: index as u32,
                original_length: packet.original_length,
                time: packet.ticks.map(|ticks| Timestamp {
                    ticks,
                    resolution: interface.resolution,
                    offset_seconds: interface.offset_seconds,
                }),
            })));
        }
    }

    /// Reads the next block completely into the window and checks its lengths. Returns its length,
    /// or `None` if the file ends after a complete block.
    #[inline]
    fn next_block(&mut self, window: &mut Window) -> Result<Option<usize>, ReadFault> {
        if !window.has(BLOCK_FRAMING)? {
            window.finish(|| format!("a block has at least {BLOCK_FRAMING} bytes"))?;
            return Ok(None);
        }
        let head = &window.available()[..BLOCK_FRAMING];
        let byte_order = if self.byte_order.u32_at(head, 0) == SECTION_HEADER {
            // Only a section header may change the byte order, which must be known before the
            // length is read.
            match (ByteOrder::Little.u32_at(head, 8), ByteOrder::Big.u32_at(head, 8)) {
                (BYTE_ORDER_MAGIC, _) => ByteOrder::Little,
                (_, BYTE_ORDER_MAGIC) => ByteOrder::Big,
                (magic, _) => {
                    return Err(ReadFault::Malformed(format!(
                        "a section with byte-order magic {magic:#010x}"
                    )));
                }
            }
        } else {
            self.byte_order
        };
        let claimed = byte_order.u32_at(head, 4);
        if (claimed as usize) < BLOCK_FRAMING || !claimed.is_multiple_of(4) {
            return Err(ReadFault::Malformed(format!(
                "a block of type {:#x} claims {claimed} bytes: not a multiple of 4 from {BLOCK_FRAMING} on",
                byte_order.u32_at(head, 0)
            )));
        }
        if claimed as usize > MAX_RECORD_LENGTH {
            return Err(ReadFault::RecordTooLong(u64::from(claimed)));
        }
        let length = claimed as usize;
        if !window.has(length)? {
            window.finish(|| format!("the block claims {length} bytes"))?;
            return Ok(None);
        }
        let again = byte_order.u32_at(window.available(), length - 4);
        if again != claimed {
            return Err(ReadFault::Malformed(format!(
                "a block of {claimed} bytes ends with a length of {again}"
            )));
        }
        Ok(Some(length))
    }

    fn section(&mut self, block: &[u8]) -> Result<(), ReadFault> {
        needs(block, 28, "section header")?;
        let byte_order = match ByteOrder::Little.u32_at(block, 8) {
            BYTE_ORDER_MAGIC => ByteOrder::Little,
            _ => ByteOrder::Big,
        };
        let (major, minor) = (byte_order.u16_at(block, 12), byte_order.u16_at(block, 14));
        // Version 1.2 was written by mistake and equals 1.0 (section 4.1 of the draft).
        if major != 1 || !matches!(minor, 0 | 2) {
            return Err(ReadFault::Unsupported(format!("pcapng version {major}.{minor}")));
        }
        for option in walk(&block[24..block.len() - 4], byte_order) {
            option.map_err(ReadFault::Malformed)?;
        }
        self.byte_order = byte_order;
        if let Some(preamble) = &mut self.preamble {
            let length = byte_order.u32_bytes(SHORTEST_SECTION_HEADER);
            preamble.extend_from_slice(&block[..4]);
            preamble.extend_from_slice(&length);
            // Byte order, version, and the length of the section, which readers ignore.
            preamble.extend_from_slice(&block[8..24]);
            preamble.extend_from_slice(&length);
        }
        Ok(())
    }

    fn interface(&self, block: &[u8]) -> Result<Interface, ReadFault> {
        needs(block, 20, "interface description")?;
        let link_type = LinkType(self.byte_order.u16_at(block, 8));
        let snap_length = self.byte_order.u32_at(block, 12);
        Interface::from_block(link_type, snap_length, &block[16..block.len() - 4], self.byte_order)
            .map_err(ReadFault::Malformed)
    }

    #[inline]
    fn enhanced_packet(&self, block: &[u8]) -> Result<PacketBlock, ReadFault> {
        needs(block, 32, "enhanced packet")?;
        self.packet(block, self.byte_order.u32_at(block, 8) as usize)
    }

    /// Parses an obsolete Packet Block. It differs from an Enhanced Packet Block in that interface
    /// and drop count have 16 bits each.
    fn obsolete_packet(&self, block: &[u8]) -> Result<PacketBlock, ReadFault> {
        needs(block, 32, "packet")?;
        self.packet(block, usize::from(self.byte_order.u16_at(block, 8)))
    }

    #[inline]
    fn packet(&self, block: &[u8], interface: usize) -> Result<PacketBlock, ReadFault> {
        let word = |offset| self.byte_order.u32_at(block, offset);
        let captured = word(20);
        Ok(PacketBlock {
            interface,
            ticks: Some(u64::from(word(12)) << 32 | u64::from(word(16))),
            original_length: word(24),
            data: data(block, 28, captured)?,
        })
    }

    /// Parses a Simple Packet Block. It contains no time, no captured length, and no interface: the
    /// packet belongs to the first interface of the section.
    fn simple_packet(
        &self,
        block: &[u8],
        interfaces: &[Interface],
    ) -> Result<PacketBlock, ReadFault> {
        needs(block, 16, "simple packet")?;
        let original_length = self.byte_order.u32_at(block, 8);
        let captured = match interfaces.first() {
            Some(interface) if interface.snap_length != 0 => {
                original_length.min(interface.snap_length)
            }
            _ => original_length,
        };
        let data = data(block, 12, captured)?;
        Ok(PacketBlock { interface: 0, ticks: None, original_length, data })
    }
}

fn needs(block: &[u8], length: usize, name: &str) -> Result<(), ReadFault> {
    if block.len() < length {
        return Err(ReadFault::Malformed(format!(
            "{name} block of {} bytes, at least {length} needed",
            block.len()
        )));
    }
    Ok(())
}

/// Returns the range of a packet's data in its block: `captured` bytes from `start` on. Fails if
/// they do not fit before the block's trailing length.
#[inline]
fn data(block: &[u8], start: usize, captured: u32) -> Result<Range<usize>, ReadFault> {
    let room = block.len() - 4 - start;
    if captured as usize > room {
        return Err(ReadFault::Malformed(format!(
            "the packet claims {captured} bytes, its block has room for {room}"
        )));
    }
    Ok(start..start + captured as usize)
}
