//! Linux as the oracle: two hosts of its own joined by a veth pair, whose receiving end runs GRO.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use superpacket_io::system::TunKind;
use superpacket_lab::{
    CapturedFrame, Host, LabError, Link, RawOptions, RawSocket, TapFile, VnetHeader,
};
use superpacket_traffic::frame::{ACK, CWR, Frame};

/// The longest frame that the pair carries, in bytes from the IP header on.
const MTU: u32 = 65_535;

/// The most frames of one poll: with both marks fewer than NAPI takes at a time
/// (`NAPI_POLL_WEIGHT`, 64). A poll that takes as many as it may flushes all at its end.
pub const MOST_FRAMES: usize = 60;

/// How long the kernel waits between two polls, at least. It must be longer than it takes to send
/// the frames of one.
const BETWEEN_POLLS: Duration = Duration::from_micros(200);

/// How long frames are waited for, at least. What has not come then, the kernel has dropped.
const PATIENCE: Duration = Duration::from_millis(30);

/// The ports of VXLAN (RFC 7348) and Geneve (RFC 8926).
const TUNNEL_PORTS: [u16; 2] = [4_789, 6_081];

/// The name of the Geneve device.
const GENEVE: &str = "geneve0";

/// The error of a packet that is too long.
const EMSGSIZE: i32 = 90;

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
    end: Link,
    behind_geneve: Option<RawSocket>,
    buffer: Vec<u8>,
    marks: u64,
    patience: Duration,
    rules: Rules,
}

/// What differs from kernel to kernel in what GRO merges. Found out by two packets each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Packets behind VLAN tags merge.
    pub vlans: bool,
    /// Packets in VXLAN merge, to the port of a device.
    pub vxlan: bool,
    /// Packets in Geneve merge, to the port of a device.
    pub geneve: bool,
    /// Packets in VXLAN in Geneve merge, where a GRO hint says where the second tunnel's headers
    /// lie.
    pub gro_hint: bool,
    /// Packets with the same identification and without DF merge.
    pub fixed_ids: bool,
    /// Packets with CWR merge.
    pub cwr: bool,
    /// Packets without CWR merge behind one with it.
    pub first_cwr: bool,
}

impl KernelGro {
    /// Makes the hosts, and switches GRO on for TCP and UDP.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] where namespaces are, [`LabError::Unsupported`] where this kernel's
    /// veth cannot do it, or its packet sockets cannot say what it did.
    pub fn new() -> Result<Self, LabError> {
        let (sender, receiver) = pair()?;
        // Only what cannot be a super-packet goes through the receiver's GRO
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
        // Without such a device, they are datagrams to Linux like others.
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
        kernel.find_rules()?;
        Ok(kernel)
    }

    /// Lets the device poll late enough for this machine: a batch of long frames is sent in a third
    /// of the time.
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
                reason: format!("{error}; the kernel lets only root of the machine set it, not of a user namespace"),
            })?;
        }
        Ok(())
    }

    /// Finds out what this kernel's GRO merges.
    fn find_rules(&mut self) -> Result<(), LabError> {
        let invalid = |error: &LabError| matches!(error, LabError::System { source, .. } if source.kind() == ErrorKind::InvalidInput);
        match self.merges(Frame::udp4(100), Frame::udp4(100)) {
            Ok(_) => {}
            Err(error) if invalid(&error) => {
                let reason =
                    "packet sockets cannot say what UDP super-packets are before Linux 6.2".into();
                return Err(LabError::Unsupported {
                    what: "UDP_L4 in virtio headers".into(),
                    reason,
                });
            }
            Err(error) => return Err(error),
        }
        let [first, second] = [0, 100].map(|sequence| Frame::tcp4(sequence, 100));
        let fragmentable =
            |frame: &Frame| frame.clone().with(|frame| frame.ipv4_mut().dont_fragment = false);
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

    /// Does the kernel merge these? It is asked again where a poll ended between them.
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

    /// Gives the kernel these frames, at most [`MOST_FRAMES`], as those of one poll, and returns
    /// the packets that its stack gets, in order.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where a frame is refused.
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
    /// Gives the kernel these frames as those of one poll, and returns what its Geneve device hands
    /// on of them: packets without the first tunnel. That is to be of Geneve over IPv4, with
    /// Ethernet inside, to 192.0.2.2 and [`KernelGro::mac`].
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

    /// Returns the MAC address of the receiving end.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where the host is gone.
    pub fn mac(&self) -> Result<[u8; 6], LabError> {
        self.end.mac()
    }
}

/// A pair of hosts: super-packets sent in one are cut by the kernel, since the device takes none,
/// and the other gets the segments.
#[derive(Debug)]
pub struct KernelGso {
    sender: GsoSender,
    receiver: RawSocket,
    buffer: Vec<u8>,
    marks: u64,
}

/// The kernel's answer to a super-packet.
#[derive(Debug)]
pub enum Offered<P> {
    /// The call that hands the super-packet to the kernel failed.
    Refused(std::io::Error),
    /// The kernel accepted the super-packet, and these packets arrived at the receiver.
    Taken(Vec<P>),
}

/// How super-packets come into the sending host.
#[derive(Debug)]
enum GsoSender {
    /// By a packet socket on the veth end.
    Packet(RawSocket),
    /// By a TAP device in a bridge with the veth end: a packet socket knows no tunnels.
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
    /// Makes the hosts, and switches off all that the device could do by itself.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] where namespaces are; the kernel's refusals.
    pub fn new() -> Result<Self, LabError> {
        let (sender, receiver) = Self::pair()?;
        let sender =
            RawSocket::open(&sender, RawOptions { vnet_headers: true, ..RawOptions::default() })?;
        Self::of(GsoSender::Packet(sender), &receiver)
    }

    /// Makes the hosts for super-packets in UDP tunnels.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] where this kernel takes none from a TAP device (before Linux
    /// 6.17), or has no bridge; else as [`KernelGso::new`].
    pub fn of_tunnels() -> Result<Self, LabError> {
        let (sender, receiver) = Self::pair()?;
        let tap = TapFile::new(sender.host(), "tap0")?;
        Self::behind_bridge(tap, &sender, &receiver)
    }

    /// Makes the hosts for super-packets that a TAP device takes with a header of 10 bytes.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] where this kernel has no TAP devices or no bridge; else as
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
        // An Ethernet header less, as the driver has it.
        tap.link().set_mtu(MTU - 14)?;
        Link::bridge(sender.host(), "br0", &[tap.link(), sender])?;
        // Frames of both directions come in here, and go out by the other port.
        sender
            .host()
            .set_sysfs(&format!("class/net/{}/brport/learning", tap.link().name()), "0")?;
        // Where a kernel has it, its firewall looks at what passes, and cuts off IPv6 behind a
        // length of 0.
        for table in ["iptables", "ip6tables"] {
            let _ = sender.host().set_sysctl(&format!("net/bridge/bridge-nf-call-{table}"), "0");
        }
        let mut kernel = Self::of(GsoSender::Tap(tap), receiver)?;
        kernel.await_bridge()?;
        Ok(kernel)
    }

    /// Waits until frames pass: a bridge hears of its ports' carriers a little later.
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

    /// Sends a packet, and returns the segments that the other host got; `None` where the kernel
    /// refuses or drops the packet.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where a host is gone.
    pub fn segment(
        &mut self,
        header: VnetHeader,
        packet: &[u8],
    ) -> Result<Option<Vec<CapturedFrame>>, LabError> {
        Ok(match self.offer(header, packet)? {
            Offered::Taken(segments) => Some(segments).filter(|segments| !segments.is_empty()),
            Offered::Refused(_) => None,
        })
    }

    /// Sends a packet, and returns what became of it.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where a host is gone.
    pub fn offer(
        &mut self,
        header: VnetHeader,
        packet: &[u8],
    ) -> Result<Offered<CapturedFrame>, LabError> {
        match self.sender.send(header, packet) {
            // EINVAL: of the header; ENOMEM: of who was to cut the packet (`validate_xmit_skb`);
            // EMSGSIZE: of its length.
            Err(LabError::System { source, .. }) if is_refusal(&source) => {
                return Ok(Offered::Refused(source));
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
                Some(frame) if frame.bytes == mark => return Ok(Offered::Taken(segments)),
                // A bridge joins a multicast group of its own (IGMP).
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

/// Is this the kernel's answer to a super-packet that it does not take?
pub(crate) fn is_refusal(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::OutOfMemory)
        || error.raw_os_error() == Some(EMSGSIZE)
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

/// A frame that nobody aggregates.
fn mark(number: u64) -> [u8; 60] {
    let mut frame = [0; 60];
    // Two stations: a bridge sends nothing back to where it came from.
    (frame[0], frame[5], frame[6]) = (2, 0xfe, 2);
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
    packet
        .bytes
        .len()
        .saturating_sub(transport + headers)
        .div_ceil(usize::from(header.gso_size))
        .max(1)
}
