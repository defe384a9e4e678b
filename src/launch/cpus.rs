//! Shares of this machine's CPUs.

use std::collections::BTreeSet;

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::error::{Result, bail, error};

/// Divides the CPUs that this process may use into this many shares of nearly equal size, one for
/// each rank. CPUs of one core are in one share where they fit, and cores of one socket are side by
/// side.
///
/// # Errors
///
/// - `InvalidArgument`: there are fewer CPUs than shares, or no share is asked for.
/// - `System`: the system does not tell which CPUs this process may use.
pub fn cpu_shares(count: u32) -> Result<Vec<BTreeSet<usize>>> {
    let allowed = sched_getaffinity(None)
        .map_err(|e| error!(System, "the CPUs of this process are not known: {e}").with_source(e))?;
    let mut cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let count = count as usize;
    if count == 0 || cpus.len() < count {
        bail!(InvalidArgument, "{} CPUs cannot be divided among {count} ranks; run without binding", cpus.len());
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

/// The kernel's form of a set of CPUs.
pub(super) fn cpu_set(cpus: &BTreeSet<usize>) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            bail!(InvalidArgument, "there is no CPU {cpu}; numbers are below {}", CpuSet::MAX_CPU);
        }
        set.set(cpu);
    }
    if cpus.is_empty() {
        bail!(InvalidArgument, "a rank cannot run on an empty set of CPUs");
    }
    Ok(set)
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
}
