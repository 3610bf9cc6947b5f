//! The tables of settings: one for a port, one for steering. Commands, the control protocol, the
//! configuration file and reports take all information on a setting from its row.

use superpacket::aggregate::{Delivery, MAX_BIG_LENGTH, Storage};
use superpacket_steer::{FlowHeaders, FlowLimit, MovePolicy, ToeplitzKey, flow_entries};

use super::setting::{
    FieldOf, FieldType, NamedSettings, Setting, SettingType, SettingValue, ValueRefusal, WordField,
    field, word_field,
};
use super::steering::{HashFunction, MOST_BACKLOG, MOST_SOCK_FLOWS, MOST_WEIGHT};
use super::{InPlace, KernelPathMode, MAX_ADDRESSES, PortSettings, SteeringSettings, TooBig};

/// Lowest size limit in bytes: every network carries IP packets of this size (RFC 791, section
/// 3.2).
const MIN_SIZE: u64 = 68;

/// Highest size limit in bytes.
const MAX_SIZE: u64 = MAX_BIG_LENGTH as u64;

/// Longest time that a packet is held, in nanoseconds: senders retransmit long before a second is
/// over.
const MAX_HOLD: u64 = 1_000_000_000;

/// Highest number of flows that LRO merges at a time.
const MAX_FLOWS: u64 = 4_096;

/// Highest rate: 10^12 bytes (8 Tb) or packets per second.
const MAX_RATE: u64 = 1_000_000_000_000;

/// Largest burst: 2^32 bytes or packets.
const MAX_BURST: u64 = 1 << 32;

/// Returns the type of a rate setting with this unit.
const fn rate(unit: &'static str) -> SettingType {
    SettingType::number(1, MAX_RATE, unit).or_zero("no limit")
}

/// Returns the type of a burst setting with this unit.
const fn burst(unit: &'static str) -> SettingType {
    SettingType::number(1, MAX_BURST, unit).or_zero("a tenth of a second's")
}

word_field!(TooBig: "drop" => Drop, "icmp" => Icmp, "fragment" => Fragment);
word_field!(Storage: "fragments" => Fragments, "linear" => Linear);
word_field!(Delivery: "per-poll" => PerPoll, "at-once" => AtOnce);
word_field!(FlowHeaders: "inner" => Inner, "outer" => Outer);
word_field!(MovePolicy: "epochs" => Epochs, "at-once" => AtOnce);

impl NamedSettings for PortSettings {
    const OWNER: &'static str = "a port";

    const SETTINGS: &'static [Setting<PortSettings>] = &[
        Setting {
            name: "gso_max_size",
            values: SettingType::number(MIN_SIZE, MAX_SIZE, "bytes").or_zero("what the port takes"),
            help: "Maximum size of super-packets sent to the port, from the IP header on",
            field: field!(limits.gso_max_size),
        },
        Setting {
            name: "gro_max_size",
            values: SettingType::number(MIN_SIZE, MAX_SIZE, "bytes"),
            help: "Maximum size of packets merged from received ones, from the IP header on",
            field: field!(limits.gro_max_size),
        },
        Setting {
            name: "gro_flush_timeout",
            values: SettingType::number(0, MAX_HOLD, "ns"),
            help: "Maximum time that a packet is held for merging after the poll that received it",
            field: field!(limits.gro_flush_timeout),
        },
        Setting {
            name: "gap_timeout",
            values: SettingType::number(0, MAX_HOLD, "ns"),
            help: "Maximum time that a TCP segment that arrived early waits for the segments before it",
            field: field!(limits.gap_timeout),
        },
        Setting {
            name: "storage",
            values: SettingType::Word(Storage::WORDS),
            help: "Where merged packets are: where they were received, or copied together",
            field: field!(storage),
        },
        Setting {
            name: "delivery",
            values: SettingType::Word(Delivery::WORDS),
            help: "When held packets leave: after gro_flush_timeout, or always at the end of a poll",
            field: field!(delivery),
        },
        Setting {
            name: "gro_past_push",
            values: SettingType::Switch,
            help: "Whether GRO merges super-packets with PSH further",
            field: field!(gro_past_push),
        },
        Setting {
            name: "gro_udp_no_checksum",
            values: SettingType::Switch,
            help: "Whether UDP GRO merges IPv4 datagrams without a checksum",
            field: field!(gro_udp_no_checksum),
        },
        Setting {
            name: "lro_max_aggr",
            values: SettingType::number(2, 65_535, "packets").or_zero("no limit"),
            help: "Maximum number of packets that LRO merges into one",
            field: field!(limits.lro_max_aggr),
        },
        Setting {
            name: "lro_max_desc",
            values: SettingType::number(1, MAX_FLOWS, "flows"),
            help: "Maximum number of flows that LRO merges at a time, per receive queue",
            field: field!(limits.lro_max_desc),
        },
        Setting {
            name: "lro_acks",
            values: SettingType::Switch,
            help: "Whether LRO absorbs pure ACKs",
            field: field!(lro_acks),
        },
        Setting {
            name: "address_limit",
            values: SettingType::number(1, MAX_ADDRESSES as u64, "addresses")
                .or_zero("half of the table"),
            help: "Maximum number of addresses learned behind the port",
            field: field!(limits.address_limit),
        },
        Setting {
            name: "too_big",
            values: SettingType::Word(TooBig::WORDS),
            help: "What is done with packets that exceed the port's MTU and cannot be segmented",
            field: field!(too_big),
        },
        Setting {
            name: "isolated",
            values: SettingType::Switch,
            help: "Whether the port exchanges no packets with other isolated ports",
            field: field!(forwarding.isolated),
        },
        Setting {
            name: "learning",
            values: SettingType::Switch,
            help: "Whether the addresses behind the port are learned",
            field: field!(forwarding.learning),
        },
        Setting {
            name: "flood",
            values: SettingType::Switch,
            help: "Whether the port is sent packets for unknown addresses",
            field: field!(forwarding.flood),
        },
        Setting {
            name: "mcast_flood",
            values: SettingType::Switch,
            help: "Whether the port is sent multicast packets that are flooded",
            field: field!(forwarding.mcast_flood),
        },
        Setting {
            name: "bcast_flood",
            values: SettingType::Switch,
            help: "Whether the port is sent broadcast packets",
            field: field!(forwarding.bcast_flood),
        },
        Setting {
            name: "storm_broadcast",
            values: rate("packets/s"),
            help: "Maximum rate of broadcast packets that the port may send into the bridge",
            field: field!(limits.rates.storm_broadcast),
        },
        Setting {
            name: "storm_multicast",
            values: rate("packets/s"),
            help: "Maximum rate of multicast packets that the port may send into the bridge",
            field: field!(limits.rates.storm_multicast),
        },
        Setting {
            name: "storm_unknown",
            values: rate("packets/s"),
            help: "Maximum rate of packets to unknown addresses that the port may send into the bridge",
            field: field!(limits.rates.storm_unknown),
        },
        Setting {
            name: "rx_byte_rate",
            values: rate("bytes/s"),
            help: "Maximum rate of bytes received",
            field: field!(limits.rates.rx_byte_rate),
        },
        Setting {
            name: "rx_byte_burst",
            values: burst("bytes"),
            help: "Maximum number of bytes received at once",
            field: field!(limits.rates.rx_byte_burst),
        },
        Setting {
            name: "rx_packet_rate",
            values: rate("packets/s"),
            help: "Maximum rate of packets received",
            field: field!(limits.rates.rx_packet_rate),
        },
        Setting {
            name: "rx_packet_burst",
            values: burst("packets"),
            help: "Maximum number of packets received at once",
            field: field!(limits.rates.rx_packet_burst),
        },
        Setting {
            name: "tx_byte_rate",
            values: rate("bytes/s"),
            help: "Maximum rate of bytes sent",
            field: field!(limits.rates.tx_byte_rate),
        },
        Setting {
            name: "tx_byte_burst",
            values: burst("bytes"),
            help: "Maximum number of bytes sent at once",
            field: field!(limits.rates.tx_byte_burst),
        },
        Setting {
            name: "tx_packet_rate",
            values: rate("packets/s"),
            help: "Maximum rate of packets sent",
            field: field!(limits.rates.tx_packet_rate),
        },
        Setting {
            name: "tx_packet_burst",
            values: burst("packets"),
            help: "Maximum number of packets sent at once",
            field: field!(limits.rates.tx_packet_burst),
        },
        Setting {
            name: "kernel_path",
            values: SettingType::Text(KernelPathMode::ALLOWED),
            help: "Whether the kernel may forward frames to and from the port without the bridge",
            field: FieldOf {
                get: |settings| settings.kernel_path.into(),
                set: |settings, value| {
                    let mode = value.to_string().parse();
                    settings.kernel_path = mode.map_err(|_| ValueRefusal::NotAllowed)?;
                    Ok(())
                },
            },
        },
        Setting {
            name: "in_place_below",
            values: SettingType::Text(InPlace::ALLOWED),
            help: "When packets are processed by the thread that receives them in spite of a mask",
            field: FieldOf {
                get: |settings| {
                    settings.steering.in_place.map_or(InPlace::DEFAULT.into(), Into::into)
                },
                set: |settings, value| {
                    let text = value.to_string();
                    settings.steering.in_place = match text.as_str() {
                        InPlace::DEFAULT => None,
                        text => Some(text.parse().map_err(|_| ValueRefusal::NotAllowed)?),
                    };
                    Ok(())
                },
            },
        },
    ];
}

/// Converts the value of `rps_sock_flow_entries`, rounded up to a power of two as by the kernel.
fn sock_flow_entries(value: &SettingValue) -> Result<u32, ValueRefusal> {
    flow_entries(u64::from_value(value)?).map_err(|error| ValueRefusal::Because(error.to_string()))
}

/// Converts the value of `flow_limit_table_len`.
fn flow_limit_table(value: &SettingValue) -> Result<usize, ValueRefusal> {
    let length = usize::from_value(value)?;
    if length != 0 {
        FlowLimit::new(length).map_err(|error| ValueRefusal::Because(error.to_string()))?;
    }
    Ok(length)
}

impl NamedSettings for SteeringSettings {
    const OWNER: &'static str = "steering";

    const SETTINGS: &'static [Setting<SteeringSettings>] = &[
        Setting {
            name: "rps_sock_flow_entries",
            values: SettingType::number(0, MOST_SOCK_FLOWS, "flows"),
            help: "Number of flows whose reading CPU is remembered (RFS); 0: no RFS",
            field: FieldOf {
                get: |settings| settings.sock_flow_entries.to_value(),
                set: |settings, value| {
                    settings.sock_flow_entries = sock_flow_entries(value)?;
                    Ok(())
                },
            },
        },
        Setting {
            name: "netdev_max_backlog",
            values: SettingType::number(1, MOST_BACKLOG, "packets"),
            help: "Maximum number of packets of a receive queue that wait for one worker",
            field: field!(max_backlog),
        },
        Setting {
            name: "dev_weight",
            values: SettingType::number(1, MOST_WEIGHT, "packets"),
            help: "Maximum number of packets that a worker takes from one queue at a time",
            field: field!(weight),
        },
        Setting {
            name: "flow_limit_table_len",
            values: SettingType::number(0, 1 << 16, "flows"),
            help: "Number of flows that the flow limit distinguishes; 0: no flow limit",
            field: FieldOf {
                get: |settings| settings.flow_limit_table.to_value(),
                set: |settings, value| {
                    settings.flow_limit_table = flow_limit_table(value)?;
                    Ok(())
                },
            },
        },
        Setting {
            name: "hash",
            values: SettingType::Text("keyed, toeplitz or toeplitz:KEY"),
            help: "Hash that distinguishes flows if the device reports none",
            field: field!(hash.function),
        },
        Setting {
            name: "hash_symmetric",
            values: SettingType::Switch,
            help: "Whether both directions of a connection have the same hash",
            field: field!(hash.symmetric),
        },
        Setting {
            name: "hash_headers",
            values: SettingType::Word(FlowHeaders::WORDS),
            help: "Headers of tunnelled packets that are hashed",
            field: field!(hash.headers),
        },
        Setting {
            name: "hash_device",
            values: SettingType::Switch,
            help: "Whether the device's hash is used if it reports one",
            field: field!(hash.device),
        },
        Setting {
            name: "moves",
            values: SettingType::Word(MovePolicy::WORDS),
            help: "When a flow moves to another CPU; at-once can reorder its packets",
            field: field!(move_policy),
        },
    ];
}

impl FieldType for HashFunction {
    fn to_value(&self) -> SettingValue {
        match self {
            HashFunction::Keyed => "keyed".into(),
            HashFunction::Toeplitz(key) if *key == ToeplitzKey::MICROSOFT => "toeplitz".into(),
            HashFunction::Toeplitz(key) => {
                let digits = key.bytes().iter().map(|byte| format!("{byte:02x}"));
                SettingValue::Word(format!("toeplitz:{}", digits.collect::<String>()))
            }
        }
    }

    fn from_value(value: &SettingValue) -> Result<Self, ValueRefusal> {
        let text = value.to_string();
        match text.split_once(':') {
            None if text == "keyed" => Ok(HashFunction::Keyed),
            None if text == "toeplitz" => Ok(HashFunction::Toeplitz(ToeplitzKey::MICROSOFT)),
            Some(("toeplitz", key)) => {
                toeplitz_key(key).map(HashFunction::Toeplitz).map_err(ValueRefusal::Because)
            }
            _ => Err(ValueRefusal::NotAllowed),
        }
    }
}

fn toeplitz_key(text: &str) -> Result<ToeplitzKey, String> {
    let digits: Vec<char> = text.chars().filter(|digit| *digit != ':').collect();
    let wanted = 2 * ToeplitzKey::LENGTH;
    if digits.len() != wanted {
        return Err(format!("a key has {wanted} hexadecimal digits, not {}", digits.len()));
    }
    let mut key = [0; ToeplitzKey::LENGTH];
    for (byte, digits) in key.iter_mut().zip(digits.chunks(2)) {
        let text: String = digits.iter().collect();
        *byte = u8::from_str_radix(&text, 16)
            .map_err(|_| format!("{text:?} is no byte in hexadecimal"))?;
    }
    Ok(ToeplitzKey::new(key))
}
