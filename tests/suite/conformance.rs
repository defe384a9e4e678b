//! The conformance suite: compares what a backend does bit by bit with the reference. It is generic
//! over backends: a case runs on any communicator, and each rank checks its own part.

use std::ops::Range;
use std::time::Duration;

use distcollective::collective::InPlace;
use distcollective::comm::BackendKind;
use distcollective::dist_collective::BoundLayer;
use distcollective::tensor::MemorySpace;
use distcollective::{
    Buffer, Communicator, DataType, Determinism, DistCollectiveLayer, ReduceOperation, Result, Stream,
};

use crate::cases::{Case, exhaustive, pairwise};
use crate::ranks::{DEADLINE, on_ranks_within};
use crate::tolerance;
use crate::values::{to_bits, to_bytes};

/// Room for the largest case, with both buffers apart.
const ROOM: usize = 8 << 20;

/// Where a case's tensors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In host memory.
    Host,
    /// In private memory of the communicator's kind.
    Own,
    /// In memory of `Communicator::allocate`.
    Symmetric,
}

/// A rank that runs cases: its communicator, its memory of `ROOM` bytes, its stream, and how far
/// the bits of its layers are determined.
pub struct Runner<'a> {
    communicator: &'a Communicator,
    memory: Buffer,
    stream: Stream,
    of_layers: Determinism,
}

impl<'a> Runner<'a> {
    pub fn new(communicator: &'a Communicator, place: Place, stream: Stream) -> Result<Self> {
        let (data_type, dims) = (DataType::Uint8, [ROOM as i64]);
        let memory = match place {
            Place::Host => Buffer::zeroed(data_type, dims)?,
            Place::Own => Buffer::zeroed_in(communicator.space(), data_type, dims)?,
            Place::Symmetric => communicator.allocate(data_type, dims)?,
        };
        Ok(Runner { communicator, memory, stream, of_layers: Determinism::Backend })
    }

    /// With layers of this determinism.
    pub fn with_layers(self, of_layers: Determinism) -> Self {
        Runner { of_layers, ..self }
    }

    /// Whether the bits are the host's.
    fn is_exact(&self) -> bool {
        self.communicator.space() == MemorySpace::Host
            || self.of_layers.max(self.communicator.determinism()) == Determinism::Exact
    }

    /// Runs one case on this rank, and compares.
    ///
    /// # Panics
    ///
    /// The rank's part differs from the reference.
    pub fn run(&mut self, case: &Case) -> Result<()> {
        let rank = self.communicator.rank();
        let root = if case.operation.has_root() { 0 } else { -1 };
        let mut layer = DistCollectiveLayer::new(case.operation, case.reduce_op, root, &[])?;
        layer.set_name("case");
        layer.set_groups(case.groups())?;
        layer.set_root(case.layer_root());
        layer.set_nb_rank(case.group_len() as u32)?;
        layer.set_determinism(self.of_layers);
        layer.set_wire_type(case.wire_type);
        let bound = layer.bind(self.communicator, case.data_type)?;

        let dims = case.dims();
        let out_dims = bound.output_shape(&dims)?;
        let element = case.data_type.byte_len();
        let input = to_bytes(case.data_type, case.input(rank));
        let expected = case.expected(rank);

        // One memory for both, with guard bytes around that must not change.
        const GUARD: usize = 64;
        let out_len = out_dims.byte_len(case.data_type);
        let (input_at, output_at, len) = match bound.in_place(&dims)? {
            InPlace::SameAddress if case.in_place => (GUARD, GUARD, input.len().max(out_len)),
            InPlace::InputAt { element_offset } if case.in_place => (GUARD + element_offset * element, GUARD, out_len),
            InPlace::OutputAt { element_offset } if case.in_place => {
                (GUARD, GUARD + element_offset * element, input.len())
            }
            _ => (GUARD, (2 * GUARD + input.len()).next_multiple_of(8), 2 * GUARD + input.len() + out_len),
        };
        let mut before = vec![0xa5; len + 2 * GUARD];
        before[input_at..input_at + input.len()].copy_from_slice(&input);
        self.memory.write(0, &before)?;
        self.call(&bound, case, &dims, [input_at..input_at + input.len(), output_at..output_at + out_len])?;
        let mut got = vec![0; before.len()];
        self.memory.read(0, &mut got)?;

        let mut after = before;
        if let Some(expected) = &expected {
            assert_eq!(expected.shape(), out_dims.as_slice(), "rank {rank}: {case:?}");
            let mut written = to_bytes(case.data_type, expected.iter().copied());
            // With a transport type NCCL only moves.
            if !self.is_exact() && case.wire_type.is_none() {
                // Differences within the tolerance count as equal.
                tolerance::accept(case, &case.inputs(rank), rank, &mut written, &got[output_at..output_at + out_len]);
            }
            after[output_at..output_at + out_len].copy_from_slice(&written);
        }
        // In place, NCCL does not promise to keep the part of an input that is no output. Here it
        // is kept.
        if got != after {
            let at = got.iter().zip(&after).position(|(a, b)| a != b).expect("they differ");
            let output = &got[output_at..output_at + out_len];
            panic!(
                "rank {rank}: {case:?}: byte {at} differs (input at {input_at}, output at {output_at}, {out_len} bytes)\n got {:x?}\nwant {:x?}",
                &to_bits(case.data_type, output)[..(out_len / element).min(40)],
                expected.map(|e| e.iter().take(40).copied().collect::<Vec<_>>()),
            );
        }
        assert_eq!(bound.writes_output(), expected.is_some(), "rank {rank}: {case:?}");
        Ok(())
    }

    /// Makes the call on two ranges of the memory.
    fn call(
        &mut self,
        bound: &BoundLayer,
        case: &Case,
        dims: &[usize],
        [input, output]: [Range<usize>; 2],
    ) -> Result<()> {
        let address = self.memory.as_mut_ptr();
        if self.memory.space() == self.communicator.space() {
            // SAFETY: both ranges are in the buffer, which only the work uses until it is done.
            let work =
                unsafe { bound.enqueue(address.add(input.start), address.add(output.start), dims, &self.stream)? };
            return Ok(work.wait().map(|_| ())?);
        }
        // Borrowed tensors cannot overlap, so they are never in place.
        let tensor = |bytes: &[u8]| -> Result<Buffer> {
            let mut buffer = Buffer::zeroed(case.data_type, [(bytes.len() / case.data_type.byte_len()) as i64])?;
            buffer.write(0, bytes)?;
            Ok(buffer)
        };
        let given = tensor(&self.memory.as_bytes()?[input])?;
        let mut wanted = tensor(&self.memory.as_bytes()?[output.clone()])?;
        bound.execute(Some(&given), Some(&mut wanted), dims)?;
        self.memory.write(output.start, wanted.as_bytes()?)
    }
}

/// The deadline of a quarter of the cases.
pub fn deadline() -> Duration {
    if is_exhaustive() { Duration::from_secs(3600) } else { DEADLINE }
}

fn is_exhaustive() -> bool {
    std::env::var("DCL_EXHAUSTIVE").is_ok_and(|value| value == "1")
}

/// Runs a quarter of the cases on one rank. A quarter is far from its deadline on a busy machine
/// too.
pub fn run_quarter(communicator: &Communicator, quarter: usize, place: Place, stream: Stream) {
    run_quarter_with(Runner::new(communicator, place, stream).unwrap_or_else(|error| panic!("{error}")), quarter);
}

/// [`run_quarter`] with a runner that is there.
pub fn run_quarter_with(mut runner: Runner<'_>, quarter: usize) {
    let n = runner.communicator.world_size();
    let cases = if is_exhaustive() { exhaustive(n) } else { pairwise(n) };
    let mut count = 0;
    for case in cases.iter().skip(quarter).step_by(4) {
        // NCCL has none on bits.
        if case.reduce_op.is_some_and(ReduceOperation::is_bitwise) && runner.communicator.backend() == BackendKind::Nccl
        {
            continue;
        }
        if let Err(error) = runner.run(case) {
            panic!("{case:?}: {error}");
        }
        count += 1;
    }
    assert!(count > 50, "the cases of a quarter, {count}");
}

/// Runs a quarter of the cases on `n` threads, which stay the same for all of them.
fn conforms(n: u32, quarter: usize) {
    on_ranks_within(deadline(), n, move |communicator| {
        run_quarter(&communicator, quarter, Place::Own, Stream::inline())
    });
}

/// Makes four tests of each configuration: `conforms(configuration, quarter)`.
macro_rules! quarters {
    ($conforms:path; $($name:ident: $configuration:expr),* $(,)?) => { $(
        mod $name {
            #[test]
            fn first_quarter() {
                $conforms($configuration, 0);
            }

            #[test]
            fn second_quarter() {
                $conforms($configuration, 1);
            }

            #[test]
            fn third_quarter() {
                $conforms($configuration, 2);
            }

            #[test]
            fn fourth_quarter() {
                $conforms($configuration, 3);
            }
        }
    )* };
}

pub(crate) use quarters;

quarters! {
    crate::conformance::conforms;
    host_threads_1: 1,
    host_threads_2: 2,
    host_threads_3: 3,
    host_threads_4: 4,
    host_threads_5: 5,
    host_threads_6: 6,
    host_threads_7: 7,
    host_threads_8: 8,
}
