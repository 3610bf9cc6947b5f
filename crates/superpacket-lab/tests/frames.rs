//! Raw frames: sent, captured, forwarded by a bridge, and sent at the highest rate.

use std::time::Duration;

use superpacket_lab::{
    Blast, LabError, RawOptions, RawSocket, Route, TcpBulk, ThreeHosts, TwoHosts, Until, VlanTag,
    VnetHeader, available_or_skip, enter_user_namespace_before_main,
};

enter_user_namespace_before_main!();

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn frame(number: u8, length: usize) -> Vec<u8> {
    let mut frame = [&B[..], &A[..], &[0x88, 0xb5]].concat();
    frame.resize(length, number);
    frame
}

/// Returns the frames with the tests' EtherType, without frames that a host sends by itself.
fn ours(frames: &[superpacket_lab::CapturedFrame]) -> Vec<Vec<u8>> {
    let all = frames.iter().map(superpacket_lab::CapturedFrame::with_tag);
    all.filter(|frame| frame[12..14] == [0x88, 0xb5] || frame[12..14] == [0x81, 0]).collect()
}

#[test]
fn a_burst_arrives_as_it_was_sent_also_through_a_bridge() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(ThreeHosts::new()) else { return Ok(()) };
    let Some(_bridge) = available_or_skip(hosts.with_kernel_bridge()) else { return Ok(()) };
    let burst: Vec<Vec<u8>> =
        (0..=255_u8).map(|number| frame(number, 60 + usize::from(number) * 5)).collect();
    for vnet_headers in [false, true] {
        let options = RawOptions { vnet_headers, ..RawOptions::default() };
        let (sender, receiver) =
            (RawSocket::open(&hosts.a.link, options)?, RawSocket::open(&hosts.b.link, options)?);
        sender.send(&burst)?;
        let capture = receiver.capture(Duration::from_millis(300), usize::MAX)?;
        assert_eq!((ours(&capture.frames), capture.dropped), (burst.clone(), 0));
        assert!(capture.frames.iter().all(|frame| frame.vnet.is_some() == vnet_headers));
    }
    Ok(())
}

#[test]
fn a_tag_is_kept_beside_the_frame_and_put_back() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let mut tagged = frame(9, 100);
    tagged.splice(12..12, [0x81, 0x00, 0x60, 0x05]);
    let (sender, receiver) = (
        RawSocket::open(&hosts.a.link, RawOptions::default())?,
        RawSocket::open(&hosts.b.link, RawOptions::default())?,
    );
    sender.send(&[&tagged])?;
    let capture = receiver.capture(Duration::from_millis(200), usize::MAX)?;
    assert_eq!(ours(&capture.frames), [tagged]);
    let tags: Vec<_> = capture.frames.iter().filter_map(|frame| frame.vlan).collect();
    assert_eq!(tags, [VlanTag { protocol: 0x8100, control: 0x6005 }]);
    Ok(())
}

#[test]
fn super_packets_are_seen_whole_with_their_header() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let receiver =
        RawSocket::open(&hosts.b.link, RawOptions { vnet_headers: true, ..RawOptions::default() })?;
    TcpBulk { until: Until::Bytes(1 << 20), ..TcpBulk::default() }
        .run(&Route::ipv4(&hosts.a, &hosts.b))?;
    let capture = receiver.capture(Duration::from_millis(50), usize::MAX)?;
    let supers: Vec<_> = capture.frames.iter().filter(|frame| frame.bytes.len() > 1514).collect();
    assert!(!supers.is_empty(), "TSO hands over more than a segment");
    for packet in supers {
        let header = packet.vnet.unwrap_or_default();
        assert_eq!(
            (header.gso_type & 0x7f, header.flags & 1, header.csum_start),
            (1, 1, 34),
            "TCPv4, checksum to be filled in"
        );
        assert_eq!(header.gso_size, 1448);
    }
    Ok(())
}

#[test]
fn a_virtio_header_goes_along() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let options = RawOptions { vnet_headers: true, ..RawOptions::default() };
    let (sender, receiver) =
        (RawSocket::open(&hosts.a.link, options)?, RawSocket::open(&hosts.b.link, options)?);
    let header = VnetHeader { flags: 1, csum_start: 34, csum_offset: 6, ..VnetHeader::default() };
    sender.send_with_headers(&[(header, frame(1, 80))])?;
    let capture = receiver.capture(Duration::from_millis(200), usize::MAX)?;
    let found: Vec<_> = capture
        .frames
        .iter()
        .filter(|captured| captured.bytes == frame(1, 80))
        .filter_map(|frame| frame.vnet)
        .collect();
    let places = |header: &VnetHeader| (header.flags, header.csum_start, header.csum_offset);
    assert_eq!(found.iter().map(places).collect::<Vec<_>>(), [(1, 34, 6)]);

    let plain = RawSocket::open(&hosts.a.link, RawOptions::default())?;
    assert!(matches!(
        plain.send_with_headers(&[(header, frame(1, 80))]),
        Err(LabError::Invalid { .. })
    ));
    assert!(
        plain
            .send(&[frame(1, 9000)])
            .is_err_and(|error| error.to_string().contains("sending frame 0 of 1")),
        "longer than the MTU"
    );
    Ok(())
}

#[test]
fn a_blast_counts_both_ends() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let blast = Blast { time: Duration::from_millis(200), ..Blast::minimal(B, A) };
    assert_eq!(blast.frame.len(), 60);
    let report = blast.run(&hosts.a.link, &hosts.b.link)?;
    assert!(report.sent >= 1000, "{report:?}");
    assert!(report.received > 0 && report.received <= report.sent + 20, "{report:?}");
    assert!(
        report.sent_per_second() > 0.0
            && report.received_per_second() > 0.0
            && !report.sender.total().is_zero()
    );
    Ok(())
}
