//! Counters of the work per packet: a model NIC with several queues, and steering by its hashes.

use superpacket::checksum::words;
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket_model::memory::MemorySettings;
use superpacket_model::nic::{NicSettings, RxSums, pair};
use superpacket_port::{Buffer, Outgoing, Port, PortError, TxBatch};
use superpacket_steer::{
    CompletionCounts, CpuMask, DEFAULT_WEIGHT, FlowHasher, Steering, SteeringTarget,
};

use crate::error::LabError;
use crate::experiment::{Column, Form, Row, Table};

/// Number of CPUs of the modelled host.
const CPUS: usize = 16;

/// Number of connections, as in the original report.
const CONNECTIONS: u16 = 500;

/// Number of requests per connection.
const REQUESTS: usize = 8;

const COLUMNS: [Column; 9] = [
    column("packets", "packets", 0),
    column("parsed", "headers parsed by the card", 0),
    column("hashed", "hashed by us", 0),
    column("copied", "bytes copied", 0),
    column("checksums", "checksums", 0),
    column("cpus", "CPUs at work", 0),
    column("busiest", "packets of the busiest", 0),
    column("imbalance", "imbalance", 2),
    column("wakes", "wake-ups", 0),
];

const fn column(name: &'static str, title: &'static str, digits: usize) -> Column {
    Column { name, title, unit: "", digits }
}

/// A configuration to count: number of receive queues, CPU mask for steering, and whether the card
/// reports hashes.
struct Case {
    name: &'static str,
    queues: u16,
    mask: &'static str,
    reports_hash: bool,
}

const CASES: [Case; 6] = [
    Case { name: "one queue, no steering", queues: 1, mask: "0", reports_hash: true },
    Case { name: "one queue, mask fffe", queues: 1, mask: "fffe", reports_hash: true },
    Case {
        name: "one queue, mask fffe, no hash of the card",
        queues: 1,
        mask: "fffe",
        reports_hash: false,
    },
    Case { name: "4 queues, no steering", queues: 4, mask: "0", reports_hash: true },
    Case { name: "4 queues, mask eeee", queues: 4, mask: "eeee", reports_hash: true },
    Case { name: "8 queues, no steering", queues: 8, mask: "0", reports_hash: true },
];

/// Counters of one [`Case`].
#[derive(Debug, Default)]
struct CaseCounts {
    parsed: u64,
    hashed: u64,
    /// Bytes copied after the card had written them to memory.
    copied: u64,
    /// Checksums verified by the card or in software.
    checksums: u64,
    /// Number of packets processed by each CPU.
    packets: [u64; CPUS],
    /// Wake-ups of sleeping workers: one per poll and worker that receives packets.
    wakes: u64,
}

/// Runs all cases and returns their table.
pub(super) fn table() -> Result<Table, LabError> {
    let rows = CASES.iter().map(|case| {
        let counts = run(case)?;
        let busy: Vec<u64> =
            counts.packets.iter().copied().filter(|&packets| packets > 0).collect();
        let (sum, most) =
            (busy.iter().sum::<u64>() as f64, busy.iter().copied().max().unwrap_or(0) as f64);
        let imbalance = most * busy.len() as f64 / sum;
        let CaseCounts { parsed, hashed, copied, checksums, wakes, .. } = counts;
        let [parsed, hashed, copied, checksums, wakes] =
            [parsed, hashed, copied, checksums, wakes].map(|count| count as f64);
        Ok(Row::exact(
            "",
            case.name,
            &[sum, parsed, hashed, copied, checksums, busy.len() as f64, most, imbalance, wakes],
        ))
    });
    let title = format!(
        "Model NIC: {CONNECTIONS} connections, {REQUESTS} requests each, polls of {DEFAULT_WEIGHT} packets, {CPUS} CPUs"
    );
    Ok(Table::new(Form::Model, title, &COLUMNS, rows.collect::<Result<_, LabError>>()?, 1))
}

fn run(case: &Case) -> Result<CaseCounts, LabError> {
    let failed = |error: PortError| {
        LabError::system(format!("model NIC, {}", case.name), std::io::Error::other(error))
    };
    let settings = NicSettings {
        queues: case.queues,
        hash: case.reports_hash,
        sums: RxSums::None,
        ..NicSettings::default()
    };
    let (mut card, mut wire) = pair(&settings, &MemorySettings::default()).map_err(failed)?;
    let mut queues = card.receivers();
    let mut transmitter = wire.transmitter().map_err(failed)?;
    let mask = CpuMask::parse(case.mask, CPUS)
        .map_err(|error| LabError::Invalid { what: case.mask.into(), reason: error.to_string() })?;
    let steering = || {
        let mut steering = Steering::new(FlowHasher::toeplitz(&settings.key));
        steering.set_mask(&mask);
        (steering, CompletionCounts::default())
    };
    let mut steerings: Vec<_> = queues.iter().map(|_| steering()).collect();
    let mut counts = CaseCounts::default();
    // Each burst fills one poll of each queue; connections take turns.
    let burst = DEFAULT_WEIGHT * usize::from(case.queues);
    let frames: Vec<Vec<u8>> = (0..REQUESTS).flat_map(|_| (0..CONNECTIONS).map(request)).collect();
    for frames in frames.chunks(burst) {
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        frames.iter().for_each(|frame| {
            batch.push_bytes(&mut outgoing, frame, RxChecksum::None, None, Layer::Ethernet)
        });
        let progress = transmitter.transmit(&outgoing, &batch, 0);
        if progress.sent != frames.len() {
            return Err(LabError::system(
                format!("model NIC, {}: {progress:?}", case.name),
                std::io::ErrorKind::WriteZero,
            ));
        }
        for (queue, (receive, (steering, completions))) in
            queues.iter_mut().zip(&mut steerings).enumerate()
        {
            let mut packets: Vec<RxPacket<Buffer>> = Vec::new();
            while receive.poll(&mut packets, DEFAULT_WEIGHT).map_err(failed)? > 0 {
                let receiving = queue * CPUS / usize::from(case.queues);
                poll(&mut packets, receiving, steering, completions, &mut counts);
                receive.give_back();
            }
        }
    }
    let seen = card.monitor().counters();
    counts.parsed = seen.rx_parsed;
    counts.checksums = seen.sums_verified;
    // The card writes each byte once; further bytes were copied for steering.
    counts.copied += seen.rx_copied - seen.rx_bytes;
    counts.hashed =
        steerings.iter().map(|(steering, _)| steering.hasher().counters().computed).sum();
    Ok(counts)
}

/// Steers the packets of one poll. All packets are processed before the next poll, so that each
/// worker sleeps between polls and must be woken.
fn poll(
    packets: &mut Vec<RxPacket<Buffer>>,
    receiving: usize,
    steering: &mut Steering,
    completions: &mut CompletionCounts,
    counts: &mut CaseCounts,
) {
    let mut given = [0u64; CPUS];
    let mut here = 0;
    for packet in packets.drain(..) {
        // The hash never changes, so a choice always exists.
        let Some(choice) = steering.choose(&packet, completions) else { continue };
        match choice.place() {
            SteeringTarget::Here => here += 1,
            SteeringTarget::Cpu(cpu) => given[cpu.number()] += 1,
        }
        choice.enqueued();
    }
    completions.record_completed(SteeringTarget::Here, here);
    counts.packets[receiving] += here;
    for (number, &packets) in given.iter().enumerate().filter(|(_, packets)| **packets > 0) {
        counts.packets[number] += packets;
        counts.wakes += 1;
        if let Some(cpu) = superpacket_steer::Cpu::new(number) {
            completions.record_completed(SteeringTarget::Cpu(cpu), packets);
        }
    }
}

/// Returns a request of a connection: a TCP segment of one byte, padded to Ethernet's minimum of 60
/// bytes. Its TCP checksum is left 0, because no part of the model verifies it.
fn request(connection: u16) -> Vec<u8> {
    const IP: usize = 14;
    const TCP: usize = IP + 20;
    let mut frame = vec![0; 60];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame[12..IP].copy_from_slice(&[0x08, 0x00]);
    // Version and header length; total length; DF; TTL; protocol TCP.
    frame[IP] = 0x45;
    frame[IP + 3] = 41;
    frame[IP + 6] = 0x40;
    frame[IP + 8..IP + 10].copy_from_slice(&[64, 6]);
    frame[IP + 12..TCP].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = !words(&frame[IP..TCP]).fold();
    frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    frame[TCP..TCP + 2].copy_from_slice(&(32_768 + connection).to_be_bytes());
    frame[TCP + 2..TCP + 4].copy_from_slice(&12_865u16.to_be_bytes());
    // Header length; PSH and ACK.
    frame[TCP + 12..TCP + 14].copy_from_slice(&[0x50, 0x18]);
    frame
}
