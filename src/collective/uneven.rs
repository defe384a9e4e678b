//! Collectives whose blocks have different lengths: MPI's `Alltoallv`, `Allgatherv`, `Gatherv`,
//! `Scatterv` and `Reduce_scatter`.

use super::{Call, Collective};
use crate::error::{Result, bail};
use crate::rank::{GroupRank, Rank};

/// What every rank says of the blocks before any of them moves: one word for the call, then how
/// many elements it gives to each rank, then how many it takes from each. A rank that does not give
/// to another says 0.
pub(crate) struct BlockCounts {
    rank_count: usize,
    /// The words of all ranks, one rank after the other.
    words: Vec<i64>,
}

impl BlockCounts {
    /// Counts that all ranks know.
    pub(crate) fn of(rank_count: usize, len: impl Fn(usize, usize) -> usize) -> Self {
        let lens_of = |rank: usize| {
            let gives = (0..rank_count).map(move |to| (rank, to));
            gives.chain((0..rank_count).map(move |from| (from, rank)))
        };
        let words = (0..rank_count).flat_map(|rank| {
            std::iter::once(0).chain(lens_of(rank).map(|(from, to)| len(from, to) as i64).collect::<Vec<_>>())
        });
        BlockCounts { rank_count, words: words.collect() }
    }

    /// The words of one rank, whose blocks have these lengths: one for each rank, or one.
    pub(crate) fn words_of(
        call: &Call,
        word: u64,
        rank: GroupRank,
        rank_count: usize,
        sides: [&[usize]; 2],
    ) -> Vec<i64> {
        let count = |counts: &[usize], is_per_rank: bool, peer: usize, is_used: bool| match is_used {
            true => counts[if is_per_rank { peer } else { 0 }] as i64,
            false => 0,
        };
        let [given, taken] = sides;
        let peers = || (0..rank_count).map(|peer| (peer, GroupRank(peer as u32)));
        let gives = peers().map(|(peer, to)| count(given, call.input().is_per_rank, peer, call.moves(rank, to)));
        let takes = peers().map(|(peer, from)| count(taken, call.output().is_per_rank, peer, call.moves(from, rank)));
        std::iter::once(word as i64).chain(gives).chain(takes).collect()
    }

    /// The counts of all ranks, which have given these words.
    ///
    /// # Errors
    ///
    /// All ranks find the same. `name` gives a rank's name, and `describe` the call of a word.
    ///
    /// - `Disagreement`: two ranks make different calls, or one gives another a number of elements
    ///   that this one does not take.
    /// - `System`: a rank gives more than memory can hold.
    pub(crate) fn agreed(
        call: &Call,
        rank_count: usize,
        words: Vec<i64>,
        name: impl Fn(usize) -> Rank,
        describe: impl Fn(u64) -> String,
    ) -> Result<Self> {
        let counts = BlockCounts { rank_count, words };
        let word = |rank: usize| counts.words[rank * counts.words_of_rank()] as u64;
        if let Some(other) = (1..rank_count).find(|rank| word(*rank) != word(0)) {
            let [first, second] = [0, other].map(|rank| format!("rank {} calls {}", name(rank), describe(word(rank))));
            bail!(Disagreement, "ranks disagree on a call with blocks of different lengths: {first}; {second}");
        }
        // What peers say is not trusted: no rank's buffer may be longer than memory.
        let most = isize::MAX as usize / call.data_type.byte_len() / rank_count.max(1);
        for (from, to) in (0..rank_count).flat_map(|from| (0..rank_count).map(move |to| (from, to))) {
            let (given, taken) = (counts.given(from, to), counts.taken(to, from));
            if !usize::try_from(given).is_ok_and(|given| given <= most) {
                bail!(System, "rank {} would give {given} elements, which are more than memory can hold", name(from));
            }
            if given != taken {
                let (from, to, transfer_type) = (name(from), name(to), call.transfer_type());
                let parts = transfer_type.carrier_count(call.collective.reduce_op()) as i64;
                let [given, taken] = [given, taken].map(|count| count / parts);
                bail!(
                    Disagreement,
                    "ranks disagree on the blocks of {}: rank {from} gives rank {to} {given} {transfer_type}, and rank {to} takes \
                     {taken} from rank {from}",
                    call.collective_name()
                );
            }
        }
        Ok(counts)
    }

    fn words_of_rank(&self) -> usize {
        1 + 2 * self.rank_count
    }

    fn given(&self, from: usize, to: usize) -> i64 {
        self.words[from * self.words_of_rank() + 1 + to]
    }

    fn taken(&self, to: usize, from: usize) -> i64 {
        self.words[to * self.words_of_rank() + 1 + self.rank_count + from]
    }

    /// The number of elements that go from one rank to another.
    pub(crate) fn len(&self, from: GroupRank, to: GroupRank) -> usize {
        self.given(from.index(), to.index()) as usize
    }

    /// The number of elements of a rank's input that come before the block for `to`, if its blocks
    /// lie one after the other.
    pub(crate) fn offset(&self, from: GroupRank, to: GroupRank) -> usize {
        (0..to.0).map(|before| self.len(from, GroupRank(before))).sum()
    }

    /// The number of elements of a block of a rank's input. One block for all ranks has the index
    /// 0.
    pub(crate) fn input_len(&self, collective: &Collective<GroupRank>, from: GroupRank, block: usize) -> usize {
        match collective.operation().geometry().input.is_per_rank {
            true => self.len(from, GroupRank(block as u32)),
            // Some ranks may take nothing: all but the root of gather.
            false => (0..self.rank_count).map(|to| self.len(from, GroupRank(to as u32))).max().unwrap_or(0),
        }
    }

    /// The length of the longest block of all.
    pub(crate) fn longest(&self) -> usize {
        let pairs = (0..self.rank_count).flat_map(|from| (0..self.rank_count).map(move |to| (from, to)));
        pairs.map(|(from, to)| self.given(from, to) as usize).max().unwrap_or(0)
    }
}
