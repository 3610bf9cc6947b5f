//! What ports, bridge and lab ask Linux for besides packets: interfaces by netlink
//! (`rtnetlink(7)`), their devices' features by `ioctl`, as `ethtool(8)` does, packet sockets and
//! socket options, TAP and TUN devices, namespaces, and the CPUs that threads run on; and the C
//! library's allocator to give memory back.
//!
//! It stands here once, so that one place knows these structures, and the unsafe code that they
//! need. A socket belongs to the network namespace of the thread that opened it, and may be used
//! from any other.

pub(crate) mod bpf;
mod cpu;
mod ethtool;
mod memory;
mod message;
pub(crate) mod namespace;
mod netlink;
mod option;
mod packet_socket;
mod tun;

pub use cpu::{allowed_cpus, pin_thread};
pub use ethtool::{Channels, Ethtool, Feature, Switch};
pub use memory::{give_back_freed_memory, give_back_large_blocks};
pub use message::{Burst, Received, receive_message};
pub(crate) use message::{MessageMemory, Messages};
pub use namespace::{
    NamespaceError, enter_new_network_namespace, enter_new_user_namespace,
    start_in_network_namespace, try_new_user_namespace,
};
pub use netlink::{LinkEvents, RouteSocket};
pub(crate) use option::{
    PACKET_COPY_THRESH, PACKET_FANOUT, PACKET_IGNORE_OUTGOING, PACKET_RX_RING, PACKET_RX_RING_V3,
    PACKET_VERSION, PACKET_VNET_HDR, SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_DETACH_FILTER,
    SO_PREFER_BUSY_POLL, XDP_MAX_TX_SKB_BUDGET, attach_filter, namespace_cookie,
};
pub use option::{
    path_mtu, set_dont_fragment, set_tcp_max_segment, set_udp_gro, set_udp_segment, tcp_info,
};
pub use packet_socket::{Frames, PacketSocket};
pub use tun::{
    TUN_F_UDP_TUNNEL_GSO, TUN_F_UDP_TUNNEL_GSO_CSUM, TunIdentity, TunKind, TunQueue, open_tun,
};
