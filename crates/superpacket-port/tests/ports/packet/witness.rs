//! A packet socket that shows the kernel's metadata of a frame (virtio header and auxiliary data),
//! independently of the port's code.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A packet socket that shows a frame's metadata.
pub struct Witness(OwnedFd);

/// A received frame with the kernel's metadata.
#[derive(Debug)]
pub struct Seen {
    pub bytes: Vec<u8>,
    /// The fields `flags` and `gso_type` of the virtio header.
    pub kind: (u8, u8),
    /// The fields `gso_size`, `csum_start` and `csum_offset` of the virtio header.
    pub numbers: (u16, u16, u16),
    /// The VLAN tag that was removed from the frame: protocol and control word.
    pub tag: Option<(u16, u16)>,
}

impl Witness {
    /// Opens a socket on an interface of this thread's namespace.
    pub fn open(interface: &str) -> Self {
        // SAFETY: integers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "socket: {}", io::Error::last_os_error());
        // SAFETY: the descriptor is new.
        let witness = Witness(unsafe { OwnedFd::from_raw_fd(fd) });
        witness.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1);
        witness.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1);
        witness.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1);
        witness.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &libc::timeval { tv_sec: 5, tv_usec: 0 });
        let name = std::ffi::CString::new(interface).expect("no zero");
        // SAFETY: all zeros are an address; the name ends with a zero.
        let (mut address, index) = unsafe {
            (std::mem::zeroed::<libc::sockaddr_ll>(), libc::if_nametoindex(name.as_ptr()))
        };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the address lives through the call and has this length.
        let bound =
            unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) };
        assert_eq!(bound, 0, "bind: {}", io::Error::last_os_error());
        witness
    }

    fn set<T>(&self, level: i32, name: i32, value: &T) {
        // SAFETY: the value lives through the call and has this length.
        let set = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                level,
                name,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as u32,
            )
        };
        assert_eq!(set, 0, "setsockopt {name}: {}", io::Error::last_os_error());
    }

    /// Sends a frame behind a virtio header of 10 bytes.
    pub fn send(&self, header: [u8; 10], frame: &[u8]) {
        let bytes = [&header, frame].concat();
        assert_eq!(
            rustix::net::send(&self.0, &bytes, rustix::net::SendFlags::empty()),
            Ok(bytes.len())
        );
    }

    /// Returns the next frame; waits 5 seconds at most.
    pub fn receive(&self) -> Seen {
        let mut bytes = vec![0; 300 << 10];
        let mut control = [0u64; 16];
        let mut iovec = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all zeros are a message header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut iovec, 1);
        (message.msg_control, message.msg_controllen) =
            (control.as_mut_ptr().cast(), size_of_val(&control));
        // SAFETY: the message points at memory that lives through the call.
        let length = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0) };
        assert!(length >= 10, "no frame within 5 seconds: {}", io::Error::last_os_error());
        // SAFETY: the kernel has filled in the control data.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        assert!(!first.is_null(), "PACKET_AUXDATA gives some");
        // SAFETY: the first and only control message is this structure.
        let auxiliary =
            unsafe { libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned() };
        let number = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let tag = (auxiliary.tp_status & libc::TP_STATUS_VLAN_VALID != 0)
            .then_some((auxiliary.tp_vlan_tpid, auxiliary.tp_vlan_tci));
        let (kind, numbers) = ((bytes[0], bytes[1]), (number(4), number(6), number(8)));
        Seen { bytes: bytes[10..length as usize].to_vec(), kind, numbers, tag }
    }
}

/// Sets an offload of an interface, by a command of `linux/ethtool.h` such as `ETHTOOL_STXCSUM`.
pub fn set_offload(interface: &str, command: u32, on: bool) {
    let mut value = [command, u32::from(on)];
    // SAFETY: all zeros are a request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    // SAFETY: integers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "socket: {}", io::Error::last_os_error());
    // SAFETY: the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the request points at the value, and both live through the call.
    let set = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    assert_eq!(set, 0, "SIOCETHTOOL {command:#x}: {}", io::Error::last_os_error());
}

/// The command for checksumming of sent packets (`tx-checksumming`).
pub const ETHTOOL_STXCSUM: u32 = 0x17;
/// The command for TCP segmentation (`tcp-segmentation-offload`).
pub const ETHTOOL_STSO: u32 = 0x1f;
