//! Reads any virtio header with any packet. It is refused, or describing the result gives a header
//! with the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superpacket::packet::Layer;
use superpacket::segment::Gso;
use superpacket::virtio::{ByteOrder, Format, Header};

fuzz_target!(|input: &[u8]| {
    let [choice, input @ ..] = input else { return };
    let format =
        [Format::Plain, Format::Buffers, Format::Hash, Format::Tunnel][usize::from(*choice) % 4];
    let order = if choice & 4 == 0 { ByteOrder::Little } else { ByteOrder::Big };
    let layer = if choice & 8 == 0 { Layer::Ethernet } else { Layer::Ip };
    let Ok(header) = Header::read(input, format, order) else { return };
    let packet = &input[format.length()..];
    let mut bytes = [0; 24];
    let written = header.write(&mut bytes, format, order).expect("24 bytes hold any format");
    assert_eq!(Header::read(&bytes[..written], format, order), Ok(header));
    if let Ok(offload) = header.offload(format, packet, packet.len(), layer)
        && let Ok(said) = Header::describe(&offload, format, packet, packet.len(), layer)
    {
        let again =
            said.offload(format, packet, packet.len(), layer).expect("what is said is valid");
        let segmented = |gso: Option<Gso>| gso.map(|gso| (gso.kind, gso.size));
        assert_eq!(
            (again.checksum, segmented(again.gso)),
            (offload.checksum, segmented(offload.gso))
        );
    }
});
