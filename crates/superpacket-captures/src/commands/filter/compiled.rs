//! Filters that libpcap compiles.

use pcap::{Capture, Linktype};

use super::program::{Instruction, Program};
use crate::commands::error::Error;
use crate::file::LinkType;

/// A filter: an expression, compiled for each link type of the capture when its first frame is
/// examined.
pub(crate) struct Filter {
    expression: String,
    programs: Vec<(LinkType, Program)>,
}

impl Filter {
    /// Returns a filter with this expression. It is not compiled yet, because its validity depends
    /// on the link type.
    pub(crate) fn new(expression: &str) -> Result<Self, Error> {
        Ok(Filter { expression: expression.to_owned(), programs: Vec::new() })
    }

    /// Returns whether a frame matches the filter. `original_length` is its length on the wire in
    /// bytes, of which fewer may have been captured.
    ///
    /// # Errors
    /// If libpcap refuses the expression for frames of this link type.
    #[inline]
    pub(crate) fn matches(
        &mut self,
        link_type: LinkType,
        frame: &[u8],
        original_length: u32,
    ) -> Result<bool, Error> {
        let known = self.programs.iter().position(|(known, _)| *known == link_type);
        let place = match known {
            Some(place) => place,
            None => {
                self.programs.push((link_type, compile(&self.expression, link_type)?));
                self.programs.len() - 1
            }
        };
        Ok(self.programs[place].1.matches(frame, original_length))
    }
}

/// Compiles an expression for frames of a link type.
fn compile(expression: &str, link_type: LinkType) -> Result<Program, Error> {
    let refused = |reason: String| {
        Error::Options(format!("filter '{expression}', for {link_type}: {reason}"))
    };
    let compiled = link_type_of_libpcap(link_type)
        .and_then(Capture::dead)
        .and_then(|capture| capture.compile(expression, true))
        .map_err(|error| match error {
            pcap::Error::PcapError(reason) => refused(reason),
            other => refused(other.to_string()),
        })?;
    // The crate shows an instruction's fields as text only. Its own `BpfProgram::filter` would take
    // the captured length for the length on the wire, so that `greater 1000` missed frames that a
    // snap length has cut.
    let instructions = compiled.get_instructions().iter().map(ToString::to_string);
    instructions
        .map(|text| Instruction::from_decimal(&text))
        .collect::<Option<_>>()
        .map(Program::new)
        .ok_or_else(|| refused("libpcap's program for it cannot be read".to_owned()))
}

/// Returns the link type in libpcap's numbering (`DLT_`) for the link type of a file (`LINKTYPE_`).
/// Few numbers differ.
fn link_type_of_libpcap(link_type: LinkType) -> Result<Linktype, pcap::Error> {
    match link_type {
        LinkType::RAW | LinkType::RAW_12 | LinkType::RAW_14 => Linktype::from_name("RAW"),
        LinkType(100) => Linktype::from_name("ATM_RFC1483"),
        LinkType(102) => Linktype::from_name("SLIP_BSDOS"),
        LinkType(103) => Linktype::from_name("PPP_BSDOS"),
        LinkType(number) => Ok(Linktype(i32::from(number))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket_traffic::frame::Frame;

    /// Expressions that together compile to every instruction that libpcap makes.
    const EXPRESSIONS: [&str; 16] = [
        "",
        "tcp port 443",
        "not udp",
        "vlan 5 and (tcp or udp)",
        "host 10.0.0.1 or host fd00::1",
        "net 10.0.0.0/9 and portrange 400-500",
        "ip protochain 6",
        "ip6 protochain 17",
        "tcp[tcpflags] & (tcp-push|tcp-ack) != 0",
        "greater 200 and less 1200",
        "(len - 54) / 100 % 7 * 2 == 0",
        "(tcp[2:2] << 1) >> 1 = tcp[2:2]",
        "len / ether[0x2f] > 3 or len % ether[0x2e] = 1",
        "ether[ether[20] + ip[0] - 60:4] ^ 7 | 1 > 99",
        "-len + 300 > 0 and len * len < 90000",
        "ether multicast or ip[2:2] << ip[9] >= ip6[40] >> 3",
    ];

    #[test]
    fn programs_decide_as_libpcap_does() {
        let kinds = [Frame::tcp4(7, 0), Frame::tcp6(7, 100), Frame::udp4(900), Frame::udp6(60)];
        let shapes = kinds.iter().flat_map(|frame| {
            let shapes = [frame.clone().tagged(5), frame.clone().in_vxlan4(), frame.clone()];
            shapes.map(|frame| frame.to_bytes())
        });
        let frames: Vec<_> = shapes.chain([vec![], vec![0; 13], vec![0xff; 60]]).collect();
        let capture = Capture::dead(Linktype::ETHERNET).expect("opens");
        for expression in EXPRESSIONS {
            let theirs = capture.compile(expression, true).expect(expression);
            let ours = compile(expression, LinkType::ETHERNET).expect(expression);
            for frame in &frames {
                for length in (0..frame.len()).step_by(3).chain([frame.len()]) {
                    let cut = &frame[..length];
                    let matches = ours.matches(cut, length as u32);
                    assert_eq!(matches, theirs.filter(cut), "{expression}: {cut:02x?}");
                }
            }
        }
    }
}
