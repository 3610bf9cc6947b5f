//! Writes pcapng files (draft-ietf-opsawg-pcapng) with one section of unspecified length.

use std::io;

use super::declared::{DeclaredInterface, FrameRefusal, snap_length};
use super::interface::{IF_TSOFFSET, IF_TSRESOL};
use super::option::{interface_unit, put, put_end, walk};
use super::output::BufferedOutput;
use super::pcapng_reader::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, INTERFACE_DESCRIPTION, SECTION_HEADER, SIMPLE_PACKET,
};
use super::{ByteOrder, Interface, InterfaceStatistics, Record, TimeResolution, Timestamp};

const SHB_USERAPPL: u16 = 4;
const INTERFACE_STATISTICS: u32 = 5;
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

pub(super) struct PcapNgWriter {
    byte_order: ByteOrder,
    /// The body of the block that is being built. Its memory is used for all blocks.
    body: Vec<u8>,
}

impl PcapNgWriter {
    /// Writes the header of the file's only section.
    pub(super) fn new(output: &mut BufferedOutput, byte_order: ByteOrder) -> io::Result<Self> {
        let mut writer = Self { byte_order, body: Vec::new() };
        writer.u32(BYTE_ORDER_MAGIC);
        writer.body.extend_from_slice(&byte_order.u16_bytes(1));
        writer.body.extend_from_slice(&byte_order.u16_bytes(0));
        writer.body.extend_from_slice(&[0xFF; 8]);
        let start = writer.body.len();
        let application = concat!("superpacket ", env!("CARGO_PKG_VERSION"));
        put(&mut writer.body, byte_order, SHB_USERAPPL, application.as_bytes(), 1);
        put_end(&mut writer.body, start);
        writer.block(output, SECTION_HEADER)?;
        Ok(writer)
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

    /// Writes the body that was prepared as a block, and empties it.
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
