//! What holds for a port at this moment: requested settings, capabilities, and what the kernel
//! refused.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use superpacket::aggregate::{Delivery, Mode, Policy, Storage};
use superpacket::packet::Layer;
use superpacket::segment::{GsoSupport, PacketKind, PacketKinds};
use superpacket_port::features::{Feature, FeatureSet, Resolved, resolve};
use superpacket_port::{Capabilities, PortState};

use crate::bucket::Buckets;
use crate::counters::Counts;
use crate::fdb::Station;
use crate::report::{FeatureReport, PortFeatures, SegmentationReport};
use crate::settings::{Forwarding, Limits, PortSettings, PortSteering, TooBig};
use crate::vlan::{PortVlans, VlanProtocol};

/// A port as all threads see it.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Its number: the index of its place in every list of ports.
    pub(crate) number: u16,
    /// What it is called.
    pub(crate) name: String,
    pub(crate) counts: Counts,
    /// The rates that it is limited to.
    pub(crate) buckets: Buckets,
    pub(crate) layer: Layer,
    /// The bridge filters by VLAN, with tags of this protocol.
    pub(crate) vlan_filtering: Option<VlanProtocol>,
    /// Changed under the lock, read by threads when the bridge's epoch changes.
    requested: RwLock<Requested>,
    /// The MTU now; 0: no limit.
    mtu: AtomicU32,
    /// The kinds of super-packets that the kernel refused again and again ([`PacketKinds::bits`]).
    refused: AtomicU64,
    /// The kinds of packets whose partial checksums the kernel refused again and again.
    refused_checksums: AtomicU64,
    /// How often it was opened again.
    opening: AtomicU32,
    /// The receive queues that have a mask and are processed in place all the same.
    in_place: RwLock<BTreeSet<u16>>,
}

/// The requested settings of a port, and its capabilities.
#[derive(Clone, Debug)]
struct Requested {
    settings: PortSettings,
    capabilities: Capabilities,
}

/// What holds for a port, for a thread to work by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runtime {
    pub(crate) active: FeatureSet,
    pub(crate) capabilities: Capabilities,
    /// The kinds of packets whose partial checksums the kernel refuses.
    pub(crate) refused_checksums: PacketKinds,
    pub(crate) limits: Limits,
    pub(crate) too_big: TooBig,
    pub(crate) forwarding: Forwarding,
    /// LRO absorbs pure ACKs.
    lro_acks: bool,
    /// GRO merges super-packets with PSH further.
    gro_past_push: bool,
    /// GRO merges UDP over IPv4 without a checksum.
    gro_udp_no_checksum: bool,
    /// GRO merges TCP packets that are not alike.
    gro_uneven: bool,
    /// What is aggregated is copied into one run of bytes.
    linear: bool,
    delivery: Delivery,
    /// The longest IP packet; `usize::MAX` without a limit.
    pub(crate) mtu: usize,
}

impl Runtime {
    /// May this be left to the port?
    #[inline]
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.active.contains(feature)
    }

    /// The most pieces of a frame.
    #[inline]
    pub(crate) fn max_slices(&self) -> usize {
        if self.has(Feature::ScatterGather) { self.capabilities.max_slices } else { 1 }
    }

    /// Returns the super-packets that the port is given whole.
    pub(crate) fn gso_support(&self) -> GsoSupport {
        let limit = match self.limits.gso_max_size {
            0 => u32::MAX,
            limit => limit,
        };
        let mut gso = self.capabilities.gso;
        gso.tcp &= self.has(Feature::TcpSegmentationOffload);
        gso.udp &= self.has(Feature::TxUdpSegmentation);
        gso.max_ipv4_length = gso.max_ipv4_length.min(limit);
        gso.max_ipv6_length = gso.max_ipv6_length.min(limit);
        gso
    }

    /// How packets that the port receives are aggregated; `None`: not at all.
    pub(crate) fn policy(&self) -> Option<Policy> {
        let policy = if self.has(Feature::LargeReceiveOffload) {
            let packets = match self.limits.lro_max_aggr {
                0 => u32::MAX,
                limit => limit,
            };
            Policy::lro()
                .with_mode(Mode::Lro { acks: self.lro_acks })
                .with_max_packets(packets)
                .with_max_flows(self.limits.lro_max_desc)
        } else if self.has(Feature::GenericReceiveOffload) {
            let gro = Policy::gro()
                .with_partial_checksums()
                .with_mode(Mode::Gro { udp: self.has(Feature::RxUdpGroForwarding) });
            let gro = if self.gro_past_push { gro.with_merge_past_push() } else { gro };
            let gro = if self.gro_uneven { gro.with_merge_uneven() } else { gro };
            if self.gro_udp_no_checksum { gro.with_merge_udp_without_checksum() } else { gro }
        } else {
            return None;
        };
        let hold_time = match self.delivery {
            Delivery::PerPoll => self.limits.gro_flush_timeout,
            Delivery::AtOnce => 0,
        };
        // What is held past a poll must not keep a ring from moving on: it is copied out.
        let storage =
            if hold_time == 0 && !self.linear { Storage::Fragments } else { Storage::Linear };
        let policy = policy.with_max_bytes(self.limits.gro_max_size).with_hold_time(hold_time);
        Some(policy.with_storage(storage).with_delivery(self.delivery))
    }
}

impl Shared {
    /// A port that has just been opened.
    pub(crate) fn new(
        number: u16,
        settings: PortSettings,
        capabilities: Capabilities,
        layer: Layer,
        state: PortState,
    ) -> Self {
        Shared {
            number,
            name: settings.port.name().to_owned(),
            counts: Counts::default(),
            buckets: Buckets::new(&settings.limits.rates),
            layer,
            vlan_filtering: None,
            requested: RwLock::new(Requested { settings, capabilities }),
            mtu: AtomicU32::new(state.mtu),
            refused: AtomicU64::new(0),
            refused_checksums: AtomicU64::new(0),
            opening: AtomicU32::new(0),
            in_place: RwLock::default(),
        }
    }

    fn requested(&self) -> Requested {
        self.requested.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same port in a bridge that filters by VLAN, or does not; packets without a link layer
    /// have no VLANs.
    pub(crate) fn with_vlan_filtering(self, vlan_filtering: Option<VlanProtocol>) -> Self {
        Shared { vlan_filtering: vlan_filtering.filter(|_| self.layer == Layer::Ethernet), ..self }
    }

    /// Its VLANs; `None` where the bridge does not filter by them.
    pub(crate) fn vlans(&self) -> Option<Arc<PortVlans>> {
        self.vlan_filtering.map(|_| Arc::new(self.settings().vlans))
    }

    /// What it is asked.
    pub(crate) fn settings(&self) -> PortSettings {
        self.requested().settings
    }

    /// Changes what it is asked; the kernel gets another chance to do what it refused.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut PortSettings) -> R) -> R {
        self.forget_refusals();
        let settings = &mut self.requested.write().unwrap_or_else(PoisonError::into_inner).settings;
        let changed = change(settings);
        self.buckets.set(&settings.limits.rates);
        changed
    }

    /// Changes which stations lie behind it whatever is learned.
    pub(crate) fn change_static_entries(
        &self,
        change: impl FnOnce(&mut BTreeSet<Station>) -> bool,
    ) {
        change(
            &mut self
                .requested
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .settings
                .static_entries,
        );
    }

    /// Changes how its packets are steered.
    pub(crate) fn change_steering(&self, change: impl FnOnce(&mut PortSteering)) {
        change(
            &mut self.requested.write().unwrap_or_else(PoisonError::into_inner).settings.steering,
        );
    }

    /// A receive queue that has a mask is processed in place from now on, or no longer.
    pub(crate) fn set_in_place(&self, queue: u16, in_place: bool) {
        let mut queues = self.in_place.write().unwrap_or_else(PoisonError::into_inner);
        if in_place {
            queues.insert(queue)
        } else {
            queues.remove(&queue)
        };
    }

    /// Is a receive queue that has a mask processed in place?
    pub(crate) fn is_in_place(&self, queue: u16) -> bool {
        self.in_place.read().unwrap_or_else(PoisonError::into_inner).contains(&queue)
    }

    /// It was opened again, perhaps as another device.
    pub(crate) fn reopened(&self, capabilities: Capabilities, state: PortState) {
        self.opening.fetch_add(1, Ordering::Relaxed);
        self.forget_refusals();
        self.requested.write().unwrap_or_else(PoisonError::into_inner).capabilities = capabilities;
        self.set_mtu(state.mtu);
    }

    /// Which opening this is, from 0 on: what is said of an earlier one is not meant of this.
    pub(crate) fn opening(&self) -> u32 {
        self.opening.load(Ordering::Relaxed)
    }

    /// The MTU changed; says whether it did.
    pub(crate) fn set_mtu(&self, mtu: u32) -> bool {
        self.mtu.swap(mtu, Ordering::Relaxed) != mtu
    }

    /// The MTU in bytes; 0: no limit.
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Remembers that the kernel refuses packets of this kind: super-packets, or else those with a
    /// partial checksum.
    pub(crate) fn refuse(&self, kind: PacketKind, super_packets: bool) {
        let refused = if super_packets { &self.refused } else { &self.refused_checksums };
        refused.fetch_or(PacketKinds::NONE.with(kind).bits(), Ordering::Relaxed);
    }

    fn forget_refusals(&self) {
        self.refused.store(0, Ordering::Relaxed);
        self.refused_checksums.store(0, Ordering::Relaxed);
    }

    /// Returns the kinds of super-packets, and of packets with partial checksums, that the kernel
    /// refuses.
    fn refusals(&self) -> (PacketKinds, PacketKinds) {
        let kinds = |refused: &AtomicU64| PacketKinds::from_bits(refused.load(Ordering::Relaxed));
        (kinds(&self.refused), kinds(&self.refused_checksums))
    }

    fn resolved(&self, requested: &Requested) -> Resolved {
        let mut supported = requested.capabilities.features;
        if !requested.settings.force_lro {
            supported = supported.without(Feature::LargeReceiveOffload);
        }
        resolve(requested.settings.features, supported)
    }

    /// What holds now.
    pub(crate) fn runtime(&self) -> Runtime {
        let requested = self.requested();
        let (refused, refused_checksums) = self.refusals();
        let mut capabilities = requested.capabilities;
        capabilities.gso.refused = refused;
        Runtime {
            active: self.resolved(&requested).active,
            capabilities,
            refused_checksums,
            limits: requested.settings.limits,
            too_big: requested.settings.too_big,
            forwarding: requested.settings.forwarding,
            lro_acks: requested.settings.lro_acks,
            gro_past_push: requested.settings.gro_past_push,
            gro_udp_no_checksum: requested.settings.gro_udp_no_checksum,
            gro_uneven: requested.settings.gro_uneven,
            linear: requested.settings.linear,
            delivery: requested.settings.delivery,
            mtu: match self.mtu() {
                0 => usize::MAX,
                mtu => mtu as usize,
            },
        }
    }

    /// Reports for each offload what is requested, what is active, and why they differ.
    pub(crate) fn features(&self) -> PortFeatures {
        let requested = self.requested();
        let resolved = self.resolved(&requested);
        let report = |feature: Feature| {
            let reason = resolved.why_inactive(feature).map(|why| match feature {
                Feature::LargeReceiveOffload if !requested.settings.force_lro => {
                    "packets are forwarded, and what LRO merged cannot be cut into the packets that came: it must be forced".to_owned()
                }
                _ => why.to_string(),
            });
            FeatureReport {
                feature: feature.name().to_owned(),
                requested: resolved.requested.contains(feature),
                active: resolved.active.contains(feature),
                reason,
            }
        };
        let (refused, refused_checksums) = self.refusals();
        let names = |kinds: PacketKinds| kinds.iter().map(|kind| kind.to_string()).collect();
        let gso = self.runtime().gso_support();
        let tunnels: &[&str] = if gso.udp_tunnels { &["vxlan", "geneve"] } else { &[] };
        PortFeatures {
            port: self.name.clone(),
            features: Feature::ALL.into_iter().map(report).collect(),
            segmentation: (gso.tcp || gso.udp).then(|| SegmentationReport {
                link_headers: gso.link_headers.iter().map(|link| link.name().to_owned()).collect(),
                tunnels: tunnels.iter().map(|tunnel| (*tunnel).to_owned()).collect(),
                max_ipv4_length: gso.max_ipv4_length,
                max_ipv6_length: gso.max_ipv6_length,
                refused: names(refused),
                refused_checksums: names(refused_checksums),
            }),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use superpacket::wire::{IpVersion, LinkHeader, Protocol};
    use superpacket_port::LinkState;

    /// A port that can do everything, asked what `change` says.
    pub(crate) fn shared(change: impl FnOnce(&mut PortSettings)) -> Shared {
        shared_as(0, change)
    }

    /// The same, with a number.
    pub(crate) fn shared_as(number: u16, change: impl FnOnce(&mut PortSettings)) -> Shared {
        let mut gso = GsoSupport::LINUX;
        (gso.udp_tunnels, gso.max_segments) = (false, 65_535);
        let capabilities = Capabilities { features: FeatureSet::all(), gso, max_slices: 1024 };
        let mut settings = PortSettings::new("memory:test".parse().expect("a port string"));
        change(&mut settings);
        Shared::new(
            number,
            settings,
            capabilities,
            Layer::Ethernet,
            PortState { link: LinkState::Up, mtu: 1500 },
        )
    }

    fn reason(shared: &Shared, feature: Feature) -> String {
        let features = shared.features().features;
        let report =
            features.iter().find(|report| report.feature == feature.name()).expect("all are there");
        assert!(report.requested && !report.active, "{report:?}");
        report.reason.clone().expect("there is a reason")
    }

    #[test]
    fn lro_must_be_forced() {
        let port = shared(|settings| {
            settings.features = settings.features.with(Feature::LargeReceiveOffload)
        });
        assert!(reason(&port, Feature::LargeReceiveOffload).contains("must be forced"));
        assert!(matches!(
            port.runtime().policy().map(|policy| policy.mode),
            Some(Mode::Gro { udp: false })
        ));
        assert_eq!(port.runtime().policy().map(|policy| policy.merge_past_push), Some(false));
        port.change(|settings| settings.gro_past_push = true);
        assert_eq!(port.runtime().policy().map(|policy| policy.merge_past_push), Some(true));
        assert_eq!(
            port.runtime().policy().map(|policy| policy.merge_udp_without_checksum),
            Some(false)
        );
        port.change(|settings| settings.gro_udp_no_checksum = true);
        assert_eq!(
            port.runtime().policy().map(|policy| policy.merge_udp_without_checksum),
            Some(true)
        );
        port.change(|settings| settings.force_lro = true);
        assert_eq!(
            port.runtime().policy().map(|policy| policy.mode),
            Some(Mode::Lro { acks: false })
        );
        port.change(|settings| (settings.lro_acks, settings.linear) = (true, true));
        let policy = port.runtime().policy().expect("LRO is on");
        assert_eq!((policy.mode, policy.storage), (Mode::Lro { acks: true }, Storage::Linear));
        assert_eq!((policy.max_packets, policy.max_flows), (u32::MAX, 64));
        port.change(|settings| {
            (settings.limits.lro_max_aggr, settings.limits.lro_max_desc) = (7, 8)
        });
        let policy = port.runtime().policy().expect("LRO is on");
        assert_eq!((policy.max_packets, policy.max_flows), (7, 8));
    }

    #[test]
    fn a_refused_kind_of_packet_is_not_given_to_the_port_until_the_settings_change() {
        let port = shared(|_| ());
        let pppoe = PacketKind {
            link: LinkHeader::Pppoe,
            tunnel: None,
            protocol: Protocol::Tcp,
            version: IpVersion::V4,
        };
        port.refuse(pppoe, true);
        port.refuse(PacketKind { link: LinkHeader::Vlan, ..pppoe }, false);
        let runtime = port.runtime();
        assert_eq!(runtime.gso_support().refused.iter().collect::<Vec<_>>(), [pppoe]);
        assert!(
            runtime.has(Feature::TcpSegmentationOffload) && runtime.has(Feature::TxChecksumming),
            "other packets are the port's"
        );
        let segmentation = port.features().segmentation.expect("TSO is on");
        assert_eq!(segmentation.refused, ["TCP over IPv4 in PPPoE"]);
        assert_eq!(segmentation.refused_checksums, ["TCP over IPv4 behind VLAN tags"]);
        assert_eq!(
            (segmentation.link_headers, segmentation.tunnels),
            (vec!["plain".to_owned(), "vlan".to_owned()], vec![])
        );
        port.change(|_| ());
        let segmentation = port.features().segmentation.expect("TSO is on");
        assert_eq!((segmentation.refused.len(), segmentation.refused_checksums.len()), (0, 0));
        assert!(port.runtime().refused_checksums.is_empty());
    }

    #[test]
    fn what_is_held_past_a_poll_is_copied_out() {
        let port = shared(|settings| settings.limits.gro_flush_timeout = 50_000);
        let policy = port.runtime().policy().expect("GRO is on");
        assert_eq!((policy.storage, policy.hold_time), (Storage::Linear, 50_000));
        port.change(|settings| settings.delivery = Delivery::AtOnce);
        let policy = port.runtime().policy().expect("GRO is on");
        assert_eq!(
            (policy.storage, policy.hold_time, policy.delivery),
            (Storage::Fragments, 0, Delivery::AtOnce)
        );
        port.change(|settings| settings.features = FeatureSet::NONE);
        assert!(port.runtime().policy().is_none());
        assert_eq!(port.runtime().max_slices(), 1);
    }
}
