//! What the micro-benchmarks share: a peer on another thread, and transposes to measure.

use std::fmt;
use std::thread::JoinHandle;

use distcollective::network::Shuffle;
use distcollective::tensor::{TensorView, TensorViewMut};
use distcollective::{Buffer, Builder, Communicator, DataType, Error, ErrorKind, ExecutionContext, Network, Result};

/// One of two ranks. The other is a thread that makes the same call again and again.
pub struct Pair {
    communicator: Option<Communicator>,
    peer: Option<JoinHandle<()>>,
}

impl Pair {
    /// `peer` makes the peer's calls. It gets its communicator once, and gives what makes one call.
    ///
    /// # Errors
    ///
    /// No memory for the communicator.
    pub fn new<C: FnMut() -> Result<()>>(
        peer: impl FnOnce(Communicator) -> Result<C> + Send + 'static,
    ) -> Result<Self> {
        let mut ranks = Communicator::in_process(2)?;
        let (other, own) = (ranks.pop(), ranks.pop());
        let Some((other, own)) = other.zip(own) else {
            return Err(Error::new(ErrorKind::System, "a communicator of two ranks has other ranks"));
        };
        // The last call is an error, because this rank leaves.
        let run = move || {
            let Ok(mut call) = peer(other) else { return };
            while call().is_ok() {}
        };
        Ok(Pair { communicator: Some(own), peer: Some(std::thread::spawn(run)) })
    }

    /// This rank's handle.
    ///
    /// # Panics
    ///
    /// Never: the handle is there until the pair is dropped.
    pub fn communicator(&self) -> &Communicator {
        self.communicator.as_ref().expect("there until the drop")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.communicator = None;
        if let Some(peer) = self.peer.take() {
            // A panic of the peer has been printed.
            let _ = peer.join();
        }
    }
}

/// A transpose to measure.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The type of the elements.
    pub data_type: DataType,
    /// The dimensions of the input.
    pub dims: &'static [usize],
    /// Dimension `i` of the output is dimension `permutation[i]` of the input.
    pub permutation: &'static [u8],
}

/// Matrices of every length of element, heads of attention, and images.
pub const CASES: &[Case] = &[
    Case { data_type: DataType::Float32, dims: &[4096, 1024], permutation: &[1, 0] },
    Case { data_type: DataType::Uint8, dims: &[4096, 1024], permutation: &[1, 0] },
    Case { data_type: DataType::Float16, dims: &[4096, 1024], permutation: &[1, 0] },
    Case { data_type: DataType::Int64, dims: &[4096, 1024], permutation: &[1, 0] },
    Case { data_type: DataType::Float32, dims: &[512, 512], permutation: &[1, 0] },
    Case { data_type: DataType::Float32, dims: &[1000, 3001], permutation: &[1, 0] },
    Case { data_type: DataType::Float16, dims: &[2048, 32, 64], permutation: &[1, 0, 2] },
    Case { data_type: DataType::Float32, dims: &[8, 512, 16, 64], permutation: &[0, 2, 3, 1] },
    Case { data_type: DataType::Uint8, dims: &[16, 256, 256, 3], permutation: &[0, 3, 1, 2] },
    Case { data_type: DataType::Float32, dims: &[16, 3, 256, 256], permutation: &[0, 2, 3, 1] },
    Case { data_type: DataType::Float32, dims: &[64, 32, 48, 40], permutation: &[3, 2, 1, 0] },
];

impl Case {
    /// The bytes of the input, which are as many as those of the output.
    pub fn byte_len(&self) -> usize {
        self.dims.iter().product::<usize>() * self.data_type.byte_len()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.data_type, self.dims, self.permutation)
    }
}

/// A network with one transpose, and its tensors.
pub struct Transpose {
    context: ExecutionContext,
    input: Buffer,
    output: Buffer,
}

impl Transpose {
    /// A network for this case.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(case: &Case) -> Result<Self> {
        let dims: Vec<i64> = case.dims.iter().map(|&dim| dim as i64).collect();
        let mut network = Network::new();
        let x = network.add_input("x", case.data_type, dims.as_slice())?;
        let y = network.add_shuffle(x, Shuffle::transpose(case.permutation))?;
        network.mark_output(y, "y")?;
        let context = Builder::new().build(&network)?.create_execution_context()?;
        let mut input = Buffer::zeroed(case.data_type, dims.as_slice())?;
        input.as_mut_bytes()?.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        let mut output = Buffer::zeroed(case.data_type, context.tensor_shape("y")?)?;
        output.as_mut_bytes()?.fill(1);
        Ok(Transpose { context, input, output })
    }

    /// Transposes once.
    ///
    /// # Errors
    ///
    /// None.
    pub fn run(&mut self) -> Result<()> {
        let inputs = [("x", Ok(TensorView::from(&self.input)))];
        self.context.execute(inputs, [("y", Ok(TensorViewMut::from(&mut self.output)))])
    }

    /// Copies the bytes of the input to the output as they are.
    ///
    /// # Errors
    ///
    /// None.
    pub fn copy(&mut self) -> Result<()> {
        self.output.as_mut_bytes()?.copy_from_slice(self.input.as_bytes()?);
        Ok(())
    }
}
