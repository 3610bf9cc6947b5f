//! Tests of packet ports on veth devices in network namespaces of their own.

mod frames;
mod interfaces;
mod open_port;
mod rings;
mod super_packets;
mod traffic;
mod witness;

use crate::support::{ip, quiet};

/// Creates a pair of veth devices, `port0` and `peer0`, and sets them up.
fn pair() {
    quiet();
    ip("link add port0 type veth peer name peer0");
    ip("link set port0 up");
    ip("link set peer0 up");
}

/// Returns a frame of `length` bytes, identified by `number`. Its experimental ethertype (IEEE 802)
/// makes network stacks ignore it.
fn frame(number: usize, length: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend((frame.len()..length).map(|at| (number * 31 + at * 7 + at / 256) as u8));
    frame
}
