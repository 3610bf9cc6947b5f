//! The ways in which the packets of the kernel's GRO test are encapsulated, and the parts of a
//! case.

use crate::frame::{Frame, Ip, Ipv4, Ipv6, stream_bytes};

/// Sequence number of a case's first packet.
const FIRST: u32 = 10_000;

/// A case of the kernel's GRO test.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name for messages: the row of the test's table, and the path.
    pub name: String,
    /// The bursts, all of one flow, sent one per [`BURST_INTERVAL`](super::BURST_INTERVAL).
    pub bursts: Vec<Burst>,
}

/// Frames that are sent back to back.
#[derive(Clone, Debug)]
pub struct Burst {
    /// The frames.
    pub frames: Vec<Frame>,
    /// Payload lengths in bytes of the packets that GRO must deliver.
    pub arrives: Vec<usize>,
}

impl Burst {
    /// Returns the frames of which each packet that GRO must deliver consists.
    ///
    /// # Panics
    /// If the payloads of successive frames do not add up to the lengths that must arrive.
    pub fn packets(&self) -> Vec<&[Frame]> {
        let mut rest = &self.frames[..];
        let take = |&length: &usize| {
            let mut sum = 0;
            let last = rest.iter().position(|frame| {
                sum += frame.payload.len();
                sum >= length
            });
            let (packet, others) = rest.split_at(last.map_or(rest.len(), |last| last + 1));
            assert!(
                sum == length && !packet.is_empty(),
                "{sum} bytes in {} frames, not {length}",
                packet.len()
            );
            rest = others;
            packet
        };
        let packets = self.arrives.iter().map(take).collect();
        assert!(rest.is_empty(), "{} frames too many", rest.len());
        packets
    }
}

/// A way in which the packets of a case are encapsulated: the first packet, and which of its IP
/// headers the case edits.
pub(super) struct Path {
    name: String,
    base: Frame,
    outer: bool,
    /// Whether identifications count up by one instead of being 0.
    increasing: bool,
}

/// Returns a TCP frame over each IP version, plain and in each IP-in-IP tunnel, with its name.
pub fn ip_in_ip() -> Vec<(&'static str, Frame)> {
    let (tcp4, tcp6) = (Frame::tcp4(1000, 100), Frame::tcp6(1000, 100));
    vec![
        ("IPv4", tcp4.clone()),
        ("IPv6", tcp6.clone()),
        ("IPIP", tcp4.clone().in_ip4()),
        ("4in6", tcp4.in_ip6()),
        ("SIT", tcp6.clone().in_ip4()),
        ("IP6IP6", tcp6.in_ip6()),
    ]
}

impl Path {
    /// Returns all encapsulations. IPv4 without a tunnel occurs twice, since a virtio header cannot
    /// express that all segments have the same identification.
    pub fn all() -> Vec<Path> {
        let mut paths = Vec::new();
        for (name, mut base) in ip_in_ip() {
            let tunnelled = base.tunnel.is_some();
            base.tcp_mut().sequence = FIRST;
            for outer in [false, true].into_iter().take(1 + usize::from(tunnelled)) {
                match header(&mut base, outer) {
                    Ip::V4(ip) => (ip.ttl, ip.id, ip.dont_fragment) = (8, 0, true),
                    Ip::V6(ip) => ip.hop_limit = 8,
                }
            }
            let path = |name: String, outer, increasing| Path {
                name,
                base: base.clone(),
                outer,
                increasing,
            };
            if tunnelled {
                paths.extend([
                    path(format!("{name}, inner header edited"), false, false),
                    path(format!("{name}, outer header edited"), true, false),
                ]);
            } else {
                paths.push(path(name.to_owned(), false, false));
            }
            if name == "IPv4" {
                paths.push(path("IPv4 with increasing identifications".to_owned(), false, true));
            }
        }
        paths
    }

    /// Returns the encapsulations in which cases edit an IPv4 header.
    pub fn ipv4() -> Vec<Path> {
        Path::all()
            .into_iter()
            .filter(|path| matches!(header(&mut path.base.clone(), path.outer), Ip::V4(_)))
            .collect()
    }

    /// Returns the encapsulations in which cases edit an IPv4 header and identifications are all 0.
    pub fn ipv4_to_identify() -> Vec<Path> {
        Path::ipv4().into_iter().filter(|path| !path.increasing).collect()
    }

    /// Returns the encapsulations in which cases edit an IPv6 header.
    pub fn ipv6() -> Vec<Path> {
        Path::all()
            .into_iter()
            .filter(|path| matches!(header(&mut path.base.clone(), path.outer), Ip::V6(_)))
            .collect()
    }

    /// Returns the name of the path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the first packet of a case in this encapsulation, with 100 payload bytes.
    pub fn base(&self) -> &Frame {
        &self.base
    }

    /// Returns consecutive packets in this encapsulation with these payload lengths.
    pub fn send(&self, lengths: &[usize]) -> Vec<Frame> {
        let mut sequence = FIRST;
        let frame = |(index, &length): (usize, &usize)| {
            let mut frame = self.base.clone();
            if self.increasing {
                self.ipv4_of(&mut frame).id = index as u16;
            }
            frame.tcp_mut().sequence = sequence;
            frame.payload = stream_bytes(sequence, length);
            sequence += length as u32;
            frame
        };
        lengths.iter().enumerate().map(frame).collect()
    }

    /// Returns the IP header of a frame that cases in this encapsulation edit.
    pub fn ip<'a>(&self, frame: &'a mut Frame) -> &'a mut Ip {
        header(frame, self.outer)
    }

    pub fn ipv4_of<'a>(&self, frame: &'a mut Frame) -> &'a mut Ipv4 {
        match self.ip(frame) {
            Ip::V4(ip) => ip,
            Ip::V6(_) => panic!("{}: not IPv4", self.name),
        }
    }

    pub fn ipv6_of<'a>(&self, frame: &'a mut Frame) -> &'a mut Ipv6 {
        match self.ip(frame) {
            Ip::V6(ip) => ip,
            Ip::V4(_) => panic!("{}: not IPv6", self.name),
        }
    }

    /// Returns a case of one burst: its frames must be delivered as packets with the payload
    /// lengths `arrives`.
    pub fn case(&self, row: &str, frames: Vec<Frame>, arrives: &[usize]) -> Case {
        self.bursts(row, vec![(frames, arrives)])
    }

    /// Returns a case of several bursts, each with its frames and the payload lengths of the
    /// packets that must be delivered.
    pub fn bursts(&self, row: &str, bursts: Vec<(Vec<Frame>, &[usize])>) -> Case {
        let bursts = bursts
            .into_iter()
            .map(|(frames, arrives)| Burst { frames, arrives: arrives.to_vec() })
            .collect();
        Case { name: format!("{row}: {}", self.name), bursts }
    }
}

fn header(frame: &mut Frame, outer: bool) -> &mut Ip {
    if outer { &mut frame.tunnel_mut().ip } else { &mut frame.ip }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_are_those_of_the_table() {
        let names: Vec<_> = Path::all().into_iter().map(|path| path.name).collect();
        assert_eq!(names.len(), 11, "{names:?}");
        assert_eq!(
            (Path::ipv4().len(), Path::ipv4_to_identify().len(), Path::ipv6().len()),
            (6, 5, 5)
        );
    }

    #[test]
    fn frames_are_told_apart_by_what_must_arrive() {
        let path = &Path::all()[0];
        let burst = |lengths: &[usize], arrives: &[usize]| Burst {
            frames: path.send(lengths),
            arrives: arrives.to_vec(),
        };
        let counts =
            |burst: Burst| burst.packets().into_iter().map(<[Frame]>::len).collect::<Vec<_>>();
        assert_eq!(counts(burst(&[100, 100, 0, 100, 50], &[200, 0, 150])), [2, 1, 2]);
        assert_eq!(counts(burst(&[0, 0, 1], &[0, 0, 1])), [1, 1, 1]);
        for (lengths, arrives) in [
            (&[100, 100][..], &[150, 50][..]),
            (&[100], &[100, 0]),
            (&[100], &[200]),
            (&[100, 0], &[100]),
        ] {
            let burst = burst(lengths, arrives);
            assert!(
                std::panic::catch_unwind(|| burst.packets().len()).is_err(),
                "{lengths:?} {arrives:?}"
            );
        }
    }
}
