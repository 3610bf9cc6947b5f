//! Ports joined with the others and taken from them: each thread gets its share of a port, and lets
//! go of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender};
use superpacket::packet::Layer;
use superpacket_port::{Port, PortCounters, PortError};

use super::fdb::check_layer;
use super::memory::set_aside;
use super::opened::{Opened, warn_of_addresses};
use super::place::Place;
use super::{Inner, lock};
use crate::error::BridgeError;
use crate::order::{Order, SetAside};
use crate::poll_thread::PollThread;
use crate::runtime::Shared;
use crate::settings::MAX_PORTS;
use crate::settings::PortSettings;

/// How long a thread may take to let go of a port.
const LET_GO: Duration = Duration::from_secs(2);

/// The thread, of so many, that receives by a queue of the port with this number: ports one after
/// the other start at the next thread, so that each has about as many queues.
pub(super) fn poll_thread_of(queue: usize, number: usize, poll_threads: usize) -> usize {
    (queue + number) % poll_threads.max(1)
}

impl Inner {
    /// Opens a new port, and joins it.
    pub(super) fn add(
        &self,
        settings: &PortSettings,
        shared_interfaces: bool,
    ) -> Result<(), BridgeError> {
        self.join(settings, Opened::new(&settings.port, shared_interfaces)?)
    }

    /// Joins a port that is open.
    pub(super) fn join(&self, settings: &PortSettings, opened: Opened) -> Result<(), BridgeError> {
        let Opened { mut port, claim } = opened;
        let name = settings.port.name();
        let number = {
            let places = lock(&self.places);
            if let Some(other) = places.iter().flatten().next()
                && other.shared.layer != port.layer()
            {
                let layer = if port.layer() == Layer::Ip { "IP" } else { "Ethernet" };
                return Err(BridgeError::Layer { port: name.into(), layer });
            }
            places.iter().position(Option::is_none).unwrap_or(places.len())
        };
        if number >= MAX_PORTS {
            return Err(BridgeError::TooManyPorts { limit: MAX_PORTS });
        }
        check_layer(port.layer(), settings)?;
        let state = port.state();
        let shared =
            Shared::new(number as u16, settings.clone(), port.capabilities(), port.layer(), state);
        let shared = Arc::new(shared.with_vlan_filtering(lock(&self.settings).filters_by()));
        self.table.set_limit(shared.number, settings.limits.address_limit);
        self.set_static(&shared);
        let queues = self
            .connect(&shared, port.as_mut())
            .inspect_err(|_| self.table.close(shared.number))?;
        let place = Place {
            hardware_address: port.hardware_address(),
            shared,
            port: Some(port),
            claim,
            state,
            error: None,
            queues,
            reopened: 0,
            kernel_notifies: self.kernel_notifies(&settings.port),
            before: PortCounters::default(),
            queue_drops_before: Vec::new(),
            next_try: Instant::now(),
        };
        let string = settings.port.is_named().then(|| settings.port.string());
        tracing::info!(port = name, string, mtu = state.mtu, queues, "port opened");
        warn_of_addresses(&settings.port);
        // It is still free: who opens and closes ports holds `changes`.
        let mut places = lock(&self.places);
        if number == places.len() {
            places.push(Some(place));
        } else {
            places[number] = Some(place);
        }
        Ok(())
    }

    /// Gives each thread its share of a port; says how many receive queues that were.
    pub(super) fn connect(
        &self,
        shared: &Arc<Shared>,
        port: &mut dyn Port,
    ) -> Result<usize, PortError> {
        let poll_threads = lock(&self.poll_threads);
        let workers = lock(&self.workers);
        let mut transmitters = Vec::with_capacity(poll_threads.len());
        for _ in 0..poll_threads.len() + workers.all().count() {
            transmitters.push(port.transmitter()?);
        }
        let mut shares: Vec<Vec<_>> = poll_threads.iter().map(|_| Vec::new()).collect();
        let receivers = port.receivers();
        let queues = receivers.len();
        for (queue, receive) in receivers.into_iter().enumerate() {
            // Without threads the bridge is about to end.
            if let Some(share) = shares.get_mut(poll_thread_of(
                queue,
                usize::from(shared.number),
                poll_threads.len(),
            )) {
                share.push((queue as u16, receive));
            }
        }
        let set_aside: Result<Vec<_>, _> =
            shares.iter().map(|share| set_aside(port.name(), share.len(), queues)).collect();
        let set_aside = set_aside?;
        // Before the receiving threads: what they receive must find the way out.
        for (worker, transmit) in workers.all().zip(transmitters.drain(poll_threads.len()..)) {
            let set_aside = SetAside::default();
            worker.order(Order::Open {
                shared: shared.clone(),
                receivers: Vec::new(),
                transmit,
                set_aside,
            });
        }
        for (((thread, receivers), transmit), set_aside) in
            poll_threads.iter().zip(shares).zip(transmitters).zip(set_aside)
        {
            thread.order(Order::Open { shared: shared.clone(), receivers, transmit, set_aside });
        }
        Ok(queues)
    }

    /// Takes a port from all threads, and waits until they have let go of it.
    pub(super) fn disconnect(&self, number: u16) {
        let close = |tell: &dyn Fn(&Sender<()>)| {
            let (done, wait) = crossbeam_channel::bounded::<()>(0);
            tell(&done);
            drop(done);
            // Ends when the last sender is dropped.
            if wait.recv_timeout(LET_GO) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(number, "a thread did not let go of a port in time");
            }
        };
        let order = |thread: &PollThread, done: &Sender<()>| {
            thread.order(Order::Close { number, done: done.clone() })
        };
        close(&|done| lock(&self.poll_threads).iter().for_each(|thread| order(thread, done)));
        // Then those who process what these have received.
        close(&|done| lock(&self.workers).all().for_each(|worker| order(worker, done)));
    }

    /// Forgets who was heard behind a port.
    pub(super) fn forget(&self, number: u16) {
        self.table.forget(number);
        if let Some(snooping) = &self.common.snooping {
            snooping.forget(number);
        }
    }

    /// Closes a port for good.
    pub(super) fn remove(&self, number: u16) {
        self.disconnect(number);
        self.forget(number);
        self.table.close(number);
        let place = lock(&self.places).get_mut(usize::from(number)).and_then(Option::take);
        if let Some(place) = place {
            self.common.monitors.port_removed(&place.shared.name);
            tracing::info!(port = %place.shared.name, "port closed");
        }
    }

    /// Says that a bridge leads nowhere.
    pub(super) fn warn_of_one_port(&self) {
        let places = lock(&self.places);
        let mut ports = places.iter().flatten();
        if let (Some(place), None) = (ports.next(), ports.next()) {
            tracing::warn!(port = %place.shared.name, "the bridge has one port: nothing that comes in by it goes anywhere");
        }
    }
}
