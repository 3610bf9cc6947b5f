//! Checks that there is enough memory for a port's settings before threads use them, because a
//! failed allocation in a thread would end the process.

use std::{fmt, io};

use superpacket::aggregate::{Mode, Policy};
use superpacket_port::PortError;
use superpacket_steer::{FlowLimitError, FlowTableError};

use crate::command::ReservedMemory;
use crate::error::BridgeError;
use crate::runtime::SharedPort;
use crate::settings::{PortSettings, SteeringProblem};

/// Maximum number of bytes that the aggregator's flow table takes for each flow it may hold.
const FLOW_BYTES: usize = 64;

/// Maximum number of bytes that the record of acknowledgements for `lro_acks` takes for each flow.
const ACK_BYTES: usize = 256;
/// Maximum number of bytes that the record of acknowledgements for `lro_acks` takes for all flows.
const MAX_ACK_BYTES: usize = 256 << 10;

/// Number of bytes that RFS takes for each flow of a receive queue.
const RFS_FLOW_BYTES: usize = 16;

/// Number of bytes that a thread takes for each receive queue with default settings, rounded up.
/// The steering buckets take 64 KiB of them.
const QUEUE_BYTES: usize = 128 << 10;

/// Reserves memory for `queues` receive queues until their thread allocates it.
///
/// # Errors
/// There is not enough memory. The message names what all `all` queues of the port need together.
pub(super) fn reserve(port: &str, queues: usize, all: usize) -> Result<ReservedMemory, PortError> {
    ReservedMemory::try_new(QUEUE_BYTES.saturating_mul(queues)).ok_or_else(|| {
        let says = format!(
            "there are no {} MiB for {all} queues: fewer by queues=N",
            (QUEUE_BYTES.saturating_mul(all)).div_ceil(1 << 20)
        );
        PortError::system(
            port,
            "taking memory for the receive queues",
            io::Error::new(io::ErrorKind::OutOfMemory, says),
        )
    })
}

/// Returns whether this many bytes can currently be allocated in one piece.
fn is_available(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

/// Returns the maximum number of bytes that aggregation takes for a receive queue before packets
/// arrive.
fn needed(policy: &Policy) -> usize {
    let flows = policy.max_flows as usize;
    let acknowledged = if policy.mode == (Mode::Lro { acks: true }) {
        (ACK_BYTES * flows).min(MAX_ACK_BYTES)
    } else {
        0
    };
    FLOW_BYTES * flows + acknowledged
}

/// The settings that a port had before a change, to restore them if there is no memory for the new
/// ones.
#[derive(Debug)]
pub(super) struct PreviousSettings {
    settings: PortSettings,
    policy: Option<Policy>,
}

impl PreviousSettings {
    pub(super) fn of(shared: &SharedPort) -> Self {
        PreviousSettings { settings: shared.settings(), policy: shared.runtime().policy() }
    }

    /// Restores the settings if there is no memory for the flows that the changed port now
    /// aggregates. `queues` is the number of its receive queues.
    ///
    /// # Errors
    /// [`BridgeError::Limit`] if the settings were restored.
    pub(super) fn restore_without_memory(
        self,
        shared: &SharedPort,
        queues: usize,
    ) -> Result<(), BridgeError> {
        let wanted = shared.runtime().policy();
        let Some(policy) = wanted.filter(|_| wanted != self.policy) else { return Ok(()) };
        if is_available(needed(&policy).saturating_mul(queues)) {
            return Ok(());
        }
        shared.change(|settings| *settings = self.settings);
        let problem = format!(
            "ENOMEM: there is no memory to aggregate {} flows of each of {queues} receive queues",
            policy.max_flows
        );
        Err(BridgeError::Limit { port: shared.name.clone(), problem })
    }
}

/// Returns an error if there is no memory for RFS with `count` flows in each of `queues` receive
/// queues.
pub(super) fn check_flow_count(count: u32, queues: usize) -> Result<(), SteeringProblem> {
    let problem = FlowTableError::NoMemory { entries: count };
    check(
        (count as usize).saturating_mul(RFS_FLOW_BYTES),
        queues,
        format_args!("rps_flow_cnt: {problem},"),
    )
}

/// Returns an error if there is no memory for a flow limit of `length` entries in each of `queues`
/// receive queues.
pub(super) fn check_flow_limit(length: usize, queues: usize) -> Result<(), SteeringProblem> {
    let problem = FlowLimitError::NoMemory { length };
    check(length, queues, format_args!("flow_limit_table_len: {problem}"))
}

/// Returns an error if there is no memory for this many bytes in each of `queues` receive queues.
/// `problem` names the setting that cannot be used, for the error's message.
fn check(bytes: usize, queues: usize, problem: fmt::Arguments<'_>) -> Result<(), SteeringProblem> {
    if is_available(bytes.saturating_mul(queues)) {
        return Ok(());
    }
    Err(SteeringProblem(format!("{problem} of each of {queues} receive queues")))
}
