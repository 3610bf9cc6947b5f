//! The effective settings of a port: requested settings, capabilities, and refusals by the kernel.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use superpacket::aggregate::{Delivery, Mode, Policy, Storage};
use superpacket::packet::Layer;
use superpacket::segment::{GsoSupport, PacketKind, PacketKinds};
use superpacket::wire::Tunnel;
use superpacket_port::features::{Feature, FeatureSet, Resolved, resolve};
use superpacket_port::{Capabilities, PortState};

use crate::counters::PortCounts;
use crate::report::{FeatureReport, PortFeatures, SegmentationReport};
use crate::settings::{Forwarding, PortLimits, PortSettings, PortSteering, TooBig};
use crate::switch::bucket::PortBuckets;
use crate::switch::fdb::Station;
use crate::switch::vlan::{PortVlans, VlanProtocol};

/// The state of a port that all threads share.
#[derive(Debug)]
pub(crate) struct SharedPort {
    /// The port's number: its index in every list of ports.
    pub(crate) number: u16,
    /// The port's name.
    pub(crate) name: String,
    pub(crate) counts: PortCounts,
    /// The token buckets of the port's rate limits.
    pub(crate) buckets: PortBuckets,
    pub(crate) layer: Layer,
    /// The type of VLAN tag that the bridge filters by; `None` without VLAN filtering.
    pub(crate) vlan_filtering: Option<VlanProtocol>,
    /// The requested settings and the capabilities. Threads reread them when the bridge's epoch
    /// changes.
    requested: RwLock<Requested>,
    /// The current MTU in bytes; 0 for no limit.
    mtu: AtomicU32,
    /// The kinds of super-packets that the kernel refused repeatedly ([`PacketKinds::bits`]).
    refused: AtomicU64,
    /// The kinds of packets whose partial checksums the kernel refused repeatedly.
    refused_checksums: AtomicU64,
    /// Number of times that the port was opened again.
    opening: AtomicU32,
    /// The receive queues that have a CPU mask but whose packets the receiving thread currently
    /// processes itself ("in place").
    in_place: RwLock<BTreeSet<u16>>,
}

/// The requested settings of a port, and its capabilities.
#[derive(Clone, Debug)]
struct Requested {
    settings: PortSettings,
    capabilities: Capabilities,
}

/// A snapshot of a port's effective settings, for use by one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runtime {
    pub(crate) active: FeatureSet,
    pub(crate) capabilities: Capabilities,
    /// The kinds of packets whose partial checksums the kernel refuses.
    pub(crate) refused_checksums: PacketKinds,
    pub(crate) limits: PortLimits,
    pub(crate) too_big: TooBig,
    pub(crate) forwarding: Forwarding,
    /// Whether LRO absorbs pure ACKs.
    lro_acks: bool,
    /// Whether GRO merges packets after a PSH flag.
    gro_past_push: bool,
    /// Whether GRO merges UDP over IPv4 without a checksum.
    gro_udp_no_checksum: bool,
    storage: Storage,
    delivery: Delivery,
    /// The longest IP packet in bytes; `usize::MAX` for no limit.
    pub(crate) mtu: usize,
}

impl Runtime {
    /// Returns whether this offload can be left to the port.
    #[inline]
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.active.contains(feature)
    }

    /// Returns the maximum number of slices of memory that a frame to be sent may consist of.
    #[inline]
    pub(crate) fn max_slices(&self) -> usize {
        if self.has(Feature::ScatterGather) { self.capabilities.max_slices } else { 1 }
    }

    /// Returns the kinds of super-packets that the port accepts.
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

    /// Returns how received packets are aggregated; `None` for not at all.
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
            if self.gro_udp_no_checksum { gro.with_merge_udp_without_checksum() } else { gro }
        } else {
            return None;
        };
        let hold_time = match self.delivery {
            Delivery::PerPoll => self.limits.gro_flush_timeout,
            Delivery::AtOnce => 0,
        };
        // Packets held after a poll are copied out of a receive ring, so that the ring can move on.
        let storage = if hold_time == 0 { self.storage } else { Storage::Linear };
        let policy = policy.with_max_bytes(self.limits.gro_max_size).with_hold_time(hold_time);
        Some(policy.with_storage(storage).with_delivery(self.delivery))
    }
}

impl SharedPort {
    /// Returns the state of a port that was just opened.
    pub(crate) fn new(
        number: u16,
        settings: PortSettings,
        capabilities: Capabilities,
        layer: Layer,
        state: PortState,
    ) -> Self {
        SharedPort {
            number,
            name: settings.port.name().to_owned(),
            counts: PortCounts::default(),
            buckets: PortBuckets::new(&settings.limits.rates),
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

    /// Enables or disables VLAN filtering; it has no effect on ports without a link layer.
    pub(crate) fn with_vlan_filtering(self, vlan_filtering: Option<VlanProtocol>) -> Self {
        SharedPort {
            vlan_filtering: vlan_filtering.filter(|_| self.layer == Layer::Ethernet),
            ..self
        }
    }

    /// Returns the port's VLANs; `None` if the bridge does not filter by VLAN.
    pub(crate) fn vlans(&self) -> Option<Arc<PortVlans>> {
        self.vlan_filtering.map(|_| Arc::new(self.settings().vlans))
    }

    /// Returns the requested settings.
    pub(crate) fn settings(&self) -> PortSettings {
        self.requested().settings
    }

    /// Changes the requested settings, and clears the refusals, so that the kernel is asked again.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut PortSettings) -> R) -> R {
        self.forget_refusals();
        let settings = &mut self.requested.write().unwrap_or_else(PoisonError::into_inner).settings;
        let changed = change(settings);
        self.buckets.set(&settings.limits.rates);
        changed
    }

    /// Changes the port's static entries.
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

    /// Changes the steering of the port's packets.
    pub(crate) fn change_steering(&self, change: impl FnOnce(&mut PortSteering)) {
        change(
            &mut self.requested.write().unwrap_or_else(PoisonError::into_inner).settings.steering,
        );
    }

    /// Records whether the receiving thread itself processes the packets of a queue that has a CPU
    /// mask ("in place").
    pub(crate) fn set_in_place(&self, queue: u16, in_place: bool) {
        let mut queues = self.in_place.write().unwrap_or_else(PoisonError::into_inner);
        if in_place {
            queues.insert(queue)
        } else {
            queues.remove(&queue)
        };
    }

    /// Returns whether the receiving thread itself processes the packets of a queue that has a CPU
    /// mask ("in place").
    pub(crate) fn is_in_place(&self, queue: u16) -> bool {
        self.in_place.read().unwrap_or_else(PoisonError::into_inner).contains(&queue)
    }

    /// Records that the port was opened again, perhaps as another device.
    pub(crate) fn reopened(&self, capabilities: Capabilities, state: PortState) {
        self.opening.fetch_add(1, Ordering::Relaxed);
        self.forget_refusals();
        self.requested.write().unwrap_or_else(PoisonError::into_inner).capabilities = capabilities;
        self.set_mtu(state.mtu);
    }

    /// Sets the capabilities of a port whose other end may change while it is open, and returns
    /// whether they changed.
    pub(crate) fn set_capabilities(&self, capabilities: Capabilities) -> bool {
        if self.requested.read().unwrap_or_else(PoisonError::into_inner).capabilities
            == capabilities
        {
            return false;
        }
        self.forget_refusals();
        self.requested.write().unwrap_or_else(PoisonError::into_inner).capabilities = capabilities;
        true
    }

    /// Returns how often the port has been reopened. Events from before the last reopening are
    /// ignored.
    pub(crate) fn opening(&self) -> u32 {
        self.opening.load(Ordering::Relaxed)
    }

    /// Sets the MTU, and returns whether it changed.
    pub(crate) fn set_mtu(&self, mtu: u32) -> bool {
        self.mtu.swap(mtu, Ordering::Relaxed) != mtu
    }

    /// Returns the MTU in bytes; 0 for no limit.
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Records that the kernel refuses packets of this kind: super-packets, or otherwise those with
    /// a partial checksum.
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

    /// Returns a snapshot of the effective settings.
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
            storage: requested.settings.storage,
            delivery: requested.settings.delivery,
            mtu: match self.mtu() {
                0 => usize::MAX,
                mtu => mtu as usize,
            },
        }
    }

    /// Returns for each offload what is requested, what is active, and why they differ.
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
        let tunnels: &[Tunnel] = if gso.udp_tunnels { &Tunnel::OVER_UDP } else { &[] };
        PortFeatures {
            port: self.name.clone(),
            features: Feature::ALL.into_iter().map(report).collect(),
            segmentation: (gso.tcp || gso.udp).then(|| SegmentationReport {
                link_headers: gso.link_headers.iter().map(|link| link.name().to_owned()).collect(),
                tunnels: tunnels.iter().map(|tunnel| tunnel.name().to_owned()).collect(),
                max_ipv4_length: gso.max_ipv4_length,
                max_ipv6_length: gso.max_ipv6_length,
                refused: names(refused),
                refused_checksums: names(refused_checksums),
            }),
            kernel_path: None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use superpacket::wire::{IpVersion, LinkHeader, Protocol};
    use superpacket_port::LinkState;

    /// Returns a port with all capabilities, and settings changed by `change`.
    pub(crate) fn shared(change: impl FnOnce(&mut PortSettings)) -> SharedPort {
        shared_as(0, change)
    }

    /// Returns a shared port with this number, for tests.
    pub(crate) fn shared_as(number: u16, change: impl FnOnce(&mut PortSettings)) -> SharedPort {
        let mut gso = GsoSupport::LINUX;
        (gso.udp_tunnels, gso.max_segments) = (false, 65_535);
        let capabilities = Capabilities { features: FeatureSet::all(), gso, max_slices: 1024 };
        let mut settings = PortSettings::new("memory:test".parse().expect("a port string"));
        change(&mut settings);
        SharedPort::new(
            number,
            settings,
            capabilities,
            Layer::Ethernet,
            PortState { link: LinkState::Up, mtu: 1500 },
        )
    }

    fn reason(shared: &SharedPort, feature: Feature) -> String {
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
        port.change(|settings| (settings.lro_acks, settings.storage) = (true, Storage::Linear));
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
    fn packets_held_past_a_poll_are_copied() {
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
