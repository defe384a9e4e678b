//! The plan of an engine, run on files or zeros, and how long its layers took.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distcollective::engine::{IoMode, IoTensor};
use distcollective::tensor::{TensorView, TensorViewMut};
use distcollective::{Buffer, Communicator, Engine, ExecutionContext};

use super::Arguments;
use crate::output::Failure;
use crate::{npy, progress, rank_files};

/// The widest column of names. Longer names stand out of it.
const WIDEST_NAME: usize = 40;

/// The times of one layer on one rank: the sums of all runs.
#[derive(Clone)]
struct Row {
    layer: String,
    duration: Duration,
    /// None if the backend does not tell.
    waited: Option<Duration>,
    bytes: [usize; 2],
}

/// The files of a tensor, one for each rank.
type Files = HashMap<String, Vec<PathBuf>>;

/// Runs all ranks, and gives the table of their times.
pub(super) fn run_ranks(plan: &Path, arguments: &Arguments) -> Result<String, Failure> {
    let (n, runs) = (arguments.n, arguments.runs.unwrap_or(10));
    let backend = arguments.backend.resolve(n)?;
    let timeout = crate::timeout(arguments.timeout)?;
    let engine = Engine::load(plan)?;
    // Ranks may have the same input.
    let input_files = |pattern: &str| Ok((0..n).map(|rank| rank_files::of_rank(pattern, rank)).collect());
    let inputs = named_files(&engine, IoMode::Input, &arguments.input, input_files)?;
    let output_files = |pattern: &str| rank_files::of_ranks("--output", pattern, n);
    let outputs = named_files(&engine, IoMode::Output, &arguments.output, output_files)?;
    let all = |files: &Files| files.values().flatten().cloned().collect::<Vec<_>>();
    rank_files::check_apart(&[all(&inputs), vec![plan.to_owned()]].concat(), &all(&outputs))?;

    let inputs = (0..n as usize).map(|rank| read_inputs(&engine, &inputs, rank)).collect::<Result<Vec<_>, _>>()?;
    let builder = Communicator::builder().backend(backend).timeout(timeout);
    let run = |communicator: Communicator| run_rank(&engine, &communicator, &inputs[communicator.rank().index()], runs);
    let results = builder.spawn(n, run)?;
    for (index, io) in of_mode(&engine, IoMode::Output).enumerate() {
        for (file, (_, made)) in outputs.get(&io.name).into_iter().flatten().zip(&results) {
            npy::write(file, &made[index], &progress::bar("writing", made[index].byte_len() as u64))?;
        }
    }
    let rows: Vec<Vec<Row>> = results.into_iter().map(|(rows, _)| rows).collect();
    Ok(table(&format!("{}: {n} ranks, {backend}, means of {runs} runs", plan.display()), &rows, runs))
}

fn of_mode(engine: &Engine, mode: IoMode) -> impl Iterator<Item = &IoTensor> {
    engine.io_tensors().iter().filter(move |io| io.mode == mode)
}

/// Reads options of the form NAME=FILE. A name may contain `=`.
fn named_files(
    engine: &Engine,
    mode: IoMode,
    given: &[String],
    files: impl Fn(&str) -> Result<Vec<PathBuf>, Failure>,
) -> Result<Files, Failure> {
    let (option, what) = if mode == IoMode::Input { ("--input", "inputs") } else { ("--output", "outputs") };
    let mut named = Files::new();
    let mut seen = HashSet::new();
    for given in given {
        let pattern_of = |io: &IoTensor| Some((io.name.clone(), given.strip_prefix(&io.name)?.strip_prefix('=')?));
        let found = of_mode(engine, mode).filter_map(pattern_of).max_by_key(|(name, _)| name.len());
        let Some((name, pattern)) = found else {
            let names: Vec<_> = of_mode(engine, mode).map(|io| format!("{:?}", io.name)).collect();
            let names = names.join(", ");
            return Err(Failure::usage(format!("{option} {given:?} is not NAME=FILE; the plan's {what} are {names}")));
        };
        let files = files(pattern)?;
        // Only outputs are written.
        if let Some(twice) = files.iter().find(|file| mode == IoMode::Output && !seen.insert((*file).clone())) {
            return Err(Failure::usage(format!("{option} names {} twice", twice.display())));
        }
        if named.insert(name.clone(), files).is_some() {
            return Err(Failure::usage(format!("{option} {name:?} is given twice")));
        }
    }
    Ok(named)
}

/// The inputs of a rank, in the engine's order, for which there are files.
fn read_inputs(engine: &Engine, files: &Files, rank: usize) -> Result<Vec<Option<Buffer>>, String> {
    let read = |io: &IoTensor| {
        let Some(file) = files.get(&io.name).map(|files| &files[rank]) else { return Ok(None) };
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        npy::read(file, Some(io.data_type), &progress::bar("reading", bytes)).map(Some)
    };
    of_mode(engine, IoMode::Input).map(read).collect()
}

/// Chooses the first optimization profile that the inputs fit. An input without a file has the
/// profile's usual shape.
fn set_shapes(context: &mut ExecutionContext, inputs: &[Option<Buffer>]) -> distcollective::Result<()> {
    let engine = context.engine().clone();
    let mut set = |profile: usize| {
        let shape = |(io, input): (&IoTensor, &Option<Buffer>)| match input {
            Some(input) => Ok((io.name.clone(), input.shape().to_dims())),
            None => Ok((io.name.clone(), engine.profile_shapes(&io.name, profile)?[1].to_dims())),
        };
        let shapes = of_mode(&engine, IoMode::Input).zip(inputs).map(shape);
        let shapes = shapes.collect::<distcollective::Result<Vec<_>>>()?;
        context.set_optimization_profile(profile)?;
        context.set_input_shapes(&shapes.iter().map(|(name, dims)| (&**name, *dims)).collect::<Vec<_>>())
    };
    let Err(error) = set(0) else { return Ok(()) };
    if (1..engine.optimization_profile_count()).any(|profile| set(profile).is_ok()) { Ok(()) } else { Err(error) }
}

/// Runs the engine, and gives the times of its layers and the outputs of the last run. The first
/// run, in which memory is touched for the first time, does not count.
fn run_rank(
    engine: &Engine,
    communicator: &Communicator,
    inputs: &[Option<Buffer>],
    runs: u32,
) -> distcollective::Result<(Vec<Row>, Vec<Buffer>)> {
    let mut context = engine.create_execution_context()?;
    context.set_communicator(communicator)?;
    set_shapes(&mut context, inputs)?;
    let zeros = |io: &IoTensor| Buffer::zeroed(io.data_type, context.tensor_shape(&io.name)?);
    let made = of_mode(engine, IoMode::Input).zip(inputs);
    let made = made.map(|(io, input)| if input.is_none() { zeros(io).map(Some) } else { Ok(None) });
    let made = made.collect::<distcollective::Result<Vec<_>>>()?;
    let inputs: Vec<&Buffer> =
        inputs.iter().zip(&made).filter_map(|(input, made)| input.as_ref().or(made.as_ref())).collect();
    let outputs = of_mode(engine, IoMode::Output).map(zeros);
    let mut outputs = outputs.collect::<distcollective::Result<Vec<_>>>()?;
    let told: Arc<Mutex<Vec<Row>>> = Arc::default();
    let list = Arc::clone(&told);
    context.set_profiler(Some(Arc::new(move |time| {
        list.lock().unwrap_or_else(PoisonError::into_inner).push(Row {
            layer: time.layer.to_owned(),
            duration: time.duration,
            waited: time.waited,
            bytes: [time.input_bytes, time.output_bytes],
        });
    })));
    let mut sums: Vec<Row> = Vec::new();
    for run in 0..=runs {
        let inputs = of_mode(engine, IoMode::Input).zip(&inputs);
        let inputs = inputs.map(|(io, input)| (&*io.name, Ok(TensorView::from(*input))));
        let outputs = of_mode(engine, IoMode::Output).zip(&mut outputs);
        let outputs = outputs.map(|(io, output)| (&*io.name, Ok(TensorViewMut::from(output))));
        context.execute(inputs, outputs)?;
        // Each run has the same layers.
        let times = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
        match run {
            0 => {}
            1 => sums = times,
            _ => {
                for (sum, time) in sums.iter_mut().zip(times) {
                    sum.duration += time.duration;
                    sum.waited = sum.waited.zip(time.waited).map(|(sum, waited)| sum + waited);
                }
            }
        }
    }
    Ok((sums, outputs))
}

/// The layers of all ranks. Names may come from anyone, so they are escaped.
fn table(title: &str, ranks: &[Vec<Row>], runs: u32) -> String {
    let name = |row: &Row| row.layer.escape_debug().to_string();
    let width = ranks.iter().flatten().map(|row| name(row).chars().count().min(WIDEST_NAME)).max();
    let width = width.unwrap_or(0).max("layer".len());
    let line = |name: &str, rank: &str, cells: [&str; 5]| {
        let cells: String = cells.iter().map(|cell| format!(" {cell:>12}")).collect();
        format!("{name:<width$} {rank:>5}{cells}\n")
    };
    let mut text = format!("{title}\n");
    text += &line("layer", "rank", ["time (us)", "wait (us)", "move (us)", "input (B)", "output (B)"]);
    for (layer, first) in ranks[0].iter().enumerate() {
        for (rank, rows) in ranks.iter().enumerate() {
            let Some(row) = rows.get(layer) else { continue };
            let moved = row.waited.map(|waited| row.duration.saturating_sub(waited));
            let times = [Some(row.duration), row.waited, moved].map(|sum| match sum {
                Some(sum) => format!("{:.1}", sum.as_nanos() as f64 / 1e3 / f64::from(runs)),
                None => "-".to_owned(),
            });
            let [time, wait, moved] = &times;
            let [input, output] = row.bytes.map(|bytes| bytes.to_string());
            let name = if rank == 0 { name(first) } else { String::new() };
            text += &line(&name, &rank.to_string(), [time, wait, moved, &input, &output]);
        }
    }
    text
}
