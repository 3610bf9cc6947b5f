//! Errors of port strings.

/// An error in a port string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The port string does not begin with a kind of port and a colon.
    #[error("port {port:?} starts with {}", missing_kind(.port))]
    Kind {
        /// The port string.
        port: String,
    },
    /// No interface or file follows the kind of port.
    #[error("port {port:?} names no interface or file")]
    Device {
        /// The port string.
        port: String,
    },
    /// Only the crate `superpacket-model` opens this kind of port.
    #[error("port {port:?} is in memory or a model NIC: superpacket-model opens it")]
    Modelled {
        /// The port string.
        port: String,
    },
    /// Too many model NICs are nested.
    #[error("port {port:?} nests more than {most} model NICs (nic:...@nic:...)", most = super::MAX_NESTED_NICS)]
    Nested {
        /// The port string.
        port: String,
    },
    /// A port cannot have this name.
    #[error("port {port:?}: name {name:?} {problem}")]
    Name {
        /// The port string.
        port: String,
        /// The name.
        name: String,
        /// What is wrong with the name: a phrase that follows the name in a sentence.
        problem: String,
    },
    /// An option has no value, occurs twice, is unknown, or has an invalid value.
    #[error("port {port:?}: option {option:?} {problem}")]
    Option {
        /// The port string.
        port: String,
        /// The option as it was written.
        option: String,
        /// What is wrong with the option: a phrase that follows the option in a sentence.
        problem: String,
    },
}

impl SpecError {
    /// Describes the error. The port string is left out of the description if it equals `text`,
    /// which the caller has already shown.
    pub fn problem(&self, text: &str) -> String {
        let (SpecError::Kind { port }
        | SpecError::Device { port }
        | SpecError::Modelled { port }
        | SpecError::Nested { port }
        | SpecError::Name { port, .. }
        | SpecError::Option { port, .. }) = self;
        if port != text {
            // The error is about the port wrapped by a model NIC.
            return self.to_string();
        }
        match self {
            SpecError::Kind { port } => format!("it starts with {}", missing_kind(port)),
            SpecError::Device { .. } => "it names no interface or file".to_owned(),
            SpecError::Modelled { .. } => {
                "it is in memory or a model NIC: superpacket-model opens it".to_owned()
            }
            SpecError::Nested { .. } => {
                format!(
                    "it nests more than {} model NICs (nic:...@nic:...)",
                    super::MAX_NESTED_NICS
                )
            }
            SpecError::Name { name, problem, .. } => format!("name {name:?} {problem}"),
            SpecError::Option { option, problem, .. } => format!("option {option:?} {problem}"),
        }
    }
}

/// Lists the kinds of ports, and suggests what the user of a bare name may have meant. The text
/// continues a sentence after "it starts with".
fn missing_kind(port: &str) -> String {
    let kinds = "no kind of port: tap:, tun:, packet:, xdp:, unix:, vhost:, pcap:, nic:, memory:";
    if port.is_empty() || port.contains(':') {
        kinds.to_owned()
    } else if port.contains('/') || port.contains(".pcap") {
        format!("{kinds} (for this capture: pcap:{port})")
    } else {
        format!("{kinds} (for this interface: packet:{port})")
    }
}
