//! Computes rates from two samples of a bridge's counters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use superpacket_bridge::report::{PortFeatures, PortReport, PortStats};
use superpacket_port::features::Feature;

/// The state and counters of a bridge's ports at one time.
#[derive(Clone, Debug)]
pub(super) struct BridgeSample {
    pub(super) taken_at: Instant,
    pub(super) ports: Vec<PortReport>,
    pub(super) stats: Vec<PortStats>,
    pub(super) features: Vec<PortFeatures>,
}

/// The rates of a port between two samples of its counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct PortRates {
    /// The port's name, or its port string if it has none.
    pub(super) port: String,
    /// State of the port's link: `up`, `down` or `gone`.
    pub(super) state: String,
    /// The offloads that are on, by their short names.
    pub(super) offloads: Vec<String>,
    /// Packets received per second; a super-packet counts once.
    pub(super) rx_packets: f64,
    /// Bits received per second.
    pub(super) rx_bits: f64,
    /// Packets handed to the port per second; a super-packet counts once.
    pub(super) tx_packets: f64,
    /// Bits handed to the port per second.
    pub(super) tx_bits: f64,
    /// Received packets that were merged into another packet, per second.
    pub(super) merged: f64,
    /// Average number of packets in a packet that the bridge has merged; 0 if there was none.
    pub(super) packets_per_aggregate: f64,
    /// Average number of frames in a received super-packet, whether received as such or merged by
    /// the bridge; 0 if there was none.
    pub(super) packets_per_rx_super_packet: f64,
    /// Average number of frames in a super-packet that was handed to the port; 0 if there was none.
    pub(super) packets_per_super_packet: f64,
    /// Packets that software segmented before they were handed to the port, per second.
    pub(super) segmented: f64,
    /// The part of `segmented` that was segmented only because the port cannot send super-packets
    /// with a fixed IP identification.
    pub(super) segmented_for_ids: f64,
    /// The counters of LRO, by their names in the kernel's `inet_lro`: `aggregated`, `flushed`,
    /// `no_desc`.
    pub(super) lro: BTreeMap<&'static str, CounterRate>,
    /// Packets that were dropped, by the reason.
    pub(super) drops: BTreeMap<String, CounterRate>,
    /// Packets that left aggregation, by the reason why they were not held longer.
    pub(super) reasons: BTreeMap<String, CounterRate>,
}

/// The rate and the total of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct CounterRate {
    /// How much the counter has increased per second.
    pub(super) rate: f64,
    /// The value of the counter, which counts from the start of the bridge.
    pub(super) total: u64,
}

impl BridgeSample {
    /// Returns the rates between an earlier sample and this one. They are 0 for a port that is not
    /// in the earlier sample.
    pub(super) fn since(&self, before: &BridgeSample) -> Vec<PortRates> {
        let time = self.taken_at.saturating_duration_since(before.taken_at);
        let rates = |now: &PortStats| {
            let state = self
                .ports
                .iter()
                .find(|port| port.port == now.port)
                .map_or("gone", |port| &port.state);
            let before = before.stats.iter().find(|before| before.port == now.port).unwrap_or(now);
            PortRates { offloads: self.offloads(&now.port), ..rates(now, before, state, time) }
        };
        self.stats.iter().map(rates).collect()
    }

    /// Returns the offloads of a port that are on.
    fn offloads(&self, port: &str) -> Vec<String> {
        let port = self.features.iter().find(|features| features.port == port);
        let active = port.into_iter().flat_map(|port| &port.features).filter(|one| one.active);
        active.map(|one| short_name(&one.feature)).collect()
    }
}

/// Returns the short name of an offload, or its own name if it has none.
fn short_name(feature: &str) -> String {
    let short = feature.parse().ok().and_then(Feature::short_name);
    short.unwrap_or(feature).to_owned()
}

fn rates(now: &PortStats, before: &PortStats, state: &str, time: Duration) -> PortRates {
    // If the bridge was restarted in between, its counters are lower than before, and the rate is
    // 0.
    let difference = |read: fn(&PortStats) -> u64| read(now).saturating_sub(read(before)) as f64;
    let a_second = |number: f64| if time.is_zero() { 0.0 } else { number / time.as_secs_f64() };
    let rate = |read: fn(&PortStats) -> u64| a_second(difference(read));
    let each = |whole: f64, number: f64| if number > 0.0 { whole / number } else { 0.0 };
    let counted = |total: u64, earlier: u64| CounterRate {
        rate: a_second(total.saturating_sub(earlier) as f64),
        total,
    };
    let by_cause = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
        let each = now.iter().map(|(cause, &total)| {
            (cause.clone(), counted(total, before.get(cause).copied().unwrap_or_default()))
        });
        each.collect()
    };
    let lro = |name, read: fn(&PortStats) -> u64| (name, counted(read(now), read(before)));
    let aggregated = difference(|stats| stats.aggregated);
    PortRates {
        port: now.port.clone(),
        state: state.to_owned(),
        offloads: Vec::new(),
        rx_packets: rate(|stats| stats.rx_packets),
        rx_bits: 8.0 * rate(|stats| stats.rx_bytes),
        tx_packets: rate(|stats| stats.tx_packets),
        tx_bits: 8.0 * rate(|stats| stats.tx_bytes),
        merged: rate(|stats| stats.merged),
        packets_per_aggregate: each(difference(|stats| stats.merged) + aggregated, aggregated),
        packets_per_rx_super_packet: each(
            difference(|stats| stats.rx_super_segments)
                + difference(|stats| stats.merged)
                + aggregated,
            difference(|stats| stats.rx_super_packets) + aggregated,
        ),
        packets_per_super_packet: each(
            difference(|stats| stats.tx_super_segments),
            difference(|stats| stats.tx_super_packets),
        ),
        segmented: rate(|stats| stats.segmented),
        segmented_for_ids: rate(|stats| stats.segmented_for_ids),
        lro: [
            lro("aggregated", |stats| stats.lro_aggregated),
            lro("flushed", |stats| stats.lro_flushed),
            lro("no_desc", |stats| stats.lro_no_desc),
        ]
        .into(),
        drops: by_cause(&now.drops, &before.drops),
        reasons: by_cause(&now.reasons, &before.reasons),
    }
}

#[cfg(test)]
mod tests {
    use superpacket_bridge::report::FeatureReport;

    use super::*;

    fn sample(taken_at: Instant, rx_packets: u64, ring: u64) -> BridgeSample {
        let stats = PortStats {
            port: "packet:a".into(),
            rx_packets,
            rx_bytes: 1500 * rx_packets,
            tx_super_packets: rx_packets / 10,
            tx_super_segments: rx_packets,
            merged: rx_packets / 10 * 9,
            aggregated: rx_packets / 10,
            // Each super-packet has 45 frames.
            rx_super_packets: rx_packets / 10,
            rx_super_segments: rx_packets / 10 * 45,
            lro_no_desc: 3 * ring,
            drops: [("rx_ring".to_owned(), ring)].into(),
            reasons: [("poll_end".to_owned(), rx_packets)].into(),
            ..PortStats::default()
        };
        let report = |feature: &str, active| FeatureReport {
            feature: feature.to_owned(),
            requested: true,
            active,
            reason: None,
        };
        let features = vec![
            report("generic-receive-offload", true),
            report("tx-udp-segmentation", true),
            report("tcp-segmentation-offload", false),
        ];
        let features = vec![PortFeatures {
            port: "packet:a".into(),
            features,
            segmentation: None,
            kernel_path: None,
        }];
        BridgeSample { taken_at, ports: Vec::new(), stats: vec![stats], features }
    }

    #[test]
    fn rates_are_differences_by_time() {
        let start = Instant::now();
        let rates = sample(start + Duration::from_secs(2), 3000, 7).since(&sample(start, 1000, 3));
        let [rates] = rates.as_slice() else { panic!("{rates:?}") };
        assert_eq!(rates.offloads, ["gro", "tx-udp-segmentation"], "those that are on");
        assert_eq!((rates.rx_packets, rates.rx_bits, rates.merged), (1000.0, 12_000_000.0, 900.0));
        assert_eq!((rates.packets_per_super_packet, rates.packets_per_aggregate), (10.0, 10.0));
        assert_eq!(
            rates.packets_per_rx_super_packet, 27.5,
            "half of the super-packets came with 45 frames, half were made of 10"
        );
        assert_eq!(rates.drops["rx_ring"], CounterRate { rate: 2.0, total: 7 });
        assert_eq!(
            (rates.reasons["poll_end"].rate, rates.lro["no_desc"]),
            (1000.0, CounterRate { rate: 6.0, total: 21 })
        );
        assert_eq!(rates.state, "gone", "the bridge does not name it any more");
    }

    #[test]
    fn a_bridge_that_started_anew_has_no_negative_rates() {
        let start = Instant::now();
        let rates = sample(start + Duration::from_secs(1), 10, 0).since(&sample(start, 1000, 3));
        assert_eq!((rates[0].rx_packets, rates[0].drops["rx_ring"].rate), (0.0, 0.0));
        let first = sample(start, 10, 1);
        assert_eq!(first.since(&first)[0].rx_packets, 0.0, "no time has passed");
    }
}
