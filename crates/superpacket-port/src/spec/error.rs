//! Why a port string makes no sense.

/// A port string makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// It does not start with a kind and a colon.
    #[error(
        "port {port:?} starts with no kind of port: tap:, tun:, packet:, xdp:, pcap:, nic:, memory:"
    )]
    Kind {
        /// The port string.
        port: String,
    },
    /// Nothing follows the kind.
    #[error("port {port:?} names no interface or file")]
    Device {
        /// The port string.
        port: String,
    },
    /// It is opened by the crate `superpacket-model`.
    #[error("port {port:?} is in memory or a model NIC: superpacket-model opens it")]
    Modelled {
        /// The port string.
        port: String,
    },
    /// A model NIC around too many others.
    #[error("port {port:?} nests more than {most} model NICs (nic:...@nic:...)", most = super::MOST_NESTED)]
    Nested {
        /// The port string.
        port: String,
    },
    /// A name that a port cannot have.
    #[error("port {port:?}: name {name:?} {problem}")]
    Name {
        /// The port string.
        port: String,
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An option without value, or twice.
    #[error("port {port:?}: option {option:?} {problem}")]
    Option {
        /// The port string.
        port: String,
        /// The option as it was written.
        option: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl SpecError {
    /// Returns what is wrong with the port string `text`, which is not named again: for who has
    /// said that it is about this one.
    pub fn problem(&self, text: &str) -> String {
        let (SpecError::Kind { port }
        | SpecError::Device { port }
        | SpecError::Modelled { port }
        | SpecError::Nested { port }
        | SpecError::Name { port, .. }
        | SpecError::Option { port, .. }) = self;
        if port != text {
            // It is about the port in it, that a model NIC wraps.
            return self.to_string();
        }
        match self {
            SpecError::Kind { .. } => {
                "it starts with no kind of port: tap:, tun:, packet:, xdp:, pcap:, nic:, memory:"
                    .to_owned()
            }
            SpecError::Device { .. } => "it names no interface or file".to_owned(),
            SpecError::Modelled { .. } => {
                "it is in memory or a model NIC: superpacket-model opens it".to_owned()
            }
            SpecError::Nested { .. } => {
                format!("it nests more than {} model NICs (nic:...@nic:...)", super::MOST_NESTED)
            }
            SpecError::Name { name, problem, .. } => format!("name {name:?} {problem}"),
            SpecError::Option { option, problem, .. } => format!("option {option:?} {problem}"),
        }
    }
}
