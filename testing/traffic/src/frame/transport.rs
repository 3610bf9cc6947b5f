//! Transport headers.

use super::{Checksum, Ip};
use crate::checksum;

/// TCP flag FIN, the lowest bit of [`Tcp::flags`].
pub const FIN: u16 = 0x001;
/// TCP flag SYN.
pub const SYN: u16 = 0x002;
/// TCP flag RST.
pub const RST: u16 = 0x004;
/// TCP flag PSH.
pub const PSH: u16 = 0x008;
/// TCP flag ACK.
pub const ACK: u16 = 0x010;
/// TCP flag URG.
pub const URG: u16 = 0x020;
/// TCP flag ECE.
pub const ECE: u16 = 0x040;
/// TCP flag CWR.
pub const CWR: u16 = 0x080;
/// TCP flag AE, formerly NS (RFC 9768).
pub const AE: u16 = 0x100;
/// The three reserved bits of [`Tcp::flags`].
pub const RESERVED: u16 = 0xe00;

/// The header behind the innermost IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp(Tcp),
    /// UDP.
    Udp(Udp),
    /// DCCP.
    Dccp(Dccp),
    /// SCTP; the payload contains the chunks.
    Sctp(Sctp),
    /// ICMP or ICMPv6, depending on the IP header.
    Icmp(Icmp),
    /// No header: the payload is the whole content of the IP packet, with this protocol number,
    /// such as the content of a fragment.
    Raw(u8),
}

/// A TCP header (RFC 9293).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// The 12 bits after the data offset: [`FIN`] to [`RESERVED`].
    pub flags: u16,
    /// Window, unscaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options as raw bytes, padded with zeros to a multiple of 4 and at most 40; see
    /// [`timestamps`] and [`sack`].
    pub options: Vec<u8>,
    /// Data offset in words of 4 bytes; the correct one if `None`.
    pub data_offset: Option<u8>,
    /// How the checksum is written.
    pub checksum: Checksum,
}

impl Default for Tcp {
    fn default() -> Self {
        Tcp {
            source_port: 40_000,
            destination_port: 443,
            sequence: 1,
            acknowledgement: 1,
            flags: ACK,
            window: 501,
            urgent: 0,
            options: Vec::new(),
            data_offset: None,
            checksum: Checksum::Right,
        }
    }
}

/// Returns the options NOP, NOP and timestamps (RFC 7323, appendix A): 12 bytes.
pub fn timestamps(value: u32, echo_reply: u32) -> Vec<u8> {
    let mut options = vec![1, 1, 8, 10];
    options.extend(value.to_be_bytes());
    options.extend(echo_reply.to_be_bytes());
    options
}

/// Returns the options NOP, NOP and selective acknowledgement (RFC 2018): 4 bytes, and 8 per block.
/// A block is a left and a right edge.
pub fn sack(blocks: &[(u32, u32)]) -> Vec<u8> {
    let mut options = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
    for (left, right) in blocks {
        options.extend(left.to_be_bytes());
        options.extend(right.to_be_bytes());
    }
    options
}

/// A UDP header (RFC 768).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Length of header and payload in bytes. If `None`, the correct one, or 0 if that exceeds
    /// 65,535.
    pub length: Option<u16>,
    /// How the checksum is written.
    pub checksum: Checksum,
}

impl Default for Udp {
    fn default() -> Self {
        Udp { source_port: 40_000, destination_port: 443, length: None, checksum: Checksum::Right }
    }
}

/// A DCCP header (RFC 4340, section 5.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dccp {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Packet type, 4 bits: [`Dccp::DATA`], [`Dccp::DATA_ACK`], ...
    pub kind: u8,
    /// Whether sequence numbers have 48 bits (X = 1) instead of 24.
    pub extended: bool,
    /// Sequence number; the low 24 or 48 bits are sent.
    pub sequence: u64,
    /// Acknowledgement number, if the packet carries one.
    pub acknowledgement: Option<u64>,
    /// CCVal, 4 bits.
    pub ccval: u8,
    /// Checksum coverage, 4 bits: 0 covers all data, n covers the header and `(n - 1) * 4` bytes of
    /// data.
    pub coverage: u8,
    /// The fields between the basic header and the data: service or reset code, and options; padded
    /// with zeros to a multiple of 4 bytes.
    pub options: Vec<u8>,
    /// Data offset in words of 4 bytes; the correct one if `None`.
    pub data_offset: Option<u8>,
    /// How the checksum is written.
    pub checksum: Checksum,
}

impl Default for Dccp {
    fn default() -> Self {
        Dccp {
            source_port: 40_000,
            destination_port: 5_001,
            kind: Dccp::DATA,
            extended: true,
            sequence: 1,
            acknowledgement: None,
            ccval: 0,
            coverage: 0,
            options: Vec::new(),
            data_offset: None,
            checksum: Checksum::Right,
        }
    }
}

impl Dccp {
    /// Packet type DCCP-Request.
    pub const REQUEST: u8 = 0;
    /// Packet type DCCP-Response.
    pub const RESPONSE: u8 = 1;
    /// Packet type DCCP-Data.
    pub const DATA: u8 = 2;
    /// Packet type DCCP-Ack.
    pub const ACK: u8 = 3;
    /// Packet type DCCP-DataAck.
    pub const DATA_ACK: u8 = 4;
    /// Packet type DCCP-Close.
    pub const CLOSE: u8 = 6;
    /// Packet type DCCP-Reset.
    pub const RESET: u8 = 7;
}

/// An SCTP common header (RFC 9260).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sctp {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Verification tag.
    pub verification_tag: u32,
    /// How the CRC32c is written: correct, wrong or zero; all other values mean a correct one.
    pub checksum: Checksum,
}

impl Default for Sctp {
    fn default() -> Self {
        Sctp {
            source_port: 40_000,
            destination_port: 3_868,
            verification_tag: 1,
            checksum: Checksum::Right,
        }
    }
}

/// An ICMP or ICMPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// The type of the ICMP message.
    pub kind: u8,
    /// The code of the ICMP message.
    pub code: u8,
    /// The four bytes after the checksum, big-endian.
    pub rest: u32,
    /// How the checksum is written.
    pub checksum: Checksum,
}

impl Default for Icmp {
    /// Returns an echo request for IPv4.
    fn default() -> Self {
        Icmp { kind: 8, code: 0, rest: 0x0001_0001, checksum: Checksum::Right }
    }
}

impl Udp {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.source_port.to_be_bytes());
        out.extend(self.destination_port.to_be_bytes());
        out.extend([0; 4]);
    }

    /// Writes the length and the checksum into the header that starts at `start`. Returns a partial
    /// checksum that must be written last, after the outer checksums.
    pub(super) fn finish(&self, out: &mut [u8], start: usize, ip: &Ip) -> Option<Deferred> {
        let whole = out.len() - start;
        let length = self.length.unwrap_or(u16::try_from(whole).unwrap_or(0));
        out[start + 4..start + 6].copy_from_slice(&length.to_be_bytes());
        // A zero would mean that there is no checksum (RFC 768).
        let right = |sum: u16| if sum == 0xffff { 0xffff } else { !sum };
        fill(out, start, 6, whole, self.checksum, ip, 17, right)
    }
}

/// A partial checksum that is written last, since outer checksums cover the completed packet
/// (`lco_csum` in the kernel).
pub(super) struct Deferred {
    offset: usize,
    field: u16,
}

impl Deferred {
    pub(super) fn write(self, out: &mut [u8]) {
        out[self.offset..self.offset + 2].copy_from_slice(&self.field.to_be_bytes());
    }
}

impl Transport {
    /// Returns the IP protocol number of this transport, which for ICMP depends on the version of
    /// `ip`.
    pub(super) fn number(&self, ip: &Ip) -> u8 {
        match self {
            Transport::Tcp(_) => 6,
            Transport::Udp(_) => 17,
            Transport::Dccp(_) => 33,
            Transport::Sctp(_) => 132,
            Transport::Icmp(_) => match ip {
                Ip::V4(_) => 1,
                Ip::V6(_) => 58,
            },
            Transport::Raw(number) => *number,
        }
    }

    /// Appends the header; `finish` writes the lengths and the checksum.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Transport::Tcp(tcp) => {
                let words = 5 + tcp.options.len().div_ceil(4);
                assert!(words <= 15, "TCP options of {} bytes", tcp.options.len());
                out.extend(tcp.source_port.to_be_bytes());
                out.extend(tcp.destination_port.to_be_bytes());
                out.extend(tcp.sequence.to_be_bytes());
                out.extend(tcp.acknowledgement.to_be_bytes());
                out.extend(
                    (u16::from(tcp.data_offset.unwrap_or(words as u8)) << 12 | tcp.flags & 0xfff)
                        .to_be_bytes(),
                );
                out.extend(tcp.window.to_be_bytes());
                out.extend([0, 0]);
                out.extend(tcp.urgent.to_be_bytes());
                out.extend(&tcp.options);
                out.resize(out.len() + (words * 4 - 20 - tcp.options.len()), 0);
            }
            Transport::Udp(udp) => udp.write(out),
            Transport::Dccp(dccp) => write_dccp(dccp, out),
            Transport::Sctp(sctp) => {
                out.extend(sctp.source_port.to_be_bytes());
                out.extend(sctp.destination_port.to_be_bytes());
                out.extend(sctp.verification_tag.to_be_bytes());
                out.extend([0; 4]);
            }
            Transport::Icmp(icmp) => {
                out.extend([icmp.kind, icmp.code, 0, 0]);
                out.extend(icmp.rest.to_be_bytes());
            }
            Transport::Raw(_) => {}
        }
    }

    /// Writes the length and the checksum of the header at `start`. Its payload starts at `payload`
    /// and ends at the end of `out`.
    pub(super) fn finish(
        &self,
        out: &mut [u8],
        start: usize,
        payload: usize,
        ip: &Ip,
    ) -> Option<Deferred> {
        let whole = out.len() - start;
        let number = self.number(ip);
        let inverted = |sum: u16| !sum;
        match self {
            Transport::Tcp(tcp) => fill(out, start, 16, whole, tcp.checksum, ip, number, inverted),
            Transport::Udp(udp) => udp.finish(out, start, ip),
            Transport::Dccp(dccp) => {
                let covered = match dccp.coverage & 0xf {
                    0 => whole,
                    coverage => (payload - start + (usize::from(coverage) - 1) * 4).min(whole),
                };
                fill(out, start, 6, covered, dccp.checksum, ip, number, inverted)
            }
            Transport::Sctp(sctp) => {
                let crc = checksum::crc32c(&out[start..]);
                let field = match sctp.checksum {
                    Checksum::Wrong => crc ^ 0x5555_5555,
                    Checksum::Zero => 0,
                    _ => crc,
                };
                out[start + 8..start + 12].copy_from_slice(&field.to_le_bytes());
                None
            }
            Transport::Icmp(icmp) => match ip {
                Ip::V4(_) => {
                    let right = !checksum::sum(&out[start..]);
                    let field = icmp.checksum.field(right, right, right);
                    out[start + 2..start + 4].copy_from_slice(&field.to_be_bytes());
                    None
                }
                Ip::V6(_) => fill(out, start, 2, whole, icmp.checksum, ip, number, inverted),
            },
            Transport::Raw(_) => None,
        }
    }
}

fn write_dccp(dccp: &Dccp, out: &mut Vec<u8>) {
    let acknowledgement = dccp.acknowledgement.map_or(0, |_| if dccp.extended { 8 } else { 4 });
    let length = if dccp.extended { 16 } else { 12 }
        + acknowledgement
        + dccp.options.len().next_multiple_of(4);
    let end = out.len() + length;
    out.extend(dccp.source_port.to_be_bytes());
    out.extend(dccp.destination_port.to_be_bytes());
    out.extend([
        dccp.data_offset.unwrap_or((length / 4) as u8),
        dccp.ccval << 4 | dccp.coverage & 0xf,
        0,
        0,
    ]);
    out.push((dccp.kind & 0xf) << 1 | u8::from(dccp.extended));
    let sequence = dccp.sequence.to_be_bytes();
    if dccp.extended {
        out.push(0);
        out.extend(&sequence[2..]);
    } else {
        out.extend(&sequence[5..]);
    }
    if let Some(number) = dccp.acknowledgement {
        let number = number.to_be_bytes();
        if dccp.extended {
            out.extend([0, 0]);
            out.extend(&number[2..]);
        } else {
            out.push(0);
            out.extend(&number[5..]);
        }
    }
    out.extend(&dccp.options);
    out.resize(end, 0);
}

/// Writes the checksum at `start + offset`, over the pseudo-header and `covered` bytes from
/// `start`.
#[expect(clippy::too_many_arguments, reason = "a checksum depends on all of them")]
fn fill(
    out: &mut [u8],
    start: usize,
    offset: usize,
    covered: usize,
    mode: Checksum,
    ip: &Ip,
    number: u8,
    right: impl Fn(u16) -> u16,
) -> Option<Deferred> {
    let length = (out.len() - start) as u32;
    let pseudo = ip.pseudo(number, length);
    let right = right(checksum::add(pseudo, checksum::sum(&out[start..start + covered])));
    let field = mode.field(right, pseudo, ip.pseudo(number, 0));
    let offset = start + offset;
    let partial = matches!(mode, Checksum::Partial | Checksum::PartialWithoutLength);
    out[offset..offset + 2].copy_from_slice(&(if partial { right } else { field }).to_be_bytes());
    partial.then_some(Deferred { offset, field })
}
