//! The configurations that the live form measures.

use superpacket_bridge::settings::InPlace;
use superpacket_bridge::topology::{Auto, Topology};
use superpacket_steer::CpuMask;

/// Number of connections, as in the original report.
pub(super) const CONNECTIONS: usize = 500;

/// The kind and settings of the bridge between the hosts.
#[derive(Clone, Debug)]
pub(super) enum JoiningBridge {
    /// The kernel's bridge; every interface between the hosts has this `rps_cpus` mask.
    Kernel(CpuMask),
    /// This project's bridge; both ports have this `rps_cpus` mask, this in-place setting and this
    /// number of receive queues.
    Ours(CpuMask, InPlace, usize),
}

/// A configuration to measure.
pub(super) struct RpsVariant {
    pub(super) connections: usize,
    pub(super) group: &'static str,
    pub(super) name: String,
    pub(super) middle: JoiningBridge,
    /// Index of the configuration with which this one is compared.
    pub(super) against: Option<usize>,
}

/// Returns the bridge's automatic CPU mask, limited to the CPUs `steered`. The first of these is
/// assumed to receive the packets, because the bridge's threads may run on any of them.
pub(super) fn auto(steered: &CpuMask, topology: &Topology) -> Auto {
    match steered.first() {
        Some(receiving) => {
            let Auto { mask, why } = topology.sharing_cache(receiving);
            Auto { mask: &mask & steered, why }
        }
        None => Auto { mask: CpuMask::EMPTY, why: "no CPU is usable".into() },
    }
}

/// Index of the configuration of this bridge without RPS.
pub(super) const OURS: usize = 2;
/// Index of the configuration of this bridge with RPS that never processes packets in place.
pub(super) const OURS_STEERED: usize = 3;
/// Index of the configuration of this bridge with RPS and automatic in-place processing.
pub(super) const OURS_ADAPTS: usize = 4;
/// Index of the configuration of this bridge without RPS, for one connection.
pub(super) const ONE: usize = 5;
/// Index of the configuration of this bridge with RPS and automatic in-place processing, for one
/// connection.
pub(super) const ONE_ADAPTS: usize = 7;

/// Index of the configuration of this bridge with several queues, without RPS.
pub(super) const QUEUES_ALONE: usize = 8;
/// Index of the configuration of this bridge with several queues, with RPS that never processes
/// packets in place.
pub(super) const QUEUES_STEERED: usize = 9;

/// Receive queues per port in the configurations with several queues, as in the original report.
pub(super) const QUEUES: usize = 4;

/// Returns the configurations in the order of the indexes above. RPS steers to the CPUs `steered`.
pub(super) fn configurations(
    steered: &CpuMask,
    topology: &Topology,
    quick: bool,
) -> Vec<RpsVariant> {
    const KERNEL: &str = "the kernel's bridge";
    const BRIDGE: &str = "this bridge";
    const SEVERAL: &str = "this bridge, 4 queues";
    let configuration = |group, name: String, middle, against| RpsVariant {
        group,
        name,
        middle,
        against,
        connections: CONNECTIONS,
    };
    let mask = |mask: &CpuMask| format!("with RPS, mask {mask}");
    let adapting = |mask: &CpuMask| format!("with RPS, mask {mask}, adapting");
    let one = |configuration: RpsVariant| RpsVariant { connections: 1, ..configuration };
    let without = || JoiningBridge::Ours(CpuMask::EMPTY, InPlace::NEVER, 1);
    let steers = |mask: &CpuMask| JoiningBridge::Ours(mask.clone(), InPlace::NEVER, 1);
    let adapts = |mask: &CpuMask| JoiningBridge::Ours(mask.clone(), InPlace::Automatic, 1);
    let mut all = vec![
        configuration(KERNEL, "without RPS".into(), JoiningBridge::Kernel(CpuMask::EMPTY), None),
        configuration(KERNEL, mask(steered), JoiningBridge::Kernel(steered.clone()), Some(0)),
        configuration(BRIDGE, "without RPS".into(), without(), None),
        configuration(BRIDGE, mask(steered), steers(steered), Some(OURS)),
        configuration(BRIDGE, adapting(steered), adapts(steered), Some(OURS)),
        one(configuration(BRIDGE, "without RPS".into(), without(), None)),
        one(configuration(BRIDGE, mask(steered), steers(steered), Some(ONE))),
        one(configuration(BRIDGE, adapting(steered), adapts(steered), Some(ONE))),
    ];
    if quick {
        return all;
    }
    let queues = |mask: CpuMask| JoiningBridge::Ours(mask, InPlace::NEVER, QUEUES);
    all.extend([
        configuration(SEVERAL, "without RPS".into(), queues(CpuMask::EMPTY), None),
        configuration(SEVERAL, mask(steered), queues(steered.clone()), Some(QUEUES_ALONE)),
    ]);
    let Auto { mask: near, .. } = auto(steered, topology);
    if !near.is_empty() && near != *steered {
        all.push(configuration(
            BRIDGE,
            format!("{}: auto", mask(&near)),
            steers(&near),
            Some(OURS),
        ));
    }
    all
}
