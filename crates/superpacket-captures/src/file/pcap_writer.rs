//! Writes pcap files (draft-ietf-opsawg-pcap), always version 2.4.

use super::declared::{DeclaredInterface, FrameRefusal, snap_length};
use super::output::BufferedOutput;
use super::pcap_reader::{MAGIC_MICROSECONDS, MAGIC_MODIFIED, MAGIC_NANOSECONDS};
use super::{ByteOrder, Interface, LinkType, PcapVariant, Record, TimeResolution};

pub(super) struct PcapWriter {
    byte_order: ByteOrder,
    variant: Option<PcapVariant>,
    /// The largest snap length of the interfaces declared so far; 0 if one of them has no limit.
    snap_length: Option<u32>,
    header: Option<Header>,
}

/// The properties in the header of the written file, with which all frames must agree.
#[derive(Clone, Copy)]
struct Header {
    link_type: LinkType,
    ticks_per_second: u64,
    resolution: TimeResolution,
    /// Whether records have the additional fields of Kuznetzov's "modified" format.
    modified: bool,
}

impl PcapWriter {
    pub(super) fn new(byte_order: ByteOrder, variant: Option<PcapVariant>) -> Self {
        Self { byte_order, variant, snap_length: None, header: None }
    }

    pub(super) fn declare(&mut self, interface: &Interface) {
        let length = interface.snap_length;
        self.snap_length = Some(match self.snap_length {
            Some(0) => 0,
            _ if length == 0 => 0,
            known => known.unwrap_or(0).max(length),
        });
    }

    /// Writes the header of a record. If this is the first record, writes the header of the file
    /// before it. `declared` contains all interfaces declared so far.
    #[inline]
    pub(super) fn begin(
        &mut self,
        output: &mut BufferedOutput,
        declared: &[DeclaredInterface],
        interface: &DeclaredInterface,
        frame: &Record<'_>,
        length: u32,
        original_length: u32,
    ) -> Result<(), FrameRefusal> {
        let header = match self.header {
            Some(header) => header,
            None => self.write_header(output, declared, interface)?,
        };
        if interface.link_type != header.link_type {
            return Err(FrameRefusal::LinkType { first: header.link_type });
        }
        let (seconds, fraction) = match frame.time {
            Some(time) => {
                let ticks = time.ticks_in(header.resolution, 0).ok_or(FrameRefusal::Time)?;
                seconds_and_fraction(ticks, header.ticks_per_second).ok_or(FrameRefusal::Time)?
            }
            None => (0, 0),
        };
        let mut record = [0; 16];
        for (field, value) in
            record.chunks_exact_mut(4).zip([seconds, fraction, length, original_length])
        {
            field.copy_from_slice(&self.byte_order.u32_bytes(value));
        }
        output.put(&record)?;
        if header.modified {
            output.put(&frame.options.modified(self.byte_order))?;
        }
        Ok(())
    }

    /// Completes the file: writes the file header if no frame was written.
    pub(super) fn finish(
        &mut self,
        output: &mut BufferedOutput,
        declared: &[DeclaredInterface],
    ) -> Result<(), FrameRefusal> {
        if self.header.is_none() {
            let none = DeclaredInterface::new(&Interface::new(
                LinkType::ETHERNET,
                TimeResolution::MICROSECONDS,
            ));
            self.write_header(output, declared, declared.first().unwrap_or(&none))?;
        }
        Ok(())
    }

    #[cold]
    fn write_header(
        &mut self,
        output: &mut BufferedOutput,
        declared: &[DeclaredInterface],
        interface: &DeclaredInterface,
    ) -> Result<Header, FrameRefusal> {
        let enough =
            |of: &DeclaredInterface| 1_000_000u64.is_multiple_of(of.resolution.ticks_per_second());
        let variant = self.variant.unwrap_or(match declared.iter().all(enough) {
            true => PcapVariant::Microseconds,
            false => PcapVariant::Nanoseconds,
        });
        let resolution = variant.resolution();
        let magic = match variant {
            PcapVariant::Nanoseconds => MAGIC_NANOSECONDS,
            PcapVariant::Microseconds => MAGIC_MICROSECONDS,
            PcapVariant::Modified => MAGIC_MODIFIED,
        };
        output.put(&self.byte_order.u32_bytes(magic))?;
        output.put(&self.byte_order.u16_bytes(2))?;
        output.put(&self.byte_order.u16_bytes(4))?;
        let link_type = u32::from(interface.pcap_flags) << 16 | u32::from(interface.link_type.0);
        for field in [0, 0, snap_length(self.snap_length.unwrap_or(0)), link_type] {
            output.put(&self.byte_order.u32_bytes(field))?;
        }
        let ticks_per_second = resolution.ticks_per_second();
        let modified = variant == PcapVariant::Modified;
        let header =
            Header { link_type: interface.link_type, ticks_per_second, resolution, modified };
        self.header = Some(header);
        Ok(header)
    }
}

/// Splits a time into pcap's two 32-bit fields, seconds and fraction. If the seconds exceed 32 bits
/// (after 2106) by little, the excess is added to the fraction: if such a time was read from a pcap
/// file, it was encoded so there.
#[inline]
fn seconds_and_fraction(ticks: u64, ticks_per_second: u64) -> Option<(u32, u32)> {
    // The divisors are constants, so the compiler can use multiplications.
    let (seconds, fraction) = match ticks_per_second {
        1_000_000 => (ticks / 1_000_000, ticks % 1_000_000),
        _ => (ticks / 1_000_000_000, ticks % 1_000_000_000),
    };
    match u32::try_from(seconds) {
        Ok(seconds) => Some((seconds, fraction as u32)),
        Err(_) => {
            let beyond = ticks - u64::from(u32::MAX) * ticks_per_second;
            Some((u32::MAX, u32::try_from(beyond).ok()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_split_into_two_fields() {
        assert_eq!(seconds_and_fraction(1_234_567, 1_000_000), Some((1, 234_567)));
        assert_eq!(seconds_and_fraction(1_234_567, 1_000_000_000), Some((0, 1_234_567)));
        let last = u64::from(u32::MAX) * 1_000_000;
        assert_eq!(seconds_and_fraction(last + 999_999, 1_000_000), Some((u32::MAX, 999_999)));
        assert_eq!(seconds_and_fraction(last + 1_500_000, 1_000_000), Some((u32::MAX, 1_500_000)));
        assert_eq!(seconds_and_fraction(last + (1 << 32), 1_000_000), None);
    }
}
