//! MPI between the machines: Open MPI and MPICH, each under its own mpirun.

use std::ffi::{c_int, c_void};
use std::process::Command;
use std::ptr::null_mut;
use std::time::Duration;

use distcollective::comm::BackendKind;
use distcollective::{Communicator, Environment, ErrorKind, ReduceOperation, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use super::{BOTH_CALLS, ROLES as OF_MACHINES, free_port};
use crate::conformance::{deadline, quarters};
use crate::processes::{Role, command_under, new_job};
use crate::ranks::{DEADLINE, wait_all};

pub const ROLES: &str = "MPI: ";

const OPEN_MPI: &str = "mpirun.openmpi";
const MPICH: &str = "mpirun.mpich";

/// The MPI whose mpirun has started this process, with a function of no arguments or three.
struct Mpi(Library);

impl Mpi {
    fn open() -> Self {
        let is_open_mpi = std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some();
        let file = if is_open_mpi { "libmpi.so.40" } else { "libmpich.so.12" };
        // SAFETY: an MPI may be loaded at any time.
        Mpi(unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.expect("the launcher's MPI"))
    }

    fn world(&self) -> usize {
        // SAFETY: the address is only a number.
        let world = unsafe { self.0.get::<*mut c_void>("ompi_mpi_comm_world").ok() };
        world.map_or(0x4400_0000, |world| world.into_raw() as usize)
    }

    fn initialize(&self, level: c_int) {
        type Initialize = unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int;
        let mut provided = -1;
        // SAFETY: the types are those of the standard, and nothing has initialized MPI.
        unsafe {
            let initialize: Symbol<Initialize> = self.0.get("MPI_Init_thread").expect("an MPI");
            assert_eq!(initialize(null_mut(), null_mut(), level, &mut provided), 0);
        }
        assert_eq!(provided, level);
    }

    fn finalize(&self) {
        // SAFETY: the type is that of the standard, and MPI is initialized.
        unsafe {
            let finalize: Symbol<unsafe extern "C" fn() -> c_int> = self.0.get("MPI_Finalize").expect("an MPI");
            assert_eq!(finalize(), 0);
        }
    }
}

/// What a child does.
pub fn play(role: &str) -> Result<()> {
    match role {
        "of the world" => {
            let world = Communicator::mpi_world(DEADLINE)?;
            // SAFETY: it is the loaded MPI's communicator of all ranks.
            let raw = unsafe { Communicator::from_raw_mpi(Mpi::open().world(), DEADLINE)? };
            for communicator in [&world, &raw] {
                sums_ranks(communicator)?;
            }
            let half = world.split(Some(world.rank().0 % 2), 0)?.expect("a color");
            assert_eq!(half.world_size(), 2);
            sums_ranks(&raw)
        }
        "asked for" => {
            let environment = Environment::builder().backend(BackendKind::Mpi).timeout(DEADLINE).initialize()?;
            sums_ranks(environment.communicator())?;
            environment.finalize()
        }
        "finalized early" => {
            let mpi = Mpi::open();
            mpi.initialize(3);
            // SAFETY: it is the loaded MPI's communicator of all ranks.
            let communicator = unsafe { Communicator::from_raw_mpi(mpi.world(), DEADLINE)? };
            sums_ranks(&communicator)?;
            // The others may still be in this call when rank 0 finalizes MPI.
            let mut long = vec![0f32; 1 << 20];
            communicator.broadcast(&mut long, 0)?;
            mpi.finalize();
            let error = communicator.barrier().expect_err("MPI has ended");
            assert_eq!(error.kind(), ErrorKind::NotReady, "{error}");
            let error = Communicator::mpi_world(DEADLINE).expect_err("MPI has ended");
            assert!(error.to_string().starts_with("MPI has been finalized in this process"), "{error}");
            Ok(())
        }
        "one leaves" => {
            let environment = Environment::builder().timeout(DEADLINE).initialize()?;
            environment.communicator().barrier()?;
            if environment.rank() == 1u32.into() {
                std::process::exit(0);
            }
            let error = environment.communicator().barrier().expect_err("rank 1 has exited");
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            Ok(())
        }
        "too few threads" => {
            let mpi = Mpi::open();
            mpi.initialize(1);
            let error = Environment::builder().timeout(DEADLINE).initialize().expect_err("one thread");
            assert!(error.kind() == ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("initialize it by MPI_Init_thread with MPI_THREAD_MULTIPLE"), "{error}");
            mpi.finalize();
            Ok(())
        }
        "one stays away" => {
            if std::env::var("DCL_HOST_ID").as_deref() == Ok("b") {
                std::thread::sleep(Duration::from_secs(3));
                return Ok(());
            }
            let error = Communicator::mpi_world(Duration::from_millis(500)).expect_err("a rank does not come");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
            assert!(error.to_string().contains("perhaps one did not initialize MPI"), "{error}");
            println!("told in time");
            // Its MPI waits for the other one.
            std::process::exit(0);
        }
        "alone" => {
            let error = Environment::builder().timeout(DEADLINE).initialize().expect_err("a world of one");
            assert!(error.to_string().contains("this is rank 0 of 1, and by the launcher"), "{error}");
            println!("{error}");
            Ok(())
        }
        other => panic!("no role {other:?}"),
    }
}

fn sums_ranks(communicator: &Communicator) -> Result<()> {
    assert_eq!(communicator.backend(), BackendKind::Mpi);
    for len in [1, 100_000] {
        let mut x = vec![communicator.rank().0 as f32; len];
        communicator.all_reduce(&mut x, ReduceOperation::Sum)?;
        assert!(x.iter().all(|x| *x == 6.0), "{:?}", &x[..1]);
    }
    communicator.barrier()
}

/// Gives each rank the name of its machine, and runs the rest.
const ON_MACHINE: &str = "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; shift $rank; export DCL_HOST_ID=$1; \
                          shift $((MACHINES - rank)); exec \"$@\"";

/// The command of an mpirun that starts a rank on each of these machines.
fn mpirun(mpi: &str, role: &str, machines: &[&str], quarter: usize) -> Command {
    let count = machines.len().to_string();
    let options: &[&str] = match mpi {
        OPEN_MPI => &["--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none"],
        _ => &["-launcher", "fork"],
    };
    let program = [&[mpi], options, &["-n", &count, "sh", "-c", ON_MACHINE, "sh"], machines].concat();
    let name = format!("{OF_MACHINES}{role}");
    let role = Role {
        name: &name,
        job: &new_job(),
        world_size: machines.len() as u32,
        first_rank: 0,
        local_ranks: 1,
        quarter,
    };
    let mut command = command_under(&program, &role);
    command
        .env("MACHINES", count)
        // MPICH 4.0 over UCX's TCP sometimes hangs in MPI_Finalize, in any program.
        .env("UCX_TLS", "sm,self")
        .envs(["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")));
    command
}

/// What the ranks write, all of which succeed.
fn output_of(mut command: Command, limit: Duration) -> String {
    let child = command.spawn().expect("a child starts");
    let (success, text) = wait_all(vec![child], limit).remove(0);
    assert!(success, "{command:?}: {text}");
    text
}

fn succeed((mpi, role, machines): (&str, &str, &[&str]), quarter: usize) {
    if test_support::has(mpi) {
        let limit = if role.starts_with("conformance") { deadline() } else { DEADLINE };
        output_of(mpirun(mpi, role, machines, quarter), limit);
    }
}

fn succeed_under_each(role: &str, machines: &[&str]) {
    for mpi in [OPEN_MPI, MPICH] {
        succeed((mpi, role, machines), 0);
    }
}

const BLOCKS: &[&str] = &["a", "a", "b", "b"];
const ALTERNATING: &[&str] = &["a", "b", "a", "b"];

quarters! {
    super::succeed;
    openmpi: (super::OPEN_MPI, "conformance", super::BLOCKS),
    mpich: (super::MPICH, "conformance", super::BLOCKS),
}

#[test]
fn what_alternates_conforms() {
    succeed((OPEN_MPI, "conformance in symmetric memory", ALTERNATING), 0);
    succeed((MPICH, "conformance in symmetric memory", ALTERNATING), 1);
}

#[test]
fn eager_calls_match_the_reference() {
    succeed_under_each("eager", &["a", "a", "b"]);
}

#[test]
fn messages_pass() {
    succeed_under_each("messages: exchange", &["a", "a", "b"]);
}

#[test]
fn a_network_runs() {
    succeed_under_each("network", ALTERNATING);
}

#[test]
fn a_group_goes_on_after_another_rank_has_exited() {
    succeed_under_each("one exits", BLOCKS);
}

#[test]
fn all_ranks_name_both_calls() {
    for mpi in [OPEN_MPI, MPICH] {
        if test_support::has(mpi) {
            let text = output_of(mpirun(mpi, "one sends less", BLOCKS, 0), DEADLINE);
            assert_eq!(text.matches(BOTH_CALLS).count(), 4, "{text}");
        }
    }
}

#[test]
fn communicators_of_mpi_are_taken() {
    succeed_under_each("MPI: of the world", ALTERNATING);
}

/// With `MASTER_ADDR`, ranks meet over TCP, and MPI moves the elements.
#[test]
fn ranks_that_meet_over_tcp_use_mpi() {
    for mpi in [OPEN_MPI, MPICH] {
        if test_support::has(mpi) {
            let mut command = mpirun(mpi, "MPI: asked for", BLOCKS, 0);
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", free_port().to_string());
            output_of(command, DEADLINE);
        }
    }
}

#[test]
fn the_program_may_finalize_mpi() {
    succeed_under_each("MPI: finalized early", BLOCKS);
}

#[test]
fn a_rank_of_another_machine_that_exits_is_missed() {
    succeed_under_each("MPI: one leaves", &["a", "b"]);
}

#[test]
fn the_level_of_threads_is_checked() {
    succeed_under_each("MPI: too few threads", BLOCKS);
}

#[test]
fn a_rank_that_stays_away_is_told_at_the_deadline() {
    for mpi in [OPEN_MPI, MPICH] {
        if test_support::has(mpi) {
            let mut child = mpirun(mpi, "MPI: one stays away", &["a", "b"], 0);
            let child = child.spawn().expect("a child starts");
            let (_, text) = wait_all(vec![child], DEADLINE).remove(0);
            assert!(text.contains("told in time"), "{text}");
        }
    }
}

/// MPICH's library under Open MPI's mpirun.
#[test]
fn a_world_of_one_names_library_and_launcher() {
    if test_support::has(OPEN_MPI) && test_support::has(MPICH) {
        let mut command = mpirun(OPEN_MPI, "MPI: alone", BLOCKS, 0);
        command.env("LD_PRELOAD", "libmpich.so.12");
        let text = output_of(command, DEADLINE);
        let library = "by libmpich.so.12 (MPICH Version: ";
        assert_eq!(text.matches(library).count(), 4, "{text}");
        assert!(text.contains("the launcher (Open MPI) rank 3 of 4"), "{text}");
    }
}
