//! One TCP flow through a tunnel over UDP between two hosts, without a cipher: with both crates,
//! with super-packets on the TUN side alone, on the UDP side alone, and with neither.
//!
//! `cargo bench -p superpacket-tun`. The variants alternate; the ratios compare with the last.
#[cfg(target_os = "linux")]
fn main() {
    if let Err(error) = linux::run() {
        println!("not measured: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("not measured: this bench needs Linux");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::net::SocketAddr;
    use std::thread;
    use std::time::Duration;

    use superpacket_lab::{
        LabError, Route, Station, Summary, TcpBulk, TwoHosts, Until,
        enter_user_namespace_if_needed, interleaved,
    };
    use superpacket_tun::{NewBuffers, Offloads, Tun};
    use superpacket_udp::UdpSocket;

    const ROUNDS: usize = 9;
    const WAYS: [(&str, bool, bool); 4] = [
        ("TUN and UDP", true, true),
        ("TUN only", true, false),
        ("UDP only", false, true),
        ("neither", false, false),
    ];

    pub fn run() -> Result<(), LabError> {
        enter_user_namespace_if_needed()?;
        for segmentation in [true, false] {
            let hosts = TwoHosts::new()?;
            hosts.a.link.set_features(&[("tx-udp-segmentation", segmentation)])?;
            for (number, (_, tun, udp)) in WAYS.into_iter().enumerate() {
                end(&hosts.a, &hosts.b, number, 1, tun, udp)?;
                end(&hosts.b, &hosts.a, number, 2, tun, udp)?;
            }
            let load = |number: usize| {
                let address = format!("10.9.{number}.2").parse().expect("an address");
                let route = Route { client: &hosts.a.host, server: &hosts.b.host, address };
                let bulk = TcpBulk {
                    until: Until::Time(Duration::from_millis(800)),
                    ..TcpBulk::default()
                };
                bulk.run(&route).map(|report| {
                    report.forward.map_or(0.0, |direction| direction.gigabits_per_second())
                })
            };
            let (mut first, mut second, mut third, mut fourth) =
                (|| load(0), || load(1), || load(2), || load(3));
            let figures =
                interleaved(ROUNDS, &mut [&mut first, &mut second, &mut third, &mut fourth])?;
            println!(
                "veth, UDP segmentation by the device: {segmentation}. Gb/s, medians of {ROUNDS} (middle half)"
            );
            let last = Summary::new(&figures[3]).median;
            for ((name, ..), figures) in WAYS.iter().zip(&figures) {
                let Summary { median, lower_quartile, upper_quartile, .. } = Summary::new(figures);
                println!(
                    "  {name:12} {median:5.2} ({lower_quartile:.2}-{upper_quartile:.2})  {:.2}x",
                    median / last
                );
            }
        }
        Ok(())
    }

    /// Starts one end of a tunnel; its threads end with the process.
    fn end(
        from: &Station,
        to: &Station,
        number: usize,
        last: usize,
        tun: bool,
        udp: bool,
    ) -> Result<(), LabError> {
        let port = 5000 + number as u16;
        let (device, peer) = (format!("tun{number}"), SocketAddr::from((to.ipv4, port)));
        let (socket, opened) = from.host.run(|| -> Result<_, LabError> {
            let socket = UdpSocket::bind((from.ipv4, port))
                .map_err(|error| LabError::system("binding", error))?;
            let offloads = if tun { Offloads::ALL } else { Offloads::NONE };
            let opened = Tun::builder(&device).mtu(1452).offloads(offloads).open();
            Ok((
                socket,
                opened.map_err(|error| {
                    LabError::system("opening a TUN device", io::Error::from(error))
                })?,
            ))
        })?;
        from.host.link(&device).add_address(&format!("10.9.{number}.{last}/24"))?;
        opened.switches().set_all(tun);
        socket.set_segmentation(udp);
        let (mut reader, mut writer) = opened.split::<Vec<u8>>();
        let (mut sender, mut receiver) = socket.split::<Vec<u8>>();
        thread::spawn(move || {
            let mut packets = Vec::new();
            loop {
                reader
                    .read_into(&mut NewBuffers::new(&mut packets, |length| vec![0; length]))
                    .expect("it reads");
                packets.drain(..).for_each(|packet| sender.push(peer, packet));
                let _ = sender.flush();
            }
        });
        thread::spawn(move || {
            loop {
                receiver
                    .receive()
                    .expect("it receives")
                    .datagrams()
                    .for_each(|(_, datagram)| writer.push(datagram.to_vec()));
                writer.flush().expect("it writes");
            }
        });
        Ok(())
    }
}
