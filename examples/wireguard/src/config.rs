//! A parser of configuration files of `wg` and `wg-quick`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use gotatun::device::Peer;
use gotatun::x25519::{PublicKey, StaticSecret};
use ini::{Ini, Properties};
use ipnetwork::IpNetwork;

/// The settings in a configuration file.
pub struct Config {
    /// The private key of this endpoint.
    pub private_key: StaticSecret,
    /// Port to which peers send; 0 lets the host choose.
    pub listen_port: u16,
    /// Longest packet in the tunnel, in bytes.
    pub mtu: u32,
    /// Mark of the datagrams of this endpoint, by which routes distinguish them from the tunnel's
    /// packets.
    pub mark: Option<u32>,
    /// The peers of this endpoint.
    pub peers: Vec<Peer>,
}

impl Config {
    /// Reads a configuration file. Unknown settings are errors, including those of `wg-quick` for
    /// addresses and routes, which must be set by `ip`.
    pub fn read(path: &Path) -> Result<Self> {
        let ini = Ini::load_from_file(path)?;
        let interface =
            ini.section(Some("Interface")).context("there is no section [Interface]")?;
        for (section, properties) in ini.iter() {
            let known: &[&str] = match section {
                Some("Interface") => &["PrivateKey", "ListenPort", "MTU", "FwMark"],
                Some("Peer") => {
                    &["PublicKey", "PresharedKey", "AllowedIPs", "Endpoint", "PersistentKeepalive"]
                }
                _ => &[],
            };
            for (key, _) in properties {
                ensure!(
                    known.contains(&key),
                    "[{}]: {key}: allowed are {}",
                    section.unwrap_or(""),
                    known.join(", ")
                );
            }
        }
        Ok(Config {
            private_key: StaticSecret::from(
                key(interface, "PrivateKey")?.context("[Interface]: PrivateKey is missing")?,
            ),
            listen_port: number(interface, "ListenPort")?.unwrap_or(0),
            mtu: number(interface, "MTU")?.unwrap_or(1420),
            mark: number(interface, "FwMark")?,
            peers: ini
                .section_all(Some("Peer"))
                .map(peer)
                .collect::<Result<_>>()
                .context("[Peer]")?,
        })
    }
}

fn peer(section: &Properties) -> Result<Peer> {
    let mut peer =
        Peer::new(PublicKey::from(key(section, "PublicKey")?.context("PublicKey is missing")?));
    peer.preshared_key = key(section, "PresharedKey")?;
    peer.keepalive = number(section, "PersistentKeepalive")?;
    peer.endpoint = section.get("Endpoint").map(endpoint).transpose()?;
    for networks in section.get_all("AllowedIPs") {
        for network in networks.split(',').map(str::trim) {
            peer.allowed_ips.push(
                IpNetwork::from_str(network).with_context(|| format!("AllowedIPs: {network}"))?,
            );
        }
    }
    Ok(peer)
}

fn endpoint(text: &str) -> Result<SocketAddr> {
    let mut addresses =
        text.to_socket_addrs().with_context(|| format!("Endpoint: {text}: HOST:PORT is wanted"))?;
    addresses.next().with_context(|| format!("Endpoint: {text}: the name has no address"))
}

fn key(section: &Properties, name: &str) -> Result<Option<[u8; 32]>> {
    let Some(text) = section.get(name) else { return Ok(None) };
    // The error must not show the text, which is a secret.
    match STANDARD.decode(text).map(<[u8; 32]>::try_from) {
        Ok(Ok(key)) => Ok(Some(key)),
        _ => bail!("{name}: 32 bytes in base64 are wanted"),
    }
}

fn number<N: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    section: &Properties,
    name: &str,
) -> Result<Option<N>> {
    section
        .get(name)
        .map(|text| text.parse().with_context(|| format!("{name}: {text}")))
        .transpose()
}
