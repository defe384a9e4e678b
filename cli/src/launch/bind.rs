//! Which CPUs each rank may use.

use std::collections::BTreeSet;
use std::str::FromStr;

use distcollective::launch::cpu_shares;

/// How ranks are bound to CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
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
            _ => return Err(format!("{range:?} is no CPU and no range of CPUs; write none, core, share or '0-3;4-7'")),
        }
    }
    Ok(cpus)
}

impl Binding {
    /// The CPUs of each of so many ranks, if ranks are bound.
    pub fn sets(&self, ranks: u32) -> Result<Option<Vec<BTreeSet<usize>>>, String> {
        let shares = || cpu_shares(ranks).map_err(|e| format!("{e} (--bind none)"));
        match self {
            Binding::None => Ok(None),
            Binding::Share => shares().map(Some),
            Binding::Core => {
                let first = |share: BTreeSet<usize>| share.into_iter().take(1).collect();
                Ok(Some(shares()?.into_iter().map(first).collect()))
            }
            Binding::Sets(sets) if sets.len() == ranks as usize => Ok(Some(sets.clone())),
            Binding::Sets(sets) => Err(format!("--bind has {} sets of CPUs for {ranks} ranks", sets.len())),
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
