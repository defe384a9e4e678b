//! Memory and descriptors: how much ranks need, and the errors if there is not enough.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Child;

use distcollective::{Communicator, DataType, ErrorKind, Rank, ReduceOperation};

use crate::bootstrap::rank_builder;
use crate::deaths::{filter_calls, load, step};
use crate::processes::{Role, command, command_under, new_job};
use crate::ranks::{DEADLINE, wait_all};

/// How many files a child may have open beside those it has, and which limit it is: `soft 6`, `hard
/// 6`.
const FILES: &str = "DCL_TEST_FILES";

/// How many bytes each rank asks for; more than any machine has unless it is set.
const PART: &str = "DCL_TEST_PART";

const KIB: usize = 1 << 10;

pub fn play(role: &str, communicator: &Communicator) {
    match role {
        "allocate too much" => allocate_too_much(communicator),
        "take little memory" => take_little_memory(communicator),
        "take memory again and again" => take_memory_again_and_again(communicator, 256 * KIB),
        "take memory again and again in a sandbox" => {
            forbid_to_free_pages();
            // The memory of groups is not used again here. It has a few pages.
            take_memory_again_and_again(communicator, 2048 * KIB);
        }
        "random calls" => crate::staging::make_random_calls(communicator),
        "a giver that leaves" => crate::staging::give_and_leave(communicator),
        "two calls that only give" => crate::staging::make_two_calls_that_only_give(communicator),
        "long wire types" => crate::wire_types::make_long_calls(communicator),
        "one barrier" => communicator.barrier().expect("a barrier"),
        other => panic!("no role {other}"),
    }
}

pub fn children(program: &[&str], name: &str, processes: &[u32]) -> Vec<Child> {
    let job = new_job();
    let world_size = processes.iter().sum();
    let first_ranks = processes.iter().scan(0, |next, ranks| {
        *next += ranks;
        Some(*next - ranks)
    });
    let roles = first_ranks.zip(processes).map(|(first_rank, &local_ranks)| Role {
        name,
        job: &job,
        world_size,
        first_rank,
        local_ranks,
        quarter: 0,
    });
    roles.map(|role| command_under(program, &role).spawn().expect("a child starts")).collect()
}

/// To ask for more memory than there is is an error on every rank, and leaves the communicator
/// alive.
fn allocate_too_much(communicator: &Communicator) {
    // If the library takes the memory, the kernel has to kill this process and no other.
    std::fs::write("/proc/self/oom_score_adj", "1000").expect("a process may raise its own");
    let part: i64 = std::env::var(PART).map_or(1 << 46, |part| part.parse().expect("a number"));
    let error = communicator.allocate(DataType::Uint8, [part]).expect_err("no machine has it");
    assert_eq!(error.kind(), ErrorKind::System);
    let text = error.to_string();
    let expected = format!(
        "rank {}: allocate: 3 ranks of {part} bytes each take {} bytes, and the process of rank 0 can have about ",
        communicator.rank(),
        3 * part + 4096
    );
    assert!(text.starts_with(&expected) && text.ends_with(" bytes more"), "{text}");
    let mut x = communicator.allocate(DataType::Int32, [1000]).expect("there is memory for this");
    communicator.all_reduce(&mut x, ReduceOperation::Sum).expect("the communicator goes on");
}

#[test]
fn more_memory_than_there_is_is_an_error_on_every_rank() {
    for processes in [&[1, 1, 1][..], &[3]] {
        for (rank, (success, text)) in
            wait_all(children(&[], "allocate too much", processes), DEADLINE).into_iter().enumerate()
        {
            assert!(success, "process {rank} of {processes:?}: {text}");
        }
    }
}

/// A control group with a limit of memory, until it is dropped.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// `None` where this process may not make one.
    fn new(limit: &str) -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let found = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            match (fields.next()?, fields.next()?) {
                ("memory", path) => Some((format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes")),
                _ => None,
            }
        });
        let version_2 = || {
            let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
            Some((format!("/sys/fs/cgroup{path}"), "memory.max"))
        };
        let (parent, file) = found.or_else(version_2)?;
        let group = ControlGroup(PathBuf::from(parent).join(format!("distcollective-test-{}", std::process::id())));
        std::fs::create_dir(&group.0).ok()?;
        std::fs::write(group.0.join(file), limit).ok()?;
        Some(group)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The machine has the memory, and the control group does not: the kernel would kill a process that
/// took it.
#[test]
fn more_memory_than_a_control_group_has_is_an_error_on_every_rank() {
    let Some(group) = ControlGroup::new("128M") else {
        println!("skipped: this process may make no control group with a limit of memory");
        return;
    };
    let enter =
        format!("echo $$ > {}/cgroup.procs && export {PART}={} && exec \"$0\" \"$@\"", group.0.display(), 100 << 20);
    let children = children(&["sh", "-c", &enter], "allocate too much", &[1, 1, 1]);
    for (rank, (success, text)) in wait_all(children, DEADLINE).into_iter().enumerate() {
        assert!(success, "process {rank}: {text}");
    }
}

/// The shared memory of this process that is allocated, whichever process used it first, in bytes.
fn allocated() -> usize {
    let page = 4096;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let mappings = maps.lines().filter(|line| line.contains("memfd:")).map(|line| {
        let (start, rest) = line.split_once('-').expect("a range");
        let end = rest.split(' ').next().expect("a range");
        [start, end].map(|number| usize::from_str_radix(number, 16).expect("a number"))
    });
    mappings
        .map(|[start, end]| {
            let mut pages = vec![0u8; (end - start).div_ceil(page)];
            // SAFETY: the range is mapped while the communicator is there, and the list has a byte
            // for each page.
            let result = unsafe { libc::mincore(start as *mut _, end - start, pages.as_mut_ptr()) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
            pages.iter().filter(|state| **state & 1 == 1).count() * page
        })
        .sum()
}

/// A rank's eager memory and its staging memory are allocated when the rank first copies to them.
fn take_little_memory(communicator: &Communicator) {
    let measure = |what: &str, most: usize| {
        communicator.barrier().expect("a barrier");
        if communicator.rank().0.is_multiple_of(32) {
            let found = allocated();
            assert!(found <= most, "{what}: {} KiB", found / KIB);
        }
        communicator.barrier().expect("a barrier");
    };
    measure("after the bootstrap", 160 * KIB);
    communicator.broadcast(&mut [1u8; 1000], Rank(0)).expect("a broadcast");
    measure("after rank 0 gave little", (160 + 64) * KIB);
    communicator.broadcast(&mut [1u8; 5000], Rank(0)).expect("a broadcast");
    measure("after rank 0 gave more", (160 + 64 + 1024) * KIB);
}

#[test]
fn ranks_take_little_memory_before_their_first_call() {
    for (process, (success, text)) in
        wait_all(children(&[], "take little memory", &[32, 32]), DEADLINE).into_iter().enumerate()
    {
        assert!(success, "process {process}: {text}");
    }
}

/// How many bytes of the world's memory are allocated, by whichever process.
fn allocated_of_world() -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").expect("a folder").filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_memory = std::fs::read_link(&path).ok()?.to_str()?.contains("/memfd:distcollective");
        is_memory.then(|| std::fs::metadata(path).expect("an open file").blocks() * 512)
    });
    files.sum()
}

/// Makes a group inside a group, and memory in it, many times. Then rank 2 dies with such memory,
/// and the others go on.
fn take_memory_again_and_again(communicator: &Communicator, most_more: usize) {
    let cycles = |communicator: &Communicator| {
        let mut before = 0;
        for cycle in 0..12 {
            let group = communicator.split(Some(communicator.rank().0 % 2), 0).expect("a split").expect("a group");
            let inner = group.split(Some(0), 0).expect("a split").expect("a group");
            let mut x = inner.allocate(DataType::Uint8, [(1 << 20) + cycle]).expect("memory");
            let bytes = x.as_mut_slice::<u8>().expect("bytes");
            assert!(bytes.iter().all(|byte| *byte == 0), "new memory is zeros");
            bytes.fill(1);
            inner.all_reduce(&mut x, ReduceOperation::Sum).expect("a sum");
            drop((group, inner, x));
            communicator.barrier().expect("a barrier");
            let now = allocated_of_world();
            before = if cycle == 2 { now } else { before };
            assert!(cycle < 3 || now <= before + most_more as u64, "{now} bytes in cycle {cycle}, and {before} before");
            communicator.barrier().expect("a barrier");
        }
    };
    cycles(communicator);
    let pair = communicator.new_group([0, 1]).expect("a group");
    let _x = communicator.allocate(DataType::Uint8, [1 << 20]).expect("memory");
    match pair {
        None => std::process::exit(0),
        Some(pair) => cycles(&pair),
    }
}

/// Lets this process free no pages of a file while it has it mapped, as gVisor does.
fn forbid_to_free_pages() {
    let [errno, jump] = [libc::SECCOMP_RET_ERRNO, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K];
    filter_calls(&mut [
        load(0),
        step(jump, libc::SYS_fallocate as u32, 0, 3),
        load(16 + 8),
        step(jump, 0, 4, 0),
        step(libc::BPF_RET | libc::BPF_K, errno | libc::ENOTSUP as u32, 0, 0),
        step(jump, libc::SYS_madvise as u32, 0, 2),
        load(16 + 16),
        step(jump, libc::MADV_REMOVE as u32, 1, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, errno | libc::ENOSYS as u32, 0, 0),
    ]);
}

#[test]
fn memory_that_is_freed_is_used_again() {
    for role in ["take memory again and again", "take memory again and again in a sandbox"] {
        for (rank, (success, text)) in wait_all(children(&[], role, &[1, 1, 1]), DEADLINE).into_iter().enumerate() {
            assert!(success, "{role}: rank {rank}: {text}");
        }
    }
}

/// Lets this process have few more files open, where the test says so.
pub fn limit_what_the_test_limits() {
    let Ok(text) = std::env::var(FILES) else { return };
    let (which, more) = text.split_once(' ').expect("two words");
    // The folder itself is open while it is read.
    let open = std::fs::read_dir("/proc/self/fd").expect("a folder").count() - 1;
    let few = (open + more.parse::<usize>().expect("a number")) as libc::rlim_t;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: each call reads or writes one limit.
    let results = unsafe {
        let read = libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = few;
        limit.rlim_max = if which == "hard" { few } else { limit.rlim_max };
        (read, libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))
    };
    assert_eq!(results, (0, 0), "{}", std::io::Error::last_os_error());
}

/// Rank 0 in a process that may have few files open, and the others in this one, each by itself.
fn rank_0_with_few_files(limit: &str, world_size: u32) -> ((bool, String), Vec<String>) {
    let job = new_job();
    let role = Role { name: "one barrier", job: &job, world_size, first_rank: 0, local_ranks: 1, quarter: 0 };
    let hub = command(&role).env(FILES, limit).spawn().expect("a child starts");
    let ranks: Vec<_> = (1..world_size)
        .map(|rank| {
            let builder = rank_builder(&job, world_size, rank).timeout(DEADLINE);
            std::thread::spawn(move || builder.connect().and_then(|communicator| communicator.barrier()))
        })
        .collect();
    let told = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
    let told = told.map(|result| result.map_or_else(|error| format!("{error:?}"), |()| String::new())).collect();
    (wait_all(vec![hub], DEADLINE).remove(0), told)
}

#[test]
fn rank_0_raises_its_limit_of_open_files() {
    let ((success, text), told) = rank_0_with_few_files("soft 12", 20);
    assert!(success && told.iter().all(String::is_empty), "{text}\n{told:?}");
}

#[test]
fn rank_0_without_descriptors_names_the_limit_on_every_rank_that_came() {
    let ((success, text), told) = rank_0_with_few_files("hard 8", 20);
    let limit = "rank 0's process has no file descriptor left for the processes that come: RLIMIT_NOFILE is ";
    let call = "a world of 20 ranks needs about ";
    assert!(!success && text.contains(limit) && text.contains(call), "{text}");
    assert!(text.contains("accept: Too many open files (os error 24)"), "{text}");
    let (told, lost): (Vec<String>, Vec<String>) = told.into_iter().partition(|text| text.contains(limit));
    assert!(!told.is_empty() && told.iter().all(|text| text.starts_with("Aborted: ")), "{told:?}");
    // The hub has no descriptor to answer these with.
    assert!(lost.iter().all(|text| text.starts_with("PeerLost: ")), "{lost:?}");
}

/// A job of one process raises no limit.
#[test]
fn a_process_with_all_ranks_needs_no_descriptors() {
    let job = new_job();
    let all = rank_builder(&job, 3, 0).connect_ranks(3).expect("there is no other process");
    assert_eq!(all.len(), 3);
}
