//! The bridge as a host's card: packets merged by LRO leave whole, and a port with a limit gets
//! super-packets up to that limit.

use superpacket::aggregate::Storage;
use superpacket_bridge::report::PortStats;
use superpacket_bridge::settings::PortSettings;
use superpacket_lab::LabError;
use superpacket_port::features::Feature;

use crate::joined::{Joined, by_packet_asked};

/// Bytes that are sent and compared.
const BYTES: u64 = 32 << 20;

/// Payload bytes of a segment at an MTU of 1500 with timestamps.
const SEGMENT: u32 = 1448;

fn force_lro(port: &mut PortSettings) {
    port.features = port.features.with(Feature::LargeReceiveOffload);
    port.force_lro = true;
}

/// Returns the average number of segments per super-packet sent to the port.
fn segments(stats: &PortStats) -> f64 {
    stats.tx_super_segments as f64 / stats.tx_super_packets.max(1) as f64
}

/// Asserts that no packet was refused or could not be segmented. Full rings are not checked,
/// because they depend on the machine.
fn assert_taken(joined: &Joined) {
    for stats in [joined.stats(0), joined.stats(1)] {
        assert_eq!(stats.fallbacks, 0, "{stats:?}");
        for cause in ["too_big", "cannot_segment", "refused"] {
            assert_eq!(stats.drops.get(cause), Some(&0), "{stats:?}");
        }
    }
}

#[test]
fn what_lro_merged_leaves_whole() -> Result<(), LabError> {
    for (receiver_mtu, storage) in
        [(1500, Storage::Fragments), (1500, Storage::Linear), (9000, Storage::Fragments)]
    {
        let joined = by_packet_asked(
            |hosts| {
                for link in [&hosts.b.link, &hosts.b_side] {
                    link.set_mtu(receiver_mtu)?;
                }
                hosts.a.link.set_feature("tcp-segmentation-offload", false)
            },
            |ports| {
                force_lro(&mut ports[0]);
                ports[0].storage = storage;
            },
        )?;
        let Some(joined) = joined else { return Ok(()) };
        joined.carries(1, BYTES)?;
        let (card, host) = (joined.stats(0), joined.stats(1));
        assert!(card.merged > BYTES / u64::from(SEGMENT) / 2, "{card:?}");
        // A packet longer than the port's limit, by less than a segment, is split in two.
        assert_eq!(host.segments, 2 * host.segmented, "nothing is cut into frames again: {host:?}");
        assert!(host.segmented * 10 <= host.tx_super_packets, "{host:?}");
        assert!(segments(&host) >= 4.0, "{host:?}");
        assert_taken(&joined);
    }
    Ok(())
}

#[test]
fn a_limited_port_gets_super_packets_up_to_its_limit() -> Result<(), LabError> {
    let joined =
        by_packet_asked(|_| Ok(()), |ports| ports[1].limits.gso_max_size = 8 * SEGMENT + 52)?;
    let Some(joined) = joined else { return Ok(()) };
    joined.carries(1, BYTES)?;
    let stats = joined.stats(1);
    assert!(stats.segmented > 0 && (4.0..=8.0).contains(&segments(&stats)), "{stats:?}");
    assert_taken(&joined);
    Ok(())
}

#[test]
fn a_sender_does_well_on_the_newest_of_its_acks() -> Result<(), LabError> {
    let joined = by_packet_asked(
        |hosts| {
            // Single segments, each acknowledged.
            hosts.b_side.set_feature("tcp-segmentation-offload", false)?;
            let metrics = superpacket_lab::RouteMetrics {
                quick_acknowledgements: true,
                ..Default::default()
            };
            hosts.b.link.set_neighbour_route(hosts.a.ipv4, metrics)
        },
        |ports| {
            force_lro(&mut ports[1]);
            ports[1].lro_acks = true;
        },
    )?;
    let Some(joined) = joined else { return Ok(()) };
    joined.carries(1, BYTES)?;
    let (sender, card) = (joined.stats(0), joined.stats(1));
    // A busy host reads several segments before it acknowledges them.
    assert!(
        card.rx_packets > BYTES / u64::from(SEGMENT) / 16,
        "many segments are acknowledged: {card:?}"
    );
    assert!(
        sender.tx_packets < card.rx_packets / 2,
        "{} of {} ACKs reach the sender",
        sender.tx_packets,
        card.rx_packets
    );
    assert_taken(&joined);
    Ok(())
}
