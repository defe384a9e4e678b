//! Which CPUs each rank may use.

use std::collections::BTreeSet;
use std::str::FromStr;

use distcollective::Environment;
use distcollective_launch::cpu_shares;

/// How ranks are bound to CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// As [`Share`](Self::Share) if there is a CPU for each rank and the ranks are the whole job;
    /// otherwise as [`None`](Self::None).
    Auto,
    None,
    Core,
    Share,
    /// A set for each rank.
    Sets(Vec<BTreeSet<usize>>),
}

impl FromStr for Binding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Binding::Auto),
            "none" => Ok(Binding::None),
            "core" => Ok(Binding::Core),
            "share" => Ok(Binding::Share),
            sets => sets.split(';').map(set).collect::<Result<_, _>>().map(Binding::Sets),
        }
    }
}

/// Reads a set of CPUs: `0-3,8`.
fn set(text: &str) -> Result<BTreeSet<usize>, String> {
    let mut cpus = BTreeSet::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.trim().parse::<u16>().map(usize::from);
        match (number(first), number(last)) {
            (Ok(first), Ok(last)) if first <= last => cpus.extend(first..=last),
            _ => {
                let wanted = "auto, none, core, share or sets such as '0-3;4-7'";
                return Err(format!("{range:?} is no CPU and no range of CPUs; write {wanted}"));
            }
        }
    }
    Ok(cpus)
}

impl Binding {
    /// The CPUs of each of so many ranks, if ranks are bound.
    pub fn sets(&self, ranks: u32) -> Result<Option<Vec<BTreeSet<usize>>>, String> {
        let shares = || cpu_shares(ranks).map_err(|e| format!("{e} (--bind none)"));
        match self {
            // Another launcher may have started this one beside others, on the same CPUs.
            Binding::Auto if Environment::detect_launcher().is_some() => Ok(None),
            // An error says that there are too few CPUs.
            Binding::Auto => Ok(cpu_shares(ranks).ok()),
            Binding::None => Ok(None),
            Binding::Share => shares().map(Some),
            Binding::Core => {
                let first = |share: BTreeSet<usize>| share.into_iter().take(1).collect();
                Ok(Some(shares()?.into_iter().map(first).collect()))
            }
            Binding::Sets(sets) if sets.len() == ranks as usize => Ok(Some(sets.clone())),
            Binding::Sets(sets) => {
                let plural = |count: usize| if count == 1 { "" } else { "s" };
                let (count, of, ranks_end) = (sets.len(), plural(sets.len()), plural(ranks as usize));
                Err(format!("--bind has {count} set{of} of CPUs for {ranks} rank{ranks_end}; separate sets by ';'"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read() {
        let sets = vec![BTreeSet::from([0, 1, 2, 8]), BTreeSet::from([4])];
        assert_eq!("0-2,8;4".parse(), Ok(Binding::Sets(sets)));
        assert_eq!("none".parse(), Ok(Binding::None));
        for wrong in ["", "0-", "2-1", "0;;1", "cores", "99999999"] {
            assert!(wrong.parse::<Binding>().is_err(), "{wrong}");
        }
    }
}
