//! Which runs of a context are recorded, the same on every rank.
//!
//! A rank finds for itself which recordings have the shapes and the memory of a run, and all ranks
//! have to replay the same one: NCCL puts the addresses of peers' buffers into a graph. So the
//! recordings are numbered alike on all ranks, and each decision follows from what every rank
//! could replay.

use crate::comm::Votes;

/// How many recordings a context keeps.
pub(super) const MAX_RECORDINGS: usize = u8::BITS as usize;

/// What becomes of a run. The number is that of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It runs plainly, and the recording is from now on for its shapes and memory.
    Plain(usize),
    Record(usize),
    Replay(usize),
}

/// The recordings, without their graphs.
#[derive(Default)]
pub(super) struct Recordings {
    all: [Recording; MAX_RECORDINGS],
    /// How many runs there were.
    runs: u64,
}

#[derive(Clone, Copy, Default)]
struct Recording {
    /// Whether there is a graph. The first run with some shapes and memory is plain, so that
    /// everything it needs is allocated.
    has_graph: bool,
    /// The run that used it last; 0 if none did.
    last_used: u64,
    /// The other recordings that look like this one to some rank: it has bound the same there.
    alike: u8,
}

impl Recordings {
    /// The recording that the run replays, if this rank knows it without asking: the only one that
    /// fits, which looks like no other to any rank. Then every rank whose buffers are those of that
    /// recording knows it too.
    pub(super) fn certain(&mut self, could_replay: u8) -> Option<usize> {
        let number = could_replay.trailing_zeros() as usize;
        let recording = self.all.get_mut(number)?;
        let is_certain = could_replay.is_power_of_two() && recording.has_graph && recording.alike == 0;
        is_certain.then(|| {
            self.runs += 1;
            recording.last_used = self.runs;
            number
        })
    }

    /// What becomes of a run for which all ranks have asked.
    pub(super) fn decide(&mut self, votes: Votes) -> Decision {
        self.runs += 1;
        // At most one fits on every rank, because another one is begun only if none does.
        let number = votes.every.trailing_zeros() as usize;
        if let Some(recording) = self.all.get_mut(number) {
            recording.last_used = self.runs;
            return match std::mem::replace(&mut recording.has_graph, true) {
                true => Decision::Replay(number),
                false => Decision::Record(number),
            };
        }
        let oldest = (0..MAX_RECORDINGS).min_by_key(|&number| self.all[number].last_used).unwrap_or_default();
        let own = 1 << oldest;
        let alike = votes.some & !own;
        for (number, recording) in self.all.iter_mut().enumerate() {
            let is_alike = alike >> number & 1 == 1;
            recording.alike = recording.alike & !own | if is_alike { own } else { 0 };
        }
        self.all[oldest] = Recording { has_graph: false, last_used: self.runs, alike };
        Decision::Plain(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks, each with what it has bound for each recording.
    struct Ranks {
        bound: Vec<[Option<u32>; MAX_RECORDINGS]>,
        recordings: Vec<Recordings>,
    }

    impl Ranks {
        fn new(n: usize) -> Self {
            Ranks {
                bound: vec![[None; MAX_RECORDINGS]; n],
                recordings: (0..n).map(|_| Recordings::default()).collect(),
            }
        }

        fn could_replay(&self, rank: usize, bound: u32) -> u8 {
            (0..MAX_RECORDINGS).filter(|&i| self.bound[rank][i] == Some(bound)).fold(0, |mask, i| mask | 1 << i)
        }

        /// One run; `bound` is what each rank binds. Gives the step, and whether ranks asked.
        fn run(&mut self, bound: &[u32]) -> (Decision, bool) {
            let masks: Vec<u8> =
                bound.iter().enumerate().map(|(rank, &bound)| self.could_replay(rank, bound)).collect();
            let certain: Vec<Option<usize>> =
                self.recordings.iter_mut().zip(&masks).map(|(recordings, &mask)| recordings.certain(mask)).collect();
            assert!(certain.iter().all(|other| *other == certain[0]), "{certain:?} for {masks:?}");
            if let Some(number) = certain[0] {
                return (Decision::Replay(number), false);
            }
            let none = Votes { every: u8::MAX, some: 0 };
            let votes = masks.iter().fold(none, |v, mask| Votes { every: v.every & mask, some: v.some | mask });
            let steps: Vec<Decision> = self.recordings.iter_mut().map(|recordings| recordings.decide(votes)).collect();
            assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
            if let Decision::Plain(number) = steps[0] {
                self.bound.iter_mut().zip(bound).for_each(|(own, &bound)| own[number] = Some(bound));
            }
            (steps[0], true)
        }
    }

    #[test]
    fn buffers_that_alternate_are_replayed_without_a_question() {
        let mut ranks = Ranks::new(2);
        let steps: Vec<_> = (0..8).map(|run| ranks.run(&[run % 2, run % 2])).collect();
        let asked =
            [Decision::Plain(0), Decision::Plain(1), Decision::Record(0), Decision::Record(1)].map(|step| (step, true));
        let replayed = [Decision::Replay(0), Decision::Replay(1)].map(|step| (step, false));
        assert_eq!(steps, [&asked[..], &replayed, &replayed].concat());
    }

    #[test]
    fn the_recording_that_was_used_longest_ago_leaves() {
        let mut ranks = Ranks::new(1);
        for bound in 0..MAX_RECORDINGS as u32 {
            assert_eq!(ranks.run(&[bound]).0, Decision::Plain(bound as usize));
            assert_eq!(ranks.run(&[bound]).0, Decision::Record(bound as usize));
        }
        // The oldest is used again, so that the second one leaves.
        assert_eq!(ranks.run(&[0]), (Decision::Replay(0), false));
        assert_eq!(ranks.run(&[100]).0, Decision::Plain(1));
        assert_eq!(ranks.run(&[0]), (Decision::Replay(0), false));
        assert_eq!(ranks.run(&[100]).0, Decision::Record(1));
        assert_eq!(ranks.run(&[1]).0, Decision::Plain(2));
    }

    /// One rank's buffers stay, the other's alternate: the first cannot tell the recordings apart,
    /// and both know that.
    #[test]
    fn ranks_ask_when_one_of_them_cannot_tell_two_recordings_apart() {
        let mut ranks = Ranks::new(2);
        for bound in [0, 1] {
            assert_eq!(ranks.run(&[7, bound]).0, Decision::Plain(bound as usize));
        }
        for (run, bound) in [0, 1, 0, 1, 1].into_iter().enumerate() {
            let number = bound as usize;
            let step = if run < 2 { Decision::Record(number) } else { Decision::Replay(number) };
            assert_eq!(ranks.run(&[7, bound]), (step, true));
        }
        // When one of the two has left, the other is told without a question.
        for other in 0..MAX_RECORDINGS as u32 - 1 {
            assert_eq!(
                ranks.run(&[100 + other, 100 + other]).0,
                Decision::Plain([2, 3, 4, 5, 6, 7, 0][other as usize])
            );
        }
        assert_eq!(ranks.run(&[7, 1]), (Decision::Replay(1), false));
    }

    /// Every sequence of bindings in which, whenever one rank is certain, its peers have bound what
    /// they had bound for that recording.
    #[test]
    fn ranks_stay_in_step() {
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let mut ranks = Ranks::new(3);
            // What the three bind together.
            let together: Vec<[u32; 3]> =
                (0..12).map(|_| [next(3) as u32, 10 + next(4) as u32, 20 + next(5) as u32]).collect();
            for _ in 0..60 {
                let bound = together[next(12) as usize];
                let masks: Vec<u8> = (0..3).map(|rank| ranks.could_replay(rank, bound[rank])).collect();
                let every = masks.iter().fold(u8::MAX, |every, mask| every & mask);
                let is_certain = |rank: usize| {
                    let recordings = &ranks.recordings[rank];
                    masks[rank].is_power_of_two()
                        && recordings.all[masks[rank].trailing_zeros() as usize].has_graph
                        && recordings.all[masks[rank].trailing_zeros() as usize].alike == 0
                };
                // Otherwise the run is the ranks' disagreement.
                if every != 0 || !(0..3).any(is_certain) {
                    assert!(every.count_ones() <= 1);
                    ranks.run(&bound);
                }
            }
        }
    }
}
