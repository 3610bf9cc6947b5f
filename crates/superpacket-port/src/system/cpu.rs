//! CPU affinity of threads.

use std::io;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Returns the numbers of the CPUs that the calling thread may run on (`sched_getaffinity(2)`).
///
/// # Errors
/// The system call's error, for example if the kernel supports more CPUs than the 1,024 asked for.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Restricts a thread to the given CPUs. `thread` is the thread's number (`gettid(2)`); `None` is
/// the calling thread.
///
/// # Errors
/// `Unsupported` for a CPU above 1,023; otherwise the error of `sched_setaffinity(2)`, for example
/// if the process may use none of the CPUs.
pub fn pin_thread(thread: Option<u32>, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            let text = format!(
                "CPU {cpu}: the last that a thread can be restricted to is {}",
                CpuSet::MAX_CPU - 1
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        set.set(cpu);
    }
    let number = |thread: u32| i32::try_from(thread).ok().and_then(Pid::from_raw);
    let thread =
        thread.map(|thread| number(thread).ok_or(io::ErrorKind::InvalidInput)).transpose()?;
    Ok(sched_setaffinity(thread, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_kept_on_each_cpu_that_it_may_run_on() {
        let cpus = allowed_cpus().expect("Linux says it");
        assert!(!cpus.is_empty());
        for &cpu in &cpus {
            let runs_on = std::thread::spawn(move || {
                pin_thread(None, &[cpu])?;
                Ok::<_, io::Error>((rustix::thread::sched_getcpu(), allowed_cpus()?))
            });
            assert_eq!(runs_on.join().expect("no panic").expect("it may"), (cpu, vec![cpu]));
        }
        assert_eq!(allowed_cpus().expect("Linux says it"), cpus, "other threads are left alone");
    }

    #[test]
    fn another_thread_is_restricted_by_its_number() {
        let (tell, told) = std::sync::mpsc::channel();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).expect("it listens");
            let _ = wait.recv();
            allowed_cpus()
        });
        let id = told.recv().expect("it runs").as_raw_nonzero().get().unsigned_abs();
        let last = allowed_cpus().expect("Linux says it").pop().expect("one at least");
        pin_thread(Some(id), &[last]).expect("it may");
        drop(go_on);
        assert_eq!(other.join().expect("no panic").expect("Linux says it"), [last]);
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let kind = |thread, cpus: &[usize]| pin_thread(thread, cpus).expect_err("refused").kind();
        assert_eq!(kind(None, &[0, 1024]), io::ErrorKind::Unsupported);
        assert_eq!(kind(None, &[]), io::ErrorKind::InvalidInput);
        assert_eq!(kind(Some(u32::MAX), &[0]), io::ErrorKind::InvalidInput);
        assert_eq!(kind(Some(0), &[0]), io::ErrorKind::InvalidInput);
    }
}
