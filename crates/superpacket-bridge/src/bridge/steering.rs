//! Steering while the bridge runs: changes CPU masks and settings, and starts and ends workers as
//! these require.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use superpacket::packet::FlowHash;
use superpacket_steer::{Cpu, CpuMask, SockFlowTable};

use super::join::poll_thread_of;
use super::memory::{check_flow_count, check_flow_limit};
use super::slot::PortSlot;
use super::{Bridge, Inner, lock};
use crate::command::{ReservedMemory, ThreadCommand};
use crate::error::BridgeError;
use crate::poll_thread::{PollThread, PollThreadCounts};
use crate::report::{DroppedCpu, PortRps, QueueRps, SteeringReport, WorkerReport};
use crate::settings::{
    NamedSettings, PortSteering, SteeringProblem, SteeringSettings, UsableCpus, possible_cpus,
    queue_flows,
};
use crate::topology::Topology;

/// Interval at which the bridge checks whether CPUs have come online or gone offline.
const LOOK: Duration = Duration::from_secs(1);

/// Returns the RFS table that these settings require; `None` without RFS.
pub(super) fn sock_flow_table(
    settings: &SteeringSettings,
) -> Result<Option<Arc<SockFlowTable>>, BridgeError> {
    Ok(settings.sock_flow_table()?.map(Arc::new))
}

/// The workers, and the CPUs on which workers can run.
#[derive(Debug)]
pub(super) struct Workers {
    running: BTreeMap<Cpu, PollThread>,
    /// Workers whose CPUs are in no mask any more; each ends when it has no backlogs left.
    leaving: Vec<(Cpu, PollThread)>,
    /// For each CPU, the counters of its worker, which continue those of earlier workers there.
    counts: BTreeMap<Cpu, Arc<PollThreadCounts>>,
    usable: UsableCpus,
    /// CPUs on which applications read flows, which therefore need workers for RFS.
    readers: CpuMask,
    /// Whether a CPU that has no worker yet was added to `readers`.
    more_readers: bool,
    looked: Instant,
}

impl Workers {
    /// Returns an empty set of workers.
    pub(super) fn new(usable: UsableCpus) -> Self {
        let readers = CpuMask::EMPTY;
        Workers {
            running: BTreeMap::new(),
            leaving: Vec::new(),
            counts: BTreeMap::new(),
            usable,
            readers,
            more_readers: false,
            looked: Instant::now(),
        }
    }

    /// Iterates over all workers, including those that are about to end.
    pub(super) fn all(&self) -> impl Iterator<Item = &PollThread> {
        self.running.values().chain(self.leaving.iter().map(|(_, worker)| worker))
    }

    /// Returns the CPUs on which workers can run.
    #[cfg(test)]
    pub(super) fn usable(&self) -> CpuMask {
        self.usable.mask().clone()
    }

    /// Makes the supervisor check whether all CPUs in masks have workers.
    #[cfg(test)]
    pub(super) fn ask_for_more(&mut self) {
        self.more_readers = true;
    }

    /// Ends all workers.
    pub(super) fn stop(&mut self) {
        self.leaving.drain(..).for_each(|(_, mut worker)| worker.stop());
        std::mem::take(&mut self.running).into_values().for_each(|mut worker| worker.stop());
    }

    /// Removes workers that were told to end and have ended.
    fn reap(&mut self) {
        self.leaving.retain_mut(|(cpu, worker)| {
            let over = worker.is_over();
            if over {
                worker.stop();
                worker.counts.wake_ups.add(worker.bell.rung());
                tracing::info!(%cpu, "a worker has ended");
            }
            !over
        });
    }
}

impl Bridge {
    /// Returns for each port how its packets are steered.
    pub fn rps(&self) -> Vec<PortRps> {
        lock(&self.inner.slots).iter().flatten().map(|slot| self.inner.rps(slot)).collect()
    }

    /// Distributes the packets of a receive queue, or of all queues of a port, over the CPUs of the
    /// mask (`rps_cpus`); an empty mask switches steering off. CPUs that are offline or outside the
    /// process's affinity are left out, as the result shows. A flow moves to its new CPU when its
    /// packets at the old CPU have been processed, so that no packet overtakes another.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::NoSuchQueue`]; [`BridgeError::System`] or
    /// [`BridgeError::Port`] if a worker cannot be started. Nothing has changed then.
    pub fn set_rps_cpus(
        &self,
        port: &str,
        queue: Option<u16>,
        mask: &CpuMask,
    ) -> Result<PortRps, BridgeError> {
        self.change_steering(port, queue, |steering| {
            steering.rps_cpus.set(queue, mask.clone());
            Ok(())
        })
    }

    /// Sets the CPU mask of a receive queue, or of all queues of a port, to the CPUs that share a
    /// cache with the CPU that receives from the queue ([`Topology::sharing_cache`]). The result
    /// explains the choice.
    ///
    /// # Errors
    /// Those of [`set_rps_cpus`](Self::set_rps_cpus), and [`BridgeError::Topology`] if the
    /// machine's CPUs cannot be read.
    pub fn set_rps_auto(&self, port: &str, queue: Option<u16>) -> Result<PortRps, BridgeError> {
        let topology = Topology::read()?;
        let (number, queues) =
            self.with(port, |slot| (usize::from(slot.shared.number), slot.queues as u16))?;
        let mut why = Vec::new();
        let mut report = None;
        for each in queue.map_or(0..queues, |queue| queue..queue.saturating_add(1)) {
            let receiving = {
                let poll_threads = lock(&self.inner.poll_threads);
                let thread =
                    poll_threads.get(poll_thread_of(usize::from(each), number, poll_threads.len()));
                thread
                    .and_then(|thread| Cpu::new(thread.counts.cpu.load(Ordering::Relaxed) as usize))
            };
            // A thread that has not run yet has no CPU recorded. Then any usable CPU is taken.
            let receiving = receiving
                .filter(|cpu| topology.usable().contains(*cpu))
                .or_else(|| topology.usable().first());
            let Some(cpu) = receiving else { continue };
            let auto = topology.sharing_cache(cpu);
            report = Some(self.set_rps_cpus(port, Some(each), &auto.mask)?);
            why.push(format!("queue {each}, received on CPU {cpu}: {}", auto.why));
        }
        match report {
            Some(report) => Ok(PortRps { why: Some(why.join("; ")), ..report }),
            None => self.with(port, |slot| self.inner.rps(slot)),
        }
    }

    /// Sets the number of flows per receive queue that RFS tells apart (`rps_flow_cnt`); 0 switches
    /// RFS off for the queue.
    ///
    /// # Errors
    /// Those of [`set_rps_cpus`](Self::set_rps_cpus), and [`BridgeError::Steering`] for more than
    /// 65,536 flows or too little memory.
    pub fn set_rps_flow_count(
        &self,
        port: &str,
        queue: Option<u16>,
        count: u64,
    ) -> Result<PortRps, BridgeError> {
        let queues = self.with(port, |slot| if queue.is_some() { 1 } else { slot.queues })?;
        self.change_steering(port, queue, |steering| {
            let count = queue_flows(count)
                .map_err(|problem| SteeringProblem(format!("rps_flow_cnt: {problem}")))?;
            check_flow_count(count, queues)?;
            steering.rps_flow_cnt.set(queue, count);
            Ok(())
        })
    }

    fn change_steering(
        &self,
        port: &str,
        queue: Option<u16>,
        change: impl FnOnce(&mut PortSteering) -> Result<(), BridgeError>,
    ) -> Result<PortRps, BridgeError> {
        let _alone = lock(&self.inner.changes);
        let (shared, queues) = self.with(port, |slot| (slot.shared.clone(), slot.queues))?;
        if let Some(queue) = queue.filter(|&queue| usize::from(queue) >= queues) {
            return Err(BridgeError::NoSuchQueue { port: port.into(), queue, queues });
        }
        let before = shared.settings().steering;
        let mut wanted = before.clone();
        change(&mut wanted)?;
        shared.change_steering(|steering| *steering = wanted);
        if let Err(error) = self.inner.reconcile_workers() {
            shared.change_steering(|steering| *steering = before);
            return Err(error);
        }
        self.inner.announce();
        self.with(port, |slot| self.inner.rps(slot))
    }

    /// Returns the steering settings of all ports, and the workers.
    pub fn steering(&self) -> SteeringReport {
        let settings = &self.inner.context.steering.now().settings;
        let poll_threads = lock(&self.inner.poll_threads);
        let workers = lock(&self.inner.workers);
        let report = |(cpu, counts): (&Cpu, &Arc<PollThreadCounts>)| {
            let running = workers.running.get(cpu);
            let leaving = || {
                workers
                    .leaving
                    .iter()
                    .filter(|(leaving, _)| leaving == cpu)
                    .map(|(_, worker)| worker)
            };
            let state = match (running, leaving().next()) {
                (Some(_), _) => "running",
                (None, Some(_)) => "leaving",
                (None, None) => "ended",
            };
            let rung: u64 =
                running.into_iter().chain(leaving()).map(|worker| worker.bell.rung()).sum();
            WorkerReport {
                cpu: cpu.number(),
                state: state.to_owned(),
                processed: counts.processed.value(),
                turns: counts.turns.value(),
                wake_ups: counts.wake_ups.value() + rung,
                panics: counts.panics.value(),
            }
        };
        SteeringReport {
            settings: settings.values(),
            possible_cpus: possible_cpus(),
            usable_cpus: workers.usable.mask().list().to_string(),
            workers: workers.counts.iter().map(report).collect(),
            receive_panics: poll_threads.iter().map(|thread| thread.counts.panics.value()).sum(),
        }
    }

    /// Changes the steering settings of all ports.
    ///
    /// # Errors
    /// [`BridgeError::Steering`] for invalid settings; [`BridgeError::System`] or
    /// [`BridgeError::Port`] if a worker cannot be started. Nothing has changed then.
    pub fn change_steering_settings(
        &self,
        change: impl FnOnce(&mut SteeringSettings) -> Result<(), String>,
    ) -> Result<SteeringReport, BridgeError> {
        {
            let _alone = lock(&self.inner.changes);
            let before = self.inner.context.steering.now();
            let mut settings = before.settings.clone();
            change(&mut settings).map_err(SteeringProblem)?;
            let sock_flows = self.inner.sock_flows_for(&settings)?;
            self.inner.check_flow_limit(&settings)?;
            self.inner.put_steering(settings, sock_flows);
            if let Err(error) = self.inner.reconcile_workers() {
                // The same table is kept, with the flows that readers have recorded.
                self.inner.put_steering(before.settings.clone(), before.sock_flows.clone());
                return Err(error);
            }
            self.inner.announce();
        }
        Ok(self.steering())
    }

    /// Records that an application reads the flow with this hash on this CPU, as `recvmsg(2)` does
    /// for a socket (`rps_record_sock_flow`). With RFS, the flow's packets go to that CPU as soon
    /// as no other CPU has any of them. If possible, a CPU without a worker gets one within a
    /// second. Without RFS, this does nothing.
    pub fn record_flow(&self, hash: FlowHash, cpu: Cpu) {
        let now = self.inner.context.steering.now();
        let Some(table) = &now.sock_flows else { return };
        table.record(hash, cpu);
        if !now.workers.contains_key(&cpu) {
            let mut workers = lock(&self.inner.workers);
            // The supervisor starts the worker. The caller cannot, because it may be a worker
            // itself, which must not wait for others.
            workers.more_readers |=
                workers.usable.mask().contains(cpu) && workers.readers.insert(cpu);
        }
    }

    /// Returns the RFS table, for callers that record many flows; `None` without RFS. When its size
    /// is changed, another table takes its place.
    pub fn sock_flows(&self) -> Option<Arc<SockFlowTable>> {
        self.inner.context.steering.now().sock_flows.clone()
    }
}

impl Inner {
    fn rps(&self, slot: &PortSlot) -> PortRps {
        let steering = slot.shared.settings().steering;
        let usable = lock(&self.workers).usable.clone();
        let cpus = possible_cpus();
        let queue = |queue: u16| {
            let mask = steering.rps_cpus.queue(queue);
            let effective = mask & &usable.mask();
            let dropped = mask.iter().filter_map(|cpu| {
                let reason = usable.why_unusable(cpu)?;
                Some(DroppedCpu { cpu: cpu.number(), reason: reason.to_owned() })
            });
            QueueRps {
                queue,
                rps_cpus: mask.sysfs(cpus).to_string(),
                effective: effective.sysfs(cpus).to_string(),
                effective_list: effective.list().to_string(),
                dropped: dropped.collect(),
                rps_flow_cnt: *steering.rps_flow_cnt.queue(queue),
                in_place: slot.shared.is_in_place(queue),
            }
        };
        PortRps {
            port: slot.shared.name.clone(),
            queues: (0..slot.queues as u16).map(queue).collect(),
            in_place_below: steering.in_place.unwrap_or(self.context.steering.in_place),
            why: None,
        }
    }

    /// Returns the RFS table for these settings: the present one, unless its size changes; `None`
    /// without RFS.
    pub(super) fn sock_flows_for(
        &self,
        settings: &SteeringSettings,
    ) -> Result<Option<Arc<SockFlowTable>>, BridgeError> {
        let before = self.context.steering.now();
        match before.settings.sock_flow_entries == settings.sock_flow_entries {
            true => Ok(before.sock_flows.clone()),
            false => sock_flow_table(settings),
        }
    }

    /// Returns an error if the settings change the flow limit and there is no memory for it.
    pub(super) fn check_flow_limit(
        &self,
        settings: &SteeringSettings,
    ) -> Result<(), SteeringProblem> {
        if settings.flow_limit_table == self.context.steering.now().settings.flow_limit_table {
            return Ok(());
        }
        check_flow_limit(
            settings.flow_limit_table,
            lock(&self.slots).iter().flatten().map(|slot| slot.queues).sum(),
        )
    }

    /// Stores new steering settings. The caller must update the workers and make the threads read
    /// the settings.
    pub(super) fn put_steering(
        &self,
        settings: SteeringSettings,
        sock_flows: Option<Arc<SockFlowTable>>,
    ) {
        lock(&self.settings).steering = settings.clone();
        self.context.steering.change(|now| {
            now.settings = settings;
            now.sock_flows = sock_flows;
        });
    }

    /// Starts workers for CPUs that are in masks, and tells those to end whose CPUs are in none.
    /// The caller must hold the lock `changes`, and make the threads read the list of workers.
    pub(super) fn reconcile_workers(&self) -> Result<(), BridgeError> {
        let usable = UsableCpus::read();
        let mut slots = lock(&self.slots);
        let steering: Vec<PortSteering> =
            slots.iter().flatten().map(|slot| slot.shared.settings().steering).collect();
        let rfs = self.context.steering.now().sock_flows.is_some()
            && steering
                .iter()
                .any(|steering| steering.rps_flow_cnt.values().any(|&count| count != 0));
        let mut wanted = CpuMask::EMPTY;
        steering
            .iter()
            .flat_map(|steering| steering.rps_cpus.values())
            .for_each(|mask| wanted.extend(mask.iter()));
        let mut workers = lock(&self.workers);
        if rfs {
            wanted.extend(workers.readers.iter());
        } else {
            workers.readers = CpuMask::EMPTY;
        }
        let wanted = &wanted & &usable.mask();
        workers.usable = usable;
        let mut made = Vec::new();
        let missing: Vec<Cpu> =
            wanted.iter().filter(|cpu| !workers.running.contains_key(cpu)).collect();
        for cpu in missing {
            let counts = workers.counts.entry(cpu).or_default().clone();
            let start = PollThread::start(
                format!("superpacket-rps{cpu}"),
                Some(cpu),
                counts,
                self.context.clone(),
            );
            match start
                .map_err(|source| BridgeError::System { action: "starting a worker", source })
            {
                Ok(worker) => made.push((cpu, worker)),
                Err(error) => {
                    made.iter_mut().for_each(|(_, worker): &mut (Cpu, PollThread)| worker.stop());
                    return Err(error);
                }
            }
        }
        for slot in slots.iter_mut().flatten() {
            let Some(port) = &mut slot.port else { continue };
            for (_, worker) in &made {
                match port.transmitter() {
                    Ok(transmit) => worker.send_command(ThreadCommand::Open {
                        shared: slot.shared.clone(),
                        receivers: Vec::new(),
                        transmit,
                        reserved: ReservedMemory::default(),
                    }),
                    Err(error) => {
                        made.iter_mut().for_each(|(_, worker)| worker.stop());
                        return Err(error.into());
                    }
                }
            }
        }
        for (cpu, worker) in made {
            tracing::info!(%cpu, "a worker has started");
            workers.running.insert(cpu, worker);
        }
        let gone: Vec<Cpu> =
            workers.running.keys().copied().filter(|cpu| !wanted.contains(*cpu)).collect();
        for cpu in gone {
            if let Some(worker) = workers.running.remove(&cpu) {
                worker.send_command(ThreadCommand::Retire);
                workers.leaving.push((cpu, worker));
            }
        }
        workers.reap();
        let handle = PollThread::handle;
        let handles = workers.running.iter().map(|(&cpu, worker)| (cpu, handle(worker))).collect();
        self.context.steering.change(|now| now.workers = handles);
        Ok(())
    }

    /// Checks whether workers have ended, and whether CPUs have come online or gone offline.
    /// Returns whether the threads must read the list of workers again.
    pub(super) fn look_after_workers(&self) -> bool {
        let mut workers = lock(&self.workers);
        workers.reap();
        let mut changed = std::mem::take(&mut workers.more_readers);
        if workers.looked.elapsed() >= LOOK {
            workers.looked = Instant::now();
            changed |= UsableCpus::read() != workers.usable;
        }
        drop(workers);
        if changed && let Err(error) = self.reconcile_workers() {
            tracing::warn!(%error, "a worker cannot be started");
        }
        changed && !self.stopping.load(Ordering::Acquire)
    }
}
