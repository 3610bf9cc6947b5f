//! The filter of a build without the feature `filter`: creating one always fails.

use crate::commands::error::Error;
use crate::file::LinkType;

/// A filter, of which no value exists in a build without the feature `filter`.
pub(crate) enum Filter {}

impl Filter {
    /// Returns an error that says how to build a program with filters.
    pub(crate) fn new(_expression: &str) -> Result<Self, Error> {
        Err(Error::Options(
            "filter: not in this build. Install libpcap's development files (libpcap-dev on \
             Debian and Ubuntu, libpcap-devel on Fedora), and build with the feature `filter`: \
             cargo install --path crates/superpacket-cli --features filter"
                .to_owned(),
        ))
    }

    /// Returns whether a frame matches; never called.
    pub(crate) fn matches(
        &mut self,
        _link_type: LinkType,
        _frame: &[u8],
        _original_length: u32,
    ) -> Result<bool, Error> {
        match *self {}
    }
}
