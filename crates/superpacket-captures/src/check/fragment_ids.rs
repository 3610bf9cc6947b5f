//! Identifications of IPv6 fragments: whoever cuts a datagram chooses one, and a receiver puts
//! together what has the same (RFC 8200, section 4.5).

use std::collections::VecDeque;

use super::packet::Packet;

/// So many datagrams are remembered: a receiver waits 60 seconds, a check keeps no more than this.
const MOST: usize = 1024;

/// A datagram that was cut.
#[derive(Debug)]
struct Datagram {
    /// Its place in the original file.
    number: u64,
    /// Its addresses.
    endpoints: u64,
    id: u32,
}

/// The datagrams whose fragments were seen last.
#[derive(Debug, Default)]
pub(super) struct FragmentIds {
    datagrams: VecDeque<Datagram>,
}

impl FragmentIds {
    /// Notes the identification of a fragment of a datagram; returns what is wrong with it.
    pub(super) fn note(&mut self, id: u32, origin: &Packet) -> Result<(), String> {
        let (number, endpoints) = (origin.number, origin.endpoints);
        if let Some(known) = self.datagrams.iter().rev().find(|datagram| datagram.number == number)
        {
            let first = known.id;
            return if first == id {
                Ok(())
            } else {
                Err(format!("it is {id:#010x}, and that of the first fragment is {first:#010x}"))
            };
        }
        let other = self
            .datagrams
            .iter()
            .find(|datagram| (datagram.endpoints, datagram.id) == (endpoints, id))
            .map(|other| other.number);
        if self.datagrams.len() == MOST {
            self.datagrams.pop_front();
        }
        self.datagrams.push_back(Datagram { number, endpoints, id });
        other
            .map_or(Ok(()), |other| Err(format!("it is {id:#010x}, as that of packet {other} of the original, between the same addresses")))
    }
}
