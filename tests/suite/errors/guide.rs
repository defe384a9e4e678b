//! The texts that the guides to errors quote. For each one a program here has to say it.

use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use distcollective::interrupt::set_interrupt_hook;
use distcollective::log::{LogLevel, set_log_handler};
use distcollective::network::{Plugin, PluginCall};
use distcollective::tensor_dict::BroadcastOptions;
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, DistCollectiveLayer, Engine, Environment, Error, ErrorKind,
    Network, Rank, ReduceOperation, Result, TensorDict, inputs, outputs,
};
use fake_gpu::{Variant, library_dir};
#[cfg(feature = "safetensors")]
use test_support::Folder;
use test_support::{product, root};

use crate::processes::{STUCK, new_job};
use crate::ranks::{DEADLINE, on_ranks, wait_all};

const SHORT: Duration = Duration::from_millis(100);

/// A child's rank, and the job that it takes part in.
const RANK: &str = "DCL_TEST_GUIDE_RANK";
const JOB: &str = "DCL_TEST_GUIDE_JOB";

/// What is interrupted in a child.
const INTERRUPTED: &str = "DCL_TEST_GUIDE_INTERRUPTED";

/// What a program says. A child's kind is not known.
struct Said {
    kind: Option<ErrorKind>,
    text: String,
}

impl From<Error> for Said {
    fn from(error: Error) -> Self {
        Said { kind: Some(error.kind()), text: error.to_string() }
    }
}

/// A quoted text, and the kind beside it if there is one. `…` stands for text that is left out.
struct Quote {
    kind: Option<String>,
    text: String,
}

impl Quote {
    fn fits(&self, said: &Said) -> bool {
        let has_kind = match (&self.kind, said.kind) {
            (Some(quoted), Some(kind)) => *quoted == format!("{kind:?}"),
            _ => true,
        };
        let mut parts = self.text.split('…');
        let mut rest = parts.next().and_then(|first| said.text.strip_prefix(first.trim_end()));
        for part in parts {
            let part = part.trim();
            rest = rest.and_then(|rest| rest.find(part).map(|at| &rest[at + part.len()..]));
        }
        has_kind && rest.is_some_and(|rest| rest.is_empty() || self.text.ends_with('…'))
    }
}

/// The texts in the columns "example" and "text" of the guides' tables, and the lines of their
/// blocks of text.
fn quotes() -> Vec<Quote> {
    let read = |name: &str| std::fs::read_to_string(root().join("docs/src").join(name)).expect("the guide");
    let guide = ["errors.md", "waiting.md", "requests.md"].map(read).concat();
    let mut columns = Vec::new();
    let mut quotes = Vec::new();
    let mut is_block = false;
    for line in guide.lines() {
        if line.starts_with("```") {
            is_block = line == "```text";
        } else if is_block {
            quotes.push(Quote { kind: None, text: line.to_owned() });
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            columns.clear();
        } else if columns.is_empty() {
            columns = cells;
        } else {
            let cell = |name: &str| columns.iter().position(|column| *column == name).map(|column| cells[column]);
            let code = |cell: &str| cell.strip_prefix('`').and_then(|text| text.strip_suffix('`')).map(str::to_owned);
            let text = cell("example").or(cell("text")).and_then(code);
            quotes.extend(text.map(|text| Quote { kind: cell("kind").and_then(code), text }));
        }
    }
    quotes
}

fn one_layer(dims: &[i64], layer: impl Into<DistCollectiveLayer>) -> Result<Engine> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, dims)?;
    let mut layer = layer.into();
    layer.set_name("grad_sync");
    let y = network.add(layer, x)?;
    network.mark_output(y, "y")?;
    network.build()
}

/// Mistakes in one rank's own arguments.
fn before_anything_runs() -> Result<Vec<Error>> {
    let rank_0 = Communicator::builder().in_process(2)?.remove(0);
    let sum = || DistCollective::all_reduce(ReduceOperation::Sum);
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [-1, 2])?;
    network.set_optimization_profile(x, [2, 2], [4, 2], [8, 2])?;
    let y = network.add(sum().nb_rank(1), x)?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    let outside_the_profile = context.set_input_shape("x", [9, 2]);
    context.set_input_shape("x", [4, 2])?;
    let failed = [
        rank_0.broadcast(&mut [0f32], Rank(7)),
        one_layer(&[10, 8], DistCollective::reduce_scatter(ReduceOperation::Sum).nb_rank(4)).map(drop),
        outside_the_profile,
        context.execute(inputs!["x" => &[0i32; 8]], outputs!["y" => &mut [0f32; 8]]),
        one_layer(&[4], sum().nb_rank(2))?
            .create_execution_context()?
            .execute(inputs!["x" => &[0f32; 4]], outputs!["y" => &mut [0f32; 4]]),
    ];
    Ok(failed.into_iter().filter_map(Result::err).collect())
}

/// The errors of all ranks, which are threads.
fn errors(n: u32, body: impl Fn(&Communicator) -> Result<()> + Send + Sync + 'static) -> Vec<Error> {
    on_ranks(n, move |communicator| body(&communicator)).into_iter().filter_map(Result::err).collect()
}

/// Waits until the communicator has ended.
fn wait_for_the_end(communicator: &Communicator) {
    while communicator.check().is_ok() {
        std::thread::yield_now();
    }
}

/// Sets an engine's communicator. Every rank has an engine of its own.
fn set_communicator(communicator: &Communicator, reduce_op: ReduceOperation, nb_rank: u32) -> Result<()> {
    one_layer(&[4], DistCollective::all_reduce(reduce_op).nb_rank(nb_rank))?
        .create_execution_context()?
        .set_communicator(communicator)
}

fn between_threads() -> Vec<Error> {
    [
        errors(2, |communicator| set_communicator(communicator, ReduceOperation::Sum, 4)),
        errors(2, |communicator| match communicator.rank().0 {
            0 => set_communicator(communicator, ReduceOperation::Sum, 2),
            _ => set_communicator(communicator, ReduceOperation::Max, 2),
        }),
        errors(2, |communicator| match communicator.rank().0 {
            0 => communicator.all_reduce(&mut [0f32; 12], ReduceOperation::Sum),
            _ => communicator.broadcast(&mut [0f32; 12], Rank(0)),
        }),
        // Rank 1 comes when rank 0 has failed.
        errors(2, |communicator| {
            (0..3).try_for_each(|_| communicator.barrier())?;
            if communicator.rank() == Rank(1) {
                wait_for_the_end(communicator);
            }
            communicator.with_timeout(SHORT).all_reduce(&mut [0f32; 12], ReduceOperation::Sum)
        }),
        errors(3, |communicator| match communicator.rank().0 {
            0 => communicator.all_reduce(&mut [0f32; 12], ReduceOperation::Sum),
            1 => {
                wait_for_the_end(communicator);
                Ok(())
            }
            _ => Ok(()),
        }),
        errors(3, |communicator| match communicator.rank().0 {
            0 => communicator.monitored_barrier(SHORT),
            _ => {
                wait_for_the_end(communicator);
                Ok(())
            }
        }),
        errors(3, |communicator| match communicator.new_group([2, 0])? {
            Some(group) => group.group_rank(1).map(drop),
            None => Ok(()),
        }),
        errors(3, |communicator| match communicator.rank().0 {
            2 => communicator.abort("the tokenizer failed"),
            _ => communicator.barrier(),
        }),
        errors(2, run_a_plugin_that_fails_on_rank_1),
        errors(2, |communicator| {
            let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2);
            let mut context = one_layer(&[4], sum)?.create_execution_context()?;
            context.set_communicator(communicator)?;
            match communicator.rank().0 {
                0 => context.execute(inputs!["x" => &[0f32; 4]], outputs!["y" => &mut [0f32; 4]]),
                _ => context.execute(inputs!["x" => &[0i32; 4]], outputs!["y" => &mut [0f32; 4]]),
            }
        }),
        errors(2, |communicator| {
            communicator.request(17, || match communicator.rank().0 {
                0 => Ok(()),
                _ => Err(Error::new(ErrorKind::InvalidArgument, "no image")),
            })
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn in_messages() -> Vec<Error> {
    let other = |communicator: &Communicator| 1 - communicator.rank().0;
    [
        errors(2, |communicator| communicator.send(&[0f32], 7, 0)),
        errors(2, |communicator| match communicator.rank().0 {
            0 => communicator.with_timeout(SHORT).recv(&mut [0f32; 4], 1, 3).map(drop),
            _ => {
                wait_for_the_end(communicator);
                Ok(())
            }
        }),
        // Rank 0 is the first to reach its deadline.
        errors(2, move |communicator| {
            let timeout = if communicator.rank() == Rank(0) { 10 * SHORT } else { DEADLINE };
            communicator.with_timeout(timeout).send(&[0f32; 100_000], other(communicator), 0)
        }),
        errors(2, |communicator| match communicator.rank().0 {
            0 => communicator.send(&[0f32; 4], 1, 0),
            _ => communicator.recv(&mut [0f32; 2], 0, 0).map(drop),
        }),
        errors(2, |communicator| match communicator.rank().0 {
            0 => communicator.recv(&mut [0f32; 4], 1, 0).map(drop),
            _ => Ok(()),
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn of_dictionaries() -> Vec<Error> {
    let broadcast = |communicator: &Communicator, options: BroadcastOptions| {
        let mut dict = TensorDict::new();
        dict.insert("w", Buffer::from(vec![0f32; 2 + communicator.rank().index()]));
        communicator.broadcast_tensor_dict(&mut dict, &options)
    };
    let options = |communicator: &Communicator, of_rank_1: BroadcastOptions| match communicator.rank().0 {
        0 => BroadcastOptions::new().shared(true),
        _ => of_rank_1,
    };
    let shared = errors(2, move |c| broadcast(c, options(c, BroadcastOptions::new())));
    let sources = errors(2, move |c| broadcast(c, BroadcastOptions::new().src(c.rank())));
    let schemas = errors(2, move |c| broadcast(c, BroadcastOptions::new()));
    [shared, sources, schemas].into_iter().flatten().collect()
}

/// A file whose last elements are missing.
#[cfg(feature = "safetensors")]
fn of_files() -> Vec<Error> {
    let folder = Folder::create();
    let path = folder.file("model.safetensors");
    let mut dict = TensorDict::new();
    dict.insert("w", Buffer::from(vec![0f32; 2]));
    dict.save(&path).expect("a file");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    file.set_len(file.metadata().expect("its length").len() - 4).expect("a shorter file");
    let error = TensorDict::load(&path).expect_err("it was cut");
    vec![error]
}

#[cfg(not(feature = "safetensors"))]
fn of_files() -> Vec<Error> {
    Vec::new()
}

#[derive(Debug)]
struct RmsNorm;

impl Plugin for RmsNorm {
    fn type_name(&self) -> &str {
        "rms_norm"
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        match call.input(0)?.as_slice::<f32>()? {
            [x] if *x < 0.0 => Err(Error::new(ErrorKind::Plugin, "x is negative")),
            _ => Ok(()),
        }
    }
}

fn run_a_plugin_that_fails_on_rank_1(communicator: &Communicator) -> Result<()> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [1])?;
    let normed = network.add_plugin("norm", RmsNorm, &[x])?;
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), normed)?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let x = if communicator.rank() == Rank(1) { -1.0f32 } else { 1.0 };
    context.execute(inputs!["x" => &[x]], outputs!["y" => &mut [0f32]])
}

/// Not a test by itself: what a child runs. Rank 1 leaves the fourth collective out. It dies: its
/// process ends, and its handle is not dropped.
#[test]
fn child() {
    let Ok(rank) = std::env::var(RANK) else { return };
    let (job, rank) = (std::env::var(JOB).expect("a job"), rank.parse::<u32>().expect("a number"));
    let communicator = Communicator::builder().job(job).world_size(2).rank(rank).timeout(DEADLINE / 2).connect();
    let communicator = communicator.expect("both ranks come");
    (0..3).try_for_each(|_| communicator.barrier()).expect("both ranks call it");
    if rank == 1 {
        std::thread::sleep(20 * SHORT);
        std::process::exit(0);
    }
    println!("\n{}", communicator.all_reduce(&mut [0f32; 12], ReduceOperation::Sum).expect_err("rank 1 dies"));
}

/// Not a test by itself: what a child runs whose waits are interrupted. Each has a process of its
/// own, because a process has one hook.
#[test]
fn interrupted_child() {
    let Ok(role) = std::env::var(INTERRUPTED) else { return };
    let error = match role.as_str() {
        "in a call" => interrupted_in_a_call(),
        "in its start" => {
            // Rank 0 is interrupted when rank 1 has come.
            static HAS_COME: AtomicBool = AtomicBool::new(false);
            let look = |_, text: &str| HAS_COME.store(HAS_COME.load(SeqCst) || text.contains("rank 1 came"), SeqCst);
            set_log_handler(LogLevel::Debug, look).expect("the first handler");
            let hook = || if HAS_COME.load(SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            set_interrupt_hook(hook).expect("the first hook");
            Environment::from_env().map(drop).expect_err("rank 2 does not come")
        }
        _ => Environment::from_env().map(drop).expect_err("rank 2 does not come"),
    };
    println!("\n{error}");
}

/// Rank 0's error, whose fourth collective waits for a rank that does not come.
fn interrupted_in_a_call() -> Error {
    let ranks = Communicator::builder().in_process(2).expect("ranks");
    std::thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| (0..3).try_for_each(|_| rank.barrier()).expect("both ranks call it"));
        }
    });
    set_interrupt_hook(|| ControlFlow::Break(())).expect("the first hook");
    ranks[0].all_reduce(&mut [0f32; 12], ReduceOperation::Sum).expect_err("rank 1 does not come")
}

fn with_interrupts() -> Vec<Command> {
    let port = (30_000 + std::process::id() % 10_000).to_string();
    let of_role = |(rank, role): (&str, &str)| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["errors::guide::interrupted_child", "--exact", "--nocapture"]).env(INTERRUPTED, role);
        command.envs([("RANK", rank), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
        command
    };
    [("0", "in a call"), ("0", "in its start"), ("1", "a peer")].map(of_role).into()
}

fn between_processes() -> Vec<Command> {
    let job = new_job();
    let of_rank = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["errors::guide::child", "--exact", "--nocapture"]).env(RANK, rank.to_string()).env(JOB, &job);
        command.env("DCL_SLOW_WARNING", (SHORT / 2).as_secs_f64().to_string());
        command
    };
    (0..2).map(of_rank).collect()
}

/// A command of the program `distcollective` with these variables only, and without CUDA.
fn program(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(product("distcollective"));
    command.args(arguments).env_clear().env("LD_LIBRARY_PATH", library_dir(Variant::NoDriver));
    command.env("DCL_TIMEOUT", "2").envs(variables.iter().copied());
    command
}

/// What ranks say that do not come together.
fn while_ranks_start() -> Vec<Command> {
    // Ranks on one machine use the port only as part of a name.
    let port = (20_000 + std::process::id() % 10_000).to_string();
    let file = format!("{}/guide-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let file = file.as_str();
    let here = |rank, job| {
        [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str()), job]
    };
    let with_secret = |rank, secret| {
        [("TRT_MY_RANK", rank), ("TRT_WORLD_SIZE", "2"), ("TRT_NCCL_ID_FILE", file), ("DCL_SECRET", secret)]
    };
    let two_launchers = [("RANK", "0"), ("WORLD_SIZE", "2"), ("PMI_RANK", "1"), ("PMI_SIZE", "4")];
    let [host, nccl] = ["host", "nccl"].map(|backend| ["env", "--backend", backend]);
    let no_nccl = library_dir(Variant::NoNccl);
    let no_nccl = no_nccl.to_str().expect("UTF-8");
    vec![
        program(&host, &here("0", ("DCL_TIMEOUT", "0.1"))),
        program(&host, &here("0", ("DCL_JOB_ID", "backends"))),
        program(&nccl, &here("1", ("DCL_JOB_ID", "backends"))),
        program(&nccl, &here("0", ("DCL_JOB_ID", "nccl"))),
        program(&nccl, &here("1", ("DCL_JOB_ID", "nccl"))),
        program(&host, &with_secret("0", "one")),
        program(&host, &with_secret("1", "two")),
        program(&host, &two_launchers),
        program(&host, &[("RANK", "0")]),
        program(&["bench", "--backend", "nccl"], &[("LD_LIBRARY_PATH", no_nccl)]),
    ]
}

#[test]
fn the_library_says_every_text_that_the_guide_quotes() {
    let commands = [between_processes(), with_interrupts(), while_ranks_start()].into_iter().flatten();
    let children = commands.map(|mut command| {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("a child starts")
    });
    let children = children.collect();
    let errors = [
        before_anything_runs().expect("no other error"),
        between_threads(),
        in_messages(),
        of_dictionaries(),
        of_files(),
    ];
    let mut said: Vec<Said> = errors.into_iter().flatten().map(Said::from).collect();
    for (_, output) in wait_all(children, DEADLINE) {
        let lines = output.lines().map(|line| line.strip_prefix("error: ").unwrap_or(line));
        // The guide shows the warning with the default of DCL_SLOW_WARNING.
        let lines = lines.map(|line| line.replace("has waited for 0 s", "has waited for 10 s"));
        said.extend(lines.map(|text| Said { kind: None, text }));
    }
    said.push(Said { kind: Some(ErrorKind::DeadlineExceeded), text: format!("rank 0: {STUCK}") });
    let missing: Vec<String> = quotes()
        .into_iter()
        .filter(|quote| cfg!(feature = "safetensors") || !quote.text.contains(".safetensors"))
        .filter(|quote| !said.iter().any(|said| quote.fits(said)))
        .map(|quote| quote.text)
        .collect();
    let said: Vec<&str> = said.iter().map(|said| said.text.as_str()).collect();
    assert!(missing.is_empty(), "no program says:\n{}\n\nThey say:\n{}", missing.join("\n"), said.join("\n"));
}

#[test]
fn a_quote_fits_what_it_leaves_out() {
    let fits = |quoted: &str, said: &str| {
        let said = Said { kind: None, text: said.to_owned() };
        Quote { kind: None, text: quoted.to_owned() }.fits(&said)
    };
    assert!(fits("a b", "a b") && fits("a …", "a b") && fits("… b", "a b") && fits("a … c", "a b c"));
    assert!(!fits("a", "a b") && !fits("b …", "a b") && !fits("… a", "a b") && !fits("a … d", "a b c"));
    let quote = Quote { kind: Some("PeerLost".to_owned()), text: "a".to_owned() };
    assert!(!quote.fits(&Said { kind: Some(ErrorKind::Aborted), text: "a".to_owned() }));
    assert!(quotes().len() >= 20, "the guide's tables were not read");
}
