//! What steering is asked to do.

use std::collections::BTreeMap;

use superpacket_steer::{
    CpuMask, DEFAULT_FLOW_LIMIT_TABLE, DEFAULT_MAX_BACKLOG, DEFAULT_WEIGHT, FlowHashKey,
    FlowHasher, FlowHeaders, FlowLimit, MovePolicy, SockFlowTable, ToeplitzKey, flow_entries,
};

use super::InPlace;
use crate::cpus::possible_cpus;

/// The longest backlog that may be asked for, in packets. Most packets in it hold the memory of
/// their port, which has no more of it than some thousands. Those for which the port has none left
/// (frames longer than a slot of a `packet:` port, packets of `memory:` and `pcap:` ports) have
/// memory of their own, as long as they are: so a long backlog may take 64 KiB a packet, 4 GiB at
/// most.
const MOST_BACKLOG: u64 = 1 << 16;

/// The most entries of the table that says where each flow is read, 4 bytes each: 16 MB. The kernel
/// takes 2^29, for machines that have the memory.
const MOST_SOCK_FLOWS: u64 = 1 << 22;

/// The most flows of a receive queue that RFS tells apart, 16 bytes each: 1 MB for a queue.
const MOST_QUEUE_FLOWS: u64 = 1 << 16;

/// The highest weight.
const MOST_WEIGHT: u64 = 1 << 16;

/// A name or a value that makes no sense; the text names both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SteeringProblem(pub(crate) String);

/// What holds for the steering of all ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteeringSettings {
    /// Entries of the table that says where each flow is read (`net.core.rps_sock_flow_entries`);
    /// 0: no RFS.
    pub sock_flow_entries: u32,
    /// The most packets of a receive queue that wait for one worker
    /// (`net.core.netdev_max_backlog`); beyond, packets are dropped.
    pub max_backlog: usize,
    /// The most packets that a worker takes of one backlog before others have their turn
    /// (`net.core.dev_weight`).
    pub weight: usize,
    /// The length of the flow limit's table (`net.core.flow_limit_table_len`); 0: flows are not
    /// limited.
    pub flow_limit_table: usize,
    /// By what flows are told apart.
    pub hash: HashSettings,
    /// When flows move. [`MovePolicy::AtOnce`] reorders packets as the kernel does: for
    /// comparisons.
    pub move_policy: MovePolicy,
}

impl Default for SteeringSettings {
    /// The kernel's defaults, with the flow limit on; no RFS.
    fn default() -> Self {
        SteeringSettings {
            sock_flow_entries: 0,
            max_backlog: DEFAULT_MAX_BACKLOG,
            weight: DEFAULT_WEIGHT,
            flow_limit_table: DEFAULT_FLOW_LIMIT_TABLE,
            hash: HashSettings::default(),
            move_policy: MovePolicy::Epochs,
        }
    }
}

/// By what function a hash is computed where the device reports none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HashFunction {
    /// Fast, with a secret key of the bridge's own.
    #[default]
    Keyed,
    /// As devices do, with this key.
    Toeplitz(ToeplitzKey),
}

/// By what flows are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashSettings {
    /// The function.
    pub function: HashFunction,
    /// Both directions of a connection are one flow.
    pub symmetric: bool,
    /// Of tunnelled packets, the inner headers count; else the outer.
    pub inner: bool,
    /// The device's hash is used where there is one.
    pub device: bool,
}

impl Default for HashSettings {
    /// Keyed, the inner headers, and the device's hash where there is one.
    fn default() -> Self {
        HashSettings { function: HashFunction::Keyed, symmetric: false, inner: true, device: true }
    }
}

impl HashSettings {
    /// What hashes so.
    pub(crate) fn hasher(&self, key: FlowHashKey) -> FlowHasher {
        let hasher = match &self.function {
            HashFunction::Keyed => FlowHasher::keyed(key),
            HashFunction::Toeplitz(key) => FlowHasher::toeplitz(key),
        };
        let hasher = if self.symmetric { hasher.symmetric() } else { hasher };
        let hasher =
            hasher.with_headers(if self.inner { FlowHeaders::Inner } else { FlowHeaders::Outer });
        if self.device { hasher } else { hasher.without_device() }
    }
}

impl SteeringSettings {
    /// The names that commands and files use.
    pub const NAMES: [&'static str; 9] = [
        "rps_sock_flow_entries",
        "netdev_max_backlog",
        "dev_weight",
        "flow_limit_table_len",
        "hash",
        "hash_symmetric",
        "hash_headers",
        "hash_device",
        "moves",
    ];

    /// The setting of this name, as [`set`](Self::set) takes it.
    pub fn value(&self, name: &str) -> Option<String> {
        Some(match name {
            "rps_sock_flow_entries" => self.sock_flow_entries.to_string(),
            "netdev_max_backlog" => self.max_backlog.to_string(),
            "dev_weight" => self.weight.to_string(),
            "flow_limit_table_len" => self.flow_limit_table.to_string(),
            "hash" => match &self.hash.function {
                HashFunction::Keyed => "keyed".into(),
                HashFunction::Toeplitz(key) if *key == ToeplitzKey::MICROSOFT => "toeplitz".into(),
                HashFunction::Toeplitz(key) => {
                    format!(
                        "toeplitz:{}",
                        key.bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
                    )
                }
            },
            "hash_symmetric" => on_off(self.hash.symmetric).into(),
            "hash_headers" => if self.hash.inner { "inner" } else { "outer" }.into(),
            "hash_device" => on_off(self.hash.device).into(),
            "moves" => {
                if self.move_policy == MovePolicy::Epochs { "epochs" } else { "at-once" }.into()
            }
            _ => return None,
        })
    }

    /// Sets what has this name. Numbers are decimal, switches `on` or `off`; `hash` is `keyed`,
    /// `toeplitz` (with the published key) or `toeplitz:KEY` with 40 bytes in hexadecimal;
    /// `hash_headers` is `inner` or `outer`; `moves` is `epochs` or `at-once`.
    ///
    /// # Errors
    /// [`SteeringProblem`]; nothing has changed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SteeringProblem> {
        let wrong = |says: String| SteeringProblem(format!("{name}: {says}"));
        let number = |least: u64, most: u64| match value.trim().parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            Ok(number) => Err(wrong(format!("EINVAL: {number}: it is {least} to {most}"))),
            Err(_) => Err(wrong(format!("EINVAL: {value:?} is no number"))),
        };
        let switch = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(wrong(format!("{value:?} is neither on nor off"))),
        };
        match name {
            "rps_sock_flow_entries" => {
                self.sock_flow_entries = flow_entries(number(0, MOST_SOCK_FLOWS)?)
                    .map_err(|error| wrong(error.to_string()))?;
            }
            "netdev_max_backlog" => self.max_backlog = number(1, MOST_BACKLOG)? as usize,
            "dev_weight" => self.weight = number(1, MOST_WEIGHT)? as usize,
            "flow_limit_table_len" => {
                let length = number(0, 1 << 16)? as usize;
                if length != 0 {
                    FlowLimit::new(length).map_err(|error| wrong(error.to_string()))?;
                }
                self.flow_limit_table = length;
            }
            "hash" => {
                self.hash.function = match value.split_once(':') {
                    None if value == "keyed" => HashFunction::Keyed,
                    None if value == "toeplitz" => HashFunction::Toeplitz(ToeplitzKey::MICROSOFT),
                    Some(("toeplitz", key)) => {
                        HashFunction::Toeplitz(toeplitz_key(key).map_err(wrong)?)
                    }
                    _ => {
                        return Err(wrong(format!(
                            "{value:?} is none: keyed, toeplitz, toeplitz:KEY"
                        )));
                    }
                }
            }
            "hash_symmetric" => self.hash.symmetric = switch()?,
            "hash_headers" => {
                self.hash.inner = match value {
                    "inner" => true,
                    "outer" => false,
                    _ => return Err(wrong(format!("{value:?} is neither inner nor outer"))),
                }
            }
            "hash_device" => self.hash.device = switch()?,
            "moves" => {
                self.move_policy = match value {
                    "epochs" => MovePolicy::Epochs,
                    "at-once" => MovePolicy::AtOnce,
                    _ => return Err(wrong(format!("{value:?} is neither epochs nor at-once"))),
                }
            }
            _ => {
                return Err(SteeringProblem(format!(
                    "{name:?} is no setting of steering: there are {}",
                    Self::NAMES.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// The table of RFS that is asked for; `None` without RFS.
    pub(crate) fn sock_flow_table(&self) -> Result<Option<SockFlowTable>, SteeringProblem> {
        let wrong = |says: &dyn std::fmt::Display| {
            SteeringProblem(format!("rps_sock_flow_entries: {says}"))
        };
        // The field is public.
        let entries = u64::from(self.sock_flow_entries);
        if entries > MOST_SOCK_FLOWS {
            return Err(wrong(&format_args!("EINVAL: {entries}: it is 0 to {MOST_SOCK_FLOWS}")));
        }
        SockFlowTable::new(entries, possible_cpus()).map_err(|error| wrong(&error))
    }

    /// The flow limit of a receive queue that is asked for; `None` if flows are not limited.
    pub(crate) fn flow_limit(&self) -> Result<Option<FlowLimit>, SteeringProblem> {
        let wrong = |error| SteeringProblem(format!("flow_limit_table_len: {error}"));
        (self.flow_limit_table != 0)
            .then(|| FlowLimit::try_new(self.flow_limit_table))
            .transpose()
            .map_err(wrong)
    }
}

/// How many flows of a receive queue RFS is to tell apart, as the kernel rounds it; an error says
/// what is allowed.
pub(crate) fn queue_flows(asked: u64) -> Result<u32, String> {
    if asked > MOST_QUEUE_FLOWS {
        return Err(format!("EINVAL: {asked}: it is 0 to {MOST_QUEUE_FLOWS}"));
    }
    flow_entries(asked).map_err(|error| error.to_string())
}

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn toeplitz_key(text: &str) -> Result<ToeplitzKey, String> {
    let digits: Vec<char> = text.chars().filter(|digit| *digit != ':').collect();
    let wanted = 2 * ToeplitzKey::LENGTH;
    if digits.len() != wanted {
        return Err(format!("a key has {wanted} hexadecimal digits, not {}", digits.len()));
    }
    let mut key = [0; ToeplitzKey::LENGTH];
    for (place, digits) in key.iter_mut().zip(digits.chunks(2)) {
        let text: String = digits.iter().collect();
        *place = u8::from_str_radix(&text, 16)
            .map_err(|_| format!("{text:?} is no byte in hexadecimal"))?;
    }
    Ok(ToeplitzKey::new(key))
}

/// Something of each receive queue: the same for all, but for those that have one of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerQueue<T> {
    all: T,
    own: BTreeMap<u16, T>,
}

impl<T: PartialEq> PerQueue<T> {
    /// The same for all.
    pub const fn all(value: T) -> Self {
        PerQueue { all: value, own: BTreeMap::new() }
    }

    /// What a queue has.
    pub fn queue(&self, queue: u16) -> &T {
        self.own.get(&queue).unwrap_or(&self.all)
    }

    /// Sets it for one queue, or for all, those with one of their own included.
    pub fn set(&mut self, queue: Option<u16>, value: T) {
        match queue {
            Some(queue) => drop(self.own.insert(queue, value)),
            None => *self = PerQueue::all(value),
        }
    }

    /// What queues that have none of their own have.
    pub(crate) const fn of_all(&self) -> &T {
        &self.all
    }

    /// The queues that have one of their own.
    pub(crate) fn own(&self) -> impl Iterator<Item = (u16, &T)> {
        self.own.iter().map(|(queue, value)| (*queue, value))
    }

    /// What queues that have none of their own have, and the others'.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.all).chain(self.own.values())
    }
}

/// How a port's packets are steered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSteering {
    /// The CPUs that process what a receive queue brings (`rps_cpus`); none: the thread that
    /// receives it does.
    pub rps_cpus: PerQueue<CpuMask>,
    /// How many flows of a receive queue RFS tells apart (`rps_flow_cnt`); 0: none.
    pub rps_flow_cnt: PerQueue<u32>,
    /// When packets are processed where they are received in spite of the mask. `None`: what is
    /// best for who takes them, [`InPlace::Automatic`] in a bridge, and [`InPlace::NEVER`] before a
    /// [`Consumer`](crate::consumer::Consumer), which may keep what it knows of a flow with its
    /// worker.
    pub in_place: Option<InPlace>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_as_they_are_set() {
        let key = "0123456789abcdef".repeat(5);
        for (name, value, shown) in [
            ("rps_sock_flow_entries", "1000", "1024"),
            ("netdev_max_backlog", "300", "300"),
            ("dev_weight", "1", "1"),
            ("flow_limit_table_len", "8192", "8192"),
            ("flow_limit_table_len", "0", "0"),
            ("hash", "toeplitz", "toeplitz"),
            ("hash", &format!("toeplitz:{key}"), &format!("toeplitz:{key}")),
            ("hash", "keyed", "keyed"),
            ("hash_symmetric", "on", "on"),
            ("hash_headers", "outer", "outer"),
            ("hash_device", "off", "off"),
            ("moves", "at-once", "at-once"),
        ] {
            let mut settings = SteeringSettings::default();
            settings.set(name, value).expect(name);
            assert_eq!(settings.value(name).as_deref(), Some(shown));
            assert!(SteeringSettings::NAMES.contains(&name));
        }
        assert!(
            SteeringSettings::NAMES
                .iter()
                .all(|name| SteeringSettings::default().value(name).is_some())
        );
        assert!(SteeringSettings::default().value("rps").is_none());
    }

    #[test]
    fn what_makes_no_sense_is_named_and_changes_nothing() {
        for (name, value, says) in [
            ("rps_sock_flow_entries", "-1", "rps_sock_flow_entries: EINVAL: \"-1\" is no number"),
            ("rps_sock_flow_entries", "4294967295", "EINVAL"),
            ("rps_sock_flow_entries", "536870912", "EINVAL: 536870912: it is 0 to 4194304"),
            ("netdev_max_backlog", "0", "it is 1 to"),
            ("dev_weight", "0", "it is 1 to"),
            ("flow_limit_table_len", "1000", "a power of two"),
            ("hash", "crc", "\"crc\" is none: keyed, toeplitz"),
            ("hash", "toeplitz:12", "80 hexadecimal digits, not 2"),
            ("hash_symmetric", "yes", "neither on nor off"),
            ("hash_headers", "both", "neither inner nor outer"),
            ("moves", "never", "neither epochs nor at-once"),
            ("weight", "1", "no setting of steering: there are rps_sock_flow_entries, "),
        ] {
            let mut settings = SteeringSettings::default();
            let problem = settings.set(name, value).expect_err(name).to_string();
            assert!(problem.contains(says), "{problem}");
            assert_eq!(settings, SteeringSettings::default());
        }
    }

    #[test]
    fn tables_of_flows_are_bounded() {
        assert_eq!(queue_flows(1000), Ok(1024));
        assert!(queue_flows(1 << 29).expect_err("8 GB").contains("it is 0 to 65536"));
        let settings =
            SteeringSettings { sock_flow_entries: 1 << 29, ..SteeringSettings::default() };
        let problem = settings.sock_flow_table().expect_err("2 GB").to_string();
        assert!(
            problem.contains("rps_sock_flow_entries: EINVAL: 536870912: it is 0 to 4194304"),
            "{problem}"
        );
    }

    #[test]
    fn a_queue_has_its_own_until_all_are_set() {
        let mut masks = PerQueue::all(1);
        masks.set(Some(2), 7);
        assert_eq!((*masks.queue(0), *masks.queue(2)), (1, 7));
        masks.set(None, 3);
        assert_eq!((*masks.queue(0), *masks.queue(2)), (3, 3));
    }
}
