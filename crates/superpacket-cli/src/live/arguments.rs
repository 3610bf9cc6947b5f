//! The command line of the live commands.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::ArgValueCandidates;
use superpacket_bridge::monitor::{MAX_SNAPLEN, MonitorDirection};
use superpacket_bridge::reload::OnReload;
use superpacket_bridge::settings::InPlace;
use superpacket_bridge::vlan::VlanProtocol;
use superpacket_features::Feature;
use superpacket_io::port::{PortSpec, SpecError};

use super::completion;
use crate::amount::nanoseconds;

/// The commands that run, ask and change a bridge.
#[derive(Debug, Subcommand)]
pub(crate) enum LiveCommand {
    /// Join ports by a learning bridge that gives every port the offloads it lacks
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
    /// Show what a bridge's ports counted
    #[command(after_help = "Examples:
  superpacket stats
  superpacket stats packet:eth0 --reasons
  superpacket stats packet:eth0 --queues
  superpacket stats packet:eth0 --json | jq '.[0].drops'

Reasons say why packets left aggregation as they did, merged or single, and add up to all of \
them. Counters of queues are named as in ethtool -S: rx_queue_0_packets.")]
    Stats(Stats),
    /// Show a bridge's ports: state, MTU, addresses learned, limits
    #[command(after_help = "Examples:
  superpacket ports
  superpacket ports --json | jq -r '.[] | select(.state != \"up\") | .port'")]
    Ports(Ports),
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
    /// Show a bridge's address table as `bridge fdb` does, or change it
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
    /// Show the VLANs of a bridge's ports as `bridge vlan` does, or change them
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
    /// Show which ports of a bridge have asked for which IP groups, as `bridge mdb` does
    #[command(after_help = "Examples:
  superpacket mdb
  superpacket mdb show dev tap:guest1 --statistics
  superpacket mdb --json | jq -r '.mdb[] | .grp'

Words and output are those of iproute2's `bridge mdb`; a port is the whole port string. It counts \
where the bridge listens to IGMP and MLD: `superpacket bridge --multicast-snooping`, or \
multicast-snooping = true under [bridge] in its file.

Without a querier, somebody who asks who is in which group, what is for a group goes to all ports.")]
    Mdb(Mdb),
    /// Show or set to which CPUs a bridge's ports steer their packets
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
the mask (in place, the default: --in-place-below auto); it steers from when it is busy for 80 % \
of the time until all the work fits in 45 %. --in-place-below 0 always steers, as the kernel does.

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
    /// Copy what a bridge's ports receive and send to a pcapng file or a pipe
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
    /// Does it see to SIGINT and SIGTERM itself?
    pub(crate) fn has_its_own_signals(&self) -> bool {
        matches!(self, LiveCommand::Bridge(_) | LiveCommand::Top(_) | LiveCommand::Monitor(_))
    }
}

/// Which bridge.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// The bridge's control socket [default: /run/superpacket.sock for root,
    /// $XDG_RUNTIME_DIR/superpacket.sock for others]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

/// `superpacket bridge`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Bridge {
    /// The ports to join
    #[arg(value_name = "PORT", required_unless_present = "config", conflicts_with = "config", value_parser = port_spec)]
    pub(crate) ports: Vec<PortSpec>,
    /// Read ports and settings from a file; the options below go before what it says
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Serve the counters for Prometheus at http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Threads that move packets; 0: one for each CPU, and at most one for each port
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1024))]
    pub(crate) threads: Option<u16>,
    /// Look for packets all the time instead of waiting for them: less delay, a CPU at 100 %
    #[arg(long)]
    pub(crate) busy_poll: bool,
    /// Let packets pass only between ports that are in their VLAN (`superpacket vlan`)
    #[arg(long)]
    pub(crate) vlan_filtering: bool,
    /// The tags that say a packet's VLAN, where the bridge filters by it: 802.1ad for a provider
    /// bridge, which filters by the service's tag and passes the customer's [default: 802.1Q]
    #[arg(long, value_name = "802.1Q|802.1ad")]
    pub(crate) vlan_protocol: Option<VlanProtocol>,
    /// Give packets for IP groups only to ports that have asked for them by IGMP or MLD, and to
    /// routers (`superpacket mdb`)
    #[arg(long)]
    pub(crate) multicast_snooping: bool,
    /// Open interfaces that another bridge has, although both then forward every frame
    #[arg(long)]
    pub(crate) shared_interfaces: bool,
    /// Become this user (a name or a number) after the ports are open, and keep only the
    /// capabilities that opening them again takes
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Switch an offload of a port, named as in ethtool: packet:eth0:gro=off, left:gro=off
    #[arg(long, value_name = "PORT:FEATURE=on|off", value_parser = feature_switch)]
    pub(crate) feature: Vec<FeatureSwitch>,
    /// Set a limit of a port, named as by `superpacket limits`: packet:eth0:storm_broadcast=1000
    #[arg(long, value_name = "PORT:NAME=VALUE", value_parser = port_limit)]
    pub(crate) limit: Vec<PortLimit>,
    /// What SIGHUP does with what commands have changed since the file was read: undo it, or keep
    /// it where the file says what it said before [default: undo]
    #[arg(long, value_name = "undo|keep")]
    pub(crate) on_reload: Option<OnReload>,
    /// How the log on standard error is written
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or by module as in
    /// superpacket_bridge=debug,info; modules are of superpacket, superpacket_bridge and
    /// superpacket_io
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log: String,
    /// Print what the ports counted as JSON at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a port string. Who reports an error has named it.
fn port_spec(text: &str) -> Result<PortSpec, String> {
    text.parse().map_err(|error: SpecError| error.problem(text))
}

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people
    Text,
    /// A JSON object a line
    Json,
}

/// A limit of a port to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortLimit {
    pub(crate) port: String,
    pub(crate) name: String,
    pub(crate) value: String,
}

/// Reads `packet:eth0?version=v3:storm_broadcast=1000`, from the end as [`feature_switch`] does.
fn port_limit(text: &str) -> Result<PortLimit, String> {
    let parts = text.rsplit_once('=').and_then(|(rest, value)| Some((rest.rsplit_once(':')?, value)));
    let ((port, name), value) = parts.ok_or("write PORT:NAME=VALUE")?;
    Ok(PortLimit { port: port.to_owned(), name: name.to_owned(), value: value.to_owned() })
}

/// An offload of a port to be switched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeatureSwitch {
    pub(crate) port: String,
    pub(crate) feature: Feature,
    pub(crate) on: bool,
}

/// Reads `packet:eth0?version=v3:gro=off`: port strings have colons and equals signs too, so from
/// the end.
fn feature_switch(text: &str) -> Result<FeatureSwitch, String> {
    let parts = text.rsplit_once('=').and_then(|(rest, state)| Some((rest.rsplit_once(':')?, state)));
    let ((port, feature), state) = parts.ok_or("write PORT:FEATURE=on or PORT:FEATURE=off")?;
    let on = match state {
        "on" => true,
        "off" => false,
        _ => return Err(format!("{state:?} is neither on nor off")),
    };
    Ok(FeatureSwitch { port: port.to_owned(), feature: feature_name(feature)?, on })
}

fn feature_name(text: &str) -> Result<Feature, String> {
    text.parse().map_err(|_| format!("{text:?} is no offload: there are {}", Feature::ALL.map(Feature::name).join(", ")))
}

/// A switch's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// `superpacket features`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Features {
    /// Only this port, by its name: the given one, or else the whole port string (packet:eth0)
    #[arg(add = ArgValueCandidates::new(completion::ports))]
    pub(crate) port: Option<String>,
    /// The offload to switch
    #[arg(value_parser = feature_name, requires = "state", add = ArgValueCandidates::new(completion::features))]
    pub(crate) feature: Option<Feature>,
    /// On or off
    #[arg(value_enum, value_name = "on|off", hide_possible_values = true)]
    pub(crate) state: Option<Switch>,
    /// Let large-receive-offload through although packets are forwarded: what it merges cannot be
    /// restored
    #[arg(long, requires = "state")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `superpacket stats`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    pub(crate) asked: Ports,
    /// Show why packets left aggregation as they did, too
    #[arg(long)]
    pub(crate) reasons: bool,
    /// Show what each receive and transmit queue counted, too
    #[arg(long)]
    pub(crate) queues: bool,
}

/// `superpacket ports`, and what is common with `superpacket stats`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Ports {
    /// Only this port, by its name: the given one, or else the whole port string (packet:eth0)
    #[arg(add = ArgValueCandidates::new(completion::ports))]
    pub(crate) port: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `superpacket limits`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Limits {
    /// Only this port, by its name: the given one, or else the whole port string (packet:eth0)
    #[arg(add = ArgValueCandidates::new(completion::ports))]
    pub(crate) port: Option<String>,
    /// The limit to set: gso_max_size, gro_max_size, gro_flush_timeout, gap_timeout, too_big,
    /// lro_max_aggr, lro_max_desc, lro_acks, gro_past_push, gro_udp_no_checksum, gro_uneven,
    /// storage, delivery, address_limit, isolated, learning, flood, mcast_flood, bcast_flood,
    /// storm_broadcast, storm_multicast, storm_unknown, and rx_byte_rate, rx_byte_burst,
    /// rx_packet_rate, rx_packet_burst, and the same with tx
    #[arg(requires = "value", add = ArgValueCandidates::new(completion::settings))]
    pub(crate) name: Option<String>,
    /// A size (32k), a duration (50us), a number, or a word
    #[arg(add = ArgValueCandidates::new(completion::values))]
    pub(crate) value: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `superpacket port` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PortAction {
    /// Open a port, and join it with the others
    Add,
    /// Change options of its port string, and settings of it
    Set,
    /// Close a port for good
    #[value(alias = "delete")]
    Del,
}

/// `superpacket port`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Port {
    /// What to do
    #[arg(value_enum)]
    pub(crate) action: PortAction,
    /// To add one: the port string, with a name or not, as in left=packet:eth0; to change or remove
    /// one: its name, or else the whole port string
    #[arg(add = ArgValueCandidates::new(completion::known_ports))]
    pub(crate) port: String,
    /// What is to be set: OPTION=VALUE or SETTING VALUE, once or several times
    #[arg(add = ArgValueCandidates::new(completion::set_words))]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print the port as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// What `superpacket fdb` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FdbAction {
    /// Show entries: [dev PORT] [vlan VID] [static | dynamic]
    #[value(alias = "list")]
    Show,
    /// Add a static entry: ADDRESS dev PORT [vlan VID] static
    Add,
    /// Add a static entry, or put it in place of one that is there: ADDRESS dev PORT [vlan VID]
    /// static
    Replace,
    /// Delete an entry, static or learned: ADDRESS dev PORT [vlan VID]
    #[value(alias = "delete")]
    Del,
    /// Forget learned addresses: [dev PORT] [vlan VID]
    Flush,
}

/// `superpacket fdb`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Fdb {
    /// What to do [default: show]
    #[arg(value_enum)]
    pub(crate) action: Option<FdbAction>,
    /// Which entries
    #[arg(add = ArgValueCandidates::new(completion::fdb_words))]
    pub(crate) words: Vec<String>,
    /// Show how long ago each address was heard, too
    #[arg(short, long)]
    pub(crate) statistics: bool,
    /// Show all entries, however long the screen is
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print as JSON, with the names of `bridge -json fdb`
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// What `superpacket vlan` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VlanAction {
    /// Show VLANs: [dev PORT]
    #[value(alias = "list")]
    Show,
    /// Put a port in VLANs
    #[value(help = "Put a port in VLANs: dev PORT vid VID[-VID] [pvid] [untagged]")]
    Add,
    /// Take a port out of VLANs: dev PORT vid VID[-VID]
    #[value(alias = "delete")]
    Del,
}

/// `superpacket vlan`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Vlan {
    /// What to do [default: show]
    #[arg(value_enum)]
    pub(crate) action: Option<VlanAction>,
    /// Which port and VLANs
    #[arg(add = ArgValueCandidates::new(completion::vlan_words))]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print as JSON, with the names of `bridge -json vlan`
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// What `superpacket mdb` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MdbAction {
    /// Show entries: [dev PORT]
    #[value(alias = "list")]
    Show,
}

/// `superpacket mdb`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Mdb {
    /// What to do [default: show]
    #[arg(value_enum)]
    pub(crate) action: Option<MdbAction>,
    /// Which port
    pub(crate) words: Vec<String>,
    /// Show for how long each entry holds, too
    #[arg(short, long)]
    pub(crate) statistics: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// `superpacket rps`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Rps {
    /// Only this port, by its name: the given one, or else the whole port string (packet:eth0)
    #[arg(add = ArgValueCandidates::new(completion::ports))]
    pub(crate) port: Option<String>,
    /// Only this receive queue, from 0 on, or all of them
    #[arg(value_name = "QUEUE|all")]
    pub(crate) queue: Option<String>,
    /// Steer to these CPUs: a mask in hexadecimal, or auto
    #[arg(value_name = "MASK|auto")]
    pub(crate) mask: Option<String>,
    /// Steer to these CPUs: a list, as in 0-3,8
    #[arg(long, value_name = "LIST", requires = "port")]
    pub(crate) cpu_list: Option<String>,
    /// Flows of a receive queue that RFS tells apart (rps_flow_cnt); 0: no RFS
    #[arg(long, value_name = "N", requires = "port")]
    pub(crate) flow_count: Option<u64>,
    /// Process a queue's packets where they are received in spite of its mask: auto, as long as the
    /// receiving thread has time for all of them (the default); N, while there are fewer a second;
    /// 0, never, as the kernel does
    #[arg(long, value_name = "N|auto", requires = "port")]
    pub(crate) in_place_below: Option<InPlace>,
    /// Set what holds for all ports
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads `netdev_max_backlog=3000`; with hyphens, too, as files write it.
fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.replace('-', "_"), value.to_owned()))
}

/// `superpacket top`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Time between two looks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub(crate) interval: u64,
    /// Print the rates of one interval as JSON, and end
    #[arg(long)]
    pub(crate) json: bool,
}

/// `superpacket monitor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Monitor {
    /// Only these ports: the whole port strings, as in packet:eth0
    #[arg(value_name = "PORT")]
    pub(crate) ports: Vec<String>,
    /// Write to a file, over one that is there; -: to standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(crate) write: PathBuf,
    /// Only what ports receive (rx), or only what they send (tx)
    #[arg(long, value_name = "rx|tx|both", value_parser = direction, default_value = "both")]
    pub(crate) direction: MonitorDirection,
    /// End after so many packets
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Copy at most so many bytes of a packet
    #[arg(long, value_name = "N", default_value_t = MAX_SNAPLEN, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SNAPLEN)))]
    pub(crate) snaplen: u32,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print how many packets were written, and how many dropped, as JSON at the end
    #[arg(long)]
    pub(crate) json: bool,
}

fn direction(text: &str) -> Result<MonitorDirection, String> {
    match text {
        "rx" => Ok(MonitorDirection::Rx),
        "tx" => Ok(MonitorDirection::Tx),
        "both" => Ok(MonitorDirection::Both),
        _ => Err("rx, tx or both".into()),
    }
}

fn interval(text: &str) -> Result<u64, String> {
    match nanoseconds(text)? {
        nanoseconds @ 100_000_000..=3_600_000_000_000 => Ok(nanoseconds),
        _ => Err("from 100ms to 3600s".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_read_from_its_end() {
        let read = feature_switch("packet:eth0?version=v3:gro=off").expect("reads");
        assert_eq!(read, FeatureSwitch { port: "packet:eth0?version=v3".into(), feature: Feature::GenericReceiveOffload, on: false });
        let read = port_limit("packet:eth0?version=v3:rx-byte-rate=10M").expect("reads");
        assert_eq!(read, PortLimit { port: "packet:eth0?version=v3".into(), name: "rx-byte-rate".into(), value: "10M".into() });
        assert!(port_limit("packet:eth0").is_err() && port_limit("isolated=on").is_err());
        for (text, says) in [
            ("packet:eth0:gro", "PORT:FEATURE=on"),
            ("gro=on", "PORT:FEATURE=on"),
            ("packet:eth0:gro=maybe", "neither on nor off"),
            ("packet:eth0=on", "\"eth0\" is no offload"),
        ] {
            let error = feature_switch(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("1s"), Ok(1_000_000_000));
        assert!(interval("1ms").is_err() && interval("2h").is_err());
    }
}
