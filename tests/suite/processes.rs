//! Ranks that are processes: the conformance suite, deaths, stopped processes. `deaths` and
//! `limits` have roles of their own.
//!
//! A child is this same program. Its environment makes it run one test, [`child`], and in it one
//! role.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use distcollective::comm::BackendKind;
use distcollective::environment::Launcher;
use distcollective::tensor::TensorViewMut;
use distcollective::{Communicator, DataType, Environment, ErrorKind, Rank, ReduceOperation, Result, Stream};

use crate::bootstrap::{bootstrap_all, rank_builder};
use crate::conformance::{Place, deadline, quarters, run_quarter};
use crate::eager;
use crate::machines;
use crate::ranks::{DEADLINE, wait_all};
use crate::uneven;

const ROLE: &str = "DCL_TEST_ROLE";
const JOB: &str = "DCL_TEST_JOB";
const NUMBERS: &str = "DCL_TEST_NUMBERS";

/// What a rank says at its deadline if rank 1 has stopped in the middle of a call.
pub const STUCK: &str = "rank 1 arrived, but did not finish moving the elements before the deadline";

/// What a child does.
pub struct Role<'a> {
    pub name: &'a str,
    pub job: &'a str,
    pub world_size: u32,
    pub first_rank: u32,
    pub local_ranks: u32,
    pub quarter: usize,
}

/// A name that no other job on this machine has.
pub fn new_job() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("job-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn spawn(role: &Role<'_>) -> Child {
    command(role).spawn().expect("a child starts")
}

pub fn command(role: &Role<'_>) -> Command {
    command_under(&[], role)
}

/// The command of a child that another program starts: `unshare` with its arguments.
pub fn command_under(program: &[&str], role: &Role<'_>) -> Command {
    let numbers = format!("{} {} {} {}", role.world_size, role.first_rank, role.local_ranks, role.quarter);
    let this = std::env::current_exe().expect("this program");
    let mut command = Command::new(program.first().map_or(this.as_os_str(), |program| program.as_ref()));
    if let [_, arguments @ ..] = program {
        command.args(arguments).arg(this);
    }
    command
        .args(["processes::child", "--exact", "--nocapture", "--test-threads", "1"])
        .env(ROLE, role.name)
        .env(JOB, role.job)
        .env(NUMBERS, numbers)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Not a test by itself: what a child runs. Without a role there is nothing to do.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "environment" {
        return environment().unwrap_or_else(|error| panic!("{error}"));
    }
    let job = std::env::var(JOB).expect("a job");
    let numbers = std::env::var(NUMBERS).expect("numbers");
    let numbers: Vec<u32> = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
    let [world_size, first_rank, local_ranks, quarter] = numbers[..] else { panic!("four numbers") };
    if let Some(role) = role.strip_prefix(machines::ROLES) {
        return machines::play(role, quarter as usize).unwrap_or_else(|error| panic!("{error}"));
    }
    crate::deaths::forbid_what_the_test_forbids();
    crate::limits::limit_what_the_test_limits();
    let before = kept();
    let ranks = Communicator::builder()
        .job(job)
        .world_size(world_size)
        .rank(first_rank)
        .timeout(if role == "sum until told, soon" { Duration::from_secs(1) } else { deadline() })
        .connect_ranks(local_ranks)
        .unwrap_or_else(|error| panic!("{error}"));
    let threads: Vec<_> = ranks
        .into_iter()
        .map(|communicator| {
            let role = role.clone();
            std::thread::spawn(move || match role.as_str() {
                "conformance" => run_quarter(&communicator, quarter as usize, Place::Own, Stream::inline()),
                "conformance in symmetric memory" => {
                    run_quarter(&communicator, quarter as usize, Place::Symmetric, Stream::inline());
                }
                "eager" => {
                    eager::asynchronous_forms_match_the_reference(&communicator, &DataType::ALL);
                    eager::lists_match(&communicator);
                    eager::bytes_arrive(&communicator, 50_000);
                    for place in [Place::Own, Place::Symmetric] {
                        uneven::forms_match(&communicator, place, &Stream::inline(), 100);
                    }
                    communicator.monitored_barrier(DEADLINE).expect("every rank comes");
                }
                "sum until told" | "sum until told, soon" => sum_until_told(&communicator),
                "sum, then rank 1 exits" => sum_then_rank_1(&communicator, || std::process::exit(0)),
                "sum, then rank 1 panics" => sum_then_rank_1(&communicator, || panic!("on purpose")),
                "allocate and free" => allocate_and_free(&communicator),
                "lose a stopped peer" => lose_a_stopped_peer(&communicator.with_timeout(Duration::from_millis(300))),
                "lose a stopped peer with a slice" => {
                    lose_a_stopped_peer_with_a_slice(&communicator.with_timeout(Duration::from_millis(300)));
                }
                "sum with a short deadline" => sum_until_told(&communicator.with_timeout(Duration::from_millis(300))),
                other if other.starts_with("dict: ") => crate::tensor_dict::play(other, communicator),
                other if other.starts_with("pair: ") => crate::deaths::play(other, communicator),
                other if other.starts_with("messages: ") => crate::messages::play(other, &communicator),
                other => crate::limits::play(other, &communicator),
            })
        })
        .collect();
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    // A thread that ends keeps what it holds for a moment, and while it ends the count may be too
    // low.
    let end = Instant::now() + DEADLINE;
    let mut after = kept();
    while after != before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
        after = kept();
    }
    assert_eq!(after, before, "after everything was dropped");
}

/// How many descriptors, mappings of shared memory and threads a process has.
pub fn kept() -> [usize; 3] {
    let entries = |path: &str| std::fs::read_dir(path).expect("a folder").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let mappings = maps.lines().filter(|line| line.contains("memfd:")).count();
    [entries("/proc/self/fd"), mappings, entries("/proc/self/task")]
}

/// The resident shared memory of this process, in KiB.
fn shared_kib() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("the mappings");
    let mut is_shared = false;
    let mut sum = 0;
    for line in maps.lines() {
        match line.strip_prefix("Rss:") {
            Some(rss) if is_shared => sum += rss.trim().trim_end_matches(" kB").parse::<u64>().expect("a number"),
            Some(_) => {}
            None if line.contains("-") && line.split_whitespace().count() >= 5 => is_shared = line.contains("memfd:"),
            None => {}
        }
    }
    sum
}

/// A rank keeps its part of symmetric memory, whichever rank frees its own first. All of it is
/// freed while the communicator lives.
fn allocate_and_free(communicator: &Communicator) {
    const LEN: usize = 4 << 20;
    let before = shared_kib();
    for first in 0..3 {
        let mut kept = communicator.allocate(DataType::Int32, [LEN as i64]).expect("memory");
        let freed = communicator.allocate(DataType::Uint8, [LEN as i64]).expect("memory");
        if communicator.rank() == Rank(first) {
            drop(freed);
            communicator.all_reduce(&mut kept, ReduceOperation::Sum).expect("a sum");
        } else {
            kept.as_mut_slice::<i32>().expect("int32").fill(1);
            communicator.all_reduce(&mut kept, ReduceOperation::Sum).expect("a sum");
            drop(freed);
        }
        assert!(kept.as_slice::<i32>().expect("int32").iter().all(|x| *x == 2));
        assert!(shared_kib() - before >= LEN as u64 * 4 / 1024, "{} {before}", shared_kib());
        communicator.barrier().expect("a barrier");
        drop(kept);
        communicator.barrier().expect("a barrier");
        // The communicator's own memory is there, and the symmetric memory is not.
        assert!(shared_kib() < before + 2 * 1024, "{} KiB, and {before} before", shared_kib());
    }
    // Memory outlives the communicator.
    let mut last = communicator.allocate(DataType::Int32, [1000]).expect("memory");
    communicator.barrier().expect("a barrier");
    last.as_mut_slice::<i32>().expect("int32").fill(3);
}

/// Sums for a while. Then rank 1 does something, and the others return an error.
fn sum_then_rank_1(communicator: &Communicator, act: impl FnOnce()) {
    let mut memory = communicator.allocate(DataType::Int32, [100_000]).expect("memory");
    for _ in 0..3 {
        communicator.all_reduce(&mut memory, ReduceOperation::Sum).expect("a sum");
    }
    if communicator.rank() == Rank(1) {
        act();
    }
    let error = communicator.all_reduce(&mut memory, ReduceOperation::Sum).expect_err("rank 1 does not come");
    println!("{error:?}");
}

/// Sums large tensors in symmetric memory until a peer is stopped, frees one of them, and uses the
/// other for something else, which the peer may not change when it continues.
fn lose_a_stopped_peer(communicator: &Communicator) {
    let allocate = |len| communicator.allocate(DataType::Int32, [len]).expect("memory");
    // Most of the time goes into the tensor that is kept.
    let (mut freed, mut kept) = (allocate(64 << 10), allocate(4 << 20));
    println!("ready");
    let error = loop {
        let result = communicator
            .all_reduce(&mut freed, ReduceOperation::Max)
            .and_then(|()| communicator.all_reduce(&mut kept, ReduceOperation::Max));
        if let Err(error) = result {
            break error;
        }
    };
    drop(freed);
    let mut other = vec![7i32; 8 << 20];
    kept.as_mut_slice::<i32>().expect("int32").fill(7);
    println!("{error:?}");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    assert!(kept.as_slice::<i32>().expect("int32").iter().chain(&other).all(|x| *x == 7), "a peer wrote");
    other.clear();
}

/// As before, but the sums are of a slice that is alive all the time.
fn lose_a_stopped_peer_with_a_slice(communicator: &Communicator) {
    let mut memory = communicator.allocate(DataType::Int32, [4 << 20]).expect("memory");
    let mut view = TensorViewMut::from(&mut memory);
    let slice = view.as_mut_slice::<i32>().expect("int32");
    println!("ready");
    let error = loop {
        if let Err(error) = communicator.all_reduce(&mut *slice, ReduceOperation::Max) {
            break error;
        }
    };
    slice.fill(7);
    println!("{error:?}");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    assert!(slice.iter().all(|x| *x == 7), "a peer wrote");
}

/// Sums until an error, and prints it.
fn sum_until_told(communicator: &Communicator) {
    let halves = communicator.split(Some(communicator.rank().0 % 2), 0).expect("a split").expect("a color");
    println!("ready");
    let error = loop {
        let mut x = vec![1i32; 300_000];
        let result = communicator
            .all_reduce(&mut x, ReduceOperation::Sum)
            .and_then(|()| halves.all_reduce(&mut x[..1], ReduceOperation::Max));
        match result {
            Ok(()) => assert!(x.iter().all(|x| *x == communicator.world_size() as i32)),
            Err(error) => break error,
        }
    };
    println!("{:?}", error);
}

/// Initializes two environments in a row, and a third one while the first is alive.
fn environment() -> Result<()> {
    for round in 0..2 {
        assert!(!Environment::is_initialized());
        let environment =
            Environment::builder().timeout(DEADLINE).seed(5 + round).backend(BackendKind::Host).initialize()?;
        assert!(Environment::is_initialized());
        let again = Environment::from_env().expect_err("one at a time").to_string();
        assert!(again.contains("was initialized at tests/suite/processes.rs:"), "{again}");
        assert_eq!(
            (environment.seed(), environment.world_size(), environment.launcher()),
            (5 + round, 3, Launcher::Torch)
        );
        let pair = environment.new_group("pair", [2, 0])?;
        assert_eq!(pair.is_some(), environment.rank() != Rank(1));
        match environment.group("pair") {
            Ok(pair) => {
                let mut both = [0i32; 2];
                pair.all_gather(&[environment.rank().0 as i32], &mut both)?;
                assert_eq!(both, [2, 0]);
            }
            Err(error) => {
                assert_eq!((environment.rank(), error.kind()), (Rank(1), ErrorKind::NotAMember));
                let text = "rank 1: rank 1 is not a member of group \"pair\", which has ranks 2 and 0";
                assert_eq!(error.to_string(), text);
            }
        }
        assert_eq!(environment.group_ranks("pair")?, [Rank(2), Rank(0)]);
        assert_eq!(environment.group_names(), ["default", "pair"]);
        assert_eq!(
            environment.group("trio").expect_err("no such group").to_string(),
            "there is no group \"trio\"; there are \"default\", \"pair\""
        );
        assert!(environment.new_group("pair", [0]).is_err());
        crate::tensor_dict::broadcast_in_groups(&environment, "pair", [2, 0]);
        environment.group("default")?.barrier()?;
        if round == 0 {
            environment.finalize()?;
        } else {
            drop(environment);
        }
    }
    Ok(())
}

#[test]
fn eager_calls_work_between_processes() {
    let job = new_job();
    // One process has two ranks.
    let role = |first_rank: u32, local_ranks: u32| {
        spawn(&Role { name: "eager", job: &job, world_size: 4, first_rank, local_ranks, quarter: 0 })
    };
    let children = vec![role(0, 1), role(1, 2), role(3, 1)];
    for (succeeded, text) in wait_all(children, DEADLINE) {
        assert!(succeeded, "{text}");
    }
}

#[test]
fn an_environment_can_follow_another() {
    let job = new_job();
    let children = (0..3)
        .map(|rank| {
            let role =
                Role { name: "environment", job: &job, world_size: 3, first_rank: rank, local_ranks: 1, quarter: 0 };
            command(&role)
                .envs([("RANK", rank.to_string()), ("WORLD_SIZE", "3".to_owned()), ("DCL_JOB_ID", job.clone())])
                .envs([("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")])
                .spawn()
                .expect("a child starts")
        })
        .collect();
    for (success, text) in wait_all(children, DEADLINE) {
        assert!(success, "{text}");
    }
    let error = "mps".parse::<BackendKind>().expect_err("no such backend");
    assert_eq!(
        error.to_string(),
        "\"mps\" is not a backend; they are \"nccl\", \"host\", \"ucx\", \"mpi\" and \"auto\""
    );
}

/// A quarter of the conformance suite on processes with these numbers of ranks.
fn conforms((name, processes): (&str, &[u32]), quarter: usize) {
    let job = new_job();
    let world_size = processes.iter().sum();
    let mut first_rank = 0;
    let mut children = Vec::new();
    for &local_ranks in processes {
        children.push(spawn(&Role { name, job: &job, world_size, first_rank, local_ranks, quarter }));
        first_rank += local_ranks;
    }
    for (number, (success, text)) in wait_all(children, deadline()).into_iter().enumerate() {
        assert!(success, "{name}, process {number} of {processes:?}: {text}");
    }
}

quarters! {
    crate::processes::conforms;
    host_processes_1: ("conformance", &[1]),
    host_processes_2: ("conformance", &[1, 1]),
    host_processes_3: ("conformance", &[1, 1, 1]),
    host_processes_4: ("conformance", &[1, 1, 1, 1]),
    host_processes_5: ("conformance", &[1; 5]),
    host_processes_6: ("conformance", &[1; 6]),
    host_processes_7: ("conformance", &[1; 7]),
    host_processes_8: ("conformance", &[1; 8]),
    host_processes_mixed: ("conformance", &[2, 1, 3]),
    symmetric_processes_2: ("conformance in symmetric memory", &[1, 1]),
    symmetric_processes_3: ("conformance in symmetric memory", &[1, 1, 1]),
    symmetric_processes_4: ("conformance in symmetric memory", &[1, 1, 1, 1]),
    symmetric_processes_8: ("conformance in symmetric memory", &[1; 8]),
    symmetric_processes_mixed: ("conformance in symmetric memory", &[2, 1, 3]),
}

/// Three processes of one rank.
fn three(name: &str, job: &str) -> Vec<Child> {
    (0..3)
        .map(|first_rank| {
            let role = Role { name, job, world_size: 3, first_rank, local_ranks: 1, quarter: 0 };
            command(&role).stdin(Stdio::piped()).spawn().expect("a child starts")
        })
        .collect()
}

/// Starts three processes of one rank, and waits until all have said that they are ready.
fn three_that_are_ready(role: &str) -> Vec<Child> {
    let mut children = three(role, &new_job());
    for child in &mut children {
        wait_for_line(child, "ready");
    }
    children
}

/// Reads a child's output until a line that ends with `end`, and returns that line.
pub fn wait_for_line(child: &mut Child, end: &str) -> String {
    // The harness writes lines of its own before the child's.
    let stdout = child.stdout.as_mut().expect("piped");
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(format!("{end}\n").as_bytes()) {
        assert_eq!(stdout.read(&mut byte).expect("output"), 1, "{}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Checks that the machine has no socket and no file with this job's name.
pub fn assert_nothing_left(job: &str) {
    // Names of sockets are hashes of the job's; every socket of ours belongs to a job that runs.
    let names = |path: &str| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    for folder in ["/dev/shm", "/tmp", "/run/lock"] {
        assert!(!names(folder).iter().any(|name| name.contains(job)), "{folder} has a file of {job}");
    }
    let again = bootstrap_all((0..3).map(|rank| rank_builder(job, 3, rank).timeout(DEADLINE)).collect());
    assert!(again.iter().all(Result::is_ok), "the name of {job} is taken: {again:?}");
}

#[test]
fn a_process_that_is_killed_is_named_at_once() {
    for victim in 0..3 {
        let mut children = three_that_are_ready("sum until told");
        children[victim].kill().expect("a child");
        let results = wait_all(children, DEADLINE);
        for (rank, (success, text)) in results.into_iter().enumerate() {
            if rank == victim {
                assert!(!success);
                continue;
            }
            assert!(success, "{text}");
            let told = format!("rank {victim} died while this rank waited");
            assert!(text.contains("PeerLost: ") && text.contains(&told), "rank {rank}: {text}");
        }
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status().expect("a shell");
    assert!(status.success());
}

#[test]
fn a_process_that_is_stopped_shows_at_the_deadline_and_harms_no_rank_later() {
    let mut children = three_that_are_ready("sum with a short deadline");
    signal(&children[1], "STOP");
    let stopped = children.remove(1);
    for (success, text) in wait_all(children, DEADLINE) {
        assert!(success, "{text}");
        // It was stopped before it came to a call, or in the middle of one.
        let told = ["rank 1 did not arrive before the deadline", STUCK];
        let late = text.contains("DeadlineExceeded: ") || text.contains("Aborted: ");
        assert!(late && told.iter().any(|told| text.contains(told)), "{text}");
    }
    signal(&stopped, "CONT");
    let (success, text) = wait_all(vec![stopped], DEADLINE).remove(0);
    assert!(success && text.contains("ended the communicator"), "{text}");
}

#[test]
fn symmetric_memory_comes_back_when_it_is_freed() {
    for (rank, (success, text)) in wait_all(three("allocate and free", &new_job()), DEADLINE).into_iter().enumerate() {
        assert!(success, "rank {rank}: {text}");
    }
}

#[test]
fn a_process_that_exits_or_panics_is_named_at_once() {
    for (role, told) in [
        ("sum, then rank 1 exits", "rank 1 died while this rank waited"),
        ("sum, then rank 1 panics", "rank 1 left the communicator while this rank waited"),
    ] {
        let job = new_job();
        let results = wait_all(three(role, &job), DEADLINE);
        for (rank, (success, text)) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
            assert!(success && text.contains("PeerLost: ") && text.contains(told), "rank {rank}: {text}");
        }
        assert_nothing_left(&job);
    }
}

/// Whenever a process is killed, in the bootstrap or a split or a sum, the others end with a
/// reason.
#[test]
fn a_process_may_be_killed_at_any_time() {
    for (round, delay) in [0, 2, 5, 8, 12, 16, 20, 30].into_iter().enumerate() {
        let job = new_job();
        let victim = round % 3;
        let mut children = three("sum until told, soon", &job);
        std::thread::sleep(Duration::from_millis(delay));
        children[victim].kill().expect("a child");
        for (rank, (_, text)) in wait_all(children, DEADLINE).into_iter().enumerate() {
            // A rank that fails leaves, and is lost to the others in turn.
            let told = ["died", "left", "did not come"].iter().any(|reason| text.contains(reason));
            assert!(rank == victim || told, "rank {rank}, victim {victim} after {delay} ms: {text}");
        }
        assert_nothing_left(&job);
    }
}

#[test]
fn a_peer_that_is_stopped_in_the_middle_of_a_copy_corrupts_nothing_later() {
    for role in ["lose a stopped peer", "lose a stopped peer with a slice"].into_iter().cycle().take(4) {
        let mut children = three_that_are_ready(role);
        std::thread::sleep(Duration::from_millis(20));
        signal(&children[1], "STOP");
        let stopped = children.remove(1);
        let inputs: Vec<_> = children
            .iter_mut()
            .map(|child| {
                let mut lines = BufReader::new(child.stdout.as_mut().expect("piped"));
                let mut line = String::new();
                lines.read_line(&mut line).expect("output");
                // The third rank may wait for the stopped one too.
                let names = ["rank 1", "ranks 0 and 1", "ranks 1 and 2"];
                let is_named = |who: &str| line.contains(&format!("{who} arrived, but did not finish"));
                let is_named = names.into_iter().any(is_named);
                assert!(is_named || line.contains("rank 1 did not arrive"), "{line}");
                child.stdin.take().expect("piped")
            })
            .collect();
        signal(&stopped, "CONT");
        // It ends on its own: no process answers it.
        let mut stopped = stopped;
        writeln!(stopped.stdin.take().expect("piped")).expect("it reads");
        let (success, text) = wait_all(vec![stopped], DEADLINE).remove(0);
        assert!(success && text.contains("ended the communicator"), "{text}");
        for mut input in inputs {
            writeln!(input).expect("it reads");
        }
        for (success, text) in wait_all(children, DEADLINE) {
            assert!(success, "{text}");
        }
    }
}
