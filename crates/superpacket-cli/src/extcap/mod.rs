//! `superpacket extcap`: interfaces for Wireshark.
//!
//! Wireshark runs the programs in its extcap folders: to list their interfaces, to ask for the
//! options of one, and to capture into a FIFO. `--install` writes a script there that runs this
//! command with the options of Wireshark.

mod dumpcap;
mod install;
mod merged;
#[cfg(target_os = "linux")]
mod port;
mod sentence;

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};

use crate::failure::Failure;
use crate::report::print;
use merged::MergedOptions;
use sentence::sentence;

/// The name of the extcap interface that provides the merged packets of a network device.
const MERGED: &str = "superpacket";

/// The arguments of `superpacket extcap`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").multiple(false))]
pub(crate) struct ExtcapArguments {
    /// Let Wireshark list the interfaces: write a script into its personal extcap folders, or into
    /// FOLDER
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true, group = "action")]
    install: Option<Option<PathBuf>>,
    /// Remove the script from these folders, or from FOLDER
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true, group = "action")]
    uninstall: Option<Option<PathBuf>>,
    /// With --install: the control socket of a bridge whose ports are listed too; may be repeated
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "PATH")]
    control: Vec<PathBuf>,
    #[command(flatten)]
    merged: MergedOptions,
    #[command(flatten)]
    protocol: ProtocolOptions,
}

/// The options by which Wireshark calls an extcap program.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the extcap protocol, which Wireshark gives")]
struct ProtocolOptions {
    /// List the interfaces
    #[arg(long, group = "action")]
    extcap_interfaces: bool,
    /// The version of Wireshark
    #[arg(long, value_name = "VERSION", requires = "extcap_interfaces")]
    extcap_version: Option<String>,
    /// The interface that the other options are about
    #[arg(long, value_name = "NAME")]
    extcap_interface: Option<String>,
    /// List the link type of the interface
    #[arg(long, group = "action", requires = "extcap_interface")]
    extcap_dlts: bool,
    /// List the options of the interface
    #[arg(long, group = "action", requires = "extcap_interface")]
    extcap_config: bool,
    /// List the values of this option again
    #[arg(long, value_name = "OPTION", requires = "extcap_interface")]
    extcap_reload_option: Option<String>,
    /// Capture, and write the packets to the FIFO
    #[arg(long, group = "action", requires_all = ["extcap_interface", "fifo"])]
    capture: bool,
    /// Where the capture is written
    #[arg(long, value_name = "PATH", requires = "capture")]
    fifo: Option<PathBuf>,
    /// Capture only packets that match an expression in the syntax of tcpdump (pcap-filter).
    /// Without --capture: print what is wrong with it
    #[arg(long, value_name = "EXPRESSION", requires = "extcap_interface")]
    extcap_capture_filter: Option<String>,
}

/// An interface that Wireshark lists.
enum ExtcapInterface {
    /// The merged packets of a device.
    Merged,
    /// The port of a running bridge.
    #[cfg(target_os = "linux")]
    Port(port::ListedPort),
}

/// Runs `superpacket extcap`.
pub(crate) fn run(arguments: &ExtcapArguments) -> Result<(), Failure> {
    let protocol = &arguments.protocol;
    if let Some(folder) = &arguments.install {
        return install::install(folder.as_deref(), &arguments.sockets());
    }
    if let Some(folder) = &arguments.uninstall {
        return install::uninstall(folder.as_deref());
    }
    if protocol.extcap_interfaces {
        return Ok(print(&arguments.interfaces(), false)?);
    }
    let Some(name) = &protocol.extcap_interface else {
        return Err(Failure::Usage(
            "Wireshark runs this command, after `superpacket extcap --install`".to_owned(),
        ));
    };
    let filter = protocol.extcap_capture_filter.as_deref();
    let interface = arguments.interface(name)?;
    if let (true, Some(fifo)) = (protocol.capture, &protocol.fifo) {
        return interface.capture(&arguments.merged, filter, fifo);
    }
    let text = match (&protocol.extcap_reload_option, filter) {
        (Some(option), _) => interface.values(option)?,
        (None, _) if protocol.extcap_config => interface.options()?,
        (None, _) if protocol.extcap_dlts => interface.link_type(),
        (None, Some(filter)) => interface.filter_problem(filter)?,
        (None, None) => {
            return Err(Failure::Usage(
                "--extcap-interface: needs --extcap-dlts, --extcap-config or --capture".to_owned(),
            ));
        }
    };
    Ok(print(&text, false)?)
}

impl ExtcapArguments {
    /// Returns the control sockets that the user has named.
    fn sockets(&self) -> Vec<PathBuf> {
        #[cfg(target_os = "linux")]
        return self.control.clone();
        #[cfg(not(target_os = "linux"))]
        Vec::new()
    }

    /// Returns the extcap lines that list the interfaces.
    fn interfaces(&self) -> String {
        let mut text = sentence(
            "extcap",
            &[
                ("version", env!("CARGO_PKG_VERSION")),
                ("help", concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/captures.md")),
            ],
        );
        text.push_str(&sentence(
            "interface",
            &[("value", MERGED), ("display", "Merged packets of an interface (GRO, LRO)")],
        ));
        #[cfg(target_os = "linux")]
        for port in port::list(&self.control) {
            let fields = [("value", port.name.as_str()), ("display", &port.display())];
            text.push_str(&sentence("interface", &fields));
        }
        text
    }

    /// Returns the interface of this name.
    ///
    /// # Errors
    /// If there is none.
    fn interface(&self, name: &str) -> Result<ExtcapInterface, Failure> {
        if name == MERGED {
            return Ok(ExtcapInterface::Merged);
        }
        #[cfg(target_os = "linux")]
        if let Some(port) = port::list(&self.control).into_iter().find(|port| port.name == name) {
            return Ok(ExtcapInterface::Port(port));
        }
        Err(Failure::Usage(format!(
            "there is no interface {name:?}: `superpacket extcap --extcap-interfaces` lists them"
        )))
    }
}

impl ExtcapInterface {
    /// Returns the extcap line with the interface's link type. Wireshark only displays it: the
    /// capture itself states the link type of each packet.
    fn link_type(&self) -> String {
        let [number, name, display] = match self {
            ExtcapInterface::Merged => ["1", "EN10MB", "Ethernet, or that of the device"],
            #[cfg(target_os = "linux")]
            ExtcapInterface::Port(port) if port.is_raw => ["12", "RAW", "Raw IP"],
            #[cfg(target_os = "linux")]
            ExtcapInterface::Port(_) => ["1", "EN10MB", "Ethernet"],
        };
        sentence("dlt", &[("number", number), ("name", name), ("display", display)])
    }

    /// Returns the extcap lines that describe the interface's options.
    fn options(&self) -> Result<String, Failure> {
        match self {
            ExtcapInterface::Merged => MergedOptions::describe(),
            #[cfg(target_os = "linux")]
            ExtcapInterface::Port(_) => Ok(String::new()),
        }
    }

    /// Returns the extcap lines with the values of an option. Wireshark gives the option's name
    /// with or without its dashes.
    fn values(&self, option: &str) -> Result<String, Failure> {
        match self {
            ExtcapInterface::Merged if option.trim_start_matches('-') == "device" => {
                MergedOptions::devices()
            }
            _ => Err(Failure::Usage(format!("--extcap-reload-option: no values for {option:?}"))),
        }
    }

    /// Returns an error message for an invalid capture filter; empty if the filter is valid.
    fn filter_problem(&self, filter: &str) -> Result<String, Failure> {
        match self {
            ExtcapInterface::Merged => dumpcap::filter_problem(filter),
            #[cfg(target_os = "linux")]
            ExtcapInterface::Port(_) => Ok(format!("{}\n", port::NO_FILTER)),
        }
    }

    fn capture(
        &self,
        options: &MergedOptions,
        filter: Option<&str>,
        fifo: &Path,
    ) -> Result<(), Failure> {
        match self {
            ExtcapInterface::Merged => options.capture(filter, fifo),
            #[cfg(target_os = "linux")]
            ExtcapInterface::Port(_) if filter.is_some() => {
                Err(Failure::Usage(port::NO_FILTER.to_owned()))
            }
            #[cfg(target_os = "linux")]
            ExtcapInterface::Port(port) => port.capture(fifo),
        }
    }
}
