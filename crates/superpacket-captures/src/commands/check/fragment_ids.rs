//! Checks the identifications of IPv6 fragments. The sender that fragments a datagram chooses one
//! for it, and a receiver joins fragments with the same one (RFC 8200, section 4.5).

use std::collections::VecDeque;

use super::packet::FilePacket;

/// Maximum number of datagrams that are remembered. A real receiver remembers them for 60 seconds;
/// here their number bounds the memory instead.
const MAX_DATAGRAMS: usize = 1024;

/// A datagram of the original file whose fragments are in the checked file.
#[derive(Debug)]
struct Datagram {
    /// Number of the datagram in the original file, from 1.
    number: u64,
    /// A hash of the datagram's addresses.
    endpoints: u64,
    id: u32,
}

/// The datagrams whose fragments were seen last in the checked file, with the fragments'
/// identifications.
#[derive(Debug, Default)]
pub(super) struct FragmentIds {
    datagrams: VecDeque<Datagram>,
}

impl FragmentIds {
    /// Records the identification of a fragment of the datagram `origin`. Returns a description of
    /// what is wrong with the identification.
    pub(super) fn note(&mut self, id: u32, origin: &FilePacket) -> Result<(), String> {
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
        if self.datagrams.len() == MAX_DATAGRAMS {
            self.datagrams.pop_front();
        }
        self.datagrams.push_back(Datagram { number, endpoints, id });
        other
            .map_or(Ok(()), |other| Err(format!("it is {id:#010x}, like that of packet {other} of the original, which has the same addresses")))
    }
}
