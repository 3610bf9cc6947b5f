//! Writes pcapng files (draft-ietf-opsawg-pcapng) with one section of unspecified length.

use std::io;

use super::block::{
    BlockCounts, INTERFACE_STATISTICS, ISB_ENDTIME, ISB_IFDROP, ISB_IFRECV, ISB_STARTTIME,
    SECTION_HEADER,
};
use super::declared::{DeclaredInterface, FrameRefusal, snap_length};
use super::interface::{IF_TSOFFSET, IF_TSRESOL};
use super::option::{COMMENT, interface_unit, put, put_end, walk};
use super::output::BufferedOutput;
use super::pcapng_reader::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, INTERFACE_DESCRIPTION, SIMPLE_PACKET,
};
use super::{
    Block, BlockKind, ByteOrder, Interface, InterfaceStatistics, Record, TimeResolution, Timestamp,
};

const SHB_USERAPPL: u16 = 4;

/// Maximum length in bytes of the comments on a section that wait for its first interface.
const MAX_SECTION_COMMENTS: usize = 64 * 1024;

pub(super) struct PcapNgWriter {
    byte_order: ByteOrder,
    /// Whether the header of the file's only section was written.
    begun: bool,
    /// Comments on a later section of the input, as options. The section's first interface gets
    /// them, since the header of the output's only section is written before they are read.
    section_comments: Vec<u8>,
    /// The body of the block that is being built; the buffer is reused for all blocks.
    body: Vec<u8>,
}

impl PcapNgWriter {
    pub(super) fn new(byte_order: ByteOrder) -> Self {
        Self { byte_order, begun: false, section_comments: Vec::new(), body: Vec::new() }
    }

    /// Writes the header of the file's only section, with the options of the input's `section` if
    /// there is one. Does nothing if it was written before.
    pub(super) fn begin(
        &mut self,
        output: &mut BufferedOutput,
        section: Option<&Block<'_>>,
        counts: &mut BlockCounts,
    ) -> io::Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let byte_order = self.byte_order;
        self.body.clear();
        self.u32(BYTE_ORDER_MAGIC);
        self.body.extend_from_slice(&byte_order.u16_bytes(1));
        self.body.extend_from_slice(&byte_order.u16_bytes(0));
        self.body.extend_from_slice(&[0xFF; 8]);
        let start = self.body.len();
        let mut has_application = false;
        if let Some(section) = section {
            for (code, value) in section.section_options() {
                has_application |= code == SHB_USERAPPL;
                if !section.write_option(code, value, byte_order, &mut self.body) {
                    counts.leave_out_option();
                }
            }
        }
        // The program that captured the packets says more than the one that changed them.
        if !has_application {
            let application = concat!("superpacket ", env!("CARGO_PKG_VERSION"));
            put(&mut self.body, byte_order, SHB_USERAPPL, application.as_bytes(), 1);
        }
        put_end(&mut self.body, start);
        self.block(output, SECTION_HEADER)
    }

    /// Writes a block of the input that holds neither a packet nor an interface, without what the
    /// output file cannot hold.
    pub(super) fn other_block(
        &mut self,
        output: &mut BufferedOutput,
        block: &Block<'_>,
        counts: &mut BlockCounts,
    ) -> io::Result<()> {
        if block.kind() == BlockKind::SectionHeader {
            return match self.begun {
                false => self.begin(output, Some(block), counts),
                true => {
                    self.keep_comments(block, counts);
                    Ok(())
                }
            };
        }
        self.body.clear();
        match block.write_body(self.byte_order, &mut self.body) {
            Some(options) => {
                counts.keep(options);
                self.block(output, block.block_type())
            }
            None => {
                counts.leave_out(block.kind());
                Ok(())
            }
        }
    }

    /// Stores the comments on a later section of the input, to be written with the section's first
    /// interface.
    fn keep_comments(&mut self, section: &Block<'_>, counts: &mut BlockCounts) {
        let mut is_complete = true;
        for (code, value) in section.section_options() {
            if code == COMMENT && self.section_comments.len() + value.len() < MAX_SECTION_COMMENTS {
                put(&mut self.section_comments, self.byte_order, code, value, 1);
            } else {
                is_complete = false;
            }
        }
        if !is_complete {
            counts.leave_out(BlockKind::SectionHeader);
        }
    }

    /// Returns whether there are comments on a section that could not be written, because no
    /// interface followed.
    pub(super) fn has_lost_comments(&self) -> bool {
        !self.section_comments.is_empty()
    }

    pub(super) fn declare(
        &mut self,
        output: &mut BufferedOutput,
        interface: &Interface,
    ) -> io::Result<()> {
        let byte_order = self.byte_order;
        self.body.clear();
        self.body.extend_from_slice(&byte_order.u16_bytes(interface.link_type.0));
        self.body.extend_from_slice(&[0; 2]);
        self.u32(snap_length(interface.snap_length));
        let start = self.body.len();
        self.body.append(&mut self.section_comments);
        let swap = byte_order == ByteOrder::Big;
        for (code, value) in walk(&interface.options, ByteOrder::Little).map_while(Result::ok) {
            put(
                &mut self.body,
                byte_order,
                code,
                value,
                if swap { interface_unit(code) } else { 1 },
            );
        }
        if interface.resolution != TimeResolution::MICROSECONDS {
            put(&mut self.body, byte_order, IF_TSRESOL, &[interface.resolution.to_option()], 1);
        }
        if interface.offset_seconds != 0 {
            let value = interface.offset_seconds.to_le_bytes();
            put(&mut self.body, byte_order, IF_TSOFFSET, &value, if swap { 8 } else { 1 });
        }
        put_end(&mut self.body, start);
        self.block(output, INTERFACE_DESCRIPTION)
    }

    /// Writes a complete block with a packet.
    #[inline]
    pub(super) fn packet<'p>(
        &mut self,
        output: &mut BufferedOutput,
        interface: &DeclaredInterface,
        record: &Record<'_>,
        parts: impl Iterator<Item = &'p [u8]>,
        length: u32,
        original_length: u32,
    ) -> Result<(), FrameRefusal> {
        let padding = (length.next_multiple_of(4) - length) as usize;
        let word = |value: u32| self.byte_order.u32_bytes(value);
        // A Simple Packet Block has no interface and no captured length, so it can contain only
        // complete frames of the first interface.
        let simple = record.time.is_none() && record.interface == 0 && length == original_length;
        // Long lists of options are written without copying them into the body.
        self.body.clear();
        let options = match record.options.verbatim(self.byte_order) {
            Some(options) => options,
            None => {
                record.options.write_list(self.byte_order, &mut self.body);
                self.body.as_slice()
            }
        };
        if simple && options.is_empty() && interface.holds(length) {
            let total = 16 + length + padding as u32;
            for field in [SIMPLE_PACKET, total, original_length] {
                output.put(&word(field))?;
            }
            for part in parts {
                output.put(part)?;
            }
            output.put(&[0; 4][..padding])?;
            output.put(&word(total))?;
            return Ok(());
        }
        let ticks = match record.time {
            Some(time) => time
                .ticks_in(interface.resolution, interface.offset_seconds)
                .ok_or(FrameRefusal::Time)?,
            None => 0,
        };
        let end = if options.is_empty() { 0 } else { 4 };
        let total = 32 + length + padding as u32 + (options.len() + end) as u32;
        let mut head = [0; 28];
        let fields = [
            ENHANCED_PACKET,
            total,
            record.interface,
            (ticks >> 32) as u32,
            ticks as u32,
            length,
            original_length,
        ];
        for (bytes, field) in head.chunks_exact_mut(4).zip(fields) {
            bytes.copy_from_slice(&self.byte_order.u32_bytes(field));
        }
        output.put(&head)?;
        for part in parts {
            output.put(part)?;
        }
        output.put(&[0; 4][..padding])?;
        output.put(options)?;
        output.put(&[0; 4][..end])?;
        output.put(&self.byte_order.u32_bytes(total))?;
        Ok(())
    }

    /// Writes a block with the packet counts of an interface up to `time`.
    pub(super) fn statistics(
        &mut self,
        output: &mut BufferedOutput,
        number: u32,
        interface: &DeclaredInterface,
        time: Timestamp,
        counted: &InterfaceStatistics,
    ) -> Result<(), FrameRefusal> {
        let byte_order = self.byte_order;
        // In either byte order, a time has two 32-bit words, the higher one first.
        let ticks = |time: Timestamp| -> Result<Vec<u8>, FrameRefusal> {
            let ticks = time
                .ticks_in(interface.resolution, interface.offset_seconds)
                .ok_or(FrameRefusal::Time)?;
            Ok([byte_order.u32_bytes((ticks >> 32) as u32), byte_order.u32_bytes(ticks as u32)]
                .concat())
        };
        let end = ticks(time)?;
        let start = counted.start.map(ticks).transpose()?;
        self.body.clear();
        self.u32(number);
        self.body.extend_from_slice(&end);
        let from = self.body.len();
        if let Some(start) = start {
            put(&mut self.body, byte_order, ISB_STARTTIME, &start, 1);
        }
        put(&mut self.body, byte_order, ISB_ENDTIME, &end, 1);
        let swap = if byte_order == ByteOrder::Little { 1 } else { 8 };
        for (code, count) in [(ISB_IFRECV, counted.packets), (ISB_IFDROP, counted.dropped)] {
            put(&mut self.body, byte_order, code, &count.to_le_bytes(), swap);
        }
        put_end(&mut self.body, from);
        Ok(self.block(output, INTERFACE_STATISTICS)?)
    }

    fn u32(&mut self, value: u32) {
        self.body.extend_from_slice(&self.byte_order.u32_bytes(value));
    }

    /// Writes `body` as a block of type `block_type`, and clears it.
    fn block(&mut self, output: &mut BufferedOutput, block_type: u32) -> io::Result<()> {
        let total = self.byte_order.u32_bytes(12 + self.body.len() as u32);
        output.put(&self.byte_order.u32_bytes(block_type))?;
        output.put(&total)?;
        output.put(&self.body)?;
        output.put(&total)?;
        self.body.clear();
        Ok(())
    }
}
