//! The commands that run, query and change a bridge.

use clap::Subcommand;
use superpacket_bridge::settings::{PortSettings, SteeringSettings};

use super::bridge_options::BridgeArguments;
use super::connection::PortQuery;
use super::fdb::FdbArguments;
use super::features::FeaturesArguments;
use super::limits::{LimitsArguments, listed};
use super::mdb::MdbArguments;
use super::monitor::MonitorArguments;
use super::port::PortArguments;
use super::rps::RpsArguments;
use super::stats::StatsArguments;
use super::top::TopArguments;
use super::vlan::VlanArguments;

/// The commands that run, query and change a bridge.
#[derive(Debug, Subcommand)]
pub(crate) enum LiveCommand {
    /// Join ports with a learning bridge that gives every port the offloads it lacks
    #[command(after_help = "Examples:
  superpacket bridge packet:veth0 packet:veth1
  superpacket bridge tap:tap0 packet:eth1 --feature packet:eth1:tso=off
  superpacket bridge 'packet:eth0?queues=4' tap:tap0 --metrics 127.0.0.1:9600
  superpacket bridge 'left=packet:eth0?ring=8m' right=tap:tap0
  superpacket bridge unix:/run/vm0.sock 'unix:/run/passt.sock?connect=on' packet:eth1
  superpacket bridge --config /etc/superpacket/bridge.toml

Ports are tap:DEVICE, tun:DEVICE, packet:INTERFACE, xdp:INTERFACE, unix:SOCKET, vhost:SOCKET, \
pcap:FILE, nic:SETTINGS@PORT. \
Options follow a question mark and are separated by ampersands; quote them for the shell: \
'packet:eth0?version=v3&block=512k'. Commands, counters and metrics use the name before the port \
string, as in left=packet:eth0; without one, they use the whole string. Packet and XDP ports take \
the interface over: give it no addresses.

On SIGTERM and SIGINT the bridge sends the held packets and ends with exit code 0; a second \
signal ends it at once. On SIGHUP it reads its file again. This undoes changes by commands, unless \
--on-reload keep is given; the log lists them.

The bridge needs CAP_NET_ADMIN and CAP_NET_RAW, and CAP_BPF for xdp, in the user namespace that \
owns the network namespace: `unshare -Urn` grants them to every user who is allowed to run it.")]
    Bridge(BridgeArguments),
    /// Show the offloads of a bridge's ports as `ethtool -k` does, or switch one
    #[command(after_help = "Examples:
  superpacket features
  superpacket features packet:eth0
  superpacket features packet:eth0 gro off
  superpacket features packet:eth0 large-receive-offload on --force
  superpacket features packet:eth0 tx-tcp-mangleid-segmentation on

Offloads have the long and short names of ethtool. If a requested offload is not active, the \
reason is shown.

Most ports cannot express that all IP identifications of a super-packet are the same. So the \
bridge segments such super-packets before it sends them. With tx-tcp-mangleid-segmentation on, \
those with the don't-fragment bit are sent whole, and their segments get new identifications \
(RFC 6864).")]
    Features(FeaturesArguments),
    /// Show the counters of a bridge's ports
    #[command(after_help = "Examples:
  superpacket stats
  superpacket stats packet:eth0 --reasons
  superpacket stats packet:eth0 --queues
  superpacket stats packet:eth0 --json | jq '.[0].drops'

Reasons say why packets left aggregation, merged or single; their counts add up to all packets. \
Counters of queues are named as in ethtool -S: rx_queue_0_packets.")]
    Stats(StatsArguments),
    /// Show a bridge's ports: state, MTU, addresses learned
    #[command(after_help = "Examples:
  superpacket ports
  superpacket ports --json | jq -r '.[] | select(.state != \"up\") | .port'")]
    Ports(PortQuery),
    /// Show or set the limits of a bridge's ports
    #[command(after_help = limits_help())]
    Limits(LimitsArguments),
    /// Add a port to a running bridge, change one, or remove one
    #[command(after_help = "Examples:
  superpacket port add tap:guest2
  superpacket port add 'uplink=packet:eth1?ring=4m'
  superpacket port set uplink ring=8m queues=2
  superpacket port set uplink ring=
  superpacket port set uplink isolated on learning off flood off
  superpacket port set uplink rx_byte_rate 12M rx_byte_burst 1M
  superpacket port del tap:guest2

A new port has the default settings; change them with features, limits, fdb, vlan and rps.

set changes options of the port string (OPTION=VALUE; OPTION= removes one) and settings of the \
port (SETTING VALUE). It makes all changes or none. The settings are those of `superpacket \
limits`, including the words of iproute2's `bridge link set`.

If the string changes, the port is opened again but stays the same port. Other ports go on, and \
packets that arrive meanwhile are lost. If the port cannot be opened with the new options, it is \
opened with the old ones, and the error gives the reason.

These changes last until the bridge ends or reads its file again. Then the file decides, except \
for changes that --on-reload keep keeps. A bridge that has given up its privileges (--user) can \
open only ports that its user may open.")]
    Port(PortArguments),
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

Syntax and output are those of iproute2's `bridge fdb`; a port is given by its name. Entries \
without a VLAN apply to frames without a VLAN tag. On a terminal, show prints at most one \
screen.

A static entry stays until it is deleted or its port leaves the bridge. It does not age and is \
not replaced when the table is full. It does not move to another port that sends with its address \
(`static sticky` in iproute2). flush deletes learned entries and keeps static ones.")]
    Fdb(FdbArguments),
    /// Show or change the VLANs of a bridge's ports, as `bridge vlan` does
    #[command(after_help = "Examples:
  superpacket vlan
  superpacket vlan add dev tap:guest1 vid 10 pvid untagged
  superpacket vlan del dev tap:guest1 vid 1
  superpacket vlan add dev packet:eth0 vid 10-20
  superpacket vlan show dev packet:eth0 --json

Syntax and output are those of iproute2's `bridge -compressvlans vlan`; a port is given by its \
name. pvid: untagged frames that the port receives belong to this VLAN; untagged: frames of this \
VLAN leave the port without a tag. A new port is in VLAN 1, pvid and untagged.

VLANs have an effect only if the bridge filters by them: `superpacket bridge --vlan-filtering`, \
or vlan-filtering = true under [bridge] in its file.")]
    Vlan(VlanArguments),
    /// Show which ports of a bridge have joined which multicast groups, as `bridge mdb` does
    #[command(after_help = "Examples:
  superpacket mdb
  superpacket mdb show dev tap:guest1 --statistics
  superpacket mdb --json | jq -r '.mdb[] | .grp'

Syntax and output are those of iproute2's `bridge mdb`; a port is given by its name. The table \
is used only if the bridge snoops IGMP and MLD: `superpacket bridge --multicast-snooping`, or \
multicast-snooping = true under [bridge] in its file.

Without a querier, which asks hosts for their group memberships, multicast packets go to all \
ports.")]
    Mdb(MdbArguments),
    /// Show or set the CPUs to which a bridge's ports steer their packets
    #[command(after_help = rps_help())]
    Rps(RpsArguments),
    /// Watch a bridge: rates, packets per super-packet, drops by cause
    #[command(after_help = "Examples:
  superpacket top
  superpacket top --control /run/superpacket/control.sock
  superpacket top --json --interval 10s

Keys: q quits, up and down scroll.")]
    Top(TopArguments),
    /// Copy the packets that a bridge's ports receive and send to a pcapng file or a pipe
    #[command(after_help = "Examples:
  superpacket monitor packet:eth0 -w eth0.pcapng
  superpacket monitor tap:g1 tap:g2 --direction rx -c 1000 -w guests.pcapng
  superpacket monitor | tshark -r -
  superpacket monitor packet:eth0 --snaplen 128 -w - | zstd >eth0.pcapng.zst

Without a port, all ports are monitored, including those added later. Received packets are \
copied before the bridge aggregates them, and sent packets as they are handed to the port. \
Super-packets are copied whole, with their virtio_net_hdr in a comment that `superpacket check` \
reads. Each port is an interface of the capture, and each packet has its direction.

The command ends by Ctrl-C, after COUNT packets, and when the ports have left the bridge or the \
bridge ends. Forwarding never waits for it: copies that are not read in time are dropped, \
counted in the capture's interface statistics, and reported at the end.")]
    Monitor(MonitorArguments),
}

/// Returns the help text of `superpacket limits`, with all settings of a port.
fn limits_help() -> String {
    let settings = listed::<PortSettings>();
    format!(
        "Examples:
  superpacket limits
  superpacket limits packet:eth0 gro_flush_timeout 50us
  superpacket limits packet:eth0 gso_max_size 32k
  superpacket limits packet:eth0 too_big icmp
  superpacket limits packet:eth0 storage linear
  superpacket limits tap:guest1 isolated on
  superpacket limits tap:guest1 storm_broadcast 100
  superpacket limits tap:guest1 rx_byte_rate 12M

Settings:
{settings}

isolated, learning and the flood switches are those of iproute2's `bridge link`. LRO is switched \
on by `superpacket features PORT lro on --force`. In rates, a super-packet counts as the frames \
that it becomes on a wire."
    )
}

/// Returns the help text of `superpacket rps`, with all settings of steering.
fn rps_help() -> String {
    let settings = listed::<SteeringSettings>();
    format!(
        "Examples:
  superpacket rps
  superpacket rps packet:eth0 0 f
  superpacket rps packet:eth0 all 1,,5
  superpacket rps packet:eth0 --cpu-list 2-5
  superpacket rps packet:eth0 auto
  superpacket rps packet:eth0 all 0
  superpacket rps packet:eth0 --in-place-below 0
  superpacket rps --set netdev_max_backlog=3000

A mask has the format of /sys/class/net/DEVICE/queues/rx-N/rps_cpus: hexadecimal, in groups of \
32 CPUs separated by commas; 0 switches steering off. auto selects the CPUs that share a cache \
with the receiving CPU, and says why. CPUs that are offline or outside the process's affinity \
get no worker; the output lists them. A flow moves only when the old CPU has none of its packets \
left, so no packet overtakes another.

By default (--in-place-below auto) the receiving thread processes packets itself, in place, \
until it is busy for 80 % of the time. Then it steers, if this increases the throughput. It stops \
when all the work fits into 45 % of one CPU. --in-place-below 0 always steers, as the kernel does.

Settings for --set:
{settings}"
    )
}

impl LiveCommand {
    /// Returns whether the command handles SIGINT and SIGTERM itself.
    pub(crate) fn handles_signals(&self) -> bool {
        matches!(self, LiveCommand::Bridge(_) | LiveCommand::Top(_) | LiveCommand::Monitor(_))
    }
}
