//! Communicators of some of a communicator's ranks.

use std::collections::HashSet;
use std::time::Instant;

use super::split::{ColorAndKey, SplitGroup};
use super::{Backend, Communicator};
use crate::collective::{Groups, Purpose};
use crate::error::{Error, Result, bail, error};
use crate::issue_order::Extent;
use crate::rank::Rank;
use crate::util::text::{count_of, list_ranks};

/// # Groups
///
/// ```
/// use distcollective::{Communicator, ErrorKind, Rank};
///
/// Communicator::spawn(3, |communicator| {
///     // Ranks 0 and 2, and rank 1.
///     let part = communicator.split(Some(communicator.rank().0 % 2), 0)?.expect("it has a color");
///     assert_eq!(part.global_ranks().contains(&Rank(2)), communicator.rank() != Rank(1));
///     // Roots are ranks of the communicator at hand.
///     if let Some(pair) = communicator.new_group([2, 0])? {
///         assert_eq!(pair.global_rank(0)?, Rank(2));
///         assert_eq!(pair.group_rank(0)?, Rank(1));
///         assert_eq!(pair.group_rank(1).unwrap_err().kind(), ErrorKind::NotAMember);
///     }
///     Ok(())
/// })?;
/// # Ok::<(), distcollective::Error>(())
/// ```
impl Communicator {
    /// Makes a communicator of the ranks that give the same `color`, ordered by `key` and then by
    /// rank, as `MPI_Comm_split` and `ncclCommSplit` do. A rank without a color takes part in the
    /// call and gets none. All ranks have one [determinism](Self::with_determinism). Collective.
    ///
    #[doc = include_str!("errors.md")]
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        let deadline = self.deadline();
        let split = || self.split_by_color(color, key, deadline);
        let split = self.in_turn(Extent::Communicator, &"split", deadline, split)?;
        Ok(split.map(|(_, backend)| self.descendant(backend)))
    }

    /// Finds the ranks with the same color, and makes their backend.
    fn split_by_color(
        &self,
        color: Option<u32>,
        key: i32,
        deadline: Instant,
    ) -> Result<Option<(SplitGroup, Box<dyn Backend>)>> {
        let all = self.exchange(Purpose::SPLIT, &(color, key, self.determinism), deadline)?;
        self.check_determinism(all.iter().map(|&(.., determinism)| determinism), "split")?;
        let colors: Vec<ColorAndKey> = all.into_iter().map(|(color, key, _)| (color, key)).collect();
        let group = SplitGroup::of(self.rank(), &colors);
        let backend = self.backend.split(group.as_ref(), deadline)?;
        Ok(group.zip(backend))
    }

    /// Makes a communicator of `ranks`, whose order becomes the order of the new ranks. Every rank
    /// of this communicator gives the same list. A rank that is not in it gets none. Collective.
    ///
    /// # Errors
    ///
    /// The communicator stays as it was:
    /// - `InvalidArgument`: a rank is named twice or is not in this communicator.
    /// - `Disagreement`: the ranks give different lists.
    ///
    /// All others are those of [`split`](Self::split).
    pub fn new_group(&self, ranks: impl IntoIterator<Item: Into<Rank>>) -> Result<Option<Communicator>> {
        self.new_named_group(None, &ranks.into_iter().map(Into::into).collect::<Vec<Rank>>())
    }

    /// [`new_group`](Self::new_group), where ranks compare a name too.
    pub(crate) fn new_named_group(&self, name: Option<&str>, ranks: &[Rank]) -> Result<Option<Communicator>> {
        self.check_members(ranks).map_err(|e| self.about(&"new_group", e))?;
        let deadline = self.deadline();
        self.in_turn(Extent::Communicator, &"new_group", deadline, || self.make_group(name, ranks, deadline))
    }

    /// This communicator's ranks by their numbers in the first communicator, from which it was
    /// split over all steps: their *global ranks*. Element `r` is rank `r`. Errors name ranks by
    /// these numbers. Not collective.
    pub fn global_ranks(&self) -> Vec<Rank> {
        (0..self.world_size()).map(|rank| self.origin(Rank(rank))).collect()
    }

    /// The [global rank](Self::global_ranks) of a rank of this communicator. Not collective.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`: the communicator has no such rank.
    pub fn global_rank(&self, rank: impl Into<Rank>) -> Result<Rank> {
        let rank = rank.into();
        self.check_rank("rank", rank).map_err(|error| self.about(&"global_rank", error))?;
        Ok(self.origin(rank))
    }

    /// The number in this communicator of a [global rank](Self::global_ranks). Not collective.
    ///
    /// # Errors
    ///
    /// `NotAMember`: the global rank is not in this communicator.
    pub fn group_rank(&self, global: impl Into<Rank>) -> Result<Rank> {
        let global = global.into();
        let found = (0..self.world_size()).map(Rank).find(|rank| self.origin(*rank) == global);
        found.ok_or_else(|| not_a_member(global, "the group", &self.global_ranks()).on_rank(self.origin_rank()))
    }

    fn check_members(&self, ranks: &[Rank]) -> Result<()> {
        let group = || Groups::Group(ranks.to_vec());
        let mut seen = HashSet::new();
        for rank in ranks {
            if rank.0 >= self.world_size() {
                let of = count_of(self.world_size() as usize, "rank");
                bail!(InvalidArgument, "rank {rank} is not in a communicator of {of}; the group is {}", group());
            }
            if !seen.insert(rank) {
                bail!(InvalidArgument, "rank {rank} occurs twice; the group is {}", group());
            }
        }
        Ok(())
    }

    fn make_group(&self, name: Option<&str>, ranks: &[Rank], deadline: Instant) -> Result<Option<Communicator>> {
        let own: (Option<String>, Vec<u32>) = (name.map(str::to_owned), ranks.iter().map(|rank| rank.0).collect());
        let all = self.exchange(Purpose::NEW_GROUP, &own, deadline)?;
        if let Some(other) = all.iter().position(|other| *other != own) {
            // Every rank has the same lists, and at least two differ, so every rank returns an
            // error.
            let others = &all[other];
            let are_named = own.0.is_some() || others.0.is_some();
            let describe = |(name, ranks): &(Option<String>, Vec<u32>)| match name {
                Some(name) => format!("{name:?} {ranks:?}"),
                None if are_named => format!("{ranks:?} without a name"),
                None => format!("{ranks:?}"),
            };
            bail!(
                Disagreement,
                "new_group wants the same {} on every rank: this rank gives {}, rank {} gives {}",
                if are_named { "name and ranks" } else { "ranks" },
                describe(&own),
                self.origin(Rank(other as u32)),
                describe(others)
            );
        }
        self.split_into(ranks.contains(&self.rank()).then_some(ranks), deadline)
    }

    /// Makes a communicator of the group that this rank is in, if it is in one. Other ranks make
    /// those of their groups at the same time. Checks that exactly the group's members came,
    /// because buffers are as long as the group says. Collective, in this rank's
    /// [turn](Self::in_turn).
    pub(crate) fn split_into(&self, group: Option<&[Rank]>, deadline: Instant) -> Result<Option<Communicator>> {
        let place = group.and_then(|group| group.iter().position(|rank| *rank == self.rank()));
        let (Some(group), Some(place)) = (group, place) else {
            self.split_by_color(None, 0, deadline)?;
            return Ok(None);
        };
        // The first member's number is a color that no other group has.
        let split = self.split_by_color(group.first().map(|rank| rank.0), place as i32, deadline)?;
        if split.as_ref().is_none_or(|(split, _)| *split.members != *group) {
            let error = error!(Disagreement, "ranks that split at the same time wanted different groups");
            self.abort_with(&error);
            return Err(error);
        }
        Ok(split.map(|(_, backend)| self.descendant(backend)))
    }
}

/// The error of a global rank that is not in a group of these.
pub(crate) fn not_a_member(rank: Rank, group: &str, ranks: &[Rank]) -> Error {
    let ranks = list_ranks(ranks.iter().map(|rank| rank.0));
    error!(NotAMember, "rank {rank} is not a member of {group}, which has {ranks}")
}
