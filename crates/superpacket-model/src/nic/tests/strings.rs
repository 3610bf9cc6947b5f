//! Tests of the port strings of model NICs.

use superpacket_port::features::Feature;
use superpacket_port::{Port, PortSpec};
use superpacket_traffic::frame::Frame;

use super::super::{NicSettings, Padding, PageSize, RingFull, RxSums, TsoLimit};
use crate::fixture::{ends, receive, send_all};
use crate::open;

fn settings(text: &str) -> Result<NicSettings, String> {
    let spec: PortSpec = text.parse().expect("well formed");
    NicSettings::from_options(spec.options(), spec.inner().is_some())
        .map_err(|error| error.to_string())
}

#[test]
fn every_setting_can_be_written() {
    assert_eq!(settings("nic:"), Ok(NicSettings::default()));
    assert_eq!(
        settings("nic:@packet:eth0"),
        Ok(NicSettings { full: RingFull::Wait, ..NicSettings::default() })
    );
    let text = "nic:page=16k,headroom=2,copy=80,csum=complete,vlan=keep,pad=garbage,queues=8,hash=off,ring=64,full=wait,mtu=9000,\
                sg=off,tx=off,tso=15928,uso=off,tunnels=on,wire=off,link=there";
    let expected = NicSettings {
        page: PageSize::Page16K,
        headroom: 2,
        copy: 80,
        sums: RxSums::Complete,
        strip_vlan: false,
        padding: Padding::Garbage,
        queues: 8,
        hash: false,
        ring: 64,
        full: RingFull::Wait,
        mtu: 9000,
        scatter_gather: false,
        checksums: false,
        tso: TsoLimit::Payload(15_928),
        uso: false,
        tunnels: true,
        wire: false,
        ..NicSettings::default()
    };
    assert_eq!(settings(text), Ok(expected));
    for (text, page) in [
        ("4k", PageSize::Page4K),
        ("8k", PageSize::Page8K),
        ("32k", PageSize::Page32K),
        ("linear", PageSize::Linear),
    ] {
        assert_eq!(settings(&format!("nic:page={text}")).expect("right").page, page);
    }
    for (text, tso) in
        [("off", TsoLimit::Off), ("64k", TsoLimit::Full), ("1448", TsoLimit::Payload(1448))]
    {
        assert_eq!(settings(&format!("nic:tso={text}")).expect("right").tso, tso);
    }
}

#[test]
fn a_wrong_setting_is_named() {
    for wrong in [
        "page=5k",
        "page=4096",
        "headroom=257",
        "headroom=x",
        "copy=1k",
        "csum=yes",
        "vlan=on",
        "pad=60",
        "queues=0",
        "queues=129",
        "hash=1",
        "ring=0",
        "ring=65537",
        "full=stop",
        "mtu=67",
        "mtu=0",
        "mtu=65001",
        "sg=yes",
        "tx=1",
        "tso=on",
        "tso=0",
        "tso=65536",
        "uso=64k",
        "tunnels=vxlan",
        "wire=0",
        "colour=red",
    ] {
        let error = settings(&format!("nic:{wrong}")).expect_err(wrong);
        assert!(error.contains(wrong) && error.contains("nic:"), "{error}");
    }
    let error = settings("nic:link=x@packet:eth0").expect_err("a link and a port");
    assert!(error.contains("link=x"), "{error}");
    let spec: PortSpec = "nic:ring=0@memory:never".parse().expect("well formed");
    assert!(open(&spec).expect_err("wrong").to_string().contains("ring=0"));
    let out_of_range = NicSettings { copy: 999, ..NicSettings::default() };
    assert!(
        super::pair(&out_of_range, &Default::default())
            .expect_err("wrong")
            .to_string()
            .contains("copy")
    );
}

#[test]
fn a_card_is_one_end_of_a_link_or_wraps_a_port() {
    for (card, other) in [
        ("nic:page=8k,link=strings", "memory:strings"),
        ("nic:", "memory:nic"),
        ("nic:page=8k,queues=1@memory:wrapped?slots=64", "memory:wrapped"),
        ("nic:link=both,pad=on", "nic:link=both"),
    ] {
        let open = |text: &str| open(&text.parse().expect("well formed")).expect(text);
        let (mut left, mut right): (Box<dyn Port>, Box<dyn Port>) = (open(card), open(other));
        assert_eq!((left.name(), right.name()), (card, other));
        let ((mut left_in, mut left_out), (mut right_in, mut right_out)) =
            (ends(&mut *left), ends(&mut *right));
        send_all(&mut *left_out, [&Frame::tcp4(1, 100)]);
        send_all(&mut *right_out, [&Frame::tcp4(1, 100)]);
        assert_eq!(
            (receive(&mut *left_in)[0].length(), receive(&mut *right_in)[0].length()),
            (154, 154)
        );
        assert!(left.capabilities().features.contains(Feature::ReceiveHashing));
        assert_eq!((left.state().mtu, left.hardware_address()), (1500, None));
    }
}

#[test]
fn offloads_that_need_one_that_is_off_are_off() {
    let features = |text: &str| settings(text).expect("right").features();
    let without_sg = features("nic:sg=off");
    assert!(
        !without_sg.contains(Feature::TcpSegmentationOffload)
            && without_sg.contains(Feature::GenericReceiveOffload)
    );
    assert!(!features("nic:tx=off").contains(Feature::TxUdpSegmentation));
    assert!(!features("nic:hash=off").contains(Feature::ReceiveHashing));
    assert!(features("nic:csum=none").contains(Feature::RxChecksumming), "its user verifies");
}

/// Each setting is in range, but together the settings need too much memory.
#[test]
fn more_memory_than_a_card_may_have_is_refused() {
    for options in [
        "ring=65536,queues=128",
        "ring=65536,queues=128,page=32k,mtu=65000",
        "ring=65536,queues=64,page=linear",
    ] {
        let error = crate::open(&format!("nic:{options},link=large").parse().expect("well formed"))
            .map(drop)
            .expect_err(options);
        assert!(error.to_string().contains("more memory than there is, or than 4 GiB"), "{error}");
    }
}
