//! `superpacket features`: shows and switches a bridge's offloads in the manner of ethtool.

use clap::{Args, ValueEnum};
use superpacket_bridge::report::{
    FeatureReport, KernelPathReport, PortFeatures, SegmentationReport,
};
use superpacket_port::features::Feature;

use super::connection::{ControlOptions, connect};
use crate::failure::Failure;
use crate::report::{printable, show};

pub(super) fn feature_name(text: &str) -> Result<Feature, String> {
    text.parse().map_err(|_| {
        format!(
            "{text:?} is not an offload; choose one of {}",
            Feature::ALL.map(Feature::name).join(", ")
        )
    })
}

/// The state of an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FeatureState {
    On,
    Off,
}

/// The arguments of `superpacket features`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FeaturesArguments {
    /// Only this port, by its name, or by its port string if it has none (packet:eth0)
    pub(crate) port: Option<String>,
    /// Offload to switch
    #[arg(value_parser = feature_name, requires = "state")]
    pub(crate) feature: Option<Feature>,
    /// On or off
    #[arg(value_enum, value_name = "on|off", hide_possible_values = true)]
    pub(crate) state: Option<FeatureState>,
    /// Allow large-receive-offload although packets are forwarded: packets that it merges cannot be
    /// restored
    #[arg(long, requires = "state")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Print as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Shows the offloads, or switches one and shows the changes.
pub(crate) fn run(arguments: &FeaturesArguments) -> Result<(), Failure> {
    let mut client = connect(&arguments.connection)?;
    if let (Some(port), Some(feature), Some(state)) =
        (&arguments.port, arguments.feature, arguments.state)
    {
        let before = client.features(Some(port))?;
        let after =
            client.set_feature(port, feature.name(), state == FeatureState::On, arguments.force)?;
        show(arguments.json, &after, || changes(before.first(), &after, feature.name()))?;
        return Ok(());
    }
    let ports = client.features(arguments.port.as_deref())?;
    Ok(show(arguments.json, &ports, || ports.iter().map(features).collect::<Vec<_>>().join("\n"))?)
}

/// Renders all offloads of a port in the format of `ethtool -k`.
fn features(port: &PortFeatures) -> String {
    let lines = port.features.iter().map(line).collect::<String>();
    let segmentation = port.segmentation.as_ref().map(segmentation).unwrap_or_default();
    let kernel_path = port.kernel_path.as_ref().map(kernel_path).unwrap_or_default();
    format!("Features for {}:\n{lines}{segmentation}{kernel_path}", printable(&port.port))
}

/// Renders whether frames of the port are forwarded by the kernel, without passing through this
/// program.
fn kernel_path(report: &KernelPathReport) -> String {
    let state = if report.active { "on" } else { "off" };
    let why = match &report.reason {
        Some(reason) => {
            format!(" [requested {}: {}]", printable(&report.requested), printable(reason))
        }
        None => String::new(),
    };
    format!("kernel-path: {state}{why}\n")
}

/// Renders which super-packets the port, or the kernel behind it, segments. The bridge segments all
/// others in software.
fn segmentation(report: &SegmentationReport) -> String {
    let list = |names: &[String], separator: &str| match names {
        [] => "none".to_owned(),
        names => names.iter().map(|name| printable(name)).collect::<Vec<_>>().join(separator),
    };
    let mut lines = format!(
        "gso-link-headers: {}\ngso-tunnels: {}\ngso-max-ipv4-length: {}\ngso-max-ipv6-length: {}\n",
        list(&report.link_headers, " "),
        list(&report.tunnels, " "),
        report.max_ipv4_length,
        report.max_ipv6_length,
    );
    for (name, kinds) in
        [("gso-refused", &report.refused), ("checksums-refused", &report.refused_checksums)]
    {
        if !kinds.is_empty() {
            lines.push_str(&format!(
                "{name}: {} [switch an offload to try again]\n",
                list(kinds, ", ")
            ));
        }
    }
    lines
}

/// Renders the offloads whose state has changed because `feature` was switched, including dependent
/// offloads, like `ethtool -K`. The switched offload is always shown.
fn changes(before: Option<&PortFeatures>, after: &PortFeatures, feature: &str) -> String {
    let same =
        |report: &FeatureReport| before.is_some_and(|before| before.features.contains(report));
    after
        .features
        .iter()
        .filter(|report| report.feature == feature || !same(report))
        .map(line)
        .collect()
}

fn line(report: &FeatureReport) -> String {
    let state = if report.active { "on" } else { "off" };
    let why = match (&report.reason, report.requested == report.active) {
        (Some(reason), _) => format!(
            " [requested {}: {}]",
            if report.requested { "on" } else { "off" },
            printable(reason)
        ),
        (None, false) => format!(" [requested {}]", if report.requested { "on" } else { "off" }),
        (None, true) => String::new(),
    };
    format!("{}: {state}{why}\n", printable(&report.feature))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(feature: &str, requested: bool, active: bool, reason: Option<&str>) -> FeatureReport {
        FeatureReport {
            feature: feature.into(),
            requested,
            active,
            reason: reason.map(str::to_owned),
        }
    }

    #[test]
    fn it_reads_like_ethtool() {
        let port = PortFeatures {
            port: "packet:eth0".into(),
            features: vec![
                report("generic-receive-offload", true, true, None),
                report("receive-hashing", false, false, None),
                report("large-receive-offload", true, false, Some("packets are forwarded")),
            ],
            segmentation: Some(SegmentationReport {
                link_headers: vec!["plain".into(), "vlan".into()],
                tunnels: vec![],
                max_ipv4_length: 65_517,
                max_ipv6_length: 196_589,
                refused: vec!["TCP over IPv4 in PPPoE".into()],
                refused_checksums: vec![],
            }),
            kernel_path: Some(KernelPathReport {
                requested: "auto".into(),
                active: false,
                reason: Some("rates are limited".into()),
            }),
        };
        assert_eq!(
            features(&port),
            "Features for packet:eth0:\ngeneric-receive-offload: on\nreceive-hashing: off\n\
             large-receive-offload: off [requested on: packets are forwarded]\n\
             gso-link-headers: plain vlan\ngso-tunnels: none\ngso-max-ipv4-length: 65517\ngso-max-ipv6-length: 196589\n\
             gso-refused: TCP over IPv4 in PPPoE [switch an offload to try again]\n\
             kernel-path: off [requested auto: rates are limited]\n"
        );
    }

    #[test]
    fn a_switch_shows_dependent_changes() {
        let before = PortFeatures {
            port: "packet:eth0".into(),
            features: vec![
                report("tx", true, true, None),
                report("tso", true, true, None),
                report("gro", true, true, None),
            ],
            segmentation: None,
            kernel_path: None,
        };
        let mut after = before.clone();
        assert_eq!(
            changes(Some(&before), &after, "gro"),
            "gro: on\n",
            "nothing changed: how it is"
        );
        after.features[0] = report("tx", false, false, None);
        after.features[1] = report("tso", true, false, Some("it needs tx, which is off"));
        assert_eq!(
            changes(Some(&before), &after, "tx"),
            "tx: off\ntso: off [requested on: it needs tx, which is off]\n"
        );
    }
}
