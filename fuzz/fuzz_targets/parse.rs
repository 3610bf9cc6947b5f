//! Parses any bytes. They are refused, or all offsets are in order and within the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superpacket::packet::Layer;
use superpacket::wire::{MAX_HEADER, Scope, parse};

fuzz_target!(|bytes: &[u8]| {
    for layer in [Layer::Ethernet, Layer::Ip] {
        match parse(bytes, bytes.len(), layer) {
            Ok(layout) => {
                assert!(
                    layout.outermost() <= layout.network
                        && layout.network < layout.transport
                        && layout.transport < layout.payload
                );
                assert!(
                    usize::from(layout.payload) <= MAX_HEADER
                        && usize::from(layout.payload) <= bytes.len()
                );
                assert!(
                    u32::from(layout.payload) <= layout.end && layout.end as usize <= bytes.len()
                );
                if let Some(outer) = layout.outer {
                    assert!(outer.network < outer.transport && outer.transport <= layout.network);
                }
                // Parsing only the headers gives the same result as parsing the whole frame.
                assert_eq!(
                    parse(&bytes[..bytes.len().min(MAX_HEADER)], bytes.len(), layer),
                    Ok(layout)
                );
            }
            Err(unparsed) => {
                if let Scope::Pair { network, .. } = unparsed.scope {
                    assert!(usize::from(network) + 20 <= bytes.len());
                }
            }
        }
    }
});
