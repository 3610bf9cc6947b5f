//! Completes unfinished checksums and corrects wrong ones for `coalesce` and `segment`, and counts
//! them.

use serde::Serialize;
use superpacket::Simd;
use superpacket::packet::{Layer, RxChecksum};
use superpacket::wire::{Layout, Refusal, Unparsed};

use crate::commands::checksums::{
    Checksum, ChecksumFields, ChecksumKind, ChecksumState, Checksums, Written,
};
use crate::commands::pool::Buffer;

/// Numbers of checksums that were treated in one way, for each kind, and of the frames that contain
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChecksumCounts {
    /// Number of frames with at least one such checksum.
    pub frames: u64,
    /// Number of checksums of IPv4 headers that were counted, also in tunnels.
    pub ipv4_header: u64,
    /// Number of TCP checksums that were counted, for example as wrong.
    pub tcp: u64,
    /// Number of UDP checksums that were counted, for example as wrong.
    pub udp: u64,
    /// Number of DCCP checksums that were counted, for example as wrong.
    pub dccp: u64,
    /// Number of checksums of tunnels' outer UDP headers that were counted.
    pub outer_udp: u64,
    /// Number of GRE header checksums that were counted, for example as wrong.
    pub gre: u64,
}

impl ChecksumCounts {
    /// Returns the counts of the kinds that occurred, with their names in reports.
    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let counts = [
            ("IPv4 header", self.ipv4_header),
            ("TCP", self.tcp),
            ("UDP", self.udp),
            ("DCCP", self.dccp),
            ("outer UDP", self.outer_udp),
            ("GRE", self.gre),
        ];
        counts.into_iter().filter(|&(_, count)| count > 0)
    }

    fn of_kind(&mut self, kind: ChecksumKind) -> &mut u64 {
        match kind {
            ChecksumKind::Ipv4Header => &mut self.ipv4_header,
            ChecksumKind::Tcp => &mut self.tcp,
            ChecksumKind::Udp => &mut self.udp,
            ChecksumKind::Dccp => &mut self.dccp,
            ChecksumKind::OuterUdp => &mut self.outer_udp,
            ChecksumKind::Gre => &mut self.gre,
        }
    }

    /// Counts the checksums of a frame for which `chosen` returns true.
    fn add(&mut self, checksums: &Checksums, chosen: impl Fn(&Checksum) -> bool) {
        let mut any = false;
        for checksum in checksums.iter().filter(|checksum| chosen(checksum)) {
            *self.of_kind(checksum.kind) += 1;
            any = true;
        }
        self.frames += u64::from(any);
    }
}

/// The checksums that a command completed or corrected. The JSON of `coalesce` and `segment` has
/// these keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChecksumRepairs {
    /// Unfinished checksums that were completed. The sender had left them to a network device.
    #[serde(rename = "checksums_completed")]
    pub completed: ChecksumCounts,
    /// Wrong checksums that were corrected, which is only done on request.
    #[serde(rename = "checksums_fixed")]
    pub fixed: ChecksumCounts,
    /// Number of frames whose transport checksums could not be corrected, although this was
    /// requested, because the snap length has cut the frames.
    #[serde(rename = "checksums_unknown")]
    pub unknown: u64,
}

/// The rules for writing the checksums of a capture, and the counts so far. By default, unfinished
/// checksums are completed and wrong ones are left unchanged.
#[derive(Debug, Default)]
pub(crate) struct Repair {
    fix: bool,
    keep_partial: bool,
    pub(crate) counts: ChecksumRepairs,
}

impl Repair {
    /// Returns rules for writing checksums. With `fix`, wrong ones are corrected. With
    /// `keep_partial`, packets that are otherwise unchanged keep their unfinished checksums.
    pub(crate) fn new(fix: bool, keep_partial: bool) -> Self {
        Repair { fix, keep_partial, counts: ChecksumRepairs::default() }
    }

    /// Returns whether wrong checksums are corrected.
    pub(crate) fn fixes(&self) -> bool {
        self.fix
    }

    /// Returns the set of checksums that are written in packets that a command changes: unfinished
    /// ones and, if requested, wrong ones.
    pub(crate) fn all(&self) -> Written {
        if self.fix { Written::All } else { Written::Unfinished }
    }

    /// Returns the checksums of a packet if any of them is unfinished or, if wrong ones are to be
    /// corrected, not right. If the snap length has cut the packet (`cut`), only its outermost IPv4
    /// header is examined.
    #[inline]
    pub(crate) fn find(
        &mut self,
        packet: &[u8],
        layer: Layer,
        layout: &Result<Layout, Unparsed>,
        cut: bool,
        simd: Simd,
    ) -> Option<Checksums> {
        let is_truncated = |layout: &&Layout| cut || layout.refusal == Some(Refusal::Truncated);
        let whole = layout.as_ref().ok().filter(|layout| !is_truncated(layout));
        if !self.fix {
            return Checksums::find(packet, layer, whole, simd);
        }
        let cuts_transport = match layout {
            Ok(_) => whole.is_none(),
            Err(unparsed) => cut && unparsed.reason == Refusal::Truncated,
        };
        self.counts.unknown += u64::from(cuts_transport);
        let found = Checksums::examine(packet, layer, whole, Written::All, simd);
        found.iter().any(|checksum| checksum.state != ChecksumState::Right).then_some(found)
    }

    /// Counts the checksums of a packet that a command changes, and returns the checksum fields to
    /// write.
    pub(crate) fn rewrite(&mut self, found: &Checksums) -> ChecksumFields {
        self.write(found, true)
    }

    /// Counts the checksums of a packet that is otherwise written unchanged, and returns the
    /// checksum fields to write.
    pub(crate) fn pass(&mut self, found: &Checksums) -> ChecksumFields {
        self.write(found, !self.keep_partial)
    }

    fn write(&mut self, found: &Checksums, complete: bool) -> ChecksumFields {
        let fix = self.fix;
        let completes = |checksum: &Checksum| complete && checksum.is_unfinished();
        let fixes = |checksum: &Checksum| fix && checksum.is_correctable();
        self.counts.completed.add(found, completes);
        self.counts.fixed.add(found, fixes);
        found.fields(|checksum| completes(checksum) || fixes(checksum))
    }

    /// Prepares the checksums of a packet for the aggregation engine, and returns their state. They
    /// are counted as completed; [`Repair::leave`] reverts the count if the packet keeps its
    /// unfinished checksums.
    #[cold]
    pub(crate) fn arrive(&mut self, found: &Checksums, buffer: &mut Buffer) -> RxChecksum {
        let complete = self.fix && !self.keep_partial;
        for (place, value) in self.write(found, complete).into_iter().flatten() {
            buffer.put(place, value);
        }
        if complete {
            return RxChecksum::None;
        }
        self.counts.completed.add(found, Checksum::is_unfinished);
        for (place, value) in found.canonical() {
            buffer.overwrite(place, value);
        }
        found.state()
    }

    /// Returns the checksum fields to write in a packet that leaves the engine unmerged; `None` if
    /// there are none. `found` are the checksums of the packet; those of IPv4 headers have been
    /// completed already.
    pub(crate) fn leave(
        &mut self,
        buffer: &Buffer,
        found: Option<Checksums>,
    ) -> Option<ChecksumFields> {
        if !self.keep_partial {
            return found.map(|found| found.fields(Checksum::is_unfinished));
        }
        let mut kept = ChecksumCounts::default();
        found.iter().for_each(|found| kept.add(found, Checksum::is_unfinished));
        let overwritten = buffer.overwritten();
        // An unfinished checksum of an IPv4 header is 0, and no other is.
        kept.ipv4_header = overwritten.iter().filter(|&&(_, before)| before == 0).count() as u64;
        let completed = &mut self.counts.completed;
        completed.frames -= u64::from(kept != ChecksumCounts::default());
        completed.ipv4_header -= kept.ipv4_header;
        completed.tcp -= kept.tcp;
        completed.udp -= kept.udp;
        completed.dccp -= kept.dccp;
        completed.outer_udp -= kept.outer_udp;
        let mut fields: ChecksumFields = [None; 6];
        for (field, &(place, before)) in fields.iter_mut().zip(overwritten) {
            *field = Some((place.into(), before));
        }
        fields[0].map(|_| fields)
    }
}
