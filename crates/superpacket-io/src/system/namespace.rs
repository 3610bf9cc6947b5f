//! Network namespaces of tests.

#![expect(unsafe_code, reason = "unshare(2)")]

use std::io;

/// Runs a test's body in a network namespace of its own, whose interfaces vanish with it. Where
/// there may be none, says so and skips it; in CI that is a failure.
pub(crate) fn in_network_namespace(body: impl FnOnce() + Send + 'static) {
    let inside = std::thread::spawn(|| {
        // SAFETY: the call takes flags only, and moves this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
            return body();
        }
        let error = io::Error::last_os_error();
        assert!(std::env::var_os("CI").is_none(), "no network namespace: {error}");
        eprintln!("SKIPPED: no network namespace: {error}");
    });
    if let Err(panic) = inside.join() {
        std::panic::resume_unwind(panic);
    }
}
