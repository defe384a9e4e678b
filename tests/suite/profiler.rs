//! The times of layers that a context tells.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use distcollective::context::Profiler;
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, Error, Network, Rank, ReduceOperation, Result, Stream, inputs,
    outputs,
};

use crate::contexts::sum_engine;
use crate::ranks::on_ranks;

/// What is told of a layer.
#[derive(Clone, Debug)]
struct Told {
    layer: String,
    begin: Duration,
    duration: Duration,
    waited: Option<Duration>,
    bytes: [usize; 2],
}

/// A profiler, and what it was told.
fn profiler() -> (Profiler, Arc<Mutex<Vec<Told>>>) {
    let told: Arc<Mutex<Vec<Told>>> = Arc::default();
    let list = Arc::clone(&told);
    let profiler: Profiler = Arc::new(move |time| {
        list.lock().expect("no panic").push(Told {
            layer: time.layer.to_owned(),
            begin: time.begin,
            duration: time.duration,
            waited: time.waited,
            bytes: [time.input_bytes, time.output_bytes],
        });
    });
    (profiler, told)
}

/// x -> "cast_0" -> all_reduce "sum" among all 3 ranks -> gather "to 2" of the last two ranks -> y.
fn network(elements: i64) -> Result<Network> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float16, [elements])?;
    let x = network.add_cast(x, DataType::Float32)?;
    let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(3).named("sum"), x)?;
    let y = network.add(DistCollective::gather(Rank(2)).group([1, 2].map(Rank)).named("to 2"), sum)?;
    network.mark_output(y, "y")?;
    // A constant does nothing in a run.
    let constant = network.add_constant(&[1i32], [1])?;
    network.mark_output(constant, "constant")?;
    Ok(network)
}

/// Layers come in the order in which they run, with the bytes of what this rank reads and writes.
/// So it is for a call that waits and on a stream. Without a profiler nothing is told any more.
#[test]
fn each_run_tells_all_layers_in_order() {
    let told = on_ranks(3, |communicator| {
        let mut context = network(8)?.build()?.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let (profiler, told) = profiler();
        context.set_profiler(Some(profiler));
        let x = Buffer::zeroed(DataType::Float16, [8])?;
        let mut y = vec![0f32; 16];
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y, "constant" => &mut [0]])?;
        let mut bindings = context.create_bindings();
        bindings.bind_input("x", x)?;
        bindings.bind_output("y", Buffer::zeroed(DataType::Float32, [16])?)?;
        bindings.bind_output("constant", Buffer::zeroed(DataType::Int32, [1])?)?;
        bindings = context.enqueue(bindings, &Stream::worker()?)?.wait()?;
        context.set_profiler(None);
        bindings = context.enqueue(bindings, &Stream::inline())?.wait()?;
        // What the profiler does is no error of the run.
        context.set_profiler(Some(Arc::new(|_| panic!("the profiler panics"))));
        context.enqueue(bindings, &Stream::inline())?.wait()?;
        let told = told.lock().expect("no panic").clone();
        Ok::<_, Error>(told)
    });
    for (rank, told) in told.into_iter().enumerate() {
        let told = told.expect("a rank");
        let rows: Vec<_> = told.iter().map(|told| (told.layer.as_str(), told.bytes)).collect();
        let of_group = [[0, 0], [32, 0], [32, 64]][rank];
        let run = [("cast_0", [16, 32]), ("sum", [32, 32]), ("to 2", of_group)];
        assert_eq!(rows, [run, run].concat(), "rank {rank}");
        for pair in told.windows(2) {
            assert!(pair[0].begin + pair[0].duration <= pair[1].begin, "rank {rank}: {pair:?}");
        }
        for told in &told {
            assert!(told.waited.is_some_and(|waited| waited <= told.duration), "rank {rank}: {told:?}");
        }
        assert_eq!([told[0].waited, told[3].waited], [Some(Duration::ZERO); 2], "a cast waits for no rank");
    }
}

/// A rank that is early waits for the late one, which does not wait. Its layer begins before the
/// late one's, and ends after that.
#[test]
fn an_early_rank_has_waited_for_a_late_one() {
    let told = on_ranks(2, |communicator| {
        let mut context = sum_engine(2, 64).create_execution_context()?;
        context.set_communicator(&communicator)?;
        let (profiler, told) = profiler();
        context.set_profiler(Some(profiler));
        // In one try the machine may stop a thread anywhere.
        let deadline = Instant::now() + Duration::from_secs(8);
        loop {
            if communicator.rank() == Rank(1) {
                std::thread::sleep(Duration::from_millis(50));
            }
            let mut y = [0; 64];
            context.execute(inputs!["x" => &[1; 64]], outputs!["y" => &mut y])?;
            let last = told.lock().expect("no panic").pop().expect("a layer");
            let waited = last.waited.unwrap_or_default();
            let is_as_expected = match communicator.rank() {
                Rank(0) => waited > Duration::from_millis(25) && waited <= last.duration,
                _ => waited < Duration::from_millis(25),
            };
            let mut all = [i32::from(is_as_expected)];
            communicator.all_reduce(&mut all, ReduceOperation::Min)?;
            if all == [1] || Instant::now() > deadline {
                return Ok::<_, Error>((all == [1], last));
            }
        }
    });
    let mut told = told.into_iter().map(|told| told.expect("a rank"));
    let [early, late] = std::array::from_fn(|_| told.next().expect("two ranks"));
    assert!(early.0, "{early:?} {late:?}");
    assert!(early.1.begin < late.1.begin, "{early:?} {late:?}");
    assert!(early.1.begin + early.1.duration > late.1.begin, "{early:?} {late:?}");
}

/// A run that fails tells nothing.
#[test]
fn a_run_that_fails_tells_nothing() {
    let results = on_ranks(3, |communicator: Communicator| {
        // Its first layer succeeds.
        let mut context = network(8)?.build()?.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let (sender, told) = mpsc::channel();
        let sender = Mutex::new(sender);
        context.set_profiler(Some(Arc::new(move |time| {
            sender.lock().expect("no panic").send(time.layer.to_owned()).expect("a receiver");
        })));
        if communicator.rank() == Rank(1) {
            communicator.barrier().expect_err("the other ranks make another call");
            return Ok(None);
        }
        let (x, mut y) = (Buffer::zeroed(DataType::Float16, [8])?, vec![0f32; 16]);
        let run = context.execute(inputs!["x" => &x], outputs!["y" => &mut y, "constant" => &mut [0]]);
        run.expect_err("rank 1 is in a barrier");
        Ok::<_, Error>(Some(told.try_recv().is_err()))
    });
    assert_eq!(results[0].as_ref().expect("rank 0"), &Some(true));
}
