//! What things cost, and where the figures are from.

/// What each step costs a CPU, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Being interrupted by the device, and beginning to poll.
    pub interrupt: u64,
    /// A packet in the driver.
    pub driver: u64,
    /// Choosing a packet's CPU and putting it into the backlog there.
    pub dispatch: u64,
    /// Sending an inter-processor interrupt.
    pub ipi: u64,
    /// Being interrupted by one.
    pub ipi_taken: u64,
    /// What passes between the two.
    pub ipi_delay: u64,
    /// A packet's protocol work, the wake-up of its reader included.
    pub protocol: u64,
    /// Reading a request and answering it, sending included. 0: there are no processes, whoever
    /// does the protocol work answers.
    pub application: u64,
    /// Leaving idleness for a process: the CPU's own way out, and the switch to the process.
    pub idle_wake: u64,
    /// What was written on another CPU with which a cache is shared.
    pub near_miss: u64,
    /// What was written on another CPU with which none is shared.
    pub far_miss: u64,
}

/// The driver's share of what the receiving CPU does for a packet without steering. It decides how
/// far steering can go with one queue, and the source does not tell it. Its figures bound it: one
/// CPU did driver and dispatch of 311,000 packets a second, where driver and protocol of 108,000
/// filled it, so that the share was at most 35 %.
pub const DRIVER_SHARE: f64 = 0.3;

/// What the source measured without RPS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// CPUs of the machine.
    pub cpus: usize,
    /// Receive queues, each interrupting a CPU of its own.
    pub queues: usize,
    /// Transactions a second.
    pub transactions_per_second: f64,
    /// The part of all CPU time that was spent, 0 to 1.
    pub utilisation: f64,
}

impl Costs {
    /// The order of magnitude of what the source does not tell, for machines of its time. Halving
    /// or doubling any of them changes no gain by a tenth, and no verdict: that is tested.
    const TYPICAL: Costs = Costs {
        interrupt: 1000,
        driver: 0,
        dispatch: 100,
        ipi: 500,
        ipi_taken: 1000,
        ipi_delay: 1000,
        protocol: 0,
        application: 0,
        idle_wake: 3000,
        near_miss: 200,
        far_miss: 1000,
    };

    /// The costs of a machine, from what was measured on it without RPS while the CPUs that it
    /// interrupts were the limit: they spent `queues / transactions_per_second` on a packet, of
    /// which `driver_share` is the driver's; the rest of the CPU time was the processes'.
    #[must_use]
    pub fn calibrated(measured: &Measured, driver_share: f64) -> Self {
        let Measured { cpus, queues, transactions_per_second, utilisation } = *measured;
        let receiving = queues as f64 * 1e9 / transactions_per_second;
        let all = utilisation * cpus as f64 * 1e9 / transactions_per_second;
        let costs = Costs::TYPICAL;
        // A request was read elsewhere than where its protocol work was done, on a CPU that was
        // idle.
        let reading = all - receiving - (costs.idle_wake + costs.far_miss) as f64;
        Costs {
            driver: (receiving * driver_share).round() as u64,
            protocol: (receiving * (1.0 - driver_share)).round() as u64,
            application: reading.max(0.0).round() as u64,
            ..costs
        }
    }

    /// The costs of this project's own receive path, as far as they are measured
    /// (docs/performance.md): a poll costs 18 ns a frame and aggregation 15, the choice of a CPU 4
    /// and a hand-over within 25; an eventfd is written in a microsecond and wakes a thread in a
    /// few. Protocol work is that of the mark for two workers: 1 us a packet. There are no
    /// processes behind it.
    pub const WORKERS: Costs = Costs {
        interrupt: 2000,
        driver: 33,
        dispatch: 25,
        ipi: 1000,
        ipi_taken: 2000,
        ipi_delay: 2000,
        protocol: 1000,
        application: 0,
        idle_wake: 0,
        near_miss: 0,
        far_miss: 100,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_divided_up() {
        let measured =
            Measured { cpus: 8, queues: 1, transactions_per_second: 100_000.0, utilisation: 0.375 };
        let costs = Costs::calibrated(&measured, 0.25);
        // 10 us a packet on the receiving CPU, 30 us a transaction on all.
        assert_eq!((costs.driver, costs.protocol, costs.application), (2500, 7500, 20_000 - 4000));
        let costs = Costs::calibrated(&Measured { utilisation: 0.1, ..measured }, 0.25);
        assert_eq!(
            costs.application, 0,
            "less than the receiving CPU alone spends: nothing is left"
        );
    }
}
