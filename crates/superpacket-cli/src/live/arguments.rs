//! The commands that run, query and change a bridge.

use clap::Subcommand;

use super::bridge_options::Bridge;
use super::connection::PortQuery;
use super::fdb::Fdb;
use super::features::Features;
use super::limits::Limits;
use super::mdb::Mdb;
use super::monitor::Monitor;
use super::port::Port;
use super::rps::Rps;
use super::stats::Stats;
use super::top::Top;
use super::vlan::Vlan;

/// The commands that run, query and change a bridge.
#[derive(Debug, Subcommand)]
pub(crate) enum LiveCommand {
    /// Join ports with a learning bridge that gives every port the offloads it lacks
    #[command(after_help = "Examples:
  superpacket bridge packet:veth0 packet:veth1
  superpacket bridge tap:tap0 packet:eth1 --feature packet:eth1:tso=off
  superpacket bridge 'packet:eth0?queues=4' tap:tap0 --metrics 127.0.0.1:9600
  superpacket bridge 'left=packet:eth0?ring=8m' right=tap:tap0
  superpacket bridge --config /etc/superpacket/bridge.toml

Ports are tap:DEVICE, tun:DEVICE, packet:INTERFACE, xdp:INTERFACE, pcap:FILE, nic:SETTINGS@PORT, with \
options behind a question mark, apart by ampersands, in quotes because of the shell: \
'packet:eth0?version=v3&block=512k'. A name before it, as in left=packet:eth0, is what commands, \
counters and metrics call the port; without one, that is the whole string. Packet and XDP ports take the interface over: give it no addresses.

SIGTERM and SIGINT send what is held and end with exit code 0 (a second one ends at once), \
SIGHUP reads the file again; the log says what of it undoes what commands have changed \
(--on-reload keep keeps that).

It needs CAP_NET_ADMIN and CAP_NET_RAW, and CAP_BPF for xdp, in the user namespace that owns the \
network namespace: `unshare -Urn` gives them to everybody who may use it.")]
    Bridge(Bridge),
    /// Show the offloads of a bridge's ports as `ethtool -k` does, or switch one
    #[command(after_help = "Examples:
  superpacket features
  superpacket features packet:eth0
  superpacket features packet:eth0 gro off
  superpacket features packet:eth0 large-receive-offload on --force
  superpacket features packet:eth0 tx-tcp-mangleid-segmentation on

Offloads have the long and short names of ethtool. What is asked for and not in force is shown \
with the reason.

Most ports cannot be told that IP identifications stay the same, so such super-packets are cut before \
them. With tx-tcp-mangleid-segmentation on, those that must not be fragmented go whole, and their \
segments get new identifications (RFC 6864).")]
    Features(Features),
    /// Show the counters of a bridge's ports
    #[command(after_help = "Examples:
  superpacket stats
  superpacket stats packet:eth0 --reasons
  superpacket stats packet:eth0 --queues
  superpacket stats packet:eth0 --json | jq '.[0].drops'

Reasons say why packets left aggregation as they did, merged or single, and add up to all of \
them. Counters of queues are named as in ethtool -S: rx_queue_0_packets.")]
    Stats(Stats),
    /// Show a bridge's ports: state, MTU, addresses learned
    #[command(after_help = "Examples:
  superpacket ports
  superpacket ports --json | jq -r '.[] | select(.state != \"up\") | .port'")]
    Ports(PortQuery),
    /// Show or set the limits of a bridge's ports
    #[command(after_help = "Examples:
  superpacket limits
  superpacket limits packet:eth0 gro_flush_timeout 50us
  superpacket limits packet:eth0 gso_max_size 32k
  superpacket limits packet:eth0 too_big icmp
  superpacket limits packet:eth0 lro_max_aggr 43
  superpacket limits packet:eth0 storage linear
  superpacket limits packet:eth0 address_limit 100
  superpacket limits tap:guest1 isolated on
  superpacket limits tap:guest1 storm_broadcast 100
  superpacket limits tap:guest1 rx_byte_rate 12M

Sizes count bytes from the IP header on: gso_max_size is for super-packets that the port is \
given (0: what it takes), gro_max_size for what is made of packets that it receives. \
gro_flush_timeout is how long a packet may be held after the poll that brought it (50us; 0: not \
at all), gap_timeout how long a TCP segment that came ahead of others may wait for them.

too_big says what becomes of packets that are too long for a port and cannot be cut: drop, icmp, \
fragment.

Of LRO, which `superpacket features PORT lro on --force` switches on: lro_max_aggr is the most \
packets in one (0: no limit), lro_max_desc the most flows at a time, and lro_acks (on, off) says \
whether pure ACKs are absorbed. Of GRO: gro_past_push (on, off) says whether \
super-packets with PSH merge further, gro_udp_no_checksum (on, off) whether datagrams over IPv4 \
without a checksum merge, gro_uneven (on, off) whether TCP packets merge that are not alike.

address_limit is the most addresses that are learned behind a port (0: half of the table).

What passes between ports, as with iproute2's `bridge link`, on or off: isolated ports talk only to \
the others; learning says whether a port's addresses are learned, flood, mcast_flood and \
bcast_flood whether it is given what is for nobody known, for many and for all.

Rates, 0 for no limit: storm_broadcast, storm_multicast and storm_unknown are packets a second for \
all, for many and for addresses that nobody knows that a port may send into the bridge; \
rx_byte_rate and rx_packet_rate are all that it may send, tx_byte_rate and tx_packet_rate all that \
it is given. rx_byte_burst, rx_packet_burst, tx_byte_burst and tx_packet_burst are what may come at \
once (0: a tenth of a second's). A super-packet counts as the frames that it is on a wire.

Of all aggregation: storage (fragments, linear) says whether packets stay where they were \
received or are copied together, delivery (per-poll, at-once) whether gro_flush_timeout counts \
or nothing is held past a poll.")]
    Limits(Limits),
    /// Add a port to a running bridge, change one, or remove one
    #[command(after_help = "Examples:
  superpacket port add tap:guest2
  superpacket port add 'uplink=packet:eth1?ring=4m'
  superpacket port set uplink ring=8m queues=2
  superpacket port set uplink ring=
  superpacket port set uplink isolated on learning off flood off
  superpacket port set uplink rx_byte_rate 12M rx_byte_burst 1M
  superpacket port del tap:guest2

A new port has the settings that a port has if nothing is said of it; features, limits, fdb, vlan \
and rps change them.

set changes options of the port string (OPTION=VALUE; OPTION= takes one away) and settings of the \
port (SETTING VALUE: those of `superpacket limits`, among them the words of iproute2's `bridge link \
set`), all of them or none. Where the string changes, the port is opened again, and stays the same \
port: other ports go on, packets that arrive in between are lost. If it cannot be opened so, it is \
opened as it was, and the error says why.

What is added, changed and removed so holds until the bridge ends or reads its file \
again: then the file decides, but for what --on-reload keep keeps. A bridge \
that has given up its rights (--user) can only open what its user may.")]
    Port(Port),
    /// Show or change a bridge's address table, as `bridge fdb` does
    #[command(after_help = "Examples:
  superpacket fdb
  superpacket fdb show dev packet:eth0 vlan 10
  superpacket fdb show static --statistics
  superpacket fdb add 52:54:00:12:34:56 dev packet:eth0 static
  superpacket fdb add 52:54:00:12:34:56 dev packet:eth0 vlan 10 static
  superpacket fdb replace 52:54:00:12:34:56 dev packet:eth1 vlan 10 static
  superpacket fdb del 52:54:00:12:34:56 dev packet:eth0
  superpacket fdb flush dev packet:eth0
  superpacket fdb --json | jq -r '.[] | select(.state == \"static\") | .mac'

Words and output are those of iproute2's `bridge fdb`; a port is told by its name. Entries \
without a VLAN are for frames without a VLAN tag. On a terminal, show ends with the screen.

A static entry holds until it is deleted or its port leaves the bridge: it neither ages nor moves \
to another port that sends with its address (`static sticky` in iproute2), nor gives way to others. \
flush forgets what was learned, and leaves static entries.")]
    Fdb(Fdb),
    /// Show or change the VLANs of a bridge's ports, as `bridge vlan` does
    #[command(after_help = "Examples:
  superpacket vlan
  superpacket vlan add dev tap:guest1 vid 10 pvid untagged
  superpacket vlan del dev tap:guest1 vid 1
  superpacket vlan add dev packet:eth0 vid 10-20
  superpacket vlan show dev packet:eth0 --json

Words and output are those of iproute2's `bridge -compressvlans vlan`; a port is told by its \
name. pvid: frames that come without a VLAN tag are in this VLAN; untagged: its frames leave \
without one. A new port is in VLAN 1, pvid and untagged.

VLANs count where the bridge filters by them: `superpacket bridge --vlan-filtering`, or \
vlan-filtering = true under [bridge] in its file.")]
    Vlan(Vlan),
    /// Show which ports of a bridge have joined which multicast groups, as `bridge mdb` does
    #[command(after_help = "Examples:
  superpacket mdb
  superpacket mdb show dev tap:guest1 --statistics
  superpacket mdb --json | jq -r '.mdb[] | .grp'

Words and output are those of iproute2's `bridge mdb`; a port is told by its name. It counts \
where the bridge listens to IGMP and MLD: `superpacket bridge --multicast-snooping`, or \
multicast-snooping = true under [bridge] in its file.

Without a querier, somebody who asks who is in which group, what is for a group goes to all ports.")]
    Mdb(Mdb),
    /// Show or set the CPUs to which a bridge's ports steer their packets
    #[command(after_help = "Examples:
  superpacket rps
  superpacket rps packet:eth0 0 f
  superpacket rps packet:eth0 all 1,,5
  superpacket rps packet:eth0 --cpu-list 2-5
  superpacket rps packet:eth0 auto
  superpacket rps packet:eth0 all 0
  superpacket rps packet:eth0 --in-place-below 0
  superpacket rps --set netdev_max_backlog=3000

A mask is what /sys/class/net/DEVICE/queues/rx-N/rps_cpus takes: hexadecimal, in groups of 32 \
CPUs with commas between; 0 switches steering off. auto takes the CPUs that share a cache with \
the one that receives, and says why. CPUs that are offline or outside the process's affinity get \
no worker, which is shown. Flows move when nothing of them is left at the old CPU, so no packet \
overtakes another.

As long as the thread that receives has time for all packets, it processes them itself, whatever \
the mask (in place, the default: --in-place-below auto). When it is busy for 80 % of the time, it \
steers, if that gets more done, until all the work fits in 45 %. --in-place-below 0 always steers, \
as the kernel does.

--set takes rps_sock_flow_entries, netdev_max_backlog, dev_weight, flow_limit_table_len, hash \
(keyed, toeplitz, toeplitz:KEY), hash_symmetric, hash_headers (inner, outer), hash_device, moves \
(epochs, at-once).")]
    Rps(Rps),
    /// Watch a bridge: rates, packets per super-packet, drops by cause
    #[command(after_help = "Examples:
  superpacket top
  superpacket top --control /run/superpacket/control.sock
  superpacket top --json --interval 10s

Keys: q quits, up and down scroll.")]
    Top(Top),
    /// Copy the packets that a bridge's ports receive and send to a pcapng file or a pipe
    #[command(after_help = "Examples:
  superpacket monitor packet:eth0 -w eth0.pcapng
  superpacket monitor tap:g1 tap:g2 --direction rx -c 1000 -w guests.pcapng
  superpacket monitor | tshark -r -
  superpacket monitor packet:eth0 --snaplen 128 -w - | zstd >eth0.pcapng.zst

Without a port, all are monitored, also those that are added later. Packets are copied as the ports \
have them: what is received before the bridge aggregates it, what is sent as the port is given it; \
super-packets whole, with the virtio_net_hdr in a comment, as `superpacket check` reads it. Each port \
is an interface of the capture, and each packet says its direction.

It ends by Ctrl-C, after COUNT packets, and when the ports have left the bridge or the bridge ends. \
Forwarding never waits for it: copies that are not read in time are dropped, counted in the capture's \
interface statistics, and told at the end.")]
    Monitor(Monitor),
}

impl LiveCommand {
    /// Returns whether the command handles SIGINT and SIGTERM itself.
    pub(crate) fn has_its_own_signals(&self) -> bool {
        matches!(self, LiveCommand::Bridge(_) | LiveCommand::Top(_) | LiveCommand::Monitor(_))
    }
}
