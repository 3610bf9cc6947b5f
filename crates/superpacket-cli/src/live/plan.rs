//! The configuration of a bridge, from its file and the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use superpacket_bridge::settings::{BridgeSettings, PortSettings};
use superpacket_daemon::config::Config;
use superpacket_daemon::reload::OnReload;

use super::bridge_options::BridgeArguments;
use super::limits::set as set_limit;
use crate::failure::Failure;

/// The configuration of a bridge to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BridgePlan {
    pub(crate) settings: BridgeSettings,
    pub(crate) control: Option<PathBuf>,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) user: Option<String>,
    pub(crate) on_reload: OnReload,
}

impl BridgePlan {
    /// Reads the configuration file, if one is given, and applies the options of the command line,
    /// which take precedence.
    pub(crate) fn read(arguments: &BridgeArguments) -> Result<Self, Failure> {
        let Config { bridge: mut settings, control, metrics, user, on_reload } = match &arguments
            .config
        {
            Some(path) => Config::read(path).map_err(|error| Failure::Usage(error.to_string()))?,
            None => Config::default(),
        };
        settings.ports.extend(arguments.ports.iter().cloned().map(PortSettings::new));
        if settings.ports.is_empty() {
            let file = arguments.config.as_deref().unwrap_or_else(|| "the command line".as_ref());
            return Err(Failure::Usage(format!("{}: names no port", file.display())));
        }
        if let Some(threads) = arguments.threads {
            settings.threads = usize::from(threads);
        }
        settings.busy_poll |= arguments.busy_poll;
        settings.vlan_filtering |= arguments.vlan_filtering;
        settings.vlan_protocol = arguments.vlan_protocol.unwrap_or(settings.vlan_protocol);
        settings.multicast_snooping |= arguments.multicast_snooping;
        settings.shared_interfaces |= arguments.shared_interfaces;
        for switch in &arguments.feature {
            let port = find_port(&mut settings.ports, "--feature", &switch.port)?;
            port.features = port.features.set(switch.feature, switch.on);
        }
        for limit in &arguments.limit {
            set_limit(
                find_port(&mut settings.ports, "--limit", &limit.port)?,
                &limit.name,
                &limit.value,
            )?;
        }
        Ok(BridgePlan {
            settings,
            control: arguments.connection.control.clone().or(control),
            metrics: arguments.metrics.or(metrics),
            user: arguments.user.clone().or(user),
            on_reload: arguments.on_reload.or(on_reload).unwrap_or_default(),
        })
    }
}

/// Returns the settings of the port named `name`, or an error that mentions the command-line option
/// `option`.
fn find_port<'a>(
    ports: &'a mut [PortSettings],
    option: &str,
    name: &str,
) -> Result<&'a mut PortSettings, Failure> {
    let names = ports.iter().map(|port| port.port.name()).collect::<Vec<_>>().join(", ");
    let port = ports.iter_mut().find(|port| port.port.name() == name);
    port.ok_or_else(|| {
        Failure::Usage(format!("{option}: the bridge has no port {name:?}: it has {names}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use superpacket_port::features::Feature;

    fn plan(arguments: &[&str]) -> Result<BridgePlan, String> {
        #[derive(Parser)]
        struct Alone {
            #[command(flatten)]
            bridge: BridgeArguments,
        }
        let parsed = Alone::try_parse_from([&["bridge"], arguments].concat())
            .map_err(|error| error.to_string())?;
        BridgePlan::read(&parsed.bridge).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bridge/bridge.toml");
        let said = plan(&["--config", file]).expect("the example is right");
        assert_eq!(
            (said.settings.ports.len(), said.settings.threads, said.user.as_deref()),
            (2, 0, Some("superpacket"))
        );
        let arguments = [
            "--config",
            file,
            "--threads",
            "3",
            "--busy-poll",
            "--user",
            "nobody",
            "--control",
            "/c",
            "--metrics",
            "[::1]:1",
            "--feature",
            "tap:tap0:gro=off",
            "--limit",
            "tap:tap0:storm-broadcast=7",
        ];
        let changed = plan(&arguments).expect("reads");
        assert_eq!((changed.settings.threads, changed.settings.busy_poll), (3, true));
        assert_eq!((changed.user.as_deref(), changed.control), (Some("nobody"), Some("/c".into())));
        assert_eq!(changed.metrics, Some("[::1]:1".parse().expect("an address")));
        assert!(!changed.settings.ports[1].features.contains(Feature::GenericReceiveOffload));
        assert_eq!(changed.settings.ports[1].limits.rates.storm_broadcast, 7);
        assert_eq!(changed.settings.ports[0], said.settings.ports[0]);
    }

    #[test]
    fn invalid_arguments_are_named() {
        for (arguments, says) in [
            (&[][..], "required"),
            (&["packet:a", "--config", "x.toml"], "cannot be used with"),
            (&["eth0"], "starts with no kind"),
            (
                &["packet:a", "--limit", "packet:b:isolated=on"],
                "--limit: the bridge has no port \"packet:b\": it has packet:a",
            ),
            (
                &["packet:a", "--limit", "packet:a:storm_unknown=many"],
                "storm_unknown: \"many\" is not a number of packets/s",
            ),
            (
                &["packet:a", "--feature", "packet:b:gro=on"],
                "no port \"packet:b\": it has packet:a",
            ),
            (&["--config", "/absent/bridge.toml"], "/absent/bridge.toml: cannot be read"),
            (&["packet:a", "--threads", "5000"], "1024"),
            (&["packet:a", "--metrics", "9600"], "9600"),
        ] {
            let error = plan(arguments).expect_err(says);
            assert!(error.contains(says), "{arguments:?}: {error}");
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().display().to_string();
        assert!(
            plan(&["--config", &path])
                .expect_err("empty")
                .contains(&format!("{path}: names no port"))
        );
    }
}
