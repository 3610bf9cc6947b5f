//! Uses the running kernel as a router between two TUN devices. A super-packet enters through the
//! first device and leaves through the second one in segments, since the second one accepts no
//! super-packets.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use superpacket_lab::{Host, LabError, TapFile, VnetHeader};
use superpacket_port::system::TunKind;
use superpacket_traffic::frame::Frame;

use crate::kernel::{KernelAnswer, is_refusal};

/// Maximum time to wait for the marker packet behind a super-packet.
const PATIENCE: Duration = Duration::from_secs(1);

/// A network namespace that routes packets from one TUN device to another.
#[derive(Debug)]
pub struct Router {
    first: TapFile,
    second: TapFile,
    marks: u32,
}

impl Router {
    /// Creates the namespace and its devices.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] where namespaces are forbidden; [`LabError::Unsupported`] if this
    /// kernel has no TUN devices.
    pub fn new() -> Result<Self, LabError> {
        let host = Host::new("router")?;
        for setting in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            host.set_sysctl(setting, "1")?;
        }
        for setting in ["net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter"] {
            host.set_sysctl(setting, "0")?;
        }
        let [first, second] =
            ["tun0", "tun1"].map(|name| TapFile::plain(&host, name, TunKind::Tun));
        let (first, second) = (first?, second?);
        for tun in [&first, &second] {
            tun.link().set_mtu(65_535)?;
        }
        // The second device's networks include the destinations of generated packets, outside
        // tunnels and in them.
        for address in ["10.255.255.1/8", "192.0.2.129/24", "fdff::1/8", "1ff::1/8"] {
            second.link().add_address(address)?;
        }
        let mut router = Self { first, second, marks: 0 };
        router.begin()?;
        Ok(router)
    }

    /// Waits until packets of both IP versions pass the router: new addresses are usable with a
    /// delay.
    fn begin(&mut self) -> Result<(), LabError> {
        let deadline = Instant::now() + PATIENCE * 10;
        for probe in [Frame::udp4(1), Frame::udp6(1)] {
            let probe = probe.at_ip().to_bytes();
            while !matches!(self.offer(VnetHeader::default(), &probe)?, KernelAnswer::Taken(packets) if !packets.is_empty())
            {
                if Instant::now() > deadline {
                    return Err(LabError::system("waiting for the router", ErrorKind::TimedOut));
                }
            }
        }
        Ok(())
    }

    /// Sends a packet that starts with an IP header through the router, and returns the kernel's
    /// answer. The packets in the answer have hop limits that are lower by one.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the namespace no longer exists.
    pub fn offer(
        &mut self,
        header: VnetHeader,
        packet: &[u8],
    ) -> Result<KernelAnswer<Vec<u8>>, LabError> {
        match self.first.send(header, packet) {
            Err(LabError::System { source, .. }) if is_refusal(&source) => {
                return Ok(KernelAnswer::Refused(source));
            }
            other => other?,
        }
        self.marks += 1;
        let text = format!("mark {}", self.marks);
        let mark = Frame::udp4(0).at_ip().with(|frame| frame.payload = text.clone().into_bytes());
        self.first.send(VnetHeader::default(), &mark.to_bytes())?;
        let (mut packets, deadline) = (Vec::new(), Instant::now() + PATIENCE);
        loop {
            match self.second.receive()?.map(|(_, packet)| packet) {
                Some(packet)
                    if packet.len() == 28 + text.len() && packet.ends_with(text.as_bytes()) =>
                {
                    return Ok(KernelAnswer::Taken(packets));
                }
                // The namespace itself also sends packets, to multicast groups.
                Some(packet) if packet.get(24) == Some(&0xff) && packet[0] >> 4 == 6 => {}
                Some(packet) => packets.push(packet),
                None if Instant::now() > deadline => {
                    return Err(LabError::system("waiting for packets", ErrorKind::TimedOut));
                }
                None => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    }
}
