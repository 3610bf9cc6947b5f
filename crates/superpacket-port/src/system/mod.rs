//! Linux system interfaces used by ports, bridge and lab: netlink (`rtnetlink(7)`), device features
//! (`ethtool(8)`), packet sockets, socket options, TAP and TUN devices, namespaces, CPU affinity,
//! threads that end with their owner, and the C library's allocator.
//!
//! These structures and their unsafe code are kept in this one module. A socket belongs to the
//! network namespace of the thread that opened it, and can be used from any other.

pub(crate) mod bpf;
mod cpu;
mod ethtool;
mod memory;
mod message;
pub(crate) mod namespace;
mod netlink;
mod option;
mod packet_socket;
mod stoppable;
mod tun;

pub use cpu::{allowed_cpus, pin_thread};
pub use ethtool::{Channels, Ethtool, Feature, FeatureSwitch};
pub use memory::{give_back_freed_memory, give_back_large_blocks};
pub use message::{Burst, ReceivedMessage, receive_message};
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
pub use stoppable::{StoppableThread, panic_message};
pub use tun::{
    TUN_F_UDP_TUNNEL_GSO, TUN_F_UDP_TUNNEL_GSO_CSUM, TunIdentity, TunKind, TunQueue, open_tun,
};
