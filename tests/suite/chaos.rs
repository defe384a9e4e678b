//! Processes that run a random program while one of them is killed, is stopped for a while, or
//! leaves. The others must end with a reason, and no value may be wrong.
//!
//! `DCL_EXHAUSTIVE=1 cargo test --release --test suite chaos` runs 500 rounds of each kind.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use distcollective::collective::Collective;
use distcollective::tensor::{TensorView, TensorViewMut};
use distcollective::{Buffer, CollectiveOperation, Communicator, DataType, ErrorKind, Rank, ReduceOperation, Result};

use rustix::process::{Pid, Signal, kill_process};

use crate::random::Random;
use crate::ranks::{DEADLINE, can_start, wait_all};

const SEED: &str = "DCL_TEST_CHAOS_SEED";
const RANK: &str = "DCL_TEST_CHAOS_RANK";
const JOB: &str = "DCL_TEST_CHAOS_JOB";

/// What happens to one of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbance {
    Nothing,
    Kill,
    Stop,
    Leave,
}

/// One round, which the parent and all children find out from its seed.
struct Round {
    processes: u32,
    victim: u32,
    disturbance: Disturbance,
    /// When the victim is killed or stopped, after the start.
    delay: Duration,
    /// Before which step the victim leaves.
    leaves_at: usize,
    random: Random,
}

impl Round {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let processes = 2 + random.below(5) as u32;
        let disturbances =
            [Disturbance::Nothing, Disturbance::Kill, Disturbance::Kill, Disturbance::Stop, Disturbance::Leave];
        Round {
            processes,
            victim: random.below(processes as usize) as u32,
            disturbance: disturbances[random.below(disturbances.len())],
            delay: Duration::from_micros(random.below(60_000) as u64),
            leaves_at: random.below(STEPS),
            random,
        }
    }

    /// A peer that is stopped shows at the deadline; everything else has to be told long before.
    fn timeout(&self) -> Duration {
        if self.disturbance == Disturbance::Stop { Duration::from_millis(500) } else { DEADLINE / 2 }
    }
}

const STEPS: usize = 60;

/// Not a test by itself: what a child runs.
#[test]
fn child() {
    let Ok(seed) = std::env::var(SEED) else { return };
    let rank: u32 = std::env::var(RANK).expect("a rank").parse().expect("a number");
    let round = Round::new(seed.parse().expect("a number"));
    let ranks = Communicator::builder()
        .job(std::env::var(JOB).expect("a job"))
        .world_size(round.processes)
        .rank(rank)
        .timeout(round.timeout())
        .connect();
    let result = ranks.and_then(|communicator| program(communicator, round));
    println!("\nended: {result:?}");
}

/// Random collectives with values that are checked.
fn program(communicator: Communicator, mut round: Round) -> Result<()> {
    let leaves = round.disturbance == Disturbance::Leave && communicator.rank().0 == round.victim;
    let random = &mut round.random;
    let mut groups = vec![Some(communicator.clone())];
    for step in 0..STEPS {
        if leaves && step == round.leaves_at {
            return Ok(());
        }
        let [choice, group, size, root, shared] = [(); 5].map(|()| random.below(1000));
        match (choice, groups[group % groups.len()].clone()) {
            (0..60, _) if groups.len() < 6 => {
                groups.push(communicator.split(Some(communicator.rank().0 % 2), step as i32)?);
            }
            (60..100, _) if groups.len() < 6 => {
                let ranks: Vec<Rank> = (0..communicator.world_size()).rev().map(Rank).skip(root % 2).collect();
                groups.push(communicator.new_group(&ranks)?);
            }
            (100..130, Some(group)) => group.barrier()?,
            (_, Some(group)) => {
                let operation = CollectiveOperation::ALL[choice % CollectiveOperation::ALL.len()];
                let root = Rank(root as u32 % group.world_size());
                let block = [1, 5, 3000, 90_000][size % 4];
                checked(&group, operation, root, block, shared % 3 == 0)?;
            }
            (_, None) => {}
        }
    }
    communicator.finalize()
}

/// What a rank gives at a place.
fn given(rank: usize, i: usize) -> i32 {
    (rank * 1009 + i % 97) as i32
}

/// One collective on blocks of so many elements, checked.
fn checked(
    group: &Communicator,
    operation: CollectiveOperation,
    root: Rank,
    block: usize,
    is_symmetric: bool,
) -> Result<()> {
    use CollectiveOperation::*;
    let (n, rank) = (group.world_size() as usize, group.rank().index());
    let reduce_op = ReduceOperation::Sum;
    let (collective, input_blocks, output_blocks) = match operation {
        AllReduce => (Collective::AllReduce { reduce_op }, 1, 1),
        AllGather => (Collective::AllGather, 1, n),
        Broadcast => (Collective::Broadcast { root }, 1, 1),
        Reduce => (Collective::Reduce { reduce_op, root }, 1, 1),
        ReduceScatter => (Collective::ReduceScatter { reduce_op }, n, 1),
        AllToAll => (Collective::AllToAll, n, n),
        Gather => (Collective::Gather { root }, 1, n),
        Scatter => (Collective::Scatter { root }, n, 1),
        other => panic!("{other} is new"),
    };
    let buffer = |blocks: usize| -> Result<Buffer> {
        let elements = (blocks * block) as i64;
        match is_symmetric {
            true => group.allocate(DataType::Int32, [elements]),
            false => Buffer::zeroed(DataType::Int32, [elements]),
        }
    };
    let (mut input, mut output) = (buffer(input_blocks)?, buffer(output_blocks)?);
    input.as_mut_slice::<i32>()?.iter_mut().enumerate().for_each(|(i, x)| *x = given(rank, i));
    group.collective(collective, Some(TensorView::from(&input)), Some(TensorViewMut::from(&mut output)))?;
    let sum = |i: usize| (0..n).map(|peer| given(peer, i)).sum::<i32>();
    let is_root = rank == root.index();
    let expected = |i: usize| match operation {
        AllReduce => sum(i),
        Reduce if is_root => sum(i),
        ReduceScatter => sum(rank * block + i),
        AllGather => given(i / block, i % block),
        Gather if is_root => given(i / block, i % block),
        Broadcast => given(root.index(), i),
        AllToAll => given(i / block, rank * block + i % block),
        Scatter => given(root.index(), rank * block + i),
        _ => 0,
    };
    for (i, got) in output.as_slice::<i32>()?.iter().enumerate() {
        assert_eq!(*got, expected(i), "{operation} of rank {rank} of {n}, root {root}, block {block}, element {i}");
    }
    Ok(())
}

fn start(seed: u64, rank: u32, job: &str, wrapper: &[&str]) -> Child {
    let this = std::env::current_exe().expect("this program");
    let mut command = match wrapper {
        [] => Command::new(this),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(this);
            command
        }
    };
    command
        .args(["chaos::child", "--exact", "--nocapture", "--test-threads", "1"])
        .env(SEED, seed.to_string())
        .env(RANK, rank.to_string())
        .env(JOB, job)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child starts")
}

/// The process of a rank: the child, or the child's child if the child is a wrapper. `None` if it
/// has ended.
fn process_of(child: &mut Child, wrapper: &[&str]) -> Option<Pid> {
    if wrapper.is_empty() {
        return Some(Pid::from_child(child));
    }
    let id = child.id();
    let end = Instant::now() + DEADLINE;
    while child.try_wait().expect("a child").is_none() {
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        if let Some(process) = children.split_whitespace().next() {
            return Pid::from_raw(process.parse().expect("a number"));
        }
        assert!(Instant::now() < end, "the wrapper starts nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// One round; gives how long the others took to end after a kill of a process that they had met.
fn run_round(seed: u64, wrapper: &[&str]) -> Option<Duration> {
    let round = Round::new(seed);
    let job = format!("chaos-{}-{seed}-{}", std::process::id(), wrapper.len());
    let mut children: Vec<Child> = (0..round.processes).map(|rank| start(seed, rank, &job, wrapper)).collect();
    std::thread::sleep(round.delay);
    let victim = round.victim as usize;
    let disturbed = Instant::now();
    let mut disturbed_child = children.remove(victim);
    let mut stopped = None;
    match round.disturbance {
        Disturbance::Kill => disturbed_child.kill().expect("a child"),
        Disturbance::Stop => {
            stopped = process_of(&mut disturbed_child, wrapper);
            // It may have ended already.
            let _ = stopped.map(|process| kill_process(process, Signal::STOP));
        }
        Disturbance::Nothing | Disturbance::Leave => {}
    }
    // The others end without a process that is stopped.
    let mut results = wait_all(children, 2 * DEADLINE);
    let took = disturbed.elapsed();
    if let Some(process) = stopped {
        let _ = kill_process(process, Signal::CONT);
    }
    results.insert(victim, wait_all(vec![disturbed_child], DEADLINE).remove(0));
    let mut have_met = true;
    for (rank, (success, text)) in results.into_iter().enumerate() {
        if rank == victim && round.disturbance == Disturbance::Kill {
            continue;
        }
        let (disturbance, delay) = (round.disturbance, round.delay);
        let about = format!("seed {seed}, rank {rank}, {disturbance:?} of rank {victim} after {delay:?}");
        assert!(success, "{about}: {text}");
        let ended = text.rsplit_once("\nended: ").map(|(_, ended)| ended.lines().next().unwrap_or_default());
        let ended = ended.unwrap_or_else(|| panic!("{about}: {text}"));
        match disturbance {
            Disturbance::Nothing => assert_eq!(ended, "Ok(())", "{about}"),
            // A process that was killed before it met the others is not known to them. Only rank 0
            // knows which rank is missing.
            Disturbance::Kill
                if ended.contains("the other ranks did not come")
                    || ended.contains("left again before all ranks had come")
                    || ended.contains(&format!("rank {victim} ")) && ended.contains("did not come") =>
            {
                have_met = false;
            }
            // The program may have been over. Otherwise the death is told, and no rank waits until
            // its deadline.
            Disturbance::Kill | Disturbance::Leave => {
                let told = ended == "Ok(())" || ended.contains("PeerLost") || ended.contains("Aborted");
                let is_late = format!("{:?}", ErrorKind::DeadlineExceeded);
                assert!(told && !ended.contains(&is_late), "{about}: {ended}");
            }
            Disturbance::Stop => {
                let reasons = ["Ok(())", "DeadlineExceeded", "Aborted", "PeerLost"];
                assert!(reasons.iter().any(|reason| ended.contains(reason)), "{about}: {ended}");
            }
        }
    }
    (round.disturbance == Disturbance::Kill && have_met).then_some(took)
}

fn run_rounds(few: u64, wrapper: &[&str]) {
    let rounds = if std::env::var_os("DCL_EXHAUSTIVE").is_some() { 500 } else { few };
    let slowest = (0..rounds).filter_map(|seed| run_round(seed, wrapper)).max();
    println!("{rounds} rounds; after a kill the other ranks ended within {slowest:?}");
}

#[test]
fn processes_survive_chaos() {
    run_rounds(10, &[]);
}

/// As ranks that are containers of one pod.
#[test]
fn processes_in_pid_namespaces_of_their_own_survive_chaos() {
    let wrapper = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    if can_start(&wrapper) {
        run_rounds(6, &wrapper);
    }
}
