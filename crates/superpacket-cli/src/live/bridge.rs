//! `superpacket bridge`: runs a bridge until a signal ends it.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use superpacket_bridge::Bridge;
use superpacket_daemon::control::{ControlServer, ControlSocket, default_path};
use superpacket_daemon::metrics::MetricsServer;
use superpacket_daemon::privileges::{Account, needed};
use superpacket_daemon::reload::reconcile;
use superpacket_port::system::give_back_large_blocks;

use super::bridge_options;
use super::logging;
use super::plan::BridgePlan;
use crate::failure::Failure;
use crate::report::print_json;

/// Runs the bridge until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &bridge_options::BridgeArguments) -> Result<(), Failure> {
    logging::start(&arguments.log, arguments.log_format)?;
    give_back_large_blocks();
    let plan = BridgePlan::read(arguments)?;
    let failure = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Failure::Bridge(format!("{what}: {error}"))
    };
    // Must precede everything that a signal would leave behind, such as the control socket.
    let mut signals = signals().map_err(failure("signals cannot be handled"))?;
    let account = plan
        .user
        .as_deref()
        .map(Account::find)
        .transpose()
        .map_err(|error| Failure::Bridge(error.to_string()))?;
    // These steps need rights that the process may give up when it changes the user.
    let socket = control_socket(&plan, account.as_ref())?;
    let listener = match plan.metrics {
        Some(address) => {
            Some(TcpListener::bind(address).map_err(failure(&format!("metrics: {address}")))?)
        }
        None => None,
    };
    let keep = needed(plan.settings.ports.iter().map(|port| &port.port));
    let bridge = Bridge::start_with(plan.settings.clone(), || match &account {
        Some(account) => account.become_with(keep).map_err(Into::into),
        None => Ok(()),
    });
    let bridge = Arc::new(bridge.map_err(|error| Failure::Bridge(error.to_string()))?);
    let control = match socket {
        Some(socket) => {
            tracing::info!(path = %socket.path().display(), "control socket");
            Some(
                ControlServer::start(socket, bridge.clone())
                    .map_err(failure("the control socket"))?,
            )
        }
        None => None,
    };
    let metrics = match listener {
        Some(listener) => {
            let server =
                MetricsServer::start(listener, bridge.clone()).map_err(failure("metrics"))?;
            tracing::info!(address = %server.address(), "metrics");
            Some(server)
        }
        None => None,
    };
    tracing::info!(
        ports = plan.settings.ports.len(),
        user = plan.user.as_deref(),
        "bridge started"
    );
    let mut running = plan;
    for signal in signals.forever() {
        if signal == SIGHUP {
            reload(arguments, &bridge, &mut running);
        } else {
            tracing::info!(signal = signal_hook::low_level::signal_name(signal), "bridge stops");
            break;
        }
    }
    let stats = bridge.stats();
    for port in &stats {
        let drops: u64 = port.drops.values().sum();
        tracing::info!(
            port = port.port,
            rx_packets = port.rx_packets,
            tx_packets = port.tx_packets,
            drops,
            "counted"
        );
    }
    // The servers stop first, so that no client watches the shutdown. Dropping the last reference
    // ends the bridge, which sends the packets it holds.
    drop((control, metrics));
    drop(bridge);
    tracing::info!("bridge stopped");
    if arguments.json {
        print_json(&stats)?;
    }
    Ok(())
}

/// Returns SIGHUP, SIGTERM and SIGINT as a queue. A second SIGTERM or SIGINT ends the process at
/// once.
fn signals() -> io::Result<Signals> {
    let ending = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // The order matters: the first signal finds the flag clear, and then sets it. The exit code
        // is the one that shells report for a process ended by a signal.
        flag::register_conditional_shutdown(signal, 128 + signal, ending.clone())?;
        flag::register(signal, ending.clone())?;
    }
    Signals::new([SIGHUP, SIGTERM, SIGINT])
}

/// Creates the control socket. Returns `None`, with a warning, if no path was given and there is no
/// default path.
fn control_socket(
    plan: &BridgePlan,
    account: Option<&Account>,
) -> Result<Option<ControlSocket>, Failure> {
    let Some(path) = plan.control.clone().or_else(default_path) else {
        tracing::warn!(
            "no control socket: XDG_RUNTIME_DIR is not set, and no --control PATH was given"
        );
        return Ok(None);
    };
    let failure = |error: superpacket_daemon::control::SocketError| {
        Failure::Bridge(format!("control socket {error}"))
    };
    let socket = ControlSocket::bind(&path).map_err(failure)?;
    if let Some(account) = account {
        socket.give_to(account.user(), account.group()).map_err(failure)?;
    }
    Ok(Some(socket))
}

/// Reads the configuration file again and applies it to the running bridge. If the file has an
/// error, the bridge is not changed.
fn reload(arguments: &bridge_options::BridgeArguments, bridge: &Bridge, running: &mut BridgePlan) {
    let Some(path) = arguments.config.as_deref().map(std::path::Path::display) else {
        tracing::warn!("SIGHUP: the bridge was started without --config: there is no file to read");
        return;
    };
    let plan = match BridgePlan::read(arguments) {
        Ok(plan) => plan,
        Err(error) => {
            tracing::error!(file = %path, %error, "SIGHUP: the file is not used, the bridge goes on as it was");
            return;
        }
    };
    if (&plan.control, plan.metrics, &plan.user)
        != (&running.control, running.metrics, &running.user)
    {
        tracing::warn!(file = %path, "SIGHUP: control, metrics and user change at the next start only");
    }
    let mut new_settings = plan.settings.clone();
    let changes =
        reconcile(&running.settings, &bridge.settings(), &mut new_settings, plan.on_reload);
    match bridge.apply(new_settings) {
        Ok(()) => {
            for change in &changes {
                match change.kept {
                    true => tracing::info!(file = %path, "SIGHUP: {change}"),
                    false => tracing::warn!(file = %path, "SIGHUP: {change}"),
                }
            }
            tracing::info!(file = %path, ports = plan.settings.ports.len(), "SIGHUP: the file is applied");
            running.settings = plan.settings;
        }
        Err(error) => {
            tracing::error!(file = %path, %error, "SIGHUP: the file is only partly applied")
        }
    }
}
