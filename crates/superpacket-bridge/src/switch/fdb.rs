//! The forwarding database, as iproute2's `bridge fdb` calls it: which hardware address is behind
//! which port.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::switch::vlan::check_number;

/// Maximum number of entries in one [`FdbPage`].
pub const MOST_LISTED: usize = 10_000;

/// A hardware address in a VLAN. Ordered by VLAN, then by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Station {
    /// The VLAN's number, 1 to 4094; 0 for frames without a VLAN tag.
    pub vlan: u16,
    /// The hardware address in network byte order.
    pub address: [u8; 6],
}

impl Station {
    /// Parses an address such as `52:54:00:12:34:56` (or with hyphens), which must be unicast. For
    /// frames without a VLAN tag, `vlan` is `None`.
    ///
    /// # Errors
    /// A sentence: the text is not an address, the address is zero or a group's, or the VLAN is out
    /// of range.
    pub fn parse(address: &str, vlan: Option<u16>) -> Result<Station, String> {
        let station = Station {
            vlan: vlan.unwrap_or(0),
            address: bytes(address).ok_or_else(|| not_an_address(address))?,
        };
        if station.address[0] & 1 != 0 {
            return Err(format!("{address} is a group's address: an entry is for one station"));
        }
        if station.address == [0; 6] {
            return Err(format!("{address} is no station's address"));
        }
        vlan.map_or(Ok(()), check_number)?;
        Ok(station)
    }

    /// Returns the hardware address as text, such as `52:54:00:12:34:56`.
    pub fn mac(&self) -> String {
        self.address.map(|byte| format!("{byte:02x}")).join(":")
    }
}

fn not_an_address(text: &str) -> String {
    format!("{text:?} is no hardware address: write it as 52:54:00:12:34:56")
}

fn bytes(text: &str) -> Option<[u8; 6]> {
    let mut address = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut address {
        // Reject signs, and more than two digits.
        let digits = parts.next().filter(|part| {
            matches!(part.len(), 1 | 2) && part.bytes().all(|digit| digit.is_ascii_hexdigit())
        })?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    parts.next().is_none().then_some(address)
}

impl fmt::Display for Station {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.mac())?;
        match self.vlan {
            0 => Ok(()),
            vlan => write!(formatter, " vlan {vlan}"),
        }
    }
}

/// An entry of the forwarding database, with the field names of iproute2's `bridge -json fdb`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbEntry {
    /// The hardware address.
    pub mac: String,
    /// The name of the port behind which the address is.
    pub ifname: String,
    /// The number of the VLAN; `None` for frames without a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Seconds since the port last received a frame from the address. For a static entry, seconds
    /// since that or since the entry was added. `None` if that is not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<u64>,
    /// `sticky` for static entries, which do not move to another port.
    pub flags: Vec<String>,
    /// `static`, or empty for a learned entry.
    pub state: String,
}

/// Part of the forwarding database: at most [`MOST_LISTED`] entries, ordered by VLAN, then by
/// address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbPage {
    /// The entries.
    pub entries: Vec<FdbEntry>,
    /// Number of entries in the database that come after this page.
    pub more: usize,
}

/// Selects entries of the forwarding database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FdbFilter {
    /// Only entries of this port.
    pub port: Option<String>,
    /// Only entries of this VLAN; 0 for frames without a tag.
    pub vlan: Option<u16>,
    /// Only static entries, or only learned ones.
    pub is_static: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_stations_are_read() {
        let station = Station::parse("52:54:00:12:34:56", Some(10)).expect("one");
        assert_eq!(station, Station { vlan: 10, address: [0x52, 0x54, 0, 0x12, 0x34, 0x56] });
        assert_eq!(station.to_string(), "52:54:00:12:34:56 vlan 10");
        assert_eq!(
            Station::parse("2-0-0-0-0-A", None).expect("one").to_string(),
            "02:00:00:00:00:0a"
        );
        for (text, vlan, says) in [
            ("", None, "\"\" is no hardware address: write it as 52:54:00:12:34:56"),
            ("52:54:00:12:34", None, "no hardware address"),
            ("52:54:00:12:34:56:78", None, "no hardware address"),
            ("52:54:00:12:34:+5", None, "no hardware address"),
            ("52:54:00:12:34:056", None, "no hardware address"),
            ("52:54:00:12:34:5g", None, "no hardware address"),
            ("01:00:5e:00:00:07", None, "01:00:5e:00:00:07 is a group's address"),
            ("ff:ff:ff:ff:ff:ff", Some(1), "is a group's address"),
            ("00:00:00:00:00:00", None, "is no station's address"),
            ("52:54:00:12:34:56", Some(0), "a VLAN is 1 to 4094, not 0"),
            ("52:54:00:12:34:56", Some(4095), "not 4095"),
        ] {
            let error = Station::parse(text, vlan).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
