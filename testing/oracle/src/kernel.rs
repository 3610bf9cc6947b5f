//! Linux's GRO and GSO, in two network namespaces that are joined by a veth pair.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use superpacket_lab::{
    CapturedFrame, Host, LabError, Link, RawOptions, RawSocket, TapFile, VnetHeader,
};
use superpacket_port::system::TunKind;
use superpacket_traffic::frame::{ACK, CWR, Frame};

/// Maximum IP packet length of the veth pair, in bytes.
const MTU: u32 = 65_535;

/// Maximum frames per poll. With the marker frames before and after them, they are fewer than
/// NAPI's budget (`NAPI_POLL_WEIGHT`, 64): a poll that uses up its budget flushes all flows.
pub const MOST_FRAMES: usize = 60;

/// Minimum time between two polls of the receiving device. Sending a batch must take less time.
const BETWEEN_POLLS: Duration = Duration::from_micros(200);

/// Minimum time to wait for the frames of a batch. Frames that arrive later count as dropped.
const PATIENCE: Duration = Duration::from_millis(30);

/// The UDP ports of VXLAN (RFC 7348) and Geneve (RFC 8926).
const TUNNEL_PORTS: [u16; 2] = [4_789, 6_081];

/// The name of the Geneve device in the receiving namespace.
const GENEVE: &str = "geneve0";

/// The error number of the system for a packet that is too long.
const EMSGSIZE: i32 = 90;

/// EtherType of the marker frames around each batch (for local experiments, IEEE 802). Generated
/// traffic never uses it.
const MARK: [u8; 2] = [0x88, 0xb6];

/// A pair of network namespaces. Frames sent in one of them are received in the other by one NAPI
/// poll with GRO.
///
/// The receiving device defers its interrupts (`napi_defer_hard_irqs`). It polls at the first
/// frame, which is a marker, and again after `gro_flush_timeout`. All other frames are sent between
/// these polls, so the second poll finds them together. The third poll finds no frames, and flushes
/// the held packets.
#[derive(Debug)]
pub struct KernelGro {
    sender: RawSocket,
    receiver: RawSocket,
    end: Link,
    behind_geneve: Option<RawSocket>,
    buffer: Vec<u8>,
    marks: u64,
    patience: Duration,
    rules: Rules,
}

/// The kinds of packets that a kernel's GRO merges, as far as kernels differ. Each is detected by
/// sending two packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether packets behind VLAN tags merge.
    pub vlans: bool,
    /// Whether packets in VXLAN merge, given a VXLAN device with their UDP port.
    pub vxlan: bool,
    /// Whether packets in Geneve merge, given a Geneve device with their UDP port.
    pub geneve: bool,
    /// Whether packets in VXLAN in Geneve merge, given a GRO hint with the positions of the second
    /// tunnel's headers.
    pub gro_hint: bool,
    /// Whether packets with the same IPv4 identification and without DF merge.
    pub fixed_ids: bool,
    /// Whether TCP segments that all have CWR merge.
    pub cwr: bool,
    /// Whether TCP segments without CWR merge behind one with CWR.
    pub first_cwr: bool,
}

impl KernelGro {
    /// Creates the two namespaces, and enables GRO for TCP and UDP in the receiving one.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] where namespaces are forbidden; [`LabError::Unsupported`] if this
    /// kernel's veth has no GRO, or its packet sockets cannot describe UDP super-packets.
    pub fn new() -> Result<Self, LabError> {
        let (sender, receiver) = pair()?;
        // Only frames that are no super-packets pass through the receiver's GRO
        // (veth_skb_is_eligible_for_gro).
        sender.set_feature("tcp-segmentation-offload", false)?;
        let unsupported = |what: &str, error: LabError| LabError::Unsupported {
            what: what.into(),
            reason: error.to_string(),
        };
        receiver
            .set_feature("generic-receive-offload", true)
            .map_err(|error| unsupported("GRO on veth", error))?;
        receiver
            .set_feature("rx-udp-gro-forwarding", true)
            .map_err(|error| unsupported("GRO for UDP on veth", error))?;
        // Without a VXLAN and a Geneve device, Linux treats packets in these tunnels as ordinary
        // datagrams.
        let vxlan = Link::vxlan(receiver.host(), "vxlan0", TUNNEL_PORTS[0]);
        let geneve = Link::geneve_with_gro_hint(receiver.host(), GENEVE, TUNNEL_PORTS[1]);
        for tunnel in [vxlan, geneve] {
            match tunnel {
                Ok(_) | Err(LabError::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let options = RawOptions { vnet_headers: true, ..RawOptions::default() };
        let (out, in_) = (RawSocket::open(&sender, options)?, RawSocket::open(&receiver, options)?);
        let mut kernel = Self {
            sender: out,
            receiver: in_,
            end: receiver.clone(),
            behind_geneve: None,
            buffer: vec![0; 1 << 18],
            marks: 0,
            patience: PATIENCE,
            rules: Rules::default(),
        };
        kernel.defer_polls(&receiver)?;
        kernel.detect_rules()?;
        Ok(kernel)
    }

    /// Sets the time between polls according to the speed of this machine: three times as long as
    /// sending a batch of long frames takes.
    fn defer_polls(&mut self, receiver: &Link) -> Result<(), LabError> {
        let largest = vec![0x5a; 9_000];
        let batch: Vec<_> =
            (0..MOST_FRAMES as u64).map(|place| [&mark(place)[..], &largest].concat()).collect();
        let batch: Vec<_> = batch.iter().map(|frame| (VnetHeader::default(), &frame[..])).collect();
        let mut shortest = Duration::MAX;
        for _ in 0..8 {
            let begun = Instant::now();
            self.sender.send_with_headers(&batch)?;
            shortest = shortest.min(begun.elapsed());
        }
        let between = BETWEEN_POLLS.max(3 * shortest);
        self.patience = PATIENCE.max(20 * between);
        for (setting, value) in
            [("gro_flush_timeout", between.as_nanos()), ("napi_defer_hard_irqs", 1)]
        {
            let set = receiver
                .host()
                .set_sysfs(&format!("class/net/{}/{setting}", receiver.name()), &value.to_string());
            set.map_err(|error| LabError::Forbidden {
                what: setting.into(),
                reason: format!("{error}; only the root user of the machine may set it, not that of a user namespace"),
            })?;
        }
        Ok(())
    }

    /// Detects what this kernel's GRO merges.
    fn detect_rules(&mut self) -> Result<(), LabError> {
        let invalid = |error: &LabError| matches!(error, LabError::System { source, .. } if source.kind() == ErrorKind::InvalidInput);
        match self.merges(Frame::udp4(100), Frame::udp4(100)) {
            Ok(_) => {}
            Err(error) if invalid(&error) => {
                let reason =
                    "packet sockets cannot describe UDP super-packets before Linux 6.2".into();
                return Err(LabError::Unsupported {
                    what: "UDP_L4 in virtio headers".into(),
                    reason,
                });
            }
            Err(error) => return Err(error),
        }
        let [first, second] = [0, 100].map(|sequence| Frame::tcp4(sequence, 100));
        let fragmentable = |frame: &Frame| frame.clone().with_ipv4(|ip| ip.dont_fragment = false);
        let cwr = |frame: &Frame| frame.clone().with_flags(ACK | CWR);
        let hinted = |frame: &Frame| frame.clone().in_vxlan4().in_geneve().with_gro_hint();
        self.rules = Rules {
            vlans: self.merges(first.clone().tagged(1), second.clone().tagged(1))?,
            vxlan: self.merges(first.clone().in_vxlan4(), second.clone().in_vxlan4())?,
            geneve: self.merges(first.clone().in_geneve(), second.clone().in_geneve())?,
            gro_hint: self.merges(hinted(&first), hinted(&second))?,
            fixed_ids: self.merges(fragmentable(&first), fragmentable(&second))?,
            cwr: self.merges(cwr(&first), cwr(&second))?,
            first_cwr: self.merges(cwr(&first), second)?,
        };
        Ok(())
    }

    /// Returns whether the kernel merges two frames. Tries several times, since a poll may end
    /// between the frames.
    fn merges(&mut self, first: Frame, second: Frame) -> Result<bool, LabError> {
        let frames = [first.to_bytes(), second.to_bytes()];
        let frames: Vec<_> =
            frames.iter().map(|frame| (VnetHeader::default(), &frame[..])).collect();
        for _ in 0..4 {
            if self.receive(&frames)?.len() == 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns what this kernel's GRO merges.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Sends frames, at most [`MOST_FRAMES`], so that the kernel receives them in one poll, and
    /// returns the packets that the receiving stack gets, in order.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses to send a frame.
    pub fn receive(
        &mut self,
        frames: &[(VnetHeader, &[u8])],
    ) -> Result<Vec<CapturedFrame>, LabError> {
        assert!(
            frames.len() <= MOST_FRAMES,
            "{} frames are more than one poll takes",
            frames.len()
        );
        let marks = [0, 1].map(|place| mark(self.marks + place));
        self.marks += 2;
        while self.receiver.receive(&mut self.buffer)?.is_some() {}
        let mut sent = vec![(VnetHeader::default(), &marks[0][..])];
        sent.extend_from_slice(frames);
        sent.push((VnetHeader::default(), &marks[1][..]));
        self.sender.send_with_headers(&sent)?;

        let (mut packets, mut missing, mut marked) = (Vec::new(), frames.len(), false);
        let deadline = Instant::now() + self.patience;
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

impl KernelGro {
    /// Sends frames so that the kernel receives them in one poll, and returns the packets that its
    /// Geneve device delivers, without the first tunnel.
    ///
    /// The first tunnel of each frame must be Geneve over IPv4 with an inner Ethernet header. The
    /// outer IPv4 destination must be 192.0.2.2, and the MAC destination [`KernelGro::mac`].
    ///
    /// # Errors
    ///
    /// As [`KernelGro::receive`].
    pub fn receive_behind_geneve(
        &mut self,
        frames: &[(VnetHeader, &[u8])],
    ) -> Result<Vec<CapturedFrame>, LabError> {
        let mut socket = match self.behind_geneve.take() {
            Some(socket) => socket,
            None => {
                self.end.add_address("192.0.2.2/24")?;
                let device = self.end.host().link(GENEVE);
                RawSocket::open(
                    &device,
                    RawOptions { vnet_headers: true, ..RawOptions::default() },
                )?
            }
        };
        while socket.receive(&mut self.buffer)?.is_some() {}
        self.receive(frames)?;
        let deadline = Instant::now() + self.patience;
        let mut packets: Vec<_> =
            next(&mut socket, &mut self.buffer, deadline)?.into_iter().collect();
        while let Some(packet) = socket.receive(&mut self.buffer)? {
            packets.push(packet);
        }
        self.behind_geneve = Some(socket);
        Ok(packets)
    }

    /// Returns the MAC address of the receiving device.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the namespace no longer exists.
    pub fn mac(&self) -> Result<[u8; 6], LabError> {
        self.end.mac()
    }
}

/// A pair of network namespaces. The kernel segments the super-packets sent in one of them, since
/// the sending device has no TSO, and the segments are received in the other.
#[derive(Debug)]
pub struct KernelGso {
    sender: GsoSender,
    receiver: RawSocket,
    buffer: Vec<u8>,
    marks: u64,
}

/// The kernel's answer to a super-packet.
#[derive(Debug)]
pub enum KernelAnswer<P> {
    /// The call that hands the super-packet to the kernel failed.
    Refused(std::io::Error),
    /// The kernel accepted the super-packet, and these packets arrived at the receiver.
    Taken(Vec<P>),
}

/// The means by which super-packets enter the sending namespace.
#[derive(Debug)]
enum GsoSender {
    /// A packet socket on the sending end of the veth pair.
    Packet(RawSocket),
    /// A TAP device in a bridge with the sending end of the veth pair, since a packet socket cannot
    /// describe tunnels.
    Tap(TapFile),
}

impl GsoSender {
    fn send(&self, header: VnetHeader, packet: &[u8]) -> Result<(), LabError> {
        match self {
            GsoSender::Packet(socket) => socket.send_with_headers(&[(header, packet)]),
            GsoSender::Tap(tap) => tap.send(header, packet),
        }
    }
}

impl KernelGso {
    /// Creates the two namespaces, with a sending device that has no offloads. A packet socket
    /// sends the super-packets.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] where namespaces are forbidden; other errors of the kernel.
    pub fn new() -> Result<Self, LabError> {
        let (sender, receiver) = Self::pair()?;
        let sender =
            RawSocket::open(&sender, RawOptions { vnet_headers: true, ..RawOptions::default() })?;
        Self::of(GsoSender::Packet(sender), &receiver)
    }

    /// Creates the two namespaces for super-packets in UDP tunnels, which a TAP device sends.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] if this kernel accepts none from a TAP device (before Linux 6.17),
    /// or has no bridge; otherwise as [`KernelGso::new`].
    pub fn of_tunnels() -> Result<Self, LabError> {
        let (sender, receiver) = Self::pair()?;
        let tap = TapFile::new(sender.host(), "tap0")?;
        Self::behind_bridge(tap, &sender, &receiver)
    }

    /// Creates the two namespaces for super-packets that a TAP device sends, with virtio headers of
    /// 10 bytes.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] if this kernel has no TAP devices or no bridge; otherwise as
    /// [`KernelGso::new`].
    pub fn of_plain_tap() -> Result<Self, LabError> {
        let (sender, receiver) = Self::pair()?;
        let tap = TapFile::plain(sender.host(), "tap0", TunKind::Tap)?;
        Self::behind_bridge(tap, &sender, &receiver)
    }

    fn behind_bridge(tap: TapFile, sender: &Link, receiver: &Link) -> Result<Self, LabError> {
        for offload in ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"] {
            sender.set_feature(offload, false)?;
        }
        // The maximum that the TAP driver accepts does not include the Ethernet header.
        tap.link().set_mtu(MTU - 14)?;
        Link::bridge(sender.host(), "br0", &[tap.link(), sender])?;
        // The TAP device receives frames of both directions. Without learning, the bridge sends all
        // frames to the other port.
        sender
            .host()
            .set_sysfs(&format!("class/net/{}/brport/learning", tap.link().name()), "0")?;
        // A bridge firewall, if there is one, would truncate IPv6 packets whose length field is 0.
        for table in ["iptables", "ip6tables"] {
            let _ = sender.host().set_sysctl(&format!("net/bridge/bridge-nf-call-{table}"), "0");
        }
        let mut kernel = Self::of(GsoSender::Tap(tap), receiver)?;
        kernel.await_bridge()?;
        Ok(kernel)
    }

    /// Waits until frames pass the bridge, which learns of its ports' carriers with a delay.
    fn await_bridge(&mut self) -> Result<(), LabError> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match self.segment(VnetHeader::default(), &mark(u64::MAX)) {
                Err(LabError::System { source, .. }) if source.kind() == ErrorKind::TimedOut => {
                    if Instant::now() > deadline {
                        return Err(LabError::system(
                            "waiting for the bridge",
                            ErrorKind::TimedOut,
                        ));
                    }
                }
                other => return other.map(drop),
            }
        }
    }

    fn of(sender: GsoSender, receiver: &Link) -> Result<Self, LabError> {
        let receiver =
            RawSocket::open(receiver, RawOptions { vnet_headers: true, ..RawOptions::default() })?;
        Ok(Self { sender, receiver, buffer: vec![0; 1 << 18], marks: 0 })
    }

    fn pair() -> Result<(Link, Link), LabError> {
        let (sender, receiver) = pair()?;
        sender.set_feature("tx-checksumming", false)?;
        sender.set_feature("tcp-segmentation-offload", false)?;
        sender.set_feature("tx-udp-segmentation", false)?;
        Ok((sender, receiver))
    }

    /// Sends a packet, and returns the segments that the receiving namespace gets; `None` if the
    /// kernel refuses or drops the packet.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if a namespace no longer exists.
    pub fn segment(
        &mut self,
        header: VnetHeader,
        packet: &[u8],
    ) -> Result<Option<Vec<CapturedFrame>>, LabError> {
        Ok(match self.offer(header, packet)? {
            KernelAnswer::Taken(segments) => Some(segments).filter(|segments| !segments.is_empty()),
            KernelAnswer::Refused(_) => None,
        })
    }

    /// Sends a packet, and returns the kernel's answer: an error, or the packets that arrive in the
    /// receiving namespace.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if a namespace no longer exists.
    pub fn offer(
        &mut self,
        header: VnetHeader,
        packet: &[u8],
    ) -> Result<KernelAnswer<CapturedFrame>, LabError> {
        match self.sender.send(header, packet) {
            // EINVAL: a bad virtio header. ENOMEM: segmentation failed (`validate_xmit_skb`).
            // EMSGSIZE: the packet is too long.
            Err(LabError::System { source, .. }) if is_refusal(&source) => {
                return Ok(KernelAnswer::Refused(source));
            }
            other => other?,
        }
        let mark = mark(self.marks);
        self.marks += 1;
        self.sender.send(VnetHeader::default(), &mark)?;
        let mut segments = Vec::new();
        let deadline = Instant::now() + PATIENCE * 10;
        loop {
            match next(&mut self.receiver, &mut self.buffer, deadline)? {
                Some(frame) if frame.bytes == mark => return Ok(KernelAnswer::Taken(segments)),
                // The bridge itself joins a multicast group (IGMP).
                Some(frame)
                    if self.is_behind_bridge()
                        && frame.bytes.first().is_some_and(|first| first & 1 != 0) => {}
                Some(frame) => segments.push(frame),
                None => return Err(LabError::system("waiting for segments", ErrorKind::TimedOut)),
            }
        }
    }

    fn is_behind_bridge(&self) -> bool {
        matches!(self.sender, GsoSender::Tap(_))
    }
}

/// Returns whether an error of a send call means that the kernel refuses the super-packet.
pub(crate) fn is_refusal(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::OutOfMemory)
        || error.raw_os_error() == Some(EMSGSIZE)
}

/// Creates two namespaces that send no packets by themselves, and a veth pair between them. Returns
/// the sending and the receiving end of the pair.
fn pair() -> Result<(Link, Link), LabError> {
    let (sender, receiver) = (Host::new("sender")?, Host::new("receiver")?);
    for host in [&sender, &receiver] {
        for name in ["all", "default"] {
            // Fails without harm if the kernel has no IPv6.
            let _ = host.set_sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
        }
    }
    let (sender, receiver) = Link::veth(&sender, "eth0", &receiver, "eth0")?;
    sender.set_mtu(MTU)?;
    receiver.set_mtu(MTU)?;
    Ok((sender, receiver))
}

/// Returns the next frame that the socket receives; `None` if none arrives before the deadline.
fn next(
    receiver: &mut RawSocket,
    buffer: &mut [u8],
    deadline: Instant,
) -> Result<Option<CapturedFrame>, LabError> {
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

/// Returns a marker frame for the start or end of a batch, which GRO never merges.
fn mark(number: u64) -> [u8; 60] {
    let mut frame = [0; 60];
    // The MAC addresses differ, since a bridge sends no frame back to its source port.
    (frame[0], frame[5], frame[6]) = (2, 0xfe, 2);
    frame[12..14].copy_from_slice(&MARK);
    frame[14..22].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Returns the number of sent frames that a received packet represents, according to its virtio
/// header.
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
    packet
        .bytes
        .len()
        .saturating_sub(transport + headers)
        .div_ceil(usize::from(header.gso_size))
        .max(1)
}
