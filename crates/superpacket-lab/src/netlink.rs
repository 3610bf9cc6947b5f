//! One rtnetlink request and its answers (rtnetlink(7)), on a socket of the calling thread's
//! namespace.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Offset of the attributes in the body of an error: after the error's request header
/// (NETLINK_CAP_ACK leaves out its payload).
const ERROR_ATTRIBUTES: usize = 16;
/// `NLMSGERR_ATTR_MSG`: the kernel's own words on the cause.
const ERROR_ATTRIBUTE_TEXT: u16 = 1;

/// Sends `message` and gives what the kernel answered, up to its acknowledgement.
///
/// # Errors
///
/// The kernel's refusal, with its own words where it gave some.
pub(crate) fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    let mut header = NetlinkHeader::default();
    header.flags = flags | NLM_F_REQUEST | NLM_F_ACK;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;

    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        while !rest.is_empty() {
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(|error| io::Error::other(error.to_string()))?;
            // Messages in a datagram are aligned to 4 bytes (NLMSG_ALIGN).
            let length = (answer.header.length as usize).next_multiple_of(4).clamp(1, rest.len());
            rest = &rest[length..];
            match answer.payload {
                NetlinkPayload::InnerMessage(inner) => answers.push(inner),
                NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::Error(error) => match error.code {
                    None => return Ok(answers),
                    Some(_) => return Err(refusal(error.to_io(), &error.header)),
                },
                _ => {}
            }
        }
    }
}

/// The kernel's error number, with its text from the extended acknowledgement.
fn refusal(error: io::Error, body: &[u8]) -> io::Error {
    let mut rest = body.get(ERROR_ATTRIBUTES..).unwrap_or_default();
    while let [a, b, c, d, ..] = *rest {
        let (length, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        let Some(value) = rest.get(4..length) else { break };
        if kind == ERROR_ATTRIBUTE_TEXT {
            let text = String::from_utf8_lossy(value);
            return io::Error::new(error.kind(), format!("{} ({error})", text.trim_end_matches('\0')));
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    error
}
