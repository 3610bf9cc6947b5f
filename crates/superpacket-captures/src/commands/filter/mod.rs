//! Filters: expressions in the syntax of tcpdump that select the frames of a capture which are
//! read.
//!
//! Libpcap compiles an expression once per link type. Its result is a program for the virtual
//! machine of the BSD Packet Filter, which [`program`] runs.

#[cfg(feature = "filter")]
mod compiled;
#[cfg(not(feature = "filter"))]
mod missing;
#[cfg(feature = "filter")]
mod program;

#[cfg(feature = "filter")]
pub(crate) use compiled::Filter;
#[cfg(not(feature = "filter"))]
pub(crate) use missing::Filter;

use crate::commands::error::Error;
use crate::file::LinkType;

/// Returns whether a frame matches all of these filters, as [`Filter::matches`] does for one.
pub(crate) fn matches_all(
    filters: &mut [Filter],
    link_type: LinkType,
    frame: &[u8],
    original_length: u32,
) -> Result<bool, Error> {
    for filter in filters {
        if !filter.matches(link_type, frame, original_length)? {
            return Ok(false);
        }
    }
    Ok(true)
}
