//! Whether there is memory for what a port and its settings ask for, before its threads are told of
//! it: an allocation that fails in one of them would end the process.

use std::{fmt, io};

use superpacket::aggregate::{Mode, Policy};
use superpacket_port::PortError;
use superpacket_steer::{FlowLimitError, FlowTableError};

use crate::error::BridgeError;
use crate::order::SetAside;
use crate::runtime::Shared;
use crate::settings::{PortSettings, SteeringProblem};

/// The most that a table of flows takes for each flow that a receive queue may hold.
const FLOW: usize = 64;

/// The same of what is remembered of acknowledgements (`lro_acks`), and the most of it.
const ACKNOWLEDGED: usize = 256;
const MOST_ACKNOWLEDGED: usize = 256 << 10;

/// What RFS takes for each flow of a receive queue.
const RFS_FLOW: usize = 16;

/// What a thread takes for each receive queue by the settings that a port has at first, and some
/// more: 64 KiB of it are the buckets in which flows are steered.
const QUEUE: usize = 128 << 10;

/// Keeps memory for so many receive queues of a port until their thread takes it.
///
/// # Errors
/// There is none for as many as the whole port has.
pub(super) fn set_aside(port: &str, queues: usize, all: usize) -> Result<SetAside, PortError> {
    SetAside::try_new(QUEUE.saturating_mul(queues)).ok_or_else(|| {
        let says = format!(
            "there are no {} MiB for {all} queues: fewer by queues=N",
            (QUEUE.saturating_mul(all)).div_ceil(1 << 20)
        );
        PortError::system(
            port,
            "taking memory for the receive queues",
            io::Error::new(io::ErrorKind::OutOfMemory, says),
        )
    })
}

/// Is there memory for so many bytes, all together?
fn is_there(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

/// What aggregating so takes for each receive queue before packets come, at most.
fn needed(policy: &Policy) -> usize {
    let flows = policy.max_flows as usize;
    let acknowledged = if policy.mode == (Mode::Lro { acks: true }) {
        (ACKNOWLEDGED * flows).min(MOST_ACKNOWLEDGED)
    } else {
        0
    };
    FLOW * flows + acknowledged
}

/// What a port was asked before a change.
#[derive(Debug)]
pub(super) struct Earlier {
    settings: PortSettings,
    policy: Option<Policy>,
}

impl Earlier {
    pub(super) fn of(shared: &Shared) -> Self {
        Earlier { settings: shared.settings(), policy: shared.runtime().policy() }
    }

    /// Takes the change of a port with so many receive queues back if there is no memory for the
    /// flows that it then aggregates.
    pub(super) fn restore_without_memory(
        self,
        shared: &Shared,
        queues: usize,
    ) -> Result<(), BridgeError> {
        let wanted = shared.runtime().policy();
        let Some(policy) = wanted.filter(|_| wanted != self.policy) else { return Ok(()) };
        if is_there(needed(&policy).saturating_mul(queues)) {
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

/// Is there memory for RFS of so many flows in each of so many receive queues?
pub(super) fn check_flow_count(count: u32, queues: usize) -> Result<(), SteeringProblem> {
    let problem = FlowTableError::NoMemory { entries: count };
    check(
        (count as usize).saturating_mul(RFS_FLOW),
        queues,
        format_args!("rps_flow_cnt: {problem},"),
    )
}

/// Is there memory for a flow limit of so many entries in each of so many receive queues?
pub(super) fn check_flow_limit(length: usize, queues: usize) -> Result<(), SteeringProblem> {
    let problem = FlowLimitError::NoMemory { length };
    check(length, queues, format_args!("flow_limit_table_len: {problem}"))
}

/// Is there memory for so many bytes in each of so many receive queues? `problem` says what is
/// refused if not.
fn check(bytes: usize, queues: usize, problem: fmt::Arguments<'_>) -> Result<(), SteeringProblem> {
    if is_there(bytes.saturating_mul(queues)) {
        return Ok(());
    }
    Err(SteeringProblem(format!("{problem} of each of {queues} receive queues")))
}
