//! `distcollective run PLAN`: runs an engine's plan, and prints how long its layers took.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distcollective::context::LayerTime;
use distcollective::engine::IoMode;
use distcollective::tensor::{Dims, TensorView, TensorViewMut};
use distcollective::{Buffer, Communicator, Engine};

use crate::output::{Ended, Failure, print};
use crate::run::Arguments;
use crate::{npy, progress, rank_files};

/// The widest column of names. Longer names stand out of it.
const WIDEST_NAME: usize = 40;

/// The times of one layer on one rank, one of each run.
struct Row {
    layer: String,
    durations: Vec<Duration>,
    /// Empty if the backend does not tell.
    waited: Vec<Duration>,
    bytes: [usize; 2],
}

pub fn run(plan: &Path, arguments: &Arguments) -> Ended {
    let (n, runs) = (arguments.n, arguments.runs.unwrap_or(10));
    // Ranks may have the same input.
    let input_files = |pattern: &str| Ok((0..n).map(|rank| rank_files::of_rank(pattern, rank)).collect());
    let inputs = named_files("--input", &arguments.input, input_files)?;
    let outputs = named_files("--output", &arguments.output, |pattern| rank_files::of_ranks("--output", pattern, n))?;
    let backend = arguments.backend.resolve(n)?;
    let timeout = crate::timeout(arguments.timeout)?;
    let all = |files: &HashMap<String, Vec<PathBuf>>| files.values().flatten().cloned().collect::<Vec<_>>();
    rank_files::check_apart(&all(&inputs), &all(&outputs))?;
    let engine = Engine::load(plan)?;
    for (files, mode, what) in [(&inputs, IoMode::Input, "input"), (&outputs, IoMode::Output, "output")] {
        for name in files.keys() {
            if engine.io_tensor(name)?.mode != mode {
                return Err(Failure::usage(format!("--{what} {name:?}: the plan has no {what} of this name")));
            }
        }
    }
    let inputs =
        (0..n as usize).map(|rank| read_inputs(&engine, &inputs, rank)).collect::<Result<Vec<_>, Failure>>()?;
    let builder = Communicator::builder().backend(backend).timeout(timeout);
    let run = |communicator: Communicator| {
        let inputs = &inputs[communicator.rank().index()];
        run_rank(&engine, &communicator, inputs, runs)
    };
    let results = builder.spawn(n, run)?;
    for (name, files) in &outputs {
        let index = engine.io_index(name)? - engine.io_tensors().iter().filter(|io| io.mode == IoMode::Input).count();
        for (file, (_, made)) in files.iter().zip(&results) {
            npy::write(file, &made[index], &progress::bar("writing", made[index].byte_len() as u64))?;
        }
    }
    let rows: Vec<Vec<Row>> = results.into_iter().map(|(rows, _)| rows).collect();
    print(table(&format!("{}: {n} ranks, {backend}, medians of {runs} runs", plan.display()), &rows));
    Ok(ExitCode::SUCCESS)
}

/// Reads options of the form NAME=FILE.
fn named_files(
    option: &str,
    given: &[String],
    files: impl Fn(&str) -> Result<Vec<PathBuf>, Failure>,
) -> Result<HashMap<String, Vec<PathBuf>>, Failure> {
    let mut names = HashSet::new();
    let file_of = |given: &String| {
        let Some((name, pattern)) = given.split_once('=') else {
            let error = format!("{option} {given:?} is not NAME=FILE; NAME is that of a tensor of the plan");
            return Err(Failure::usage(error));
        };
        if !names.insert(name.to_owned()) {
            return Err(Failure::usage(format!("{option} {name:?} is given twice")));
        }
        Ok((name.to_owned(), files(pattern)?))
    };
    given.iter().map(file_of).collect()
}

/// A rank's inputs, in the engine's order: zeros where no file is given.
fn read_inputs(engine: &Engine, files: &HashMap<String, Vec<PathBuf>>, rank: usize) -> Result<Vec<Buffer>, Failure> {
    let inputs = engine.io_tensors().iter().filter(|io| io.mode == IoMode::Input);
    let read = |io: &distcollective::engine::IoTensor| match files.get(&io.name) {
        Some(files) => {
            let bytes = files[rank].metadata().map_or(0, |metadata| metadata.len());
            Ok(npy::read(&files[rank], Some(io.data_type), &progress::bar("reading", bytes))?)
        }
        None => {
            let [_, shape, _] = engine.profile_shapes(&io.name, 0)?;
            Ok(Buffer::zeroed(io.data_type, shape)?)
        }
    };
    inputs.map(read).collect()
}

/// Runs the engine, and gives the times of its layers and the outputs of the last run.
fn run_rank(
    engine: &Engine,
    communicator: &Communicator,
    inputs: &[Buffer],
    runs: u32,
) -> distcollective::Result<(Vec<Row>, Vec<Buffer>)> {
    let mut context = engine.create_execution_context()?;
    context.set_communicator(communicator)?;
    let (inputs_of, outputs_of): (Vec<_>, Vec<_>) = engine.io_tensors().iter().partition(|io| io.mode == IoMode::Input);
    let shapes: Vec<(&str, Dims)> =
        inputs_of.iter().zip(inputs).map(|(io, input)| (&*io.name, input.shape().to_dims())).collect();
    context.set_input_shapes(&shapes)?;
    let zeros = outputs_of.iter().map(|io| Buffer::zeroed(io.data_type, context.tensor_shape(&io.name)?));
    let mut outputs = zeros.collect::<distcollective::Result<Vec<_>>>()?;
    let rows: Arc<Mutex<Vec<Row>>> = Arc::default();
    let told = Arc::clone(&rows);
    context.set_profiler(Some(Arc::new(move |time| {
        note(&mut told.lock().unwrap_or_else(PoisonError::into_inner), time);
    })));
    for _ in 0..runs {
        let inputs = inputs_of.iter().zip(inputs).map(|(io, input)| (&*io.name, Ok(TensorView::from(input))));
        let outputs = outputs_of.iter().zip(&mut outputs);
        let outputs = outputs.map(|(io, output)| (&*io.name, Ok(TensorViewMut::from(output))));
        context.execute(inputs, outputs)?;
    }
    let rows = std::mem::take(&mut *rows.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((rows, outputs))
}

/// Adds a time to the row of its layer.
fn note(rows: &mut Vec<Row>, time: &LayerTime<'_>) {
    let row = match rows.iter_mut().position(|row| row.layer == time.layer) {
        Some(index) => &mut rows[index],
        None => {
            rows.push(Row {
                layer: time.layer.to_owned(),
                durations: Vec::new(),
                waited: Vec::new(),
                bytes: [time.input_bytes, time.output_bytes],
            });
            rows.last_mut().expect("one was added")
        }
    };
    row.durations.push(time.duration);
    row.waited.extend(time.waited);
}

/// The layers of all ranks. Names may come from anyone, so they are escaped.
fn table(title: &str, ranks: &[Vec<Row>]) -> String {
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
            let micros = |times: Vec<Duration>| match median(times) {
                Some(time) => format!("{:.1}", time.as_nanos() as f64 / 1e3),
                None => "-".to_owned(),
            };
            let moves =
                row.durations.iter().zip(&row.waited).map(|(duration, waited)| duration.saturating_sub(*waited));
            let [input, output] = row.bytes.map(|bytes| bytes.to_string());
            let cells = [row.durations.clone(), row.waited.clone(), moves.collect()].map(micros);
            let [time, wait, moved] = &cells;
            let name = if rank == 0 { name(first) } else { String::new() };
            text += &line(&name, &rank.to_string(), [time, wait, moved, &input, &output]);
        }
    }
    text
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied()
}
