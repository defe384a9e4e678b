//! Groups of ranks by name.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Mutex;

use crate::comm::{Communicator, not_a_member};
use crate::error::{Result, bail, error};
use crate::rank::Rank;
use crate::util::lock;

/// The name of the group of all ranks.
const ALL_RANKS: &str = "default";

/// The named groups of an environment. A name is taken, without members, while a thread is in the
/// collective call that makes its group.
pub(super) struct NamedGroups(Mutex<BTreeMap<String, Option<Members>>>);

/// The members of a group.
#[derive(Clone)]
struct Members {
    /// Their global ranks, in the group's order.
    ranks: Vec<Rank>,
    /// The communicator, if this rank is a member.
    communicator: Option<Communicator>,
}

impl NamedGroups {
    /// The group of all ranks, and no other.
    pub(super) fn new(all: Communicator) -> Self {
        let members = Members { ranks: all.global_ranks(), communicator: Some(all) };
        NamedGroups(Mutex::new(BTreeMap::from([(ALL_RANKS.to_owned(), Some(members))])))
    }

    /// See [`Environment::new_group`](super::Environment::new_group).
    pub(super) fn make(&self, all: &Communicator, name: &str, ranks: &[Rank]) -> Result<Option<Communicator>> {
        match lock(&self.0).entry(name.to_owned()) {
            Entry::Vacant(entry) => drop(entry.insert(None)),
            Entry::Occupied(entry) if entry.get().is_some() => {
                bail!(InvalidArgument, "there is a group {name:?} already")
            }
            Entry::Occupied(_) => bail!(InvalidArgument, "another thread is making group {name:?}"),
        }
        let group = all.new_named_group(Some(name), ranks);
        let mut groups = lock(&self.0);
        match &group {
            Ok(communicator) => {
                let members = Members { ranks: ranks.to_vec(), communicator: communicator.clone() };
                groups.insert(name.to_owned(), Some(members));
            }
            Err(_) => drop(groups.remove(name)),
        }
        group
    }

    /// The communicator of a group, if this rank is a member.
    pub(super) fn get(&self, name: &str, own: Rank) -> Result<Communicator> {
        let Members { ranks, communicator } = self.members(name)?;
        communicator.ok_or_else(|| not_a_member(own, &format!("group {name:?}"), &ranks).on_rank(own))
    }

    /// The global ranks of a group, in its order.
    pub(super) fn ranks(&self, name: &str) -> Result<Vec<Rank>> {
        Ok(self.members(name)?.ranks)
    }

    /// The names of all groups, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        lock(&self.0).iter().filter(|(_, members)| members.is_some()).map(|(name, _)| name.clone()).collect()
    }

    fn members(&self, name: &str) -> Result<Members> {
        if let Some(Some(members)) = lock(&self.0).get(name) {
            return Ok(members.clone());
        }
        let names: Vec<String> = self.names().iter().map(|name| format!("{name:?}")).collect();
        Err(error!(InvalidArgument, "there is no group {name:?}; there are {}", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use std::thread::scope;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::error::ErrorKind;

    /// The groups and communicators of ranks that are threads of this process.
    fn ranks(world_size: u32) -> Vec<(NamedGroups, Communicator)> {
        let of_rank = |communicator: Communicator| {
            let communicator = communicator.with_timeout(Duration::from_secs(10));
            (NamedGroups::new(communicator.clone()), communicator)
        };
        Communicator::builder().in_process(world_size).expect("ranks").into_iter().map(of_rank).collect()
    }

    const BOTH: [Rank; 2] = [Rank(0), Rank(1)];

    /// If the ranks give different names, every rank gets an error at once with both names, and can
    /// make groups afterwards.
    #[test]
    fn groups_of_different_names_are_a_disagreement() {
        let ranks = ranks(2);
        scope(|scope| {
            for (groups, all) in &ranks {
                scope.spawn(move || {
                    let rank = all.rank().0;
                    // In opposite order on the two ranks.
                    let (own, other) = if rank == 0 { ("tp", "dp") } else { ("dp", "tp") };
                    let expected = |own: &str, other: &str| {
                        format!(
                            "rank {rank}: new_group wants the same name and ranks on every rank: this rank gives {own}, rank {} \
                             gives {other}",
                            1 - rank
                        )
                    };
                    for (own, other) in [(own, other), (other, own)] {
                        let error = groups.make(all, own, &BOTH).expect_err("different names");
                        assert_eq!(error.kind(), ErrorKind::Disagreement);
                        let [own, other] = [own, other].map(|name| format!("{name:?} [0, 1]"));
                        assert_eq!(error.to_string(), expected(&own, &other));
                        assert!(groups.get("tp", all.rank()).is_err());
                    }
                    // Beside a group without a name.
                    let unnamed = match rank {
                        0 => groups.make(all, "tp", &BOTH),
                        _ => all.new_group(BOTH),
                    };
                    let message = unnamed.expect_err("one has no name").to_string();
                    let sides = ["\"tp\" [0, 1]", "[0, 1] without a name"];
                    assert_eq!(message, expected(sides[rank as usize], sides[1 - rank as usize]));
                    // The names are free, and the communicator works.
                    let group = groups.make(all, "tp", &BOTH).expect("a group").expect("a member");
                    group.barrier().expect("a barrier");
                    assert!(groups.make(all, "tp", &BOTH).is_err());
                });
            }
        });
    }

    /// A name is taken from the beginning of the call that makes its group.
    #[test]
    fn two_threads_do_not_make_one_group() {
        let ranks = ranks(2);
        let make = |rank: usize| {
            let (groups, all) = &ranks[rank];
            groups.make(all, "tp", &BOTH)
        };
        scope(|scope| {
            let twins = [(); 2].map(|()| scope.spawn(|| make(0).map(|group| group.is_some())));
            let end = Instant::now() + Duration::from_secs(10);
            while !twins.iter().any(|twin| twin.is_finished()) {
                assert!(Instant::now() < end, "both wait for rank 1");
                std::thread::yield_now();
            }
            assert!(ranks[0].0.get("tp", Rank(0)).is_err());
            make(1).expect("a group");
            let mut results = twins.map(|twin| twin.join().expect("no panic").map_err(|error| error.to_string()));
            results.sort();
            assert_eq!(results, [Ok(true), Err("another thread is making group \"tp\"".to_owned())]);
        });
    }
}
