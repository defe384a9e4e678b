//! What reading a plan and building a network take: memory in proportion to the bytes and to the
//! layers, whatever the bytes are, and instructions in proportion to the layers. The allocator of
//! this program counts bytes, valgrind counts instructions, and nothing looks at the clock except
//! the report of [`mutated_plans_take_little`].

#[path = "shared/random.rs"]
mod random;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::time::{Duration, Instant};

use distcollective::collective::Partition;
use distcollective::network::{ElementWiseOperation, Shuffle};
use distcollective::{DataType, DistCollective, Engine, Groups, Network, Rank, ReduceOperation, Result};
use random::Random;
use sha2::{Digest, Sha256};
use test_support::{has, run};

/// The most memory that reading a plan may take, as a multiple of its bytes.
const MOST_PER_BYTE: usize = 64;

/// Counts the bytes of each thread.
struct Counting;

thread_local! {
    static USAGE: Cell<Usage> = const { Cell::new(Usage { live: 0, peak: 0, total: 0 }) };
}

#[derive(Clone, Copy)]
struct Usage {
    /// Bytes that are allocated. A thread may free what another has allocated.
    live: isize,
    /// The most bytes that were allocated at the same time.
    peak: isize,
    /// The bytes of all allocations together.
    total: usize,
}

impl Counting {
    fn count(more: usize, fewer: usize) {
        USAGE.set({
            let Usage { live, peak, total } = USAGE.get();
            let live = live + more as isize - fewer as isize;
            Usage { live, peak: peak.max(live), total: total + more }
        });
    }
}

// SAFETY: each function calls the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size(), 0);
        // SAFETY: the caller promises what the system allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // While it moves, both are there.
        Self::count(new_size, 0);
        Self::count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `body` gives, the most memory that it had at the same time, and all that it allocated.
fn counted<T>(body: impl FnOnce() -> T) -> (T, usize, usize) {
    USAGE.set(Usage { live: 0, peak: 0, total: 0 });
    let value = body();
    let Usage { peak, total, .. } = USAGE.get();
    (value, peak as usize, total)
}

/// A plan with another body, whose header and checksum are right.
fn with_body(plan: &[u8], body: &[u8]) -> Vec<u8> {
    let length_at = body_at(plan) - 40;
    let mut altered = plan[..length_at].to_vec();
    altered.extend((body.len() as u64).to_le_bytes());
    let checksum = Sha256::new().chain_update(&altered).chain_update(body).finalize();
    altered.extend(checksum);
    altered.extend(body);
    altered
}

/// Where the body begins: after magic, format, the crate's version, the length and the checksum.
fn body_at(plan: &[u8]) -> usize {
    8 + 4 + 1 + usize::from(plan[12]) + 8 + 32
}

fn plan_of(describe: impl FnOnce(&mut Network) -> Result<()>) -> Vec<u8> {
    let mut network = Network::new();
    describe(&mut network).expect("a network");
    network.build().expect("an engine").serialize().expect("a plan")
}

fn sum() -> DistCollective<distcollective::dist_collective::NoRoot> {
    DistCollective::all_reduce(ReduceOperation::Sum)
}

/// All kinds of layers that need no plugin.
fn all_layers(network: &mut Network) -> Result<()> {
    let x = network.add_input("x", DataType::Float32, [-1, 4])?;
    network.set_optimization_profile(x, [2, 4], [4, 4], [8, 4])?;
    let second = network.add_optimization_profile()?;
    network.set_profile_shapes(second, x, [16, 4], [16, 4], [32, 4])?;
    let a = network.add(DistCollective::all_reduce(ReduceOperation::Avg).nb_rank(2).metadata("m"), x)?;
    let b = network.add(DistCollective::all_gather().partition(Partition::new([[0], [1]])), a)?;
    let c = network.add_shuffle(b, Shuffle::transpose([1, 0]).then_reshape([0, -1]))?;
    let d = network.add(DistCollective::scatter(1).group([1, 0]), c)?;
    let k = network.add_constant(&[1i64, 2], [2])?;
    let k = network.add_cast(k, DataType::Float8E4M3)?;
    let doubled = network.add_elementwise(x, x, ElementWiseOperation::Sum)?;
    let joined = network.add_concatenation(&[x, doubled], 1)?;
    let part = network.add_slice(joined, &[1, 7], &[1, 3], &[0, -2])?;
    let part = network.add_identity(part)?;
    network.mark_output(d, "d")?;
    network.mark_output(k, "k")?;
    network.mark_output(part, "part")
}

/// Layers one after the other.
fn chain(layers: usize) -> impl FnOnce(&mut Network) -> Result<()> {
    move |network| {
        let mut last = network.add_input("x", DataType::Float32, [8])?;
        for layer in 0..layers {
            last = match layer % 3 {
                0 => network.add(sum().group([0, 1]), last)?,
                1 => network.add_cast(last, DataType::Float32)?,
                _ => network.add_shuffle(last, Shuffle::reshape([2, 4]))?,
            };
        }
        network.mark_output(last, "y")
    }
}

/// Half of the layers compute what the other half reads, in the same order.
fn wide(layers: usize) -> impl FnOnce(&mut Network) -> Result<()> {
    move |network| {
        let x = network.add_input("x", DataType::Float32, [8])?;
        let halves = (0..layers / 2).map(|_| network.add_cast(x, DataType::Float16)).collect::<Result<Vec<_>>>()?;
        for (number, half) in halves.into_iter().enumerate() {
            let y = network.add_cast(half, DataType::Int8)?;
            network.mark_output(y, &format!("y{number}"))?;
        }
        Ok(())
    }
}

/// One layer that joins as many tensors as there are others.
fn joined(layers: usize) -> impl FnOnce(&mut Network) -> Result<()> {
    move |network| {
        let x = network.add_input("x", DataType::Float32, [8])?;
        let parts = (1..layers).map(|_| network.add_identity(x)).collect::<Result<Vec<_>>>()?;
        let y = if parts.is_empty() { network.add_identity(x)? } else { network.add_concatenation(&parts, 0)? };
        network.mark_output(y, "y")
    }
}

/// One layer that joins a tensor with itself, which takes the most memory for its bytes.
fn repeated(times: usize) -> impl FnOnce(&mut Network) -> Result<()> {
    move |network| {
        let x = network.add_input("x", DataType::Float32, [8])?;
        let y = network.add_concatenation(&vec![x; times], 0)?;
        network.mark_output(y, "y")
    }
}

/// One tensor that is not written on every rank, and many layers that read it, all with long names.
fn unwritten(readers: usize) -> impl FnOnce(&mut Network) -> Result<()> {
    move |network| {
        let x = network.add_input("x", DataType::Float32, [8])?;
        let name = |name: String| name.repeat(4000 / name.len());
        let y = network.add(DistCollective::gather(1).nb_rank(2).named(name("w".to_owned())), x)?;
        for reader in 0..readers {
            let z = network.add_cast(y, DataType::Int8)?;
            network.mark_output(z, &format!("z{reader}"))?;
        }
        Ok(())
    }
}

/// Partitions of groups of one rank, which take the most memory for their bytes.
fn partitions(layers: usize, groups: u32) -> impl FnOnce(&mut Network) -> Result<()> {
    move |network| {
        let mut last = network.add_input("x", DataType::Float32, [8])?;
        for _ in 0..layers {
            last = network.add(sum().partition(Partition::new((0..groups).map(|rank| [rank]))), last)?;
        }
        network.mark_output(last, "y")
    }
}

/// As many profiles as are allowed, for inputs of one dimension.
fn profiles(inputs: usize) -> impl FnOnce(&mut Network) -> Result<()> {
    move |network| {
        for _ in 0..distcollective::network::MAX_PROFILES {
            network.add_optimization_profile()?;
        }
        for input in 0..inputs {
            let x = network.add_input(&format!("x{input}"), DataType::Int8, [-1])?;
            for profile in 0..network.optimization_profile_count() {
                network.set_profile_shapes(profile, x, [1], [1], [2])?;
            }
            let y = network.add(sum().nb_rank(2), x)?;
            network.mark_output(y, &format!("y{input}"))?;
        }
        Ok(())
    }
}

/// A constant of many bytes.
fn constant(network: &mut Network) -> Result<()> {
    let k = network.add_constant(&[7u8; 5000], [5000])?;
    let k = network.add_shuffle(k, Shuffle::reshape([50, 100]).then_transpose([1, 0]))?;
    network.mark_output(k, "k")
}

/// Changes a body in up to four places.
fn mutate(body: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(body.len());
        let end = (at + 1 + random.below(24)).min(body.len());
        match random.below(10) {
            0 => body[at] ^= 1 << random.below(8),
            1 => body[at] = [0, 1, 2, 0x7f, 0x80, 0xff][random.below(6)],
            2 => body[at] = body[at].wrapping_add(1),
            3 => body[at] = body[at].wrapping_sub(1),
            // A number of several bytes, up to the largest.
            4 => {
                drop(body.splice(at..at + 1, vec![0xff; random.below(10)].into_iter().chain([random.below(128) as u8])))
            }
            5 => drop(body.drain(at..end)),
            6 => body.truncate(at.max(1)),
            7 => {
                let copy = body[at..end].to_vec();
                let to = random.below(body.len());
                drop(body.splice(to..to, copy));
            }
            8 => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len());
                let until = (from + 1 + random.below(40)).min(other.len());
                drop(body.splice(at..end, other[from..until].iter().copied()));
            }
            _ => body[at] = random.next() as u8,
        }
        if body.is_empty() {
            body.push(0);
        }
    }
}

/// What the plans of one thread took at most.
#[derive(Default)]
struct Worst {
    peak_per_byte: f64,
    total_per_byte: f64,
    time: Duration,
    valid: usize,
}

fn read_mutated(count: usize, seed: u64) -> Worst {
    let plans = [
        plan_of(all_layers),
        plan_of(chain(12)),
        plan_of(chain(60)),
        plan_of(wide(20)),
        plan_of(partitions(2, 30)),
        plan_of(profiles(2)),
        plan_of(constant),
        plan_of(repeated(30)),
    ];
    let bodies = plans.each_ref().map(|plan| plan[body_at(plan)..].to_vec());
    let mut random = Random(seed);
    let mut worst = Worst::default();
    for _ in 0..count {
        let mut body = bodies[random.below(bodies.len())].clone();
        mutate(&mut body, &bodies, &mut random);
        let plan = with_body(&plans[0], &body);
        let start = Instant::now();
        let (result, peak, total) = counted(|| Engine::deserialize(&plan).map(drop));
        worst.time = worst.time.max(start.elapsed());
        worst.valid += usize::from(result.is_ok());
        let per_byte = |bytes: usize| bytes as f64 / plan.len() as f64;
        assert!(peak <= MOST_PER_BYTE * plan.len(), "{peak} bytes for a plan of {}: {result:?}\n{plan:?}", plan.len());
        worst.peak_per_byte = worst.peak_per_byte.max(per_byte(peak));
        worst.total_per_byte = worst.total_per_byte.max(per_byte(total));
    }
    worst
}

/// Anybody can compute a checksum, so any body may come. Reading it is an error or gives an engine,
/// and takes little memory. With `DCL_EXHAUSTIVE` a million plans are read.
#[test]
fn mutated_plans_take_little() {
    let count = if std::env::var_os("DCL_EXHAUSTIVE").is_some() { 1_000_000 } else { 10_000 };
    let threads = [1, 2].map(|seed| std::thread::spawn(move || read_mutated(count / 2, seed << 32)));
    for thread in threads {
        let Worst { peak_per_byte, total_per_byte, time, valid } = thread.join().expect("no panic");
        println!(
            "{} plans, {valid} valid; for each byte at most {peak_per_byte:.1} bytes at a time and {total_per_byte:.1} \
             together; the slowest took {time:?}",
            count / 2
        );
        assert!(valid > count / 100, "{valid} of {} are valid", count / 2);
        assert!(total_per_byte < 1000.0, "{total_per_byte} bytes were allocated for each byte");
    }
}

/// Plans that were made to take much.
#[test]
fn large_plans_take_memory_in_proportion() {
    let cases = [
        ("chain", plan_of(chain(3000))),
        ("wide", plan_of(wide(4000))),
        ("unwritten", plan_of(unwritten(2000))),
        ("partitions", plan_of(partitions(3, 5000))),
        ("profiles", plan_of(profiles(100))),
        ("joined", plan_of(joined(3000))),
        ("repeated", plan_of(repeated(20_000))),
    ];
    for (name, plan) in cases {
        let (result, peak, total) = counted(|| Engine::deserialize(&plan).map(drop));
        result.expect("an engine");
        println!(
            "{name}: {} bytes, {:.1} times at a time, {:.1} together",
            plan.len(),
            peak as f64 / plan.len() as f64,
            total as f64 / plan.len() as f64
        );
        assert!(peak <= MOST_PER_BYTE * plan.len(), "{name}: {peak} bytes for a plan of {}", plan.len());
    }
}

/// A name that many layers read is shown in full once.
#[test]
fn inspections_are_not_much_larger_than_their_plans() {
    let plan = plan_of(|network| {
        let x = network.add_input(&"x".repeat(4000), DataType::Float32, [4])?;
        for i in 0..1000 {
            let y = network.add_cast(x, DataType::Int8)?;
            network.mark_output(y, &format!("y{i}"))?;
        }
        Ok(())
    });
    let inspection = Engine::deserialize(&plan).expect("an engine").inspect();
    for text in [inspection.to_string(), inspection.to_json().to_string(), inspection.to_dot()] {
        assert!(text.len() <= MOST_PER_BYTE * plan.len(), "{} bytes for a plan of {}", text.len(), plan.len());
    }
}

/// A number of elements that is not true allocates nothing for them.
#[test]
fn a_number_that_is_too_large_allocates_nothing() {
    let plan = plan_of(chain(300));
    let body = &plan[body_at(&plan)..];
    let (_, peak_if_right, _) = counted(|| Engine::deserialize(&plan).map(drop));
    // No rank that the network is for, the number of profiles, then the number of tensors.
    assert_eq!(body[..4], [0, 0, 0xad, 0x02]);
    for count in [vec![0xff, 0x3f], vec![0xff, 0xff, 0xff, 0xff, 0x0f]] {
        let altered = with_body(&plan, &[&body[..2], &count, &body[4..]].concat());
        let (result, peak, _) = counted(|| Engine::deserialize(&altered).map(drop));
        result.expect_err("there are not so many tensors");
        assert!(peak <= peak_if_right, "{peak} bytes, and {peak_if_right} with the right number");
    }
}

/// What a network is called, and how it is described with so many layers.
type Kind = (&'static str, fn(usize) -> Network);

const KINDS: [Kind; 3] = [
    ("chain", |layers| described(chain(layers))),
    ("wide", |layers| described(wide(layers))),
    ("joined", |layers| described(joined(layers))),
];

/// Ten times the layers take some ten times the memory, all allocations together, and not a hundred
/// times: nothing is looked at again for each further layer. (Vectors grow in powers of two.)
#[test]
fn describing_building_and_reading_are_linear() {
    let take = |layers: usize, describe: fn(usize) -> Network| {
        let (network, _, described) = counted(|| describe(layers));
        let (engine, _, built) = counted(|| network.build().expect("an engine"));
        let plan = engine.serialize().expect("a plan");
        let (_, _, read) = counted(|| Engine::deserialize(&plan).expect("an engine"));
        [described, built, read]
    };
    for (name, describe) in KINDS {
        let (few, many) = (take(2000, describe), take(20_000, describe));
        for (step, (few, many)) in ["describe", "build", "read"].into_iter().zip(few.into_iter().zip(many)) {
            assert!(many < 30 * few, "{name}, {step}: {few} bytes for 2000 layers, {many} for 20000");
        }
    }
}

/// In the program that valgrind runs: which kind of network, and how many layers.
const COUNTED: &str = "DCL_TEST_COUNTED";

/// Ten times the layers take some ten times the instructions: a step for each layer that looks at
/// all others would allocate nothing, but take a hundred times as many.
#[test]
fn instructions_are_linear_in_the_layers() {
    if let Ok(text) = std::env::var(COUNTED) {
        let (name, layers) = text.split_once(' ').expect("a kind and a number");
        let layers: usize = layers.parse().expect("a number");
        let (_, describe) = KINDS.into_iter().find(|(kind, _)| *kind == name).expect("a kind");
        let engine = describe(layers).build().expect("an engine");
        let plan = engine.serialize().expect("a plan");
        let read = Engine::deserialize(&plan).expect("an engine");
        let inspection = read.inspect().to_json();
        assert_eq!(inspection["layers"].as_array().map_or(0, Vec::len), layers);
        return;
    }
    if !has("valgrind") {
        return;
    }
    let check = |name: &str| {
        let [none, few, many] = [2, 3_000, 30_000].map(|layers| instructions(&format!("{name} {layers}")));
        println!("{name}: {} instructions for 3000 layers, {} for 30000", few - none, many - none);
        // It is 10.2 times as many, and varies little: some steps search in trees. A look at each
        // other layer, even if it were one instruction, would make it more than 11.
        assert!(many - none < 11 * (few - none), "{name}: {few} instructions for 3000 layers, {many} for 30000");
    };
    std::thread::scope(|scope| KINDS.into_iter().for_each(|(name, _)| drop(scope.spawn(move || check(name)))));
}

/// The number of instructions of this program in the test above.
fn instructions(counted: &str) -> u64 {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    valgrind.arg(std::env::current_exe().expect("this program"));
    valgrind.args(["--exact", "instructions_are_linear_in_the_layers"]).env(COUNTED, counted);
    let (output, text) = run(&mut valgrind);
    assert!(output.status.success(), "{text}");
    // ==7== I   refs:      1,234,567
    let count = text.lines().find_map(|line| line.split_once(" refs:")).expect("a count").1;
    count.trim().replace(',', "").parse().expect("a number")
}

fn described(describe: impl FnOnce(&mut Network) -> Result<()>) -> Network {
    let mut network = Network::new();
    describe(&mut network).expect("a network");
    network
}

/// A group with as many ranks as a plan has bytes for.
#[test]
fn a_group_of_many_ranks_takes_memory_in_proportion() {
    let plan = plan_of(|network| {
        let x = network.add_input("x", DataType::Float32, [8])?;
        let mut layer = sum().into_layer();
        layer.set_groups(Groups::Group((0..20_000).map(Rank).collect()))?;
        let y = network.add(layer, x)?;
        let z = network.add_cast(y, DataType::Int8)?;
        network.mark_output(z, "z")
    });
    let (result, peak, _) = counted(|| Engine::deserialize(&plan).map(drop));
    result.expect("an engine");
    assert!(peak <= MOST_PER_BYTE * plan.len(), "{peak} bytes for a plan of {}", plan.len());
}
