//! Shares of this machine's CPUs.

use std::collections::BTreeSet;

use distcollective::{Error, Result};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Divides the CPUs that this process may use into this many shares of nearly equal size, one for
/// each rank. CPUs of one core are in one share where they fit, and cores of one socket are side by
/// side.
///
/// # Errors
///
/// - `InvalidArgument`: there are fewer CPUs than shares, or no share is asked for.
/// - `System`: the system does not tell which CPUs this process may use.
pub fn cpu_shares(count: u32) -> Result<Vec<BTreeSet<usize>>> {
    let mut cpus: Vec<usize> = numbers(&own_cpus()?).collect();
    let count = count as usize;
    if count == 0 || cpus.len() < count {
        let of = |count: usize, noun| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let (cpus, ranks) = (of(cpus.len(), "CPU"), of(count, "rank"));
        return Err(error!(InvalidArgument, "{cpus} cannot be divided among {ranks}; run without binding"));
    }
    cpus.sort_by_cached_key(|cpu| (place(*cpu, "physical_package_id"), place(*cpu, "core_id"), *cpu));
    let share = |number: usize| cpus[number * cpus.len() / count..(number + 1) * cpus.len() / count].iter().copied();
    Ok((0..count).map(|number| share(number).collect()).collect())
}

/// A number that the kernel gives for a CPU's place; 0 if it gives none.
fn place(cpu: usize, what: &str) -> i64 {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The kernel's form of sets of CPUs, one for each rank. A CPU that processes of this one cannot
/// have is an error; the kernel itself would leave it out of the set.
pub(super) fn cpu_sets(sets: &[BTreeSet<usize>]) -> Result<Vec<CpuSet>> {
    let usable = usable(sets)?;
    (0..).zip(sets).map(|(rank, cpus): (u32, _)| cpu_set(&format!("rank {rank}"), cpus, &usable)).collect()
}

/// Has the calling thread, and threads that it starts from now on, run on these CPUs alone.
///
/// # Errors
///
/// - `InvalidArgument`: the set is empty, or has a CPU that this machine does not have or this
///   process may not use.
/// - `System`: the system does not tell, or refuses.
pub fn bind_thread(cpus: &BTreeSet<usize>) -> Result<()> {
    let set = cpu_set("this thread", cpus, &usable(std::slice::from_ref(cpus))?)?;
    sched_setaffinity(None, &set).map_err(|e| error!(System, "this thread cannot be bound to CPUs: {e}").with_source(e))
}

fn cpu_set(subject: &str, cpus: &BTreeSet<usize>, usable: &BTreeSet<usize>) -> Result<CpuSet> {
    if cpus.is_empty() {
        return Err(error!(InvalidArgument, "{subject} cannot run on an empty set of CPUs"));
    }
    if let Some(missing) = cpus.iter().find(|cpu| !usable.contains(cpu)) {
        return Err(error!(
            InvalidArgument,
            "{subject} cannot run on CPU {missing}, which this machine does not have or this process may not use; it \
             has {}",
            ranges(numbers(&own_cpus()?))
        ));
    }
    Ok(kernel_set(cpus))
}

/// Which of these CPUs a process of this one can have: those that exist, are on, and that its
/// control group has. They may be more than the process itself has now.
fn usable(sets: &[BTreeSet<usize>]) -> Result<BTreeSet<usize>> {
    let cpus = sets.iter().flatten().copied().filter(|cpu| *cpu < CpuSet::MAX_CPU).collect();
    // A set is a thread's own, so a thread tries it.
    let tried = std::thread::scope(|scope| {
        let try_set = || sched_setaffinity(None, &kernel_set(&cpus)).and_then(|()| sched_getaffinity(None));
        std::thread::Builder::new().spawn_scoped(scope, try_set).map(|thread| thread.join())
    });
    match tried.map_err(|e| error!(System, "no thread for CPUs: {e}").with_source(e))? {
        Ok(Ok(set)) => Ok(numbers(&set).collect()),
        // The kernel refuses a set that has no usable CPU at all.
        Ok(Err(Errno::INVAL)) => Ok(BTreeSet::new()),
        Ok(Err(e)) => Err(unknown_cpus(e)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The CPUs on which this thread may run.
fn own_cpus() -> Result<CpuSet> {
    sched_getaffinity(None).map_err(unknown_cpus)
}

fn unknown_cpus(e: Errno) -> Error {
    error!(System, "the CPUs of this process are not known: {e}").with_source(e)
}

fn kernel_set(cpus: &BTreeSet<usize>) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}

fn numbers(set: &CpuSet) -> impl Iterator<Item = usize> {
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu))
}

/// Ascending numbers in the manner of `taskset`: `0-3,8`.
fn ranges(cpus: impl Iterator<Item = usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text =
        |(first, last): (usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_is_in_one_share() {
        let all = &cpu_shares(1).expect("a machine has a CPU")[0];
        for count in 1..=all.len() as u32 {
            let shares = cpu_shares(count).expect("enough CPUs");
            assert_eq!(shares.iter().map(BTreeSet::len).sum::<usize>(), all.len());
            assert_eq!(&shares.iter().flatten().copied().collect::<BTreeSet<usize>>(), all);
            let (smallest, largest) = (shares.iter().map(BTreeSet::len).min(), shares.iter().map(BTreeSet::len).max());
            assert!(smallest >= Some(1) && largest <= smallest.map(|size| size + 1), "{shares:?}");
        }
        let error = cpu_shares(all.len() as u32 + 1).expect_err("too few CPUs");
        assert!(error.to_string().contains("cannot be divided among"), "{error}");
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges([0, 1, 2, 4, 6, 7].into_iter()), "0-2,4,6-7");
    }

    /// The kernel takes a set with one usable CPU, and leaves out the others.
    #[test]
    fn a_cpu_that_there_is_not_is_named() {
        let own = cpu_shares(1).expect("a machine has a CPU").remove(0);
        let first = *own.first().expect("a CPU");
        assert!(cpu_sets(&[own.clone(), BTreeSet::from([first])]).is_ok());
        // No machine has as many.
        for missing in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, 99_999] {
            for set in [BTreeSet::from([first, missing]), BTreeSet::from([missing])] {
                let error = cpu_sets(&[own.clone(), set]).expect_err("there is no such CPU");
                let expected = format!(
                    "rank 1 cannot run on CPU {missing}, which this machine does not have or this process may not use; it \
                     has {}",
                    ranges(own.iter().copied())
                );
                assert_eq!(error.to_string(), expected);
            }
        }
    }
}
