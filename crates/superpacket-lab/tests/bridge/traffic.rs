//! Traffic between hosts: both directions, many flows, UDP, VLAN tags, IPv6, jumbo frames, and
//! lossy links.

use std::time::Duration;

use superpacket_lab::{
    Direction, LabError, Route, TcpBulk, TcpTransactions, UdpBulk, Until, WireSettings,
};
use superpacket_port::features::Feature;

use crate::joined::{KEY, by_nic_on_tap, by_packet, by_tap, by_tun, by_veth, by_wires, by_xdp};

fn bulk(bytes: u64) -> TcpBulk {
    TcpBulk { until: Until::Bytes(bytes), verify: Some(KEY), ..TcpBulk::default() }
}

#[test]
fn tcp_both_ways_at_once() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    let report =
        TcpBulk { direction: Direction::Both, flows: 2, ..bulk(16 << 20) }.run(&joined.route())?;
    assert_eq!(report.bytes(), 4 * (16 << 20));
    assert!(joined.stats(0).rx_super_packets > 0, "the sender's TSO is on");
    Ok(())
}

#[test]
fn two_hundred_flows() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    joined.a.link.set_feature("tcp-segmentation-offload", false)?;
    let report = TcpBulk { flows: 200, ..bulk(256 << 10) }.run(&joined.route())?;
    assert_eq!(report.forward.map(|direction| direction.flows.len()), Some(200));
    Ok(())
}

#[test]
fn single_frames_are_aggregated_on_the_way() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    joined.a.link.set_feature("tcp-segmentation-offload", false)?;
    joined.carries(1, 128 << 20)?;
    let stats = joined.stats(1);
    let average = stats.tx_bytes / stats.tx_packets.max(1);
    assert!(average >= 20_000, "{average} bytes in the average packet to B: {stats:?}");
    Ok(())
}

#[test]
fn a_receiver_without_super_packets_gets_segments() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    joined.switch(1, Feature::TcpSegmentationOffload, false);
    joined.carries(1, 32 << 20)?;
    let (from_a, to_b) = (joined.stats(0), joined.stats(1));
    assert!(from_a.rx_super_packets > 0 && to_b.segmented > 0, "{from_a:?} {to_b:?}");
    assert_eq!(to_b.tx_super_packets, 0);
    Ok(())
}

#[test]
fn with_every_offload_off_nothing_is_lost() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    for side in [0, 1] {
        Feature::ALL.into_iter().for_each(|feature| joined.switch(side, feature, false));
    }
    joined.carries(2, 8 << 20)?;
    let to_b = joined.stats(1);
    assert!(
        to_b.segmented > 0
            && to_b.tx_super_packets == 0
            && to_b.drops.values().all(|&drops| drops == 0),
        "{to_b:?}"
    );
    Ok(())
}

#[test]
fn udp_segmented_by_the_sender_and_merged_for_the_receiver() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    joined.switch(0, Feature::RxUdpGroForwarding, true);
    // During neighbour resolution the kernel queues packets, and later ones overtake them.
    joined.carries(1, 1)?;
    let load = UdpBulk {
        datagram: 1200,
        segments: 10,
        gro: true,
        datagrams_per_second: Some(20_000.0),
        time: Duration::from_millis(500),
        verify: Some(KEY),
        ..UdpBulk::default()
    };
    // The sender's super-packets pass unchanged. If its device does not segment, its kernel does,
    // and the bridge merges the segments again.
    for whole in [true, false] {
        joined.a.link.set_feature("tx-udp-segmentation", whole)?;
        let before = (joined.stats(0), joined.stats(1));
        let report = load.run(&joined.route())?;
        assert!(
            report.received > report.sent / 2 && report.out_of_order == 0 && report.duplicates == 0,
            "{report:?}"
        );
        assert!(report.most_merged > 1, "the receiver gets several at once: {report:?}");
        let (from_a, to_b) = (joined.stats(0), joined.stats(1));
        let (came, merged) =
            (from_a.rx_super_packets - before.0.rx_super_packets, from_a.merged - before.0.merged);
        let left = to_b.tx_super_packets - before.1.tx_super_packets;
        assert!(
            if whole { came > 0 } else { came == 0 && merged > 0 },
            "whole: {whole}; {from_a:?}"
        );
        assert!(left > 0, "whole: {whole}; {to_b:?}");
    }
    Ok(())
}

#[test]
fn tagged_frames_pass_with_their_tags() -> Result<(), LabError> {
    // The hosts use VLAN 7, and the bridge sees their tags.
    let tagged = WireSettings { vlan: Some(7), ..WireSettings::default() };
    let Some(joined) = by_wires([tagged, tagged])? else { return Ok(()) };
    for tso in [true, false] {
        joined.a.link.set_feature("tcp-segmentation-offload", tso)?;
        joined.carries(2, 8 << 20)?;
    }
    assert!(
        joined.stats(0).rx_super_packets > 0 && joined.stats(0).merged > 0,
        "{:?}",
        joined.stats(0)
    );
    joined.switch(1, Feature::TcpSegmentationOffload, false);
    joined.carries(2, 8 << 20)
}

#[test]
fn ipv6_with_and_without_super_packets() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    let route = Route::ipv6(&joined.a, &joined.b);
    bulk(16 << 20).run(&route)?;
    joined.a.link.set_feature("tcp-segmentation-offload", false)?;
    bulk(16 << 20).run(&route)?;
    joined.switch(1, Feature::TcpSegmentationOffload, false);
    bulk(16 << 20).run(&route)?;
    assert!(joined.stats(1).segmented > 0);
    Ok(())
}

#[test]
fn jumbo_frames_are_cut_for_a_port_that_takes_none() -> Result<(), LabError> {
    // Both hosts accept 9000 bytes and announce it to each other; the link to B does not.
    let jumbo = |hosts: &superpacket_lab::ThreeHosts| {
        [&hosts.a.link, &hosts.a_side, &hosts.b.link]
            .into_iter()
            .try_for_each(|link| link.set_mtu(9000))
    };
    let Some(joined) = by_veth("packet", "", jumbo)? else { return Ok(()) };
    for tso in [true, false] {
        joined.a.link.set_feature("tcp-segmentation-offload", tso)?;
        joined.carries(1, 16 << 20)?;
    }
    let to_b = joined.stats(1);
    assert!(to_b.segmented > 0 && to_b.drops["too_big"] == 0, "{to_b:?}");
    Ok(())
}

#[test]
fn a_host_with_a_smaller_mtu_is_reached() -> Result<(), LabError> {
    let jumbo = |hosts: &superpacket_lab::ThreeHosts| {
        [&hosts.a.link, &hosts.a_side].into_iter().try_for_each(|link| link.set_mtu(9000))
    };
    let Some(joined) = by_veth("packet", "", jumbo)? else { return Ok(()) };
    TcpBulk { direction: Direction::Both, ..bulk(16 << 20) }.run(&joined.route())?;
    assert_eq!(joined.stats(1).drops["too_big"], 0);
    Ok(())
}

#[test]
fn bytes_arrive_over_a_bad_line() -> Result<(), LabError> {
    let bad = WireSettings {
        loss: 0.005,
        reorder: 0.02,
        duplicate: 0.005,
        seed: 5,
        ..WireSettings::default()
    };
    let Some(joined) = by_wires([bad, bad])? else { return Ok(()) };
    // To a wire, a super-packet is one frame.
    joined.a.link.set_feature("tcp-segmentation-offload", false)?;
    joined.switch(1, Feature::TcpSegmentationOffload, false);
    joined.carries(4, 1 << 20)?;
    assert!(joined.impaired_frames() > 10);
    Ok(())
}

#[test]
fn transactions_of_many_connections() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    let load = TcpTransactions {
        connections: 500,
        time: Duration::from_secs(1),
        verify: Some(KEY),
        ..TcpTransactions::default()
    };
    let report = load.run(&joined.route())?;
    // About 100,000 on an idle machine.
    assert!(report.transactions > 2_000, "{report:?}");
    Ok(())
}

#[test]
fn tap_devices_carry_super_packets_and_segments() -> Result<(), LabError> {
    let Some(joined) = by_tap("")? else { return Ok(()) };
    joined.carries(2, 16 << 20)?;
    assert!(joined.stats(0).rx_super_packets > 0);
    joined.a.link.set_feature("tcp-segmentation-offload", false)?;
    joined.carries(2, 16 << 20)?;
    assert!(joined.stats(0).merged > 0);
    joined.switch(1, Feature::TcpSegmentationOffload, false);
    joined.carries(2, 16 << 20)?;
    assert!(joined.stats(1).segmented > 0);
    Ok(())
}

#[test]
fn tun_devices_carry_packets_without_a_link_layer() -> Result<(), LabError> {
    let Some(joined) = by_tun()? else { return Ok(()) };
    joined.carries(2, 8 << 20)?;
    bulk(8 << 20).run(&Route::ipv6(&joined.a, &joined.b))?;
    joined.switch(1, Feature::TcpSegmentationOffload, false);
    joined.carries(2, 8 << 20)?;
    assert!(joined.stats(0).rx_super_packets > 0 && joined.stats(1).segmented > 0);
    Ok(())
}

#[test]
fn xdp_sockets_carry_tcp() -> Result<(), LabError> {
    let Some(joined) = by_xdp()? else { return Ok(()) };
    joined.carries(2, 8 << 20)?;
    assert!(joined.stats(0).merged > 0 && joined.stats(1).segmented > 0);
    Ok(())
}

/// The hosts leave their checksums to the devices, since the kernel has switched off only TSO.
#[test]
fn xdp_sockets_carry_tcp_of_hosts_with_checksum_offload() -> Result<(), LabError> {
    for aggregates in [true, false] {
        let Some(joined) = by_veth("xdp", "?mode=native", |_| Ok(()))? else { return Ok(()) };
        for link in [&joined.a.link, &joined.b.link] {
            assert!(link.feature("tx-checksumming")?);
        }
        joined.switch(0, Feature::GenericReceiveOffload, aggregates);
        joined.switch(1, Feature::GenericReceiveOffload, aggregates);
        joined.carries(2, 8 << 20)?;
        assert_eq!(joined.stats(0).merged > 0, aggregates);
        bulk(8 << 20).run(&Route::ipv6(&joined.a, &joined.b))?;
    }
    Ok(())
}

#[test]
fn a_model_nic_stands_between() -> Result<(), LabError> {
    let Some(joined) = by_veth("nic:page=4k,csum=complete,tso=off@packet", "", |_| Ok(()))? else {
        return Ok(());
    };
    joined.carries(2, 8 << 20)?;
    assert!(
        joined.stats(0).merged > 0,
        "frames come off its wire one by one: {:?}",
        joined.stats(0)
    );
    Ok(())
}

#[test]
fn model_nics_stand_before_tap_devices() -> Result<(), LabError> {
    let Some(joined) = by_nic_on_tap("page=4k,csum=complete,hash=on,tso=off")? else {
        return Ok(());
    };
    // The hosts leave all work to the cards; the bridge sees single frames with complete checksums.
    TcpBulk { direction: Direction::Both, flows: 2, ..bulk(8 << 20) }.run(&joined.route())?;
    bulk(8 << 20).run(&Route::ipv6(&joined.a, &joined.b))?;
    let [a, b] = [joined.stats(0), joined.stats(1)];
    assert!(a.rx_super_packets == 0 && a.merged > 0 && b.merged > 0, "{a:?} {b:?}");
    assert!(b.segmented > 0 && b.tx_super_packets == 0, "the card to B cuts nothing: {b:?}");
    Ok(())
}
