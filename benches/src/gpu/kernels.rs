//! The bandwidth of kernels: networks of one Cast or Shuffle on a communicator of one rank,
//! compared with a copy on the device of as many bytes.

use distcollective::comm::BackendKind;
use distcollective::context::Bindings;
use distcollective::network::Shuffle;
use distcollective::tensor::{MemorySpace, TensorView, TensorViewMut};
use distcollective::{Buffer, Communicator, DataType, Engine, ExecutionContext, Network};
use serde_json::json;

use super::cuda::{self, Cuda, Event, Handle};
use super::measure::round;
use super::{Options, TIMEOUT, print};
use crate::Result;
use crate::time::median;

/// The contents of an input repeat after this many bytes.
const PERIOD: usize = 1 << 20;

/// The most kernels or copies that are in a stream at once.
const BATCH: usize = 64;

/// A kernel must reach at least this share of the copy's bandwidth.
const SHARE: f64 = 0.8;

/// The number of elements of an output that are compared.
const SAMPLES: u64 = 64;

/// A layer.
enum Work {
    Cast(DataType, DataType),
    /// The type, the dimensions after the first one, and the permutation. The first dimension
    /// follows from the size.
    Transpose(DataType, &'static [usize], &'static [u8]),
}

use DataType::{Bfloat16, Bool, Float8E4M3, Float8E5M2, Float16, Float32, Int8, Int32, Int64};

const WORKS: [Work; 19] = [
    Work::Cast(Float32, Float16),
    Work::Cast(Float16, Float32),
    Work::Cast(Float32, Float8E4M3),
    Work::Cast(Float8E4M3, Float32),
    Work::Cast(Float32, Float8E5M2),
    Work::Cast(Float8E4M3, Float8E5M2),
    Work::Cast(Float8E5M2, Float8E4M3),
    Work::Cast(Bfloat16, Float32),
    Work::Cast(Int64, Int32),
    // The first step of a reduction of bool: every nonzero byte becomes 1.
    Work::Cast(Bool, Bool),
    Work::Transpose(Int8, &[4096], &[1, 0]),
    Work::Transpose(Int8, &[1024, 512], &[0, 2, 1]),
    Work::Transpose(Float16, &[4096], &[1, 0]),
    Work::Transpose(Float32, &[4096], &[1, 0]),
    Work::Transpose(Int64, &[4096], &[1, 0]),
    Work::Transpose(Float16, &[1024, 512], &[0, 2, 1]),
    Work::Transpose(Float32, &[512, 512], &[0, 2, 1]),
    // Moves heads before positions, as attention does.
    Work::Transpose(Float16, &[32, 128], &[1, 0, 2]),
    Work::Transpose(Float32, &[32, 16, 8], &[2, 0, 1, 3]),
];

impl Work {
    fn name(&self) -> String {
        match self {
            Work::Cast(from, to) if from == to => format!("normalize {from}"),
            Work::Cast(from, to) => format!("cast {from} to {to}"),
            Work::Transpose(data_type, inner, permutation) => {
                format!("transpose {data_type} [n, {}] by {permutation:?}", list(inner))
            }
        }
    }

    fn types(&self) -> [DataType; 2] {
        match *self {
            Work::Cast(from, to) => [from, to],
            Work::Transpose(data_type, ..) => [data_type; 2],
        }
    }

    /// The shape of the input such that the larger of input and output has about `byte_len` bytes.
    fn dims(&self, byte_len: usize) -> Vec<usize> {
        let widest = self.types().map(DataType::byte_len).into_iter().max().unwrap_or(1);
        match self {
            Work::Cast(..) => vec![byte_len / widest],
            Work::Transpose(_, inner, _) => {
                let row = inner.iter().product::<usize>() * widest;
                [&[byte_len / row], *inner].concat()
            }
        }
    }

    fn engine(&self, dims: &[usize]) -> Result<Engine> {
        let mut network = Network::new();
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let x = network.add_input("x", self.types()[0], dims)?;
        let y = match *self {
            Work::Cast(_, to) => network.add_cast(x, to)?,
            Work::Transpose(_, _, permutation) => network.add_shuffle(x, Shuffle::transpose(permutation))?,
        };
        network.mark_output(y, "y")?;
        Ok(network.build()?)
    }

    /// The index of the input element that an element of the output is made from.
    fn source(&self, dims: &[usize], mut element: usize) -> usize {
        let Work::Transpose(_, _, permutation) = self else { return element };
        let mut source = 0;
        for &dimension in permutation.iter().rev() {
            let dimension = usize::from(dimension);
            let stride: usize = dims[dimension + 1..].iter().product();
            source += element % dims[dimension] * stride;
            element /= dims[dimension];
        }
        source
    }
}

fn list(dims: &[usize]) -> String {
    dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

pub fn run(options: &Options) -> Result<()> {
    let [communicator] = <[Communicator; 1]>::try_from(
        Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).in_process(1)?,
    )
    .map_err(|_| "one rank was asked for")?;
    let MemorySpace::Cuda(ordinal) = communicator.space() else {
        return Err("the communicator is not on a GPU".into());
    };
    let cuda = cuda::current(ordinal)?;
    let sizes: &[usize] = if options.quick { &[2 << 20] } else { &[64 << 20, 256 << 20, 1 << 30] };
    for work in &WORKS {
        for &byte_len in sizes {
            let place = json!({"kernel": work.name(), "bytes": byte_len});
            // If one kernel fails, the others still run.
            match measure(options, cuda, &communicator, work, byte_len) {
                Ok([kernel, copy]) => {
                    let ratio = kernel / copy;
                    print(json!({
                        "benchmark": "kernels",
                        "place": place,
                        "gb_per_s": round(kernel / 1e9),
                        "copy_gb_per_s": round(copy / 1e9),
                        "ratio": (ratio * 1e3).round() / 1e3,
                        "ok": ratio >= SHARE,
                    }));
                }
                Err(error) => {
                    print(json!({"benchmark": "kernels", "place": place, "error": error.to_string(), "ok": false}));
                }
            }
        }
    }
    let reason = "the reduction of float8 runs only on GPUs older than compute capability 9.0, among several ranks";
    print(json!({"benchmark": "kernels", "place": {"kernel": "reduce float8"}, "skipped": reason}));
    communicator.finalize()?;
    Ok(())
}

/// The bytes per second, read and written, of the kernel and of a copy.
fn measure(
    options: &Options,
    cuda: &'static Cuda,
    communicator: &Communicator,
    work: &Work,
    byte_len: usize,
) -> Result<[f64; 2]> {
    let space = communicator.space();
    let dims = work.dims(byte_len);
    let count: usize = dims.iter().product();
    let [from, to] = work.types();
    let mut context = work.engine(&dims)?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let MemorySpace::Cuda(ordinal) = space else { return Err("the communicator is not on a GPU".into()) };
    let stream = distcollective::Stream::cuda(ordinal)?;
    let raw = stream.as_raw_cuda().ok_or("the stream is not CUDA's")?;

    let pattern = pattern(from);
    let mut input = Buffer::zeroed_in(space, from, [count as i64])?;
    fill(cuda, &mut input, &pattern, raw)?;
    let mut output = Buffer::zeroed_in(space, to, [count as i64])?;
    // A copy that moves as many bytes in total reads half of them and writes half.
    let moved = input.byte_len() + output.byte_len();
    let mut pair = [(); 2].map(|()| Buffer::zeroed_in(space, Int8, [(moved / 2) as i64]));
    let [Ok(source), Ok(target)] = &mut pair else { return Err("no memory for a copy".into()) };

    let addresses = [("x", input.as_ptr().cast_mut(), input.byte_len()), ("y", output.as_mut_ptr(), output.byte_len())];
    let mut bindings = Vec::with_capacity(BATCH);
    for _ in 0..BATCH {
        let mut one = context.create_bindings();
        for (name, address, byte_len) in addresses {
            // SAFETY: the buffers have these lengths, and every run is waited for before they are
            // dropped. Runs write the same values, one after the other in the stream.
            unsafe { one.bind_address(name, address, byte_len)? };
        }
        bindings.push(one);
    }
    let events = [Event::new(cuda)?, Event::new(cuda)?];
    let mut run = |len: usize| kernel_seconds(&mut context, &mut bindings, &stream, raw, &events, len);
    let (from_address, to_address) = (source.as_ptr(), target.as_mut_ptr());
    // SAFETY: both buffers have this length, and every copy is waited for before they are dropped.
    let copy = || unsafe { cuda.enqueue_copy(from_address, to_address, moved / 2, raw) };
    let copy_seconds = |len: usize| seconds(raw, &events, len, copy);

    // Warms up; the output of these runs is checked.
    run(2)?;
    check(work, &dims, &pattern, &output)?;
    copy_seconds(2)?;
    let (rounds, target_seconds) = if options.quick { (2, 0.0) } else { (9, 4e-3) };
    let len = ((target_seconds / run(4)?) as usize).clamp(4, BATCH - 1);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        times[0].push(run(len)?);
        times[1].push(copy_seconds(len)?);
    }
    Ok(times.map(|times| moved as f64 / median(times)))
}

/// The seconds of one run, averaged over `len`. A first run, which is not measured, keeps the GPU
/// busy while the others are enqueued.
fn kernel_seconds(
    context: &mut ExecutionContext,
    bindings: &mut Vec<Bindings>,
    stream: &distcollective::Stream,
    raw: Handle,
    events: &[Event; 2],
    len: usize,
) -> Result<f64> {
    let mut works = Vec::with_capacity(len + 1);
    let seconds = seconds(raw, events, len, || {
        let bindings = bindings.pop().ok_or("a batch is longer than was said")?;
        works.push(context.enqueue(bindings, stream).map_err(|failed| failed.error)?);
        Ok(())
    });
    for work in works {
        bindings.push(work.wait()?);
    }
    seconds
}

fn seconds(stream: Handle, events: &[Event; 2], len: usize, mut enqueue: impl FnMut() -> Result<()>) -> Result<f64> {
    enqueue()?;
    events[0].record(stream)?;
    for _ in 0..len {
        enqueue()?;
    }
    events[1].record(stream)?;
    Ok(events[1].seconds_since(&events[0])? / len as f64)
}

/// One period of an input: numbers from -8 to 8, as in a network; for bool, any bytes.
fn pattern(data_type: DataType) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(PERIOD);
    while bytes.len() < PERIOD {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let number = (state >> 40) as f32 / (1 << 20) as f32 - 8.0;
        match data_type {
            Float32 => bytes.extend(number.to_le_bytes()),
            Float16 => bytes.extend(distcollective::tensor::f16::from_f32(number).to_le_bytes()),
            Bfloat16 => bytes.extend(distcollective::tensor::bf16::from_f32(number).to_le_bytes()),
            // Without the largest exponent, so that no element is NaN.
            Float8E4M3 => bytes.push((state >> 32) as u8 & 0xf7),
            Float8E5M2 => bytes.push((state >> 32) as u8 & 0xbf),
            Int64 => bytes.extend((i64::from(state as u32) - (1 << 31)).to_le_bytes()),
            _ => bytes.push((state >> 32) as u8),
        }
    }
    bytes
}

/// Fills a buffer with repetitions of a pattern.
fn fill(cuda: &Cuda, buffer: &mut Buffer, pattern: &[u8], stream: Handle) -> Result<()> {
    let len = buffer.byte_len();
    let mut done = pattern.len().min(len);
    buffer.write(0, &pattern[..done])?;
    let start = buffer.as_mut_ptr();
    while done < len {
        let more = done.min(len - done);
        // SAFETY: both parts lie in the buffer and do not overlap. The copies run one after the
        // other in the stream, which is synchronized below.
        unsafe { cuda.enqueue_copy(start, start.wrapping_add(done), more, stream)? };
        done += more;
    }
    // SAFETY: the stream is there.
    cuda::check("cuStreamSynchronize", unsafe { (cuda.synchronize)(stream) })
}

/// Compares samples of an output with the results of the host for the pattern.
fn check(work: &Work, dims: &[usize], pattern: &[u8], output: &Buffer) -> Result<()> {
    let [from, to] = work.types();
    let in_period = PERIOD / from.byte_len();
    let expected = match work {
        Work::Transpose(..) => pattern.to_vec(),
        Work::Cast(..) => cast_on_host(work, pattern, in_period)?,
    };
    let (count, width) = (dims.iter().product::<usize>(), to.byte_len());
    for sample in 0..SAMPLES {
        // The first, the last, and others spread over the output.
        let element = match sample {
            0 => 0,
            1 => count - 1,
            _ => ((u128::from(sample.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * count as u128) >> 64) as usize,
        };
        let mut found = vec![0; width];
        output.read(element * width, &mut found)?;
        let at = work.source(dims, element) % in_period * width;
        if found != expected[at..at + width] {
            return Err(format!("element {element} is {found:?} instead of {:?}", &expected[at..at + width]).into());
        }
    }
    Ok(())
}

fn cast_on_host(work: &Work, pattern: &[u8], count: usize) -> Result<Vec<u8>> {
    let [from, to] = work.types();
    let mut context = work.engine(&[count])?.create_execution_context()?;
    let mut input = Buffer::zeroed(from, [count as i64])?;
    input.write(0, pattern)?;
    let mut output = Buffer::zeroed(to, [count as i64])?;
    context.execute([("x", Ok(TensorView::from(&input)))], [("y", Ok(TensorViewMut::from(&mut output)))])?;
    Ok(output.as_bytes()?.to_vec())
}
