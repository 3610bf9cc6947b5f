//! A small capture of a host's 10 Gbit/s port, with each kind of traffic that matters for
//! aggregation.

use crate::frame::*;

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Captured {
    /// Arrival time of its last byte, in nanoseconds from the start of the capture.
    pub time_ns: u64,
    /// The Ethernet frame, padded to at least 60 bytes.
    pub bytes: Vec<u8>,
}

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// Time that a full frame takes at 10 Gbit/s, inter-frame gap included, in nanoseconds.
const FRAME_TIME: u64 = 1_230;

/// Returns about 300 frames in order of time, the same in each call. All checksums are correct.
///
/// They contain an IPv4 download with timestamps, a loss, selective acknowledgements and a
/// retransmission; an IPv6 upload; a VLAN-tagged download without timestamps, whose ACKs are
/// padded; QUIC-like UDP; TCP through VXLAN; and a short exchange with a name server.
pub fn demo() -> Vec<Captured> {
    let mut captured = Vec::new();
    captured.extend(names());
    captured.extend(download());
    captured.extend(upload());
    captured.extend(tagged());
    captured.extend(quic());
    captured.extend(overlay());
    captured.sort_by_key(|frame: &Captured| frame.time_ns);
    captured
}

/// A conversation between a client and a server: the sequence numbers of both sides, and the frames
/// sent so far.
struct Talk {
    /// The headers of the packets that the client sends, and of those that the server sends.
    sides: [Frame; 2],
    /// The next sequence number of each side: client, server.
    next: [u32; 2],
    /// The next IPv4 identification of each side: client, server.
    ids: [u16; 2],
    /// The value of the clock of TCP timestamps at the start of the capture, in milliseconds;
    /// `None` without timestamps.
    clock: Option<u32>,
    now: u64,
    sent: Vec<Captured>,
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

impl Talk {
    fn new(client: Frame, clock: Option<u32>, start: u64) -> Self {
        let sides = [client.clone(), client.reversed()];
        Talk {
            sides,
            next: [0x1a2b_3c4d, 0x6e5f_4a3b],
            ids: [0x0100, 0x7f00],
            clock,
            now: start,
            sent: Vec::new(),
        }
    }

    /// Sends a TCP segment now, and advances the sequence number by the segment's length.
    fn send(&mut self, side: usize, length: usize, flags: u16) {
        let sequence = self.next[side];
        self.next[side] = sequence.wrapping_add(length as u32 + (flags & (SYN | FIN)).count_ones());
        self.send_at(side, sequence, self.next[1 - side], length, flags, &[]);
    }

    fn send_at(
        &mut self,
        side: usize,
        sequence: u32,
        acknowledgement: u32,
        length: usize,
        flags: u16,
        options: &[u8],
    ) {
        let mut frame = self.sides[side].clone();
        let tcp = frame.tcp_mut();
        (tcp.sequence, tcp.flags) = (sequence, flags);
        tcp.acknowledgement = if flags & ACK != 0 { acknowledgement } else { 0 };
        if flags & SYN != 0 {
            // The options maximum segment size, SACK permitted and window scale.
            tcp.options = vec![2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7];
        }
        if let Some(clock) = self.clock {
            let milliseconds = (self.now / MILLISECOND) as u32;
            tcp.options.extend(timestamps(
                clock + milliseconds + side as u32 * 7_000,
                clock + milliseconds + (1 - side as u32) * 7_000,
            ));
        }
        tcp.options.extend(options);
        frame.payload = stream_bytes(sequence, length);
        self.put(side, frame);
    }

    fn datagram(&mut self, side: usize, length: usize) {
        let mut frame = self.sides[side].clone();
        frame.payload = stream_bytes(self.next[side], length);
        self.next[side] = self.next[side].wrapping_add(length as u32);
        self.put(side, frame);
    }

    fn put(&mut self, side: usize, mut frame: Frame) {
        let id = self.ids[side];
        self.ids[side] = id.wrapping_add(1);
        match &mut frame.ip {
            Ip::V4(ip) => ip.id = id,
            Ip::V6(_) => {}
        }
        if let Some(Tunnel { ip: Ip::V4(ip), .. }) = &mut frame.tunnel {
            ip.id = id ^ 0x4000;
        }
        let bytes = frame.padded_to(60).to_bytes();
        self.now += (bytes.len() as u64 * 4 / 5).min(FRAME_TIME) + 20;
        self.sent.push(Captured { time_ns: self.now, bytes });
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
    }

    fn open(&mut self) {
        self.send(CLIENT, 0, SYN);
        self.wait(800 * MICROSECOND);
        self.send(SERVER, 0, SYN | ACK);
        self.wait(20 * MICROSECOND);
        self.send(CLIENT, 0, ACK);
    }

    fn close(&mut self) {
        self.wait(MILLISECOND);
        self.send(SERVER, 0, FIN | ACK);
        self.wait(30 * MICROSECOND);
        self.send(CLIENT, 0, FIN | ACK);
        self.wait(800 * MICROSECOND);
        self.send(SERVER, 0, ACK);
    }

    /// Sends `count` full segments from `side`, with PSH on the last one, and then the other side's
    /// ACKs, one per `per_ack` segments.
    fn train(&mut self, side: usize, count: usize, length: usize, per_ack: usize) {
        let start = self.next[side];
        for index in 0..count {
            self.send(side, length, if index + 1 == count { ACK | PSH } else { ACK });
        }
        self.wait(15 * MICROSECOND);
        for index in (0..count).step_by(per_ack) {
            let seen = (index + per_ack).min(count) * length;
            self.send_at(
                1 - side,
                self.next[1 - side],
                start.wrapping_add(seen as u32),
                0,
                ACK,
                &[],
            );
        }
        self.wait(400 * MICROSECOND);
    }
}

fn hosts(frame: Frame, client: u8, server: u8, port: u16) -> Frame {
    frame.with(|frame| {
        match &mut frame.ip {
            Ip::V4(ip) => {
                (ip.source, ip.destination) = ([192, 168, 1, client], [203, 0, 113, server])
            }
            Ip::V6(ip) => (ip.source[15], ip.destination[15]) = (client, server),
        }
        match &mut frame.transport {
            Transport::Tcp(tcp) => tcp.source_port = port,
            Transport::Udp(udp) => udp.source_port = port,
            _ => {}
        }
    })
}

/// Returns a DNS query and its response.
fn names() -> Vec<Captured> {
    let mut talk = Talk::new(
        hosts(Frame::udp4(0), 10, 53, 53_123).with_udp(|udp| udp.destination_port = 53),
        None,
        0,
    );
    talk.datagram(CLIENT, 34);
    talk.wait(900 * MICROSECOND);
    talk.datagram(SERVER, 82);
    talk.sent
}

fn download() -> Vec<Captured> {
    let mut talk =
        Talk::new(hosts(Frame::tcp4(0, 0), 10, 20, 40_001), Some(100_000), 2 * MILLISECOND);
    talk.open();
    talk.send(CLIENT, 320, ACK | PSH);
    talk.wait(900 * MICROSECOND);
    talk.train(SERVER, 16, 1_448, 16);
    talk.train(SERVER, 24, 1_448, 24);
    // The fourth segment of this train is lost. Each following one causes a duplicate ACK with a
    // SACK block.
    let start = talk.next[SERVER];
    let lost = start.wrapping_add(3 * 1_448);
    for index in 0..10u32 {
        let sequence = talk.next[SERVER];
        if index == 3 {
            talk.next[SERVER] = sequence.wrapping_add(1_448);
            talk.wait(FRAME_TIME);
        } else {
            talk.send(SERVER, 1_448, ACK);
        }
    }
    for arrived in 1..=6u32 {
        let block = (lost.wrapping_add(1_448), lost.wrapping_add(1_448 * (arrived + 1)));
        talk.send_at(CLIENT, talk.next[CLIENT], lost, 0, ACK, &sack(&[block]));
    }
    talk.wait(900 * MICROSECOND);
    talk.send_at(SERVER, lost, talk.next[CLIENT], 1_448, ACK, &[]);
    talk.wait(15 * MICROSECOND);
    talk.send(CLIENT, 0, ACK);
    talk.wait(900 * MICROSECOND);
    talk.train(SERVER, 12, 1_448, 12);
    talk.send(SERVER, 777, ACK | PSH);
    talk.close();
    talk.sent
}

fn upload() -> Vec<Captured> {
    let mut talk =
        Talk::new(hosts(Frame::tcp6(0, 0), 10, 30, 40_002), Some(700_000), 5 * MILLISECOND);
    talk.open();
    for _ in 0..3 {
        talk.train(CLIENT, 16, 1_428, 8);
    }
    talk.send(CLIENT, 201, ACK | PSH);
    talk.close();
    talk.sent
}

fn tagged() -> Vec<Captured> {
    let mut talk =
        Talk::new(hosts(Frame::tcp4(0, 0), 11, 40, 40_003).tagged(100), None, 7 * MILLISECOND);
    talk.open();
    for _ in 0..3 {
        talk.train(SERVER, 12, 1_460, 2);
    }
    talk.close();
    talk.sent
}

fn quic() -> Vec<Captured> {
    let mut talk = Talk::new(hosts(Frame::udp4(0), 10, 50, 50_443), None, 6 * MILLISECOND);
    for _ in 0..4 {
        for _ in 0..10 {
            talk.datagram(SERVER, 1_252);
        }
        talk.datagram(SERVER, 611);
        talk.wait(25 * MICROSECOND);
        talk.datagram(CLIENT, 35);
        talk.wait(700 * MICROSECOND);
    }
    talk.sent
}

fn overlay() -> Vec<Captured> {
    let mut talk = Talk::new(
        hosts(Frame::tcp4(0, 0), 12, 60, 40_004).in_vxlan4(),
        Some(900_000),
        9 * MILLISECOND,
    );
    talk.open();
    for _ in 0..2 {
        talk.train(SERVER, 15, 1_398, 15);
    }
    talk.close();
    talk.sent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{self, Expect};

    #[test]
    fn about_300_right_frames_in_order() {
        let frames = demo();
        assert!((280..=340).contains(&frames.len()), "{}", frames.len());
        assert!(frames.is_sorted_by_key(|frame| frame.time_ns));
        let expect = Expect { trailing: true, ..Expect::default() };
        let mut padded_acks = 0;
        let mut repeated = 0;
        let mut seen = std::collections::HashSet::new();
        for (index, frame) in frames.iter().enumerate() {
            let checked = check::frame(&frame.bytes, &expect)
                .unwrap_or_else(|problem| panic!("frame {index}: {problem}"));
            assert!(frame.bytes.len() >= 60 && frame.bytes.len() <= 1_600);
            if let Some(fields) = check::tcp_fields(&frame.bytes, false) {
                padded_acks += usize::from(fields.payload == 0 && checked.trailing > 0);
                let behind = !seen.insert((
                    check::flow_key(&frame.bytes, false),
                    fields.sequence,
                    fields.payload,
                ));
                repeated += usize::from(behind && fields.payload > 0);
            }
        }
        assert!(padded_acks >= 15, "{padded_acks}");
        // The lost segment never reached the port, so no byte occurs twice.
        assert_eq!(repeated, 0);
        assert_eq!(frames, demo());
    }
}
