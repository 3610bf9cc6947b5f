//! Requests to `rtnetlink(7)` and their answers.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    Emitable, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
    ParseableParametrized,
};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkHeader, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::RecvFlags;

/// Offset of the attributes in the body of an error message: after the header of the request.
/// `NETLINK_CAP_ACK` leaves out the request's payload.
const ERROR_ATTRIBUTES: usize = 16;

/// `NLMSGERR_ATTR_MSG`: the kernel's explanation of the error.
const ERROR_ATTRIBUTE_TEXT: u16 = 1;

/// A netlink route socket. It belongs to the network namespace in which it was opened, whichever
/// thread uses it.
#[derive(Debug)]
pub struct RouteSocket {
    socket: Socket,
    sequence: u32,
}

impl RouteSocket {
    /// Opens a socket in this thread's network namespace.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        Ok(RouteSocket { socket, sequence: 0 })
    }

    /// Sends `message` and returns the kernel's answers up to its acknowledgement. `flags` are
    /// flags of `nlmsghdr`, added to `NLM_F_REQUEST` and `NLM_F_ACK`.
    ///
    /// # Errors
    /// The kernel's error, with its explanation if it gave one, or an answer that cannot be parsed.
    pub fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut answers = Vec::new();
        for answer in self.exchange(message, flags)? {
            match NetlinkMessage::deserialize(&answer).map_err(unreadable)?.payload {
                NetlinkPayload::InnerMessage(inner) => answers.push(inner),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(answers)
    }

    /// Returns the interface `name`, or `None` if it does not exist. Attributes that cannot be
    /// parsed are left out, for example those of a newer kernel.
    ///
    /// # Errors
    /// The system call's error.
    pub fn link(&mut self, name: &str) -> io::Result<Option<LinkMessage>> {
        // The kernel would treat a longer name as a malformed message; no interface has one.
        if name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Ok(None);
        }
        // No index: the name decides, so that a new interface with the same name is found.
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        match self.exchange(RouteNetlinkMessage::GetLink(message), 0) {
            Ok(answers) => answers.first().map(|answer| parse_link(answer)).transpose(),
            Err(RequestError { error, .. }) if error.raw_os_error() == Some(libc::ENODEV) => {
                Ok(None)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Returns the name of the bridge, bond or other interface that the interface `name` belongs to
    /// (`IFLA_MASTER`); `None` if it belongs to none, or does not exist.
    ///
    /// # Errors
    /// The system call's error.
    pub fn master(&mut self, name: &str) -> io::Result<Option<String>> {
        let Some(link) = self.link(name)? else { return Ok(None) };
        let master = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Controller(index) if *index != 0 => Some(*index),
            _ => None,
        });
        let Some(index) = master else { return Ok(None) };
        let mut message = LinkMessage::default();
        message.header.index = index;
        let answers = self.exchange(RouteNetlinkMessage::GetLink(message), 0)?;
        let master = answers.first().map(|answer| parse_link(answer)).transpose()?;
        Ok(master.and_then(|master| {
            master.attributes.into_iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            })
        }))
    }

    /// Returns the IP addresses of the interface `name`; none if it does not exist. Link-local
    /// addresses are left out, since every interface has one.
    ///
    /// # Errors
    /// The system call's error, or an answer that cannot be parsed.
    pub fn addresses(&mut self, name: &str) -> io::Result<Vec<IpAddr>> {
        let Some(link) = self.link(name)? else { return Ok(Vec::new()) };
        let index = link.header.index;
        let answers =
            self.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        Ok(answers.into_iter().filter_map(|answer| address(&answer, index)).collect())
    }

    /// Sends `message` and returns the answers, including their headers, up to the acknowledgement.
    fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<Vec<u8>>, RequestError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags | NLM_F_REQUEST | NLM_F_ACK;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        retry_on_interrupt(|| self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0))?;
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = retry_on_interrupt(|| self.socket.recv_from_full())?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let message = NetlinkBuffer::new_checked(rest).map_err(unreadable)?;
                let length = message.length() as usize;
                // Answers to an earlier, abandoned request may precede those to this one.
                if message.sequence_number() == self.sequence {
                    match message.message_type() {
                        NLMSG_DONE => return Ok(answers),
                        NLMSG_ERROR => {
                            return request_error(&rest[..length]).map_or(Ok(answers), Err);
                        }
                        _ => answers.push(rest[..length].to_vec()),
                    }
                }
                // Messages in a datagram are aligned to 4 bytes (NLMSG_ALIGN).
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

/// Notifications about interfaces (`RTNLGRP_LINK`). The socket becomes readable when an interface
/// appears, disappears or changes in its network namespace, or in a namespace that has an ID there
/// (NSID).
///
/// A namespace becomes known in another, by a number (`ip netns list-id`), when an interface is
/// moved from it to the other. The socket keeps none of them alive.
#[derive(Debug)]
pub struct LinkEvents {
    socket: Socket,
    sees_other_namespaces: bool,
}

impl LinkEvents {
    /// Starts listening to this thread's network namespace and, if permitted, to the namespaces
    /// that have an ID there.
    ///
    /// # Errors
    /// The system call's error.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        let sees_other_namespaces = socket.set_listen_all_namespaces(true).is_ok();
        socket.add_membership(libc::RTNLGRP_LINK)?;
        Ok(LinkEvents { socket, sees_other_namespaces })
    }

    /// Returns whether the socket also reports interfaces that were moved from its network
    /// namespace to another one. This needs `CAP_NET_BROADCAST` in the user namespace that owns
    /// that other namespace (`NETLINK_LISTEN_ALL_NSID`, Linux 4.2).
    pub const fn hears_other_namespaces(&self) -> bool {
        self.sees_other_namespaces
    }

    /// Discards the pending notifications without blocking. Returns whether there were any, which
    /// also holds if they were so many that the socket's buffer overflowed.
    pub fn take(&self) -> io::Result<bool> {
        // The content is not read: the caller asks for the interface's present state.
        let mut found = false;
        loop {
            match retry_on_interrupt(|| {
                Ok(rustix::net::recv(&self.socket, &mut [0_u8; 64][..], RecvFlags::DONTWAIT)?)
            }) {
                Ok(_) => found = true,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => found = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(found),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The kernel's refusal of a request, or an error of the socket.
struct RequestError {
    error: io::Error,
    /// The kernel's explanation.
    text: Option<String>,
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> Self {
        RequestError { error, text: None }
    }
}

impl From<RequestError> for io::Error {
    fn from(RequestError { error, text }: RequestError) -> Self {
        match text {
            Some(text) => io::Error::new(error.kind(), format!("{text} ({error})")),
            None => error,
        }
    }
}

/// Parses an `RTM_NEWLINK` message, skipping attributes that cannot be parsed.
fn parse_link(message: &[u8]) -> io::Result<LinkMessage> {
    let message = NetlinkBuffer::new_checked(message).map_err(unreadable)?;
    let mut link = LinkMessage::default();
    link.header = LinkHeader::parse(message.payload()).map_err(unreadable)?;
    let attributes = message.payload().get(link.header.buffer_len()..).unwrap_or_default();
    let read =
        |attribute| LinkAttribute::parse_with_param(&attribute, link.header.interface_family).ok();
    link.attributes =
        NlasIterator::new(attributes).map_while(Result::ok).filter_map(read).collect();
    Ok(link)
}

/// Returns the address in an `RTM_NEWADDR` message about this interface, unless it is link-local.
fn address(message: &RouteNetlinkMessage, interface: u32) -> Option<IpAddr> {
    let RouteNetlinkMessage::NewAddress(message) = message else { return None };
    if message.header.index != interface || message.header.scope == AddressScope::Link {
        return None;
    }
    let find =
        |own: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(own);
    // On a point-to-point link, `Address` is the peer's address.
    let local =
        find(
            |attribute| {
                if let AddressAttribute::Local(address) = attribute { Some(*address) } else { None }
            },
        );
    local.or_else(|| {
        find(
            |attribute| {
                if let AddressAttribute::Address(address) = attribute {
                    Some(*address)
                } else {
                    None
                }
            },
        )
    })
}

/// Parses an `NLMSG_ERROR` message; returns `None` for an acknowledgement.
fn request_error(message: &[u8]) -> Option<RequestError> {
    let NetlinkPayload::Error(error) =
        NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).ok()?.payload
    else {
        return None;
    };
    error.code?;
    let mut attributes =
        NlasIterator::new(error.header.get(ERROR_ATTRIBUTES..).unwrap_or_default())
            .map_while(Result::ok);
    let text = attributes.find(|attribute| attribute.kind() == ERROR_ATTRIBUTE_TEXT);
    let text =
        text.map(|text| String::from_utf8_lossy(text.value()).trim_end_matches('\0').to_owned());
    Some(RequestError { error: error.to_io(), text })
}

fn unreadable(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a netlink message cannot be read: {error}"))
}

/// Calls a function again while a signal interrupts it.
fn retry_on_interrupt<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLM_F_CREATE;
    use netlink_packet_route::AddressFamily;
    use netlink_packet_route::link::{LinkFlags, LinkLayerType, LinkXdp};

    use super::*;
    use crate::system::namespace::in_network_namespace;

    #[test]
    fn the_loopback_interface_is_the_first() {
        let mut socket = RouteSocket::open().expect("any thread may");
        let link = socket.link("lo").expect("asked").expect("every namespace has one");
        assert_eq!((link.header.index, link.header.link_layer_type), (1, LinkLayerType::Loopback));
        assert!(link.attributes.contains(&LinkAttribute::IfName("lo".to_owned())), "{link:?}");
    }

    #[test]
    fn addresses_are_those_of_the_interface() {
        in_network_namespace(|| {
            let mut socket = RouteSocket::open().expect("any thread may");
            assert_eq!(socket.addresses("lo").expect("asked"), Vec::<IpAddr>::new());
            let add = |address: IpAddr, prefix: u8, scope| {
                let mut message = AddressMessage::default();
                message.header.index = 1;
                message.header.family =
                    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
                (message.header.prefix_len, message.header.scope) = (prefix, scope);
                message.attributes =
                    vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
                RouteNetlinkMessage::NewAddress(message)
            };
            let addresses = [
                IpAddr::from([192, 0, 2, 1]),
                IpAddr::from([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            ];
            for address in addresses {
                let message =
                    add(address, if address.is_ipv4() { 24 } else { 64 }, AddressScope::Universe);
                socket.request(message, NLM_F_CREATE).expect("ours");
            }
            socket
                .request(add(IpAddr::from([169, 254, 7, 7]), 16, AddressScope::Link), NLM_F_CREATE)
                .expect("ours");
            assert_eq!(socket.addresses("lo").expect("asked"), addresses);
            assert_eq!(socket.addresses("none0").expect("asked"), Vec::<IpAddr>::new());
        });
    }

    #[test]
    fn a_change_of_an_interface_is_told_once() {
        in_network_namespace(|| {
            let events = LinkEvents::open().expect("any thread may");
            assert!(!events.take().expect("open"), "nothing has happened");
            let mut message = LinkMessage::default();
            (message.header.index, message.header.change_mask, message.header.flags) =
                (1, LinkFlags::Up, LinkFlags::Up);
            RouteSocket::open()
                .and_then(|mut socket| socket.request(RouteNetlinkMessage::SetLink(message), 0))
                .expect("ours");
            // The kernel sends the notification before it answers.
            assert!(events.take().expect("open"));
            assert!(!events.take().expect("open"), "it has been taken");
        });
    }

    #[test]
    fn what_is_not_there_is_none_and_what_is_refused_has_the_kernels_words() {
        let mut socket = RouteSocket::open().expect("any thread may");
        for name in ["none0", "a-name-that-is-too-long-for-one", "", "a\0b"] {
            let found = socket.link(name);
            assert!(matches!(found, Ok(None)), "{name:?}: {found:?}");
        }
        let mut message = LinkMessage::default();
        message.header.index = 1;
        message.attributes.push(LinkAttribute::Mtu(u32::MAX));
        let error = socket
            .request(RouteNetlinkMessage::SetLink(message), 0)
            .expect_err("not even root may");
        assert!(
            ["Invalid argument", "not permitted", "mtu"]
                .iter()
                .any(|words| error.to_string().contains(words)),
            "{error}"
        );
        assert!(socket.link("lo").expect("it goes on").is_some());
    }

    #[test]
    fn damaged_messages_are_read_as_far_as_they_go() {
        let mut link = LinkMessage::default();
        link.header.index = 7;
        link.header.flags = LinkFlags::Up;
        link.attributes = vec![
            LinkAttribute::IfName("veth0".to_owned()),
            LinkAttribute::Mtu(9000),
            LinkAttribute::Xdp(vec![LinkXdp::ProgId(91)]),
            LinkAttribute::GsoMaxSize(185_000),
        ];
        let mut packet = NetlinkMessage::new(
            NetlinkHeader::default(),
            NetlinkPayload::from(RouteNetlinkMessage::NewLink(link.clone())),
        );
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        assert_eq!(parse_link(&bytes).expect("whole"), link);
        for length in 0..bytes.len() {
            // An attribute whose length exceeds the message, and a correct one.
            let _ = parse_link(&bytes[..length]);
            let mut cut = bytes[..length].to_vec();
            if length >= 4 {
                cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
            }
            if let Ok(read) = parse_link(&cut) {
                assert!(link.attributes.starts_with(&read.attributes), "{length}: {read:?}");
            }
        }
        // An MTU attribute of three bytes is skipped; the attributes after it are read.
        let mtu =
            bytes.windows(4).position(|window| window == 9000_u32.to_ne_bytes()).expect("written");
        bytes[mtu - 4..mtu - 2].copy_from_slice(&7_u16.to_ne_bytes());
        let read = parse_link(&bytes).expect("the rest is whole");
        assert_eq!(
            (&read.attributes[0], &read.attributes[1..]),
            (&link.attributes[0], &link.attributes[2..])
        );
    }
}
