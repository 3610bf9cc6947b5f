//! Linux as the oracle: two hosts of its own joined by a veth pair, whose receiving end runs GRO.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use superpacket_lab::{CapturedFrame, Host, LabError, Link, RawOptions, RawSocket, VnetHeader};

/// The longest frame that the pair carries, in bytes from the IP header on.
const MTU: u32 = 65_535;

/// The most frames of one poll: with both marks fewer than NAPI takes at a time
/// (`NAPI_POLL_WEIGHT`, 64). A poll that takes as many as it may flushes all at its end.
pub const MOST_FRAMES: usize = 60;

/// How long the kernel waits between two polls, in nanoseconds: longer than it takes to send the
/// frames of one.
const BETWEEN_POLLS: u64 = 200_000;

/// How long frames are waited for. What has not come then, the kernel has dropped.
const PATIENCE: Duration = Duration::from_millis(30);

/// EtherType of marks (for local experiments, IEEE 802); the generator's traffic has none of it.
const MARK: [u8; 2] = [0x88, 0xb6];

/// A pair of hosts: frames sent in one are received by the other's GRO as those of one poll.
///
/// A device that defers its interrupts (`napi_defer_hard_irqs`) polls once at the first frame,
/// which is a mark, and then not before `gro_flush_timeout` has passed. All other frames are sent
/// in between, so the next poll finds them together. The poll after that one finds none, and
/// flushes what is held.
#[derive(Debug)]
pub struct KernelGro {
    sender: RawSocket,
    receiver: RawSocket,
    buffer: Vec<u8>,
    marks: u64,
}

impl KernelGro {
    /// Makes the hosts, and switches GRO on for TCP and UDP.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] where namespaces are, [`LabError::Unsupported`] where this kernel's
    /// veth cannot do it.
    pub fn new() -> Result<Self, LabError> {
        let (sender, receiver) = pair()?;
        // Only what cannot be a super-packet goes through the receiver's GRO
        // (veth_skb_is_eligible_for_gro).
        sender.set_feature("tcp-segmentation-offload", false)?;
        let unsupported = |what: &str, error: LabError| LabError::Unsupported { what: what.into(), reason: error.to_string() };
        receiver.set_feature("generic-receive-offload", true).map_err(|error| unsupported("GRO on veth", error))?;
        receiver.set_feature("rx-udp-gro-forwarding", true).map_err(|error| unsupported("GRO for UDP on veth", error))?;
        for (setting, value) in [("gro_flush_timeout", BETWEEN_POLLS), ("napi_defer_hard_irqs", 1)] {
            let set = receiver.host().set_sysfs(&format!("class/net/{}/{setting}", receiver.name()), &value.to_string());
            set.map_err(|error| LabError::Forbidden {
                what: setting.into(),
                reason: format!("{error}; the kernel lets only root of the machine set it, not of a user namespace"),
            })?;
        }
        let options = RawOptions { vnet_headers: true, ..RawOptions::default() };
        let (sender, receiver) = (RawSocket::open(&sender, options)?, RawSocket::open(&receiver, options)?);
        Ok(Self { sender, receiver, buffer: vec![0; 1 << 18], marks: 0 })
    }

    /// Gives the kernel these frames, at most [`MOST_FRAMES`], as those of one poll, and returns
    /// the packets that its stack gets, in order.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where a frame is refused.
    pub fn receive(&mut self, frames: &[(VnetHeader, &[u8])]) -> Result<Vec<CapturedFrame>, LabError> {
        assert!(frames.len() <= MOST_FRAMES, "{} frames are more than one poll takes", frames.len());
        let marks = [0, 1].map(|place| mark(self.marks + place));
        self.marks += 2;
        while self.receiver.receive(&mut self.buffer)?.is_some() {}
        let mut sent = vec![(VnetHeader::default(), &marks[0][..])];
        sent.extend_from_slice(frames);
        sent.push((VnetHeader::default(), &marks[1][..]));
        self.sender.send_with_headers(&sent)?;

        let (mut packets, mut missing, mut marked) = (Vec::new(), frames.len(), false);
        let deadline = Instant::now() + PATIENCE;
        while missing > 0 || !marked {
            match next(&mut self.receiver, &mut self.buffer, deadline)? {
                Some(packet) if packet.bytes == marks[1] => marked = true,
                Some(packet) if packet.bytes.get(12..14) == Some(&MARK) => {}
                Some(packet) => {
                    missing = missing.saturating_sub(packets_in(&packet));
                    packets.push(packet);
                }
                None => break,
            }
        }
        Ok(packets)
    }
}

/// A pair of hosts: super-packets sent in one are cut by the kernel, since the device takes none,
/// and the other gets the segments.
#[derive(Debug)]
pub struct KernelGso {
    sender: RawSocket,
    receiver: RawSocket,
    buffer: Vec<u8>,
    marks: u64,
}

impl KernelGso {
    /// Makes the hosts, and switches off all that the device could do by itself.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] where namespaces are; the kernel's refusals.
    pub fn new() -> Result<Self, LabError> {
        let (sender, receiver) = pair()?;
        sender.set_feature("tx-checksumming", false)?;
        sender.set_feature("tcp-segmentation-offload", false)?;
        sender.set_feature("tx-udp-segmentation", false)?;
        let options = RawOptions { vnet_headers: true, ..RawOptions::default() };
        let (sender, receiver) = (RawSocket::open(&sender, options)?, RawSocket::open(&receiver, options)?);
        Ok(Self { sender, receiver, buffer: vec![0; 1 << 18], marks: 0 })
    }

    /// Sends a packet, and returns the segments that the other host got; `None` where the kernel
    /// refuses the packet.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where a host is gone.
    pub fn segment(&mut self, header: VnetHeader, packet: &[u8]) -> Result<Option<Vec<CapturedFrame>>, LabError> {
        match self.sender.send_with_headers(&[(header, packet)]) {
            // EINVAL: of the header; ENOMEM: of who was to cut the packet (`validate_xmit_skb`).
            Err(LabError::System { source, .. }) if matches!(source.kind(), ErrorKind::InvalidInput | ErrorKind::OutOfMemory) => {
                return Ok(None);
            }
            other => other?,
        }
        let mark = mark(self.marks);
        self.marks += 1;
        self.sender.send_with_headers(&[(VnetHeader::default(), &mark[..])])?;
        let mut segments = Vec::new();
        let deadline = Instant::now() + PATIENCE * 10;
        loop {
            match next(&mut self.receiver, &mut self.buffer, deadline)? {
                Some(frame) if frame.bytes == mark => return Ok(Some(segments)),
                Some(frame) => segments.push(frame),
                None => return Err(LabError::system("waiting for segments", ErrorKind::TimedOut)),
            }
        }
    }
}

/// Two hosts that say nothing of their own, and a veth pair between them: sender, receiver.
fn pair() -> Result<(Link, Link), LabError> {
    let (sender, receiver) = (Host::new("sender")?, Host::new("receiver")?);
    for host in [&sender, &receiver] {
        for name in ["all", "default"] {
            // Without IPv6 there is nothing to switch off.
            let _ = host.set_sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
        }
    }
    let (sender, receiver) = Link::veth(&sender, "eth0", &receiver, "eth0")?;
    sender.set_mtu(MTU)?;
    receiver.set_mtu(MTU)?;
    Ok((sender, receiver))
}

/// The next frame; `None` if none has come until the deadline.
fn next(receiver: &mut RawSocket, buffer: &mut [u8], deadline: Instant) -> Result<Option<CapturedFrame>, LabError> {
    loop {
        if let Some(frame) = receiver.receive(buffer)? {
            return Ok(Some(frame));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        receiver.wait(left)?;
    }
}

/// A frame that nobody aggregates.
fn mark(number: u64) -> [u8; 60] {
    let mut frame = [0; 60];
    (frame[0], frame[6]) = (2, 2);
    frame[12..14].copy_from_slice(&MARK);
    frame[14..22].copy_from_slice(&number.to_be_bytes());
    frame
}

/// How many received frames a packet stands for, by its virtio header.
fn packets_in(packet: &CapturedFrame) -> usize {
    let header = packet.vnet.unwrap_or_default();
    if header.gso_type == 0 || header.gso_size == 0 {
        return 1;
    }
    let transport = usize::from(header.csum_start);
    let headers = match header.gso_type & 0x7f {
        5 => 8,
        _ => packet.bytes.get(transport + 12).map_or(20, |offset| usize::from(offset >> 4) * 4),
    };
    packet.bytes.len().saturating_sub(transport + headers).div_ceil(usize::from(header.gso_size)).max(1)
}
