//! The cost of each step of packet processing, and the origin of these figures.

/// CPU time of each step, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Time to take an interrupt of the device and start to poll, in nanoseconds.
    pub interrupt: u64,
    /// The driver's work per packet, in nanoseconds.
    pub driver: u64,
    /// Time to choose the CPU for a packet and add it to that CPU's backlog, in nanoseconds.
    pub dispatch: u64,
    /// Time to send an inter-processor interrupt, in nanoseconds.
    pub ipi: u64,
    /// Time to take an inter-processor interrupt, in nanoseconds.
    pub ipi_taken: u64,
    /// Delay between sending and taking an inter-processor interrupt.
    pub ipi_delay: u64,
    /// Protocol work per packet, including the wake-up of its reader.
    pub protocol: u64,
    /// Reading a request and sending the answer. With 0 there are no processes: the CPU that does
    /// the protocol work answers.
    pub application: u64,
    /// Waking an idle CPU for a process: the CPU's exit latency and the switch to the process.
    pub idle_wake: u64,
    /// Cache misses when reading data that was written by another CPU of the same cache.
    pub near_miss: u64,
    /// Cache misses when reading data that was written by a CPU of another cache.
    pub far_miss: u64,
}

/// Assumed share of the driver in the work per packet of the receiving CPU, without steering.
///
/// It limits the gain of steering with one queue. The original report does not give it, but bounds
/// it to 35 %: one CPU did driver and dispatch for 311,000 packets/s, or driver and protocol for
/// 108,000.
pub const DRIVER_SHARE: f64 = 0.3;

/// Figures that the original report measured without RPS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredLoad {
    /// Number of CPUs of the machine.
    pub cpus: usize,
    /// Number of receive queues, each with a CPU that it interrupts.
    pub queues: usize,
    /// Transactions per second.
    pub transactions_per_second: f64,
    /// Busy share of all CPU time, 0 to 1.
    pub utilisation: f64,
}

impl Costs {
    /// Assumed costs for machines of the original report's time, used where the report states none.
    /// A test shows that halving or doubling one of them changes no gain by 10 %, and no verdict.
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

    /// Derives the costs of a machine from a measurement without RPS in which the interrupted CPUs
    /// were saturated. Those CPUs spend `queues / transactions_per_second` per packet, of which
    /// `driver_share` is the driver's. The rest of the CPU time is spent by the processes.
    #[must_use]
    pub fn calibrated(measured: &MeasuredLoad, driver_share: f64) -> Self {
        let MeasuredLoad { cpus, queues, transactions_per_second, utilisation } = *measured;
        let receiving = queues as f64 * 1e9 / transactions_per_second;
        let all = utilisation * cpus as f64 * 1e9 / transactions_per_second;
        let costs = Costs::TYPICAL;
        // A request was read on another CPU than its protocol work, and that CPU was idle.
        let reading = all - receiving - (costs.idle_wake + costs.far_miss) as f64;
        Costs {
            driver: (receiving * driver_share).round() as u64,
            protocol: (receiving * (1.0 - driver_share)).round() as u64,
            application: reading.max(0.0).round() as u64,
            ..costs
        }
    }

    /// Costs of this project's receive path, as measured. Polling costs 18 ns per frame,
    /// aggregation 15, choosing a CPU 4, and a hand-over up to 25. Writing an eventfd takes 1 us,
    /// and waking a thread a few. Protocol work is 1 us per packet; there are no processes.
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
        let measured = MeasuredLoad {
            cpus: 8,
            queues: 1,
            transactions_per_second: 100_000.0,
            utilisation: 0.375,
        };
        let costs = Costs::calibrated(&measured, 0.25);
        // 10 us a packet on the receiving CPU, 30 us a transaction on all.
        assert_eq!((costs.driver, costs.protocol, costs.application), (2500, 7500, 20_000 - 4000));
        let costs = Costs::calibrated(&MeasuredLoad { utilisation: 0.1, ..measured }, 0.25);
        assert_eq!(
            costs.application, 0,
            "less than the receiving CPU alone spends: nothing is left"
        );
    }
}
