//! The command line of `superpacket bridge`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use superpacket_bridge::vlan::VlanProtocol;
use superpacket_daemon::reload::OnReload;
use superpacket_port::features::Feature;
use superpacket_port::{PortSpec, SpecError};

use super::connection::ControlOptions;
use super::features::feature_name;
use super::logging::LogFormat;

/// The arguments of `superpacket bridge`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BridgeArguments {
    /// Ports to join
    #[arg(value_name = "PORT", required_unless_present = "config", conflicts_with = "config", value_parser = port_spec)]
    pub(crate) ports: Vec<PortSpec>,
    /// Read ports and settings from a file; the options below take precedence over the file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Serve the counters for Prometheus at http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Number of threads that move packets; 0: one per CPU, and at most one per port
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1024))]
    pub(crate) threads: Option<u16>,
    /// Poll for packets all the time instead of waiting for them: less delay, a CPU at 100 %
    #[arg(long)]
    pub(crate) busy_poll: bool,
    /// Let packets pass only between ports of their VLAN (`superpacket vlan`)
    #[arg(long)]
    pub(crate) vlan_filtering: bool,
    /// Tags that carry a packet's VLAN if the bridge filters by VLAN: 802.1ad for a provider
    /// bridge, which filters by the service tag and passes the customer tag [default: 802.1Q]
    #[arg(long, value_name = "802.1Q|802.1ad")]
    pub(crate) vlan_protocol: Option<VlanProtocol>,
    /// Send multicast packets only to ports that have joined their group by IGMP or MLD, and to
    /// routers (`superpacket mdb`)
    #[arg(long)]
    pub(crate) multicast_snooping: bool,
    /// Open interfaces that belong to another bridge, although both bridges then forward every
    /// frame
    #[arg(long)]
    pub(crate) shared_interfaces: bool,
    /// Become this user (a name or a number) after the ports are open, and keep only the
    /// capabilities needed to open them again
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Switch an offload of a port, named as in ethtool: packet:eth0:gro=off, left:gro=off
    #[arg(long, value_name = "PORT:FEATURE=on|off", value_parser = feature_switch)]
    pub(crate) feature: Vec<FeatureSwitch>,
    /// Set a limit of a port, named as in `superpacket limits`: packet:eth0:storm_broadcast=1000
    #[arg(long, value_name = "PORT:NAME=VALUE", value_parser = port_limit)]
    pub(crate) limit: Vec<PortLimit>,
    /// What SIGHUP does to changes that commands have made since the file was read: undo them, or
    /// keep those whose setting is unchanged in the file [default: undo]
    #[arg(long, value_name = "undo|keep")]
    pub(crate) on_reload: Option<OnReload>,
    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Log level: error, warn, info, debug, trace, or by module as in
    /// superpacket_bridge=debug,info; modules belong to superpacket, superpacket_bridge,
    /// superpacket_daemon or superpacket_port
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log: String,
    /// Print the ports' counters as JSON at the end
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Parses a port string. The error does not repeat the string, because clap prints it.
fn port_spec(text: &str) -> Result<PortSpec, String> {
    text.parse().map_err(|error: SpecError| error.problem(text))
}

/// A `--limit` option: a setting of a port and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortLimit {
    pub(crate) port: String,
    pub(crate) name: String,
    pub(crate) value: String,
}

/// Parses `packet:eth0?version=v3:storm_broadcast=1000`, from the end like [`feature_switch`].
fn port_limit(text: &str) -> Result<PortLimit, String> {
    let parts =
        text.rsplit_once('=').and_then(|(rest, value)| Some((rest.rsplit_once(':')?, value)));
    let ((port, name), value) = parts.ok_or("write PORT:NAME=VALUE")?;
    Ok(PortLimit { port: port.to_owned(), name: name.to_owned(), value: value.to_owned() })
}

/// A `--feature` option: an offload of a port to switch on or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeatureSwitch {
    pub(crate) port: String,
    pub(crate) feature: Feature,
    pub(crate) on: bool,
}

/// Parses `packet:eth0?version=v3:gro=off`, from the end, because port strings contain colons and
/// equals signs too.
fn feature_switch(text: &str) -> Result<FeatureSwitch, String> {
    let parts =
        text.rsplit_once('=').and_then(|(rest, state)| Some((rest.rsplit_once(':')?, state)));
    let ((port, feature), state) = parts.ok_or("write PORT:FEATURE=on or PORT:FEATURE=off")?;
    let on = match state {
        "on" => true,
        "off" => false,
        _ => return Err(format!("{state:?} is neither on nor off")),
    };
    Ok(FeatureSwitch { port: port.to_owned(), feature: feature_name(feature)?, on })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_parsed_from_their_end() {
        let read = feature_switch("packet:eth0?version=v3:gro=off").expect("reads");
        assert_eq!(
            read,
            FeatureSwitch {
                port: "packet:eth0?version=v3".into(),
                feature: Feature::GenericReceiveOffload,
                on: false
            }
        );
        let read = port_limit("packet:eth0?version=v3:rx-byte-rate=10M").expect("reads");
        assert_eq!(
            read,
            PortLimit {
                port: "packet:eth0?version=v3".into(),
                name: "rx-byte-rate".into(),
                value: "10M".into()
            }
        );
        assert!(port_limit("packet:eth0").is_err() && port_limit("isolated=on").is_err());
        for (text, says) in [
            ("packet:eth0:gro", "PORT:FEATURE=on"),
            ("gro=on", "PORT:FEATURE=on"),
            ("packet:eth0:gro=maybe", "neither on nor off"),
            ("packet:eth0=on", "\"eth0\" is not an offload"),
        ] {
            let error = feature_switch(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
