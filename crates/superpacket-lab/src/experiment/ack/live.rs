//! Pure-ACK aggregation between live hosts: the bridge is the sender's card.

use std::path::PathBuf;
use std::time::Duration;

use superpacket_port::features::Feature;
use superpacket_port::system::pin_thread;
use superpacket_steer::{Cpu, CpuMask};

use super::Receiver;
use crate::error::LabError;
use crate::experiment::Cpus;
use crate::experiment::spent::{Clocks, Load, Spent};
use crate::experiment::stage::{Hosts, Stage, napi_thread, port, split_cpus, task_time};
use crate::load::{Pinning, Source, TcpBulk, TcpOptions, Until, service_demand};
use crate::route::RouteMetrics;

/// The window that the receiver offers, in bytes. One that follows the reader's pace would have
/// ACKs wait for reads instead of segments; one of 1 MB is used up where a single ACK stands for as
/// much, so that the sender waits.
const WINDOW: u32 = 4 << 20;

/// The IP and TCP headers of a segment with timestamps, in bytes.
const HEADERS: u32 = 52;

/// What a segment carries at an MTU of 1500, in bytes.
const SEGMENT: u32 = 1500 - HEADERS;

/// What a load showed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Payload in 10^9 bits a second.
    pub(super) throughput: f64,
    /// The sender's CPU time over time, in per cent of a CPU.
    pub(super) sender_cpu: f64,
    /// The sender's CPU time per payload, in microseconds per 1,024 bytes.
    pub(super) demand: f64,
    /// The receiving program's CPU time per payload, in microseconds per 1,024 bytes.
    pub(super) receiver_demand: f64,
    /// ACKs that arrived at the card, for each MB of payload.
    pub(super) acks: f64,
    /// ACKs that the sender's host was given, for each MB of payload.
    pub(super) delivered: f64,
    /// Where the CPU time went.
    pub(super) spent: Spent,
}

/// Who receives for the sender's host.
#[derive(Debug)]
enum Account {
    /// A thread of the kernel: its time is exact, and nobody else's work is in it.
    Thread(PathBuf),
    /// These CPUs, on which the sender runs too: by the clock's ticks, with whatever else runs
    /// there.
    Cpus(Vec<usize>),
}

/// Two hosts, and the sender's card between them.
#[derive(Debug)]
pub(super) struct Arrangement {
    stage: Stage,
    account: Account,
    quick: bool,
    pinning: Pinning,
    source: Source,
}

impl Arrangement {
    /// Makes it: with pure-ACK aggregation or without. Where nothing else is asked for, the sender
    /// has a CPU of its own, if there are two.
    pub(super) fn new(
        receiver: Receiver,
        acks: bool,
        source: Source,
        cpus: &Cpus,
    ) -> Result<Self, LabError> {
        let hosts = Hosts::new()?;
        let (first, others) = split_cpus()?;
        let asked = |cpus: &[usize], otherwise: &[usize]| {
            if cpus.is_empty() { otherwise.to_vec() } else { cpus.to_vec() }
        };
        let (sender, bridge) = (asked(&cpus.sender, &[first]), asked(&cpus.bridge, &others));
        let account = receive_apart(&hosts, &sender)?;
        // What the sender's device hands to the card, the card fetches. Best effort: where it is
        // refused, the sender pays for it, with aggregation and without.
        let _ = hosts.middle.set_sysfs("class/net/port-a/queues/rx-0/rps_cpus", &mask(&bridge));
        // Segments for the receiver that takes them one by one: the kernel cuts them.
        hosts.b_side.set_feature("tcp-segmentation-offload", receiver.segments() > 1)?;
        let quick = receiver != Receiver::Delaying;
        hosts.b.link.set_neighbour_route(
            hosts.a.ipv4,
            RouteMetrics { window: Some(WINDOW), quick_acknowledgements: quick },
        )?;
        let (towards_a, mut towards_b) = (port("packet:port-a")?, port("packet:port-b")?);
        towards_b.features = towards_b.features.with(Feature::LargeReceiveOffload);
        // Nothing is held beyond the poll that brought it: an ACK that waits is throughput lost.
        (towards_b.force_lro, towards_b.lro_acks) = (true, acks);
        if receiver.segments() > 1 {
            towards_b.limits.gso_max_size = receiver.segments() * SEGMENT + HEADERS;
        }
        let pinning = Pinning { client: sender, server: asked(&cpus.receiver, &others) };
        let stage = hosts.join([towards_a, towards_b], &bridge)?;
        // The card's thread gives way to the receiver on the CPU that they share: ACKs gather while
        // there is other work, and wait for nothing where there is none.
        stage.let_others_run_before_b()?;
        Ok(Self { stage, account, quick, pinning, source })
    }

    /// Is what is accounted exact?
    pub(super) fn is_exact(&self) -> bool {
        matches!(self.account, Account::Thread(_))
    }

    /// Sends for a time.
    pub(super) fn measure(&self, time: Duration) -> Result<Sample, LabError> {
        let load = TcpBulk {
            until: Until::Time(time),
            source: self.source.clone(),
            options: TcpOptions { quick_acknowledgements: self.quick, ..TcpOptions::default() },
            pinning: self.pinning.clone(),
            ..TcpBulk::default()
        };
        let received = || {
            if let Account::Thread(path) = &self.account {
                task_time(path)
            } else {
                Ok(Duration::ZERO)
            }
        };
        let ([a_before, b_before], before) = (self.stage.stats()?, received()?);
        let clocks = Clocks::now()?;
        let report = load.run(&self.stage.route())?;
        let (received, [a, b]) = (received()?.saturating_sub(before), self.stage.stats()?);
        let direction = report.forward.clone().unwrap_or_default();
        let cpu = match &self.account {
            Account::Thread(_) => direction.sender.total() + received,
            Account::Cpus(cpus) => {
                let theirs = report.machine.cpus.iter().filter(|(cpu, _)| cpus.contains(cpu));
                Duration::from_secs_f64(theirs.map(|(_, usage)| usage.busy()).sum())
            }
        };
        // The sender's soft interrupts are the sender's time.
        let spent = clocks.spent(&Load { sender: cpu, ..Load::from(&report) })?;
        let megabytes = direction.bytes as f64 / 1e6;
        Ok(Sample {
            throughput: direction.gigabits_per_second(),
            sender_cpu: 100.0 * cpu.as_secs_f64() / direction.seconds,
            demand: service_demand(cpu, direction.bytes),
            receiver_demand: direction.receiver_service_demand(),
            acks: (b.rx_packets - b_before.rx_packets) as f64 / megabytes,
            delivered: (a.tx_packets - a_before.tx_packets) as f64 / megabytes,
            spent,
        })
    }
}

/// Has host A's softirqs done apart from whoever sends to it: by a thread of the kernel on the
/// sender's CPUs, or at least on these.
fn receive_apart(hosts: &Hosts, sender: &[usize]) -> Result<Account, LabError> {
    let name = hosts.a.link.name();
    // A veth device receives by NAPI only with GRO on, and only if the other end does not cut by
    // itself (`veth_skb_is_eligible_for_gro`).
    hosts.a_side.set_feature("tcp-segmentation-offload", false)?;
    hosts.a.link.set_feature("generic-receive-offload", true)?;
    let threaded = hosts.a.host.set_sysfs(&format!("class/net/{name}/threaded"), "1");
    if let Some((pid, path)) = threaded.ok().and_then(|()| napi_thread(&hosts.a.link)) {
        // Best effort: only root may, and its time is its own wherever it runs.
        let _ = pin_thread(Some(pid), sender);
        return Ok(Account::Thread(path));
    }
    hosts.a.link.set_feature("generic-receive-offload", false)?;
    hosts.a.host.set_sysfs(&format!("class/net/{name}/queues/rx-0/rps_cpus"), &mask(sender))?;
    Ok(Account::Cpus(sender.to_vec()))
}

/// CPUs as sysfs has them.
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
