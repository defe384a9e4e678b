//! Processes that are killed in each phase of a broadcast, without a chance to tell the others. At
//! a call of the system the kernel kills them, by a filter.

use std::ops::Range;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distcollective::tensor_dict::{BroadcastOptions, BroadcastProgress};
use distcollective::{Communicator, DataType, ErrorKind, TensorDict};

use super::{PACKED, bytes_of, filled};
use crate::deaths::{filter_calls, load, step, wait_to_be_told};
use crate::processes::{Role, assert_nothing_left, command, kept, new_job, wait_for_line};
use crate::ranks::{DEADLINE, wait_all};

/// The lengths of the source's metadata and of its longest tensor, which has three pieces. No other
/// allocation is as long.
const TEXT: usize = 3 << 20;
const LONG: usize = 20 << 20;

/// How many short tensors the source has. In one piece, or with `shared` one each.
const SHORT: usize = 500;

/// What kills a rank.
enum Kill {
    /// The test, before the rank makes the call.
    Before,
    /// The kernel, at a call of the system with a number in this range as its argument `at`.
    Call { number: i64, at: u32, range: Range<u64> },
    /// The rank itself, when its progress function is called for this time.
    Progress(usize),
    /// The test, when the source has shared its memory and writes it.
    InBarrier,
    /// The test, when all ranks but the last one have come to the agreement at the end.
    AtTheEnd,
}

struct Phase {
    name: &'static str,
    victim: u32,
    is_shared: bool,
    kill: Kill,
}

/// The length of a mapping that has `len` bytes, with what else is in it.
const fn about(len: usize) -> Range<u64> {
    len as u64..len as u64 + (1 << 20)
}

const fn phase(name: &'static str, victim: u32, is_shared: bool, kill: Kill) -> Phase {
    Phase { name, victim, is_shared, kill }
}

/// `MADV_POPULATE_WRITE`: a rank allocates its staging memory when it first sends something long.
const POPULATE: Range<u64> = 23..24;

/// How much shared memory is allocated in one step.
const STEP: usize = 2 << 20;

const PHASES: [Phase; 14] = [
    phase("a receiver does not say hello", 1, false, Kill::Before),
    phase("the source does not say hello", 0, false, Kill::Before),
    phase("the source sends the schema", 0, false, Kill::Call { number: libc::SYS_madvise, at: 2, range: POPULATE }),
    phase("a receiver gets the schema", 1, false, Kill::Call { number: libc::SYS_mmap, at: 1, range: about(TEXT) }),
    phase("a receiver allocates tensors", 1, false, Kill::Call { number: libc::SYS_mmap, at: 1, range: about(LONG) }),
    phase("the source has sent a piece", 0, false, Kill::Progress(1)),
    phase("a receiver has a piece", 1, false, Kill::Progress(1)),
    phase("a receiver has a later piece", 1, false, Kill::Progress(2)),
    phase(
        "the source allocates memory",
        0,
        true,
        Kill::Call { number: libc::SYS_fallocate, at: 3, range: about(STEP) },
    ),
    phase("a receiver maps memory", 1, true, Kill::Call { number: libc::SYS_mmap, at: 1, range: about(LONG) }),
    phase("the source writes", 0, true, Kill::Progress(2)),
    phase("a receiver waits for what the source writes", 1, true, Kill::InBarrier),
    phase("a receiver has the memory", 1, true, Kill::Progress(1)),
    phase("all have the memory", 1, true, Kill::AtTheEnd),
];

/// The source's dictionary, or a receiver's: one that has a tensor that arrives, and one that does
/// not.
fn dict_of(rank: u32) -> TensorDict {
    let mut dict = TensorDict::new();
    dict.insert("there", filled(DataType::Uint8, &[PACKED as i64], rank as usize));
    if rank > 0 {
        dict.insert("own", filled(DataType::Float32, &[3], 9));
        return dict;
    }
    dict.insert("long", filled(DataType::Uint8, &[LONG as i64], 1));
    (0..SHORT).for_each(|i| drop(dict.insert(format!("{i}"), filled(DataType::Int8, &[3], i))));
    dict.metadata_mut().insert("text".to_owned(), "x".repeat(TEXT));
    dict
}

/// Kills this process at a call of the system, on whatever thread.
fn die_at(number: i64, at: u32, range: &Range<u64>) {
    let (lowest, end) = (range.start as u32, range.end as u32);
    filter_calls(&mut [
        load(0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32, 0, 4),
        // The lower half of the argument.
        load(16 + 8 * at),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, lowest, 0, 2),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, end, 1, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]);
}

/// What a rank's progress function does when it is called for the `count`th time.
fn progress(phase: &Phase, rank: u32, count: usize, done: BroadcastProgress) {
    match phase.kill {
        Kill::Progress(times) if rank == phase.victim && count == times => kill_self(),
        Kill::InBarrier if rank == 0 && count == 1 => say_and_wait(),
        // The source would write for 10 s if it did not see the death.
        Kill::InBarrier if rank == 0 => {
            assert_ne!(done.byte_count, done.total_bytes, "the source has written all");
            std::thread::sleep(Duration::from_millis(20));
        }
        Kill::AtTheEnd if rank == 2 => say_and_wait(),
        _ => {}
    }
}

fn kill_self() {
    // SAFETY: a signal to this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

fn say_and_wait() {
    println!("ready");
    wait_to_be_told();
}

/// What a rank of several processes does in a phase.
pub fn play(name: &str, communicator: &Communicator) {
    let phase = PHASES.iter().find(|phase| phase.name == name).unwrap_or_else(|| panic!("no phase {name}"));
    let rank = communicator.rank().0;
    let [_, mappings, _] = kept();
    let mut dict = dict_of(rank);
    if rank == phase.victim {
        match &phase.kill {
            Kill::Before => say_and_wait(),
            Kill::Call { number, at, range } => die_at(*number, *at, range),
            _ => {}
        }
    }
    let count = AtomicUsize::new(0);
    let called = move |done| progress(phase, rank, count.fetch_add(1, Ordering::Relaxed) + 1, done);
    let options = BroadcastOptions::new().shared(phase.is_shared).progress(called);
    let result = communicator.broadcast_tensor_dict(&mut dict, &options);
    let is_complete = matches!(phase.kill, Kill::AtTheEnd);
    // A rank that has said at the end that it has all need not be there any more.
    let result = if is_complete { result.and_then(|()| communicator.barrier()) } else { result };
    let error = result.expect_err("a rank was killed");
    println!("told: {:?} {error}", error.kind());
    if !is_complete {
        let expected = dict_of(rank);
        assert!(dict.iter().map(|(name, _)| name).eq(expected.iter().map(|(name, _)| name)), "{dict:?}");
        // In these phases the elements move into the tensors.
        let is_payload = matches!(phase.kill, Kill::Progress(_)) && !phase.is_shared;
        let stays = |name: &str| name != "there" || !is_payload || rank == 0;
        for (name, tensor) in expected.iter().filter(|(name, _)| stays(name)) {
            assert!(bytes_of(dict.get(name).expect("it is there")) == bytes_of(tensor), "{name} has changed");
        }
    }
    drop(dict);
    assert_eq!(kept()[1], mappings);
}

/// Runs a phase, and checks what the survivors say.
fn survive(phase: &Phase) {
    let (job, victim) = (new_job(), phase.victim as usize);
    // In the barrier no other rank sees the death for the source.
    let world_size = if matches!(phase.kill, Kill::InBarrier) { 2 } else { 3 };
    let start = |first_rank| {
        let name = format!("dict: kill: {}", phase.name);
        let role = Role { name: &name, job: &job, world_size, first_rank, local_ranks: 1, quarter: 0 };
        command(&role).stdin(Stdio::piped()).spawn().expect("a child starts")
    };
    let mut children: Vec<Child> = (0..world_size).map(start).collect();
    let waits = match phase.kill {
        Kill::Before => Some(victim),
        Kill::InBarrier => Some(0),
        Kill::AtTheEnd => Some(2),
        _ => None,
    };
    if let Some(waits) = waits {
        wait_for_line(&mut children[waits], "ready");
        children[victim].kill().expect("a child");
        children[victim].wait().expect("a child");
        drop(children[waits].stdin.take());
    }
    for (rank, (succeeded, text)) in wait_all(children, DEADLINE).into_iter().enumerate() {
        let about = format!("{}, rank {rank}: {text}", phase.name);
        assert_eq!(succeeded, rank != victim, "{about}");
        let is_told = text.lines().any(|line| {
            let told = line.split_once("told: ").map_or("", |(_, told)| told);
            told.starts_with(&format!("{:?}", ErrorKind::PeerLost)) && told.contains(&format!("rank {victim}"))
        });
        assert_eq!(is_told, rank != victim, "{about}");
    }
    assert_nothing_left(&job);
}

macro_rules! survives {
    ($($name:ident: $range:expr),* $(,)?) => { $(
        #[test]
        fn $name() {
            PHASES[$range].iter().for_each(survive);
        }
    )* };
}

survives! {
    ranks_survive_a_kill_before_elements_move: ..5,
    ranks_survive_a_kill_while_elements_move: 5..8,
    ranks_survive_a_kill_while_memory_is_shared: 8..11,
    ranks_survive_a_kill_when_memory_is_shared: 11..,
}
