//! Pure-ACK aggregation between live hosts; the bridge acts as the sender's network card.

use std::path::PathBuf;
use std::time::Duration;

use superpacket_port::features::Feature;
use superpacket_port::system::pin_thread;
use superpacket_steer::{Cpu, CpuMask};

use super::ReceiverKind;
use crate::error::LabError;
use crate::experiment::Cpus;
use crate::experiment::cpu_costs::{CpuClocks, CpuCosts, LoadTotals};
use crate::experiment::testbed::{Hosts, Testbed, napi_thread, port, split_cpus, task_time};
use crate::load::{Pinning, Source, TcpBulk, TcpOptions, Until, service_demand};
use crate::route::RouteMetrics;

/// Receive window, in bytes. With an automatic window the number of ACKs would depend on how fast
/// the receiving program reads. A window of 1 MB would stall the sender, because one ACK may cover
/// as much.
const WINDOW: u32 = 4 << 20;

/// Length of the IP and TCP headers of a segment with timestamps, in bytes.
const HEADERS: u32 = 52;

/// Payload bytes of a segment at an MTU of 1500.
const SEGMENT: u32 = 1500 - HEADERS;

/// The result of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckSample {
    /// Received payload, in 10^9 bits per second.
    pub(super) throughput: f64,
    /// The sender's CPU usage, in percent of one CPU.
    pub(super) sender_cpu: f64,
    /// The sender's CPU time per payload, in microseconds per 1,024 bytes.
    pub(super) demand: f64,
    /// The receiving program's CPU time per payload, in microseconds per 1,024 bytes.
    pub(super) receiver_demand: f64,
    /// ACKs received by the card, per 10^6 bytes of payload.
    pub(super) acks: f64,
    /// ACKs delivered to the sender's host, per 10^6 bytes of payload.
    pub(super) delivered: f64,
    /// CPU usage by consumer.
    pub(super) costs: CpuCosts,
}

/// How the CPU time is measured that the sender's host spends on receiving ACKs.
#[derive(Debug)]
enum ReceiveAccounting {
    /// CPU time of a kernel thread that does only this work: exact.
    Thread(PathBuf),
    /// Busy time of these CPUs, on which the sender runs too: in clock ticks, and including any
    /// other work there.
    Cpus(Vec<usize>),
}

/// Two hosts, and a bridge between them that acts as the sender's card.
#[derive(Debug)]
pub(super) struct AckTestbed {
    testbed: Testbed,
    account: ReceiveAccounting,
    quick: bool,
    pinning: Pinning,
    source: Source,
}

impl AckTestbed {
    /// Creates the hosts and the bridge, with or without pure-ACK aggregation. If the user chose no
    /// CPUs, the sender gets a CPU of its own, provided that there are two.
    pub(super) fn new(
        receiver: ReceiverKind,
        acks: bool,
        source: Source,
        cpus: &Cpus,
    ) -> Result<Self, LabError> {
        let hosts = Hosts::new()?;
        let (first, others) = split_cpus()?;
        let chosen = |cpus: &[usize], otherwise: &[usize]| {
            if cpus.is_empty() { otherwise.to_vec() } else { cpus.to_vec() }
        };
        let (sender, bridge) = (chosen(&cpus.sender, &[first]), chosen(&cpus.bridge, &others));
        let account = separate_receive_work(&hosts, &sender)?;
        // The card's CPUs process packets from the sender's device. Best effort: if refused, the
        // sender's CPU does it, with and without aggregation.
        let _ = hosts.middle.set_sysfs("class/net/port-a/queues/rx-0/rps_cpus", &mask(&bridge));
        // For a receiver of single segments, the kernel segments before the device.
        hosts.b_side.set_feature("tcp-segmentation-offload", receiver.segments() > 1)?;
        let quick = receiver != ReceiverKind::Delaying;
        hosts.b.link.set_neighbour_route(
            hosts.a.ipv4,
            RouteMetrics { window: Some(WINDOW), quick_acknowledgements: quick },
        )?;
        let (towards_a, mut towards_b) = (port("packet:port-a")?, port("packet:port-b")?);
        towards_b.features = towards_b.features.with(Feature::LargeReceiveOffload);
        // An ACK is never held beyond its poll, because waiting would reduce the throughput.
        (towards_b.force_lro, towards_b.lro_acks) = (true, acks);
        if receiver.segments() > 1 {
            towards_b.limits.gso_max_size = receiver.segments() * SEGMENT + HEADERS;
        }
        let pinning = Pinning { client: sender, server: chosen(&cpus.receiver, &others) };
        let testbed = hosts.join([towards_a, towards_b], &bridge)?;
        // The card's thread yields to the receiver on their common CPU. So ACKs accumulate while
        // the CPU is busy, and do not wait otherwise.
        testbed.lower_priority_of_b()?;
        Ok(Self { testbed, account, quick, pinning, source })
    }

    /// Returns whether the CPU time spent on receiving ACKs is exact, which needs threaded NAPI.
    pub(super) fn is_exact(&self) -> bool {
        matches!(self.account, ReceiveAccounting::Thread(_))
    }

    /// Runs a TCP stream for `time`, and returns the result.
    pub(super) fn measure(&self, time: Duration) -> Result<AckSample, LabError> {
        let load = TcpBulk {
            until: Until::Time(time),
            source: self.source.clone(),
            options: TcpOptions { quick_acknowledgements: self.quick, ..TcpOptions::default() },
            pinning: self.pinning.clone(),
            ..TcpBulk::default()
        };
        let received = || {
            if let ReceiveAccounting::Thread(path) = &self.account {
                task_time(path)
            } else {
                Ok(Duration::ZERO)
            }
        };
        let ([a_before, b_before], before) = (self.testbed.stats()?, received()?);
        let clocks = CpuClocks::now()?;
        let report = load.run(&self.testbed.route())?;
        let (received, [a, b]) = (received()?.saturating_sub(before), self.testbed.stats()?);
        let direction = report.forward.clone().unwrap_or_default();
        let cpu = match &self.account {
            ReceiveAccounting::Thread(_) => direction.sender.total() + received,
            ReceiveAccounting::Cpus(cpus) => {
                let theirs = report.machine.cpus.iter().filter(|(cpu, _)| cpus.contains(cpu));
                Duration::from_secs_f64(theirs.map(|(_, usage)| usage.busy()).sum())
            }
        };
        // The sender's softirqs count as the sender's time.
        let costs = clocks.costs_of(&LoadTotals { sender: cpu, ..LoadTotals::from(&report) })?;
        let megabytes = direction.bytes as f64 / 1e6;
        Ok(AckSample {
            throughput: direction.gigabits_per_second(),
            sender_cpu: 100.0 * cpu.as_secs_f64() / direction.seconds,
            demand: service_demand(cpu, direction.bytes),
            receiver_demand: direction.receiver_service_demand(),
            acks: (b.rx_packets - b_before.rx_packets) as f64 / megabytes,
            delivered: (a.tx_packets - a_before.tx_packets) as f64 / megabytes,
            costs,
        })
    }
}

/// Moves host A's softirqs away from the threads that send to it: to a kernel thread (threaded
/// NAPI) on the sender's CPUs, or by RPS to these CPUs.
fn separate_receive_work(hosts: &Hosts, sender: &[usize]) -> Result<ReceiveAccounting, LabError> {
    let name = hosts.a.link.name();
    // veth uses NAPI for reception only with GRO on, and only if its peer does not segment
    // (`veth_skb_is_eligible_for_gro`).
    hosts.a_side.set_feature("tcp-segmentation-offload", false)?;
    hosts.a.link.set_feature("generic-receive-offload", true)?;
    let threaded = hosts.a.host.set_sysfs(&format!("class/net/{name}/threaded"), "1");
    if let Some((pid, path)) = threaded.ok().and_then(|()| napi_thread(&hosts.a.link)) {
        // Best effort: only root may, and the thread's time is exact on any CPU.
        let _ = pin_thread(Some(pid), sender);
        return Ok(ReceiveAccounting::Thread(path));
    }
    hosts.a.link.set_feature("generic-receive-offload", false)?;
    hosts.a.host.set_sysfs(&format!("class/net/{name}/queues/rx-0/rps_cpus"), &mask(sender))?;
    Ok(ReceiveAccounting::Cpus(sender.to_vec()))
}

/// Formats CPUs as a mask for sysfs.
fn mask(cpus: &[usize]) -> String {
    let mask: CpuMask = cpus.iter().filter_map(|&cpu| Cpu::new(cpu)).collect();
    mask.sysfs(cpus.iter().max().map_or(1, |last| last + 1)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_as_sysfs_takes_them() {
        assert_eq!(
            (mask(&[0]), mask(&[1]), mask(&[1, 2, 3])),
            ("1".into(), "2".into(), "e".into())
        );
        assert_eq!(mask(&[32]), "1,00000000");
    }
}
