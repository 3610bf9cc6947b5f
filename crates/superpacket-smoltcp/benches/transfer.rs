//! A bulk transfer by smoltcp's TCP, with its device wrapped and unwrapped, in turn; medians of the
//! rounds. It runs between two stacks over a wire in memory, over two TAP devices on a kernel
//! bridge, and against the kernel at the other end of a TAP device; then over TAP and TUN devices
//! with super-packets.
//!
//! `cargo bench -p superpacket-smoltcp --features tun [-- ROUNDS]`. Measurements that need a
//! network namespace are skipped if there is none.

#[cfg(target_os = "linux")]
#[path = "../tests/stack/mod.rs"]
mod stack;

#[cfg(target_os = "linux")]
mod linux {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::rc::Rc;
    use std::time::{Duration, Instant as Clock};

    use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TunTapInterface, TxToken};
    use smoltcp::time::Instant;
    use smoltcp::wire::IpAddress;
    use superpacket_lab::{Host, LabError, Link, Paired, paired};
    use superpacket_smoltcp::{HashKey, OffloadDevice, TunDevice};

    use crate::stack::Stack;

    /// Number of bytes of a transfer.
    const LENGTH: usize = 64 << 20;
    const PORT: u16 = 7;
    /// Time after which a transfer counts as stalled.
    const PATIENCE: Duration = Duration::from_secs(60);

    type Queue = Rc<RefCell<VecDeque<Vec<u8>>>>;

    /// One end of a wire in memory.
    struct WireEnd {
        arrived: Queue,
        sent: Queue,
        spare: Queue,
    }

    fn wire() -> [WireEnd; 2] {
        let [left, right, spare] = [Queue::default(), Queue::default(), Queue::default()];
        let end = |arrived: &Queue, sent: &Queue| WireEnd {
            arrived: arrived.clone(),
            sent: sent.clone(),
            spare: spare.clone(),
        };
        [end(&left, &right), end(&right, &left)]
    }

    impl Device for WireEnd {
        type RxToken<'a> = Arrived<'a>;
        type TxToken<'a> = Slot<'a>;

        fn capabilities(&self) -> DeviceCapabilities {
            let mut capabilities = DeviceCapabilities::default();
            capabilities.max_transmission_unit = 1514;
            capabilities
        }

        fn receive(&mut self, _: Instant) -> Option<(Arrived<'_>, Slot<'_>)> {
            let frame = self.arrived.borrow_mut().pop_front()?;
            Some((Arrived(frame, &self.spare), Slot(self)))
        }

        fn transmit(&mut self, _: Instant) -> Option<Slot<'_>> {
            Some(Slot(self))
        }
    }

    struct Arrived<'a>(Vec<u8>, &'a Queue);

    impl RxToken for Arrived<'_> {
        fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
            let result = take(&self.0);
            self.1.borrow_mut().push_back(self.0);
            result
        }
    }

    struct Slot<'a>(&'a WireEnd);

    impl TxToken for Slot<'_> {
        fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
            let mut frame = self.0.spare.borrow_mut().pop_front().unwrap_or_default();
            frame.resize(length, 0);
            let result = fill(&mut frame);
            self.0.sent.borrow_mut().push_back(frame);
            result
        }
    }

    /// Creates a stack whose address ends with this number.
    fn stack<D: Device>(device: D, number: u8) -> Stack<D> {
        Stack::new(device, IpAddress::v4(10, 0, 0, number), number, Instant::now())
    }

    /// Writes to the stack's socket as much as it accepts.
    fn send(stack: &mut Stack<impl Device>, sent: &mut usize) {
        let socket = stack.poll(Instant::now());
        while socket.can_send() && *sent < LENGTH {
            *sent += socket
                .send(|room| (room.len().min(LENGTH - *sent), room.len().min(LENGTH - *sent)))
                .expect("it is open");
        }
    }

    /// Reads all received bytes from the stack's socket.
    fn receive(stack: &mut Stack<impl Device>, received: &mut usize) {
        let socket = stack.poll(Instant::now());
        while socket.can_recv() {
            *received += socket.recv(|bytes| (bytes.len(), bytes.len())).expect("it is open");
        }
    }

    /// Returns the throughput in Gb/s.
    fn speed(start: Clock) -> f64 {
        LENGTH as f64 * 8e-9 / start.elapsed().as_secs_f64()
    }

    fn check(start: Clock) {
        assert!(start.elapsed() < PATIENCE, "the transfer has stopped");
    }

    /// Measures a transfer between two stacks of this thread.
    fn between(devices: [impl Device; 2]) -> f64 {
        let [left, right] = devices;
        let (mut sender, mut receiver) = (stack(left, 1), stack(right, 2));
        receiver.listen(PORT);
        sender.connect((IpAddress::v4(10, 0, 0, 2), PORT), 40_000);
        let (mut sent, mut received, start) = (0, 0, Clock::now());
        while received < LENGTH {
            send(&mut sender, &mut sent);
            receive(&mut receiver, &mut received);
            check(start);
        }
        speed(start)
    }

    /// Measures a transfer from a stack to the kernel, or in the other direction.
    fn with_kernel(host: &Host, device: impl Device, to_kernel: bool) -> Result<f64, LabError> {
        let failed = |error| LabError::system("the kernel's end".to_owned(), error);
        let listener = host.run(|| TcpListener::bind(("10.0.0.2", PORT)).map_err(failed))?;
        let work = move |mut stream: TcpStream| -> std::io::Result<()> {
            let mut bytes = vec![0; 256 << 10];
            let mut left = LENGTH;
            while left > 0 {
                let most = left.min(bytes.len());
                left -= if to_kernel {
                    stream.read(&mut bytes[..most])?
                } else {
                    stream.write(&bytes[..most])?
                };
            }
            // Each read is acknowledged by one byte.
            if to_kernel { stream.write_all(&[1]) } else { Ok(()) }
        };
        let kernel = host.spawn(move || {
            listener.accept().and_then(|(stream, _)| work(stream)).map_err(failed)
        })?;
        let mut stack = stack(device, 1);
        stack.connect((IpAddress::v4(10, 0, 0, 2), PORT), 40_000);
        let (mut sent, mut received, start) = (0, 0, Clock::now());
        while if to_kernel { received < 1 } else { received < LENGTH } {
            if to_kernel {
                send(&mut stack, &mut sent);
            }
            receive(&mut stack, &mut received);
            check(start);
        }
        let speed = speed(start);
        stack.poll(Instant::now()).abort();
        stack.poll(Instant::now());
        kernel.join().expect("it does not panic")?;
        Ok(speed)
    }

    fn offload<D: Device>(device: D) -> OffloadDevice<D> {
        OffloadDevice::new(device, HashKey::new(0x5eed))
    }

    fn tap(host: &Host, name: &str) -> Result<TunTapInterface, LabError> {
        let failed = |error| LabError::system(format!("the TAP device {name}"), error);
        // This thread is in the host's namespace.
        let device = TunTapInterface::new(name, Medium::Ethernet).map_err(failed)?;
        host.link(name).up()?;
        Ok(device)
    }

    /// The device that a stack uses.
    #[derive(Clone, Copy)]
    enum Kind {
        /// smoltcp's own TAP device.
        Tap,
        /// smoltcp's own TAP device, wrapped.
        Wrapped,
        /// smoltcp's own TUN device.
        Tun,
        /// A TUN device with super-packets.
        SuperTun,
        /// A TAP device with super-packets.
        SuperTap,
    }

    fn tun(host: &Host, name: &str) -> Result<TunTapInterface, LabError> {
        let failed = |error| LabError::system(format!("the TUN device {name}"), error);
        let device = TunTapInterface::new(name, Medium::Ip).map_err(failed)?;
        host.link(name).up()?;
        Ok(device)
    }

    fn super_tun(name: &str, medium: Medium) -> Result<TunDevice, LabError> {
        TunDevice::open(name, medium)
            .map_err(|error| LabError::system(format!("the TUN or TAP device {name}"), error))
    }

    /// Measures a transfer between two devices that the kernel bridges or routes.
    fn two_stacks(host: &Host, kind: Kind) -> Result<f64, LabError> {
        let bridge = || -> Result<Link, LabError> {
            let bridge = Link::bridge(host, "br0", &[&host.link("port1"), &host.link("port2")])?;
            bridge.up()?;
            Ok(bridge)
        };
        // Each end is the route to the stack behind it.
        let route = || -> Result<(), LabError> {
            for number in [1, 2] {
                host.output(
                    "ip",
                    &[
                        "route",
                        "replace",
                        &format!("10.0.0.{number}/32"),
                        "dev",
                        &format!("port{number}"),
                    ],
                )?;
            }
            host.run(|| {
                std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
                    .map_err(|error| LabError::system("ip_forward".to_owned(), error))
            })
        };
        match kind {
            Kind::Tap | Kind::Wrapped => {
                let devices = [tap(host, "port1")?, tap(host, "port2")?];
                let bridge = bridge()?;
                let speed = if matches!(kind, Kind::Tap) {
                    between(devices)
                } else {
                    between(devices.map(offload))
                };
                bridge.delete()?;
                Ok(speed)
            }
            Kind::SuperTap => {
                let devices =
                    [super_tun("port1", Medium::Ethernet)?, super_tun("port2", Medium::Ethernet)?];
                let bridge = bridge()?;
                let speed = between(devices);
                bridge.delete()?;
                Ok(speed)
            }
            Kind::Tun => {
                let devices = [tun(host, "port1")?, tun(host, "port2")?];
                route()?;
                Ok(between(devices))
            }
            Kind::SuperTun => {
                let devices = [super_tun("port1", Medium::Ip)?, super_tun("port2", Medium::Ip)?];
                route()?;
                Ok(between(devices))
            }
        }
    }

    /// Measures a transfer from a stack to the kernel at the other end of a device, or in the other
    /// direction.
    fn to_or_from_kernel(host: &Host, kind: Kind, to_kernel: bool) -> Result<f64, LabError> {
        let address = || host.link("port1").add_address("10.0.0.2/24");
        match kind {
            Kind::Tap | Kind::Wrapped => {
                let device = tap(host, "port1")?;
                address()?;
                if matches!(kind, Kind::Tap) {
                    with_kernel(host, device, to_kernel)
                } else {
                    with_kernel(host, offload(device), to_kernel)
                }
            }
            Kind::Tun => {
                let device = tun(host, "port1")?;
                address()?;
                with_kernel(host, device, to_kernel)
            }
            Kind::SuperTap | Kind::SuperTun => {
                let device = super_tun(
                    "port1",
                    if matches!(kind, Kind::SuperTap) { Medium::Ethernet } else { Medium::Ip },
                )?;
                address()?;
                with_kernel(host, device, to_kernel)
            }
        }
    }

    fn print(what: &str, measured: &Paired) {
        let ratio = measured.ratio;
        println!(
            "{what:<34} {:>9.2} {:>9.2}   {:>5.2}x   {:.2} to {:.2}",
            measured.b.median, measured.a.median, ratio.median, ratio.least, ratio.greatest
        );
    }

    pub fn main() -> Result<(), LabError> {
        let namespaces = superpacket_lab::enter_user_namespace_if_needed().is_ok();
        let rounds =
            std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(7);
        println!(
            "{:<34} {:>9} {:>9}   {rounds} rounds of {} MiB, Gb/s",
            "",
            "smoltcp",
            "ours",
            LENGTH >> 20
        );
        print(
            "two stacks, wire in memory",
            &paired(
                rounds,
                || Ok::<_, LabError>(between(wire().map(offload))),
                || Ok(between(wire())),
            )?,
        );
        if !namespaces {
            println!("left out: network namespaces are not allowed here");
            return Ok(());
        }
        let host = Host::new("stacks")?;
        host.enter()?;
        for (name, ours, plain) in [
            ("TAP, wrapped", Kind::Wrapped, Kind::Tap),
            ("TAP", Kind::SuperTap, Kind::Tap),
            ("TUN", Kind::SuperTun, Kind::Tun),
        ] {
            let measured = paired(rounds, || two_stacks(&host, ours), || two_stacks(&host, plain))?;
            print(&format!("two stacks, by {name}"), &measured);
            for to_kernel in [true, false] {
                let measure = |kind| to_or_from_kernel(&host, kind, to_kernel);
                let measured = paired(rounds, || measure(ours), || measure(plain))?;
                print(
                    &format!(
                        "{}, by {name}",
                        if to_kernel { "a stack to the kernel" } else { "the kernel to a stack" }
                    ),
                    &measured,
                );
            }
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), superpacket_lab::LabError> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("the benchmark's devices are Linux's");
}
