//! The structure `virtio_net_hdr`, with its lengths, byte orders and fields.

use super::VirtioError;

/// Bits of the field `flags` of a `virtio_net_hdr`.
pub mod flags {
    /// The checksum at `csum_start + csum_offset` must be completed.
    pub const NEEDS_CSUM: u8 = 1;
    /// The checksum has been verified.
    pub const DATA_VALID: u8 = 2;
    /// `csum_start` and `csum_offset` instead hold the number of coalesced segments and of
    /// duplicate ACKs.
    pub const RSC_INFO: u8 = 4;
    /// The outer UDP header of a tunnel has a checksum.
    pub const UDP_TUNNEL_CSUM: u8 = 8;
}

/// Values and bits of the field `gso_type` of a `virtio_net_hdr`.
pub mod gso_type {
    /// The packet is not a super-packet.
    pub const NONE: u8 = 0;
    /// TCP over IPv4.
    pub const TCPV4: u8 = 1;
    /// UDP, to be cut into IP fragments (UFO).
    pub const UDP: u8 = 3;
    /// TCP over IPv6.
    pub const TCPV6: u8 = 4;
    /// UDP, to be cut into datagrams (USO).
    pub const UDP_L4: u8 = 5;
    /// Bit: in a UDP tunnel over IPv4.
    pub const UDP_TUNNEL_IPV4: u8 = 0x20;
    /// Bit: in a UDP tunnel over IPv6.
    pub const UDP_TUNNEL_IPV6: u8 = 0x40;
    /// Both tunnel bits.
    pub const UDP_TUNNEL: u8 = UDP_TUNNEL_IPV4 | UDP_TUNNEL_IPV6;
    /// Bit: the TCP header has CWR set.
    pub const ECN: u8 = 0x80;
}

/// Byte order of a header's fields up to `num_buffers`; later fields are always little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Virtio 1.0 and later; TUN after `TUNSETVNETLE`.
    #[default]
    Little,
    /// TUN after `TUNSETVNETBE`; legacy devices of big-endian guests.
    Big,
}

impl ByteOrder {
    /// Byte order of this machine: packet sockets, TUN by default, legacy devices.
    pub const NATIVE: ByteOrder =
        if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };

    const fn read(self, bytes: [u8; 2]) -> u16 {
        match self {
            ByteOrder::Little => u16::from_le_bytes(bytes),
            ByteOrder::Big => u16::from_be_bytes(bytes),
        }
    }

    const fn bytes(self, value: u16) -> [u8; 2] {
        match self {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        }
    }
}

/// The four formats of a `virtio_net_hdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 10 bytes: `virtio_net_hdr`.
    Plain,
    /// 12 bytes: `virtio_net_hdr_v1`, with `num_buffers`.
    Buffers,
    /// 20 bytes: `virtio_net_hdr_v1_hash`.
    Hash,
    /// 24 bytes: `virtio_net_hdr_v1_hash_tunnel`.
    Tunnel,
}

impl Format {
    /// Length of the longest format in bytes.
    pub const LONGEST: usize = 24;

    /// Returns the format of this length, as `TUNSETVNETHDRSZ` takes it; `None` if there is none.
    pub const fn of_length(bytes: usize) -> Option<Format> {
        match bytes {
            10 => Some(Format::Plain),
            12 => Some(Format::Buffers),
            20 => Some(Format::Hash),
            24 => Some(Format::Tunnel),
            _ => None,
        }
    }

    /// Returns the length of a header of this format in bytes.
    pub const fn length(self) -> usize {
        match self {
            Format::Plain => 10,
            Format::Buffers => 12,
            Format::Hash => 20,
            Format::Tunnel => 24,
        }
    }
}

/// The fields of a `virtio_net_hdr`, in host byte order. Fields that the format lacks are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// Bits of [`flags`].
    pub flags: u8,
    /// Value and bits of [`gso_type`].
    pub gso_type: u8,
    /// Length of all headers in bytes; a hint to the receiver, which this crate does not read.
    pub hdr_len: u16,
    /// Bytes of payload in each segment.
    pub gso_size: u16,
    /// Offset at which summing starts, in bytes from the start of the packet.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`, in bytes.
    pub csum_offset: u16,
    /// Number of receive buffers that the packet occupies.
    pub num_buffers: u16,
    /// The packet's flow hash.
    pub hash_value: u32,
    /// Number of the set of fields that the hash covers; 0 if there is no hash.
    pub hash_report: u16,
    /// Offset of a tunnel's outer UDP header, in bytes from the start of the packet.
    pub outer_th_offset: u16,
    /// Offset of a tunnel's inner IP header, in bytes from the start of the packet.
    pub inner_nh_offset: u16,
}

impl Header {
    /// Reads a header from the start of `bytes`.
    ///
    /// # Errors
    /// [`VirtioError::Short`].
    pub fn read(bytes: &[u8], format: Format, order: ByteOrder) -> Result<Header, VirtioError> {
        let needed = format.length();
        let mut whole = [0; Format::LONGEST];
        match (bytes.get(..needed), whole.get_mut(..needed)) {
            (Some(bytes), Some(head)) => head.copy_from_slice(bytes),
            _ => return Err(VirtioError::Short { needed, got: bytes.len() }),
        }
        let field = |at: usize| order.read([whole[at], whole[at + 1]]);
        let little = |at: usize| u16::from_le_bytes([whole[at], whole[at + 1]]);
        Ok(Header {
            flags: whole[0],
            gso_type: whole[1],
            hdr_len: field(2),
            gso_size: field(4),
            csum_start: field(6),
            csum_offset: field(8),
            num_buffers: field(10),
            hash_value: u32::from(little(14)) << 16 | u32::from(little(12)),
            hash_report: little(16),
            outer_th_offset: little(20),
            inner_nh_offset: little(22),
        })
    }

    /// Writes the header to the start of `bytes`, without the fields that the format lacks, and
    /// returns its length.
    ///
    /// # Errors
    /// [`VirtioError::Short`]; nothing has been written then.
    pub fn write(
        &self,
        bytes: &mut [u8],
        format: Format,
        order: ByteOrder,
    ) -> Result<usize, VirtioError> {
        let needed = format.length();
        let got = bytes.len();
        // Written as words, as it will be copied: a copy would stall on single bytes.
        let field = |value: u16| u64::from(u16::from_le_bytes(order.bytes(value)));
        let words = [
            u64::from(self.flags)
                | u64::from(self.gso_type) << 8
                | field(self.hdr_len) << 16
                | field(self.gso_size) << 32
                | field(self.csum_start) << 48,
            field(self.csum_offset)
                | field(self.num_buffers) << 16
                | u64::from(self.hash_value) << 32,
            u64::from(self.hash_report)
                | u64::from(self.outer_th_offset) << 32
                | u64::from(self.inner_nh_offset) << 48,
        ];
        let [first, second, third] = words.map(u64::to_le_bytes);
        let place = bytes.get_mut(..needed).ok_or(VirtioError::Short { needed, got })?;
        // The lengths are constant here, so no function is called.
        if let Some((eight, rest)) = place.split_first_chunk_mut() {
            *eight = first;
            match format {
                Format::Plain => rest.copy_from_slice(&second[..2]),
                Format::Buffers => rest.copy_from_slice(&second[..4]),
                Format::Hash | Format::Tunnel => {
                    if let Some((eight, rest)) = rest.split_first_chunk_mut() {
                        *eight = second;
                        rest.copy_from_slice(&third[..rest.len()]);
                    }
                }
            }
        }
        Ok(needed)
    }
}
