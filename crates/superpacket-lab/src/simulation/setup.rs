//! The parameters of a simulation.

use superpacket_steer::CpuMask;

use super::Costs;

/// A machine, its device, and its load.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of CPUs; at least 1.
    pub cpus: usize,
    /// CPUs per cache; at least 1. CPUs 0 to `cache_group - 1` share the first one, and so on.
    pub cache_group: usize,
    /// CPU time of each step of the work.
    pub costs: Costs,
    /// The device's receive queues; at least one.
    pub queues: Vec<ReceiveQueue>,
    /// Whether RFS is enabled, which steers flows to the CPU on which their data is read.
    pub rfs: bool,
    /// Number of connections, each with one outstanding request.
    pub connections: u32,
    /// Time between an answer and the next request of its connection, in nanoseconds: transmission
    /// in both directions and the client's processing.
    pub client_delay: u64,
}

/// A receive queue of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// The CPU that the queue interrupts.
    pub cpu: usize,
    /// The queue's `rps_cpus`; an empty mask disables RPS.
    pub mask: CpuMask,
}

impl Setup {
    /// Returns a machine without RPS under the original report's load of 500 connections. Its
    /// queues interrupt evenly spaced CPUs.
    #[must_use]
    pub fn new(cpus: usize, queues: usize, costs: Costs) -> Self {
        let queue =
            |index: usize| ReceiveQueue { cpu: index * cpus / queues.max(1), mask: CpuMask::EMPTY };
        Self {
            cpus,
            cache_group: 4,
            costs,
            queues: (0..queues.max(1)).map(queue).collect(),
            rfs: false,
            connections: 500,
            client_delay: 100_000,
        }
    }

    /// Enables RPS from each queue to all CPUs that no queue interrupts, or to all CPUs if every
    /// CPU is interrupted.
    #[must_use]
    pub fn with_rps(self) -> Self {
        self.with_masks(|_| true)
    }

    /// Enables RPS from each queue like [`Self::with_rps`], but only to CPUs that share a cache
    /// with the CPU that the queue interrupts.
    #[must_use]
    pub fn with_cache_aware_rps(self) -> Self {
        self.with_masks(|near| near)
    }

    /// Sets `mask` as the `rps_cpus` of all queues.
    #[must_use]
    pub fn with_mask(mut self, mask: &CpuMask) -> Self {
        self.queues.iter_mut().for_each(|queue| queue.mask = mask.clone());
        self
    }

    /// Enables RFS, which steers flows to the CPU on which their data is read.
    #[must_use]
    pub fn with_rfs(self) -> Self {
        Self { rfs: true, ..self }
    }

    /// Sets the number of connections.
    #[must_use]
    pub fn with_connections(self, connections: u32) -> Self {
        Self { connections, ..self }
    }

    /// Returns whether two CPUs share a cache.
    #[must_use]
    pub fn shares_cache(&self, one: usize, other: usize) -> bool {
        one / self.cache_group.max(1) == other / self.cache_group.max(1)
    }

    fn with_masks(mut self, takes: impl Fn(bool) -> bool) -> Self {
        let interrupted: Vec<usize> = self.queues.iter().map(|queue| queue.cpu).collect();
        let masks: Vec<CpuMask> = interrupted
            .iter()
            .map(|&receiving| {
                let chosen = |spared: bool| -> CpuMask {
                    (0..self.cpus)
                        .filter(|cpu| {
                            takes(self.shares_cache(*cpu, receiving))
                                && !(spared && interrupted.contains(cpu))
                        })
                        .filter_map(superpacket_steer::Cpu::new)
                        .collect()
                };
                Some(chosen(true)).filter(|mask| !mask.is_empty()).unwrap_or_else(|| chosen(false))
            })
            .collect();
        for (queue, mask) in self.queues.iter_mut().zip(masks) {
            queue.mask = mask;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_leave_out_the_cpus_that_are_interrupted() {
        let lists = |setup: Setup| -> Vec<(usize, String)> {
            setup.queues.iter().map(|queue| (queue.cpu, queue.mask.list().to_string())).collect()
        };
        let setup = |queues| Setup::new(8, queues, Costs::WORKERS);
        assert_eq!(lists(setup(1)), [(0, String::new())]);
        assert_eq!(lists(setup(1).with_rps()), [(0, "1-7".into())]);
        assert_eq!(lists(setup(2).with_rps()), [(0, "1-3,5-7".into()), (4, "1-3,5-7".into())]);
        assert_eq!(lists(setup(2).with_cache_aware_rps()), [(0, "1-3".into()), (4, "5-7".into())]);
        assert_eq!(
            lists(Setup::new(2, 2, Costs::WORKERS).with_rps()),
            [(0, "0-1".into()), (1, "0-1".into())],
            "none is left"
        );
    }
}
