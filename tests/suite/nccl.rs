//! The NCCL backend: the conformance suite, contexts, graphs, faults.
//!
//! A process loads the libraries once, so each test runs in a child. The child is this program: its
//! environment makes it run one test, [`child`], and in it one role. It finds test libraries in
//! place of CUDA, NVRTC and NCCL (`tests/fake_gpu`). With `DCL_TEST_GPU=1`, which `tools/gpu-check`
//! sets, it finds the real ones. Tests that need the test libraries then say that they are skipped.

mod captures;
mod contexts;
mod dicts;
mod differing;
mod ends;
mod exact;
mod faults;
mod graphs;
mod interrupts;
mod libraries;
mod messages;
mod processes;
mod sharing;
mod stuck;
mod waits;
mod windows;

use std::process::{self, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use distcollective::collective::Collective;
use distcollective::comm::{BackendKind, RawOperands};
use distcollective::system::GpuInfo;
use distcollective::tensor::MemorySpace;
use distcollective::{Communicator, DataType, Determinism, Environment, Rank, ReduceOperation, Result, Stream};
use fake_gpu::{Variant, library_dir};

use crate::conformance::{Place, Runner, deadline, quarters, run_quarter_with};
use crate::eager;
use crate::machines::free_port;
use crate::processes::new_job;
use crate::ranks::{DEADLINE, Exchange, on_communicators, patient, wait_all};
use crate::uneven;
use crate::wire_types::{differences_of_layers_are_errors, make_long_calls};

const ROLE: &str = "DCL_TEST_NCCL_ROLE";
const RANKS: &str = "DCL_TEST_NCCL_RANKS";
/// The job and the rank of a child that is one rank.
const JOB: &str = "DCL_TEST_NCCL_JOB";

/// How long a rank waits for the others in tests in which no call fails.
const TIMEOUT: Duration = Duration::from_secs(8);

/// Whether the real libraries are to be used.
fn is_on_gpu() -> bool {
    std::env::var_os("DCL_TEST_GPU").is_some()
}

/// Whether a test that needs the test libraries is skipped.
fn needs_test_libraries() -> bool {
    if is_on_gpu() {
        println!("skipped: this needs the test libraries");
    }
    is_on_gpu()
}

/// Whether a test is skipped because the GPUs are too few for its ranks.
fn needs_more_gpus(ranks: u32) -> bool {
    let is_skipped = is_on_gpu() && ranks > available_ranks();
    if is_skipped {
        println!("skipped: {ranks} ranks need more GPUs");
    }
    is_skipped
}

/// A child that plays a role on ranks that are threads, or a child for each rank.
struct Child<'a> {
    role: &'a str,
    ranks: u32,
    variant: Variant,
    settings: &'a [(&'a str, &'a str)],
    processes: Processes<'a>,
}

/// Of what processes the ranks are.
enum Processes<'a> {
    /// All are threads of one.
    One,
    /// Each is one, on the same machine.
    Each,
    /// Each is one, on these machines.
    OnMachines(&'a [&'a str]),
}

impl<'a> Child<'a> {
    fn new(role: &'a str, ranks: u32) -> Self {
        Child { role, ranks, variant: Variant::Current, settings: &[], processes: Processes::One }
    }

    /// With another set of libraries.
    fn on(self, variant: Variant) -> Self {
        Child { variant, ..self }
    }

    /// With environment variables.
    fn with(self, settings: &'a [(&'a str, &'a str)]) -> Self {
        Child { settings, ..self }
    }

    /// With a process for each rank.
    fn in_processes(self) -> Self {
        Child { processes: Processes::Each, ..self }
    }

    /// With a process for each rank, told that it is on a machine.
    fn on_machines(self, machines: &'a [&'a str]) -> Self {
        Child { processes: Processes::OnMachines(machines), ..self }
    }

    /// Runs the child, or those of all ranks, and returns the output.
    ///
    /// # Panics
    ///
    /// A child fails, or does not end within the deadline.
    fn passes_within(self, deadline: Duration) -> String {
        let texts = wait_all(self.start(), deadline).into_iter().map(|(succeeded, text)| {
            assert!(succeeded, "{text}");
            text
        });
        texts.collect()
    }

    fn start(&self) -> Vec<process::Child> {
        let (job, port) = (new_job(), free_port());
        let settings = |rank: u32| match self.processes {
            Processes::One => Vec::new(),
            Processes::Each => vec![(JOB, format!("{job} {rank}"))],
            Processes::OnMachines(machines) => {
                let machine = machines[rank as usize];
                let local = machines[..rank as usize].iter().filter(|other| **other == machine).count();
                vec![
                    ("RANK", rank.to_string()),
                    ("LOCAL_RANK", local.to_string()),
                    ("WORLD_SIZE", self.ranks.to_string()),
                    ("MASTER_ADDR", "127.0.0.1".to_owned()),
                    ("MASTER_PORT", port.to_string()),
                    ("DCL_HOST_ID", machine.to_owned()),
                    ("NCCL_HOSTID", machine.to_owned()),
                ]
            }
        };
        let count = if matches!(self.processes, Processes::One) { 1 } else { self.ranks };
        (0..count).map(|rank| self.command().envs(settings(rank)).spawn().expect("a child starts")).collect()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["nccl::child", "--exact", "--nocapture", "--test-threads", "1"])
            .env(ROLE, self.role)
            .env(RANKS, self.ranks.to_string())
            .envs(self.settings.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !is_on_gpu() {
            command.env("LD_LIBRARY_PATH", library_dir(self.variant));
        }
        command
    }

    fn passes(self) -> String {
        self.passes_within(DEADLINE)
    }
}

/// Not a test by itself: a child runs it with a role.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let ranks: u32 = std::env::var(RANKS).expect("ranks").parse().expect("a number");
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["conformance", place, mode, quarter] => conformance(ranks, place, mode, quarter.parse().expect("a number")),
        ["captures", ref name @ ..] => captures::play(&name.join(" "), ranks),
        ["exact", ref name @ ..] => exact::play(&name.join(" "), ranks),
        ["contexts", ref name @ ..] => contexts::play(&name.join(" "), ranks),
        ["ends", name] => ends::play(name, ranks),
        ["sharing", name] => sharing::play(name, ranks),
        ["stuck", ref name @ ..] => stuck::play(&name.join(" "), ranks),
        ["windows", ref name @ ..] => windows::play(&name.join(" "), ranks),
        ["faults", ref name @ ..] => faults::play(&name.join(" "), ranks),
        ["graphs", name] => graphs::play(name, ranks),
        ["interrupts", name] => interrupts::play(name, ranks),
        ["messages", name] => messages::play(name, ranks),
        ["processes", ref name @ ..] => processes::play(&name.join(" "), ranks),
        ["differing", name] => differing::play(name, ranks),
        ["libraries", name] => libraries::play(name, ranks),
        ["dicts"] => dicts::play(ranks),
        ["wires"] => on_gpus(ranks, |communicator| {
            differences_of_layers_are_errors(&communicator)?;
            make_long_calls(&communicator);
            Ok(())
        }),
        ["waits", ref name @ ..] => waits::play(&name.join(" "), ranks),
        ["eager"] => on_gpus(ranks, |communicator| eager_calls(&communicator)),
        ["meeting"] => meets_by_what_ranks_exchange(ranks),
        _ => panic!("{role} is no role"),
    }
    if let Some(environment) = ENVIRONMENT.lock().expect("no panic").take() {
        // It fails if the communicator has ended.
        let _ended = environment.finalize();
    }
    if !is_on_gpu() && words[0] != "libraries" {
        let roles_of_faults = ["differing", "ends", "faults", "interrupts", "processes", "stuck", "waits", "windows"];
        let is_fault = roles_of_faults.contains(&words[0]) && !["ends leaving", "processes graphs"].contains(&&*role)
            || role.starts_with("graphs differing_")
            || role == "graphs ended"
            || role.starts_with("captures failing ");
        libraries::assert_nothing_is_left(is_fault);
    }
}

/// The ranks of a communicator in this process, each with a GPU of its own.
fn communicators(ranks: u32) -> Vec<Communicator> {
    let builder = Communicator::builder().backend(BackendKind::Nccl).timeout(patient(TIMEOUT));
    let made = match own_place() {
        None if std::env::var_os("MASTER_ADDR").is_some() => {
            let environment = Environment::builder().timeout(patient(TIMEOUT)).initialize();
            environment.map(|environment| {
                let communicator = environment.communicator().clone();
                *ENVIRONMENT.lock().expect("no panic") = Some(environment);
                vec![communicator]
            })
        }
        None => builder.in_process(ranks),
        Some((job, rank)) => {
            static MEETING: OnceLock<Communicator> = OnceLock::new();
            let meet = || Communicator::builder().job(job).world_size(ranks).rank(rank).connect();
            let meeting = MEETING.get_or_init(|| meet().expect("all ranks come"));
            let gpus = GpuInfo::count(DEADLINE).expect("a driver");
            // SAFETY: each rank gets what the others have given.
            unsafe {
                let builder = builder.world_size(ranks).rank(rank).device(rank % gpus);
                builder.connect_by(|own| meeting.all_gather_bytes(own)).map(|communicator| vec![communicator])
            }
        }
    };
    made.unwrap_or_else(|error| panic!("{error}"))
}

/// That of a process on one of several machines.
static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// The job and the rank of this process, if it is one rank.
fn own_place() -> Option<(String, u32)> {
    let place = std::env::var(JOB).ok()?;
    let (job, rank) = place.split_once(' ').expect("a job and a rank");
    Some((job.to_owned(), rank.parse().expect("a rank")))
}

/// Whether the ranks are threads that share a GPU, and so record no CUDA graphs.
fn threads_share_a_gpu(ranks: u32) -> bool {
    ranks > 1 && std::env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_some() && own_place().is_none()
}

/// Runs a body on ranks that are threads with a GPU each.
fn on_gpus(ranks: u32, body: impl Fn(Communicator) -> Result<()> + Send + Sync + 'static) {
    for result in on_communicators(deadline(), communicators(ranks), body) {
        result.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The stream of the communicator's GPU.
fn cuda_stream(communicator: &Communicator) -> Result<Stream> {
    match communicator.space() {
        MemorySpace::Cuda(ordinal) => Stream::cuda(ordinal),
        _ => panic!("the communicator is not on a GPU"),
    }
}

/// `mode` says which layers reduce exactly: none (`backend`), those on an exact communicator
/// (`communicator`), or all (`layers`).
fn conformance(ranks: u32, place: &str, mode: &str, quarter: usize) {
    let place = match place {
        "host" => Place::Host,
        "own" => Place::Own,
        "symmetric" => Place::Symmetric,
        _ => panic!("{place} is no place"),
    };
    let [of_communicator, of_layers] = match mode {
        "backend" => [Determinism::Backend; 2],
        "communicator" => [Determinism::Exact, Determinism::Backend],
        "layers" => [Determinism::Backend, Determinism::Exact],
        _ => panic!("{mode} is no mode"),
    };
    on_gpus(ranks, move |communicator| {
        let communicator = communicator.with_determinism(of_communicator);
        // A call on a CUDA stream takes no host memory, so only tensors in symmetric memory are
        // enqueued.
        let stream = match place {
            Place::Symmetric => cuda_stream(&communicator)?,
            _ => Stream::inline(),
        };
        run_quarter_with(Runner::new(&communicator, place, stream)?.with_layers(of_layers), quarter);
        Ok(())
    });
}

/// A quarter of the cases in a mode on GPUs of a compute capability, with tensors at a place.
fn conforms((ranks, place, mode, variant, capability): (u32, &str, &str, Variant, &str), quarter: usize) {
    if is_on_gpu() && (ranks > available_ranks() || variant != Variant::Current || capability != "90") {
        println!("skipped: this needs the test libraries, or more GPUs");
        return;
    }
    let role = format!("conformance {place} {mode} {quarter}");
    Child::new(&role, ranks).on(variant).with(&[("FAKE_CUDA_SM", capability)]).passes_within(deadline());
}

/// How many ranks the GPUs of this machine can have.
fn available_ranks() -> u32 {
    std::env::var("DCL_TEST_GPU").ok().and_then(|ranks| ranks.parse().ok()).unwrap_or(1)
}

quarters! {
    crate::nccl::conforms;
    one_rank: (1, "own", "backend", fake_gpu::Variant::Current, "90"),
    two_ranks: (2, "own", "backend", fake_gpu::Variant::Current, "90"),
    two_ranks_on_host_tensors: (2, "host", "backend", fake_gpu::Variant::Current, "90"),
    two_ranks_enqueued_in_windows: (2, "symmetric", "backend", fake_gpu::Variant::Current, "90"),
    three_ranks_before_hopper: (3, "own", "backend", fake_gpu::Variant::Current, "80"),
    four_ranks_enqueued_with_an_old_nccl: (4, "symmetric", "backend", fake_gpu::Variant::Old, "90"),
    one_exact_rank: (1, "symmetric", "layers", fake_gpu::Variant::Current, "90"),
    two_exact_ranks: (2, "own", "communicator", fake_gpu::Variant::Current, "90"),
    three_exact_ranks_before_hopper: (3, "symmetric", "layers", fake_gpu::Variant::Current, "80"),
    four_exact_ranks_with_an_old_nccl: (4, "symmetric", "communicator", fake_gpu::Variant::Old, "86"),
    five_exact_ranks: (5, "host", "layers", fake_gpu::Variant::Current, "90"),
    six_exact_ranks: (6, "symmetric", "communicator", fake_gpu::Variant::Current, "90"),
    seven_exact_ranks_with_an_old_nccl: (7, "own", "layers", fake_gpu::Variant::Old, "80"),
    eight_exact_ranks: (8, "symmetric", "communicator", fake_gpu::Variant::Current, "90"),
}

/// Long tensors with a transport type, which ranks reduce by shares.
#[test]
fn long_tensors_have_the_hosts_bits() {
    for ranks in [2, 3] {
        if needs_more_gpus(ranks) {
            return;
        }
        Child::new("wires", ranks).passes();
    }
}

/// Eager calls on slices, and asynchronous ones on buffers in the GPU's memory.
fn eager_calls(communicator: &Communicator) -> Result<()> {
    use distcollective::Buffer;
    use distcollective::collective::Collective;
    use distcollective::comm::Operands;
    let (rank, n) = (communicator.rank().0, communicator.world_size());
    let mut x = [rank as f32, 1.0];
    communicator.all_reduce(&mut x, ReduceOperation::Sum)?;
    assert_eq!(x, [(n * (n - 1) / 2) as f32, n as f32]);
    let mut all = vec![0i64; n as usize];
    communicator.all_gather(&[i64::from(rank)], &mut all)?;
    assert!(all.iter().copied().eq(0..i64::from(n)));
    communicator.barrier()?;

    let stream = cuda_stream(communicator)?;
    let mut buffer = communicator.allocate(DataType::Int32, [3])?;
    buffer.write(0, &[rank as u8 + 1, 0, 0, 0].repeat(3))?;
    let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    let work = communicator.collective_async(sum, Operands::in_place(buffer), &stream)?;
    let buffer = work.wait()?.output.expect("the work hands it back");
    let mut bytes = [0; 12];
    buffer.read(0, &mut bytes)?;
    assert_eq!(bytes[..4], (n * (n + 1) / 2).to_le_bytes());
    let mut copied = bytes;
    copied.fill(0);
    buffer.try_clone()?.read(0, &mut copied)?;
    assert_eq!(copied, bytes);
    assert!(buffer.as_bytes().is_err_and(|error| error.to_string().contains("the memory of GPU")));

    awaits_work_on_gpus(communicator, &stream)?;

    // The stream keeps work that is dropped until it is done.
    let forgotten = Buffer::zeroed_in(communicator.space(), DataType::Float16, [1 << 16])?;
    drop(communicator.collective_async(sum, Operands::in_place(forgotten), &stream)?);
    stream.synchronize()?;

    // The rank's own mistake: the other ranks do not learn of it.
    let host = Operands::in_place(Buffer::zeroed(DataType::Float32, [1])?);
    let failed = communicator.collective_async(sum, host, &stream);
    let error = failed.expect_err("host memory on a CUDA stream").error.to_string();
    assert!(error.contains("on a CUDA stream has its tensors in the memory of GPU"), "{error}");

    refuses_the_stream_of_another_gpu(communicator)?;

    let halves: Vec<Rank> = (0..n).filter(|r| r % 2 == rank % 2).rev().map(Rank).collect();
    let group = communicator.split(Some(rank % 2), -(rank as i32))?.expect("every rank has a color");
    let mut first = [rank as i32];
    group.broadcast(&mut first, Rank(0))?;
    assert_eq!(first[0] as u32, halves[0].0);
    assert_eq!(group.global_rank(group.rank())?, communicator.rank());
    group.finalize()?;
    // A group without ranks is a collective call too, and so is one that some are not in.
    assert!(communicator.new_group([] as [Rank; 0])?.is_none());
    let without_last = communicator.split((rank + 1 < n).then_some(0), 0)?;
    assert_eq!(without_last.map(|group| group.world_size()), (rank + 1 < n).then_some(n - 1));
    // This color does not fit into NCCL's signed colors.
    let all = communicator.split(Some(u32::MAX), i32::MAX - rank as i32)?.expect("a color");
    assert_eq!((all.rank().0, all.global_rank(all.rank())?), (n - 1 - rank, communicator.rank()));
    let mut own = [all.rank().0 as i32];
    all.all_reduce(&mut own, ReduceOperation::Max)?;
    assert_eq!(own[0] as u32, n - 1);
    communicator.clone().finalize()
}

/// Asynchronous forms on host memory and in `async` functions, barriers, bytes.
fn awaits_work_on_gpus(communicator: &Communicator, stream: &Stream) -> Result<()> {
    use distcollective::Buffer;
    use distcollective::collective::Collective;
    use distcollective::comm::Operands;
    let n = communicator.world_size();
    // NCCL adds floats in another order.
    eager::asynchronous_forms_match_the_reference(communicator, &[DataType::Int32, DataType::Bool]);
    eager::bytes_arrive(communicator, 5000);
    eager::lists_match_on_host_tensors(communicator);
    gathers_lists_of_the_gpu(communicator, stream)?;
    for stream in [&Stream::inline(), stream] {
        uneven::forms_match(communicator, Place::Own, stream, 60);
    }
    communicator.monitored_barrier(TIMEOUT)?;
    communicator.enqueue_barrier(stream)?.wait()?;

    let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    for round in 0..20u8 {
        let mut buffer = Buffer::zeroed_in(communicator.space(), DataType::Uint8, [1])?;
        buffer.write(0, &[round])?;
        let work = communicator.collective_async(sum, Operands::in_place(buffer), stream)?;
        assert!(work.exception().is_none());
        let buffer = eager::block_on(work.into_future())?.output.expect("in place");
        let mut got = [0];
        buffer.read(0, &mut got)?;
        assert_eq!(got, [round * n as u8]);
    }
    // A future that is dropped leaves nothing behind that asks for ever.
    let mut dropped = communicator.enqueue_barrier(stream)?.into_future();
    let waker = std::task::Waker::noop();
    let _ = std::pin::Pin::new(&mut dropped).poll(&mut std::task::Context::from_waker(waker));
    drop(dropped);
    stream.synchronize()
}

/// The list forms on tensors in the GPU's memory, enqueued and blocking.
fn gathers_lists_of_the_gpu(communicator: &Communicator, stream: &Stream) -> Result<()> {
    use distcollective::Buffer;
    use distcollective::collective::Collective;
    use distcollective::comm::Operands;
    let (n, rank) = (communicator.world_size() as u8, communicator.rank().0 as u8);
    let tensor = |value: u8| -> Result<Buffer> {
        let mut tensor = Buffer::zeroed_in(communicator.space(), DataType::Uint8, [3])?;
        tensor.write(0, &[value; 3])?;
        Ok(tensor)
    };
    let first = |tensor: &Buffer| -> Result<u8> {
        let mut bytes = [0; 3];
        tensor.read(0, &mut bytes)?;
        Ok(bytes[0])
    };
    let zeros = || (0..n).map(|_| tensor(99)).collect::<Result<Vec<_>>>();
    let operands = Operands::with_list(tensor(rank)?, None, zeros()?);
    let gathered = communicator.collective_async(Collective::AllGather, operands, stream)?.wait()?;
    let gathered = gathered.list.expect("it comes back");
    for (value, tensor) in gathered.iter().enumerate() {
        assert_eq!(first(tensor)?, value as u8);
    }
    let root = Rank(u32::from(n) - 1);
    let sent = if communicator.rank() == root { gathered } else { Vec::new() };
    let operands = Operands::with_list(None, tensor(77)?, sent);
    let scattered = communicator.collective_async(Collective::Scatter { root }, operands, stream)?.wait()?;
    assert_eq!(first(&scattered.output.expect("it comes back"))?, rank);
    let mut list = zeros()?;
    communicator.all_gather_list(&tensor(rank)?, &mut list)?;
    assert_eq!(first(&list[usize::from(n) - 1])?, n - 1);
    // This rank has no list, and its output is where an enqueued call does not reach it.
    let elsewhere = Operands::with_list(None, Buffer::zeroed(DataType::Uint8, [3])?, Vec::new());
    let other = Collective::Scatter { root: Rank(u32::from(rank + 1) % u32::from(n)) };
    let refused = communicator.collective_async(other, elsewhere, stream);
    assert!(refused.is_err(), "host memory on a CUDA stream, or on one rank no list");
    Ok(())
}

/// `Communicator::enqueue` checks its arguments first, so the communicator still works.
fn refuses_the_stream_of_another_gpu(communicator: &Communicator) -> Result<()> {
    let MemorySpace::Cuda(ordinal) = communicator.space() else { panic!("the communicator is not on a GPU") };
    let n = communicator.world_size();
    let (Ok(stream), true) = (Stream::cuda(ordinal ^ 1), n > 1) else { return Ok(()) };
    let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    let x = [0i32];
    let operands = RawOperands::Pair { input: x.as_ptr().cast(), output: x.as_ptr().cast_mut().cast() };
    // SAFETY: the call is refused, so no address is used.
    let work = unsafe { communicator.enqueue(sum, DataType::Int32, 1, operands, &stream) };
    let error = work.map(drop).expect_err("a stream of another GPU").to_string();
    assert!(error.contains(&format!("the stream is one of GPU {}", ordinal ^ 1)), "{error}");
    Ok(())
}

/// Ranks on GPUs meet by bytes that they exchange. Those that ask for other backends are told.
fn meets_by_what_ranks_exchange(ranks: u32) {
    let exchange = &Exchange::new(ranks as usize);
    let connect = |rank: u32, backend| {
        let builder = Communicator::builder().world_size(ranks).rank(rank).timeout(patient(TIMEOUT));
        // SAFETY: each rank gets what the others have given.
        unsafe { builder.backend(backend).device(rank).connect_by(|own| exchange.bring(rank as usize, own)) }
    };
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            scope.spawn(move || {
                let communicator = connect(rank, BackendKind::Nccl).expect("all come");
                assert_eq!(communicator.space(), MemorySpace::Cuda(rank));
                let mut x = [rank + 1];
                communicator.all_reduce(&mut x, ReduceOperation::Sum).expect("a sum");
                assert_eq!(x, [(1..=ranks).sum::<u32>()]);
                // They are on one machine, where they have a control communicator.
                communicator.monitored_barrier(patient(TIMEOUT)).expect("all come");
                let mixed = connect(rank, if rank == 0 { BackendKind::Nccl } else { BackendKind::Auto });
                let error = mixed.map(drop).expect_err("ranks differ").to_string();
                assert!(error.starts_with("ranks want different backends: rank 0 asks for \"nccl\""), "{error}");
            });
        }
    });
}

#[test]
fn ranks_on_gpus_meet_by_what_they_exchange() {
    if !needs_more_gpus(2) {
        Child::new("meeting", 2).passes();
    }
}

#[test]
fn eager_calls_on_slices_and_on_buffers_of_the_gpus() {
    for ranks in [1, 3] {
        if needs_more_gpus(ranks) {
            return;
        }
        Child::new("eager", ranks).passes();
    }
}

#[test]
fn ranks_may_share_a_gpu() {
    if needs_test_libraries() {
        return;
    }
    let settings = &[("FAKE_CUDA_DEVICES", "1"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    for role in ["eager", "contexts graphs", "contexts capture", "contexts networks 5"] {
        Child::new(role, 3).with(settings).passes();
    }
}
