//! Ranks that are told that they are on several machines (`DCL_HOST_ID`), with UCX or MPI between
//! them.
//!
//! A child is this same program, as in `processes`. Those with MPI between them are children of an
//! mpirun.

mod mpi;

use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use distcollective::collective::Partition;
use distcollective::comm::BackendKind;
use distcollective::{
    Communicator, DataType, DistCollective, Environment, ErrorKind, Network, ReduceOperation, Result, Stream, inputs,
    outputs,
};

use crate::conformance::{Place, deadline, quarters, run_quarter};
use crate::processes::{Role, command, new_job, wait_for_line};
use crate::ranks::{DEADLINE, wait_all};
use crate::{eager, uneven};

pub const ROLES: &str = "machines: ";

/// What a child does.
pub fn play(role: &str, quarter: usize) -> Result<()> {
    if let Some(role) = role.strip_prefix(mpi::ROLES) {
        return mpi::play(role);
    }
    let timeout = if role == "conformance" { deadline() } else { DEADLINE };
    let environment = Environment::builder().timeout(timeout).initialize()?;
    let is_mpirun = std::env::var_os("MASTER_ADDR").is_none();
    assert_eq!(environment.backend(), if is_mpirun { BackendKind::Mpi } else { BackendKind::Ucx });
    let communicator = environment.communicator();
    let rank = communicator.rank().0;
    match role {
        "conformance" => run_quarter(communicator, quarter, Place::Own, Stream::inline()),
        "conformance in symmetric memory" => run_quarter(communicator, quarter, Place::Symmetric, Stream::inline()),
        "eager" => {
            eager::asynchronous_forms_match_the_reference(communicator, &DataType::ALL);
            eager::lists_match(communicator);
            eager::bytes_arrive(communicator, 50_000);
            uneven::forms_match(communicator, Place::Own, &Stream::inline(), 100);
            communicator.monitored_barrier(DEADLINE)?;
        }
        "network" => {
            check_local_numbers(&environment)?;
            network(communicator)?;
        }
        "sum until told" => {
            println!("ready");
            let error =
                (0..u64::MAX).find_map(|_| communicator.all_reduce(&mut [1.0f32; 70_000], ReduceOperation::Sum).err());
            println!("{:?}", error.expect("a rank has died"));
            return Ok(());
        }
        "one exits" => {
            // The communicator of rank 3 lives until its process ends.
            let group = communicator.new_group([2, 0, 1])?;
            communicator.barrier()?;
            let Some(group) = group else { std::process::exit(0) };
            let end = Instant::now() + Duration::from_millis(600);
            let mut goes_on = [1.0f32];
            while goes_on == [1.0] {
                goes_on = [if Instant::now() < end { 1.0 } else { 0.0 }];
                group.all_reduce(&mut goes_on, ReduceOperation::Min)?;
            }
            return Ok(());
        }
        "one sends less" => {
            let error = communicator.all_reduce(&mut vec![1.0f32; 9 + rank as usize / 3], ReduceOperation::Sum);
            let error = error.expect_err("they differ");
            assert_eq!(error.kind(), ErrorKind::Disagreement);
            println!("{error}");
            return Ok(());
        }
        other => crate::messages::play(other, communicator),
    }
    environment.finalize()
}

/// Local numbers that no variable gives are counted.
fn check_local_numbers(environment: &Environment) -> Result<()> {
    let communicator = environment.communicator();
    let own = std::env::var("DCL_HOST_ID").expect("a machine").as_bytes()[0];
    let mut machines = vec![0; communicator.world_size() as usize];
    communicator.all_gather(&[own], &mut machines)?;
    if environment.sources().any(|(name, source)| name == "local_rank" && !source.starts_with("derived")) {
        return Ok(());
    }
    let count = |machines: &[u8]| machines.iter().filter(|machine| **machine == own).count() as u32;
    let before = &machines[..communicator.rank().index()];
    assert_eq!([environment.local_rank(), environment.local_world_size()], [before, &machines].map(count));
    Ok(())
}

/// A sum over all ranks of what pairs have gathered, in a context.
fn network(communicator: &Communicator) -> Result<()> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [3])?;
    let pairs =
        network.add(DistCollective::all_gather().partition(Partition::new([[0, 2], [1, 3]])).named("pairs"), x)?;
    let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(4).named("sum"), pairs)?;
    network.mark_output(sum, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let x = [communicator.rank().0 as f32; 3];
    let mut y = [0f32; 6];
    for _ in 0..3 {
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y])?;
        assert_eq!(y, [2.0, 2.0, 2.0, 10.0, 10.0, 10.0]);
    }
    Ok(())
}

/// Whether there is no UCX, so that the test is skipped.
fn lacks_ucx() -> bool {
    // SAFETY: UCX may be loaded at any time.
    let is_there = unsafe { libloading::Library::new("libucp.so.0") }.is_ok();
    if !is_there {
        test_support::skip("UCX (libucp.so.0) is not installed");
    }
    !is_there
}

/// A port that is free, as is the next one, which is the rendezvous's. The system gives connections
/// of other tests none of these.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: u16| TcpListener::bind(("0.0.0.0", port)).is_ok();
    let ports = std::iter::repeat_with(|| {
        let number = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        10_000 + 2 * (number % 10_000) as u16
    });
    ports.take(1000).find(|port| is_free(*port) && is_free(port + 1)).expect("a free port")
}

/// Starts a rank on each of these machines.
fn start(role: &str, machines: &[&str], quarter: usize) -> Vec<Child> {
    let port = free_port();
    let (job, name) = (new_job(), format!("{ROLES}{role}"));
    let of_rank = |(rank, machine): (usize, &&str)| {
        let world_size = machines.len() as u32;
        let role = Role { name: &name, job: &job, world_size, first_rank: 0, local_ranks: 1, quarter };
        command(&role)
            .envs([("MASTER_ADDR", "127.0.0.1"), ("DCL_HOST_ID", machine), ("UCX_TLS", "tcp,self")])
            .envs([("RANK", rank), ("WORLD_SIZE", machines.len())].map(|(n, v)| (n, v.to_string())))
            .envs([("MASTER_PORT", port.to_string()), ("DCL_JOB_ID", job.clone())])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a child starts")
    };
    machines.iter().enumerate().map(of_rank).collect()
}

fn succeed((role, machines): (&str, &[&str]), quarter: usize) {
    if lacks_ucx() {
        return;
    }
    let limit = if role.starts_with("conformance") { deadline() } else { DEADLINE };
    for (rank, (success, text)) in wait_all(start(role, machines, quarter), limit).into_iter().enumerate() {
        assert!(success, "{role}, rank {rank} of {machines:?}: {text}");
    }
}

quarters! {
    crate::machines::succeed;
    machines_1_1: ("conformance", &["a", "b"]),
    machines_2_2: ("conformance", &["a", "a", "b", "b"]),
    machines_3_1: ("conformance in symmetric memory", &["a", "a", "a", "b"]),
    machines_alternate: ("conformance", &["a", "b", "a", "b"]),
    machines_2_2_2: ("conformance", &["a", "a", "b", "b", "c", "c"]),
}

#[test]
fn eager_calls_match_the_reference_on_several_machines() {
    succeed(("eager", &["a", "a", "b"]), 0);
}

#[test]
fn messages_pass_between_machines() {
    succeed(("messages: exchange", &["a", "a", "b"]), 0);
}

#[test]
fn a_network_runs_on_several_machines() {
    succeed(("network", &["a", "b", "a", "b"]), 0);
}

#[test]
fn a_group_goes_on_after_another_rank_has_exited() {
    succeed(("one exits", &["a", "a", "b", "b"]), 0);
}

/// What each of four ranks says in the role "one sends less".
const BOTH_CALLS: &str =
    "ranks 0, 1 and 2 call all_reduce(sum) of 9 float32; rank 3 calls all_reduce(sum) of 10 float32";

#[test]
fn ranks_of_all_machines_name_both_calls() {
    if lacks_ucx() {
        return;
    }
    for (success, text) in wait_all(start("one sends less", &["a", "a", "b", "b"], 0), DEADLINE) {
        assert!(success && text.contains(BOTH_CALLS), "{text}");
    }
}

#[test]
fn the_death_of_a_rank_is_told_on_all_machines() {
    if lacks_ucx() {
        return;
    }
    let mut children = start("sum until told", &["a", "a", "b", "b"], 0);
    for child in &mut children {
        wait_for_line(child, "ready");
    }
    std::thread::sleep(Duration::from_millis(50));
    let mut dying = children.pop().expect("rank 3");
    dying.kill().expect("it lives");
    dying.wait().expect("it has died");
    let begin = Instant::now();
    for (success, text) in wait_all(children, DEADLINE) {
        assert!(success && text.contains("rank 3 "), "{text}");
    }
    println!("told after {:?}", begin.elapsed());
}
