//! `superpacket bridge`: runs a bridge until a signal ends it.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use superpacket_bridge::Bridge;
use superpacket_bridge::control::{ControlServer, ControlSocket, default_path};
use superpacket_bridge::metrics::MetricsServer;
use superpacket_bridge::privileges::{Account, needed};
use superpacket_bridge::reload::reconcile;
use superpacket_port::system::give_back_large_blocks;

use super::bridge_options;
use super::logging;
use super::plan::Plan;
use crate::failure::Failure;
use crate::report::print_json;

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &bridge_options::Bridge) -> Result<(), Failure> {
    logging::start(&arguments.log, arguments.log_format)?;
    give_back_large_blocks();
    let plan = Plan::read(arguments)?;
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Failure::Bridge(format!("{what}: {error}"))
    };
    // Before anything is made that a signal would leave behind.
    let mut signals = signals().map_err(failed("signals cannot be handled"))?;
    let account = plan
        .user
        .as_deref()
        .map(Account::find)
        .transpose()
        .map_err(|error| Failure::Bridge(error.to_string()))?;
    // What other users may not do is done before the user changes.
    let socket = control_socket(&plan, account.as_ref())?;
    let listener = match plan.metrics {
        Some(address) => {
            Some(TcpListener::bind(address).map_err(failed(&format!("metrics: {address}")))?)
        }
        None => None,
    };
    let keep = needed(plan.settings.ports.iter().map(|port| &port.port));
    let bridge = Bridge::start_with(plan.settings.clone(), || match &account {
        Some(account) => account.become_with(keep),
        None => Ok(()),
    });
    let bridge = Arc::new(bridge.map_err(|error| Failure::Bridge(error.to_string()))?);
    let control = match socket {
        Some(socket) => {
            tracing::info!(path = %socket.path().display(), "control socket");
            Some(
                ControlServer::start(socket, bridge.clone())
                    .map_err(failed("the control socket"))?,
            )
        }
        None => None,
    };
    let metrics = match listener {
        Some(listener) => {
            let server =
                MetricsServer::start(listener, bridge.clone()).map_err(failed("metrics"))?;
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
            reread(arguments, &bridge, &mut running);
        } else {
            tracing::info!(signal = signal_hook::low_level::signal_name(signal), "bridge stops");
            break;
        }
    }
    let counted = bridge.stats();
    for port in &counted {
        let drops: u64 = port.drops.values().sum();
        tracing::info!(
            port = port.port,
            rx_packets = port.rx_packets,
            tx_packets = port.tx_packets,
            drops,
            "counted"
        );
    }
    // Nobody is told any more of what ends now. The last who knows the bridge ends it: it sends
    // what it holds.
    drop((control, metrics));
    drop(bridge);
    tracing::info!("bridge stopped");
    if arguments.json {
        print_json(&counted)?;
    }
    Ok(())
}

/// SIGHUP, SIGTERM and SIGINT as a queue; of the latter two, the second ends the process at once.
fn signals() -> io::Result<Signals> {
    let ending = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal finds the flag clear, and sets it. The exit code is what
        // shells report for a process that a signal ended.
        flag::register_conditional_shutdown(signal, 128 + signal, ending.clone())?;
        flag::register(signal, ending.clone())?;
    }
    Signals::new([SIGHUP, SIGTERM, SIGINT])
}

/// Makes the control socket; `None`, with a warning, where nobody said where and there is no usual
/// place.
fn control_socket(
    plan: &Plan,
    account: Option<&Account>,
) -> Result<Option<ControlSocket>, Failure> {
    let Some(path) = plan.control.clone().or_else(default_path) else {
        tracing::warn!(
            "no control socket: XDG_RUNTIME_DIR is not set, and no --control PATH was given"
        );
        return Ok(None);
    };
    let failed = |error: superpacket_bridge::control::SocketError| {
        Failure::Bridge(format!("control socket {error}"))
    };
    let socket = ControlSocket::bind(&path).map_err(failed)?;
    if let Some(account) = account {
        socket.give_to(account.user(), account.group()).map_err(failed)?;
    }
    Ok(Some(socket))
}

/// Reads the file again and makes the bridge be what it says; whatever is wrong, the bridge goes on
/// as it was.
fn reread(arguments: &bridge_options::Bridge, bridge: &Bridge, running: &mut Plan) {
    let Some(path) = arguments.config.as_deref().map(std::path::Path::display) else {
        tracing::warn!("SIGHUP: the bridge was started without --config: there is no file to read");
        return;
    };
    let plan = match Plan::read(arguments) {
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
    let mut wanted = plan.settings.clone();
    let changes = reconcile(&running.settings, &bridge.settings(), &mut wanted, plan.on_reload);
    match bridge.apply(wanted) {
        Ok(()) => {
            for change in &changes {
                match change.kept {
                    true => tracing::info!(file = %path, "SIGHUP: {change}"),
                    false => tracing::warn!(file = %path, "SIGHUP: {change}"),
                }
            }
            tracing::info!(file = %path, ports = plan.settings.ports.len(), "SIGHUP: the file is in force");
            running.settings = plan.settings;
        }
        Err(error) => {
            tracing::error!(file = %path, %error, "SIGHUP: the file is not in force as a whole")
        }
    }
}
