//! What each rank has called on a backend that compares nothing itself: the logs of all ranks, in
//! memory that they share. The messages from one rank to another have two logs: that of the sender,
//! and that of the receiver.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::call_log::{CALL_DIGESTS, Difference, Log, Logged, MESSAGES, advance, call_count, message_logs};

use super::segment::Segment;
use crate::comm::backend::{CallLog, ExportedLog};
use crate::comm::host::memory::SharedMemory;
use crate::comm::message::{Direction, MessageRequest};
use crate::comm::signature::{self, Signature};
use crate::error::{Error, Result, error};
use crate::moved_type::TransferType;
use crate::rank::{GroupRank, Rank};
use crate::sync::AtomicU64;
use crate::util::lock;
use crate::util::text::list_ranks;
use crate::util::wait::{Stopped, Wait};

/// The logs of one rank.
struct RankLogs {
    calls: Log,
    /// To each rank, and then from each.
    messages: Box<[Log]>,
}

impl RankLogs {
    fn messages_to(&self, peer: GroupRank) -> Option<&Log> {
        self.messages.get(peer.index())
    }

    fn messages_from(&self, peer: GroupRank) -> Option<&Log> {
        self.messages.get(self.messages.len() / 2 + peer.index())
    }
}

/// The logs of all ranks, as one rank uses them.
pub(crate) struct CallLogs {
    segment: Arc<Segment>,
    rank: GroupRank,
    ranks: Box<[RankLogs]>,
    /// Up to which this rank has found the same as each peer: calls, messages to the peer, messages
    /// from it.
    compared: Box<[[AtomicU64; 3]]>,
    /// What ranks of other machines have exported.
    mirrors: Mutex<Vec<Mirror>>,
}

/// The calls of a rank of another machine, as far as they are known here.
struct Mirror {
    rank: Rank,
    calls: Log,
    compared: AtomicU64,
}

impl Mirror {
    fn new(rank: Rank) -> Result<Self> {
        let count = call_count(1);
        let memory = Arc::new(SharedMemory::for_threads(Log::byte_len(0, count))?);
        // Calls may be left out, and so may those whose digests would be kept.
        Ok(Mirror { rank, calls: Log::new(&memory, 0, 0, count), compared: AtomicU64::new(0) })
    }

    /// Takes what the rank has exported.
    fn import(&self, calls: &[u8]) {
        let word = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        for call in calls.chunks_exact((1 + Logged::WORDS) * size_of::<u64>()) {
            let (sequence, call) = call.split_at(size_of::<u64>());
            let words = std::array::from_fn(|i| word(&call[i * size_of::<u64>()..]));
            self.calls.put(word(sequence), Logged::of_words(words));
        }
    }
}

impl CallLogs {
    /// The logs of a segment's ranks. Allocates those of `rank`, this rank.
    pub(crate) fn new(segment: &Arc<Segment>, rank: GroupRank) -> Result<Self> {
        segment.allocate_logs(rank)?;
        let n = segment.len();
        let logs = |rank| {
            let (memory, offset) = segment.logs_place(rank);
            let messages_at = offset + Log::byte_len(CALL_DIGESTS, call_count(n));
            let message_log = |number| Log::new(memory, messages_at + number * Log::byte_len(0, MESSAGES), 0, MESSAGES);
            RankLogs {
                calls: Log::new(memory, offset, CALL_DIGESTS, call_count(n)),
                messages: (0..message_logs(n)).map(message_log).collect(),
            }
        };
        let ranks = segment.ranks().map(logs).collect();
        let compared = segment.ranks().map(|_| Default::default()).collect();
        Ok(CallLogs { segment: Arc::clone(segment), rank, ranks, compared, mirrors: Mutex::default() })
    }

    fn of(&self, rank: GroupRank) -> &RankLogs {
        &self.ranks[rank.index()]
    }

    fn name(&self, rank: GroupRank) -> Rank {
        self.segment.name(rank)
    }

    /// The error of calls that differ from a peer's, with those of all `ranks`.
    fn calls_differ<'a>(
        &self,
        ranks: impl Iterator<Item = (Rank, &'a Log)>,
        peer: Rank,
        difference: &Difference,
    ) -> Error {
        let first = match *difference {
            Difference::At(sequence) | Difference::Between(sequence, _) => sequence,
        };
        match (difference, self.of(self.rank).calls.read(first)) {
            (Difference::At(_), Some(own)) => {
                let call_of = |(rank, log): (Rank, &Log)| Some((rank, log.read(first)?.signature));
                signature::difference(ranks.filter_map(call_of), own.number)
            }
            (Difference::At(last) | Difference::Between(_, last), _) => {
                let own = self.name(self.rank);
                error!(
                    Disagreement,
                    "{} disagree on one of the calls {first} to {last} of this communicator, the library's own included, \
                     and are now too far apart to say on which",
                    list_ranks([own.min(peer), own.max(peer)].map(|rank| rank.0))
                )
            }
        }
    }

    /// The error of messages of which the sender's and the receiver's differ.
    fn messages_differ(&self, [from, to]: [GroupRank; 2], logs: [&Log; 2], difference: &Difference) -> Error {
        let [from, to] = [from, to].map(|rank| self.name(rank));
        let describe =
            |Logged { signature: Signature([data_type, element_count, _]), .. }| match TransferType::from_number(
                data_type as u8,
            ) {
                Some(data_type) => format!("{element_count} {data_type}"),
                None => format!("{element_count} elements"),
            };
        let (first, last) = match *difference {
            Difference::At(first) => match logs.map(|log| log.read(first)) {
                [Some(sent), Some(received)] => {
                    let (sent, received) = (describe(sent), describe(received));
                    return error!(
                        Disagreement,
                        "ranks disagree on message {first} from rank {from} to rank {to}: rank {from} sends {sent}; rank \
                         {to} receives {received}"
                    );
                }
                _ => (first, first),
            },
            Difference::Between(first, last) => (first, last),
        };
        error!(Disagreement, "ranks disagree on one of messages {first} to {last} from rank {from} to rank {to}")
    }
}

impl CallLog for CallLogs {
    fn add(&self, signature: Signature, number: u64) {
        self.of(self.rank).calls.add(signature, number);
    }

    fn add_message(&self, message: &MessageRequest) {
        let own = self.of(self.rank);
        let log = match message.direction {
            Direction::Send(to) => own.messages_to(to),
            Direction::Receive(Some(from)) => own.messages_from(from),
            Direction::Receive(None) => None,
        };
        if let Some(log) = log {
            log.add(Signature([message.data_type.number().into(), message.element_count as u64, 0]), 0);
        }
    }

    fn compare(&self) -> Result<()> {
        let (this, own) = (self.rank, self.of(self.rank));
        for (peer, [calls, sent, received]) in self.segment.ranks().zip(&self.compared) {
            let of_peer = self.of(peer);
            if peer != this {
                let all = self.segment.ranks().map(|rank| (self.name(rank), &self.of(rank).calls));
                advance([&own.calls, &of_peer.calls], calls)
                    .map_err(|found| self.calls_differ(all, self.name(peer), &found))?;
            }
            if let (Some(one), Some(other)) = (own.messages_to(peer), of_peer.messages_from(this)) {
                let differ = |found| self.messages_differ([this, peer], [one, other], &found);
                advance([one, other], sent).map_err(differ)?;
            }
            if let (Some(one), Some(other)) = (own.messages_from(peer), of_peer.messages_to(this)) {
                let differ = |found| self.messages_differ([peer, this], [other, one], &found);
                advance([one, other], received).map_err(differ)?;
            }
        }
        Ok(())
    }

    fn wait_for_peers(&self, what: &dyn fmt::Display, deadline: Instant) -> Result<()> {
        let latest = self.of(self.rank).calls.last();
        let behind = || self.segment.ranks().filter(|peer| self.of(*peer).calls.last() < latest);
        let list = || list_ranks(behind().map(|peer| self.name(peer).0));
        let warning =
            |seconds| format!("rank {}: {what} has waited for {seconds} s for {}", self.name(self.rank), list());
        let mut wait = Wait::until(deadline).warning(&warning);
        loop {
            // A rank that has come and left since is not lost.
            let gone: Vec<_> = self.segment.ranks().filter(|peer| self.segment.is_gone(*peer)).collect();
            // A call that a peer adds after a comparison has not been compared.
            let all_have_come = behind().next().is_none();
            self.compare()?;
            if all_have_come {
                return Ok(());
            }
            self.segment.domain.check()?;
            if let Some(lost) = behind().find(|peer| gone.contains(peer)) {
                let how = self.segment.how_gone(&[lost]);
                return Err(error!(PeerLost, "{what}: rank {} {how} while this rank waited", self.name(lost)));
            }
            let Err(stopped) = wait.pause() else { continue };
            self.segment.domain.check()?;
            if matches!(stopped, Stopped::Interrupted(_)) || behind().next().is_some() {
                let late = format_args!("{what}: {} did not arrive before the deadline", list());
                return Err(stopped.error(format_args!("while {what} waited for {}", list()), late));
            }
        }
    }
}

impl ExportedLog for CallLogs {
    fn last(&self) -> u64 {
        self.of(self.rank).calls.last()
    }

    fn export(&self, known: u64, most: usize) -> (u64, Vec<u8>) {
        let own = &self.of(self.rank).calls;
        let first = known.max(own.last().saturating_sub(own.len() as u64)) + 1;
        let last = own.last().min(first + most as u64 - 1);
        let calls = (first..=last).filter_map(|sequence| Some((sequence, own.read(sequence)?)));
        let words = calls.flat_map(|(sequence, call)| std::iter::once(sequence).chain(call.to_words()));
        (last, words.flat_map(u64::to_le_bytes).collect())
    }

    fn compare_with(&self, rank: Rank, exported: &[u8]) -> Result<()> {
        let mut mirrors = lock(&self.mirrors);
        let known = mirrors.iter().position(|mirror| mirror.rank == rank);
        let index = known.unwrap_or(mirrors.len());
        if known.is_none() {
            mirrors.push(Mirror::new(rank)?);
        }
        let (own, mirror) = (&self.of(self.rank).calls, &mirrors[index]);
        mirror.import(exported);
        advance([own, &mirror.calls], &mirror.compared).map_err(|found| {
            let mut sides = [(self.name(self.rank), own), (rank, &mirror.calls)];
            sides.sort_by_key(|(rank, _)| *rank);
            self.calls_differ(sides.into_iter(), rank, &found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::call_log::*;
    use super::*;
    use crate::collective::{Call, Collective, ReduceOperation};
    use crate::data_type::DataType;
    use crate::error::ErrorKind;
    use crate::memory::Address;

    fn logs(n: u32) -> Vec<CallLogs> {
        let segment = Arc::new(Segment::in_process(n, None).expect("memory"));
        segment.ranks().map(|rank| CallLogs::new(&segment, rank).expect("a log")).collect()
    }

    fn sum_of(block_elements: usize) -> Signature {
        let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        Signature::new(Call::of_blocks(collective, DataType::Float32, block_elements), 0)
    }

    /// A rank that reads a record while another one replaces it reads the whole of one call, or
    /// nothing.
    #[cfg(loom)]
    #[test]
    fn a_model_of_a_record_that_is_replaced() {
        use crate::comm::host::protocol::model::explore;

        explore(2, || {
            let ranks = logs(2);
            ranks[1].add(sum_of(1), 1);
            let ranks = loom::sync::Arc::new(ranks);
            let of_writer = loom::sync::Arc::clone(&ranks);
            let writer = loom::thread::spawn(move || {
                for call in 2..=3 {
                    of_writer[1].add(sum_of(call as usize), call);
                }
            });
            let log = &ranks[0].of(GroupRank(1)).calls;
            for sequence in [1, 2] {
                if let Some(logged) = log.read(sequence) {
                    assert_eq!((logged.signature, logged.number), (sum_of(sequence as usize), sequence));
                }
            }
            if let Some(digest) = log.read_digest(2) {
                assert_eq!(digest, chain(chain(0, sum_of(1)), sum_of(2)));
            }
            writer.join().expect("no panic");
        });
    }

    #[cfg(not(loom))]
    mod without_model {
        use super::*;

        #[test]
        fn equal_calls_are_equal_and_others_are_named() {
            let ranks = logs(3);
            for call in 0..10_000 {
                for rank in &ranks {
                    rank.add(sum_of(call), call as u64 + 1);
                    rank.compare().expect("the same");
                }
            }
            for rank in [&ranks[0], &ranks[1]] {
                rank.add(sum_of(7), 10_001);
            }
            ranks[0].compare().expect("rank 2 has not come");
            ranks[2].add(sum_of(8), 10_001);
            ranks[2].add(sum_of(9), 10_002);
            for rank in &ranks {
                let error = rank.compare().expect_err("rank 2 differs");
                assert_eq!(error.kind(), ErrorKind::Disagreement);
                let text = "ranks disagree on collective 10001: ranks 0 and 1 call all_reduce(sum) of 7 float32; rank 2 \
                            calls all_reduce(sum) of 8 float32";
                assert_eq!(error.to_string(), text);
            }
        }

        /// The first difference is found, not the latest, and not one that follows from it.
        #[test]
        fn the_first_difference_is_named() {
            let ranks = logs(2);
            for call in 1..=3000u64 {
                ranks[0].add(sum_of(call as usize), call);
                // Rank 1 leaves out call 2000.
                if call != 2000 {
                    ranks[1].add(sum_of(call as usize), call - u64::from(call > 2000));
                }
            }
            let error = ranks[1].compare().expect_err("rank 1 leaves out a call");
            let text = "ranks disagree on collective 2000: rank 0 calls all_reduce(sum) of 2000 float32; rank 1 calls \
                        all_reduce(sum) of 2001 float32";
            assert_eq!(error.to_string(), text);
        }

        /// A rank that is ahead of another by more than the records is compared all the same.
        #[test]
        fn ranks_that_are_far_apart_are_compared_by_digests() {
            let most = call_count(2) as u64;
            for (odd, last, text) in [
                (None, most + 5000, None),
                (Some(1500), 3000, Some("ranks 0 and 1 disagree on one of the calls 1025 to 2048 of")),
                (Some(3000), 3000, None),
            ] {
                let ranks = logs(2);
                for call in 1..=2 * most + 5000 {
                    ranks[0].add(sum_of(call as usize), call);
                }
                for call in 1..=last {
                    ranks[1].add(sum_of(if Some(call) == odd { 0 } else { call as usize }), call);
                }
                match (ranks[1].compare(), text) {
                    // The latest calls are not compared yet.
                    (Ok(()), None) => {}
                    (Err(error), Some(text)) => assert!(error.to_string().starts_with(text), "{error}"),
                    (result, _) => panic!("{result:?}, expected {text:?}"),
                }
            }
        }

        /// A rank waits until its peers have come to its latest call, and for no other.
        #[test]
        fn a_wait_ends_with_what_the_peers_do() {
            let ranks = logs(3);
            ranks.iter().for_each(|rank| rank.add(sum_of(1), 1));
            let wait = |rank: usize, deadline| ranks[rank].wait_for_peers(&"capture", deadline);
            wait(0, Instant::now()).expect("all are there");
            ranks[0].add(sum_of(2), 2);
            let late = wait(0, Instant::now()).expect_err("two are not");
            assert_eq!(late.to_string(), "capture: ranks 1 and 2 did not arrive before the deadline");
            let far = Instant::now() + std::time::Duration::from_secs(10);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| wait(0, far));
                // Further ahead than the records: it has come.
                (0..3 * call_count(3) as u64).for_each(|_| ranks[1].add(sum_of(2), 2));
                ranks[2].segment.leave(GroupRank(2));
                let lost = waiting.join().expect("no panic").expect_err("rank 2 has left");
                assert_eq!(lost.to_string(), "capture: rank 2 left the communicator while this rank waited");
            });
        }

        /// A peer's call is compared at whatever moment of the wait it comes.
        #[test]
        fn a_wait_compares_the_last_call_that_comes() {
            for moment in 0..300 {
                let ranks = logs(2);
                ranks[0].add(sum_of(1), 1);
                let far = Instant::now() + std::time::Duration::from_secs(10);
                let start = std::sync::Barrier::new(2);
                std::thread::scope(|scope| {
                    let waiting = scope.spawn(|| {
                        start.wait();
                        ranks[0].wait_for_peers(&"capture", far)
                    });
                    start.wait();
                    (0..moment).for_each(|_| std::hint::spin_loop());
                    ranks[1].add(sum_of(2), 1);
                    let error = waiting.join().expect("no panic").expect_err("rank 1 differs");
                    assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
                });
            }
        }

        /// Messages are compared with the receiver's, however far one is ahead.
        #[test]
        fn messages_are_compared() {
            let message = |direction, element_count| MessageRequest {
                direction,
                tag: 0,
                data_type: TransferType::Data(DataType::Float32),
                element_count,
                address: Address::host(std::ptr::null()),
            };
            let (send, receive) = (Direction::Send(GroupRank(1)), Direction::Receive(Some(GroupRank(0))));
            for (ahead, text) in [
                (
                    0,
                    "ranks disagree on message 70 from rank 0 to rank 1: rank 0 sends 70 float32; rank 1 receives 7 float32",
                ),
                (1, "ranks disagree on one of messages 51 to 107 from rank 0 to rank 1"),
            ] {
                let ranks = logs(2);
                for number in 1..70 {
                    ranks[0].add_message(&message(send, number));
                    ranks[1].add_message(&message(receive, number));
                    if number <= 50 {
                        ranks.iter().for_each(|rank| rank.compare().expect("the same"));
                    }
                }
                ranks[0].add_message(&message(send, 70));
                ranks[1].add_message(&message(receive, 7));
                for number in 0..100 * ahead {
                    ranks[0].add_message(&message(send, number));
                    ranks[1].add_message(&message(receive, number));
                }
                for rank in &ranks {
                    assert_eq!(rank.compare().expect_err("the lengths differ").to_string(), text);
                }
            }
        }

        /// Two processes map a file.
        #[test]
        fn logs_in_a_file_are_compared() {
            use crate::comm::host::memory::world_memory::WorldFile;

            let size = Segment::root_size(2, true);
            let file = WorldFile::create().expect("a file");
            let (id, first) = file.allocate(size, 2, &|| Ok(())).expect("memory");
            let second = file.map(id, size.byte_len).expect("the same memory");
            let of_rank = |(rank, memory)| {
                let segment = Arc::new(Segment::root(memory, 2, rank..rank + 1, true, None));
                CallLogs::new(&segment, GroupRank(rank)).expect("a log")
            };
            let ranks: Vec<CallLogs> = [(0, first), (1, second)].map(of_rank).into();
            for call in 1..=5000 {
                ranks.iter().for_each(|rank| rank.add(sum_of(call as usize), call));
                ranks[call as usize % 2].compare().expect("the same");
            }
            ranks[0].add(sum_of(1), 5001);
            ranks[1].add(sum_of(2), 5001);
            for rank in ranks {
                let text = "ranks disagree on collective 5001: rank 0 calls all_reduce(sum) of 1 float32; rank 1 calls \
                            all_reduce(sum) of 2 float32";
                assert_eq!(rank.compare().expect_err("they differ").to_string(), text);
            }
        }

        /// Two ranks of different machines, of which the first has what the second exports.
        struct Machines {
            ranks: [CallLogs; 2],
            exported: u64,
        }

        impl Machines {
            fn new() -> Self {
                let one_rank = |name| {
                    let segment = Arc::new(Segment::in_process(1, Some([Rank(name)].into())).expect("memory"));
                    CallLogs::new(&segment, GroupRank(0)).expect("a log")
                };
                Machines { ranks: [0, 1].map(one_rank), exported: 0 }
            }

            fn add(&self, machine: usize, block_elements: usize) {
                let log = &self.ranks[machine];
                log.add(sum_of(block_elements), log.last() + 1);
            }

            fn export(&mut self, most: usize) -> std::result::Result<(), String> {
                let (last, calls) = self.ranks[1].export(self.exported, most);
                self.exported = last;
                self.ranks[0].compare_with(Rank(1), &calls).map_err(|error| error.to_string())
            }

            fn compare(&self) -> std::result::Result<(), String> {
                self.ranks[0].compare_with(Rank(1), &[]).map_err(|error| error.to_string())
            }
        }

        #[test]
        fn calls_of_another_machine_are_compared() {
            let mut machines = Machines::new();
            for call in 0..5000 {
                machines.add(0, call);
                machines.add(1, call);
                if call % 700 == 0 {
                    machines.export(1000).expect("the same");
                }
            }
            machines.add(1, 7);
            machines.add(1, 9);
            machines.export(1000).expect("this rank has not come to it");
            machines.add(0, 8);
            let text = "ranks disagree on collective 5001: rank 0 calls all_reduce(sum) of 8 float32; rank 1 calls \
                        all_reduce(sum) of 7 float32";
            assert_eq!(machines.compare().expect_err("they differ"), text);
        }

        /// A rank whose records are replaced before it exports them leaves out calls.
        #[test]
        fn calls_that_were_left_out_are_no_difference() {
            let (records, last) = (call_count(1), 3 * call_count(1));
            for odd in [None, Some(5)] {
                let mut machines = Machines::new();
                for call in 0..last {
                    machines.add(1, if Some(call) == odd { 1000 } else { call });
                }
                machines.export(10).expect("nothing to compare");
                assert_eq!(machines.exported, (last - records + 10) as u64);
                for call in 0..last - records {
                    machines.add(0, call);
                    machines.compare().expect("the same, as far as is known");
                }
                while machines.exported < last as u64 {
                    machines.export(1000).expect("the same, as far as is known");
                }
                (last - records..last).for_each(|call| machines.add(0, call));
                let text = match (machines.compare(), odd) {
                    (Ok(()), None) => {
                        machines.add(0, 1);
                        machines.add(1, 2);
                        machines.export(1000).expect_err("they differ")
                    }
                    (found, _) => found.expect_err("they differ"),
                };
                let expected = match odd {
                    None => format!("ranks disagree on collective {}: rank 0 calls all_reduce(sum) of 1 ", last + 1),
                    Some(_) => "ranks 0 and 1 disagree on one of the calls 1 to ".to_owned(),
                };
                assert!(text.starts_with(&expected), "{text}");
            }
        }

        /// Ranks that add and compare at the same time, at different speeds, find no difference.
        #[test]
        fn ranks_that_agree_are_never_said_to_differ() {
            let ranks = logs(3);
            std::thread::scope(|scope| {
                for (speed, rank) in [1, 7, 400].into_iter().zip(&ranks) {
                    scope.spawn(move || {
                        for call in 1..=350_000u64 {
                            rank.add(sum_of(call as usize % 11), call);
                            if call % speed == 0 {
                                rank.compare().expect("the same calls");
                            }
                        }
                    });
                }
            });
            ranks.iter().for_each(|rank| rank.compare().expect("the same"));
        }
    }
}
