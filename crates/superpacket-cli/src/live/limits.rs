//! `superpacket limits`: the limits of a bridge's ports, shown and set.

use superpacket_bridge::report::PortReport;

use super::arguments::Limits;
use super::connect;
use crate::amount::{nanoseconds, size};
use crate::failure::Failure;
use crate::report::{print, print_json, printable};

/// Shows, or sets and shows.
pub(crate) fn run(arguments: &Limits) -> Result<(), Failure> {
    let mut client = connect(&arguments.connection)?;
    let ports = match (&arguments.port, &arguments.name, &arguments.value) {
        (Some(port), Some(name), Some(text)) => {
            // As files write it, too.
            let name = name.replace('-', "_");
            vec![match name.as_str() {
                "too_big" => client.set_too_big(port, text)?,
                _ => client.set_limit(port, &name, value(&name, text)?)?,
            }]
        }
        (port, ..) => client.ports(port.as_deref())?,
    };
    if arguments.json {
        let limits = |port: &PortReport| serde_json::json!({ "port": port.port, "limits": port.limits, "too_big": port.too_big });
        print_json(&ports.iter().map(limits).collect::<Vec<_>>())?;
    } else {
        print(&ports.iter().map(limits).collect::<Vec<_>>().join("\n"), false)?;
    }
    Ok(())
}

/// A limit's value: times have units (a number alone is nanoseconds, as the protocol has it), sizes may have.
fn value(name: &str, text: &str) -> Result<u64, Failure> {
    let read = match name.ends_with("_timeout") {
        true => text.parse().or_else(|_| nanoseconds(text)),
        false => size(text),
    };
    read.map_err(|problem| Failure::Usage(format!("{name}: {problem}")))
}

fn limits(port: &PortReport) -> String {
    let unit = |name: &str| if name.ends_with("_timeout") { " ns" } else { " bytes" };
    let lines = port.limits.iter().map(|(name, value)| format!("{}: {value}{}\n", printable(name), unit(name)));
    format!("Limits for {}:\n{}too_big: {}\n", printable(&port.port), lines.collect::<String>(), printable(&port.too_big))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        for (name, text, expected) in [
            ("gro_flush_timeout", "50us", 50_000),
            ("gro_flush_timeout", "50000", 50_000),
            ("gro_flush_timeout", "0", 0),
            ("gso_max_size", "32k", 32_768),
            ("gro_max_size", "65535", 65_535),
        ] {
            assert_eq!(value(name, text).expect(text), expected);
        }
        let error = value("gso_max_size", "big").expect_err("no number").to_string();
        assert!(error.starts_with("gso_max_size: "), "{error}");
    }
}
